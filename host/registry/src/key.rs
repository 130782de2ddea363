//! Keys: what each allows, and how its secret is made and recognised.
//!
//! A secret is shown once, when it is made; what is kept is its hash. A secret has 256 random bits, so one plain hash is enough: there is
//! nothing to guess from, and nothing to slow down.

use std::fmt;
use std::sync::Arc;

use crate::name::TenantName;

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Sending requests to the tenant's models.
    Infer,
    /// Sending versions, and switching between them.
    Upload,
    /// The tenant's keys and settings; of the operator's tenant, every tenant's.
    Admin,
}

const SCOPES: [Scope; 3] = [Scope::Infer, Scope::Upload, Scope::Admin];

/// A set of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
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

/// What a key is known by, in lists and logs; it is part of the secret, and no secret itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(Arc<str>);

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone)]
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

const SECRET_PREFIX: &str = "cw_";
const ID_DIGITS: usize = 16;
const RANDOM_BYTES: usize = 32;
/// 256 bits, six to a character.
const RANDOM_CHARACTERS: usize = 43;

/// A secret that is being made: `cw_<id>_<43 characters>`.
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let (mut id, mut random) = ([0; ID_DIGITS / 2], [0; RANDOM_BYTES]);
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut random)?;
        Ok(Self(format!("{SECRET_PREFIX}{:016x}_{}", u64::from_be_bytes(id), base64url(&random))))
    }

    pub(crate) fn id(&self) -> &str {
        &self.0[SECRET_PREFIX.len()..SECRET_PREFIX.len() + ID_DIGITS]
    }

    pub(crate) fn hash(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }

    pub(crate) fn reveal(self) -> String {
        self.0
    }

    /// The id and the hash of what someone sent as a secret, if it has a secret's form.
    pub(crate) fn recognise(sent: &str) -> Option<(&str, blake3::Hash)> {
        let (id, random) = sent.strip_prefix(SECRET_PREFIX)?.split_once('_')?;
        let fits = id.len() == ID_DIGITS && random.len() == RANDOM_CHARACTERS;
        fits.then(|| (id, blake3::hash(sent.as_bytes())))
    }
}

/// RFC 4648, section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_that_of_the_rfc() {
        // RFC 4648, section 10, and two bytes that tell the alphabets apart.
        for (bytes, text) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")] {
            assert_eq!(base64url(bytes.as_bytes()), text);
        }
        assert_eq!(base64url(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn a_secret_has_its_form_and_no_two_are_equal() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(one.0, other.0);
        let (id, hash) = Secret::recognise(&one.0).unwrap();
        assert_eq!((id, hash), (one.id(), one.hash()));
        for bad in ["", "cw_", "cw__", &one.0[1..], &one.0[..one.0.len() - 1], &format!("{}x", one.0), &one.0.replace("cw_", "cw-")] {
            assert!(Secret::recognise(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn scopes_are_a_set() {
        let scopes: Scopes = [Scope::Upload, Scope::Infer, Scope::Upload].into_iter().collect();
        assert!(scopes.contains(Scope::Infer) && scopes.contains(Scope::Upload) && !scopes.contains(Scope::Admin));
        assert_eq!(scopes.iter().collect::<Vec<_>>(), [Scope::Infer, Scope::Upload]);
        assert_eq!(Scopes::from_bits(i64::from(scopes.bits())), Some(scopes));
        assert_eq!((Scopes::from_bits(8), Scopes::from_bits(-1)), (None, None));
    }

    #[test]
    fn a_new_key_does_not_show_its_secret_in_logs() {
        let key = Key { id: KeyId::new("1"), tenant: TenantName::operator(), scopes: Scopes::all(), label: String::new(), created_ms: 0 };
        let shown = format!("{:?}", NewKey { key, secret: "cw_1_geheim".to_owned() });
        assert!(!shown.contains("geheim"), "{shown}");
    }
}
