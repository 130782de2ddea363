//! Who is calling, what they may do, and for which tenant.
//!
//! A server without keys is local: the transport must have checked that the caller is on this
//! machine and no web page. The first key, which is an operator's, closes the server. Revoking the
//! last key does not open it again.

use std::sync::Arc;

use cellwright_registry::{KeyId, Scope, Scopes, TenantName};

use crate::error::Error;
use crate::gate::Gate;

/// What a transport knows of a caller.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The key that it sent.
    pub key: Option<&'a str>,
    /// Whether it is on this machine, and no web page sent the request.
    pub is_local: bool,
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant whose models are meant.
    pub tenant: TenantName,
    /// Whether that tenant was named, rather than being the caller's own.
    pub named: bool,
    /// Whether the caller is an operator, whose scopes hold for every tenant.
    pub is_operator: bool,
    /// The key that was used.
    pub key: Option<KeyId>,
    /// The name under which the caller finds this request again.
    pub request: Arc<str>,
    scopes: Scopes,
}

impl Caller {
    /// Whether the caller may do that at all.
    ///
    /// # Errors
    /// If its key has not that scope.
    pub fn require(&self, scope: Scope) -> Result<(), Error> {
        if self.scopes.contains(scope) {
            return Ok(());
        }
        let name = match scope {
            Scope::Infer => "infer",
            Scope::Upload => "upload",
            Scope::Admin => "admin",
        };
        Err(Error::Forbidden(format!("this needs a key with the scope `{name}`")))
    }

    /// Whether the caller may change what concerns every tenant.
    ///
    /// # Errors
    /// If it is no operator.
    pub fn require_operator(&self) -> Result<(), Error> {
        self.require(Scope::Admin)?;
        let sentence = "this needs an operator's key: one of the tenant `operator`";
        if self.is_operator { Ok(()) } else { Err(Error::Forbidden(sentence.to_owned())) }
    }

    /// The tenant whose models the caller sees in lists: an operator everyone's, unless one tenant
    /// is named.
    #[must_use]
    pub fn sees(&self) -> Option<&TenantName> {
        if self.is_operator && !self.named && self.key.is_some() { None } else { Some(&self.tenant) }
    }
}

impl Gate {
    /// Who sends a request, for the tenant that it names.
    ///
    /// # Errors
    /// If the key is missing, unknown or another tenant's; on a server without keys, if the caller is not local.
    pub fn authenticate(&self, credentials: Credentials<'_>, tenant: Option<&str>) -> Result<Caller, Error> {
        let named = tenant.map(TenantName::parse).transpose().map_err(|fault| Error::Invalid(fault.to_string()))?;
        let is_named = named.is_some();
        if self.is_keyless() {
            if !credentials.is_local {
                let sentence = "a server without keys answers only requests to `localhost` or a loopback address: create a key first";
                return Err(Error::Forbidden(sentence.to_owned()));
            }
            let tenant = named.unwrap_or_else(TenantName::default_tenant);
            return Ok(Caller { tenant, named: is_named, is_operator: true, key: None, request: Arc::default(), scopes: Scopes::all() });
        }
        let key = credentials.key;
        let key = key.ok_or(Error::Unauthenticated("this server requires a key: send it as `Authorization: Bearer KEY`"))?;
        let identity = self.platform().registry().authenticate(key);
        let identity = identity.ok_or(Error::Unauthenticated("this key is unknown or revoked"))?;
        let is_operator = identity.is_operator();
        let tenant = match named {
            Some(named) if is_operator || named == identity.tenant => named,
            Some(named) => return Err(Error::Forbidden(format!("this key does not belong to tenant `{named}`"))),
            // The operator's tenant is for keys. Models from before the first key are the default
            // tenant's.
            None if is_operator => TenantName::default_tenant(),
            None => identity.tenant,
        };
        Ok(Caller { tenant, named: is_named, is_operator, key: Some(identity.key), request: Arc::default(), scopes: identity.scopes })
    }
}
