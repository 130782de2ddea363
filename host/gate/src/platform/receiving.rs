//! An upload on its way into the registry's blobs.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use cellwright_bundle::Unpack;
use cellwright_registry::{Blob, BlobWriter, Digest, ENTRY_BYTES, Registry, RegistryError, Room, Tenant, TenantName, VersionFile};

/// Bytes of uploads that are stored and not yet versions, by tenant.
#[derive(Debug, Default)]
pub(super) struct Arriving(Mutex<HashMap<TenantName, u64>>);

/// Keeps a bundle's files as blobs. What is not committed in the end is garbage.
pub(super) struct Receiving<'a> {
    registry: &'a Registry,
    tenant: &'a Tenant,
    /// Those of all uploads of tenants.
    arriving: &'a Arriving,
    /// Bytes of this one, counted before they are stored.
    arrived: u64,
    /// Bytes that files which the tenant does not have may take of the disk.
    new_bytes_left: u64,
    files: Vec<VersionFile>,
    /// Why a file was not kept, which an `io::Error` cannot say.
    pub(super) fault: Option<RegistryError>,
}

impl<'a> Receiving<'a> {
    pub(super) const fn new(registry: &'a Registry, tenant: &'a Tenant, arriving: &'a Arriving, room: Room) -> Self {
        Self { registry, tenant, arriving, arrived: 0, new_bytes_left: room.new_bytes_max, files: Vec::new(), fault: None }
    }

    /// That the tenant's versions would hold too many bytes.
    pub(super) fn too_many_bytes(tenant: &Tenant) -> RegistryError {
        RegistryError::Quota { tenant: tenant.name.clone(), what: "bytes", max: tenant.settings.bytes_max }
    }

    fn count(&mut self, blob: &Blob) -> Result<(), RegistryError> {
        let came_before = self.files.iter().any(|file| file.blob.digest == blob.digest);
        if !came_before && !self.registry.has_file(&self.tenant.name, &blob.digest)? {
            let left = self.new_bytes_left.checked_sub(blob.disk_bytes.saturating_add(ENTRY_BYTES));
            self.new_bytes_left = left.ok_or_else(|| Self::too_many_bytes(self.tenant))?;
        }
        Ok(())
    }

    fn note<T>(&mut self, result: Result<T, RegistryError>) -> io::Result<T> {
        result.map_err(|error| {
            let text = error.to_string();
            self.fault = Some(error);
            io::Error::other(text)
        })
    }

    /// All uploads of a tenant together may bring as much as it may have.
    fn arrive(&mut self, bytes: u64) -> Result<(), RegistryError> {
        let mut all = self.arriving.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = all.get(&self.tenant.name).copied().unwrap_or(0).saturating_add(bytes);
        if sum > self.tenant.settings.bytes_max {
            return Err(Self::too_many_bytes(self.tenant));
        }
        all.insert(self.tenant.name.clone(), sum);
        self.arrived += bytes;
        Ok(())
    }

    /// Everything that came. It counts as arriving as long as this is there.
    pub(super) fn take_files(&mut self) -> Vec<VersionFile> {
        std::mem::take(&mut self.files)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        let mut all = self.arriving.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sum) = all.get_mut(&self.tenant.name) {
            *sum -= self.arrived;
            if *sum == 0 {
                all.remove(&self.tenant.name);
            }
        }
    }
}

impl Unpack for Receiving<'_> {
    type File = BlobWriter;

    fn begin(&mut self, size: u64) -> io::Result<BlobWriter> {
        let writer = self.arrive(size).and_then(|()| self.registry.new_blob());
        self.note(writer)
    }

    fn keep(&mut self, name: String, file: BlobWriter) -> io::Result<()> {
        let blob = self.note(file.finish())?;
        let counted = self.count(&blob);
        // Also if it is one too many: it is stored, and whoever clears up must know.
        self.files.push(VersionFile { path: name, blob });
        self.note(counted)
    }
}

/// The digest of the version that those files make.
pub(super) fn digest(files: &[VersionFile]) -> Digest {
    let listed: Vec<(&str, Digest)> = files.iter().map(|file| (file.path.as_str(), file.blob.digest)).collect();
    Digest::of_version(&listed)
}

/// The blobs that they are stored as.
pub(super) fn stored(files: &[VersionFile]) -> Vec<Digest> {
    files.iter().map(|file| file.blob.digest).collect()
}

/// Where each file is.
pub(super) fn paths(registry: &Registry, files: &[VersionFile]) -> BTreeMap<String, PathBuf> {
    files.iter().map(|file| (file.path.clone(), registry.blob_path(&file.blob.digest))).collect()
}
