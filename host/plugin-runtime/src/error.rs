//! What can go wrong, and whose fault it is.
//!
//! Every message is one sentence. Words of a plugin, of the compiler and of the system are quoted inside, bounded.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The runtime could not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The Wasm engine refused its settings, mostly for want of address space.
    #[error("the wasm engine did not start: {0}")]
    Engine(String),
    /// The folder for compiled plugins cannot be used.
    #[error("the plugin cache in {folder} cannot be used: {source}")]
    Cache {
        /// Which folder.
        folder: String,
        /// Why.
        source: std::io::Error,
    },
    /// The ticker thread did not start.
    #[error("the thread that ends long calls did not start: {0}")]
    Ticker(std::io::Error),
}

/// What is wrong with an upload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Not WebAssembly, or not valid.
    #[error("the plugin is not valid WebAssembly: {0}")]
    Invalid(String),
    /// It needs something that plugins do not get.
    #[error("the plugin imports {0}, which the host does not offer: build the plugin without that, or put a stub in its place")]
    ForeignImport(String),
    /// It is written against a version of the ABI that this host does not know.
    #[error("the plugin speaks cellwright:plugin@{spoken}, and this host serves {served}")]
    UnknownVersion {
        /// The plugin's.
        spoken: String,
        /// The host's.
        served: String,
    },
    /// It is WebAssembly, but not a plugin.
    #[error("the plugin does not have the interface of a plugin: {0}")]
    Interface(String),
    /// Valid, and refused by the compiler or by the limits on what an instance may have.
    #[error("the plugin cannot be compiled: {0}")]
    Uncompilable(String),
}

/// A plugin could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The upload is at fault.
    #[error(transparent)]
    Defect(#[from] Defect),
    /// The upload is larger than plugins may be.
    #[error("the plugin has {bytes} bytes, and at most {bytes_max} are accepted")]
    TooLarge {
        /// What it has.
        bytes: usize,
        /// What is accepted.
        bytes_max: usize,
    },
    /// Compilation was ended.
    #[error("compiling the plugin took longer than {} s", .0.as_secs_f64())]
    OutOfTime(Duration),
    /// Compilation was ended.
    #[error("compiling the plugin took more than {0} bytes of memory")]
    OutOfMemory(u64),
    /// The machine code is larger than the host takes.
    #[error("the compiled plugin has more than {0} bytes")]
    ArtifactTooLarge(usize),
    /// What the compiler made is no code of this host's.
    #[error("the server cannot load the code that it compiled ({0}), maybe because its program was replaced: restart the server")]
    OtherCode(String),
    /// Nobody waited for its turn any more.
    #[error(transparent)]
    Cancelled(#[from] cellwright_fair_turns::Cancelled),
    /// The compiler ended without an answer.
    #[error("the compiler ended without an answer: {0}")]
    Crashed(String),
    /// The compiler's process could not be started or talked to.
    #[error("the compiler {program} cannot be run: {source}")]
    Start {
        /// Which program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
}

/// An export of a plugin, or the start of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// Before any export: the instance's own start.
    Start,
    /// `describe`.
    Describe,
    /// `unfold`.
    Unfold,
    /// `resume`.
    Resume,
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "its start",
            Self::Describe => "describe",
            Self::Unfold => "unfold",
            Self::Resume => "resume",
        })
    }
}

/// Whom a plugin that refuses holds to be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client: the request makes no sense to this model.
    InvalidInput,
    /// Nobody: the model does not do this.
    Unsupported,
    /// The plugin itself.
    Internal,
}

/// A limit that a call ran into, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say it all")]
pub enum LimitReached {
    Time(Duration),
    RealTime(Duration),
    Memory(usize),
    TableElements(usize),
    Stack(usize),
    AnswerBytes(usize),
    Chains(usize),
    ListElements(usize),
    StateBytes(usize),
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(limit) => write!(f, "used more than {} ms of processor time", limit.as_millis()),
            Self::RealTime(limit) => write!(f, "was given too little processor time to end within {} ms", limit.as_millis()),
            Self::Memory(limit) => write!(f, "asked for more than {limit} bytes of memory"),
            Self::TableElements(limit) => write!(f, "asked for more than {limit} table elements"),
            Self::Stack(limit) => write!(f, "used more than {limit} bytes of stack"),
            Self::AnswerBytes(limit) => write!(f, "handed over more than {limit} bytes"),
            Self::Chains(limit) => write!(f, "answered with more than {limit} chains"),
            Self::ListElements(limit) => write!(f, "answered with more than {limit} list elements"),
            Self::StateBytes(limit) => write!(f, "left more than {limit} bytes of state"),
        }
    }
}

impl std::error::Error for LimitReached {}

/// Which call went wrong, and what the plugin said during it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The plugin's name.
    pub plugin: Arc<str>,
    /// Where in it.
    pub export: Export,
    /// What it noted, a panic's text among it.
    pub notes: Vec<String>,
    /// The functions in which it ended, innermost first.
    pub frames: Vec<String>,
}

impl Site {
    fn called(&self) -> String {
        let names: Vec<String> = self.frames.iter().map(|name| format!("\"{name}\"")).collect();
        match &names[..] {
            [] => String::new(),
            [only] => format!(" in function {only}"),
            [first, callers @ ..] => format!(" in function {first}, called by {}", callers.join(", ")),
        }
    }

    fn said(&self) -> String {
        const BYTES_MAX: usize = 2 << 10;
        let Some(last) = self.notes.last() else { return String::new() };
        let mut said = last.clone();
        for note in self.notes.iter().rev().skip(1) {
            if said.len() + note.len() > BYTES_MAX {
                said.insert_str(0, "…; ");
                break;
            }
            said = format!("{note}; {said}");
        }
        format!(" (it noted: {said})")
    }
}

/// A call into a plugin failed; it fails the one request that it was for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin refused, or the host in its place because the request's own contents are at fault.
    #[error("{sentence}")]
    Refused {
        /// Who is at fault.
        fault: Fault,
        /// The plugin's own words.
        sentence: String,
        /// Where.
        site: Box<Site>,
    },
    /// The plugin trapped, asked for what there is not, or answered with what cannot be read.
    #[error("plugin `{}` failed in {}: {cause}{}{}", site.plugin, site.export, site.called(), site.said())]
    Failed {
        /// Where.
        site: Box<Site>,
        /// Why.
        cause: String,
    },
    /// The plugin ran into a limit.
    #[error("plugin `{}` {limit} in {}{}{}", site.plugin, site.export, site.called(), site.said())]
    Limit {
        /// Where.
        site: Box<Site>,
        /// Which.
        limit: LimitReached,
    },
    /// No instance could be had: too many calls at once.
    #[error("plugin `{}` could not be called: all instances are in use", site.plugin)]
    Busy {
        /// Which call.
        site: Box<Site>,
    },
}

impl CallError {
    /// Which call went wrong.
    #[must_use]
    pub fn site(&self) -> &Site {
        match self {
            Self::Refused { site, .. } | Self::Failed { site, .. } | Self::Limit { site, .. } | Self::Busy { site } => site,
        }
    }
}

/// Why the host ended a call from within an import.
#[derive(Debug)]
pub(crate) enum Blame {
    /// The plugin asked for what there is not.
    Plugin(String),
    /// The request's contents are not what they claim to be.
    Request(String),
}

impl Blame {
    pub(crate) fn plugin(sentence: impl Into<String>) -> Self {
        Self::Plugin(sentence.into())
    }

    pub(crate) fn request(sentence: impl Into<String>) -> Self {
        Self::Request(sentence.into())
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Plugin(sentence) | Self::Request(sentence)) = self;
        f.write_str(sentence)
    }
}

impl std::error::Error for Blame {}
