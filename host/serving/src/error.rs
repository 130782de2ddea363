//! What can go wrong with a request or a model, and whose fault it is.

use cellwright_cell_graph::check::{GraphError, ModelError};
use cellwright_engine::{RequestFailure, SubmitError};
use cellwright_plugin_runtime::{CallError, CompileError, Fault, RuntimeError};
use cellwright_protocol::RowsFault;

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
    /// The plugin asked to be called back too often.
    #[error("plugin `{plugin}` was called back {limit} times for one request, which is the limit")]
    Resumes {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit: u32,
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
    /// A session's chunks come faster than they are computed.
    #[error("{limit} chunks of this session wait to be computed: send the next one later")]
    ChunksWait {
        /// How many may wait.
        limit: usize,
    },
    /// A part of a session came after its end.
    #[error("the session has ended")]
    SessionOver,
    /// The engine gave it up.
    #[error(transparent)]
    Engine(#[from] RequestFailure),
    /// The engine did not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl InferError {
    /// Whose fault it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Rows(_) | Self::SessionOver => ErrorKind::BadInput,
            Self::Plugin(CallError::Refused { fault: Fault::InvalidInput, .. }) => ErrorKind::BadInput,
            Self::Plugin(CallError::Refused { fault: Fault::Unsupported, .. }) => ErrorKind::Unsupported,
            Self::Plugin(CallError::Busy { .. }) => ErrorKind::Busy,
            Self::Plugin(_)
            | Self::Graph { .. }
            | Self::Emitted { .. }
            | Self::Unanswered { .. }
            | Self::Resumes { .. }
            | Self::Keeps { .. }
            | Self::Waits { .. } => ErrorKind::PluginFault,
            Self::Broken { .. } => ErrorKind::Unavailable,
            Self::Submit(SubmitError::Full) | Self::ChunksWait { .. } => ErrorKind::Busy,
            Self::Submit(SubmitError::Stopped) => ErrorKind::Unavailable,
            Self::Engine(failure) => match failure {
                RequestFailure::Cancelled => ErrorKind::Cancelled,
                RequestFailure::TooLarge { .. } | RequestFailure::Row(_) => ErrorKind::BadInput,
                RequestFailure::GrewTooLarge { .. } | RequestFailure::MayNotGrow | RequestFailure::BeyondEnd { .. } => {
                    ErrorKind::PluginFault
                }
                RequestFailure::Overloaded => ErrorKind::Busy,
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
    /// A device cannot hold or run it.
    #[error(transparent)]
    Engine(#[from] cellwright_engine::ModelError),
}
