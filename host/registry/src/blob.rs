//! Bytes on disk, named by their hash: written beside, synced, and only then renamed into place.
//!
//! One transaction then makes the version that names them, so nothing half-made is ever seen. A
//! blob is garbage when no version names it and nobody holds a [`Pin`] on it. A pin is taken before
//! the bytes are put in place. Garbage collection marks one blob, checks pins and the database, and
//! removes the file. Until then a pin of that blob waits. So it never takes bytes that someone is
//! about to name, and pins of other blobs wait for no file.
//!
//! Files are compared with their hashes each time a version is loaded. Bytes that arrive again
//! replace the ones that were there.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::AddAssign;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::digest::Digest;
use crate::error::{RegistryError, no_room};
use crate::folder::Folder;

/// Bytes that a writer gathers before it hashes and writes them.
const BUFFER_BYTES: usize = 256 << 10;

/// The block of most disks.
const BLOCK_BYTES_MIN: u64 = 4096;

/// What a collection freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Collected {
    /// Files removed.
    pub blobs: u64,
    /// Bytes they had.
    pub bytes: u64,
}

impl AddAssign for Collected {
    fn add_assign(&mut self, more: Self) {
        self.blobs += more.blobs;
        self.bytes += more.bytes;
    }
}

/// The blobs of a folder, and who holds which.
#[derive(Debug)]
pub(crate) struct BlobStore {
    folder: Folder,
    pins: Mutex<Pins>,
    /// A blob is no longer [looked at](Pins::collected).
    collected: Condvar,
}

#[derive(Debug, Default)]
struct Pins {
    counts: HashMap<Digest, usize>,
    /// Those that somebody looks at, and removes if they are garbage.
    collected: HashSet<Digest>,
}

/// The mark of one that is looked at, which ends when dropped.
struct Mark<'a> {
    store: &'a BlobStore,
    digest: &'a Digest,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.store.pins().collected.remove(self.digest);
        self.store.collected.notify_all();
    }
}

impl BlobStore {
    pub(crate) fn new(folder: Folder) -> Self {
        Self { folder, pins: Mutex::default(), collected: Condvar::new() }
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn writer(self: &Arc<Self>) -> Result<BlobWriter, RegistryError> {
        let (path, file) = self.folder.new_incoming().map_err(|error| RegistryError::io("make a file for incoming bytes", error))?;
        Ok(BlobWriter {
            store: self.clone(),
            incoming: Incoming(Some(path)),
            file,
            hasher: Box::default(),
            buffer: Vec::with_capacity(BUFFER_BYTES),
            len: 0,
            is_broken: false,
        })
    }

    pub(crate) fn pin(self: &Arc<Self>, digest: Digest) -> Pin {
        *self.pins_without_mark(&digest).counts.entry(digest).or_default() += 1;
        Pin(Arc::new(PinInner { store: self.clone(), digest }))
    }

    /// Removes every blob that is neither pinned nor named. Whoever pins the blob that `is_named` is asked about waits meanwhile, so it must
    /// wait for nobody who pins.
    pub(crate) fn collect(&self, mut is_named: impl FnMut(&Digest) -> Result<bool, RegistryError>) -> Result<Collected, RegistryError> {
        let mut collected = Collected::default();
        for shard in self.folder.shards() {
            let failed = |error| RegistryError::io("read a folder of blobs", error);
            for entry in fs::read_dir(&shard).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                // What is not named like a blob is not ours to remove.
                let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok()) else { continue };
                collected += self.collect_one(&digest, &mut is_named)?;
            }
        }
        Ok(collected)
    }

    /// Removes one, if it is there, and neither pinned nor named, of which [`Self::collect`] says how it is asked.
    pub(crate) fn collect_one(
        &self,
        digest: &Digest,
        is_named: impl FnOnce(&Digest) -> Result<bool, RegistryError>,
    ) -> Result<Collected, RegistryError> {
        let path = self.folder.blob(digest);
        let Some(_mark) = self.mark(digest) else { return Ok(Collected::default()) };
        if is_named(digest)? {
            return Ok(Collected::default());
        }
        let removed = fs::metadata(&path).and_then(|metadata| fs::remove_file(&path).map(|()| metadata.len()));
        match removed {
            Ok(bytes) => Ok(Collected { blobs: 1, bytes }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Collected::default()),
            Err(error) => Err(RegistryError::io("remove a blob", error)),
        }
    }

    /// None: it is pinned.
    fn mark<'a>(&'a self, digest: &'a Digest) -> Option<Mark<'a>> {
        let mut pins = self.pins_without_mark(digest);
        let is_free = !pins.counts.contains_key(digest);
        is_free.then(|| {
            pins.collected.insert(*digest);
            Mark { store: self, digest }
        })
    }

    /// The pins when nobody looks at that blob.
    fn pins_without_mark(&self, digest: &Digest) -> MutexGuard<'_, Pins> {
        self.collected.wait_while(self.pins(), |pins| pins.collected.contains(digest)).unwrap_or_else(PoisonError::into_inner)
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        // Each is changed in one step: a panic elsewhere leaves them as they should be.
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are stored whole, and stay while this is held.
#[derive(Clone, Debug)]
pub struct Blob {
    /// Their hash.
    pub digest: Digest,
    /// How many there are.
    pub len: u64,
    /// What they take of the disk: whole blocks.
    pub disk_bytes: u64,
    /// What keeps them from being collected as garbage.
    pub pin: Pin,
}

/// Keeps a blob from being collected while it is held. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pin(Arc<PinInner>);

impl Pin {
    /// Whether this keeps that blob of that store.
    pub(crate) fn holds(&self, store: &Arc<BlobStore>, digest: &Digest) -> bool {
        self.0.digest == *digest && Arc::ptr_eq(&self.0.store, store)
    }
}

#[derive(Debug)]
struct PinInner {
    store: Arc<BlobStore>,
    digest: Digest,
}

impl Drop for PinInner {
    fn drop(&mut self) {
        let mut pins = self.store.pins();
        if let Some(count) = pins.counts.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                pins.counts.remove(&self.digest);
            }
        }
    }
}

/// Bytes on their way in. Dropped unfinished, they leave nothing behind.
#[derive(Debug)]
pub struct BlobWriter {
    store: Arc<BlobStore>,
    incoming: Incoming,
    file: File,
    hasher: Box<blake3::Hasher>,
    buffer: Vec<u8>,
    len: u64,
    /// A write failed half-way: the file no longer has what was hashed.
    is_broken: bool,
}

/// A file in `incoming/`, removed unless it was moved to its place.
#[derive(Debug)]
struct Incoming(Option<PathBuf>);

impl Drop for Incoming {
    fn drop(&mut self) {
        let Some(path) = self.0.take() else { return };
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(file = %path.display(), %error, "an unfinished upload could not be removed; the next start removes it");
        }
    }
}

impl BlobWriter {
    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.len
    }

    /// Stores what was written: on disk, synced and in place when this returns.
    ///
    /// # Errors
    /// The disk is full or fails; nothing stays behind.
    pub fn finish(mut self) -> Result<Blob, RegistryError> {
        self.flush().and_then(|()| self.file.sync_all()).map_err(|error| RegistryError::io("write a blob", error))?;
        let digest = Digest::from(self.hasher.finalize());
        let pin = self.store.pin(digest);
        let blocks = self.file.metadata().map_err(|error| RegistryError::io("look at a blob", error))?.blocks();
        self.put_in_place(&digest).map_err(|error| RegistryError::io("put a blob in its place", error))?;
        // Some disks say only later which blocks a file has.
        let disk_bytes = self.len.next_multiple_of(BLOCK_BYTES_MIN).max(blocks.saturating_mul(512));
        Ok(Blob { digest, len: self.len, disk_bytes, pin })
    }

    fn put_in_place(&mut self, digest: &Digest) -> io::Result<()> {
        let folder = self.store.folder();
        let place = folder.blob(digest);
        // The same bytes may be there already: then these stand in for them, which may have been damaged since. Who reads the others goes on with them.
        if let Some(path) = &self.incoming.0 {
            fs::rename(path, &place)?;
            self.incoming.0 = None;
        }
        File::open(folder.shard(digest))?.sync_all()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("an earlier write failed"));
        }
        if let Err(error) = self.file.write_all(bytes) {
            self.is_broken = true;
            // The system's own words do not name the remedy.
            return Err(match no_room(&error) {
                Some(words) => io::Error::new(error.kind(), words),
                None => error,
            });
        }
        self.hasher.update(bytes);
        Ok(())
    }

    fn put_buffer(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.put(&buffer);
        buffer.clear();
        self.buffer = buffer;
        written
    }
}

impl Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.put_buffer()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            self.put(bytes)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.put_buffer()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;

    fn blob(store: &Arc<BlobStore>, bytes: &[u8]) -> Blob {
        let mut writer = store.writer().unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn a_blob_that_is_collected_is_waited_for_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(BlobStore::new(Folder::open(folder.path()).unwrap()));
        let Blob { digest, .. } = blob(&store, b"garbage");
        let (again, came) = sync_channel(1);
        std::thread::scope(|scope| {
            let collected = store.collect_one(&digest, |_| {
                scope.spawn(|| again.send(blob(&store, b"garbage")).unwrap());
                blob(&store, b"another");
                assert!(came.recv_timeout(Duration::from_millis(50)).is_err(), "its file would be removed");
                Ok(false)
            });
            assert_eq!(collected.unwrap().blobs, 1);
            let blob = came.recv().unwrap();
            assert!(store.folder().blob(&blob.digest).exists());
            assert_eq!(store.collect_one(&digest, |_| Ok(false)).unwrap().blobs, 0, "it is pinned");
        });
    }
}
