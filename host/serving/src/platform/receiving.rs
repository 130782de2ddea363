//! An upload on its way into the registry's blobs.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use cellwright_bundle::Unpack;
use cellwright_registry::{BlobWriter, Digest, Registry, RegistryError, VersionFile};

/// Keeps a bundle's files as blobs. What is not committed in the end is garbage.
pub(super) struct Receiving<'a> {
    registry: &'a Registry,
    files: Vec<VersionFile>,
    /// Why a file was not kept, which an `io::Error` cannot say.
    pub(super) fault: Option<RegistryError>,
}

impl<'a> Receiving<'a> {
    pub(super) const fn new(registry: &'a Registry) -> Self {
        Self { registry, files: Vec::new(), fault: None }
    }

    fn note<T>(&mut self, result: Result<T, RegistryError>) -> io::Result<T> {
        result.map_err(|error| {
            let text = error.to_string();
            self.fault = Some(error);
            io::Error::other(text)
        })
    }

    /// Everything that came.
    pub(super) fn into_files(self) -> Vec<VersionFile> {
        self.files
    }
}

impl Unpack for Receiving<'_> {
    type File = BlobWriter;

    fn begin(&mut self) -> io::Result<BlobWriter> {
        let writer = self.registry.new_blob();
        self.note(writer)
    }

    fn keep(&mut self, name: String, file: BlobWriter) -> io::Result<()> {
        let blob = self.note(file.finish())?;
        self.files.push(VersionFile { path: name, blob });
        Ok(())
    }
}

/// The digest of the version that those files make.
pub(super) fn digest(files: &[VersionFile]) -> Digest {
    let listed: Vec<(&str, Digest)> = files.iter().map(|file| (file.path.as_str(), file.blob.digest)).collect();
    Digest::of_version(&listed)
}

/// Where each file is.
pub(super) fn paths(registry: &Registry, files: &[VersionFile]) -> BTreeMap<String, PathBuf> {
    files.iter().map(|file| (file.path.clone(), registry.blob_path(&file.blob.digest))).collect()
}
