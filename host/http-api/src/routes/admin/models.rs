//! Models and their versions: which there are, and which of them answers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use cellwright_gate::{Error, Platform};
use cellwright_protocol::messages::admin::{Model, ModelList, SampleResult, Version};
use cellwright_protocol::messages::repository::{IndexEntry, ModelState};
use cellwright_registry as registry;
use cellwright_registry::{Scope, TenantName};
use http::Uri;
use serde::Deserialize;

use crate::app::App;
use crate::auth::Caller;
use crate::query;
use crate::refusal::Refusal;
use crate::routes::{Target, done, look_up, look_up_within, ok};

/// What a model or a version in a list takes while the list is made.
const LISTED_BYTES: usize = 640;

pub(in crate::routes) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    let estimate = |platform: &Platform, caller: &Caller| Ok(platform.registry().count_listed(caller.sees())?.saturating_mul(LISTED_BYTES));
    let finds = |platform: &Platform, caller: Caller| {
        let (models, states) = (platform.registry().models(caller.sees())?, platform.index(caller.sees()));
        Ok(ModelList { models: models.into_iter().map(|found| model(found, &states)).collect() })
    };
    look_up_within(&app, caller, estimate, finds).await
}

pub(in crate::routes) async fn one(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    let name = target.name()?;
    look_up(&app, caller, move |platform, caller| {
        let (found, states) = (platform.registry().model(&caller.tenant, &name)?, platform.index(Some(&caller.tenant)));
        let found = found.ok_or_else(|| Refusal::not_found(format!("there is no model `{name}`")))?;
        Ok(model(found, &states))
    })
    .await
}

/// How its plugin has failed: for tenants that upload it, because a plugin's words may quote requests.
pub(in crate::routes) async fn logs(State(app): State<Arc<App>>, caller: Caller, target: Target, uri: Uri) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let after_ms = query::number(&uri, "after")?;
    look_up(&app, caller, move |platform, caller| Ok(platform.plugin_log(&caller.tenant, &target.model, after_ms).map_err(Error::from)?))
        .await
}

pub(in crate::routes) async fn activate(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let (name, version) = (target.name()?, target.number()?);
    ok(&app
        .gate
        .changing(&caller.tenant.clone(), move |platform, abandoned| {
            Ok::<_, Refusal>(platform.activate(&caller.tenant, &name, version, abandoned)?)
        })
        .await?)
}

pub(in crate::routes) async fn roll_back(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let name = target.name()?;
    ok(&app
        .gate
        .changing(&caller.tenant.clone(), move |platform, abandoned| {
            Ok::<_, Refusal>(platform.roll_back(&caller.tenant, &name, abandoned)?)
        })
        .await?)
}

pub(in crate::routes) async fn delete_version(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let (name, version) = (target.name()?, target.number()?);
    app.gate
        .changing(&caller.tenant.clone(), move |platform, _| Ok::<_, Refusal>(platform.delete_version(&caller.tenant, &name, version)?))
        .await?;
    Ok(done())
}

pub(in crate::routes) async fn delete(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    let name = target.name()?;
    app.gate.changing(&caller.tenant.clone(), move |platform, _| Ok::<_, Refusal>(platform.delete_model(&caller.tenant, &name)?)).await?;
    Ok(done())
}

/// A model as it is told, which fares as the index says.
fn model(model: registry::Model, states: &[(TenantName, IndexEntry)]) -> Model {
    let state = states.iter().find(|(tenant, entry)| *tenant == model.tenant && entry.name == model.name.as_str());
    let is_meant_to = model.loaded && model.active.is_some();
    let unavailable =
        state.filter(|(_, entry)| is_meant_to && entry.state == ModelState::Unavailable).map(|(_, entry)| entry.reason.clone());
    Model {
        tenant: model.tenant.into(),
        name: model.name.into(),
        active: model.active,
        previous: model.previous,
        loaded: model.loaded,
        unavailable,
        created_ms: model.created_ms,
        versions: model.versions.into_iter().map(version).collect(),
    }
}

/// Of a version's report, what is shown; a list has none. A version whose samples failed was never committed.
#[derive(Default, Deserialize)]
struct Report {
    #[serde(default)]
    samples: Vec<SampleReport>,
    /// Those that it had no room for.
    #[serde(default)]
    more: u64,
}

#[derive(Deserialize)]
struct SampleReport {
    name: String,
    compared: Option<bool>,
}

fn version(version: registry::Version) -> Version {
    let report: Report = serde_json::from_value(version.report).unwrap_or_default();
    let passed = |SampleReport { name, compared }| SampleResult { name, ok: true, compared, error: None };
    let more = (report.more > 0).then(|| SampleReport { name: format!("and {} more", report.more), compared: None });
    Version {
        version: version.number,
        digest: version.digest.to_string(),
        bytes: version.bytes,
        created_ms: version.created_ms,
        samples: report.samples.into_iter().chain(more).map(passed).collect(),
    }
}
