//! Which path leads where.

mod admin;
mod docs;
mod embeddings;
mod generate;
mod health;
mod infer;
mod metrics;
mod models;
mod repository;
mod statistics;
mod upload;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use cellwright_gate::{Ask, Deployed, Platform, RequestShare};
use cellwright_registry::ModelName;
use http::header::{ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{Method, StatusCode, Uri};
use serde::Serialize;

use crate::app::App;
use crate::auth::Caller;
use crate::body::announced;
use crate::held;
use crate::refusal::Refusal;

/// The path in OpenAI's form. Its refusals have that form, too.
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";

pub(crate) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .merge(open_inference())
        .merge(administration())
        .route(EMBEDDINGS, post(embeddings::embeddings))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(docs::openapi))
        .route("/docs", get(docs::page))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(app.clone())
}

/// The protocol's paths.
fn open_inference() -> Router<Arc<App>> {
    let mut router = Router::new()
        .route("/v2", get(health::server))
        .route("/v2/", get(health::server))
        .route("/v2/health/live", get(health::live))
        .route("/v2/health/ready", get(health::ready))
        .route("/v2/models/stats", get(statistics::all))
        .route("/v2/repository/index", post(repository::index))
        .route("/v2/repository/models/{model}/load", post(repository::load))
        .route("/v2/repository/models/{model}/unload", post(repository::unload));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(model, get(models::metadata))
            .route(&format!("{model}/ready"), get(models::ready))
            .route(&format!("{model}/config"), get(models::config))
            .route(&format!("{model}/stats"), get(statistics::one))
            .route(&format!("{model}/infer"), post(infer::infer))
            .route(&format!("{model}/generate"), post(generate::whole))
            .route(&format!("{model}/generate_stream"), post(generate::stream));
    }
    router
}

fn administration() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(admin::models::list))
        .route("/v1/models/{model}", get(admin::models::one).put(upload::upload).delete(admin::models::delete))
        .route("/v1/models/{model}/logs", get(admin::models::logs))
        .route("/v1/models/{model}/rollback", post(admin::models::roll_back))
        .route("/v1/models/{model}/versions/{version}", delete(admin::models::delete_version))
        .route("/v1/models/{model}/versions/{version}/activate", post(admin::models::activate))
        .route("/v1/tenants", get(admin::tenants::list).post(admin::tenants::create))
        .route("/v1/tenants/{tenant}", get(admin::tenants::one).merge(put(admin::tenants::set)).delete(admin::tenants::delete))
        .route("/v1/keys", get(admin::keys::list).post(admin::keys::create))
        .route("/v1/keys/{key}", delete(admin::keys::revoke))
}

/// The paths of health probes alone.
pub(crate) fn health(app: &Arc<App>) -> Router {
    let router = Router::new().route("/v2/health/live", get(health::live)).route("/v2/health/ready", get(health::ready));
    router.fallback(no_such_path).method_not_allowed_fallback(no_such_method).with_state(app.clone())
}

async fn no_such_path(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS && uri.path() == "*" {
        // The server as a whole (RFC 9110, section 9.3.7).
        return (StatusCode::NO_CONTENT, [(ALLOW, "GET,HEAD,POST,PUT,DELETE")]).into_response();
    }
    const SHOWN_MAX: usize = 200;
    let path: String = uri.path().chars().take(SHOWN_MAX).collect();
    Refusal::not_found(format!("there is nothing at `{path}`; /docs lists all paths")).into_response()
}

/// The router adds the header `Allow`, which is all that `OPTIONS` asks for.
async fn no_such_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        return done();
    }
    Refusal::with_status(StatusCode::METHOD_NOT_ALLOWED, "this path does not support that method; /docs lists its methods").into_response()
}

/// The model, and perhaps the version, that a path names.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) model: String,
    pub(crate) version: Option<String>,
}

impl Target {
    /// The name, where it must be one that a model may have.
    fn name(&self) -> Result<ModelName, Refusal> {
        ModelName::parse(&self.model).map_err(|fault| Refusal::bad_input(fault.to_string()))
    }

    /// What a request asks the model that the path means.
    fn ask(&self, request: &Request) -> Ask<'_> {
        Ask { model: &self.model, version: self.version.as_deref(), bytes: announced(request) }
    }

    /// The version that the path means.
    fn find(&self, app: &App, caller: &Caller) -> Result<Arc<Deployed>, Refusal> {
        Ok(app.gate.find(caller, &self.model, self.version.as_deref())?)
    }

    /// The version, where it must be there.
    fn number(&self) -> Result<u64, Refusal> {
        let text = self.version.as_deref().unwrap_or_default();
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number.ok_or_else(|| Refusal::bad_input(format!("`{}` is not a version: versions are integers from 1", shown(text))))
    }
}

fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 64;
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let mut target = Self { model: String::new(), version: None };
        for (name, value) in &parameters(parts, state).await? {
            match name {
                "model" => value.clone_into(&mut target.model),
                _ => target.version = Some(value.to_owned()),
            }
        }
        if let Err(fault) = ModelName::parse(&target.model) {
            return Err(Refusal::bad_input(fault.to_string()));
        }
        Ok(target)
    }
}

/// The parts of a path that stand for something.
async fn parameters<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Refusal> {
    let params = RawPathParams::from_request_parts(parts, state).await;
    params.map_err(|_| Refusal::bad_input("the path holds percent escapes that are not UTF-8"))
}

/// One part of a path that stands for something else than a model.
struct Named(String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let params = parameters(parts, state).await?;
        Ok(Self(params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()))
    }
}

/// An answer in JSON.
fn json(status: StatusCode, message: &impl Serialize) -> Result<Response, Refusal> {
    let body = serde_json::to_vec(message).map_err(Refusal::internal)?;
    Ok((status, [(CONTENT_TYPE, "application/json")], body).into_response())
}

fn ok(message: &impl Serialize) -> Result<Response, Refusal> {
    json(StatusCode::OK, message)
}

/// An answer that may be long. The share of its tenant holds it until it has been sent.
fn long(mut share: RequestShare, content_type: &'static str, bytes: Bytes) -> Result<Response, Refusal> {
    share.hold(bytes.len())?;
    Ok(([(CONTENT_TYPE, content_type)], Body::from(held::bytes(share, bytes))).into_response())
}

/// A long answer in JSON to what is looked up for a caller, in its tenant's turn, on a thread that may block.
async fn look_up<T: Serialize + Send + 'static>(
    app: &Arc<App>,
    caller: Caller,
    finds: impl FnOnce(&Platform, Caller) -> Result<T, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    look_up_within(app, caller, |_, _| Ok(0), finds).await
}

/// The same, for which its tenant holds so many bytes before it is looked up.
async fn look_up_within<T: Serialize + Send + 'static>(
    app: &Arc<App>,
    caller: Caller,
    estimate: impl FnOnce(&Platform, &Caller) -> Result<usize, Refusal> + Send + 'static,
    finds: impl FnOnce(&Platform, Caller) -> Result<T, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let (tenant, mut share) = (caller.tenant.clone(), app.gate.share(&caller.tenant));
    let written = app.gate.listing(&tenant, move |platform| {
        share.hold(estimate(platform, &caller)?)?;
        let written = serde_json::to_vec(&finds(platform, caller)?).map_err(Refusal::internal)?;
        Ok::<_, Refusal>((share, written))
    });
    let (share, written) = written.await?;
    long(share, "application/json", written.into())
}

/// Done, and there is nothing to say.
fn done() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
