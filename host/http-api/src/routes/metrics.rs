//! `/metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::long;
use crate::app::App;
use crate::auth::Caller;
use crate::metrics;
use crate::refusal::Refusal;

/// An operator sees everything, a tenant's key what is its own.
pub(super) async fn metrics(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    let tenant = if caller.is_operator && !caller.named { None } else { Some(caller.tenant.clone()) };
    let scope = (tenant, caller.is_operator);
    let page = match app.pages.find(&scope) {
        Some(page) => page,
        None => {
            let own = app.clone();
            let making = app.gate.listing(&caller.tenant, move |platform| {
                // Whoever had the turn before may have made it.
                if let Some(page) = own.pages.find(&scope) {
                    return Ok(page);
                }
                let (tenant, server) = (scope.0.clone(), scope.1.then_some(&own.figures));
                let text = metrics::text(&platform.figures(tenant.as_ref()), &own.gate.shed().counts(tenant.as_ref()), server);
                let page = bytes::Bytes::from(text);
                own.pages.keep(scope, &page);
                Ok::<_, Refusal>(page)
            });
            making.await?
        }
    };
    long(app.gate.share(&caller.tenant), "text/plain; version=0.0.4; charset=utf-8", page)
}
