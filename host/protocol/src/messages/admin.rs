//! Administration under `/v1`: uploads, versions, tenants and keys.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Files that a bundle may have which is sent to a server.
pub const BUNDLE_FILES_MAX: usize = 1000;

/// The answer to `PUT /v1/models/{m}`: the version is committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// The model's name.
    pub model: String,
    /// The version's number.
    pub version: u64,
    /// What the version consists of: BLAKE3 in hexadecimal.
    pub digest: String,
    /// What became of the bundle's sample requests; empty if the version was there before.
    pub samples: Vec<SampleResult>,
    /// Whether the model had a version with this digest already, which then is the one named here.
    pub existed: bool,
    /// Whether this version serves now.
    pub activated: bool,
}

/// What became of one sample request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleResult {
    /// Its id, or its number in the bundle.
    pub name: String,
    /// Whether it was answered, and with the expected answer if one is known.
    pub ok: bool,
    /// Whether one is, as far as that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<bool>,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `GET /v1/models/{m}/logs`: how the model's plugin has failed lately, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginLog {
    /// The failures.
    pub failures: Vec<PluginFailure>,
}

/// A call that failed because of its model's plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFailure {
    /// When that was, in milliseconds since 1970. Each failure of a tenant has another time.
    pub time_ms: u64,
    /// The model's version.
    pub version: u64,
    /// The request's id, as its client was told.
    pub request: String,
    /// What happened, with the functions in which the plugin was and with what it noted.
    pub error: String,
}

/// `GET /v1/models`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// The models the key may see, by tenant and name.
    pub models: Vec<Model>,
}

/// `GET /v1/models/{m}`: a model and its versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Whose it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The version that serves, if one was activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<u64>,
    /// The version that rolling back would activate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// Whether it is meant to be loaded.
    pub loaded: bool,
    /// Why it does not serve, though it is meant to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// When its first version came, in milliseconds since 1970.
    pub created_ms: u64,
    /// Its versions, oldest first.
    pub versions: Vec<Version>,
}

/// One version of a model. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its number: counted by model, never given twice.
    pub version: u64,
    /// What it consists of: BLAKE3 in hexadecimal.
    pub digest: String,
    /// Bytes of its files together.
    pub bytes: u64,
    /// When it was committed, in milliseconds since 1970.
    pub created_ms: u64,
    /// What became of its sample requests when it came; nothing is told of them in lists of models.
    #[serde(default)]
    pub samples: Vec<SampleResult>,
}

/// The answer to `POST /v1/models/{m}/versions/{v}/activate` and `POST /v1/models/{m}/rollback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activated {
    /// The model's name.
    pub model: String,
    /// The version that serves now.
    pub active: u64,
    /// The version that rolling back would activate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
}

/// `GET /v1/tenants`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantList {
    /// Tenants by name.
    pub tenants: Vec<Tenant>,
}

/// A tenant: someone with models and keys of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// What it may use; every setting is given.
    pub settings: TenantSettings,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// `POST /v1/tenants`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Its name.
    pub name: String,
    /// What it may use.
    #[serde(default, deserialize_with = "object")]
    pub settings: TenantSettings,
}

/// Settings, but not as a list of their values.
fn object<'de, D: Deserializer<'de>>(from: D) -> Result<TenantSettings, D::Error> {
    let fields =
        serde_json::Map::deserialize(from).map_err(|cause| D::Error::custom(format_args!("the settings are an object: {cause}")))?;
    TenantSettings::deserialize(serde_json::Value::Object(fields)).map_err(D::Error::custom)
}

/// What a tenant may use. In `POST /v1/tenants` what is left out has the server's default, in `PUT /v1/tenants/{t}` it stays as it was. Unknown
/// settings are refused everywhere, since these are sent more than they are read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSettings {
    /// Its share of contended device time, relative to other tenants' weights; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Calls that may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_max: Option<u32>,
    /// Calls beyond those that may wait to run; more are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_max: Option<u32>,
    /// Fraction of device time it may use at most, its plugins' processor time included, even if nobody else wants it, up to 1; its calls wait when it has
    /// had that. 0, which `null` means too, takes the bound back.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "null_as_zero")]
    pub device_share: Option<f64>,
    /// Models it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models_max: Option<u32>,
    /// Versions that each of its models may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions_max: Option<u32>,
    /// Bytes that its versions may take of the disk together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

impl TenantSettings {
    /// The share of the devices after these settings, if there was that one before.
    #[must_use]
    pub fn device_share_after(&self, before: Option<f64>) -> Option<f64> {
        self.device_share.map_or(before, |share| Some(share).filter(|share| *share != 0.0))
    }
}

fn null_as_zero<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.unwrap_or_default()))
}

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Sending requests to the tenant's models.
    Infer,
    /// Sending versions, and switching between them.
    Upload,
    /// The tenant's keys; of the operator's tenant, every tenant and its keys.
    Admin,
}

/// `GET /v1/keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyList {
    /// The keys the caller may see, oldest first.
    pub keys: Vec<Key>,
}

/// A key as it is listed; its secret cannot be had again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What it is known by.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// What its owner wrote on it.
    pub label: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// `POST /v1/keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Whose it will be; left out: the caller's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it will allow.
    pub scopes: Vec<Scope>,
    /// What its owner writes on it.
    #[serde(default)]
    pub label: String,
}

/// The answer to `POST /v1/keys`, the only one that has the secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedKey {
    /// The key.
    pub key: Key,
    /// What its owner sends with every request, as `Authorization: Bearer SECRET`.
    pub secret: String,
}

/// The secret is left out: what is printed for debugging ends up in logs.
impl std::fmt::Debug for CreatedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedKey").field("key", &self.key).finish_non_exhaustive()
    }
}
