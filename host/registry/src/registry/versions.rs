//! Adding versions, reading their files, and removing versions and models.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::models::{ModelRow, VersionRow, activate, find_model, find_version, require_model, require_version};
use super::tenants::{TenantRow, require_tenant};
use super::{Registry, Result, Space, now_ms, unsigned};
use crate::blob::{Blob, BlobStore};
use crate::database::rows;
use crate::digest::Digest;
use crate::error::{FilesFault, RegistryError};
use crate::model::{Committed, NewVersion, Room, Version, VersionFile};
use crate::name::{ModelName, TenantName, is_hidden};

/// Bytes that a version's report may have, as JSON. Reports are nobody's bytes, and there may be a thousand in one answer.
pub const REPORT_BYTES_MAX: usize = 64 << 10;

/// Bytes that a file counts besides its blocks, once for each version: rows, entries of indexes, and a name on the disk.
pub const ENTRY_BYTES: u64 = 1024;

const FILES_MAX: usize = 4096;
/// Files of all versions of a tenant: a disk has names for so many.
const TENANT_FILES_MAX: u64 = 1_000_000;
const PATH_BYTES_MAX: usize = 512;

/// Names of deleted models, per tenant, whose numbers are remembered one by one.
const DELETED_NAMES_MAX: i64 = 1000;

impl Registry {
    /// Adds a version to a model, which is made with its first version: in one transaction, with or without activating it. If the model
    /// has a version of the same files, that one is the answer, and is activated if this one was to be.
    ///
    /// # Errors
    /// There is no such tenant, it may have no more, the files cannot be a version, or the disk fails.
    pub fn commit_version(&self, tenant: &TenantName, model: &ModelName, version: NewVersion) -> Result<Committed> {
        let checked = Checked::new(&version, &self.blobs)?;
        let committed = self.database.write(|database| {
            let tenant = require_tenant(database, tenant)?;
            let row = match find_model(database, &tenant.tenant.name, model)? {
                Some(row) => row,
                None => create_model(database, &tenant, model)?,
            };
            let found = find_version(database, row.id, &checked.digest)?;
            let existed = found.is_some();
            let id = match found {
                Some(found) => found.id,
                None => checked.insert(database, &tenant, &row, model)?,
            };
            if version.activate {
                activate(database, row.id, id)?;
            }
            let committed = find_version(database, row.id, &checked.digest)?.ok_or(RegistryError::Odd("no version just made"))?;
            Ok(Committed { version: committed.version, existed })
        });
        // Until here its pins kept the blobs; now the database names them.
        drop(version);
        committed
    }

    /// What a version of that model may bring, to be asked before its files come.
    ///
    /// # Errors
    /// There is no such tenant, it may have no more models and this would be one, or the database fails.
    pub fn room(&self, tenant: &TenantName, model: &ModelName) -> Result<Room> {
        self.database.read(|database| {
            let tenant = require_tenant(database, tenant)?;
            let bytes_max = tenant.tenant.settings.bytes_max;
            let row = find_model(database, &tenant.tenant.name, model)?;
            let bytes_max = match check_room(database, &tenant, row.as_ref()) {
                // The files of a version that is there may come again.
                Err(RegistryError::Quota { .. }) if row.is_some() => {
                    let largest = "SELECT coalesce(max(bytes), 0) FROM version WHERE model = ?1";
                    let largest = database.query_row(largest, [row.map(|row| row.id)], |row| row.get(0))?;
                    unsigned(largest, "a negative size")?.min(bytes_max)
                }
                room => room.map(|()| bytes_max)?,
            };
            let new_bytes_max = tenant.tenant.settings.bytes_max.saturating_sub(used_bytes(database, tenant.id)?);
            Ok(Room { bytes_max, new_bytes_max })
        })
    }

    /// Whether the model may have one more version, or the tenant one more model if it has none.
    ///
    /// # Errors
    /// There is no such tenant, it may not, or the database fails.
    pub fn check_room(&self, tenant: &TenantName, model: &ModelName) -> Result<()> {
        self.database.read(|database| {
            let tenant = require_tenant(database, tenant)?;
            let row = find_model(database, &tenant.tenant.name, model)?;
            check_room(database, &tenant, row.as_ref())
        })
    }

    /// Whether a version of the tenant has such a file.
    ///
    /// # Errors
    /// The database fails.
    pub fn has_file(&self, tenant: &TenantName, digest: &Digest) -> Result<bool> {
        let has = "SELECT EXISTS (SELECT 1 FROM tenant JOIN held ON held.tenant = tenant.id WHERE tenant.name = ?2 AND held.blob = ?1)";
        self.database.read(|database| Ok(database.query_row(has, (digest.as_bytes(), tenant.as_str()), |row| row.get(0))?))
    }

    /// The files of a version, by path, pinned: they can be read while the answer is held, even if the version is deleted meanwhile.
    ///
    /// # Errors
    /// There is no such version.
    pub fn files(&self, tenant: &TenantName, name: &ModelName, version: u64) -> Result<Vec<VersionFile>> {
        let (id, pinned) = self.database.read(|database| {
            let VersionRow { id, version } = require_version(database, &require_model(database, tenant, name)?, version)?;
            let select =
                format!("SELECT {}, path, blob, bytes, disk_bytes FROM file WHERE version = ?1 ORDER BY path", rows::fault(&["file"]));
            let files = rows::read(&mut *database.prepare_cached(&select)?, [id], |row| {
                let digest = Digest::from_bytes(row.get(2)?);
                let (len, disk_bytes) = (unsigned(row.get(3)?, "a negative size")?, unsigned(row.get(4)?, "a negative size")?);
                let blob = Blob { digest, len, disk_bytes, pin: self.blobs.pin(digest) };
                Ok(VersionFile { path: row.get(1)?, blob })
            });
            let files = files?.into_iter().collect::<Result<Vec<_>>>()?;
            let named: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.blob.digest)).collect();
            match Digest::of_version(&named) == version.digest {
                true => Ok((id, files)),
                // The row of one of its files says that it is another's.
                false => Err(RegistryError::DamagedRow { row: format!("a file of row {id} of table `version`") }),
            }
        })?;
        // If the version is still there now, its blobs were named until they were pinned, and nobody collected them.
        let exists =
            |database: &Connection| Ok(database.query_row("SELECT EXISTS (SELECT 1 FROM version WHERE id = ?1)", [id], |row| row.get(0))?);
        match self.database.read(exists)? {
            true => Ok(pinned),
            false => Err(RegistryError::VersionMissing { model: name.clone(), version }),
        }
    }

    /// The version of a model that has this digest, which is [`Digest::of_version`] of its files.
    ///
    /// # Errors
    /// The database fails.
    pub fn find_digest(&self, tenant: &TenantName, name: &ModelName, digest: &Digest) -> Result<Option<Version>> {
        self.database.read(|database| {
            let Some(model) = find_model(database, tenant, name)? else { return Ok(None) };
            Ok(find_version(database, model.id, digest)?.map(|row| row.version))
        })
    }

    /// Removes a version. Its number is not given again. Gives the blobs that it named.
    ///
    /// # Errors
    /// There is no such version, or it is active.
    pub fn delete_version(&self, tenant: &TenantName, name: &ModelName, version: u64) -> Result<Vec<Digest>> {
        self.write(Space::Reserved, |database| {
            let tenant = require_tenant(database, tenant)?;
            let model = require_model(database, &tenant.tenant.name, name)?;
            let row = require_version(database, &model, version)?;
            if model.active == Some(row.id) {
                return Err(RegistryError::VersionActive { model: name.clone(), version });
            }
            Counted { which: OF_VERSION, id: row.id }.take_from(database, tenant.id)?;
            let blobs = blobs(database, "SELECT blob FROM file WHERE version = ?1", row.id)?;
            database.execute("DELETE FROM version WHERE id = ?1", [row.id])?;
            Ok(blobs)
        })
    }

    /// Removes a model with all its versions. Their numbers are not given again. Gives the blobs that they named.
    ///
    /// # Errors
    /// There is no such model.
    pub fn delete_model(&self, tenant: &TenantName, name: &ModelName) -> Result<Vec<Digest>> {
        const BLOBS: &str = "SELECT DISTINCT file.blob FROM version JOIN file ON file.version = version.id WHERE version.model = ?1";
        self.write(Space::Reserved, |database| {
            let tenant = require_tenant(database, tenant)?;
            let model = require_model(database, &tenant.tenant.name, name)?;
            Counted { which: OF_MODEL, id: model.id }.take_from(database, tenant.id)?;
            let blobs = blobs(database, BLOBS, model.id)?;
            database.execute("UPDATE model SET active = NULL WHERE id = ?1", [model.id])?;
            database.execute("DELETE FROM model WHERE id = ?1", [model.id])?;
            database.execute(
                "UPDATE numbering SET deletion = (SELECT coalesce(max(deletion), 0) + 1 FROM numbering WHERE tenant = ?1) \
                 WHERE tenant = ?1 AND name = ?2",
                (tenant.id, name.as_str()),
            )?;
            forget_names(database, tenant.id)?;
            Ok(blobs)
        })
    }
}

fn blobs(database: &Connection, select: &str, id: i64) -> Result<Vec<Digest>> {
    let mut statement = database.prepare_cached(select)?;
    let blobs = statement.query_map([id], |row| row.get(0).map(Digest::from_bytes))?.collect::<rusqlite::Result<_>>()?;
    Ok(blobs)
}

/// Remembers no more deleted names than it may: what is forgotten raises the number from which new names count.
fn forget_names(database: &Connection, tenant: i64) -> Result<()> {
    const OLDEST: &str = "SELECT name FROM numbering WHERE tenant = ?1 AND deletion IS NOT NULL \
         ORDER BY deletion DESC LIMIT -1 OFFSET ?2";
    database.execute(
        &format!(
            "UPDATE tenant SET number_floor = max(number_floor, coalesce( \
             (SELECT max(last) FROM numbering WHERE tenant = ?1 AND name IN ({OLDEST})), 0)) WHERE id = ?1"
        ),
        (tenant, DELETED_NAMES_MAX),
    )?;
    database.execute(&format!("DELETE FROM numbering WHERE tenant = ?1 AND name IN ({OLDEST})"), (tenant, DELETED_NAMES_MAX))?;
    Ok(())
}

/// Whether there is room for one more version of that model, or for a model.
fn check_room(database: &Connection, tenant: &TenantRow, model: Option<&ModelRow>) -> Result<()> {
    let settings = &tenant.tenant.settings;
    let (count, id, what, max) = match model {
        None => ("SELECT count(*) FROM model WHERE tenant = ?1", tenant.id, "models", settings.models_max),
        Some(model) => ("SELECT count(*) FROM version WHERE model = ?1", model.id, "versions of one model", settings.versions_max),
    };
    let count: i64 = database.query_row(count, [id], |row| row.get(0))?;
    if unsigned(count, "a negative count")? >= u64::from(max) {
        return Err(RegistryError::Quota { tenant: tenant.tenant.name.clone(), what, max: max.into() });
    }
    Ok(())
}

fn create_model(database: &Connection, tenant: &TenantRow, name: &ModelName) -> Result<ModelRow> {
    check_room(database, tenant, None)?;
    database.execute("INSERT INTO model (tenant, name, created_ms) VALUES (?1, ?2, ?3)", (tenant.id, name.as_str(), now_ms()))?;
    require_model(database, &tenant.tenant.name, name)
}

/// The number of the next version under a name, which from now on is taken.
fn take_number(database: &Connection, tenant: i64, name: &ModelName) -> Result<i64> {
    let select = format!("SELECT {} FROM numbering WHERE tenant = ?1 AND name = ?2", rows::fault(&["numbering"]));
    rows::read(&mut *database.prepare_cached(&select)?, (tenant, name.as_str()), |_| Ok(()))?.into_iter().collect::<Result<()>>()?;
    let taken = database.query_row(
        "INSERT INTO numbering (tenant, name, last) SELECT id, ?2, number_floor + 1 FROM tenant WHERE id = ?1 \
         ON CONFLICT (tenant, name) DO UPDATE SET last = last + 1, deletion = NULL RETURNING last",
        (tenant, name.as_str()),
        |row| row.get(0),
    );
    taken.optional()?.ok_or(RegistryError::Odd("no such tenant any more"))
}

/// A new version whose files and report were found to be in order.
struct Checked<'a> {
    files: &'a [VersionFile],
    digest: Digest,
    bytes: i64,
    report: String,
}

impl<'a> Checked<'a> {
    fn new(version: &'a NewVersion, blobs: &Arc<BlobStore>) -> Result<Self> {
        let files = &version.files;
        let bytes = check_files(files)?;
        if files.iter().any(|file| !file.blob.pin.holds(blobs, &file.blob.digest)) {
            return Err(FilesFault::Unpinned.into());
        }
        let report = version.report.to_string();
        if report.len() > REPORT_BYTES_MAX {
            return Err(RegistryError::ReportTooLarge { bytes: report.len() });
        }
        let named: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.blob.digest)).collect();
        Ok(Self { files, digest: Digest::of_version(&named), bytes, report })
    }

    fn insert(&self, database: &Connection, tenant: &TenantRow, model: &ModelRow, name: &ModelName) -> Result<i64> {
        check_room(database, tenant, Some(model))?;
        let number = take_number(database, tenant.id, name)?;
        let id: i64 = database.query_row(
            "INSERT INTO version (model, number, digest, bytes, report, created_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING id",
            (model.id, number, self.digest.as_bytes(), self.bytes, &self.report, now_ms()),
            |row| row.get(0),
        )?;
        let mut insert =
            database.prepare_cached("INSERT INTO file (version, path, blob, bytes, disk_bytes) VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for VersionFile { path, blob } in self.files {
            let number = |bytes| i64::try_from(bytes).map_err(|_| FilesFault::Bytes);
            insert.execute((id, path, blob.digest.as_bytes(), number(blob.len)?, number(blob.disk_bytes)?))?;
        }
        let (bytes, files) = Counted { which: OF_VERSION, id }.add_to(database, tenant.id)?;
        for (used, what, max) in [(bytes, "bytes", tenant.tenant.settings.bytes_max), (files, "files", TENANT_FILES_MAX)] {
            if used > max {
                return Err(RegistryError::Quota { tenant: tenant.tenant.name.clone(), what, max });
            }
        }
        Ok(id)
    }
}

/// Bytes that a tenant's versions take of the disk.
fn used_bytes(database: &Connection, tenant: i64) -> Result<u64> {
    let select = format!("SELECT {}, bytes FROM used WHERE tenant = ?1", rows::fault(&["used"]));
    let used = rows::read(&mut *database.prepare_cached(&select)?, [tenant], |row| unsigned(row.get(1)?, "a negative size"))?.pop();
    Ok(used.transpose()?.unwrap_or_default())
}

/// Versions whose files their tenant's rows of `held` and `used` count. So a quota is checked without a look at the tenant's other files.
struct Counted {
    which: &'static str,
    id: i64,
}

const OF_VERSION: &str = "version.id = ?2";
const OF_MODEL: &str = "version.model = ?2";

impl Counted {
    fn add_to(&self, database: &Connection, tenant: i64) -> Result<(u64, u64)> {
        let add = format!(
            "INSERT INTO held (tenant, blob, files, disk_bytes) SELECT ?1, blob, files, disk_bytes FROM ({}) WHERE true \
             ON CONFLICT (tenant, blob) DO UPDATE SET files = files + excluded.files",
            self.blobs()
        );
        database.prepare_cached(&add)?.execute((tenant, self.id))?;
        self.change(database, tenant, '+')
    }

    fn take_from(&self, database: &Connection, tenant: i64) -> Result<()> {
        self.change(database, tenant, '-')?;
        let take = format!(
            "UPDATE held SET files = held.files - own.files FROM ({}) AS own WHERE held.tenant = ?1 AND held.blob = own.blob",
            self.blobs()
        );
        database.prepare_cached(&take)?.execute((tenant, self.id))?;
        let forget = format!("DELETE FROM held WHERE tenant = ?1 AND blob IN (SELECT blob FROM ({})) AND files <= 0", self.blobs());
        database.prepare_cached(&forget)?.execute((tenant, self.id))?;
        Ok(())
    }

    /// Their blobs, in how many files of theirs each is, and what it takes.
    fn blobs(&self) -> String {
        format!(
            "SELECT file.blob, count(*) AS files, max(file.disk_bytes) AS disk_bytes \
             FROM version JOIN file ON file.version = version.id WHERE {} GROUP BY file.blob",
            self.which
        )
    }

    /// Changes by these versions what the tenant uses, while they are among what it holds. Gives the bytes and the files that it uses then.
    fn change(&self, database: &Connection, tenant: i64, sign: char) -> Result<(u64, u64)> {
        // A blob counts once, so it is theirs if no other version has it. A sum that does not fit fails: SQLite's does not wrap. A cross join has
        // SQLite go through their blobs, not through all of the tenant's.
        let change = format!(
            "WITH own AS ({blobs}), alone AS (SELECT held.disk_bytes FROM own CROSS JOIN held ON held.tenant = ?1 AND held.blob = own.blob \
             WHERE held.files = own.files) \
             INSERT INTO used (tenant, bytes, files) SELECT ?1, {sign} (all_files * {ENTRY_BYTES} + (SELECT coalesce(sum(disk_bytes), 0) FROM alone) \
             + (SELECT coalesce(sum(octet_length(report)), 0) FROM version WHERE {which})), {sign} all_files \
             FROM (SELECT coalesce(sum(files), 0) AS all_files FROM own) WHERE true \
             ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes, files = files + excluded.files RETURNING bytes, files",
            blobs = self.blobs(),
            which = self.which,
        );
        let used = database.prepare_cached(&change)?.query_row((tenant, self.id), |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok((unsigned(used.0, "a negative size")?, unsigned(used.1, "a negative count")?))
    }
}

/// The bytes of the files together, if they can be a version.
fn check_files(files: &[VersionFile]) -> Result<i64, FilesFault> {
    if files.is_empty() {
        return Err(FilesFault::None);
    }
    if files.len() > FILES_MAX {
        return Err(FilesFault::TooMany { files: files.len(), max: FILES_MAX });
    }
    let mut paths = HashSet::with_capacity(files.len());
    let mut bytes = 0_u64;
    for VersionFile { path, blob } in files {
        if !is_path(path) {
            return Err(FilesFault::Path { path: path.clone(), max: PATH_BYTES_MAX });
        }
        if !paths.insert(path.as_str()) {
            return Err(FilesFault::Twice { path: path.clone() });
        }
        bytes = bytes.checked_add(blob.len).ok_or(FilesFault::Bytes)?;
    }
    i64::try_from(bytes).map_err(|_| FilesFault::Bytes)
}

/// Whether a file of a bundle can be called that.
fn is_path(path: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    path.len() <= PATH_BYTES_MAX && path.split('/').all(is_part) && !path.chars().any(|character| is_hidden(character) || character == '\\')
}

#[cfg(test)]
mod tests {
    use super::is_path;

    #[test]
    fn paths_stay_within_their_bundle() {
        for good in ["model.toml", "cells/a.onnx", ".hidden", "a..b", "ä ö", &"x".repeat(512)] {
            assert!(is_path(good), "{good}");
        }
        for bad in ["", "/", "/etc/passwd", "a/", "a//b", ".", "..", "a/../b", "a\\b", "a\0", "a\nb", &"x".repeat(513)] {
            assert!(!is_path(bad), "{bad:?}");
        }
    }
}
