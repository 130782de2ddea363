//! Why a caller does not get what it asked for. Every transport turns this one type into its
//! statuses.

use std::error::Error as _;

use cellwright_bundle::{ArchiveError, BundleError, FileFault, WeightsFault};
use cellwright_registry::{ModelName, RegistryError, is_full};
use cellwright_serving::samples::SampleReport;
use cellwright_serving::{ErrorKind, InferError, LoadError, StartError};

use crate::limits::{Limit, LimitReached};

/// Why a caller does not get what it asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It asks for more than a limit allows.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// Nobody knows who it is.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// It may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// It sent what cannot be taken.
    #[error("{0}")]
    Invalid(String),
    /// The host is about to stop.
    #[error("the server is shutting down and takes no new requests")]
    Draining,
    /// The host was told to stop, and will.
    #[error("the server is about to stop: send new requests to another one")]
    Stopping,
    /// The host loads the models that served before.
    #[error("the server is starting: {loaded} of {total} models are loaded")]
    Starting {
        /// So many are loaded.
        loaded: usize,
        /// Of so many.
        total: usize,
    },
    /// Nothing answers under the name.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// Its request has no answer.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// Its change was not made.
    #[error(transparent)]
    Change(#[from] Box<ChangeError>),
    /// The registry refused it or failed.
    #[error("{}", with_causes(.0))]
    Registry(#[from] RegistryError),
    /// The host failed.
    #[error("{0}")]
    Internal(String),
}

impl From<ChangeError> for Error {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Registry(error) => Self::Registry(error),
            error => Self::Change(Box::new(error)),
        }
    }
}

impl Error {
    /// Something here did not do what it must.
    pub(crate) fn internal(cause: impl ToString) -> Self {
        Self::Internal(cause.to_string())
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Limit(reached) => reached.kind(),
            Self::Unauthenticated(_) | Self::Forbidden(_) | Self::Invalid(_) => ErrorKind::BadInput,
            Self::Draining | Self::Stopping => ErrorKind::Draining,
            Self::Starting { .. } => ErrorKind::Unavailable,
            Self::Lookup(error) => error.kind(),
            Self::Infer(error) => error.kind(),
            Self::Change(error) => error.kind(),
            Self::Registry(error) => kind_of_registry(error),
            Self::Internal(_) => ErrorKind::Internal,
        }
    }

    /// The limit that it names, if it is about one.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        match self {
            Self::Limit(reached) => Some(reached.limit),
            Self::Infer(error) => Limit::of(error),
            _ => None,
        }
    }
}

/// An error's sentence and those of its causes. Only internal errors have causes, so only the log
/// sees them.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn kind_of_registry(error: &RegistryError) -> ErrorKind {
    use cellwright_registry::ErrorKind as Kind;
    match error.kind() {
        // It names rows of the database.
        _ if matches!(error, RegistryError::DamagedRow { .. }) => ErrorKind::Internal,
        Kind::NotFound => ErrorKind::NotFound,
        // Deleting something else would make room: what came is not too large.
        Kind::Conflict | Kind::Quota => ErrorKind::Conflict,
        Kind::Invalid => ErrorKind::BadInput,
        Kind::Full => ErrorKind::Full,
        Kind::Internal => ErrorKind::Internal,
    }
}

/// Whether it is the system that failed, not what a tenant sent.
fn is_of_system(error: &BundleError) -> bool {
    match error {
        BundleError::Folder { cause, .. }
        | BundleError::File { fault: FileFault::Unreadable(cause), .. }
        | BundleError::Weights { fault: WeightsFault::Unreadable(cause), .. } => cause.raw_os_error().is_some(),
        _ => false,
    }
}

/// Why a platform did not start.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// No host.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The registry cannot be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Why nothing answers under a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is no such model.
    #[error("there is no model `{model}`")]
    Unknown {
        /// As the client wrote it.
        model: String,
    },
    /// Another version serves.
    #[error("version {asked} of model `{model}` does not serve; version {serving} does")]
    OtherVersion {
        /// The model.
        model: String,
        /// As the client wrote it.
        asked: String,
        /// The version that serves.
        serving: u64,
    },
    /// No version of it serves.
    #[error("model `{model}` does not serve: {reason}")]
    NotServing {
        /// The model.
        model: String,
        /// Why.
        reason: String,
    },
}

impl LookupError {
    /// The kind of this error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } | Self::OtherVersion { .. } => ErrorKind::NotFound,
            Self::NotServing { .. } => ErrorKind::Unavailable,
        }
    }
}

/// Why a version was not taken, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// What came is no bundle's archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Its files are no bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// It does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its samples do not pass.
    #[error("{failed} of {of} samples failed; `{sample}`: {fault}")]
    Samples {
        /// How many failed.
        failed: usize,
        /// Of how many.
        of: usize,
        /// The first that did.
        sample: String,
        /// Why.
        fault: String,
        /// All of them.
        reports: Vec<SampleReport>,
    },
    /// Its samples could not all be run, for no fault of theirs.
    #[error("a sample could not be run now, so the bundle was not tested: upload it again later (`{sample}`: {fault})")]
    NotTried {
        /// The first that could not.
        sample: String,
        /// Why.
        fault: String,
        /// Of which kind that is.
        kind: ErrorKind,
    },
    /// Nothing was ever activated.
    #[error("no version of model `{model}` is active; activate one first")]
    NoActiveVersion {
        /// The model.
        model: ModelName,
    },
    /// Nobody waited for it any more.
    #[error("the client of this change did not wait for its end")]
    Abandoned,
    /// The model was taken out of service before it was done.
    #[error("model `{model}` was unloaded or deleted during this change")]
    Overtaken {
        /// The model.
        model: ModelName,
    },
    /// Others change it all the time.
    #[error("model `{model}` was deleted several times during this change: try again later")]
    Contended {
        /// The model.
        model: ModelName,
    },
    /// The registry refused it or failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl ChangeError {
    /// What tenants may read of it.
    pub(crate) fn told(&self) -> String {
        match self.kind() {
            ErrorKind::Internal => "the server failed; its log says more".to_owned(),
            _ => self.to_string(),
        }
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive(ArchiveError::TooLarge { .. } | ArchiveError::TooMany { .. }) => ErrorKind::TooLarge,
            Self::Archive(ArchiveError::Keep(error)) if is_full(error) => ErrorKind::Full,
            Self::Archive(ArchiveError::Keep(_)) => ErrorKind::Internal,
            Self::Archive(ArchiveError::Read(error)) if error.raw_os_error().is_some() => ErrorKind::Internal,
            Self::Bundle(error) | Self::Load(LoadError::Weights(error)) if is_of_system(error) => ErrorKind::Internal,
            // The compiler did not run: the sentence names its program.
            Self::Load(LoadError::Compile { source, .. }) if source.source().is_some_and(|cause| cause.is::<std::io::Error>()) => {
                ErrorKind::Internal
            }
            Self::Archive(_) | Self::Bundle(_) | Self::Samples { .. } => ErrorKind::BadInput,
            Self::Load(error) => error.kind(),
            Self::NotTried { kind, .. } => *kind,
            Self::Abandoned => ErrorKind::Cancelled,
            Self::NoActiveVersion { .. } | Self::Contended { .. } | Self::Overtaken { .. } => ErrorKind::Conflict,
            Self::Registry(error) => kind_of_registry(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_the_system_says_is_no_fault_of_a_bundle() {
        let broken = || io::Error::from_raw_os_error(5);
        let file = || "model.toml".to_owned();
        let cut_off = || WeightsFault::Unreadable(io::ErrorKind::UnexpectedEof.into());
        let errors: [(ChangeError, ErrorKind); 7] = [
            (ArchiveError::Read(broken()).into(), ErrorKind::Internal),
            (ArchiveError::Read(io::Error::other("odd")).into(), ErrorKind::BadInput),
            (BundleError::File { file: file(), fault: FileFault::Unreadable(broken()) }.into(), ErrorKind::Internal),
            (BundleError::Weights { file: file(), fault: cut_off() }.into(), ErrorKind::BadInput),
            (LoadError::from(BundleError::Weights { file: file(), fault: WeightsFault::Unreadable(broken()) }).into(), ErrorKind::Internal),
            (BundleError::File { file: file(), fault: FileFault::Missing }.into(), ErrorKind::BadInput),
            (RegistryError::DamagedRow { row: "row 3 of table `version`".to_owned() }.into(), ErrorKind::Internal),
        ];
        for (error, kind) in errors {
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.told() == error.to_string(), kind != ErrorKind::Internal, "{error}");
        }
    }
}
