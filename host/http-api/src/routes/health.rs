//! The server itself: what it is, whether it lives, whether it is ready. Nobody needs a key to ask.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use cellwright_protocol::messages::metadata::{ServerLive, ServerMetadata, ServerReady};
use cellwright_serving::{ErrorKind, Readiness};

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
    match app.host.readiness() {
        Readiness::Ready => ok(&ServerReady { ready: true }),
        Readiness::Starting { loaded, total } => {
            Err(Refusal::new(ErrorKind::Unavailable, format_args!("the server is starting: {loaded} of {total} models are loaded")))
        }
        Readiness::Draining => Err(Refusal::new(ErrorKind::Draining, "the server is about to stop and takes nothing new")),
    }
}
