//! Finding models, and saying which of a model's versions serves.

use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::{Registry, Result, unsigned};
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::model::{Model, Version};
use crate::name::{ModelName, TenantName};

/// How many activations can be rolled back.
const EARLIER_MAX: i64 = 32;

const MODEL_COLUMNS: &str = "SELECT model.id, tenant.name, model.name, model.active, model.loaded, model.created_ms \
     FROM model JOIN tenant ON tenant.id = model.tenant";

const VERSION_COLUMNS: &str = "SELECT id, number, digest, bytes, created_ms, report FROM version";

/// Where there may be very many: their reports are left where they are.
const LISTED_COLUMNS: &str = "SELECT id, number, digest, bytes, created_ms, 'null' FROM version";

/// Bytes of reports that are read together: a model may have a thousand versions, whose reports are 64 KiB each, and in memory they take twenty times that.
const REPORTS_BYTES_MAX: usize = 1 << 20;

/// The same with the newest reports.
fn reported_columns() -> String {
    let before = "sum(length(report)) OVER (PARTITION BY model ORDER BY number DESC)";
    format!(
        "SELECT id, number, digest, bytes, created_ms, CASE WHEN {before} <= {REPORTS_BYTES_MAX} THEN report ELSE 'null' END FROM version"
    )
}

impl Registry {
    /// The models of a tenant, or of all, by tenant and name. The reports of their versions are left out: [`Registry::model`] has them.
    ///
    /// # Errors
    /// The database fails.
    pub fn models(&self, tenant: Option<&TenantName>) -> Result<Vec<Model>> {
        let filter = if tenant.is_some() { "WHERE tenant.name = ?1" } else { "WHERE ?1 IS NULL" };
        self.database.read(|database| {
            let rows = model_rows(database, &format!("{filter} ORDER BY tenant.name, model.name"), [tenant.map(TenantName::as_str)])?;
            rows.into_iter().map(|row| row.complete_with(database, LISTED_COLUMNS)).collect()
        })
    }

    /// The model of that name, with the reports of its newest versions: as many as have a megabyte together.
    ///
    /// # Errors
    /// The database fails.
    pub fn model(&self, tenant: &TenantName, name: &ModelName) -> Result<Option<Model>> {
        self.database
            .read(|database| find_model(database, tenant, name)?.map(|row| row.complete_with(database, &reported_columns())).transpose())
    }

    /// Lets a version serve, and remembers the one before. The model, without reports, is meant to be loaded from then on.
    ///
    /// # Errors
    /// There is no such version.
    pub fn activate(&self, tenant: &TenantName, name: &ModelName, version: u64) -> Result<Model> {
        self.database.write(|database| {
            let model = require_model(database, tenant, name)?;
            let version = require_version(database, &model, version)?;
            activate(database, model.id, version.id)?;
            require_model(database, tenant, name)?.complete_with(database, LISTED_COLUMNS)
        })
    }

    /// Lets the version serve that was active before this one; again, the one before that. The model is meant to be loaded from then on.
    ///
    /// # Errors
    /// There is no such model, or no earlier version.
    pub fn roll_back(&self, tenant: &TenantName, name: &ModelName) -> Result<Model> {
        self.database.write(|database| {
            let model = require_model(database, tenant, name)?;
            let earlier = model.earlier(database)?.ok_or_else(|| RegistryError::NothingToRollBack(name.clone()))?;
            database.execute("DELETE FROM earlier WHERE model = ?1 AND id >= ?2", (model.id, earlier.id))?;
            put_in_service(database, model.id, earlier.version)?;
            require_model(database, tenant, name)?.complete_with(database, LISTED_COLUMNS)
        })
    }

    /// Says whether a model is meant to be loaded; a new one is, and one of which a version is let serve.
    ///
    /// # Errors
    /// There is no such model.
    pub fn set_loaded(&self, tenant: &TenantName, name: &ModelName, loaded: bool) -> Result<Model> {
        self.database.write(|database| {
            let model = require_model(database, tenant, name)?;
            database.execute("UPDATE model SET loaded = ?2 WHERE id = ?1", (model.id, loaded))?;
            require_model(database, tenant, name)?.complete_with(database, LISTED_COLUMNS)
        })
    }
}

/// Lets a version serve: the one that did becomes the latest of the earlier ones.
pub(super) fn activate(database: &Connection, model: i64, version: i64) -> Result<()> {
    database.execute(
        "INSERT INTO earlier (model, version) SELECT id, active FROM model WHERE id = ?1 AND active IS NOT NULL AND active <> ?2",
        (model, version),
    )?;
    put_in_service(database, model, version)?;
    database.execute(
        "DELETE FROM earlier WHERE model = ?1 AND id NOT IN (SELECT id FROM earlier WHERE model = ?1 ORDER BY id DESC LIMIT ?2)",
        (model, EARLIER_MAX),
    )?;
    Ok(())
}

/// A model that was unloaded is meant to be loaded again from then on, for the version does serve.
fn put_in_service(database: &Connection, model: i64, version: i64) -> Result<()> {
    database.execute("UPDATE model SET active = ?2, loaded = 1 WHERE id = ?1", (model, version))?;
    Ok(())
}

/// A row of `model`.
pub(super) struct ModelRow {
    pub(super) id: i64,
    tenant: TenantName,
    name: ModelName,
    /// The id, not the number.
    pub(super) active: Option<i64>,
    loaded: bool,
    created_ms: u64,
}

/// A version that was active, and its place in the order.
struct Earlier {
    id: i64,
    version: i64,
    number: u64,
}

impl ModelRow {
    /// The latest version that was active and is not.
    fn earlier(&self, database: &Connection) -> Result<Option<Earlier>> {
        let mut statement = database.prepare_cached(
            "SELECT earlier.id, version.id, version.number FROM earlier JOIN version ON version.id = earlier.version \
             WHERE earlier.model = ?1 AND earlier.version IS NOT ?2 ORDER BY earlier.id DESC LIMIT 1",
        )?;
        let found: Option<(i64, i64, i64)> =
            statement.query_row((self.id, self.active), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
        let Some((id, version, number)) = found else { return Ok(None) };
        Ok(Some(Earlier { id, version, number: unsigned(number, "a negative version number")? }))
    }

    fn complete_with(self, database: &Connection, columns: &str) -> Result<Model> {
        let versions = version_rows(database, &format!("{columns} WHERE model = ?1 ORDER BY number"), [self.id])?;
        let active = self.active.and_then(|id| versions.iter().find(|row| row.id == id)).map(|row| row.version.number);
        let previous = self.earlier(database)?.map(|earlier| earlier.number);
        Ok(Model {
            tenant: self.tenant,
            name: self.name,
            active,
            previous,
            loaded: self.loaded,
            created_ms: self.created_ms,
            versions: versions.into_iter().map(|row| row.version).collect(),
        })
    }
}

/// A version, and the number the database knows it by.
pub(super) struct VersionRow {
    pub(super) id: i64,
    pub(super) version: Version,
}

pub(super) fn find_model(database: &Connection, tenant: &TenantName, name: &ModelName) -> Result<Option<ModelRow>> {
    let rows = model_rows(database, "WHERE tenant.name = ?1 AND model.name = ?2", (tenant.as_str(), name.as_str()))?;
    Ok(rows.into_iter().next())
}

pub(super) fn require_model(database: &Connection, tenant: &TenantName, name: &ModelName) -> Result<ModelRow> {
    find_model(database, tenant, name)?.ok_or_else(|| RegistryError::ModelMissing(name.clone()))
}

pub(super) fn require_version(database: &Connection, model: &ModelRow, number: u64) -> Result<VersionRow> {
    // A number that the database cannot count to is nobody's.
    let known = i64::try_from(number).ok();
    let rows = version_rows(database, &format!("{VERSION_COLUMNS} WHERE model = ?1 AND number = ?2"), (model.id, known))?;
    rows.into_iter().next().ok_or_else(|| RegistryError::VersionMissing { model: model.name.clone(), version: number })
}

pub(super) fn find_version(database: &Connection, model: i64, digest: &Digest) -> Result<Option<VersionRow>> {
    let rows = version_rows(database, &format!("{VERSION_COLUMNS} WHERE model = ?1 AND digest = ?2"), (model, digest.as_bytes()))?;
    Ok(rows.into_iter().next())
}

fn model_rows(database: &Connection, filter: &str, parameters: impl Params) -> Result<Vec<ModelRow>> {
    let mut statement = database.prepare_cached(&format!("{MODEL_COLUMNS} {filter}"))?;
    let rows = statement.query_map(parameters, raw_model)?.collect::<rusqlite::Result<Vec<_>>>()?;
    rows.into_iter().map(decode_model).collect()
}

fn version_rows(database: &Connection, select: &str, parameters: impl Params) -> Result<Vec<VersionRow>> {
    let mut statement = database.prepare_cached(select)?;
    let rows = statement.query_map(parameters, raw_version)?.collect::<rusqlite::Result<Vec<_>>>()?;
    rows.into_iter().map(decode_version).collect()
}

type RawModel = (i64, String, String, Option<i64>, bool, i64);

fn raw_model(row: &Row<'_>) -> rusqlite::Result<RawModel> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
}

fn decode_model((id, tenant, name, active, loaded, created_ms): RawModel) -> Result<ModelRow> {
    Ok(ModelRow {
        id,
        tenant: TenantName::parse(&tenant).map_err(|_| RegistryError::Odd("a tenant's name"))?,
        name: ModelName::parse(&name).map_err(|_| RegistryError::Odd("a model's name"))?,
        active,
        loaded,
        created_ms: unsigned(created_ms, "a time before 1970")?,
    })
}

type RawVersion = (i64, i64, [u8; 32], i64, i64, String);

fn raw_version(row: &Row<'_>) -> rusqlite::Result<RawVersion> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
}

fn decode_version((id, number, digest, bytes, created_ms, report): RawVersion) -> Result<VersionRow> {
    let version = Version {
        number: unsigned(number, "a negative version number")?,
        digest: Digest::from_bytes(digest),
        bytes: unsigned(bytes, "a negative size")?,
        created_ms: unsigned(created_ms, "a time before 1970")?,
        report: serde_json::from_str(&report).map_err(|_| RegistryError::Odd("a report that is not JSON"))?,
    };
    Ok(VersionRow { id, version })
}
