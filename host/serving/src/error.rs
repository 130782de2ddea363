//! What can go wrong with a request or a model, and whose fault it is.

use cellwright_bundle::{ArchiveError, BundleError};
use cellwright_cell_graph::check::{GraphError, ModelError};
use cellwright_engine::{PolicyNameError, RequestFailure, SubmitError};
use cellwright_plugin_runtime::{CallError, CompileError, Fault, RuntimeError};
use cellwright_protocol::RowsFault;
use cellwright_registry::{ModelName, RegistryError, is_full};

use crate::samples::SampleReport;

/// Of which kind an error is, for whoever turns errors into statuses: matched once, exhaustively, where that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The client sent something that cannot be taken.
    BadInput,
    /// The model or this host does not do this.
    Unsupported,
    /// What was named does not exist.
    NotFound,
    /// It has more bytes, or asks for more, than is allowed.
    TooLarge,
    /// What was named is in a state that forbids this.
    Conflict,
    /// The plugin trapped, went over a limit or returned a malformed graph.
    PluginFault,
    /// As many requests as allowed are in flight: try again later.
    Busy,
    /// The client went away.
    Cancelled,
    /// The time that the client gave it was over first.
    Deadline,
    /// The host cannot do it now.
    Unavailable,
    /// The host takes nothing new, because it is about to stop.
    Draining,
    /// The disk is full.
    Full,
    /// The host failed; its log says more.
    Internal,
}

impl From<cellwright_registry::ErrorKind> for ErrorKind {
    fn from(kind: cellwright_registry::ErrorKind) -> Self {
        use cellwright_registry::ErrorKind as Kind;
        match kind {
            Kind::NotFound => Self::NotFound,
            // It would do if something else were deleted first: what came is none too large.
            Kind::Conflict | Kind::Quota => Self::Conflict,
            Kind::Invalid => Self::BadInput,
            Kind::Full => Self::Full,
            Kind::Internal => Self::Internal,
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// The request is not what the model takes.
    #[error("{0}")]
    Invalid(String),
    /// Its rows cannot be taken apart or its responses put together.
    #[error(transparent)]
    Rows(#[from] RowsFault),
    /// The plugin refused it, trapped, or went over a limit.
    #[error(transparent)]
    Plugin(#[from] CallError),
    /// The plugin's graph is malformed.
    #[error("plugin `{plugin}` returned a graph that is refused: {source}")]
    Graph {
        /// Which plugin.
        plugin: String,
        /// Why.
        source: GraphError,
    },
    /// The plugin emitted something that is not an output of its model.
    #[error("plugin `{plugin}` emitted {what}")]
    Emitted {
        /// Which plugin.
        plugin: String,
        /// What.
        what: String,
    },
    /// The plugin's graph came to its end without an output that its model declares.
    #[error("plugin `{plugin}` let the request end without its output `{output}`")]
    Unanswered {
        /// Which plugin.
        plugin: String,
        /// Which output.
        output: String,
    },
    /// The calls of the plugin took too much time together.
    #[error("plugin `{plugin}` took more than {limit_ms} ms of processor time for one request, all of its calls together")]
    Time {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit_ms: u64,
    },
    /// The plugin asked to be called back too often.
    #[error("plugin `{plugin}` was called back {limit} times for one request, which is the limit")]
    Resumes {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit: u32,
    },
    /// The answer, or what the plugin watches, is too large.
    #[error(
        "plugin `{plugin}` returned a graph whose outputs would take more than {limit} bytes of the host's memory, which is the limit for one \
         answer: send a shorter request"
    )]
    AnswerTooLarge {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit: u64,
    },
    /// The answers that are being made hold as much as they may together.
    #[error(
        "the graphs and answers of this {whose} that are on their way would take more than {limit} bytes of memory, which is the limit: try again later"
    )]
    AnswersTooLarge {
        /// Whose limit it is.
        whose: Whose,
        /// Bytes that they may take together.
        limit: u64,
    },
    /// The client does not take what it asked to be sent piece by piece.
    #[error("more than {limit} bytes of this answer's parts wait for the client, which reads them too slowly")]
    PartsWait {
        /// How many may wait.
        limit: u64,
    },
    /// The plugin keeps more of a session's input than a request may hold.
    #[error(
        "plugin `{plugin}` keeps more than {limit} bytes of its session's input: it must let go of what it has seen (keep-tensors-from)"
    )]
    Keeps {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit: usize,
    },
    /// The plugin waits for input that will never come.
    #[error("plugin `{plugin}` waits for more input after it was told that none will come")]
    Waits {
        /// Which plugin.
        plugin: String,
    },
    /// The host itself failed.
    #[error("the host failed while it called plugin `{plugin}`: its log says more")]
    Broken {
        /// Which plugin.
        plugin: String,
    },
    /// A part of a session came after its end.
    #[error("the session has ended")]
    SessionOver,
    /// As many calls as allowed are in flight.
    #[error("{limit} calls of this {whose} are in flight, which is its limit: try again later")]
    TooMany {
        /// Whose limit it is.
        whose: Whose,
        /// The limit.
        limit: u32,
    },
    /// As many calls as allowed wait for a place among those in flight.
    #[error("{limit} calls of this {whose} wait to begin, which is its limit: try again later")]
    TooManyWait {
        /// Whose limit it is.
        whose: Whose,
        /// How many may wait.
        limit: u32,
    },
    /// The calls that wait hold as much as they may.
    #[error(
        "the calls of this tenant that wait to begin would hold more than {limit} bytes of inputs, which is the limit: try again later"
    )]
    TooMuchWaits {
        /// Bytes that they may hold together.
        limit: u64,
    },
    /// A tenant or a model has had its share of the devices.
    #[error("this {whose} has used its share of device time, {percent} %: try again later")]
    Share {
        /// Whose share it is.
        whose: Whose,
        /// The share.
        percent: u32,
    },
    /// The time that its client gave it was over first.
    #[error("the timeout passed before the answer was there")]
    Late,
    /// A timeout that cannot be reckoned with.
    #[error("the timeout is too long")]
    Timeout,
    /// The host is about to stop.
    #[error("the server is shutting down and takes no new requests")]
    Draining,
    /// The engine gave it up.
    #[error(transparent)]
    Engine(#[from] RequestFailure),
    /// The engine did not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl InferError {
    /// How a call ends whose client has left.
    #[must_use]
    pub const fn left() -> Self {
        Self::Engine(RequestFailure::Cancelled)
    }

    /// Whose fault it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Rows(_) | Self::SessionOver | Self::Timeout => ErrorKind::BadInput,
            Self::TooMany { .. }
            | Self::TooManyWait { .. }
            | Self::TooMuchWaits { .. }
            | Self::AnswersTooLarge { .. }
            | Self::Share { .. } => ErrorKind::Busy,
            Self::Late => ErrorKind::Deadline,
            Self::Draining => ErrorKind::Draining,
            Self::Plugin(CallError::Refused { fault: Fault::InvalidInput, .. }) => ErrorKind::BadInput,
            Self::Plugin(CallError::Refused { fault: Fault::Unsupported, .. }) => ErrorKind::Unsupported,
            Self::Plugin(CallError::Busy { .. }) => ErrorKind::Busy,
            Self::Plugin(_)
            | Self::Graph { .. }
            | Self::Emitted { .. }
            | Self::Unanswered { .. }
            | Self::Time { .. }
            | Self::Resumes { .. }
            | Self::Keeps { .. }
            | Self::Waits { .. } => ErrorKind::PluginFault,
            Self::AnswerTooLarge { .. } | Self::PartsWait { .. } => ErrorKind::TooLarge,
            Self::Broken { .. } => ErrorKind::Unavailable,
            Self::Submit(SubmitError::Full) => ErrorKind::Busy,
            Self::Submit(SubmitError::Stopped) => ErrorKind::Unavailable,
            Self::Engine(failure) => match failure {
                RequestFailure::Cancelled => ErrorKind::Cancelled,
                RequestFailure::TooLarge { .. } | RequestFailure::Row(_) => ErrorKind::BadInput,
                RequestFailure::GrewTooLarge { .. } | RequestFailure::MayNotGrow | RequestFailure::BeyondEnd { .. } => {
                    ErrorKind::PluginFault
                }
                RequestFailure::Overloaded => ErrorKind::Busy,
                RequestFailure::Late => ErrorKind::Deadline,
                RequestFailure::WorkerLost | RequestFailure::NoWorker | RequestFailure::Stopped => ErrorKind::Unavailable,
            },
        }
    }
}

/// Why a host did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No plugin runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// No engine.
    #[error(transparent)]
    Engine(#[from] cellwright_engine::StartError),
    /// No threads.
    #[error("a thread could not be started")]
    Thread(#[from] std::io::Error),
}

/// Why a bundle does not serve.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its plugin does not compile.
    #[error("plugin `{plugin}`: {source}")]
    Compile {
        /// Which plugin.
        plugin: String,
        /// Why.
        source: CompileError,
    },
    /// Its plugin does not describe a model.
    #[error(transparent)]
    Describe(#[from] CallError),
    /// The description is not sound, or its weights are not there.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A setting names a cell the model does not have.
    #[error("model.toml sets `cells.{name}`, but the model's cells are {known}")]
    UnknownCell {
        /// What it names.
        name: String,
        /// What there is.
        known: String,
    },
    /// It names a policy that there is not.
    #[error("model.toml: line {line}: policy: {source}")]
    Policy {
        /// Where in the file, counted from 1.
        line: usize,
        /// What is wrong with the name.
        source: PolicyNameError,
    },
    /// A device cannot hold or run it.
    #[error(transparent)]
    Engine(#[from] cellwright_engine::ModelError),
}

/// Whose a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A model's.
    Model,
    /// A tenant's.
    Tenant,
    /// The host's.
    Host,
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Tenant => "tenant",
            Self::Host => "host",
        })
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
    /// Whose fault it is.
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
    #[error("a sample could not be run now, which says nothing about the bundle: send it again later (`{sample}`: {fault})")]
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
    #[error("whoever sent this upload did not wait for its end")]
    Abandoned,
    /// Others change it all the time.
    #[error("model `{model}` was deleted again and again meanwhile: try again later")]
    Contended {
        /// The model.
        model: ModelName,
    },
    /// The registry refused it or failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl ChangeError {
    /// Whose fault it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive(ArchiveError::TooLarge { .. } | ArchiveError::TooMany { .. }) => ErrorKind::TooLarge,
            Self::Archive(ArchiveError::Keep(error)) if is_full(error) => ErrorKind::Full,
            Self::Archive(ArchiveError::Keep(_)) => ErrorKind::Internal,
            Self::Archive(_) | Self::Bundle(_) | Self::Samples { .. } => ErrorKind::BadInput,
            Self::Load(error) => error.kind(),
            Self::NotTried { kind, .. } => *kind,
            Self::Abandoned => ErrorKind::Cancelled,
            Self::NoActiveVersion { .. } | Self::Contended { .. } => ErrorKind::Conflict,
            Self::Registry(error) => error.kind().into(),
        }
    }
}

impl LoadError {
    /// Whose fault it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Compile { source: CompileError::OtherCode(_) | CompileError::Start { .. }, .. } => ErrorKind::Unavailable,
            Self::Compile { .. } | Self::Model(_) | Self::UnknownCell { .. } | Self::Policy { .. } => ErrorKind::BadInput,
            // A plugin refuses what its author, who sends it, says in model.toml.
            Self::Describe(CallError::Refused { fault: Fault::InvalidInput, .. }) => ErrorKind::BadInput,
            Self::Describe(CallError::Refused { fault: Fault::Unsupported, .. }) => ErrorKind::Unsupported,
            Self::Describe(CallError::Busy { .. }) => ErrorKind::Busy,
            Self::Describe(_) => ErrorKind::PluginFault,
            Self::Engine(cellwright_engine::ModelError::Panicked { .. }) => ErrorKind::Internal,
            Self::Engine(_) => ErrorKind::Unavailable,
        }
    }
}
