//! What a plugin's `unfold` and `resume` say: run-length coded chains of cells, outputs, and how the graph goes on.
//!
//! These types mirror the plugin ABI one to one and are unchecked; [`crate::unfolded`] is what is left once every reference resolves.

use serde::{Deserialize, Serialize};

use crate::tensor::Tensor;

/// One output of one stage of a chain, at every step. Chains are numbered over the whole request, across growths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct OutputRef {
    pub chain: u32,
    pub stage: u32,
    pub output: u32,
}

/// Step t means number `first + t · stride`; `from_end` counts from the last executed step backwards. Only spans and frames may begin before 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Affine {
    pub first: i64,
    pub stride: i32,
    pub from_end: bool,
}

impl Affine {
    /// 0, 1, 2, …
    pub const EVERY: Self = Self { first: 0, stride: 1, from_end: false };

    /// The number that step `step` means, counted from the front or (`from_end`) from the back; none below zero or past 2³².
    #[must_use]
    pub fn at(self, step: u32) -> Option<u32> {
        self.number(step).and_then(|number| u32::try_from(number).ok())
    }

    /// The same, below zero too.
    #[must_use]
    pub fn number(self, step: u32) -> Option<i64> {
        self.first.checked_add(i64::from(step) * i64::from(self.stride))
    }
}

/// A node by its chain and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Node {
    pub chain: u32,
    pub step: u32,
}

/// Whose rows a span is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub enum SpanOf {
    Chain(OutputRef),
    Tensor(u32),
}

/// A run of rows: step t takes rows `at(t)`, `at(t) + every`, `at(t) + 2 · every` and so on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Whose rows.
    pub of: SpanOf,
    /// Where it begins. Rows before 0 are those of the chain that this chain continues, or of earlier
    /// tensors of the same name.
    pub at: Affine,
    /// How far apart the rows are.
    pub every: u32,
    /// How many they are. Rows beyond either end are zeros. None: to the end, for a ragged port.
    pub count: Option<u32>,
}

/// What an input of a stage sees at each step (for an input that a feedback feeds: at step 0).
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A row of zeros.
    Zeros,
    /// The same row for every step; its name is ignored.
    Literal(Tensor),
    /// Step t takes element t.
    Ints(Vec<i64>),
    /// Step t takes the number itself.
    Index(Affine),
    /// Step t takes a row of a request's tensor.
    Rows {
        /// Which tensor, counted over the whole request.
        tensor: u32,
        /// Which row.
        at: Affine,
    },
    /// Step t takes as many consecutive elements of a request's tensor as the port has. Elements
    /// before 0 are those of earlier tensors of the same name. Beyond both ends they are zeros.
    Frames {
        /// Which tensor, counted over the whole request.
        tensor: u32,
        /// Which element is the first, in row-major order.
        at: Affine,
    },
    /// Step t takes a step of another chain.
    Steps {
        /// Whose.
        of: OutputRef,
        /// Which step.
        at: Affine,
    },
    /// The last executed step of another chain.
    Last(OutputRef),
    /// Step t takes that output of the node named by element t: an earlier chain's, or an earlier step of this one.
    Nodes {
        /// Stage within the named chain.
        stage: u32,
        /// Output of that stage.
        output: u32,
        /// One node a step.
        of: Vec<Node>,
    },
    /// An earlier stage of the same step.
    Sibling {
        /// Which stage.
        stage: u32,
        /// Which of its outputs.
        output: u32,
    },
    /// Rows one behind the other. The first extent of a dense port is their number, and it has at least one more.
    Many(Vec<Span>),
}

/// An output of one step becomes an input of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Feedback {
    pub stage: u32,
    pub output: u32,
    pub to_stage: u32,
    pub input: u32,
}

/// One cell of a step, with a source for each of its inputs.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Stage {
    pub cell: u32,
    pub inputs: Vec<Source>,
}

/// How many steps a chain has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// That many, or fewer if it stops.
    Fixed(u32),
    /// As many as that chain executes.
    Like(u32),
}

/// A chain's place in a series. Each chain of a series continues a chain of an earlier growth, and
/// its rows follow the rows of that chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// The first chain. The series holds that many of its newest rows.
    Begins(u32),
    /// It continues that kept chain, which runs the same cells. Earlier rows have numbers below 0.
    Continues(u32),
}

/// `length` steps, each of which runs its stages in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// The cells of one step.
    pub stages: Vec<Stage>,
    /// The number of steps.
    pub length: Extent,
    /// What a step hands to the next. Without any, and without `nodes` among themselves, steps are independent.
    pub feedback: Vec<Feedback>,
    /// A BOOL output `(stage, output)`: the step in which it is true is the last.
    pub stop: Option<(u32, u32)>,
    /// Its place in a series.
    pub series: Option<Series>,
}

/// What a response tensor is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Gathered {
    /// The last executed step.
    Last(OutputRef),
    /// Every executed step, stacked.
    All(OutputRef),
    /// Those outputs, each at its chain's last executed step, stacked.
    Listed(Vec<OutputRef>),
}

/// A tensor of the response.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseTensor {
    /// A name of the model's description.
    pub name: String,
    /// Its contents.
    pub from: Gathered,
    /// Whether each step is sent as it arrives, in order.
    pub stream: bool,
}

/// When a continuation is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// When all watched chains have ended.
    All,
    /// Every so many steps, without holding the chain up.
    Every(u32),
}

/// "Call me with these outputs."
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// What the plugin wants to see. Nothing: it waits for input (sessions).
    pub watch: Vec<OutputRef>,
    /// When.
    pub pace: Pace,
    /// What later growths may still refer to.
    pub keep: Vec<OutputRef>,
    /// The first request tensor that later growths may still refer to.
    pub keep_tensors_from: u32,
    /// The plugin's own, handed back unread.
    pub state: Vec<u8>,
}

/// A graph, or a further piece of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Growth {
    /// Numbered on from the chains the request already has.
    pub chains: Vec<Chain>,
    /// Tensors of the response that come from this growth.
    pub outputs: Vec<ResponseTensor>,
    /// Chains of this request that need not go on.
    pub cancel: Vec<u32>,
    /// How the graph goes on.
    pub next: Option<Continuation>,
}

/// A plugin's answer to an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reaction {
    /// Response tensors to send now.
    pub emit: Vec<Tensor>,
    /// How the graph goes on. None: a watch that has more to see goes on as it was; otherwise the request ends.
    pub growth: Option<Growth>,
}
