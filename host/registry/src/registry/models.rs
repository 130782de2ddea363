//! Finding models, and saying which of a model's versions serves.

use rusqlite::{Connection, OptionalExtension, Params};

use super::tenants::to_tenant;
use super::{Registry, Result, unsigned};
use crate::database::rows;
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::model::{Model, Version};
use crate::name::{ModelName, TenantName};

/// How many activations can be rolled back.
const EARLIER_MAX: i64 = 32;

/// A version's columns, with this as its report.
fn version_columns(report: &str) -> String {
    format!("id, number, digest, bytes, created_ms, {report} FROM version")
}

/// All of a version.
fn whole() -> String {
    format!("SELECT coalesce({}, {}), {}", rows::fault(&["version"]), rows::report_fault(), version_columns("report"))
}

/// Where there may be very many: their reports are left where they are.
fn listed() -> String {
    format!("SELECT {}, {}", rows::fault(&["version"]), version_columns("'null'"))
}

/// Bytes of reports that are read together: a model may have a thousand versions, whose reports are 64 KiB each, and in memory they take twenty times that.
const REPORTS_BYTES_MAX: usize = 1 << 20;

/// The same with the newest reports.
fn reported() -> String {
    let fits = format!("sum(length(report)) OVER (PARTITION BY model ORDER BY number DESC) <= {REPORTS_BYTES_MAX}");
    let fault = format!("coalesce({}, CASE WHEN {fits} THEN {} END)", rows::fault(&["version"]), rows::report_fault());
    format!("SELECT {fault}, {}", version_columns(&format!("CASE WHEN {fits} THEN report ELSE 'null' END")))
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
            rows::sound(rows)?.into_iter().map(|row| row.complete_with(database, &listed())).collect()
        })
    }

    /// How many models and versions [`Registry::models`] would give.
    ///
    /// # Errors
    /// The database fails.
    pub fn count_listed(&self, tenant: Option<&TenantName>) -> Result<usize> {
        let filter = if tenant.is_some() { "WHERE tenant.name = ?1" } else { "WHERE ?1 IS NULL" };
        let count = format!(
            "SELECT count(DISTINCT model.id) + count(version.id) FROM tenant JOIN model ON model.tenant = tenant.id \
             LEFT JOIN version ON version.model = model.id {filter}"
        );
        self.database.read(|database| {
            let count = database.prepare_cached(&count)?.query_row([tenant.map(TenantName::as_str)], |row| row.get(0))?;
            Ok(usize::try_from(unsigned(count, "a negative count")?).unwrap_or(usize::MAX))
        })
    }

    /// The model of that name, with the reports of its newest versions: as many as have a megabyte together.
    ///
    /// # Errors
    /// The database fails.
    pub fn model(&self, tenant: &TenantName, name: &ModelName) -> Result<Option<Model>> {
        self.database.read(|database| find_model(database, tenant, name)?.map(|row| row.complete_with(database, &reported())).transpose())
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
            require_model(database, tenant, name)?.complete_with(database, &listed())
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
            require_model(database, tenant, name)?.complete_with(database, &listed())
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
            require_model(database, tenant, name)?.complete_with(database, &listed())
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
        let select = format!(
            "SELECT {}, earlier.id, version.id, version.number FROM earlier JOIN version ON version.id = earlier.version \
             WHERE earlier.model = ?1 AND earlier.version IS NOT ?2 ORDER BY earlier.id DESC LIMIT 1",
            rows::fault(&["earlier", "version"])
        );
        let found = rows::read(&mut *database.prepare_cached(&select)?, (self.id, self.active), |row| {
            Ok(Earlier { id: row.get(1)?, version: row.get(2)?, number: unsigned(row.get(3)?, "a negative version number")? })
        });
        found?.pop().transpose()
    }

    /// The number of the version that serves, also of one whose row is damaged: the index of numbers has it.
    fn active_number(&self, database: &Connection) -> Result<Option<u64>> {
        let select = "SELECT number FROM version INDEXED BY sqlite_autoindex_version_1 WHERE model = ?1 AND id = ?2";
        let number = database.prepare_cached(select)?.query_row((self.id, self.active), |row| row.get(0)).optional()?;
        number.map(|number| unsigned(number, "a negative version number")).transpose()
    }

    fn complete_with(self, database: &Connection, columns: &str) -> Result<Model> {
        let versions = rows::sound(version_rows(database, &format!("{columns} WHERE model = ?1 ORDER BY number"), [self.id])?)?;
        let active = self.active_number(database)?;
        let previous = rows::sound(self.earlier(database).transpose().into_iter().collect())?.pop();
        Ok(Model {
            tenant: self.tenant,
            name: self.name,
            active,
            previous: previous.map(|earlier| earlier.number),
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
    model_rows(database, "WHERE tenant.name = ?1 AND model.name = ?2", (tenant.as_str(), name.as_str()))?.pop().transpose()
}

pub(super) fn require_model(database: &Connection, tenant: &TenantName, name: &ModelName) -> Result<ModelRow> {
    find_model(database, tenant, name)?.ok_or_else(|| RegistryError::ModelMissing(name.clone()))
}

pub(super) fn require_version(database: &Connection, model: &ModelRow, number: u64) -> Result<VersionRow> {
    // A number that the database cannot count to is nobody's.
    let known = i64::try_from(number).ok();
    let mut rows = version_rows(database, &format!("{} WHERE model = ?1 AND number = ?2", whole()), (model.id, known))?;
    rows.pop().unwrap_or_else(|| Err(RegistryError::VersionMissing { model: model.name.clone(), version: number }))
}

pub(super) fn find_version(database: &Connection, model: i64, digest: &Digest) -> Result<Option<VersionRow>> {
    version_rows(database, &format!("{} WHERE model = ?1 AND digest = ?2", whole()), (model, digest.as_bytes()))?.pop().transpose()
}

fn model_rows(database: &Connection, filter: &str, parameters: impl Params) -> Result<Vec<Result<ModelRow>>> {
    let select = format!(
        "SELECT {}, model.id, tenant.name, model.name, model.active, model.loaded, model.created_ms \
         FROM model JOIN tenant ON tenant.id = model.tenant {filter}",
        rows::fault(&["model", "tenant"])
    );
    rows::read(&mut *database.prepare_cached(&select)?, parameters, |row| {
        Ok(ModelRow {
            id: row.get(1)?,
            tenant: to_tenant(row, 2)?,
            name: ModelName::parse(&row.get::<_, String>(3)?).map_err(|_| RegistryError::Odd("a model's name"))?,
            active: row.get(4)?,
            loaded: row.get(5)?,
            created_ms: unsigned(row.get(6)?, "a time before 1970")?,
        })
    })
}

fn version_rows(database: &Connection, select: &str, parameters: impl Params) -> Result<Vec<Result<VersionRow>>> {
    rows::read(&mut *database.prepare_cached(select)?, parameters, |row| {
        let report = row.get::<_, String>(6)?;
        let version = Version {
            number: unsigned(row.get(2)?, "a negative version number")?,
            digest: Digest::from_bytes(row.get(3)?),
            bytes: unsigned(row.get(4)?, "a negative size")?,
            created_ms: unsigned(row.get(5)?, "a time before 1970")?,
            report: serde_json::from_str(&report).map_err(|_| RegistryError::Odd("a report that is not JSON"))?,
        };
        Ok(VersionRow { id: row.get(1)?, version })
    })
}
