//! The protocol's own parameters: taken out with their values, or refused with a sentence; all others stay for the plugin.

use std::time::Duration;

use cellwright_cell_graph::{Datatype, TensorSpec};
use cellwright_protocol::{InferRequest, RequestFault, RequestOptions};

fn request(parameters: &str, outputs: &str) -> InferRequest {
    let text = format!(
        r#"{{"parameters":{{{parameters}}},"inputs":[{{"name":"x","shape":[1],"datatype":"INT8","data":[1]}}],"outputs":[{outputs}]}}"#
    );
    InferRequest::from_json(text.as_bytes()).expect("the request is well made")
}

fn refused(parameters: &str, outputs: &str) -> RequestFault {
    request(parameters, outputs).take_options().expect_err("nothing was refused")
}

#[test]
fn what_the_protocol_knows_is_taken_and_the_rest_stays() {
    let parameters = r#""priority":2,"beam":4,"timeout":1500,"binary_data_output":true,"sequence_id":0,"sequence_start":false,"triton_x":1,"headers":"a""#;
    let mut request = request(parameters, r#"{"name":"y","parameters":{"binary_data":false,"classification":0}},{"name":"z"}"#);
    let options = request.take_options().unwrap();
    assert_eq!((options.priority, options.timeout), (2, Some(Duration::from_micros(1500))));
    assert_eq!(options.wanted.outputs, [("y".to_owned(), Some(false)), ("z".to_owned(), None)]);
    assert!(!options.wanted.is_binary("y") && options.wanted.is_binary("z"));
    assert_eq!(request.parameters.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>(), ["beam"]);
    assert_eq!(request.outputs.len(), 2);
}

#[test]
fn a_request_that_says_nothing_has_the_defaults() {
    let mut request = request("", "");
    assert_eq!(request.take_options().unwrap(), RequestOptions::default());
    assert_eq!(self::request(r#""timeout":0"#, "").take_options().unwrap().timeout, None);
}

#[test]
fn each_fault_has_its_sentence() {
    let cases = [
        (r#""priority":-1"#, "", "parameter `priority` has an invalid value; it takes an integer, 0 or more"),
        (r#""timeout":1.5"#, "", "parameter `timeout` has an invalid value; it takes an integer, 0 or more"),
        (r#""binary_data_output":1"#, "", "parameter `binary_data_output` has an invalid value; it takes true or false"),
        (r#""sequence_start":"yes""#, "", "parameter `sequence_start` has an invalid value; it takes true or false"),
        ("", r#"{"name":"y","parameters":{"binary_data":1}}"#, "requested output `y`: `binary_data` takes true or false"),
    ];
    for (parameters, outputs, sentence) in cases {
        let fault = refused(parameters, outputs);
        assert!(fault.to_string() == sentence && !fault.is_unsupported(), "{fault}");
    }
}

#[test]
fn what_is_not_served_is_told_from_what_is_wrong() {
    let output = |parameter: &str| format!(r#"{{"name":"y","parameters":{{{parameter}}}}}"#);
    for fault in [
        refused(r#""sequence_id":7,"sequence_start":true"#, ""),
        refused(r#""sequence_id":"s""#, ""),
        refused(r#""sequence_id":18446744073709551615"#, ""),
        refused(r#""sequence_start":true"#, ""),
        refused(r#""sequence_end":true,"sequence_id":0"#, ""),
        refused("", &output(r#""classification":3"#)),
        refused("", &output(r#""shared_memory_region":"r""#)),
    ] {
        assert!(fault.is_unsupported() && fault.to_string().contains("not served"), "{fault}");
    }
}

#[test]
fn outputs_are_checked_before_anything_runs() {
    let spec = |name: &str, datatype| TensorSpec { name: name.into(), datatype, shape: vec![1] };
    let model = [spec("y", Datatype::Fp32), spec("h", Datatype::Bf16)];
    let check = |parameters: &str, outputs: &str| {
        let wanted = request(parameters, outputs).take_options().unwrap().wanted;
        wanted.check(&model).map_err(|fault| fault.to_string())
    };
    assert_eq!(check("", r#"{"name":"y"}"#), Ok(()));
    assert_eq!(check(r#""binary_data_output":true"#, ""), Ok(()));
    assert_eq!(check("", r#"{"name":"q"}"#).unwrap_err(), "requested output `q`: the model has no such output; it has y, h");
    for outputs in ["", r#"{"name":"h"}"#, r#"{"name":"h","parameters":{"binary_data":false}}"#] {
        assert!(check("", outputs).unwrap_err().starts_with("requested output `h`: it is BF16, which travels only as binary data"));
    }
}
