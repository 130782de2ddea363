//! Binary tensors: what is read in which combination, what is refused and with which sentence, that writing and reading lose nothing and
//! that nothing panics.

use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor, TensorSpec};
use cellwright_protocol::{BadResponse, InferRequest, InferResponse, Wanted};
use proptest::prelude::*;

/// A body of JSON and what follows.
fn read(json: &str, binary: &[u8]) -> Result<InferRequest, String> {
    let body = [json.as_bytes(), binary].concat();
    InferRequest::from_body(&body, Some(json.len())).map_err(|bad| bad.to_string())
}

fn input(datatype: &str, shape: &str, size: usize) -> String {
    format!(r#"{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","parameters":{{"binary_data_size":{size}}}}}]}}"#)
}

#[test]
fn json_and_binary_inputs_stand_side_by_side() {
    let json = r#"{"id":"r","inputs":[
        {"name":"a","shape":[2],"datatype":"INT16","parameters":{"binary_data_size":4}},
        {"name":"b","shape":[1],"datatype":"FP32","data":[0.5]},
        {"name":"c","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":11}},
        {"name":"d","shape":[0,3],"datatype":"FP64","parameters":{"binary_data_size":0}}]}"#;
    let request = read(json, b"\x01\x00\xff\xff\x00\0\0\0\x03\0\0\0abc").unwrap();
    let int16 = Tensor { name: "a".into(), datatype: Datatype::Int16, shape: vec![2], data: vec![1, 0, 255, 255] };
    let empty = Tensor { name: "d".into(), datatype: Datatype::Fp64, shape: vec![0, 3], data: vec![] };
    let texts = Tensor::from_texts("c", &[2], &["", "abc"]);
    assert_eq!(request.inputs, [int16, Tensor::from_f32("b", &[1], &[0.5]), texts, empty]);
}

#[test]
fn sixteen_bit_floats_travel_in_binary() {
    for datatype in ["FP16", "BF16"] {
        let request = read(&input(datatype, "[1,2]", 4), &[0, 60, 1, 60]).unwrap();
        assert_eq!((request.inputs[0].datatype.name(), request.inputs[0].data.as_slice()), (datatype, &[0, 60, 1, 60][..]));
    }
}

#[test]
fn each_fault_has_its_sentence() {
    let fault = |rest: &str| format!("input `x`: {rest}");
    let cases: [(&str, &str, usize, &[u8], String); 12] = [
        ("FP32", "[2]", 8, &[0; 7], fault("its `binary_data_size` is 8, but only 7 bytes of the message are left")),
        ("FP32", "[2]", 4, &[0; 4], fault("shape [2] of FP32 takes 8 bytes, its binary data has 4")),
        ("FP32", "[2]", 8, &[0; 9], "the message has 1 byte behind its last tensor that none announces".into()),
        ("FP32", "[4611686018427387904]", 0, &[], fault("shape [4611686018427387904] has more elements than can be counted")),
        ("FP32", "[4294967296,4294967296]", 0, &[], fault("shape [4294967296, 4294967296] has more elements")),
        ("BOOL", "[3]", 3, &[0, 1, 2], fault("byte 2 is 2, a BOOL is 0 or 1")),
        ("BYTES", "[1]", 3, &[0; 3], fault("the length in front of element 0 reaches beyond the tensor's binary data")),
        ("BYTES", "[2]", 9, &[1, 0, 0, 0, 65, 255, 255, 255, 255], fault("the length in front of element 1 reaches beyond")),
        ("BYTES", "[2]", 4, &[0; 4], fault("shape [2] has 2 elements, the data has 1")),
        ("BYTES", "[1]", 8, &[0; 8], fault("shape [1] has 1 element, the data has 2")),
        ("INT8", "[-1]", 1, &[0], fault("dimension 0 of the shape is -1; a request's extents are 0 or more")),
        ("FP99", "[1]", 1, &[0], fault("`FP99` is no datatype")),
    ];
    for (datatype, shape, size, binary, sentence) in cases {
        let message = read(&input(datatype, shape, size), binary).unwrap_err();
        assert!(message.starts_with(&sentence), "{datatype} {shape} {size}: {message}");
    }
}

#[test]
fn sizes_that_are_none_and_bodies_that_are_shorter_are_refused() {
    let x = input("INT8", "[1]", 1);
    for size in ["-1", "\"1\"", "1.5", "true", "1,\"binary_data_size\":1"] {
        let message = read(&x.replace(":1}", &format!(":{size}}}")), &[0]).unwrap_err();
        assert_eq!(message, "input `x`: `binary_data_size` takes a number of bytes, 0 or more", "{size}");
    }
    let twice = x.replace("\"datatype\"", "\"data\":[1],\"datatype\"");
    assert!(read(&twice, &[0]).unwrap_err().contains("given twice, as `data` and as binary data"));
    let message = InferRequest::from_body(x.as_bytes(), Some(x.len() + 1)).unwrap_err().to_string();
    assert!(message.contains(&format!("announces {} bytes of JSON", x.len() + 1)) && message.contains("in all"), "{message}");
    assert!(InferRequest::from_body(x.as_bytes(), Some(0)).is_err());
    let shared = x.replace("binary_data_size", "shared_memory_region");
    let bad = InferRequest::from_body(shared.as_bytes(), None).unwrap_err();
    assert!(bad.fault.is_unsupported() && bad.to_string().contains("shared memory is not served"), "{bad}");
}

#[test]
fn a_header_that_is_missing_or_wrong_is_named() {
    let json = input("INT8", "[1]", 1);
    let fault = |body: &[u8], length| InferRequest::from_body(body, length).unwrap_err().to_string();
    let there = [json.as_bytes(), &[7]].concat();
    for body in [json.as_bytes(), &there, &[json.as_bytes(), b"NaN {"].concat()] {
        let message = fault(body, None);
        assert!(message.starts_with("input `x`: its data is announced as binary") && message.contains("without the header"), "{message}");
    }
    for length in [json.len() - 1, json.len() + 1] {
        let message = fault(&there, Some(length));
        let begin = format!("the first {length} bytes of the message (header Inference-Header-Content-Length) are not the JSON");
        assert!(message.starts_with(&begin), "{message}");
    }
    // Who announces nothing has something else behind the JSON.
    let message = fault(br#"{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]} 1"#, None);
    assert!(message.contains("trailing characters"), "{message}");
}

fn spec(datatype: Datatype, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: "x".into(), datatype, shape: shape.to_vec() }
}

#[test]
fn a_raw_request_is_the_only_input() {
    let raw = |spec: TensorSpec, rows_are_requests, body: &[u8]| {
        InferRequest::from_raw(&[spec], rows_are_requests, body).map(|mut request| request.inputs.remove(0)).map_err(|bad| bad.to_string())
    };
    let floats = Tensor::from_f32("x", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(raw(spec(Datatype::Fp32, &[-1, 3]), false, &floats.data).unwrap(), floats);
    assert_eq!(raw(spec(Datatype::Fp32, &[-1, -1, 3]), true, &floats.data).unwrap().shape, [1, 2, 3]);
    assert_eq!(raw(spec(Datatype::Fp32, &[2, 3]), false, &floats.data).unwrap(), floats);
    assert_eq!(raw(spec(Datatype::Bytes, &[-1]), false, b"hello").unwrap(), Tensor::from_texts("x", &[1], &["hello"]));
    assert!(raw(spec(Datatype::Fp32, &[-1, -1]), false, &floats.data).unwrap_err().contains("does not say which shape it has"));
    assert!(raw(spec(Datatype::Fp32, &[-1, 0]), false, &floats.data).unwrap_err().contains("does not say which shape it has"));
    assert!(raw(spec(Datatype::Fp32, &[-1, 4]), false, &floats.data).unwrap_err().contains("takes 16 bytes, its binary data has 24"));
    assert!(raw(spec(Datatype::Fp32, &[i64::MAX, 4]), false, &[]).is_err());
    assert!(raw(spec(Datatype::Bytes, &[2]), false, b"hello").unwrap_err().contains("carries one element"));
    let two = [spec(Datatype::Fp32, &[1]), spec(Datatype::Fp32, &[1])];
    assert!(InferRequest::from_raw(&two, false, &[0; 4]).unwrap_err().to_string().contains("the model has 2"));
}

fn answer() -> InferResponse {
    let half = Tensor { name: "h".into(), datatype: Datatype::Fp16, shape: vec![1], data: vec![0, 60] };
    let outputs = vec![Tensor::from_f32("y", &[2], &[0.5, 2.0]), half, Tensor::from_texts("t", &[1], &["é"])];
    InferResponse { model_name: "m".into(), outputs, ..InferResponse::default() }
}

#[test]
fn a_response_has_the_outputs_that_were_asked_for_in_the_form_they_were_asked_for() {
    let wanted = Wanted { binary: false, outputs: vec![("t".into(), None), ("h".into(), Some(true)), ("y".into(), None)] };
    let body = answer().into_body(&wanted).unwrap();
    let json = r#"{"model_name":"m","outputs":[{"name":"t","shape":[1],"datatype":"BYTES","data":["é"]},{"name":"h","shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2}},{"name":"y","shape":[2],"datatype":"FP32","data":[0.5,2.0]}]}"#;
    assert_eq!((String::from_utf8(body.json.clone()).unwrap().as_str(), body.binary.clone()), (json, vec![vec![0, 60]]));
    assert_eq!((body.json_length(), body.len()), (Some(json.len()), json.len() + 2));
    let read = InferResponse::from_body(&body.into_bytes(), Some(json.len())).unwrap();
    assert_eq!(read.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>(), ["t", "h", "y"]);

    let but_one = Wanted { binary: true, outputs: vec![("y".into(), Some(false)), ("h".into(), None)] };
    let body = answer().into_body(&but_one).unwrap();
    assert_eq!(body.binary, [vec![0, 60]]);
    let all = answer().into_body(&Wanted { binary: true, outputs: vec![] }).unwrap();
    assert_eq!(all.binary.len(), 3);
}

#[test]
fn json_alone_has_no_length_in_front() {
    let body = answer().into_body(&Wanted { binary: false, outputs: vec![("y".into(), None)] }).unwrap();
    assert_eq!((body.json_length(), body.binary.len()), (None, 0));
    let empty = Tensor { name: "e".into(), datatype: Datatype::Fp32, shape: vec![0], data: vec![] };
    let body = InferResponse { outputs: vec![empty], ..answer() }.into_body(&Wanted { binary: true, outputs: vec![] }).unwrap();
    assert_eq!(body.json_length(), Some(body.json.len()));
}

#[test]
fn what_cannot_be_answered_says_whose_fault_it_is() {
    let ask = |outputs: Vec<(String, Option<bool>)>| answer().into_body(&Wanted { binary: false, outputs }).unwrap_err();
    let unknown = ask(vec![("y".into(), None), ("z".into(), None)]);
    assert_eq!(unknown.to_string(), "output `z` was asked for, but the answer has only h, t");
    let half = ask(vec![]);
    assert_eq!(half.to_string(), "output `h` has datatype FP16, which travels only as binary data");
    assert!(unknown.is_clients_fault() && half.is_clients_fault());
    let broken = Tensor { name: "y".into(), datatype: Datatype::Fp32, shape: vec![2], data: vec![0; 4] };
    let broken = InferResponse { outputs: vec![broken], ..answer() }.into_body(&Wanted { binary: true, outputs: vec![] }).unwrap_err();
    assert!(matches!(broken, BadResponse::Inconsistent { .. }) && !broken.is_clients_fault());
}

/// A tensor of any datatype, with contents that its datatype allows.
fn tensors() -> impl Strategy<Value = Vec<(Tensor, bool)>> {
    let one = (0..Datatype::ALL.len(), prop::collection::vec(0_usize..4, 0..4), any::<bool>(), any::<u64>());
    prop::collection::vec(one, 1..6).prop_map(|tensors| {
        let named = |(position, (datatype, shape, binary, seed)): (usize, (usize, Vec<usize>, bool, u64))| {
            let datatype = Datatype::ALL[datatype];
            let binary = binary || matches!(datatype, Datatype::Fp16 | Datatype::Bf16);
            (tensor(&format!("t{position}"), datatype, &shape, seed), binary)
        };
        tensors.into_iter().enumerate().map(named).collect()
    })
}

fn tensor(name: &str, datatype: Datatype, shape: &[usize], mut seed: u64) -> Tensor {
    let elements: usize = shape.iter().product();
    let mut byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    if datatype == Datatype::Bytes {
        let texts: Vec<String> = (0..elements).map(|_| (0..byte() % 9).map(|_| char::from(byte())).collect()).collect();
        return Tensor::from_texts(name, shape, &texts);
    }
    let mut data: Vec<u8> = (0..elements * datatype.size().expect("only BYTES has none")).map(|_| byte()).collect();
    match datatype {
        Datatype::Bool => data.iter_mut().for_each(|byte| *byte &= 1),
        // No NaN, whose bits JSON does not carry: the lowest bit of every exponent is cleared.
        Datatype::Fp32 => data.iter_mut().skip(2).step_by(4).for_each(|byte| *byte &= 0x7f),
        Datatype::Fp64 => data.iter_mut().skip(6).step_by(8).for_each(|byte| *byte &= 0xef),
        _ => {}
    }
    Tensor { name: name.into(), datatype, shape: shape.to_vec(), data }
}

proptest! {
    #[test]
    fn what_is_written_is_read(tensors in tensors(), id in prop::option::of(".{0,8}")) {
        let binary: Vec<String> = tensors.iter().filter(|(_, binary)| *binary).map(|(tensor, _)| tensor.name.clone()).collect();
        let parameters = vec![Attribute { name: "p".into(), value: AttributeValue::Int(3) }];
        let inputs: Vec<Tensor> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
        let request = InferRequest { id: id.clone(), parameters: parameters.clone(), inputs: inputs.clone(), outputs: vec![] };
        let body = request.to_body(|input| binary.contains(&input.name)).unwrap();
        prop_assert_eq!(body.binary.len(), binary.len());
        let length = body.json_length();
        prop_assert_eq!(InferRequest::from_body(&body.into_bytes(), length).unwrap(), request);

        let wanted = Wanted { binary: false, outputs: tensors.iter().map(|(tensor, binary)| (tensor.name.clone(), Some(*binary))).collect() };
        let response = InferResponse { model_name: "m".into(), model_version: None, id, parameters, outputs: inputs };
        let body = response.clone().into_body(&wanted).unwrap();
        let length = body.json_length();
        prop_assert_eq!(InferResponse::from_body(&body.into_bytes(), length).unwrap(), response);
    }

    #[test]
    fn no_damage_panics(
        tensors in tensors(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        length in prop::option::of(0_usize..2000),
    ) {
        let request = InferRequest { inputs: tensors.into_iter().map(|(tensor, _)| tensor).collect(), ..InferRequest::default() };
        let body = request.to_body(|_| true).unwrap();
        let json_length = body.json_length();
        let mut bytes = body.into_bytes();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = InferRequest::from_body(&bytes, json_length);
        let _ = InferResponse::from_body(&bytes, length);
        let _ = InferRequest::from_raw(&[TensorSpec { name: "x".into(), datatype: Datatype::Fp32, shape: vec![-1] }], false, &bytes);
        bytes.truncate(cut.index(bytes.len()));
        let _ = InferRequest::from_body(&bytes, json_length);
        let _ = InferRequest::from_body(&bytes, length);
    }
}
