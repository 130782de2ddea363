//! Requests and responses through JSON: what is read, what is refused and with which sentence, and that nothing panics.

use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor};
use cellwright_protocol::{InferRequest, InferResponse};
use proptest::prelude::*;

fn read_tensor(datatype: &str, shape: &str, data: &str) -> Result<Tensor, String> {
    let text = format!(r#"{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}"#);
    InferRequest::from_json(text.as_bytes()).map(|mut request| request.inputs.remove(0)).map_err(|bad| bad.to_string())
}

#[test]
fn a_whole_request_is_read() {
    let text = br#" {"id":"r1","parameters":{"a":1,"b":2.5,"c":"t","d":true},
        "inputs":[{"data":[[1,2],[3,4.5]],"datatype":"FP32","shape":[2,2],"name":"x"},{"name":"t","shape":[1],"datatype":"BYTES","data":["h\u00e9"]}],
        "outputs":[{"name":"y","parameters":{"binary_data":false}},{"name":"z"}]}"#;
    let request = InferRequest::from_json(text).unwrap();
    assert_eq!(request.id.as_deref(), Some("r1"));
    let values: Vec<_> = request.parameters.iter().map(|parameter| parameter.value.clone()).collect();
    let expected = [AttributeValue::Int(1), AttributeValue::Float(2.5), AttributeValue::Text("t".into()), AttributeValue::Truth(true)];
    assert_eq!(values, expected);
    assert_eq!(request.inputs, [Tensor::from_f32("x", &[2, 2], &[1.0, 2.0, 3.0, 4.5]), Tensor::from_texts("t", &[1], &["hé"])]);
    assert_eq!(request.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>(), ["y", "z"]);
    assert_eq!(InferRequest::from_json(request.to_json().unwrap().as_bytes()).unwrap(), request);
}

#[test]
fn every_datatype_keeps_its_extremes() {
    let cases = [
        ("BOOL", "[true,false]", 2),
        ("UINT8", "[0,255]", 2),
        ("UINT16", "[0,65535]", 4),
        ("UINT32", "[0,4294967295]", 8),
        ("UINT64", "[0,18446744073709551615]", 16),
        ("INT8", "[-128,127]", 2),
        ("INT16", "[-32768,32767]", 4),
        ("INT32", "[-2147483648,2147483647]", 8),
        ("INT64", "[-9223372036854775808,9223372036854775807]", 16),
        ("FP32", "[3.4028235e+38,-0.0]", 8),
        ("FP64", "[5e-324,0.1]", 16),
        ("BYTES", r#"["","\"é"]"#, 11),
    ];
    for (datatype, data, bytes) in cases {
        let tensor = read_tensor(datatype, "[2]", data).unwrap();
        assert_eq!((tensor.datatype.name(), tensor.data.len(), tensor.is_consistent()), (datatype, bytes, true));
        let response = InferResponse { model_name: "m".into(), outputs: vec![tensor], ..InferResponse::default() };
        let printed = response.to_json().unwrap();
        assert!(printed.contains(&format!("\"data\":{data}")), "{printed}");
        assert_eq!(InferResponse::from_json(printed.as_bytes()).unwrap(), response);
    }
}

#[test]
fn what_json_has_no_number_for_passes_as_text() {
    let tensor = read_tensor("FP32", "[3]", r#"["NaN","Infinity","-Infinity"]"#).unwrap();
    let values = tensor.to_f32().unwrap();
    assert!(values[0].is_nan() && values[1] == f32::INFINITY && values[2] == f32::NEG_INFINITY);
    let printed = InferResponse { outputs: vec![tensor], ..InferResponse::default() }.to_json().unwrap();
    assert!(printed.contains(r#""data":["NaN","Infinity","-Infinity"]"#), "{printed}");
    let values = read_tensor("FP64", "[1]", r#"["-Infinity"]"#).unwrap();
    assert_eq!(values.data, f64::NEG_INFINITY.to_le_bytes());
}

#[test]
fn a_parameter_that_json_has_no_number_for_is_named() {
    for (float, said) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let parameters = vec![Attribute { name: "score".into(), value: AttributeValue::Float(float) }];
        let sentence = format!("the message has no form in JSON: parameter `score` is {said}, and JSON has no such number");
        let response = InferResponse { parameters: parameters.clone(), ..InferResponse::default() };
        assert_eq!(response.to_json().unwrap_err().to_string(), sentence);
        let request = InferRequest { parameters, ..InferRequest::default() };
        assert_eq!(request.to_json().unwrap_err().to_string(), sentence);
        assert_eq!(request.to_generate().unwrap_err().to_string(), sentence);
    }
}

#[test]
fn nested_or_flat_or_empty() {
    for data in ["[1,2,3,4]", "[[1,2],[3,4]]"] {
        assert_eq!(read_tensor("INT64", "[2,2]", data).unwrap(), Tensor::from_i64("x", &[2, 2], &[1, 2, 3, 4]));
    }
    for data in ["[]", "[[],[]]"] {
        assert!(read_tensor("INT64", "[2,0,5]", data).unwrap().data.is_empty());
    }
    assert_eq!(read_tensor("INT64", "[]", "[7]").unwrap(), Tensor::from_i64("x", &[], &[7]));
}

#[test]
fn each_fault_has_its_sentence() {
    let input = |rest: &str| format!("input `x`: {rest}");
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let cases = [
        ("FP32", "[3]", "[1,2]", input("shape [3] has 3 elements, the data has 2")),
        ("FP32", "[2,2]", "[[1,2],[3]]", input("the nested lists of `data` are ragged: at depth 1 one is not like the ones before it")),
        ("FP32", "[2]", "[1,[2]]", input("the nested lists of `data` are ragged: at depth 1 one is not like the ones before it")),
        ("FP32", "[2]", "[[],2]", input("the nested lists of `data` are ragged: at depth 1 one is not like the ones before it")),
        ("FP32", "[2,3]", "[[1,2],[3,4],[5,6]]", input("the nested lists of `data` have shape [3, 2], the tensor's shape is [2, 3]")),
        ("FP32", "[0,2]", "[[],[]]", input("the nested lists of `data` have shape [2, 0], the tensor's shape is [0, 2]")),
        ("FP32", "[1]", "[1e39]", input("element 0 is 1e39, which is no FP32")),
        ("FP32", "[1]", r#"["1.5"]"#, input(r#"element 0 is "1.5", which is no FP32"#)),
        ("FP32", "[1]", "[true]", input("element 0 is true, which is no FP32")),
        ("INT8", "[2]", "[1,128]", input("element 1 is 128, which is no INT8")),
        ("UINT64", "[1]", "[-1]", input("element 0 is -1, which is no UINT64")),
        ("INT64", "[1]", "[9223372036854775808]", input("element 0 is 9223372036854775808, which is no INT64")),
        ("INT64", "[1]", "[1.0]", input("element 0 is 1.0, which is no INT64")),
        ("BOOL", "[1]", "[1]", input("element 0 is 1, which is no BOOL")),
        ("BYTES", "[1]", "[1]", input("element 0 is 1, which is no BYTES")),
        ("FP16", "[1]", "[1]", input("FP16 travels only as binary data, JSON has no form for it; send FP32")),
        ("BF16", "[1]", "[1]", input("BF16 travels only as binary data, JSON has no form for it; send FP32")),
        ("fp32", "[1]", "[1]", input("`fp32` is no datatype; the datatypes are BOOL, UINT8")),
        ("FP32", "[-1]", "[1]", input("dimension 0 of the shape is -1; a request's extents are 0 or more")),
        ("FP32", "[4611686018427387904,8]", "[1]", input("shape [4611686018427387904, 8] has more elements than can be counted")),
        ("FP32", "[1]", "null", input("`data` is missing")),
        ("FP32", "[3]", "[1,null,NaN]", input("element 1 is null, which is no FP32; write \"NaN\" where there is no number")),
        ("FP64", "[1,1]", "[[null]]", input("element 0 is null, which is no FP64; write \"NaN\" where there is no number")),
        ("BYTES", "[2]", r#"["a",null]"#, input("element 1 is null, which is no BYTES; write a value for every element")),
        ("BYTES", "[2]", r#"["a",NaN]"#, input("element 1 is NaN, which is no BYTES")),
        ("INT64", "[1]", "[Infinity]", input("element 0 is inf, which is no INT64")),
        ("FP32", "[1]", r#"[{"a":1}]"#, "invalid type: map, expected an element of `data`: a number".into()),
        ("FP32", "[1]", "5", "invalid type: integer `5`, expected `data` as a list of elements".into()),
        ("FP32", "[1]", "[nan]", "expected ident at line 1".into()),
        ("FP32", "[2]", "[NaN 1]", "expected `,` or `]`".into()),
        ("FP32", "[1]", &deep, "recursion limit exceeded".into()),
    ];
    for (datatype, shape, data, sentence) in cases {
        let message = read_tensor(datatype, shape, data).unwrap_err();
        assert!(message.contains(&sentence), "{datatype} {shape} {data}: {message}");
    }
}

#[test]
fn each_fault_of_the_request_has_its_sentence() {
    let x = r#"{"name":"x","shape":[1],"datatype":"FP32","data":[1]}"#;
    let cases = [
        (String::from("{"), "the message is not the JSON that the protocol asks for: EOF while parsing"),
        (String::from("[]"), "expected an object, found a list"),
        (String::from("7"), "invalid type: integer `7`, expected a request, which is an object"),
        (String::from(r#"{"inputs":[[]]}"#), "expected a tensor, which is an object"),
        (String::from(r#"{"inputs":["x"]}"#), "invalid type: string \"x\", expected a tensor, which is an object"),
        (format!(r#"{{"inputs":[{x}],"outputs":[1]}}"#), "expected a requested output, which is an object"),
        (String::from(r#"{"inputs":[]}"#), "the request has no inputs"),
        (String::from(r#"{"id":"a"}"#), "missing field `inputs`"),
        (format!(r#"{{"inputs":[{x}],"id":5}}"#), "invalid type: integer `5`, expected a string"),
        (format!(r#"{{"inputs":[{x},{x}]}}"#), "input `x` is given twice"),
        (format!(r#"{{"inputs":[{x}],"outputs":[{{"name":"y"}},{{"name":"y"}}]}}"#), "requested output `y` is given twice"),
        (format!(r#"{{"inputs":[{x}],"parameters":{{"a":1,"a":2}}}}"#), "parameter `a` is given twice"),
        (format!(r#"{{"inputs":[{x}],"parameters":{{"timeout":[1]}}}}"#), "parameter `timeout` takes a string, a number or a boolean"),
        (format!(r#"{{"inputs":[{x}],"parameters":{{"a":18446744073709551615}}}}"#), "expected a parameter's value"),
        (format!(r#"{{"inputs":[{x}],"parameters":{{"a":1{}}}}}"#, r#","a":1"#.repeat(1_024)), "more than 1024 parameters"),
        (
            format!(
                r#"{{"inputs":[{x}],"outputs":[{{"name":"y","parameters":{{"binary_data":true{}}}}}]}}"#,
                r#","binary_data":true"#.repeat(8)
            ),
            "more than 8 parameters",
        ),
        (
            x.replace("\"data\"", "\"parameters\":{\"binary_data_size\":4},\"data\""),
            "but without the header Inference-Header-Content-Length,",
        ),
        (x.replace("\"data\"", "\"parameters\":{\"binary_data_size\":[4]},\"data\""), "parameter `binary_data_size` takes a string"),
        (format!(r#"{{"inputs":[{}]}}"#, x.replace("\"name\"", "\"data\":[2],\"name\"")), "duplicate field `data`"),
    ];
    for (text, sentence) in cases {
        let text = if text.starts_with(r#"{"name""#) { format!(r#"{{"inputs":[{text}]}}"#) } else { text };
        let message = InferRequest::from_json(text.as_bytes()).unwrap_err().to_string();
        assert!(message.contains(sentence), "{text}: {message}");
    }
}

#[test]
fn a_refusal_keeps_the_id_where_it_could_be_read() {
    let bad = InferRequest::from_json(br#"{"id":"r7","inputs":[]}"#).unwrap_err();
    assert_eq!(bad.id.as_deref(), Some("r7"));
}

#[test]
fn a_response_that_json_cannot_say_is_refused() {
    let respond = |tensor: Tensor| InferResponse { outputs: vec![tensor], ..InferResponse::default() }.to_json().unwrap_err().to_string();
    assert_eq!(respond(Tensor::from_texts("y", &[1], &[b"\xff"])), "element 0 of output `y` is not UTF-8, JSON cannot carry it");
    let half = Tensor { name: "y".into(), datatype: Datatype::Fp16, shape: vec![1], data: vec![0, 0] };
    assert_eq!(respond(half), "output `y` has datatype FP16, which travels only as binary data");
    let short = Tensor { name: "y".into(), datatype: Datatype::Fp32, shape: vec![2], data: vec![0; 4] };
    assert!(respond(short).starts_with("output `y` has 4 bytes of data"));
}

#[test]
fn the_response_is_one_line_in_the_protocols_order() {
    let response = InferResponse {
        model_name: "digits".into(),
        model_version: Some("3".into()),
        id: Some("a\n".into()),
        parameters: vec![Attribute { name: "p".into(), value: AttributeValue::Int(1) }],
        outputs: vec![Tensor::from_f32("y", &[2], &[0.1, 1e-7])],
    };
    let line = r#"{"model_name":"digits","model_version":"3","id":"a\n","parameters":{"p":1},"outputs":[{"name":"y","shape":[2],"datatype":"FP32","data":[0.1,1e-7]}]}"#;
    assert_eq!(response.to_json().unwrap(), line);
    assert_eq!(InferResponse::from_json(line.as_bytes()).unwrap(), response);
}

/// Whoever reads JSON's numbers as FP64 first, as Python does and this crate, rounds twice.
#[test]
fn what_is_rounded_twice_is_the_nearest_float_all_the_same() {
    for bits in [0x15ae_43fd, 0x95ae_43fd] {
        let tensor = Tensor::from_f32("x", &[1], &[f32::from_bits(bits)]);
        let printed = InferRequest { inputs: vec![tensor.clone()], ..InferRequest::default() }.to_json().unwrap();
        assert_eq!(InferRequest::from_json(printed.as_bytes()).unwrap().inputs, [tensor], "{printed}");
    }
    // A little more than halfway between two floats, and as FP64 exactly there.
    let halfway: i64 = (1 << 60) + (1 << 36);
    for int in [halfway + 1, -halfway - 1] {
        let read = read_tensor("FP32", "[1]", &format!("[{int}]")).unwrap();
        assert_eq!(read, Tensor::from_f32("x", &[1], &[int as f32]));
    }
}

proptest! {
    #[test]
    fn floats_survive_bit_for_bit(bits in prop::collection::vec(any::<u32>(), 64), wide in prop::collection::vec(any::<u64>(), 16)) {
        let narrow: Vec<f32> = bits.into_iter().map(f32::from_bits).filter(|float| !float.is_nan()).collect();
        let wide: Vec<f64> = wide.into_iter().map(f64::from_bits).filter(|float| !float.is_nan()).collect();
        let wide_bytes = wide.iter().flat_map(|float| float.to_le_bytes()).collect();
        let wide = Tensor { name: "w".into(), datatype: Datatype::Fp64, shape: vec![wide.len()], data: wide_bytes };
        let request = InferRequest { inputs: vec![Tensor::from_f32("n", &[narrow.len()], &narrow), wide], ..InferRequest::default() };
        prop_assert_eq!(InferRequest::from_json(request.to_json().unwrap().as_bytes()).unwrap(), request);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = InferRequest::from_json(&bytes);
    }

    #[test]
    fn no_damage_to_a_request_panics(position in 0_usize..150, byte in any::<u8>(), cut in 0_usize..150) {
        let mut text = br#"{"id":"r","parameters":{"a":1},"inputs":[{"name":"x","shape":[2,2],"datatype":"INT8","data":[[1,-2],[3,4]]}],"outputs":[{"name":"y"}]}"#.to_vec();
        if let Some(place) = text.get_mut(position) {
            *place = byte;
        }
        let _ = InferRequest::from_json(&text);
        text.truncate(cut);
        let _ = InferRequest::from_json(&text);
    }
}

/// As MLServer's, Seldon's and KServe's clients add it, and as others may.
#[test]
fn what_is_not_known_is_ignored_at_every_level() {
    let unknown =
        r#""content_type":"np","tile":4,"seen":null,"headers":{"a":["b",{"c":null}]},"large":18446744073709551615,"list":[1,[2]]"#;
    let plain = r#"{"parameters":{"beam":4},"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[{"name":"y"}]}"#;
    let read = |text: &str| InferRequest::from_json(text.as_bytes()).unwrap_or_else(|bad| panic!("{text}: {bad}"));
    let texts = [
        plain.replacen('{', r#"{"model_name":"m","model_version":null,"raw_input_contents":[{}],"#, 1),
        plain.replacen("\"name\"", &format!(r#""parameters":{{{unknown}}},"strides":[1],"contents":{{"fp32":[1]}},"name""#), 1),
        plain.replacen("\"y\"", &format!(r#""y","parameters":{{{unknown}}},"datatype":"FP32""#), 1),
        plain.replacen("\"beam\"", r#""seen":null,"headers":{"a":1},"list":[1,[2]],"timeout":null,"beam""#, 1),
        plain.replacen("\"y\"", r#""y","parameters":{"binary_data":null,"classification":null}"#, 1),
        plain.replacen("\"name\"", r#""parameters":{"binary_data_size":null,"shared_memory_region":null},"name""#, 1),
    ];
    for text in texts {
        assert_eq!(read(&text), read(plain), "{text}");
    }
    let answer = r#"{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"content_type":null},"data":[1]}]}"#;
    let plain = answer.replace(r#""parameters":{"content_type":null},"#, "");
    let read = |text: &str| InferResponse::from_json(text.as_bytes()).unwrap();
    assert_eq!(read(answer), read(&plain));
}

/// What Python's `json` writes, and so tritonclient.
#[test]
fn bare_words_are_numbers_and_nothing_else() {
    let text = br#"{"id":"NaN \" NaN","parameters":{"limit":-Infinity,"word":"NaN"},"inputs":[
        {"name":"x","shape":[2,2],"datatype":"FP32","data":[[NaN,-1],[Infinity,-Infinity]]},
        {"name":"t","shape":[2],"datatype":"BYTES","data":["NaN","\\"]},
        {"name":"w","shape":[1],"datatype":"FP64","data":[NaN]}]}"#;
    let request = InferRequest::from_json(text).unwrap();
    assert_eq!(request.id.as_deref(), Some("NaN \" NaN"));
    let values = request.inputs[0].to_f32().unwrap();
    assert!(values[0].is_nan() && values[1..] == [-1.0, f32::INFINITY, f32::NEG_INFINITY], "{values:?}");
    assert_eq!(request.inputs[1], Tensor::from_texts("t", &[2], &["NaN", "\\"]));
    assert_eq!(request.inputs[2].data, f64::NAN.to_le_bytes());
    let values: Vec<_> = request.parameters.iter().map(|parameter| parameter.value.clone()).collect();
    assert_eq!(values, [AttributeValue::Float(f64::NEG_INFINITY), AttributeValue::Text("NaN".into())]);
    for text in [r#"{"id":NaN,"inputs":[]}"#, r#"{"inputs":[{"name":"x","shape":[NaN],"datatype":"FP32","data":[1]}]}"#] {
        let message = InferRequest::from_json(text.as_bytes()).unwrap_err().to_string();
        assert!(message.contains("invalid type: map"), "{message}");
    }
}

#[test]
fn minus_zero_is_an_integer() {
    for datatype in ["INT8", "INT64", "UINT64"] {
        assert!(read_tensor(datatype, "[1]", "[-0]").unwrap().data.iter().all(|byte| *byte == 0), "{datatype}");
    }
    assert_eq!(read_tensor("FP32", "[1]", "[-0]").unwrap().data, (-0.0_f32).to_le_bytes());
    assert!(read_tensor("FP32", "[-0]", "[]").unwrap().data.is_empty());
    let text = r#"{"parameters":{"timeout":-0,"sequence_id":-0},"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}"#;
    assert_eq!(InferRequest::from_json(text.as_bytes()).unwrap().take_options().unwrap().timeout, None);
}
