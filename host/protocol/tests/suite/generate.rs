//! `generate`: inputs and outputs as plain JSON values.

use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor, TensorSpec};
use cellwright_protocol::{InferRequest, InferResponse, RequestedOutput};
use proptest::prelude::*;

fn model() -> Vec<TensorSpec> {
    let spec = |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.into(), datatype, shape: shape.to_vec() };
    vec![spec("text", Datatype::Bytes, &[1]), spec("rows", Datatype::Fp32, &[-1, 2]), spec("open", Datatype::Int64, &[-1, -1])]
}

fn read(text: &str) -> Result<InferRequest, String> {
    InferRequest::from_generate(&model(), text.as_bytes()).map_err(|bad| bad.to_string())
}

#[test]
fn keys_are_inputs_or_parameters() {
    let request = read(r#"{"id":"r","beam":4,"text":"hé","parameters":{"greedy":true},"rows":[[1,2],[3,4]],"open":7}"#).unwrap();
    assert_eq!(request.id.as_deref(), Some("r"));
    let rows = Tensor::from_f32("rows", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(request.inputs, [Tensor::from_texts("text", &[1], &["hé"]), rows, Tensor::from_i64("open", &[1, 1], &[7])]);
    let parameters: Vec<_> = request.parameters.iter().map(|parameter| (parameter.name.as_str(), parameter.value.clone())).collect();
    assert_eq!(parameters, [("beam", AttributeValue::Int(4)), ("greedy", AttributeValue::Truth(true))]);
}

#[test]
fn other_keys_whose_values_are_no_parameters_are_ignored() {
    let plain = r#"{"text":"a","rows":[[1,2]],"open":7}"#;
    let more = plain.replacen('{', r#"{"tags":["a"],"headers":{"b":1},"seen":null,"parameters":{"tags":[1],"timeout":null},"#, 1);
    assert_eq!(read(&more).unwrap(), read(plain).unwrap());
    let request = read(r#"{"rows":[[NaN,-Infinity]],"scale":Infinity}"#);
    assert!(request.unwrap_err().contains("no inputs of it: `scale`"));
    let request = read(r#"{"rows":[[NaN,-Infinity]]}"#).unwrap();
    let values = request.inputs[0].to_f32().unwrap();
    assert!(values[0].is_nan() && values[1] == f32::NEG_INFINITY, "{values:?}");
}

#[test]
fn a_shape_follows_from_the_value_and_the_model() {
    let cases: [(&str, &str, &[usize]); 8] = [
        ("text", r#""a""#, &[1]),
        ("text", r#"["a"]"#, &[1]),
        ("rows", "[[1,2],[3,4],[5,6]]", &[3, 2]),
        ("rows", "[1,2]", &[1, 2]),
        ("rows", "[1,2,3,4]", &[2, 2]),
        ("rows", "[]", &[0, 2]),
        ("open", "7", &[1, 1]),
        ("open", "[7,8,9]", &[1, 3]),
    ];
    for (name, value, shape) in cases {
        let request = read(&format!(r#"{{"{name}":{value}}}"#)).unwrap();
        assert_eq!((request.inputs[0].shape.as_slice(), request.inputs[0].is_consistent()), (shape, true), "{name} {value}");
    }
}

#[test]
fn each_fault_has_its_sentence() {
    let cases = [
        (r#"{"rows":[1,2,3]}"#, "input `rows`: the value has shape [3], the model takes [-1, 2]"),
        (r#"{"rows":5}"#, "input `rows`: the value has shape [], the model takes [-1, 2]"),
        (r#"{"rows":[[[1,2]]]}"#, "input `rows`: the value has shape [1, 1, 2], the model takes [-1, 2]"),
        (r#"{"rows":[[1,2],[3]]}"#, "input `rows`: the nested lists of `data` are ragged"),
        (r#"{"open":[[1,2],[3]]}"#, "input `open`: the nested lists of `data` are ragged"),
        (r#"{"text":["a","b"]}"#, "input `text`: the value has shape [2], the model takes [1]"),
        (r#"{"text":5}"#, "input `text`: element 0 is 5, which is no BYTES"),
        ("{}", "none of the model's inputs (`text`, `rows`, `open`) is given"),
        (r#"{"timeout":5}"#, "none of the model's inputs (`text`, `rows`, `open`) is given"),
        (r#"{"txt":"a"}"#, "input `text` is missing: the model takes `text`, `rows`, `open`; no inputs of it: `txt`"),
        (
            r#"{"text":"a","beam":4,"row":1,"open":7}"#,
            "input `rows` is missing: the model takes `text`, `rows`, `open`; no inputs of it: `beam`, `row`",
        ),
        (r#"{"text":"a","text":"b"}"#, "input `text` is given twice"),
        (r#"{"text":"a","beam":1,"parameters":{"beam":2}}"#, "parameter `beam` is given twice"),
        (r#"{"text":"a","row":[[1,2]]}"#, "input `rows` is missing: the model takes `text`, `rows`, `open`; no inputs of it: `row`"),
        (r#"{"text":"a","timeout":[1]}"#, "parameter `timeout` takes a string, a number or a boolean"),
        (r#"{"text":"a","beam":18446744073709551615}"#, "`beam` is neither an input of the model (`text`, `rows`, `open`) nor a parameter"),
        (r#"{"text":null}"#, "input `text`: element 0 is null, which is no BYTES; write a value for every element"),
        (r#"{"rows":[[1,null]]}"#, "input `rows`: element 1 is null, which is no FP32; write \"NaN\" where there is no number"),
        ("[]", "expected an object of inputs and parameters by name"),
        (r#"{"text":"a"} x"#, "trailing characters"),
    ];
    for (text, sentence) in cases {
        let message = read(text).unwrap_err();
        assert!(message.contains(sentence), "{text}: {message}");
    }
}

#[test]
fn answers_are_values_by_name() {
    let outputs = vec![
        Tensor::from_texts("text", &[1], &["\"é"]),
        Tensor::from_f32("rows", &[2, 2], &[1.0, 0.1, f32::NAN, -2.0]),
        Tensor::from_i64("one", &[1, 1], &[-7]),
        Tensor::from_texts("texts", &[1, 2], &["a", ""]),
        Tensor { name: "none".into(), datatype: Datatype::Bool, shape: vec![usize::MAX, 0], data: vec![] },
    ];
    let response = InferResponse { model_name: "m".into(), model_version: Some("2".into()), outputs, ..InferResponse::default() };
    let text = String::from_utf8(response.to_generated().unwrap()).unwrap();
    let line =
        r#"{"model_name":"m","model_version":"2","text":"\"é","rows":[[1.0,0.1],["NaN",-2.0]],"one":-7,"texts":[["a",""]],"none":[]}"#;
    assert_eq!(text, line);
    let named_like_the_models_name = vec![Tensor::from_texts("model_name", &[1], &["x"])];
    let response = InferResponse { model_name: "m".into(), outputs: named_like_the_models_name, ..InferResponse::default() };
    assert_eq!(response.to_generated().unwrap(), br#"{"model_name":"x"}"#);
    let half = Tensor { name: "h".into(), datatype: Datatype::Fp16, shape: vec![1], data: vec![0, 0] };
    assert!(InferResponse { outputs: vec![half], ..InferResponse::default() }.to_generated().unwrap_err().is_clients_fault());
}

#[test]
fn a_request_of_the_protocol_is_one_of_generate() {
    let parameters = vec![Attribute { name: "beam".into(), value: AttributeValue::Int(4) }];
    let inputs = vec![Tensor::from_texts("text", &[1], &["a"]), Tensor::from_f32("rows", &[2, 2], &[1.0, 0.5, f32::NAN, -2.0])];
    let request = InferRequest { id: Some("r".into()), parameters, inputs, outputs: Vec::new() };
    let line = serde_json::to_string(&request.to_generate().unwrap()).unwrap();
    assert_eq!(line, r#"{"id":"r","parameters":{"beam":4},"rows":[[1.0,0.5],["NaN",-2.0]],"text":"a"}"#);

    let named = RequestedOutput { name: "text".into(), parameters: Vec::new() };
    let fault = InferRequest { outputs: vec![named], ..request.clone() }.to_generate().unwrap_err();
    assert_eq!(fault.to_string(), "an answer of `generate` has all outputs: leave out `outputs`");
    for (name, is_taken) in [("id", true), ("parameters", true), ("text", true), ("beam", false)] {
        let mut request = request.clone();
        request.inputs[1].name = name.into();
        assert_eq!(request.to_generate().is_err(), is_taken, "{name}");
    }
}

/// What a plugin makes up is at most refused.
#[test]
fn no_shape_of_an_output_panics() {
    let shaped = |shape: Vec<usize>| {
        let data = vec![1; shape.iter().try_fold(1, |product: usize, extent| product.checked_mul(*extent)).unwrap()];
        let output = Tensor { name: "y".into(), datatype: Datatype::Int8, shape, data };
        InferResponse { model_name: "m".into(), outputs: vec![output], ..InferResponse::default() }.to_generated()
    };
    assert_eq!(shaped(vec![0, usize::MAX, 3]).unwrap(), br#"{"model_name":"m","y":[]}"#);
    let of_dimensions = |dimensions: usize| shaped(std::iter::once(2).chain(std::iter::repeat_n(1, dimensions - 1)).collect());
    assert!(of_dimensions(32).is_ok());
    let deep = of_dimensions(300_000).unwrap_err();
    let sentence = "`y` has 300000 dimensions, and lists within lists are written up to 32 deep; `infer` has it as one flat list";
    assert_eq!(deep.to_string(), sentence);
    assert!(deep.is_clients_fault());
}

/// In however many pieces they come.
#[test]
fn parameters_are_bounded() {
    let piece = |from: u32| (from..from + 600).map(|at| format!(r#""p{at}":1"#)).collect::<Vec<_>>().join(",");
    let body = format!(r#"{{"text":"a","parameters":{{{}}},"parameters":{{{}}}}}"#, piece(0), piece(600));
    let refused = InferRequest::from_generate(&model(), body.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("more than 1024 parameters"), "{refused}");
}

proptest! {
    #[test]
    fn every_datatypes_answer_is_read_as_its_input(
        datatype in prop::sample::select(Datatype::ALL.to_vec()),
        shape in prop::collection::vec(1_usize..4, 0..4),
        seed in any::<u64>(),
    ) {
        prop_assume!(!matches!(datatype, Datatype::Fp16 | Datatype::Bf16));
        let elements: usize = shape.iter().product();
        let tensor = if datatype == Datatype::Bytes {
            let texts: Vec<String> = (0..elements).map(|position| format!("{seed}·{position}")).collect();
            Tensor::from_texts("x", &shape, &texts)
        } else {
            // No NaN among floats.
            let one = match datatype {
                Datatype::Bool => 1,
                Datatype::Fp32 | Datatype::Fp64 => 0x3f,
                _ => 0xff,
            };
            let bytes = elements * datatype.size().unwrap();
            let data = (0..bytes).map(|position| (seed.rotate_left(position as u32 * 7) as u8) & one).collect();
            Tensor { name: "x".into(), datatype, shape: shape.clone(), data }
        };
        let answer = InferResponse { outputs: vec![tensor.clone()], ..InferResponse::default() }.to_generated().unwrap();
        let spec = TensorSpec { name: "x".into(), datatype, shape: shape.iter().map(|_| -1).collect() };
        let named_model = TensorSpec { name: "model_name".into(), datatype: Datatype::Bytes, shape: vec![1] };
        let mut read = InferRequest::from_generate(&[spec.clone(), named_model], &answer).unwrap();
        prop_assert_eq!(read.inputs.swap_remove(1), tensor.clone());

        let asked = InferRequest { id: Some("r".into()), inputs: vec![tensor], ..InferRequest::default() };
        let sent = serde_json::to_vec(&asked.to_generate().unwrap()).unwrap();
        prop_assert_eq!(InferRequest::from_generate(&[spec], &sent).unwrap(), asked);
    }

    #[test]
    fn no_damage_panics(position in 0_usize..60, byte in any::<u8>()) {
        let mut text = br#"{"text":["a"],"rows":[[1,2],[3,4]],"open":5,"id":"r","q":1.5}"#.to_vec();
        text[position] = byte;
        let _ = InferRequest::from_generate(&model(), &text);
    }
}
