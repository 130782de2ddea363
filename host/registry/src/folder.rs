//! The folder a registry lives in: its layout, its lock, and who may read it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::error::OpenError;

const DATABASE: &str = "registry.sqlite";
const BLOBS: &str = "blobs";
const INCOMING: &str = "incoming";
const LOCK: &str = "lock";
const RESERVE: &str = "reserve";

/// What a deletion writes before it frees anything: the pages that name a model's versions and files. Those of a thousand versions have a few megabytes.
const RESERVE_BYTES: usize = 4 << 20;

/// Random bytes in the name of a file that is still arriving.
const INCOMING_NAME_BYTES: usize = 16;

/// A folder of which this process is the only user while this exists.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    lock: File,
}

impl Folder {
    /// Makes what is missing, and takes the lock. Touches nothing that is there.
    pub(crate) fn open(root: &Path) -> Result<Self, OpenError> {
        let is_new = !root.exists();
        create_folder(root)?;
        let lock = lock(root)?;
        let folder = Self { root: root.to_owned(), lock };
        create_folder(&folder.incoming())?;
        create_folder(&folder.blobs())?;
        // All of them now, so that storing a blob never has to ask whether its folder would survive a crash.
        for shard in folder.shards() {
            create_folder(&shard)?;
        }
        sync_folder(&folder.blobs())?;
        sync_folder(root)?;
        if let Some(parent) = root.parent().filter(|parent| is_new && !parent.as_os_str().is_empty()) {
            sync_folder(parent)?;
        }
        Ok(folder)
    }

    /// Whether there is one.
    pub(crate) fn is_in(root: &Path) -> bool {
        root.join(DATABASE).is_file()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.root.join(DATABASE)
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join(BLOBS)
    }

    fn incoming(&self) -> PathBuf {
        self.root.join(INCOMING)
    }

    /// The folders that blobs are spread over, by the first byte of their digests.
    pub(crate) fn shards(&self) -> impl Iterator<Item = PathBuf> {
        let blobs = self.blobs();
        (0..=u8::MAX).map(move |byte| blobs.join(format!("{byte:02x}")))
    }

    pub(crate) fn shard(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(format!("{:02x}", digest.as_bytes()[0]))
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.shard(digest).join(digest.to_string())
    }

    /// A new file for bytes that are arriving.
    pub(crate) fn new_incoming(&self) -> io::Result<(PathBuf, File)> {
        let mut name = [0; INCOMING_NAME_BYTES];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let path = self.incoming().join(format!("{:032x}", u128::from_be_bytes(name)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }

    /// Removes what was arriving when the last process ended. Files that no registry has named are left alone.
    pub(crate) fn empty_incoming(&self) -> Result<(), OpenError> {
        let incoming = self.incoming();
        let failed = |source| OpenError::Io { what: "empty", path: incoming.clone(), source };
        for entry in fs::read_dir(&incoming).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let is_ours = |name: &str| name.len() == 2 * INCOMING_NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if name.to_str().is_some_and(is_ours) {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Keeps some space for deleting, as far as there is some.
    pub(crate) fn keep_reserve(&self) {
        let path = self.root.join(RESERVE);
        if fs::metadata(&path).is_ok_and(|found| found.len() == RESERVE_BYTES as u64) {
            return;
        }
        let mut bytes = vec![0; RESERVE_BYTES];
        // No file system stores these as fewer.
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        if let Err(error) = file.and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all())) {
            tracing::warn!(folder = %self.root.display(), %error, "cannot reserve the disk space that lets deletions work on a full disk");
            // What was written of it is of more use to others; if it cannot be removed, the next attempt writes over it.
            let _ = fs::remove_file(&path);
        }
    }

    /// Gives that space back to the disk; whether there was some.
    pub(crate) fn give_up_reserve(&self) -> bool {
        fs::remove_file(self.root.join(RESERVE)).is_ok()
    }

    /// Whether any blob is stored.
    pub(crate) fn has_blobs(&self) -> Result<bool, OpenError> {
        for shard in self.shards() {
            let entries = fs::read_dir(&shard).map_err(|source| OpenError::Io { what: "read", path: shard.clone(), source })?;
            if entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<Digest>().is_ok())) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Closing the file would not be enough: a process that was just forked has it too, until it runs its own program.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(folder = %self.root.display(), %error, "the registry's lock could not be released; it ends with this process");
        }
    }
}

fn create_folder(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { what: "create the folder", path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)
}

/// Makes the names in a folder survive a crash.
pub(crate) fn sync_folder(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { what: "sync the folder", path: path.to_owned(), source };
    File::open(path).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn lock(root: &Path) -> Result<File, OpenError> {
    let path = root.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(|source| OpenError::Io {
        what: "open",
        path: path.clone(),
        source,
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { folder: root.to_owned() }),
        Err(TryLockError::Error(source)) => Err(OpenError::Io { what: "lock", path, source }),
    }
}
