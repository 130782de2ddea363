//! Compiled plugins on disk, so that a restart compiles nothing again.
//!
//! Loading machine code is trusting it, so every file carries a MAC under a key that never leaves the cache's folder, over the name it
//! belongs to and its contents. A file that fails the check in any way is a miss, never an error, and is replaced. The folder may be
//! deleted at any time.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

const KEY_FILE: &str = "key";
const EXTENSION: &str = "code";
const TEMPORARY: &str = "new";
const MAC_BYTES: usize = 32;

/// What a compiled plugin is named by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentName {
    /// Says whose it is.
    pub(crate) tenant: blake3::Hash,
    /// Says what it is, and whose.
    pub(crate) content: blake3::Hash,
}

/// Hexadecimal digits of a file's name that say whose it is.
const TENANT_DIGITS: usize = 32;

#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    key: [u8; 32],
    /// Largest code that is read back.
    artifact_bytes_max: usize,
    /// Bytes of all files together; the oldest go first of the tenant that has most.
    bytes_max: u64,
}

impl Cache {
    pub(crate) fn open(folder: &Path, artifact_bytes_max: usize, bytes_max: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let key = key(folder)?;
        Ok(Self { folder: folder.to_owned(), key, artifact_bytes_max, bytes_max })
    }

    /// The code of that name, if it is there and was written under this cache's key.
    pub(crate) fn load(&self, name: &ContentName) -> Option<Vec<u8>> {
        let path = self.path(name);
        let file = File::open(&path).ok()?;
        let mut bytes = Vec::new();
        let bytes_max = (self.artifact_bytes_max + MAC_BYTES) as u64;
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).ok()?;
        // Comparing hashes takes the same time wherever they differ.
        let fits = |(mac, code): (&[u8; MAC_BYTES], &[u8])| blake3::Hash::from_bytes(*mac) == self.mac(name, code);
        let authentic = bytes.len() as u64 <= bytes_max && bytes.split_first_chunk().is_some_and(fits);
        if !authentic {
            tracing::warn!(file = %path.display(), "a compiled plugin in the cache is damaged or not ours: compiling it again");
            return None;
        }
        bytes.drain(..MAC_BYTES);
        Some(bytes)
    }

    /// Keeps code; where that fails, the plugin is compiled again next time.
    pub(crate) fn store(&self, name: &ContentName, code: &[u8]) {
        if let Err(error) = self.write(name, code).and_then(|()| self.make_room()) {
            tracing::warn!(folder = %self.folder.display(), %error, "a compiled plugin could not be stored");
        }
    }

    fn write(&self, name: &ContentName, code: &[u8]) -> io::Result<()> {
        let temporary = temporary(&self.folder);
        let written =
            write_synced(&temporary, &[self.mac(name, code).as_bytes(), code]).and_then(|()| fs::rename(&temporary, self.path(name)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written?;
        File::open(&self.folder)?.sync_all()
    }

    /// Removes files until the rest fits, the oldest of the tenant that has most, and what writers that died have left.
    fn make_room(&self) -> io::Result<()> {
        let mut tenants: BTreeMap<String, (u64, Vec<_>)> = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let (path, metadata) = (entry.path(), entry.metadata()?);
            let age = |modified| SystemTime::now().duration_since(modified).unwrap_or_default();
            let modified = metadata.modified()?;
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(EXTENSION) => {
                    let name = entry.file_name();
                    // Those of earlier versions have no tenant.
                    let tenant = name.to_str().and_then(|name| name.split_once('-')).map_or("", |(tenant, _)| tenant);
                    let (bytes, files) = tenants.entry(tenant.to_owned()).or_default();
                    *bytes += metadata.len();
                    files.push((Reverse(modified), metadata.len(), path));
                }
                Some(TEMPORARY) if age(modified).as_secs() > 3600 => fs::remove_file(path)?,
                _ => {}
            }
        }
        tenants.values_mut().for_each(|(_, files)| files.sort());
        while tenants.values().map(|(bytes, _)| bytes).sum::<u64>() > self.bytes_max {
            let Some((of_tenant, files)) = tenants.values_mut().max_by_key(|(bytes, _)| *bytes) else { break };
            let Some((_, bytes, path)) = files.pop() else { break };
            fs::remove_file(path)?;
            *of_tenant -= bytes;
        }
        Ok(())
    }

    fn mac(&self, name: &ContentName, code: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.key).update(name.content.as_bytes()).update(code).finalize()
    }

    fn path(&self, name: &ContentName) -> PathBuf {
        let name = format!("{}-{}", &name.tenant.to_hex()[..TENANT_DIGITS], name.content.to_hex());
        self.folder.join(name).with_extension(EXTENSION)
    }
}

/// The cache's key: read if it is there and nobody else could have read it, made otherwise.
fn key(folder: &Path) -> io::Result<[u8; 32]> {
    let path = folder.join(KEY_FILE);
    match read_key(&path)? {
        Some(key) => return Ok(key),
        None if path.exists() => {
            tracing::warn!(file = %path.display(), "the plugin cache's key is damaged or was readable by other users: making a new one");
            fs::remove_file(&path)?;
        }
        None => {}
    }
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let temporary = temporary(folder);
    write_synced(&temporary, &[&key])?;
    // Linking fails where another process was first; its key counts then.
    let linked = fs::hard_link(&temporary, &path);
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read_key(&path)?.ok_or_else(|| io::Error::other("the key that was just written cannot be read")),
    }
}

fn read_key(path: &Path) -> io::Result<Option<[u8; 32]>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    let mut key = [0; 32];
    if metadata.len() != key.len() as u64 || metadata.mode() & 0o077 != 0 {
        return Ok(None);
    }
    file.read_exact(&mut key)?;
    Ok(Some(key))
}

/// A file that no other writer, here or in another process, is writing.
fn temporary(folder: &Path) -> PathBuf {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    folder.join(format!("{}.{}.{TEMPORARY}", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed)))
}

fn write_synced(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}
