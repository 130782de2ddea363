//! Bytes on disk, named by what they are: written beside, synced, and only then put in place.

use std::io;

use crate::digest::Digest;
use crate::error::RegistryError;

/// Bytes that are stored whole, and stay while this is held.
#[derive(Clone, Debug)]
pub struct Blob {
    /// Their hash.
    pub digest: Digest,
    /// How many there are.
    pub len: u64,
    /// What keeps them from being collected as garbage.
    pub pin: Pin,
}

/// Keeps a blob from being collected while it is held. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pin(());

/// Bytes on their way in. Dropped unfinished, they leave nothing behind.
#[derive(Debug)]
pub struct BlobWriter(());

impl BlobWriter {
    /// Stores what was written: on disk, synced and in place when this returns.
    ///
    /// # Errors
    /// The disk is full or fails; nothing stays behind.
    pub fn finish(self) -> Result<Blob, RegistryError> {
        Err(RegistryError::Odd("nothing: this is being built"))
    }
}

impl io::Write for BlobWriter {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
