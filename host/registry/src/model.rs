//! Models and their versions, as the registry knows them: names, numbers, files and a report it keeps without reading it.

use crate::blob::Blob;
use crate::digest::Digest;
use crate::name::{ModelName, TenantName};

/// A model: the versions of one name, and which of them serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Whose it is.
    pub tenant: TenantName,
    /// What it is called.
    pub name: ModelName,
    /// The version that serves, if one was activated.
    pub active: Option<u64>,
    /// The version that rolling back would activate.
    pub previous: Option<u64>,
    /// Whether it is meant to be loaded; a server loads such models when it starts.
    pub loaded: bool,
    /// When its first version came, in milliseconds since 1970.
    pub created_ms: u64,
    /// Its versions, oldest first.
    pub versions: Vec<Version>,
}

impl Model {
    /// The version with that number.
    #[must_use]
    pub fn version(&self, number: u64) -> Option<&Version> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// The version that serves.
    #[must_use]
    pub fn active_version(&self) -> Option<&Version> {
        self.active.and_then(|number| self.version(number))
    }
}

/// One version of a model. It never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// Counts up from 1 within the model's name; no number is ever given twice, not even after versions or the model were deleted.
    pub number: u64,
    /// What it consists of; see [`Digest::of_version`].
    pub digest: Digest,
    /// Bytes of its files together.
    pub bytes: u64,
    /// When it was committed, in milliseconds since 1970.
    pub created_ms: u64,
    /// What its checks said, as it was handed in; null in a list of models.
    pub report: serde_json::Value,
}

/// A file of a version: where it stands in the bundle, and its bytes, which stay while this is held.
#[derive(Clone, Debug)]
pub struct VersionFile {
    /// Relative, with `/` between its parts.
    pub path: String,
    /// Its contents.
    pub blob: Blob,
}

/// What an upload of a tenant may bring, as things stand. Committing it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of all of its files.
    pub bytes_max: u64,
    /// Bytes that those may take of the disk which the tenant has in no other version.
    pub new_bytes_max: u64,
}

/// A version that was received and checked, and is to be committed.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// Its files; their order means nothing.
    pub files: Vec<VersionFile>,
    /// What its checks said, in at most [`REPORT_BYTES_MAX`](crate::REPORT_BYTES_MAX) bytes. The registry keeps it and does not read it.
    pub report: serde_json::Value,
    /// Whether it serves from now on.
    pub activate: bool,
}

/// What came of committing a version.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// The version.
    pub version: Version,
    /// Whether the model had a version of the same files already; then this is that one, as it was.
    pub existed: bool,
}
