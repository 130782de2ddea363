//! The registry itself: one folder, opened by one process, shared by its threads.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::blob::BlobWriter;
use crate::digest::Digest;
use crate::error::{OpenError, RegistryError};
use crate::key::{Identity, Key, KeyId, NewKey, Scopes};
use crate::model::{Committed, Model, NewVersion, Version, VersionFile};
use crate::name::{ModelName, TenantName};
use crate::tenant::{Tenant, TenantSettings};

pub(crate) const LABEL_CHARACTERS_MAX: usize = 200;
pub(crate) const REPORT_BYTES_MAX: usize = 1 << 20;

type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// What a collection freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Collected {
    /// Files removed.
    pub blobs: u64,
    /// Bytes they had.
    pub bytes: u64,
}

/// Tenants, keys, models, versions and blobs of one folder. Every call may block on the disk; what it returned survives a crash.
#[derive(Debug)]
pub struct Registry(());

fn unbuilt<T>() -> Result<T> {
    Err(RegistryError::Odd("nothing: this is being built"))
}

/// Opening.
impl Registry {
    /// Opens the registry in a folder, which is created if it is not there, and locks it until this is dropped.
    ///
    /// # Errors
    /// Another process has it, it is no registry, a newer or a damaged one, or the disk fails.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Err(OpenError::Foreign { file: folder.into() })
    }
}

/// Tenants.
impl Registry {
    /// Makes a tenant.
    ///
    /// # Errors
    /// The name is taken, the settings make no sense, or the disk fails.
    pub fn create_tenant(&self, _name: &TenantName, _settings: &TenantSettings) -> Result<Tenant> {
        unbuilt()
    }

    /// The tenant of that name.
    ///
    /// # Errors
    /// The database fails.
    pub fn tenant(&self, _name: &TenantName) -> Result<Option<Tenant>> {
        unbuilt()
    }

    /// Every tenant, by name.
    ///
    /// # Errors
    /// The database fails.
    pub fn tenants(&self) -> Result<Vec<Tenant>> {
        unbuilt()
    }

    /// Gives a tenant other settings.
    ///
    /// # Errors
    /// There is no such tenant, the settings make no sense, or the disk fails.
    pub fn set_tenant(&self, _name: &TenantName, _settings: &TenantSettings) -> Result<Tenant> {
        unbuilt()
    }

    /// Removes a tenant and its keys. One that is created again under the name is another: its models count from 1.
    ///
    /// # Errors
    /// There is no such tenant, it has models, or it is built in.
    pub fn delete_tenant(&self, _name: &TenantName) -> Result<()> {
        unbuilt()
    }
}

/// Keys.
impl Registry {
    /// Makes a key. Its secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// There is no such tenant, no scope, or the label cannot be kept.
    pub fn create_key(&self, _tenant: &TenantName, _scopes: Scopes, _label: &str) -> Result<NewKey> {
        unbuilt()
    }

    /// The keys of a tenant, or of all, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub fn keys(&self, _tenant: Option<&TenantName>) -> Result<Vec<Key>> {
        unbuilt()
    }

    /// Ends a key: when this has returned, nobody is recognised by it.
    ///
    /// # Errors
    /// There is no such key.
    pub fn revoke_key(&self, _id: &KeyId) -> Result<()> {
        unbuilt()
    }

    /// Whom a secret belongs to. Takes the same time wherever a wrong one differs.
    ///
    /// # Errors
    /// The database fails; a secret that is no key's is `None`.
    pub fn authenticate(&self, _secret: &str) -> Result<Option<Identity>> {
        unbuilt()
    }

    /// Whether there is any key at all.
    ///
    /// # Errors
    /// The database fails.
    pub fn has_keys(&self) -> Result<bool> {
        unbuilt()
    }
}

/// Blobs.
impl Registry {
    /// A place to write bytes to.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn new_blob(&self) -> Result<BlobWriter> {
        unbuilt()
    }

    /// Where the bytes of that digest are, if they are stored. Hold a pin while reading.
    #[must_use]
    pub fn blob_path(&self, _digest: &Digest) -> PathBuf {
        PathBuf::new()
    }

    /// Removes blobs that no version names and nobody pins. Safe beside everything else.
    ///
    /// # Errors
    /// The disk fails; what was removed before stays removed.
    pub fn collect_garbage(&self) -> Result<Collected> {
        unbuilt()
    }
}

/// Models and versions.
impl Registry {
    /// Adds a version to a model, which is made with its first version: in one transaction, with or without activating it. If the model
    /// has a version of the same files, that one is the answer, and is activated if this one was to be.
    ///
    /// # Errors
    /// There is no such tenant, it may have no more, the files cannot be a version, or the disk fails.
    pub fn commit_version(&self, _tenant: &TenantName, _model: &ModelName, _version: NewVersion) -> Result<Committed> {
        unbuilt()
    }

    /// The models of a tenant, or of all, by tenant and name.
    ///
    /// # Errors
    /// The database fails.
    pub fn models(&self, _tenant: Option<&TenantName>) -> Result<Vec<Model>> {
        unbuilt()
    }

    /// The model of that name.
    ///
    /// # Errors
    /// The database fails.
    pub fn model(&self, _tenant: &TenantName, _name: &ModelName) -> Result<Option<Model>> {
        unbuilt()
    }

    /// The files of a version, by path, pinned: they can be read while the answer is held, even if the version is deleted meanwhile.
    ///
    /// # Errors
    /// There is no such version.
    pub fn files(&self, _tenant: &TenantName, _name: &ModelName, _version: u64) -> Result<Vec<VersionFile>> {
        unbuilt()
    }

    /// The version of a model that has this digest, which is [`Digest::of_version`] of its files.
    ///
    /// # Errors
    /// The database fails.
    pub fn find_digest(&self, _tenant: &TenantName, _name: &ModelName, _digest: &Digest) -> Result<Option<Version>> {
        unbuilt()
    }

    /// Lets a version serve, and remembers the one before.
    ///
    /// # Errors
    /// There is no such version.
    pub fn activate(&self, _tenant: &TenantName, _name: &ModelName, _version: u64) -> Result<Model> {
        unbuilt()
    }

    /// Lets the version serve that was active before this one; again, the one before that.
    ///
    /// # Errors
    /// There is no such model, or no earlier version.
    pub fn roll_back(&self, _tenant: &TenantName, _name: &ModelName) -> Result<Model> {
        unbuilt()
    }

    /// Says whether a model is meant to be loaded; a new one is.
    ///
    /// # Errors
    /// There is no such model.
    pub fn set_loaded(&self, _tenant: &TenantName, _name: &ModelName, _loaded: bool) -> Result<Model> {
        unbuilt()
    }

    /// Removes a version. Its number is not given again.
    ///
    /// # Errors
    /// There is no such version, or it is active.
    pub fn delete_version(&self, _tenant: &TenantName, _name: &ModelName, _version: u64) -> Result<()> {
        unbuilt()
    }

    /// Removes a model with all its versions. Their numbers are not given again.
    ///
    /// # Errors
    /// There is no such model.
    pub fn delete_model(&self, _tenant: &TenantName, _name: &ModelName) -> Result<()> {
        unbuilt()
    }
}
