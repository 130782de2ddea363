//! Who is calling, what they may do, and for which tenant.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use cellwright_registry::{KeyId, Scope, Scopes, TenantName};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Uri};

use crate::app::App;
use crate::body::only;
use crate::host::Endpoint;
use crate::query;
use crate::refusal::Refusal;
use crate::routes::Target;

/// Names the tenant that an operator's key is used for.
const TENANT_HEADER: HeaderName = HeaderName::from_static("cellwright-tenant");

/// Whoever sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Whose models are meant.
    pub(crate) tenant: TenantName,
    /// Whether that tenant was named, rather than being the caller's own.
    pub(crate) named: bool,
    /// Whether the caller is an operator, whose scopes hold for every tenant.
    pub(crate) is_operator: bool,
    pub(crate) key: Option<KeyId>,
    scopes: Scopes,
}

impl Caller {
    fn of(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<Self, Refusal> {
        let named = only(headers, &TENANT_HEADER)?.or_else(|| query::value(uri, "tenant"));
        let named = named.map(TenantName::parse).transpose().map_err(|fault| Refusal::bad_input(fault.to_string()))?;
        if app.is_keyless() {
            check_local(headers, uri)?;
            let is_named = named.is_some();
            let tenant = named.unwrap_or_else(TenantName::default_tenant);
            return Ok(Self { tenant, named: is_named, is_operator: true, key: None, scopes: Scopes::all() });
        }
        let value = only(headers, &AUTHORIZATION)?;
        let Some(secret) = value.and_then(bearer) else {
            return Err(Refusal::unauthorized("this server asks for a key: send it as `Authorization: Bearer KEY`"));
        };
        let Some(identity) = app.host.registry().authenticate(secret) else {
            return Err(Refusal::unauthorized("this key is not known, or it was revoked"));
        };
        let is_operator = identity.is_operator();
        let is_named = named.is_some();
        let tenant = match named {
            Some(named) if is_operator || named == identity.tenant => named,
            Some(named) => return Err(Refusal::forbidden(format!("this key is not tenant `{named}`'s"))),
            // The operator's tenant is for keys; models that were there before anyone had a key are the default tenant's.
            None if is_operator => TenantName::default_tenant(),
            None => identity.tenant,
        };
        Ok(Self { tenant, named: is_named, is_operator, key: Some(identity.key), scopes: identity.scopes })
    }

    /// Whether the caller may do that at all.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Refusal> {
        if self.scopes.contains(scope) {
            return Ok(());
        }
        let name = match scope {
            Scope::Infer => "infer",
            Scope::Upload => "upload",
            Scope::Admin => "admin",
        };
        Err(Refusal::forbidden(format!("this needs a key with the scope `{name}`")))
    }

    /// Whether the caller may change what concerns every tenant.
    pub(crate) fn require_operator(&self) -> Result<(), Refusal> {
        self.require(Scope::Admin)?;
        if self.is_operator { Ok(()) } else { Err(Refusal::forbidden("this needs an operator's key: one of the tenant `operator`")) }
    }

    /// The version that a path means.
    pub(crate) fn find(&self, app: &App, target: &Target) -> Result<Arc<dyn Endpoint>, Refusal> {
        app.host.find(&self.tenant, &target.model, target.version.as_deref())
    }

    /// Whose models the caller sees in lists: an operator everyone's, unless one tenant is named.
    pub(crate) fn sees(&self) -> Option<&TenantName> {
        if self.is_operator && !self.named && self.key.is_some() { None } else { Some(&self.tenant) }
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let caller = Self::of(app, &parts.headers, &parts.uri)?;
        tracing::Span::current().record("tenant", caller.tenant.as_str());
        Ok(caller)
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// Without keys everyone on this machine may do everything, but a page in somebody's browser is not someone on this machine: neither one that
/// calls across origins, nor one whose name was made to resolve to this address.
fn check_local(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let host = only(headers, &HOST)?.is_none_or(is_local) && uri.authority().is_none_or(|authority| is_local(authority.as_str()));
    let origin = only(headers, &ORIGIN)?.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, authority)| is_local(authority)));
    if host && origin {
        return Ok(());
    }
    Err(Refusal::forbidden("a server without keys answers this machine only, by its own name: create a key to reach it otherwise"))
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
