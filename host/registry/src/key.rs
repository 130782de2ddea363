//! Keys: what each allows, and how its secret is made and recognised.
//!
//! A secret is shown once, when it is made; what is kept is its hash. A secret has 256 random bits, so one plain hash is enough: there is
//! nothing to guess from, and nothing to slow down.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::name::TenantName;

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Sending requests to the tenant's models.
    Infer,
    /// Sending versions, and switching between them.
    Upload,
    /// The tenant's keys and settings; of the operator's tenant, every tenant's.
    Admin,
}

const SCOPES: [Scope; 3] = [Scope::Infer, Scope::Upload, Scope::Admin];

/// A set of scopes; in JSON a list of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Scope>", into = "Vec<Scope>")]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope there is.
    #[must_use]
    pub fn all() -> Self {
        SCOPES.into_iter().collect()
    }

    /// Whether a scope is in the set.
    #[must_use]
    pub fn contains(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    /// Whether it allows nothing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The scopes in it.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        SCOPES.into_iter().filter(move |scope| self.contains(*scope))
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    pub(crate) fn from_bits(bits: i64) -> Option<Self> {
        u8::try_from(bits).ok().filter(|bits| *bits <= Self::all().0).map(Self)
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | 1 << scope as u8))
    }
}

impl From<Vec<Scope>> for Scopes {
    fn from(scopes: Vec<Scope>) -> Self {
        scopes.into_iter().collect()
    }
}

impl From<Scopes> for Vec<Scope> {
    fn from(scopes: Scopes) -> Self {
        scopes.iter().collect()
    }
}

/// What a key is known by, in lists and logs; it is part of the secret, and no secret itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct KeyId(Arc<str>);

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl KeyId {
    /// Whatever someone calls a key: one that does not exist is found by nobody.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// What it is known by.
    pub id: KeyId,
    /// Whose it is.
    pub tenant: TenantName,
    /// What it allows.
    pub scopes: Scopes,
    /// What its owner wrote on it.
    pub label: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// A key that was just made. Its secret can be had only here.
#[derive(Clone, Serialize)]
pub struct NewKey {
    /// The key.
    pub key: Key,
    /// What its owner sends with every request: `cw_<id>_<43 characters>`.
    pub secret: String,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Whom a secret belongs to. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The tenant.
    pub tenant: TenantName,
    /// What the key allows.
    pub scopes: Scopes,
    /// Which key it is.
    pub key: KeyId,
}

impl Identity {
    /// Whether this is an operator's key: what its scopes allow, they then allow for every tenant.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.tenant.is_operator()
    }
}
