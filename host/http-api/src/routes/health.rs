//! The server itself: what it is, whether it lives, whether it is ready. Nobody needs a key to ask.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use cellwright_protocol::messages::metadata::{ServerLive, ServerMetadata, ServerReady};

use super::ok;
use crate::app::App;
use crate::refusal::Refusal;

/// What the protocol calls those of its extensions that are served.
const EXTENSIONS: [&str; 7] =
    ["binary_tensor_data", "generate", "model_configuration", "model_repository", "parameters", "schedule_policy", "statistics"];

pub(super) async fn server() -> Result<Response, Refusal> {
    ok(&ServerMetadata {
        name: "cellwright".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    })
}

pub(super) async fn live() -> Result<Response, Refusal> {
    ok(&ServerLive { live: true })
}

pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    app.gate.check_ready()?;
    ok(&ServerReady { ready: true })
}
