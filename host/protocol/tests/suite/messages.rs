//! The messages beside inference, as they stand on the wire.

use std::fmt::Debug;

use cellwright_cell_graph::{Datatype, TensorSpec};
use cellwright_protocol::messages::admin::{
    CreatedKey, Key, Model, NewKey, NewTenant, SampleResult, Scope, TenantSettings, Uploaded, Version,
};
use cellwright_protocol::messages::config::{ConfigTensor, ModelConfig, TransactionPolicy};
use cellwright_protocol::messages::metadata::{ModelMetadata, ServerMetadata, TensorMetadata};
use cellwright_protocol::messages::repository::{IndexEntry, IndexRequest, LoadRequest, ModelState, UnloadRequest};
use cellwright_protocol::messages::statistics::{BatchStatistics, Duration, InferenceStatistics, ModelStatistics, Statistics};
use cellwright_protocol::messages::{ErrorBody, read_optional};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Written as that text, and read from it as it was.
fn stands<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, text: &str) {
    assert_eq!(serde_json::to_string(message).expect("messages have a form in JSON"), text);
    assert_eq!(&serde_json::from_str::<T>(text).expect("what is written is read"), message);
}

#[test]
fn what_servers_and_models_say_of_themselves() {
    let spec = TensorSpec { name: "x".into(), datatype: Datatype::Fp32, shape: vec![-1, -1, 4] };
    let server = ServerMetadata { name: "cellwright".into(), version: "0.1.0".into(), extensions: vec!["statistics".into()] };
    stands(&server, r#"{"name":"cellwright","version":"0.1.0","extensions":["statistics"]}"#);
    let model = ModelMetadata {
        name: "m".into(),
        versions: vec!["1".into(), "3".into()],
        platform: "cellwright_plugin".into(),
        inputs: vec![TensorMetadata::from(&spec)],
        outputs: vec![],
    };
    let text = r#"{"name":"m","versions":["1","3"],"platform":"cellwright_plugin","inputs":[{"name":"x","datatype":"FP32","shape":[-1,-1,4]}],"outputs":[]}"#;
    stands(&model, text);
    let text_spec = TensorSpec { name: "t".into(), datatype: Datatype::Bytes, shape: vec![1] };
    let config = ModelConfig {
        name: "m".into(),
        platform: "p".into(),
        backend: "cellwright".into(),
        max_batch_size: 8,
        input: vec![ConfigTensor::of(&spec, 8)],
        output: vec![ConfigTensor::of(&text_spec, 0)],
        model_transaction_policy: TransactionPolicy { decoupled: true },
        parameters: [].into(),
    };
    let text = r#"{"name":"m","platform":"p","backend":"cellwright","max_batch_size":8,"input":[{"name":"x","data_type":"TYPE_FP32","dims":[-1,4]}],"output":[{"name":"t","data_type":"TYPE_STRING","dims":[1]}],"model_transaction_policy":{"decoupled":true}}"#;
    stands(&config, text);
    stands(&ErrorBody { error: "no".into() }, r#"{"error":"no"}"#);
}

#[test]
fn what_models_have_cost() {
    let once = |ns| Duration { count: 1, ns };
    let inference_stats =
        InferenceStatistics { success: once(9), queue: once(2), compute_infer: once(7), ..InferenceStatistics::default() };
    let batch = BatchStatistics { batch_size: 4, compute_infer: once(7), ..BatchStatistics::default() };
    let model = ModelStatistics {
        name: "m".into(),
        version: "1".into(),
        last_inference: 5,
        inference_count: 4,
        execution_count: 1,
        inference_stats,
        batch_stats: vec![batch],
    };
    let text = concat!(
        r#"{"model_stats":[{"name":"m","version":"1","last_inference":5,"inference_count":4,"execution_count":1,"inference_stats":{"#,
        r#""success":{"count":1,"ns":9},"fail":{"count":0,"ns":0},"queue":{"count":1,"ns":2},"compute_input":{"count":0,"ns":0},"#,
        r#""compute_infer":{"count":1,"ns":7},"compute_output":{"count":0,"ns":0},"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"#,
        r#""batch_stats":[{"batch_size":4,"compute_input":{"count":0,"ns":0},"compute_infer":{"count":1,"ns":7},"compute_output":{"count":0,"ns":0}}]}]}"#
    );
    stands(&Statistics { model_stats: vec![model] }, text);
}

#[test]
fn the_repository_is_asked_with_or_without_a_body() {
    assert_eq!(read_optional::<IndexRequest>(b" \n").unwrap(), IndexRequest { ready: false });
    assert_eq!(read_optional::<IndexRequest>(br#"{"ready":true}"#).unwrap(), IndexRequest { ready: true });
    assert_eq!(read_optional::<IndexRequest>(br#"{"ready":null,"repository_name":["a"]}"#).unwrap(), IndexRequest { ready: false });
    assert!(read_optional::<LoadRequest>(b"{}").unwrap().parameters.is_none());
    let load: LoadRequest = read_optional(br#"{"parameters":{"config":"{}"}}"#).unwrap();
    assert!(load.parameters.unwrap().contains_key("config"));
    let unload: UnloadRequest = read_optional(br#"{"parameters":{"unload_dependents":true,"wait":{"s":1}}}"#).unwrap();
    assert!(unload.parameters.unwrap().unload_dependents);
    let entry = IndexEntry { name: "m".into(), version: Some("1".into()), state: ModelState::Ready, reason: String::new() };
    stands(&entry, r#"{"name":"m","version":"1","state":"READY","reason":""}"#);
    // As other servers write an entry of a model that is not loaded.
    let bare: IndexEntry = serde_json::from_str(r#"{"name":"m","state":"UNAVAILABLE"}"#).unwrap();
    assert_eq!((bare.version, bare.state), (None, ModelState::Unavailable));
}

#[test]
fn administration() {
    let samples = vec![SampleResult { name: "s1".into(), ok: false, compared: Some(true), error: Some("off by 1".into()) }];
    let uploaded =
        Uploaded { model: "m".into(), version: 2, digest: "ab".into(), samples: samples.clone(), existed: false, activated: true };
    let text = r#"{"model":"m","version":2,"digest":"ab","samples":[{"name":"s1","ok":false,"compared":true,"error":"off by 1"}],"existed":false,"activated":true}"#;
    stands(&uploaded, text);
    let version = Version { version: 1, digest: "ab".into(), bytes: 3, created_ms: 4, samples: vec![] };
    let model = Model {
        tenant: "t".into(),
        name: "m".into(),
        active: Some(1),
        previous: None,
        loaded: true,
        unavailable: None,
        created_ms: 4,
        versions: vec![version],
    };
    let text = r#"{"tenant":"t","name":"m","active":1,"loaded":true,"created_ms":4,"versions":[{"version":1,"digest":"ab","bytes":3,"created_ms":4,"samples":[]}]}"#;
    stands(&model, text);
    let settings = TenantSettings { weight: Some(3), ..TenantSettings::default() };
    stands(&NewTenant { name: "t".into(), settings }, r#"{"name":"t","settings":{"weight":3}}"#);
    let new = NewKey { tenant: None, scopes: vec![Scope::Infer, Scope::Upload], label: "ci".into() };
    stands(&new, r#"{"scopes":["infer","upload"],"label":"ci"}"#);
}

#[test]
fn misspelt_settings_are_noticed() {
    for text in [r#"{"name":"t","settings":{"wieght":3}}"#, r#"{"name":"t","setting":{}}"#] {
        assert!(serde_json::from_str::<NewTenant>(text).unwrap_err().to_string().contains("unknown field"), "{text}");
    }
}

#[test]
fn a_secret_is_not_printed_for_debugging() {
    let key = Key { id: "k1".into(), tenant: "t".into(), scopes: vec![Scope::Admin], label: String::new(), created_ms: 0 };
    let printed = format!("{:?}", CreatedKey { key, secret: "cw_k1_hidden".into() });
    assert!(printed.contains("k1") && !printed.contains("hidden"), "{printed}");
}
