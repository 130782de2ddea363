//! Checksums of rows, so that a bit that flips on the disk is found when its row is read.
//!
//! SQLite's own checks see the structure of the file, and not the values in it. So each row has the hash of its table, its key and
//! its values. Triggers of the connection that writes keep it. A query selects [`fault`] in front of a row's columns, which names a
//! row that is not as it was written, and [`read`] turns it into an error of that row alone.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row, Statement};

use crate::error::RegistryError;

/// Damaged rows that the log names, at most.
const NAMED_MAX: usize = 1000;

/// What one checksum covers.
struct Sealed {
    table: &'static str,
    sum: &'static str,
    key: &'static [&'static str],
    values: &'static [&'static str],
}

const fn sealed(table: &'static str, key: &'static [&'static str], values: &'static [&'static str]) -> Sealed {
    Sealed { table, sum: "sum", key, values }
}

const SEALED: [Sealed; 10] = [
    sealed("tenant", &["id"], &["name", "settings", "number_floor", "created_ms"]),
    sealed("key", &["number"], &["id", "tenant", "secret_hash", "scopes", "label", "created_ms"]),
    sealed("model", &["id"], &["tenant", "name", "active", "loaded", "created_ms"]),
    sealed("version", &["id"], &["model", "number", "digest", "bytes", "created_ms"]),
    // Apart, because lists leave reports where they are.
    Sealed { table: "version", sum: "report_sum", key: &["id"], values: &["report"] },
    sealed("file", &["version", "path"], &["blob", "bytes", "disk_bytes"]),
    sealed("held", &["tenant", "blob"], &["files", "disk_bytes"]),
    sealed("used", &["tenant"], &["bytes", "files"]),
    sealed("earlier", &["id"], &["model", "version"]),
    sealed("numbering", &["tenant", "name"], &["last", "deletion"]),
];

impl Sealed {
    /// What is hashed of a row that is called so: the arguments of `seal`.
    fn arguments(&self, row: &str) -> String {
        let columns = self.key.iter().chain(self.values).map(|column| format!(", {row}.{column}"));
        format!("'{}'{}", self.table, columns.collect::<String>())
    }

    /// The expression that names a row that is not as it was written, and is null for others.
    fn fault(&self, row: &str) -> String {
        format!("fault({}, {row}.{}, {})", self.key.len(), self.sum, self.arguments(row))
    }

    /// The statements that make the connection keep this checksum.
    fn triggers(&self) -> String {
        let Self { table, sum, key, values } = self;
        let this = key.iter().map(|column| format!("{column} = NEW.{column}")).collect::<Vec<_>>().join(" AND ");
        let (seal, fault) = (format!("seal({})", self.arguments("NEW")), self.fault("OLD"));
        // A change of a damaged row leaves it damaged.
        format!(
            "CREATE TEMP TRIGGER {table}_{sum}_made AFTER INSERT ON main.{table} \
             BEGIN UPDATE {table} SET {sum} = {seal} WHERE {this}; END; \
             CREATE TEMP TRIGGER {table}_{sum}_changed AFTER UPDATE OF {} ON main.{table} WHEN {fault} IS NULL \
             BEGIN UPDATE {table} SET {sum} = {seal} WHERE {this}; END;",
            values.join(", ")
        )
    }
}

/// What is to be selected first of rows of these tables: null, or the name of the row that is not as it was written.
pub(crate) fn fault(tables: &[&str]) -> String {
    let of = |table: &&str| SEALED.iter().find(|sealed| sealed.table == *table).map(|sealed| sealed.fault(table));
    format!("coalesce({}, NULL)", tables.iter().filter_map(of).collect::<Vec<_>>().join(", "))
}

/// The same of a version's report.
pub(crate) fn report_fault() -> String {
    SEALED.iter().find(|sealed| sealed.sum == "report_sum").map_or_else(String::new, |sealed| sealed.fault("version"))
}

/// Reads rows whose first column is [`fault`]. Each is read, or is damaged, by itself.
pub(crate) fn read<T>(
    statement: &mut Statement<'_>,
    parameters: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, RegistryError>,
) -> Result<Vec<Result<T, RegistryError>>, RegistryError> {
    let mut rows = statement.query(parameters)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(match row.get(0)? {
            Some(row) => Err(RegistryError::DamagedRow { row }),
            None => read(row),
        });
    }
    Ok(all)
}

/// Those that are not damaged. The log has the others.
pub(crate) fn sound<T>(rows: Vec<Result<T, RegistryError>>) -> Result<Vec<T>, RegistryError> {
    rows.into_iter().filter(|row| !matches!(row, Err(RegistryError::DamagedRow { .. }))).collect()
}

/// Rows that were found damaged since the database was opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Damage(Arc<Mutex<HashSet<String>>>);

impl Damage {
    /// Whether one was.
    pub(crate) fn is_found(&self) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Tells the log of a row, once.
    fn note(&self, row: &str) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < NAMED_MAX && found.insert(row.to_owned()) {
            tracing::error!("{}", RegistryError::DamagedRow { row: row.to_owned() });
        }
    }
}

/// Gives a connection the functions that the checksums need. Damage that it comes across is noted there.
pub(crate) fn add_functions(connection: &Connection, damage: &Damage) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("seal", -1, flags, |context| Ok(sum(context, 0)))?;
    let damage = damage.clone();
    connection.create_scalar_function("fault", -1, flags, move |context| {
        if context.get_raw(1) == ValueRef::Integer(sum(context, 2)) {
            return Ok(None);
        }
        let row = name(context);
        damage.note(&row);
        Ok(Some(row))
    })
}

/// Makes a connection keep the checksums of the rows that it writes.
pub(crate) fn add_triggers(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&SEALED.iter().map(Sealed::triggers).collect::<String>())
}

/// Seals rows that have no checksum as they are.
pub(crate) fn seal(connection: &Connection) -> rusqlite::Result<()> {
    let all = SEALED.iter().map(|sealed @ Sealed { table, sum, .. }| {
        format!("UPDATE {table} SET {sum} = seal({}) WHERE {sum} IS NULL;", sealed.arguments(table))
    });
    connection.execute_batch(&all.collect::<String>())
}

/// Looks at every row of these tables, or of all.
pub(crate) fn check(connection: &Connection, table: Option<&str>) -> rusqlite::Result<()> {
    for sealed in SEALED.iter().filter(|sealed| table.is_none_or(|table| table == sealed.table)) {
        let count = format!("SELECT count(*) FROM {} WHERE {} IS NOT NULL", sealed.table, sealed.fault(sealed.table));
        connection.query_row(&count, [], |row| row.get::<_, i64>(0))?;
    }
    Ok(())
}

/// The hash of the arguments from that one on.
fn sum(context: &Context<'_>, first: usize) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for place in first..context.len() {
        let mut put = |kind: u8, bytes: &[u8]| {
            hasher.update(&[kind]).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        match context.get_raw(place) {
            ValueRef::Null => put(0, &[]),
            ValueRef::Integer(number) => put(1, &number.to_le_bytes()),
            ValueRef::Real(number) => put(2, &number.to_le_bytes()),
            ValueRef::Text(text) => put(3, text),
            ValueRef::Blob(bytes) => put(4, bytes),
        }
    }
    let hash = hasher.finalize();
    hash.as_bytes().first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// How people find the row that `fault` is asked about: its table and its key.
fn name(context: &Context<'_>) -> String {
    let columns = context.get::<i64>(0).unwrap_or_default();
    let key = (3..context.len()).zip(0..columns).map(|(place, _)| match context.get_raw(place) {
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).escape_debug().to_string(),
        ValueRef::Null | ValueRef::Real(_) => "?".to_owned(),
    });
    let table = context.get_raw(2).as_str().unwrap_or_default();
    format!("row {} of table `{table}`", key.collect::<Vec<_>>().join(" "))
}
