//! What a model says of itself.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use cellwright_protocol::messages::config::{ConfigParameter, ConfigTensor, ModelConfig, TransactionPolicy};
use cellwright_protocol::messages::metadata::{ModelMetadata, ModelReady, TensorMetadata};

use super::{Target, ok};
use crate::app::App;
use crate::auth::Caller;
use crate::refusal::Refusal;

const PLATFORM: &str = "cellwright";

pub(super) async fn metadata(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    let model = target.find(&app, &caller)?;
    let description = model.description();
    ok(&ModelMetadata {
        name: model.name().to_owned(),
        versions: vec![model.version().to_string()],
        platform: PLATFORM.to_owned(),
        inputs: description.inputs.iter().map(TensorMetadata::from).collect(),
        outputs: description.outputs.iter().map(TensorMetadata::from).collect(),
    })
}

pub(super) async fn ready(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    let model = target.find(&app, &caller)?;
    app.gate.check_not_stopping()?;
    ok(&ModelReady { name: model.name().to_owned(), ready: true })
}

pub(super) async fn config(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    let model = target.find(&app, &caller)?;
    let description = model.description();
    let max_batch_size = u32::try_from(model.rows_max()).unwrap_or(u32::MAX);
    let parameter = |name: &str, value: String| (name.to_owned(), ConfigParameter { string_value: value });
    ok(&ModelConfig {
        name: model.name().to_owned(),
        platform: PLATFORM.to_owned(),
        backend: PLATFORM.to_owned(),
        max_batch_size,
        input: description.inputs.iter().map(|spec| ConfigTensor::of(spec, max_batch_size)).collect(),
        output: description.outputs.iter().map(|spec| ConfigTensor::of(spec, max_batch_size)).collect(),
        model_transaction_policy: TransactionPolicy::default(),
        parameters: [parameter("digest", model.digest().to_string()), parameter("version", model.version().to_string())].into(),
    })
}
