//! Making, finding and ending keys, and recognising who sends one.
//!
//! Recognising happens with every request, on threads that must not wait, and anybody may send what is no key. So all keys are known in memory, as they are
//! in the database. Keys are changed one at a time: first in the database, then as they are known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};

use rusqlite::{Connection, Params};

use super::tenants::{require_tenant, to_tenant};
use super::{Registry, Result, Space, now_ms, unsigned};
use crate::database::rows;
use crate::error::RegistryError;
use crate::key::{Identity, Key, KeyId, NewKey, Scope, Scopes, Secret};
use crate::name::{TenantName, is_hidden};

pub(crate) const LABEL_CHARACTERS_MAX: usize = 200;

/// Keys a tenant may have.
const KEYS_MAX: u64 = 1000;

/// All keys, by their ids.
#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    keys: RwLock<KeysById>,
    /// Held while a key is changed in the database and here: a key that is ended while it is made does not stay known.
    changing: Mutex<()>,
}

type KeysById = HashMap<Box<str>, KnownKey>;

#[derive(Clone, Debug)]
struct KnownKey {
    /// Comparing these takes the same time wherever they differ.
    secret_hash: blake3::Hash,
    identity: Identity,
}

impl KnownKey {
    fn recognise(&self, secret_hash: &blake3::Hash) -> Option<Identity> {
        (self.secret_hash == *secret_hash).then(|| self.identity.clone())
    }
}

impl KnownKeys {
    /// Reads all keys when the registry is opened.
    pub(super) fn read(&self, database: &Connection) -> Result<()> {
        let rows = key_rows(database, "", [])?;
        self.change(|keys| rows.into_iter().for_each(|(key, secret_hash)| know(keys, key, secret_hash)));
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut KeysById)) {
        change(&mut self.keys.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn find<T>(&self, id: &str, look: impl FnOnce(&KnownKey) -> T) -> Option<T> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(id).map(look)
    }
}

fn know(keys: &mut KeysById, Key { id, tenant, scopes, .. }: Key, secret_hash: blake3::Hash) {
    keys.insert(id.as_str().into(), KnownKey { secret_hash, identity: Identity { tenant, scopes, key: id } });
}

impl Registry {
    /// Changes which keys there are: in the database, and then, if that succeeds, as they are known.
    fn change_keys(&self, space: Space, change: impl Fn(&Connection) -> Result<()>, known: impl FnOnce(&mut KeysById)) -> Result<()> {
        let _changing = self.known.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(space, |database| change(database))?;
        self.known.change(known);
        Ok(())
    }

    /// The same, after which a tenant has no keys.
    pub(super) fn end_keys_of(&self, tenant: &TenantName, change: impl Fn(&Connection) -> Result<()>) -> Result<()> {
        self.change_keys(Space::Reserved, change, |keys| keys.retain(|_, key| key.identity.tenant != *tenant))
    }

    /// Makes a key. Its secret is in the answer and nowhere else.
    ///
    /// The first must be an operator's with the scope `admin`: it closes a server to everybody else, who could make no other then.
    ///
    /// # Errors
    /// There is no such tenant, it has as many keys as it may, there is no scope, the label cannot be kept, or another has to be the first.
    pub fn create_key(&self, tenant: &TenantName, scopes: Scopes, label: &str) -> Result<NewKey> {
        if scopes.is_empty() {
            return Err(RegistryError::NoScopes);
        }
        if label.chars().count() > LABEL_CHARACTERS_MAX || label.chars().any(is_hidden) {
            return Err(RegistryError::Label);
        }
        let may_make = |database: &Connection| {
            let id = require_tenant(database, tenant)?.id;
            let makes_more = tenant.is_operator() && scopes.contains(Scope::Admin);
            if !makes_more && !had_keys(database)? {
                return Err(RegistryError::FirstKey);
            }
            let keys: i64 = database.query_row("SELECT count(*) FROM key WHERE tenant = ?1", [id], |row| row.get(0))?;
            if unsigned(keys, "a negative count")? >= KEYS_MAX {
                return Err(RegistryError::Quota { tenant: tenant.clone(), what: "keys", max: KEYS_MAX });
            }
            Ok(id)
        };
        // Whoever is refused keeps nobody from writing.
        self.database.read(may_make)?;
        let secret = Secret::random().map_err(RegistryError::Random)?;
        let now = now_ms();
        let created_ms = unsigned(now, "a time before 1970")?;
        let key = Key { id: KeyId::new(secret.id()), tenant: tenant.clone(), scopes, label: label.to_owned(), created_ms };
        let make = |database: &Connection| {
            let id = may_make(database)?;
            database.execute(
                "INSERT INTO key (id, tenant, secret_hash, scopes, label, created_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (secret.id(), id, secret.hash().as_bytes(), scopes.bits(), label, now),
            )?;
            Ok(())
        };
        self.change_keys(Space::Ordinary, make, |keys| know(keys, key.clone(), secret.hash()))?;
        Ok(NewKey { key, secret: secret.reveal() })
    }

    /// The keys of a tenant, or of all, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub fn keys(&self, tenant: Option<&TenantName>) -> Result<Vec<Key>> {
        let filter = if tenant.is_some() { "WHERE tenant.name = ?1" } else { "WHERE ?1 IS NULL" };
        self.database.read(|database| {
            let rows = key_rows(database, &format!("{filter} ORDER BY key.number"), [tenant.map(TenantName::as_str)])?;
            Ok(rows.into_iter().map(|(key, _)| key).collect())
        })
    }

    /// Ends a key: when this has returned, nobody is recognised by it.
    ///
    /// # Errors
    /// There is no such key.
    pub fn revoke_key(&self, id: &KeyId) -> Result<()> {
        let end = |database: &Connection| {
            let ended = database.execute("DELETE FROM key WHERE id = ?1", [id.as_str()])?;
            if ended == 0 { Err(RegistryError::KeyMissing(id.clone())) } else { Ok(()) }
        };
        self.change_keys(Space::Reserved, end, |keys| drop(keys.remove(id.as_str())))
    }

    /// Whom a secret belongs to, if it is a key's. Waits for nothing, and takes the same time wherever a wrong one differs from the right one.
    #[must_use]
    pub fn authenticate(&self, secret: &str) -> Option<Identity> {
        let (id, secret_hash) = Secret::recognise(secret)?;
        self.known.find(id, |key| key.recognise(&secret_hash))?
    }

    /// Whose key that is, if there is one.
    #[must_use]
    pub fn tenant_of(&self, id: &KeyId) -> Option<TenantName> {
        self.known.find(id.as_str(), |key| key.identity.tenant.clone())
    }

    /// Whether there is a key, or ever was one: nobody who ends the last one means to let everybody in. The way back in is to make a key
    /// where no server has the folder open (`cellwright keys create --admin --data FOLDER`).
    ///
    /// # Errors
    /// The database fails.
    pub fn has_keys(&self) -> Result<bool> {
        self.database.read(had_keys)
    }
}

fn had_keys(database: &Connection) -> Result<bool> {
    // SQLite's own memory of the last number that a key was given, which outlives the key. It has no checksum.
    let ever = "SELECT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'key' AND seq > 0) OR EXISTS (SELECT 1 FROM key)";
    Ok(database.query_row(ever, [], |row| row.get(0))?)
}

/// Keys and the hashes of their secrets. One that is damaged is nobody's.
fn key_rows(database: &Connection, filter: &str, parameters: impl Params) -> Result<Vec<(Key, blake3::Hash)>> {
    let select = format!(
        "SELECT {}, key.id, tenant.name, key.scopes, key.label, key.created_ms, key.secret_hash \
         FROM key JOIN tenant ON tenant.id = key.tenant {filter}",
        rows::fault(&["key", "tenant"])
    );
    rows::sound(rows::read(&mut *database.prepare_cached(&select)?, parameters, |row| {
        let scopes = Scopes::from_bits(row.get(3)?).ok_or(RegistryError::Odd("a key's scopes"))?;
        let created_ms = unsigned(row.get(5)?, "a time before 1970")?;
        let key = Key { id: KeyId::new(&row.get::<_, String>(1)?), tenant: to_tenant(row, 2)?, scopes, label: row.get(4)?, created_ms };
        Ok((key, row.get::<_, [u8; 32]>(6)?.into()))
    })?)
}
