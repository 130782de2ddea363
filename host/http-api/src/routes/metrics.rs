//! `/metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;

use crate::app::App;
use crate::auth::Caller;
use crate::metrics;
use crate::refusal::Refusal;

/// An operator sees everything, a tenant's key what is its own.
pub(super) async fn metrics(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    let tenant = if caller.is_operator && !caller.named { None } else { Some(&caller.tenant) };
    let figures = app.gate.platform().figures(tenant);
    let server = caller.is_operator.then_some(&app.figures);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics::text(&figures, &app.gate.shed().counts(tenant), server))
        .into_response())
}
