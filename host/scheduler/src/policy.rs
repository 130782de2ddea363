//! Policies: which nodes run together, where and when.
//!
//! A policy chooses, and [`Core`](crate::core::Core) does everything else. Admission, dependencies,
//! slots, completion and fairness are the same under every policy, so a comparison isolates the
//! choice. Each model has a policy object of its own. Models of different policies share workers.
//!
//! To add a policy:
//!
//! 1. Write `policy/NAME.rs`: a type that implements [`Policy`]. Its parameters, if it has any, are
//!    a type that implements [`Parameters`].
//! 2. Declare the module here, and add it to `policies!` below, with a line that says what it does.
//!    Commands, help and messages list the policies from there.
//!
//! How a policy is driven:
//!
//! - [`Policy::takes`] says what the policy takes. Under [`Takes::Nodes`], `Core` lists ready nodes
//!   in queues, and the policy picks a type ([`Pick::Oldest`]). Under the other two, `Core` offers
//!   each growth of a request ([`Policy::offered`]) and runs nothing of it until the policy has
//!   taken it for a worker ([`Pick::Take`]). The growth runs on that worker alone until the policy
//!   releases it ([`Pick::Release`]).
//! - For a worker that wants a task, the scheduler first finds the model whose turn it is, among
//!   those whose policies have work for the worker ([`Policy::has_work`], [`Policy::oldest`]). It
//!   then calls [`Policy::choose`] until a pick is no [`Pick::Take`].
//! - Each pick is checked and carried out before the next call, so the policy always sees its
//!   effect in the [`View`].
//! - A pick that breaks a rule changes nothing, and all requests of the model fail with
//!   [`Failure::Policy`]. Other models go on.
//! - A policy may keep state of its own: queues, batches in flight. It hears of each task that
//!   completes on a worker for which it has taken requests ([`Policy::done`]), and of each request
//!   that ends while it has it ([`Policy::ended`]).

mod adaptive;
mod cellular;
mod graph;
mod lazy;
mod length_aware;
mod merge;
mod shelf;
mod stages;
mod whole;

use std::fmt;
use std::str::FromStr;

use cellwright_cell_graph::UnfoldedGrowth;
use serde::{Deserialize, Serialize};

use crate::command::{Failure, Row};
use crate::core::{Chain, ModelType, Tally, Worker};
pub(crate) use crate::core::{Ended, Key, Member, View};
use crate::event::Submission;
use crate::id::{CellTypeId, RequestId, Time, WorkerId};
pub use graph::Graph;
pub use lazy::Lazy;
pub use length_aware::LengthAware;
pub use merge::Merge;
pub use stages::Stages;

policies! {
    /// Cellular batching, as in BatchMaker: ready nodes of all requests join.
    "cellular" => Cellular => cellular::Cellular,
    /// Whole graphs, batched by length in buckets of WIDTH steps, and padded.
    "graph" => Graph(parameters: Graph) => graph::policy(parameters),
    /// Whole graphs, one request after the other.
    "serial" => Serial => graph::one_by_one(),
    /// Sets of graphs merged level by level, as in TensorFlow Fold and DyNet.
    "merge" => Merge(parameters: Merge) => merge::MergedSets::new(parameters),
    /// Cellular batching that knows deadlines and task costs.
    "adaptive" => Adaptive => adaptive::Adaptive::default(),
    /// LazyBatching: node by node. Newcomers catch up with a running batch while slack allows.
    "lazy" => Lazy(parameters: Lazy) => lazy::LazyBatching::new(parameters),
    /// TurboTransformers: padded batches of like lengths that together take the least time.
    "length-aware" => LengthAware(parameters: LengthAware) => length_aware::policy(parameters),
    /// DVABatch: batches of whole graphs that requests join, and that are split, between stages.
    "stages" => Stages(parameters: Stages) => stages::StagedBatches::new(parameters),
}

#[expect(clippy::derivable_impls, reason = "the variants are written by a macro")]
impl Default for PolicyKind {
    fn default() -> Self {
        Self::Adaptive
    }
}

/// Chooses what runs, for one model.
pub(crate) trait Policy: fmt::Debug + Send {
    /// What it takes. Always the same.
    fn takes(&self) -> Takes {
        Takes::Nodes
    }

    /// A request was submitted, and has no place yet. When to review it, if at all.
    fn submitted(&mut self, _view: View<'_>, _submission: &Submission) -> Option<Time> {
        None
    }

    /// A request was told to grow.
    fn grown(&mut self, _view: View<'_>, _growth: &UnfoldedGrowth) {}

    /// A growth of a request is placed and may be taken. Not called under [`Takes::Nodes`].
    fn offered(&mut self, _view: View<'_>, _growth: Member) {}

    /// Whether a worker could get a task. Asked more often than `oldest`.
    fn has_work(&self, view: View<'_>, worker: WorkerId) -> bool {
        self.oldest(view, worker).is_some()
    }

    /// Since when a worker could get a task: decides between models that are owed equal time.
    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key>;

    /// What a worker is to run. Called again after [`Pick::Take`]. After any other pick the model
    /// of the next one is chosen anew.
    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick>;

    /// When there will be work that there is not now, if no event comes before. Called at the end
    /// of a turn; under [`Takes::Nodes`] perhaps not.
    fn wake_at(&self, _view: View<'_>) -> Option<Time> {
        None
    }

    /// A task is complete on a worker for which requests were taken. Called again until there is no
    /// pick. The picks may not launch.
    fn done(&mut self, _view: View<'_>, _worker: WorkerId) -> Option<Pick> {
        None
    }

    /// A request has ended that has a deadline, or that was offered or taken and had not been
    /// released.
    fn ended(&mut self, _view: View<'_>, _ended: &Ended) {}

    /// The time has come that was named for a request that has not ended. When to review it again,
    /// if at all.
    ///
    /// # Errors
    /// If the request is to be given up, and why.
    fn review(&mut self, _view: View<'_>, _request: RequestId) -> Result<Option<Time>, Failure> {
        Ok(None)
    }
}

/// What a policy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Ready nodes, from their types' queues.
    Nodes,
    /// Requests. The nodes of those that are taken become ready as their inputs do.
    Requests,
    /// Requests. Every stage runs step by step, in the order in which stages stand in the graph,
    /// and may run beyond its end, as padding.
    RequestsInOrder,
}

/// What a policy wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Run the oldest ready nodes of a type, in tasks as large as the type allows, up to
    /// `max_tasks_to_submit`. Ready nodes of other models join.
    Oldest {
        cell_type: CellTypeId,
        /// Only nodes that no other worker may run.
        own: bool,
    },
    /// Run these nodes as one task. All are ready, fit in a task ([`View::fitting`]), and are of
    /// requests that were taken for the worker.
    Run(CellTypeId, Vec<Row>),
    /// Take requests that are offered in the worker's domain.
    Take(Vec<RequestId>),
    /// Release taken requests of which nothing is left. They end, or grow on.
    Release(Vec<RequestId>),
    /// Give requests up.
    GiveUp(Vec<(RequestId, Failure)>),
}

/// Which rule a pick broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it all")]
pub enum Fault {
    #[error("it picked nothing")]
    Empty,
    #[error("it picked a type that the model does not have")]
    Type,
    #[error("it picked more rows, or rows with longer spans, than a batch of the type may have")]
    TooMany,
    #[error("it picked a node that does not exist, or that is of another model or type, or that the worker may not run")]
    Foreign,
    #[error("it picked a node that is not ready")]
    NotReady,
    #[error("it picked a node twice")]
    Twice,
    #[error("it picked a request that is not offered, or not taken for this worker, or not complete")]
    Request,
    #[error("it picked a task for a worker that did not ask")]
    NotAsked,
}

/// Parameters of a policy, as they are written after its name: `NAME:FIRST:SECOND`. The last ones
/// may be left out.
trait Parameters: Copy + fmt::Display {
    /// How messages name them.
    const NAMES: &'static [&'static str];

    /// Reads those that are given.
    fn read(given: &[&str]) -> Result<Self, PolicyNameError>;
}

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it all")]
pub enum PolicyNameError {
    #[error("`{0}` is not a policy; the policies are {list}", list = PolicyKind::list("and"))]
    Unknown(String),
    #[error("`{said}` is not {wanted}")]
    Parameter { said: String, wanted: &'static str },
}

/// Reads a parameter that is a whole number, or takes the default if it is not given.
fn number(given: Option<&&str>, default: u64, range: std::ops::RangeInclusive<u64>, wanted: &'static str) -> Result<u64, PolicyNameError> {
    let Some(said) = given else { return Ok(default) };
    let number = said.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| PolicyNameError::Parameter { said: (*said).to_owned(), wanted })
}

const NANOSECONDS_PER_MS: u64 = 1_000_000;

impl PolicyKind {
    /// What it takes.
    #[must_use]
    pub fn takes(self) -> Takes {
        self.start().takes()
    }

    /// Whether a batch keeps its requests from task to task, so that rows need not be gathered
    /// again.
    #[must_use]
    pub const fn keeps_batches(self) -> bool {
        matches!(self, Self::Graph(_) | Self::Serial | Self::LengthAware(_) | Self::Stages(_))
    }

    /// The forms of all policies, for messages: the default first, `word` before the last.
    #[must_use]
    pub fn list(word: &str) -> String {
        let of = |(name, parameters, _): &(&str, &[&str], _)| {
            let form = |count: usize| {
                format!("`{name}{}`", parameters[..count].iter().map(|parameter| format!(":{parameter}")).collect::<String>())
            };
            (0..=parameters.len()).map(form).collect::<Vec<_>>()
        };
        let is_default = |(name, ..): &&(&str, _, _)| *name == Self::default().name();
        let (first, others): (Vec<_>, Vec<_>) = Self::FORMS.iter().partition(is_default);
        let forms: Vec<String> = first.into_iter().chain(others).flat_map(of).collect();
        let (last, others) = forms.split_last().expect("there are policies");
        format!("{} {word} {last}", others.join(", "))
    }
}

/// Makes [`PolicyKind`] from a line per policy: its name, its variant and its object. Also how it
/// is read and written.
macro_rules! policies {
    ($(#[doc = $doc:literal] $name:literal => $variant:ident $(($parameters:ident: $of:ty))? => $object:expr,)*) => {
        /// A batching policy and its parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum PolicyKind {
            $(#[doc = $doc] $variant $(($of))?,)*
        }

        impl PolicyKind {
            /// The name of each policy, the names of its parameters, and what it does.
            pub const FORMS: &'static [(&'static str, &'static [&'static str], &'static str)] =
                &[$(($name, policies!(@names $($of)?), $doc.trim_ascii())),*];

            /// Its name, without parameters.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $name,)*
                }
            }

            /// A policy that knows nothing yet, for a model.
            pub(crate) fn start(self) -> Box<dyn Policy> {
                match self {
                    $(Self::$variant $(($parameters))? => Box::new($object),)*
                }
            }
        }

        impl FromStr for PolicyKind {
            type Err = PolicyNameError;

            fn from_str(text: &str) -> Result<Self, PolicyNameError> {
                let mut parts = text.split(':');
                let (name, given): (_, Vec<&str>) = (parts.next().unwrap_or_default(), parts.collect());
                match name {
                    $($name if given.len() <= policies!(@names $($of)?).len() => Ok(Self::$variant $((<$of>::read(&given)?))?),)*
                    _ => Err(PolicyNameError::Unknown(text.to_owned())),
                }
            }
        }

        impl fmt::Display for PolicyKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())?;
                match self {
                    $(Self::$variant $(($parameters))? => policies!(@write f $($parameters)?),)*
                }
            }
        }
    };
    (@names) => { &[] as &[&str] };
    (@names $of:ty) => { <$of>::NAMES };
    (@write $f:ident) => { Ok(()) };
    (@write $f:ident $parameters:ident) => { write!($f, ":{}", $parameters) };
}
use policies;

#[cfg(test)]
mod tests;
