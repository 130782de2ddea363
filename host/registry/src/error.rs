//! What can go wrong, each in one sentence, and of which kind it is.

use std::io;
use std::path::PathBuf;

use crate::key::KeyId;
use crate::name::{ModelName, NameError, TenantName};
use crate::registry::{LABEL_CHARACTERS_MAX, REPORT_BYTES_MAX};
use crate::tenant::SettingsFault;

/// Why a folder could not be opened as a registry.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the registry in {} is in use by another process: stop that one first, or name another folder", folder.display())]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// Written by a newer Cellwright.
    #[error("the registry in {} was written by a newer version of Cellwright (its format is {found}, this one knows up to {known})", folder.display())]
    Newer {
        /// Which folder.
        folder: PathBuf,
        /// The format of the database.
        found: i64,
        /// The newest format this build can read.
        known: i64,
    },
    /// A database of something else.
    #[error("{} is not a registry of Cellwright: name another folder, or move that file away", file.display())]
    Foreign {
        /// Which file.
        file: PathBuf,
    },
    /// A database that fails its own checks.
    #[error("the registry's database {} is damaged ({found}): restore it from a backup, or move the folder away to start with an empty one", file.display())]
    Damaged {
        /// Which file.
        file: PathBuf,
        /// What the check found.
        found: String,
    },
    /// The file system refuses.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// SQLite refuses.
    #[error("cannot open the registry's database {}", file.display())]
    Database {
        /// Which file.
        file: PathBuf,
        /// Why not.
        source: DatabaseError,
    },
    /// The tenants that are always there could not be made.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// What SQLite said.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DatabaseError(#[from] pub(crate) rusqlite::Error);

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No such tenant.
    #[error("there is no tenant `{0}`")]
    TenantMissing(TenantName),
    /// No such model.
    #[error("there is no model `{0}`")]
    ModelMissing(ModelName),
    /// No such version.
    #[error("model `{model}` has no version {version}")]
    VersionMissing {
        /// Of which model.
        model: ModelName,
        /// Which one.
        version: u64,
    },
    /// No such key.
    #[error("there is no key `{}`", .0.as_str().escape_default())]
    KeyMissing(KeyId),
    /// A name that is taken.
    #[error("there is a tenant `{0}` already")]
    TenantExists(TenantName),
    /// A tenant that is not empty.
    #[error("tenant `{tenant}` still has {models} models: delete them first")]
    TenantHasModels {
        /// Which tenant.
        tenant: TenantName,
        /// How many it has.
        models: u64,
    },
    /// A tenant that is always there.
    #[error("tenant `{0}` is built in and cannot be deleted")]
    TenantBuiltIn(TenantName),
    /// The version that serves cannot go.
    #[error("version {version} of model `{model}` is active: activate another version first, or delete the model")]
    VersionActive {
        /// Of which model.
        model: ModelName,
        /// Which one.
        version: u64,
    },
    /// Nothing was active before.
    #[error("model `{0}` has no earlier active version to roll back to")]
    NothingToRollBack(ModelName),
    /// A name outside the alphabet.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Settings that make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsFault),
    /// A list of files that cannot be a version.
    #[error(transparent)]
    Files(#[from] FilesFault),
    /// A key that would open nothing.
    #[error("a key needs at least one scope: infer, upload or admin")]
    NoScopes,
    /// A first key that would lock its maker out.
    #[error(
        "the first key must be an operator's key with the scope `admin`, because from then on the server requires a key: create it with \
         `cellwright keys create --admin`, then this one"
    )]
    FirstKey,
    /// A label that cannot be listed.
    #[error("a key's label has at most {LABEL_CHARACTERS_MAX} characters, and none that controls the text or its direction")]
    Label,
    /// A report that would bloat every list.
    #[error("a version's report has {bytes} bytes, more than {REPORT_BYTES_MAX}")]
    ReportTooLarge {
        /// How many it has.
        bytes: usize,
    },
    /// The tenant has as much as it may.
    #[error("tenant `{tenant}` may have at most {max} {what}: delete some first, or ask the operator to raise the limit")]
    Quota {
        /// Which tenant.
        tenant: TenantName,
        /// Of what: "models", "versions of one model", "bytes", "files", "keys".
        what: &'static str,
        /// How many it may have.
        max: u64,
    },
    /// No room on the disk.
    #[error("{}: cannot {what}", no_room(.source).unwrap_or("there is no room"))]
    Full {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// No room in the database.
    #[error("the disk is full: cannot write the registry's database")]
    DatabaseFull(#[source] DatabaseError),
    /// A write to the database is refused, though the disk has room.
    #[error(
        "cannot write the registry's database: it may have reached the size of a file (`ulimit -f`) or the disk quota of the server's user"
    )]
    DatabaseRefused(#[source] DatabaseError),
    /// The file system refuses.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A file that is not what was uploaded, or is gone.
    #[error("`{path}` is damaged where it is stored: its bytes are not those that were uploaded; push the bundle again")]
    Damaged {
        /// Where it stands in the bundle.
        path: String,
    },
    /// A row that is not as it was written.
    #[error("the registry's database is damaged: {row} is not as it was written; restore the data folder from a backup")]
    DamagedRow {
        /// Which row of which table.
        row: String,
    },
    /// SQLite refuses.
    #[error("the registry's database failed")]
    Database(#[source] DatabaseError),
    /// A row that this registry did not write like that.
    #[error("the registry's database is inconsistent: it holds {0}")]
    Odd(&'static str),
    /// The system gives no random bytes.
    #[error("cannot get random bytes for a key")]
    Random(#[source] getrandom::Error),
}

/// Of which kind an error is, for those who turn it into a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was named does not exist.
    NotFound,
    /// It exists, or is in a state that forbids this.
    Conflict,
    /// What was handed in cannot be.
    Invalid,
    /// The tenant has as much as its settings allow.
    Quota,
    /// The disk is full.
    Full,
    /// The disk or the database failed.
    Internal,
}

impl RegistryError {
    /// Of which kind this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TenantMissing(_) | Self::ModelMissing(_) | Self::VersionMissing { .. } | Self::KeyMissing(_) => ErrorKind::NotFound,
            Self::TenantExists(_)
            | Self::TenantHasModels { .. }
            | Self::TenantBuiltIn(_)
            | Self::VersionActive { .. }
            | Self::NothingToRollBack(_)
            | Self::Damaged { .. }
            | Self::DamagedRow { .. }
            | Self::FirstKey => ErrorKind::Conflict,
            Self::Name(_) | Self::Settings(_) | Self::Files(_) | Self::NoScopes | Self::Label | Self::ReportTooLarge { .. } => {
                ErrorKind::Invalid
            }
            Self::Quota { .. } => ErrorKind::Quota,
            Self::Full { .. } | Self::DatabaseFull(_) | Self::DatabaseRefused(_) => ErrorKind::Full,
            Self::Io { .. } | Self::Database(_) | Self::Odd(_) | Self::Random(_) => ErrorKind::Internal,
        }
    }

    /// A failed file operation; `what` completes "cannot …".
    pub(crate) fn io(what: &'static str, source: io::Error) -> Self {
        if is_full(&source) { Self::Full { what, source } } else { Self::Io { what, source } }
    }
}

impl From<rusqlite::Error> for RegistryError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error() {
            Some(cause) if cause.code == rusqlite::ErrorCode::DiskFull => Self::DatabaseFull(error.into()),
            // SQLite tells a full disk from other refusals of a write, but not those from one another.
            Some(cause) if cause.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE => Self::DatabaseRefused(error.into()),
            _ => Self::Database(error.into()),
        }
    }
}

/// Whether there is no room left: on the disk, in the owner's quota, or in what a process may write to one file.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    no_room(error).is_some()
}

/// Which room is used up, if one is.
pub(crate) fn no_room(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::StorageFull => Some("the disk is full"),
        io::ErrorKind::QuotaExceeded => Some("the disk quota of the server's user is used up"),
        io::ErrorKind::FileTooLarge => Some("the file is larger than the server may write (`ulimit -f`)"),
        _ => None,
    }
}

/// Why a list of files cannot be a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesFault {
    /// No file at all.
    #[error("a version has at least one file")]
    None,
    /// More than anyone needs.
    #[error("a version has at most {max} files, not {files}")]
    TooMany {
        /// How many there are.
        files: usize,
        /// How many there may be.
        max: usize,
    },
    /// Not a path within a bundle.
    #[error(
        "`{}` cannot be the path of a file: it must be relative, without `.`, `..`, empty parts, `\\` or control characters, and have at most {max} bytes",
        path.escape_default()
    )]
    Path {
        /// The path as it came.
        path: String,
        /// How long it may be.
        max: usize,
    },
    /// Two files of one path.
    #[error("file `{path}` is there twice")]
    Twice {
        /// Which path.
        path: String,
    },
    /// A blob that this registry does not hold.
    #[error("a version can only be made of blobs that this registry stored and still holds")]
    Unpinned,
    /// More bytes than can be counted.
    #[error("the files have more bytes together than can be counted")]
    Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_may_not_grow_is_no_failure_of_the_server() {
        let of = |code| RegistryError::from(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)).kind();
        let codes = [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_IOERR_WRITE, rusqlite::ffi::SQLITE_IOERR_READ];
        assert_eq!(codes.map(of), [ErrorKind::Full, ErrorKind::Full, ErrorKind::Internal]);
    }
}
