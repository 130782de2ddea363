//! One request and its answer, seen from outside: its id, its span, its count, and what a refusal finally says.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use cellwright_registry::{KeyId, TenantName};
use http::header::{ALLOW, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tower::Service as _;
use tracing::Instrument as _;

use crate::app::App;
use crate::body::only;
use crate::refusal::Refusal;
use crate::request_id::{ExchangeId, HEADER, LoggedCaller};
use crate::routes::EMBEDDINGS;
use crate::{lent, streams};

/// Everything that happens between a request's head and its answer's. Dropping it is how the client going away reaches whatever runs.
pub(crate) async fn serve(app: Arc<App>, mut router: Router, request: Request<Incoming>) -> Response {
    let started = Instant::now();
    let (mut request, loan) = lent::lend(request);
    let id = app.ids.id_of(request.headers());
    request.extensions_mut().insert(id.clone());
    let method = request.method().clone();
    let uri = request.uri().clone();
    let is_change = is_change(&method, uri.path());
    // A span's level is settled where it is written.
    macro_rules! span {
        ($span:ident) => {
            tracing::$span!(
                "request",
                id = id.as_str(),
                %method,
                path = uri.path(),
                traceparent = traceparent(request.headers())
            )
        };
    }
    let span = if is_change { span!(info_span) } else { span!(debug_span) };
    let answer = async {
        let mut response = match check_head(&request) {
            Err(refusal) => refusal.into_response(),
            Ok(()) => match router.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
            let allow = response.headers_mut().remove(ALLOW);
            response = render(&refusal, &id, &uri);
            if let Some(allow) = allow {
                response.headers_mut().insert(ALLOW, allow);
            }
        }
        let elapsed = started.elapsed();
        let (status, ms) = (response.status().as_u16(), elapsed.as_secs_f64() * 1e3);
        let LoggedCaller { tenant, key } = id.caller();
        let (tenant, key) = (tenant.as_ref().map(TenantName::as_str), key.as_ref().map(KeyId::as_str));
        if is_change && response.status().is_success() {
            tracing::info!(tenant, key, status, ms, "changed");
        }
        tracing::debug!(name: "answered", tenant, key, status, ms, "answered");
        response
    };
    let mut response = answer.instrument(span).await;
    app.figures.answered(response.status());
    if let Some(value) = id.header() {
        response.headers_mut().insert(HEADER, value);
    }
    let answering = match loan {
        Some(loan) => loan.settle().await,
        None => None,
    };
    response.map(|body| streams::watched(body, answering))
}

/// Whether it asks for other models, tenants or keys than there are: what an operator looks for in a log.
fn is_change(method: &Method, path: &str) -> bool {
    let is_about_them = path.starts_with("/v1/") || path.starts_with("/v2/repository/models/");
    is_about_them && !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// What hyper lets pass. Of `Host` see RFC 9112, section 3.2.
fn check_head(request: &Request<Body>) -> Result<(), Refusal> {
    let host = only(request.headers(), &HOST)?;
    if request.version() == Version::HTTP_11 && host.is_none() {
        return Err(Refusal::bad_input("the header Host is missing"));
    }
    let chunked = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if request.headers().get_all(TRANSFER_ENCODING).iter().all(chunked) {
        return Ok(());
    }
    Err(Refusal::with_status(StatusCode::NOT_IMPLEMENTED, "Transfer-Encoding must be `chunked`: no other one is supported"))
}

fn render(refusal: &Refusal, id: &ExchangeId, uri: &Uri) -> Response<Body> {
    refusal.log(id, uri.path());
    refusal.render(id.as_str(), model_in(uri.path()), uri.path() == EMBEDDINGS)
}

/// The span that a request was sent from, as W3C Trace Context writes it.
fn traceparent(headers: &HeaderMap) -> Option<&str> {
    const LENGTH_MAX: usize = 128;
    headers.get("traceparent")?.to_str().ok().filter(|text| text.len() <= LENGTH_MAX)
}

/// The model that a path names, as it was written: a path is plain text.
fn model_in(path: &str) -> Option<&str> {
    const LENGTH_MAX: usize = 128;
    let name = path.split("/models/").nth(1)?.split('/').next()?;
    (!name.is_empty() && name.len() <= LENGTH_MAX).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_model() {
        assert_eq!(model_in("/v2/models/m/infer"), Some("m"));
        assert_eq!(model_in("/v2/repository/models/m.1/load"), Some("m.1"));
        assert_eq!(model_in("/v2/models/stats"), Some("stats"));
        assert_eq!(model_in("/v2/health/live"), None);
        assert_eq!(model_in("/v2/models/"), None);
    }
}
