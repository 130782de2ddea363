//! Callers, as HTTP names them: a bearer token, a tenant's header, and on a server without keys where the request came from.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use cellwright_gate as gate;
use cellwright_gate::Credentials;
use cellwright_registry::TenantName;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Uri};

use crate::app::App;
use crate::body::only;
use crate::query;
use crate::refusal::Refusal;
use crate::request_id::{ExchangeId, LoggedCaller};
use crate::streams;

/// Names the tenant that an operator's key is used for.
const TENANT_HEADER: HeaderName = HeaderName::from_static("cellwright-tenant");

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    caller: gate::Caller,
    exchange: Option<ExchangeId>,
}

impl Caller {
    /// Tells the log whose tenant the request is about: the caller's, unless an operator names another in its path or its body.
    pub(crate) fn concerns(&self, tenant: &TenantName) {
        if let Some(exchange) = &self.exchange {
            exchange.set_caller(LoggedCaller { tenant: Some(tenant.clone()), key: self.key.clone() });
        }
    }
}

impl std::ops::Deref for Caller {
    type Target = gate::Caller;

    fn deref(&self) -> &gate::Caller {
        &self.caller
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let (headers, uri) = (&parts.headers, &parts.uri);
        let tenant = only(headers, &TENANT_HEADER)?.or_else(|| query::value(uri, "tenant"));
        let key = only(headers, &AUTHORIZATION)?.and_then(bearer);
        let mut caller = app.gate.authenticate(Credentials { key, is_local: is_from_here(headers, uri)? }, tenant)?;
        if key.is_some() {
            streams::note_key();
        }
        let exchange: Option<ExchangeId> = parts.extensions.get().cloned();
        caller.request = exchange.as_ref().map(ExchangeId::text).unwrap_or_default();
        let caller = Self { caller, exchange };
        caller.concerns(&caller.tenant);
        Ok(caller)
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// Without keys every program on this machine may do everything. A page in a browser may not: neither across origins, nor under a name that
/// resolves to this address. So `Host`, and `Origin` if there is one, must name this machine.
fn is_from_here(headers: &HeaderMap, uri: &Uri) -> Result<bool, Refusal> {
    let host = only(headers, &HOST)?.is_none_or(is_local) && uri.authority().is_none_or(|authority| is_local(authority.as_str()));
    let origin = only(headers, &ORIGIN)?.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, authority)| is_local(authority)));
    Ok(host && origin)
}

/// Whether `HOST[:PORT]` names this machine itself.
fn is_local(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_tokens_are_read() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("abc"), None);
    }

    #[test]
    fn local_names_are_told_from_others() {
        for local in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "127.9.9.9"] {
            assert!(is_local(local), "{local}");
        }
        for other in ["", "example.org", "localhost.example.org", "192.168.0.1:80", "[fe80::1]", "127.0.0.1.example.org"] {
            assert!(!is_local(other), "{other}");
        }
    }
}
