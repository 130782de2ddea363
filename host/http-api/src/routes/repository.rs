//! The repository extension: which models there are, loading and unloading them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use cellwright_protocol::messages::repository::{IndexEntry, IndexRequest, LoadRequest, ModelState, UnloadRequest};
use cellwright_registry::Scope;
use cellwright_serving::ErrorKind;
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::{Target, ok};
use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::refusal::Refusal;

/// A message that may be left out.
async fn optional<T: DeserializeOwned + Default>(app: &App, caller: &Caller, request: Request) -> Result<T, Refusal> {
    let body = body::collect(app, &caller.tenant, request).await?;
    cellwright_protocol::messages::read_optional(&body.bytes)
        .map_err(|cause| Refusal::bad_input(format!("the message is not the JSON that the protocol asks for: {cause}")))
}

pub(super) async fn index(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    let asked: IndexRequest = optional(&app, &caller, request).await?;
    let models = app.host.index(caller.sees()).into_iter().filter(|entry| !asked.ready || entry.state == ModelState::Ready);
    let entries: Vec<IndexEntry> = models
        .map(|entry| IndexEntry {
            name: entry.name,
            version: entry.version.map(|version| version.to_string()),
            state: entry.state,
            reason: entry.reason,
        })
        .collect();
    ok(&entries)
}

pub(super) async fn load(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let asked: LoadRequest = optional(&app, &caller, request).await?;
    if asked.parameters.is_some_and(|parameters| !parameters.is_empty()) {
        let sentence = "models come from the registry as they were uploaded: `load` takes no configuration and no files";
        return Err(Refusal::new(ErrorKind::Unsupported, sentence));
    }
    let model = target.name()?;
    app.changing(&caller.tenant.clone(), move |app| app.host.load(&caller.tenant, &model)).await?;
    Ok(StatusCode::OK.into_response())
}

pub(super) async fn unload(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let _: UnloadRequest = optional(&app, &caller, request).await?;
    let model = target.name()?;
    app.changing(&caller.tenant.clone(), move |app| app.host.unload(&caller.tenant, &model)).await?;
    Ok(StatusCode::OK.into_response())
}
