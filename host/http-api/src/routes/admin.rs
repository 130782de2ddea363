//! Administration under `/v1`: models and their versions, tenants, keys.

pub(super) mod keys;
pub(super) mod models;
pub(super) mod tenants;

use axum::extract::Request;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::refusal::Refusal;

/// A message in JSON.
async fn message<T: DeserializeOwned>(app: &App, caller: &Caller, request: Request) -> Result<T, Refusal> {
    let (bytes, _share) = body::collect_message(app, caller, request).await?;
    cellwright_protocol::messages::read(&bytes)
        .map_err(|cause| Refusal::bad_input(format!("the message is not the JSON that this path asks for: {cause}")))
}
