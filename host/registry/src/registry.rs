//! The registry itself: one folder, opened by one process, shared by its threads.

mod keys;
mod models;
mod tenants;
mod versions;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, Transaction};

use crate::blob::{BlobStore, BlobWriter, Collected};
use crate::database::{Database, rows};
use crate::digest::Digest;
use crate::error::{OpenError, RegistryError};
use crate::folder::Folder;
use crate::model::VersionFile;
use crate::name::TenantName;
use crate::tenant::TenantSettings;

pub(crate) use keys::LABEL_CHARACTERS_MAX;
pub use versions::{ENTRY_BYTES, REPORT_BYTES_MAX};

use keys::KnownKeys;

type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// Tenants, keys, models, versions and blobs of one folder. Every call may block on the disk; what it returned survives a crash.
#[derive(Debug)]
pub struct Registry {
    // Closed before the folder's lock, which the blobs hold, is given back.
    database: Database,
    known: KnownKeys,
    blobs: Arc<BlobStore>,
    /// Of whoever goes through all blobs.
    collecting: Mutex<()>,
    /// Whether somebody asked for that who has not been served.
    is_garbage_left: AtomicBool,
}

impl Registry {
    /// Opens the registry in a folder, which is created if it is not there, and locks it until this and everything it gave out is dropped.
    ///
    /// # Errors
    /// Another process has it, it is no registry, a newer or a damaged one, or the disk fails.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let folder = Folder::open(folder)?;
        let database = Database::open(&folder)?;
        // Only now is it certain that the folder is a registry's.
        folder.empty_incoming()?;
        let registry = Self {
            database,
            known: KnownKeys::default(),
            blobs: Arc::new(BlobStore::new(folder)),
            collecting: Mutex::default(),
            is_garbage_left: AtomicBool::new(false),
        };
        registry.blobs.folder().keep_reserve();
        registry.make_built_in_tenants()?;
        registry.database.read(|database| registry.known.read(database))?;
        Ok(registry)
    }

    /// Whether a folder has one.
    #[must_use]
    pub fn is_in(folder: &Path) -> bool {
        Folder::is_in(folder)
    }

    fn make_built_in_tenants(&self) -> Result<(), OpenError> {
        for name in [TenantName::default_tenant(), TenantName::operator()] {
            match self.tenant(&name) {
                // Keys and models of other tenants go on.
                Ok(Some(_)) | Err(RegistryError::DamagedRow { .. }) => {}
                Ok(None) => drop(self.create_tenant(&name, &TenantSettings::default())?),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Whether a change may use the space that is kept for deleting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Ordinary,
    Reserved,
}

impl Registry {
    /// Changes the database. Even what frees space has to be written first: where the disk is full, the reserve is given up for it, once.
    fn write<T>(&self, space: Space, change: impl Fn(&Transaction<'_>) -> Result<T>) -> Result<T> {
        match self.database.write(&change) {
            Err(RegistryError::DatabaseFull(_)) if space == Space::Reserved && self.blobs.folder().give_up_reserve() => {
                tracing::warn!("the disk is full: the space that is reserved for deletions is used now");
                self.database.write(change)
            }
            done => done,
        }
    }
}

/// Blobs.
impl Registry {
    /// A place to write bytes to.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn new_blob(&self) -> Result<BlobWriter> {
        self.blobs.writer()
    }

    /// Where the bytes of that digest are, if they are stored. Hold a pin while reading.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs.folder().blob(digest)
    }

    /// Reads files of a version to their ends, as fast as the disk allows.
    ///
    /// # Errors
    /// One of them cannot be read, or its bytes are no longer those that were stored.
    pub fn verify(&self, files: &[VersionFile]) -> Result<()> {
        for file in files {
            let unreadable = |error| RegistryError::io("read a stored file", error);
            let mut hasher = blake3::Hasher::new();
            match File::open(self.blob_path(&file.blob.digest)) {
                Ok(stored) => drop(hasher.update_reader(stored).map_err(unreadable)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(error)),
            }
            if Digest::from(hasher.finalize()) != file.blob.digest {
                return Err(RegistryError::Damaged { path: file.path.clone() });
            }
        }
        Ok(())
    }

    /// Removes blobs that no version names and nobody pins. Safe beside everything else. One goes through all blobs at a time: whoever comes meanwhile leaves
    /// it to that one to go through them once more.
    ///
    /// # Errors
    /// The disk fails; what was removed before stays removed.
    pub fn collect_garbage(&self) -> Result<Collected> {
        self.is_garbage_left.store(true, Ordering::SeqCst);
        let mut collected = Collected::default();
        // Looked at again once the turn is over: who found it taken has asked before.
        while self.is_garbage_left.load(Ordering::SeqCst) {
            let turn = match self.collecting.try_lock() {
                Ok(turn) => turn,
                // A panic ended somebody's turn, which holds nothing.
                Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
                Err(TryLockError::WouldBlock) => break,
            };
            self.is_garbage_left.store(false, Ordering::SeqCst);
            collected += self.collect_all()?;
            drop(turn);
        }
        self.blobs.folder().keep_reserve();
        tracing::debug!(blobs = collected.blobs, bytes = collected.bytes, "unused files were deleted");
        Ok(collected)
    }

    /// Removes those of these blobs that no version names and nobody pins: what an upload or a version leaves behind, without a look at all the others, which
    /// may be any number.
    ///
    /// # Errors
    /// The disk fails; what was removed before stays removed.
    pub fn collect_garbage_of(&self, stored: &[Digest]) -> Result<Collected> {
        let mut collected = Collected::default();
        if self.database.is_damaged() {
            return Ok(collected);
        }
        for digest in stored {
            // Had before the blob is marked, because who has one may wait for the mark. Not kept while a file is removed.
            let reader = self.database.reader();
            collected += self.blobs.collect_one(digest, move |digest| is_named(&reader, digest))?;
        }
        self.blobs.folder().keep_reserve();
        Ok(collected)
    }

    fn collect_all(&self) -> Result<Collected> {
        let reader = self.database.reader();
        // A damaged row may name a blob by another name.
        rows::check(&reader, Some("file"))?;
        if self.database.is_damaged() {
            tracing::warn!("unused files are kept, because the registry's database is damaged");
            return Ok(Collected::default());
        }
        self.blobs.collect(|digest| is_named(&reader, digest))
    }
}

/// Whether a version has that blob. Asked outside a transaction, so that each answer knows every commit before it.
fn is_named(reader: &Connection, digest: &Digest) -> Result<bool> {
    let mut is_named = reader.prepare_cached("SELECT EXISTS (SELECT 1 FROM file WHERE blob = ?1)")?;
    Ok(is_named.query_row([digest.as_bytes()], |row| row.get(0))?)
}

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A count or a size from the database, which holds no negative ones.
fn unsigned(number: i64, what: &'static str) -> Result<u64> {
    u64::try_from(number).map_err(|_| RegistryError::Odd(what))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::error::ErrorKind;
    use crate::key::Scopes;
    use crate::model::{NewVersion, VersionFile};
    use crate::name::ModelName;

    /// A version whose report has so many bytes that the database has to grow for it.
    fn commit(registry: &Registry, name: &str, report_bytes: usize) -> Result<()> {
        commit_of(registry, name, name, report_bytes)
    }

    fn commit_of(registry: &Registry, name: &str, content: &str, report_bytes: usize) -> Result<()> {
        let mut writer = registry.new_blob()?;
        writer.write_all(content.as_bytes()).unwrap();
        let files = vec![VersionFile { path: "model.toml".to_owned(), blob: writer.finish()? }];
        let report = serde_json::Value::String("x".repeat(report_bytes));
        let model = ModelName::parse(name)?;
        registry.commit_version(&TenantName::default_tenant(), &model, NewVersion { files, report, activate: true }).map(drop)
    }

    /// Connections' threads ask, and whoever sends what is no key makes them ask.
    #[test]
    fn nobody_waits_for_the_database_to_be_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        let secret = registry.create_key(&TenantName::operator(), Scopes::all(), "").unwrap().secret;
        drop(registry);
        let registry = Registry::open(folder.path()).unwrap();
        let _all: Vec<_> = (0..4).map(|_| registry.database.reader()).collect();
        assert!(registry.authenticate(&secret).is_some());
        let last = if secret.ends_with('A') { "B" } else { "A" };
        assert_eq!(registry.authenticate(&format!("{}{last}", &secret[..secret.len() - 1])), None);
        assert_eq!(registry.authenticate(&secret.replacen("cw_", "cw_0", 1)), None);
    }

    /// What is counted as versions come and go is what a look at all of them finds.
    #[test]
    fn what_a_tenant_uses_is_what_its_versions_have() {
        const FOUND: &str = "WITH mine AS (SELECT version.id, report FROM model JOIN version ON version.model = model.id WHERE tenant = ?1), \
             entry AS (SELECT blob, disk_bytes FROM mine JOIN file ON file.version = mine.id) \
             SELECT (SELECT coalesce(sum(bytes), 0) FROM (SELECT max(disk_bytes) AS bytes FROM entry GROUP BY blob)) \
             + (SELECT coalesce(sum(octet_length(report)), 0) FROM mine) + 1024 * (SELECT count(*) FROM entry), \
             (SELECT count(*) FROM entry), (SELECT count(DISTINCT blob) FROM entry)";
        const KEPT: &str = "SELECT coalesce(sum(bytes), 0), coalesce(sum(files), 0), (SELECT count(*) FROM held WHERE tenant = ?1) FROM used WHERE tenant = ?1";
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        let tenants = [TenantName::default_tenant(), TenantName::operator()];
        let check = || {
            for tenant in 1..=2 {
                let ask = |select: &str| {
                    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
                    registry.database.reader().query_row(select, [tenant], row).unwrap()
                };
                assert_eq!(ask(KEPT), ask(FOUND));
            }
        };
        let blob = |content: u32| {
            let mut writer = registry.new_blob().unwrap();
            writer.write_all(&content.to_le_bytes().repeat(2000)).unwrap();
            writer.finish().unwrap()
        };
        for step in 0..300_u32 {
            let number = step.wrapping_mul(0x9E37_79B9) >> 8;
            let (tenant, model) = (&tenants[number as usize % 2], ModelName::parse(["a", "b"][number as usize / 2 % 2]).unwrap());
            // Few blobs, some of them twice in a version.
            let file = |place: u32| VersionFile { path: place.to_string(), blob: blob((number >> (4 + 2 * place)) % 4) };
            let files = (0..number / 4 % 4 + 1).map(file).collect();
            let report = serde_json::Value::String("x".repeat(number as usize % 7));
            let known = registry.model(tenant, &model).unwrap();
            let _ = match number / 64 % 8 {
                0 => registry.delete_model(tenant, &model).map(drop),
                1..=2 => registry.delete_version(tenant, &model, known.map_or(1, |model| model.versions[0].number)).map(drop),
                _ => registry.commit_version(tenant, &model, NewVersion { files, report, activate: true }).map(drop),
            };
            check();
        }
        let held: i64 = registry.database.reader().query_row("SELECT count(*) FROM held", [], |row| row.get(0)).unwrap();
        assert!(held > 0);
    }

    /// What a model's versions have to tell is bounded where it is read, however many they are.
    #[test]
    fn a_model_is_read_with_its_newest_reports() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        for version in 0..20 {
            commit_of(&registry, "m", &version.to_string(), 64_000).unwrap();
        }
        let (tenant, name) = (TenantName::default_tenant(), ModelName::parse("m").unwrap());
        let model = registry.model(&tenant, &name).unwrap().unwrap();
        let told: Vec<bool> = model.versions.iter().map(|version| !version.report.is_null()).collect();
        assert_eq!(told, [[false; 4].as_slice(), &[true; 16]].concat());
        assert!(registry.set_loaded(&tenant, &name, false).unwrap().versions.iter().all(|version| version.report.is_null()));
    }

    /// Of those who collect at the same time one does it; nothing is left of what was garbage when they came.
    #[test]
    fn many_collect_garbage_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        for round in 0..20_u32 {
            for number in 0..20_u32 {
                let mut writer = registry.new_blob().unwrap();
                writer.write_all(&[round.to_le_bytes(), number.to_le_bytes()].concat()).unwrap();
                drop(writer.finish().unwrap());
            }
            let collected: u64 = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(|| registry.collect_garbage().unwrap().blobs)).collect();
                all.into_iter().map(|one| one.join().unwrap()).sum()
            });
            assert_eq!(collected, 20, "round {round}");
        }
    }

    /// What is deleted is written before anything is freed.
    #[test]
    fn on_a_full_disk_what_is_kept_for_it_is_enough_to_delete() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        commit(&registry, "m", 0).unwrap();
        let is_kept = || folder.path().join("reserve").exists();
        // A disk that is full as long as that is there.
        let delete = |database: &Transaction<'_>| match is_kept() {
            true => Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None).into()),
            false => Ok(database.execute("DELETE FROM version", [])?),
        };
        assert!(is_kept());
        assert_eq!(registry.write(Space::Ordinary, delete).unwrap_err().kind(), ErrorKind::Full);
        assert!(is_kept(), "whoever adds may not have it");
        assert!(registry.write(Space::Reserved, delete).is_err(), "the version is active");
        assert!(!is_kept());
        registry.delete_model(&TenantName::default_tenant(), &ModelName::parse("m").unwrap()).unwrap();
        registry.collect_garbage().unwrap();
        assert!(is_kept(), "it is kept again when there is room");
    }

    #[test]
    fn a_full_database_refuses_what_has_no_room_and_nothing_of_it_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        commit(&registry, "before", 0).unwrap();
        registry.database.limit_pages(30);
        let error = commit(&registry, "m", 60_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(error.to_string(), "the disk is full: cannot write the registry's database");
        commit(&registry, "after", 0).unwrap();
        let names =
            |registry: &Registry| registry.models(None).unwrap().into_iter().map(|model| model.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&registry), ["after", "before"]);
        drop(registry);
        assert_eq!(names(&Registry::open(folder.path()).unwrap()), ["after", "before"]);
    }
}
