//! The repository extension: which models there are, and which of them are loaded.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

fn null_as_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// `POST /v2/repository/index`; the body may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRequest {
    /// Whether to list only what takes requests.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
}

/// An entry of the list that answers an [`IndexRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The version, as text; left out if the model has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether it takes requests.
    pub state: ModelState,
    /// Why it does not, if there is anything to say; else empty.
    #[serde(default)]
    pub reason: String,
}

/// Whether a version of a model takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ModelState {
    /// It takes requests.
    Ready,
    /// It does not.
    Unavailable,
    /// It will soon.
    Loading,
    /// It answers what it has taken, and takes no more.
    Unloading,
}

/// `POST /v2/repository/models/{m}/load`; the body may be empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRequest {
    /// `config` (a model configuration as a JSON string) and `file:PATH` (base64): models come from the registry here, so a server may refuse them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, serde_json::Value>>,
}

/// `POST /v2/repository/models/{m}/unload`; the body may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnloadRequest {
    /// Parameters, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<UnloadParameters>,
}

/// How to unload a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnloadParameters {
    /// Whether models that depend on it go too; here none does.
    #[serde(default, deserialize_with = "null_as_default")]
    pub unload_dependents: bool,
}
