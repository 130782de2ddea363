//! Making, finding, changing and removing tenants.

use rusqlite::{Connection, Params, Row};

use super::{Registry, Result, now_ms, unsigned};
use crate::database::rows;
use crate::error::RegistryError;
use crate::name::TenantName;
use crate::tenant::{Tenant, TenantSettings};

impl Registry {
    /// Makes a tenant.
    ///
    /// # Errors
    /// The name is taken, the settings make no sense, or the disk fails.
    pub fn create_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant> {
        let settings_text = to_text(settings)?;
        self.database.write(|database| {
            let made = database.execute(
                "INSERT INTO tenant (name, settings, created_ms) VALUES (?1, ?2, ?3) ON CONFLICT (name) DO NOTHING",
                (name.as_str(), &settings_text, now_ms()),
            )?;
            if made == 0 {
                return Err(RegistryError::TenantExists(name.clone()));
            }
            tenant_row(database, name)?.map(|row| row.tenant).ok_or_else(|| RegistryError::TenantMissing(name.clone()))
        })
    }

    /// The tenant of that name.
    ///
    /// # Errors
    /// The database fails.
    pub fn tenant(&self, name: &TenantName) -> Result<Option<Tenant>> {
        self.database.read(|database| Ok(tenant_row(database, name)?.map(|row| row.tenant)))
    }

    /// Every tenant, by name.
    ///
    /// # Errors
    /// The database fails.
    pub fn tenants(&self) -> Result<Vec<Tenant>> {
        self.database.read(|database| {
            let rows = rows::sound(tenant_rows(database, "ORDER BY name", [])?)?;
            Ok(rows.into_iter().map(|row| row.tenant).collect())
        })
    }

    /// Gives a tenant other settings.
    ///
    /// # Errors
    /// There is no such tenant, the settings make no sense, or the disk fails.
    pub fn set_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant> {
        let settings_text = to_text(settings)?;
        self.database.write(|database| {
            let id = require_tenant(database, name)?.id;
            database.execute("UPDATE tenant SET settings = ?2 WHERE id = ?1", (id, &settings_text))?;
            Ok(require_tenant(database, name)?.tenant)
        })
    }

    /// Removes a tenant and its keys. One that is created again under the name is another: the versions of its models count from 1.
    ///
    /// # Errors
    /// There is no such tenant, it has models, or it is built in.
    pub fn delete_tenant(&self, name: &TenantName) -> Result<()> {
        if name.is_built_in() {
            return Err(RegistryError::TenantBuiltIn(name.clone()));
        }
        self.end_keys_of(name, |database| {
            let id = require_tenant(database, name)?.id;
            let models = database.query_row("SELECT count(*) FROM model WHERE tenant = ?1", [id], |row| row.get(0))?;
            if models != 0 {
                return Err(RegistryError::TenantHasModels { tenant: name.clone(), models: unsigned(models, "a negative count")? });
            }
            database.execute("DELETE FROM tenant WHERE id = ?1", [id])?;
            Ok(())
        })
    }
}

/// A tenant, and the number the database knows it by.
pub(super) struct TenantRow {
    pub(super) id: i64,
    pub(super) tenant: Tenant,
}

/// The tenant of that name, or the error that there is none.
pub(super) fn require_tenant(database: &Connection, name: &TenantName) -> Result<TenantRow> {
    tenant_row(database, name)?.ok_or_else(|| RegistryError::TenantMissing(name.clone()))
}

fn tenant_row(database: &Connection, name: &TenantName) -> Result<Option<TenantRow>> {
    tenant_rows(database, "WHERE name = ?1", [name.as_str()])?.pop().transpose()
}

fn tenant_rows(database: &Connection, filter: &str, parameters: impl Params) -> Result<Vec<Result<TenantRow>>> {
    let select = format!("SELECT {}, id, name, settings, created_ms FROM tenant {filter}", rows::fault(&["tenant"]));
    rows::read(&mut *database.prepare_cached(&select)?, parameters, |row| {
        let settings = serde_json::from_str(&row.get::<_, String>(3)?).map_err(|_| RegistryError::Odd("a tenant's settings"))?;
        let tenant = Tenant { name: to_tenant(row, 2)?, settings, created_ms: unsigned(row.get(4)?, "a time before 1970")? };
        Ok(TenantRow { id: row.get(1)?, tenant })
    })
}

/// The name of a tenant in that column.
pub(super) fn to_tenant(row: &Row<'_>, column: usize) -> Result<TenantName> {
    TenantName::parse(&row.get::<_, String>(column)?).map_err(|_| RegistryError::Odd("a tenant's name"))
}

fn to_text(settings: &TenantSettings) -> Result<String> {
    settings.check()?;
    serde_json::to_string(settings).map_err(|_| RegistryError::Odd("a tenant's settings"))
}
