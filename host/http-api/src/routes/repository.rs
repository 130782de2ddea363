//! The repository extension: which models there are, loading and unloading them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use cellwright_protocol::messages::repository::{IndexEntry, IndexRequest, LoadRequest, ModelState, UnloadRequest};
use cellwright_registry::Scope;
use cellwright_serving::ErrorKind;
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::{Target, look_up};
use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::refusal::Refusal;

/// A message that may be left out.
async fn optional<T: DeserializeOwned + Default>(app: &App, caller: &Caller, request: Request) -> Result<T, Refusal> {
    let (bytes, _share) = body::collect_message(app, caller, request).await?;
    cellwright_protocol::messages::read_optional(&bytes)
        .map_err(|cause| Refusal::bad_input(format!("the message is not the JSON that the protocol asks for: {cause}")))
}

pub(super) async fn index(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    let asked: IndexRequest = optional(&app, &caller, request).await?;
    look_up(&app, caller, move |platform, caller| {
        let models = platform.index(caller.sees()).into_iter().map(|(_, entry)| entry);
        Ok(models.filter(|entry| !asked.ready || entry.state == ModelState::Ready).collect::<Vec<IndexEntry>>())
    })
    .await
}

pub(super) async fn load(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let asked: LoadRequest = optional(&app, &caller, request).await?;
    let is_meant = |(name, value): (&String, &serde_json::Value)| (name == "config" || name.starts_with("file:")) && !value.is_null();
    if asked.parameters.iter().flatten().any(is_meant) {
        let sentence = "`load` takes no configuration and no files: models come from the registry as they were uploaded";
        return Err(Refusal::new(ErrorKind::Unsupported, sentence));
    }
    let model = target.name()?;
    app.gate
        .changing(&caller.tenant.clone(), move |platform, abandoned| Ok::<_, Refusal>(platform.load(&caller.tenant, &model, abandoned)?))
        .await?;
    Ok(StatusCode::OK.into_response())
}

pub(super) async fn unload(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let _: UnloadRequest = optional(&app, &caller, request).await?;
    let model = target.name()?;
    app.gate.changing(&caller.tenant.clone(), move |platform, _| Ok::<_, Refusal>(platform.unload(&caller.tenant, &model)?)).await?;
    Ok(StatusCode::OK.into_response())
}
