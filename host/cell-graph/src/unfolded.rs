//! A growth that has been checked against its model and its request: every reference resolves, every type and shape fits, every number is
//! bounded. The scheduler reads its dependencies, backends its sources; neither checks again.
//!
//! Within a growth dependencies are known step by step. A reference to a chain of an earlier growth waits for that chain's end.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::graph::{Affine, Node, Pace};
use crate::tensor::Tensor;

/// Which nodes of a stage form subgraphs: connected, of one cell type, convex; scheduled and pinned as a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grouping {
    /// All steps are one subgraph.
    Whole,
    /// Every step is one.
    Each,
    /// Element t is the number of step t's subgraph, numbered from 0 in order of first appearance.
    Components(Vec<u32>),
}

/// How many nodes of a stage must be held, and where step t's node lies in the stage's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retention {
    /// Nobody reads it in place; it is at most delivered.
    None,
    /// The next step, a later stage of the same step or whoever waits for the end reads it: two places, by parity of the step.
    Double,
    /// Any step may be read: a place for each.
    All,
    /// Other growths may read it too. The newest rows of the series lie in a ring.
    Ring {
        /// How many rows are held.
        places: u32,
        /// The place of step 0.
        first: u32,
        /// Rows before step 0 that are held.
        before: u32,
    },
}

impl Retention {
    /// Places needed for a chain of at most `bound` steps.
    #[must_use]
    pub const fn places(self, bound: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::Double => 2,
            Self::All => bound,
            Self::Ring { places, .. } => places,
        }
    }

    /// Place of a step's node.
    #[must_use]
    pub const fn place(self, step: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::Double => step & 1,
            Self::All => step,
            Self::Ring { places, first, .. } => ((first as u64 + step as u64) % places as u64) as u32,
        }
    }

    /// Rows before step 0 that are held, and may be read with numbers below 0.
    #[must_use]
    pub const fn before(self) -> u32 {
        if let Self::Ring { before, .. } = self { before } else { 0 }
    }

    /// The place of such a row, or of a step.
    #[must_use]
    pub fn place_of(self, number: i64) -> u32 {
        match (self, u32::try_from(number)) {
            (_, Ok(step)) => self.place(step),
            (Self::Ring { places, first, .. }, Err(_)) => (i64::from(first) + number).rem_euclid(i64::from(places)) as u32,
            (_, Err(_)) => 0,
        }
    }

    /// The places that no step of the request has written before these steps do.
    #[must_use]
    pub fn first_written(self, bound: u32, steps: Range<u32>) -> Range<u32> {
        let from = match self {
            // Each place of a ring is written once before one is written again.
            Self::Ring { places, first, before } if first == before && before < places => first,
            Self::Ring { .. } => return 0..0,
            _ => 0,
        };
        let [start, end] = [steps.start, steps.end].map(|step| from.saturating_add(step).min(self.places(bound)));
        start..end
    }
}

/// Which steps of an output leave the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// None.
    None,
    /// The last executed step alone.
    Last,
    /// Every executed step.
    All,
}

/// Steps in a block: whoever reads many steps of a stage, but few of all there are, is found by the blocks that it reads.
pub const BLOCK_STEPS: u32 = 64;

/// Where whoever reads a stage along a line is listed, so that a step finds its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Nowhere: it reads so many of the steps that it is asked at each.
    Nowhere,
    /// Under each step that it reads.
    Steps,
    /// Under each block of steps that it reads, so many at most.
    Blocks(u32),
}

impl Affine {
    /// Where a reader of `steps` steps along that line is listed with a stage of `bound` steps.
    #[must_use]
    pub fn listing(self, steps: u32, bound: u32) -> Listing {
        const MUCH: u64 = 4;
        const FEW: u32 = 16;
        if self.stride == 0 {
            return Listing::Steps;
        }
        if u64::from(steps) * MUCH >= u64::from(bound) {
            return Listing::Nowhere;
        }
        if steps <= FEW {
            return Listing::Steps;
        }
        let length = u64::from(self.stride.unsigned_abs()) * u64::from(steps - 1);
        Listing::Blocks(u32::try_from(length / u64::from(BLOCK_STEPS) + 2).map_or(steps, |blocks| blocks.min(steps)))
    }
}

/// What a node of a stage waits for. Chains are numbered over the whole request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dependency {
    /// Step t − 1 of that stage of this chain (step 0 does not wait).
    Previous {
        /// Which stage.
        stage: u32,
    },
    /// The same step of an earlier stage of this chain.
    Sibling {
        /// Which stage.
        stage: u32,
    },
    /// A step of another chain of this growth. Never `from_end` of a chain that may stop early: that is `End`.
    Step {
        /// Which chain.
        chain: u32,
        /// Which stage.
        stage: u32,
        /// Which step; `from_end` counts from the chain's (fixed) end.
        at: Affine,
    },
    /// Every step of a stage up to step `at`, or up to the last one if the chain is shorter. Below 0
    /// it waits for nothing. The chain is of this growth. If it is another one that may stop, the
    /// waiting chain has its length, and `at` is not beyond the waiting step. If it is the waiting
    /// chain itself, `at` is an earlier step, or the same step of an earlier stage.
    Through {
        /// Which chain.
        chain: u32,
        /// Which stage.
        stage: u32,
        /// Which step is the last.
        at: Affine,
    },
    /// The real end of another chain: all its executed steps are complete (or queued ahead, if its length is fixed).
    End {
        /// Which chain.
        chain: u32,
    },
    /// The node named for each step by this stage's input `input` ([`Source::Nodes`]), which has [`UnfoldedStage::successors`] the other way.
    /// Nodes of earlier growths among them are waited for by `End`. An input with a feedback names one node, for step 0.
    Nodes {
        /// Which input.
        input: u32,
    },
}

/// Rows that an input of a fixed number of rows may see at each step, at most. Finding each takes time of its own.
pub const WINDOW_ROWS_MAX: u32 = 4096;

/// Rows that a ragged input may see at each step, at most.
pub const SPAN_ROWS_MAX: u32 = 1 << 16;

/// Elements that a node may hold of its spans and of what is computed for each of their rows, at most.
pub const SPAN_ELEMENTS_MAX: u64 = 1 << 24;

/// Rows of one origin. Step t takes `count` rows: `at(t)`, `at(t) + every` and so on. Rows before 0
/// are those of the chain that this chain continues, or of earlier tensors of the same name. Rows
/// beyond either end are zeros for an input of a fixed number of rows, and none for a ragged one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Run {
    pub of: RunOf,
    pub at: Affine,
    pub every: u32,
    pub count: u32,
}

impl Run {
    /// The number of its rows at a step, if the origin has the rows `least` to `end` − 1.
    #[must_use]
    pub fn rows(&self, step: u32, (least, end): (i64, i64)) -> u64 {
        let Some(first) = self.at.number(step) else { return 0 };
        let (first, every) = (if self.at.from_end { end - 1 - first } else { first }, i64::from(self.every.max(1)));
        let missing = ((least - first).max(0) + every - 1) / every;
        let there = (end - (first + missing * every)).max(0);
        ((there + every - 1) / every).min(i64::from(self.count) - missing).max(0).unsigned_abs()
    }
}

/// Whose rows a [`Run`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in crate::graph::SpanOf")]
pub enum RunOf {
    Tensor(u32),
    Chain { chain: u32, stage: u32, output: u32 },
}

/// The checked form of [`crate::graph::Source`]. Rows are in the port's datatype.
///
/// Lines are normalised: `from_end` is left only where a chain's end is not known before it runs, and a line that is read at step 0 alone
/// (an input with a feedback, a chain of one step) has stride 0, so that any step may ask for it. `Ints` and `Nodes` of an input with a
/// feedback have one element. The runs of a `Window` have as many rows together as the port's first extent says. A `Span` is of a ragged input: inputs
/// that must have as many rows as one another have them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in crate::graph::Source")]
pub enum Source {
    Zeros,
    Literal(Box<[u8]>),
    Ints(Vec<i64>),
    Index(Affine),
    Rows { tensor: u32, at: Affine },
    Frames { tensor: u32, at: Affine },
    Steps { chain: u32, stage: u32, output: u32, at: Affine },
    Last { chain: u32, stage: u32, output: u32 },
    Nodes { stage: u32, output: u32, of: Vec<Node> },
    Sibling { stage: u32, output: u32 },
    Window(Box<[Run]>),
    Span(Box<[Run]>),
}

impl Source {
    /// The runs of rows that it is made of, if it sees several.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        if let Self::Window(runs) | Self::Span(runs) = self { runs } else { &[] }
    }
}

/// An input of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnfoldedInput {
    /// What it sees at every step, or, if it is fed back, at step 0.
    pub source: Source,
    /// `(stage, output)` of the previous step, from step 1 on.
    pub feedback: Option<(u32, u32)>,
}

/// Who waits for each step's node by name: `targets[offsets[t]..offsets[t + 1]]` are `(chain, stage, step)` of the same growth, each once,
/// ascending. Chains are numbered over the whole request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Successors {
    pub offsets: Vec<u32>,
    pub targets: Vec<(u32, u32, u32)>,
}

/// One stage of a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnfoldedStage {
    /// The cell, by position in the model.
    pub cell: u32,
    /// One for each of the cell's inputs.
    pub inputs: Vec<UnfoldedInput>,
    /// What its nodes wait for, each once; every chain of an earlier growth that an input names is among it, as `End`.
    pub depends: Vec<Dependency>,
    /// For each step, how many distinct nodes of this growth it waits for by name (`Dependency::Nodes`); empty if it has none.
    pub named_producers: Vec<u32>,
    /// The inverse of every `Dependency::Nodes` that names this stage; empty if none does.
    pub successors: Successors,
    /// What is held of it.
    pub retention: Retention,
    /// Its subgraphs.
    pub grouping: Grouping,
    /// One for each of the cell's outputs.
    pub delivery: Vec<Delivery>,
}

/// How many steps a chain has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// At most so many; exactly so many if it neither stops nor follows a chain that may.
    pub bound: u32,
    /// It executes as many as that chain, which may stop early.
    pub like: Option<u32>,
}

/// One chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnfoldedChain {
    /// The cells of a step.
    pub stages: Vec<UnfoldedStage>,
    /// Its number of steps.
    pub length: Length,
    /// Whether a step waits for the step before it (feedback or stop).
    pub sequential: bool,
    /// `(stage, output)`: the step in which this BOOL is true is the last.
    pub stop: Option<(u32, u32)>,
    /// The chain of an earlier growth that it continues. Both use the same places of stages with
    /// [`Retention::Ring`].
    pub continues: Option<u32>,
}

impl UnfoldedChain {
    /// Whether fewer steps than the bound may be executed.
    #[must_use]
    pub const fn may_stop(&self) -> bool {
        self.stop.is_some() || self.length.like.is_some()
    }
}

/// A response tensor's contents: outputs as `(chain, stage, output)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in crate::graph::Gathered")]
pub enum ResponseFrom {
    Last((u32, u32, u32)),
    All((u32, u32, u32)),
    Listed(Vec<(u32, u32, u32)>),
}

/// A tensor of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfoldedResponse {
    /// The model's output tensor, by position in its description.
    pub output: u32,
    /// Its contents.
    pub from: ResponseFrom,
    /// Whether each step is sent as it arrives.
    pub stream: bool,
}

/// How the graph goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// Watched outputs, as `(chain, stage, output)`, of this growth or kept from earlier ones.
    pub outputs: Vec<(u32, u32, u32)>,
    /// When the plugin is called.
    pub pace: Pace,
    /// Chains whose values later growths may refer to, ascending.
    pub keep: Vec<u32>,
    /// First request tensor that later growths may refer to.
    pub keep_tensors_from: u32,
    /// The plugin's own.
    pub state: Vec<u8>,
}

/// A checked growth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnfoldedGrowth {
    /// Number of its first chain in the request.
    pub first_chain: u32,
    /// Its chains.
    pub chains: Vec<UnfoldedChain>,
    /// Response tensors that it fills.
    pub outputs: Vec<UnfoldedResponse>,
    /// Chains of this request that need not go on.
    pub cancel: Vec<u32>,
    /// How the graph goes on; none: it ends with these chains.
    pub next: Option<Watch>,
    /// Expanded nodes (at most).
    pub nodes: u64,
    /// The slots of its stages, if some share them. Only in a request that does not grow.
    pub shared: Option<Box<SharedSlots>>,
}

/// The slots of a growth in which some stages share slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSlots {
    /// The first slot of each stage, chain by chain.
    pub first: Box<[u32]>,
    /// Slots of all stages together.
    pub slots: u32,
    /// The same if no stage shared slots.
    pub unshared: u32,
}

impl UnfoldedGrowth {
    /// How many bytes it takes, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let chains = size_of_val(&self.chains[..]) + self.chains.iter().map(UnfoldedChain::bytes_behind).sum::<usize>();
        let listed = |response: &UnfoldedResponse| if let ResponseFrom::Listed(of) = &response.from { size_of_val(&of[..]) } else { 0 };
        let outputs = size_of_val(&self.outputs[..]) + self.outputs.iter().map(listed).sum::<usize>();
        let watch = |watch: &Watch| size_of_val(&watch.outputs[..]) + size_of_val(&watch.keep[..]) + watch.state.len();
        let shared = self.shared.as_ref().map_or(0, |shared| size_of::<SharedSlots>() + size_of_val(&shared.first[..]));
        (chains + outputs + size_of_val(&self.cancel[..]) + self.next.as_ref().map_or(0, watch) + shared) as u64
    }
}

impl UnfoldedChain {
    fn bytes_behind(&self) -> usize {
        size_of_val(&self.stages[..]) + self.stages.iter().map(UnfoldedStage::bytes_behind).sum::<usize>()
    }
}

impl UnfoldedStage {
    fn bytes_behind(&self) -> usize {
        let source = |input: &UnfoldedInput| match &input.source {
            Source::Literal(bytes) => bytes.len(),
            Source::Ints(ints) => size_of_val(&ints[..]),
            Source::Nodes { of, .. } => size_of_val(&of[..]),
            Source::Window(runs) | Source::Span(runs) => size_of_val(&runs[..]),
            _ => 0,
        };
        let grouping = if let Grouping::Components(of) = &self.grouping { size_of_val(&of[..]) } else { 0 };
        let inputs = size_of_val(&self.inputs[..]) + self.inputs.iter().map(source).sum::<usize>();
        let waits = size_of_val(&self.depends[..]) + size_of_val(&self.named_producers[..]);
        let successors = size_of_val(&self.successors.offsets[..]) + size_of_val(&self.successors.targets[..]);
        inputs + waits + successors + grouping + size_of_val(&self.delivery[..])
    }
}

/// A literal's bytes, for tests and tools that build sources by hand.
impl From<&Tensor> for Source {
    fn from(tensor: &Tensor) -> Self {
        Self::Literal(tensor.data.clone().into_boxed_slice())
    }
}
