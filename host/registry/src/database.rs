//! The SQLite database: how it is opened, recognised, checked and brought up to date, and who may use it when.
//!
//! One connection writes, a few read; each waits for its turn behind a lock of its own. The write-ahead log is synced on every commit, so what
//! was committed survives a crash, and what was not is not there.

pub(crate) mod rows;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use crate::error::{OpenError, RegistryError};
use crate::folder::Folder;
use rows::Damage;

/// "Cwrg": tells a registry from other databases.
const APPLICATION_ID: i64 = 0x4377_7267;

/// What brings a database from each format to the next. Those that were released never change.
const MIGRATIONS: &[&str] = &[include_str!("database/1.sql"), include_str!("database/2.sql"), include_str!("database/3.sql")];

const READERS: usize = 4;

/// Statements a connection keeps prepared.
const STATEMENTS_KEPT: usize = 64;

/// The write-ahead log is cut back to this when it was longer.
const LOG_BYTES_KEPT: i64 = 16 << 20;

#[derive(Debug)]
pub(crate) struct Database {
    writer: Mutex<Connection>,
    readers: [Mutex<Connection>; READERS],
    next_reader: AtomicUsize,
    damage: Damage,
}

impl Database {
    /// Opens the database of a folder, makes it if it is not there, and brings it up to date.
    pub(crate) fn open(folder: &Folder) -> Result<Self, OpenError> {
        let file = folder.database();
        create_private(&file)?;
        let failed = |error| open_error(&file, error);
        let damage = Damage::default();
        let mut writer = connect(&file, &damage).map_err(failed)?;
        recognise(&writer, folder)?;
        writer.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        writer.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT).map_err(failed)?;
        let index_fault = check(&writer, &file)?;
        migrate(&mut writer).map_err(failed)?;
        rows::add_triggers(&writer).map_err(failed)?;
        rows::check(&writer, None).map_err(failed)?;
        // An index knows what a damaged row was called before.
        if let Some(found) = index_fault.filter(|_| !damage.is_found()) {
            tracing::warn!("the indexes of the registry's database are damaged ({found}): they are made again from its rows");
            writer.execute_batch("REINDEX").map_err(|_| OpenError::Damaged { file: file.clone(), found })?;
        }
        let reader = || {
            let reader = connect(&file, &damage)?;
            reader.pragma_update(None, "query_only", true)?;
            Ok(Mutex::new(reader))
        };
        let readers = [reader(), reader(), reader(), reader()];
        let [a, b, c, d] = readers.map(|reader| reader.map_err(failed));
        Ok(Self { writer: Mutex::new(writer), readers: [a?, b?, c?, d?], next_reader: AtomicUsize::new(0), damage })
    }

    /// Changes the database: all that `change` does, durably, or nothing of it.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&Transaction<'_>) -> Result<T, RegistryError>) -> Result<T, RegistryError> {
        let mut connection = turn(&self.writer);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Dropped on an error, a transaction takes everything back.
        let done = change(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Reads one moment's state, whatever is written meanwhile.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Connection) -> Result<T, RegistryError>) -> Result<T, RegistryError> {
        let mut connection = self.reader();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
        look(&transaction)
    }

    /// Whether a row was found that is not as it was written.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damage.is_found()
    }

    /// Lets the database have no more pages than this.
    #[cfg(test)]
    pub(crate) fn limit_pages(&self, pages: u32) {
        turn(&self.writer).pragma_update(None, "max_page_count", pages).expect("a limit above what there is");
    }

    /// A reader whose every statement sees what was committed before it.
    pub(crate) fn reader(&self) -> MutexGuard<'_, Connection> {
        let first = self.next_reader.fetch_add(1, Ordering::Relaxed);
        let free = (0..READERS).find_map(|offset| self.readers[first.wrapping_add(offset) % READERS].try_lock().ok());
        free.unwrap_or_else(|| turn(&self.readers[first % READERS]))
    }
}

fn turn(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    // A panic dropped its transaction, which took back what it had done: the connection is as good as before.
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SQLite gives its other files the mode of this one.
fn create_private(file: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { what: "open", path: file.to_owned(), source };
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file).map(drop).map_err(failed)
}

fn connect(file: &Path, damage: &Damage) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    rows::add_functions(&connection, damage)?;
    Ok(connection)
}

/// Refuses what is not a registry, or a newer one, before anything is written to it.
fn recognise(connection: &Connection, folder: &Folder) -> Result<(), OpenError> {
    let file = folder.database();
    let failed = |error| open_error(&file, error);
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(failed);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    let (application, found) = (number("application_id")?, number("user_version")?);
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if (application, found, tables) == (0, 0, 0) {
        // Nobody has written to it. Beginning anew beside blobs would make garbage of them all.
        return match folder.has_blobs()? {
            true => Err(OpenError::Damaged { file, found: "it is missing or empty, although there are blobs".to_owned() }),
            false => Ok(()),
        };
    }
    if application != APPLICATION_ID {
        return Err(OpenError::Foreign { file });
    }
    if found > known {
        return Err(OpenError::Newer { folder: folder.root().to_owned(), found, known });
    }
    Ok(())
}

/// Has SQLite look whether the file is sound. What is wrong with indexes or single values is the answer: rows have checksums.
fn check(connection: &Connection, file: &Path) -> Result<Option<String>, OpenError> {
    let failed = |error| open_error(file, error);
    let mut statement = connection.prepare("PRAGMA integrity_check").map_err(failed)?;
    let found = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect::<rusqlite::Result<Vec<String>>>).map_err(failed)?;
    let is_of_structure = |found: &&String| !found.contains(" index ") && !found.contains(" value in ");
    match found.iter().filter(|found| *found != "ok").find(is_of_structure) {
        Some(found) => Err(OpenError::Damaged { file: file.to_owned(), found: found.clone() }),
        None => Ok(found.into_iter().find(|found| found != "ok")),
    }
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let done = usize::try_from(found).unwrap_or_default();
    for migration in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(migration)?;
    }
    if done < MIGRATIONS.len() {
        // Rows that have a checksum keep it, right or wrong.
        rows::seal(&transaction)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))?;
    }
    transaction.commit()
}

fn open_error(file: &Path, error: rusqlite::Error) -> OpenError {
    let file = file.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::Foreign { file },
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged { file, found: error.to_string() },
        _ => OpenError::Database { file, source: error.into() },
    }
}
