//! What can go wrong with a request or a model, and whose fault it is.

use std::time::Duration;

use cellwright_bundle::BundleError;
use cellwright_cell_graph::check::{GraphError, ModelError};
use cellwright_engine::{PolicyNameError, RequestFailure, SubmitError};
use cellwright_plugin_runtime::{CallError, CompileError, Fault, RuntimeError};
use cellwright_protocol::{RowsFault, counted};

/// The kind of an error. Each transport turns it into its own status, and matches it once and exhaustively.
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
    /// Its timeout passed first.
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
    /// The calls of the plugin took too much time together.
    #[error("plugin `{plugin}` took more than {limit_ms} ms of processor time for one request, in all its calls together")]
    Time {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit_ms: u64,
    },
    /// The plugin asked to be called back too often.
    #[error("plugin `{plugin}` was called back {} for one request, which is the limit", counted(*.limit, "time"))]
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
    /// The answers of a tenant that are being made hold as much as they may together.
    #[error(
        "the graphs and answers of this tenant that are in flight would take more than {limit} bytes of memory, which is the limit: try again later"
    )]
    AnswersTooLarge {
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
        "plugin `{plugin}` keeps more than {limit} bytes of its session's input: it must release tensors that it has seen (keep-tensors-from)"
    )]
    Keeps {
        /// Which plugin.
        plugin: String,
        /// The limit.
        limit: usize,
    },
    /// The plugin waits for input that will never come.
    #[error("plugin `{plugin}` waits for more input after the end of the input")]
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
    /// Its timeout passed first.
    #[error("the timeout of {:.1?} passed before the answer was there: {}", .0.timeout, .0.spent())]
    Late(Lateness),
    /// Its timeout is shorter than the request takes at least, so nothing of it runs.
    #[error(
        "the request is too long for its timeout of {timeout:.1?}: it takes at least {alone:.1?} on idle devices; raise the timeout, or send a \
         shorter request"
    )]
    TooLong {
        /// The timeout.
        timeout: Duration,
        /// What it takes at least.
        alone: Duration,
    },
    /// It would be late because others run before it.
    #[error(
        "the devices are too busy to answer the request within its timeout of {timeout:.1?}: after {waited:.1?} it waits for others, and it takes \
         at least {alone:.1?} on idle devices; raise the timeout, or try again later"
    )]
    TooBusy {
        /// The timeout.
        timeout: Duration,
        /// How long it has waited.
        waited: Duration,
        /// What it takes at least.
        alone: Duration,
    },
    /// As many calls of the plugin as may wait for a thread.
    #[error("too many calls of plugin `{plugin}` wait for a thread: try again later")]
    PluginCalls {
        /// Which plugin.
        plugin: String,
    },
    /// The caller of a session refused a part of it.
    #[error("{sentence}")]
    Refused {
        /// Of which kind that is.
        kind: ErrorKind,
        /// Why.
        sentence: String,
    },
    /// The engine gave it up.
    #[error(transparent)]
    Engine(#[from] RequestFailure),
    /// The engine did not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// How a call spent its timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// The timeout.
    pub timeout: Duration,
    /// Time from its arrival until its first cell ran, or until it was given up.
    pub waited: Duration,
    /// Time since then; none: no cell of it ran.
    pub ran: Option<Duration>,
}

impl Lateness {
    fn spent(&self) -> String {
        match self.ran {
            Some(ran) => format!("the call waited {:.1?} to begin and ran for {ran:.1?}", self.waited),
            None => format!("the call waited for {:.1?} and did not begin to run", self.waited),
        }
    }
}

impl InferError {
    /// How a call ends that has waited so long and will not be done in time, if it takes so long alone.
    pub(crate) fn given_up(timeout: Duration, waited: Duration, alone: Duration) -> Self {
        if alone > timeout { Self::TooLong { timeout, alone } } else { Self::TooBusy { timeout, waited, alone } }
    }

    /// How a call ends whose client has left.
    #[must_use]
    pub const fn left() -> Self {
        Self::Engine(RequestFailure::Cancelled)
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Rows(_) | Self::SessionOver => ErrorKind::BadInput,
            Self::AnswersTooLarge { .. } | Self::PluginCalls { .. } => ErrorKind::Busy,
            Self::Refused { kind, .. } => *kind,
            Self::Late(_) | Self::TooLong { .. } | Self::TooBusy { .. } => ErrorKind::Deadline,
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
                RequestFailure::Late { .. } | RequestFailure::Overdue { .. } => ErrorKind::Deadline,
                RequestFailure::WorkerLost | RequestFailure::NoWorker | RequestFailure::Policy { .. } | RequestFailure::Stopped => {
                    ErrorKind::Unavailable
                }
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
    /// Its weights cannot be read, or are not those that the description needs.
    #[error(transparent)]
    Weights(#[from] BundleError),
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
    /// It is to answer `/v1/embeddings`, but lacks a tensor for that.
    #[error("model.toml has a table [embeddings], but the model has no {what} `{name}` of {wanted}")]
    Embeddings {
        /// An input or an output.
        what: &'static str,
        /// Its name, as the table has it.
        name: String,
        /// Datatype and shape.
        wanted: &'static str,
    },
    /// A device cannot hold or run it.
    #[error(transparent)]
    Engine(#[from] cellwright_engine::ModelError),
}

impl LoadError {
    /// The kind of this error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Compile { source: CompileError::Cancelled(_), .. } | Self::Engine(cellwright_engine::ModelError::Cancelled(_)) => {
                ErrorKind::Cancelled
            }
            Self::Compile { source: CompileError::OtherCode(_) | CompileError::Start { .. }, .. } => ErrorKind::Unavailable,
            Self::Compile { .. }
            | Self::Weights(_)
            | Self::Model(_)
            | Self::UnknownCell { .. }
            | Self::Policy { .. }
            | Self::Embeddings { .. } => ErrorKind::BadInput,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_call_is_told_where_its_time_went() {
        let ms = Duration::from_millis;
        let given_up = |timeout, waited, alone| InferError::given_up(ms(timeout), ms(waited), ms(alone));
        let late = |ran| InferError::Late(Lateness { timeout: ms(50), waited: ms(40), ran });
        for (error, sentence) in [
            (given_up(50, 1, 120), "the request is too long for its timeout of 50.0ms: it takes at least 120.0ms on idle devices;"),
            (late(None), "the timeout of 50.0ms passed before the answer was there: the call waited for 40.0ms and did not begin"),
            (
                given_up(50, 35, 20),
                "the devices are too busy to answer the request within its timeout of 50.0ms: after 35.0ms it waits for others, and it takes at \
                 least 20.0ms on idle devices;",
            ),
            (
                late(Some(ms(10))),
                "the timeout of 50.0ms passed before the answer was there: the call waited 40.0ms to begin and ran for 10.0ms",
            ),
        ] {
            assert_eq!(error.kind(), ErrorKind::Deadline);
            assert!(error.to_string().starts_with(sentence), "{error}");
        }
    }
}
