//! What can be wrong with a growth, one sentence each, and where it is.

use std::fmt;

use crate::datatype::Datatype;
use crate::resolve::ShapeText;

/// What is wrong with a growth, and where. Chains are numbered over the whole request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct GraphError {
    /// Where.
    pub place: GraphPlace,
    /// What.
    #[source]
    pub fault: GraphFault,
}

impl GraphError {
    pub(super) const fn new(place: GraphPlace, fault: GraphFault) -> Self {
        Self { place, fault }
    }
}

/// Where in a growth.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each names what it counts")]
pub enum GraphPlace {
    Growth,
    Chain { chain: u32 },
    Stage { chain: u32, stage: u32 },
    Input { chain: u32, stage: u32, input: usize, port: String },
    Feedback { chain: u32, position: usize },
    Stop { chain: u32 },
    Output { name: String },
    Watch { position: usize },
    Keep { position: usize },
    Next,
}

impl fmt::Display for GraphPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Growth => f.write_str("the graph"),
            Self::Chain { chain } => write!(f, "chain {chain}"),
            Self::Stage { chain, stage } => write!(f, "chain {chain}, stage {stage}"),
            Self::Input { chain, stage, input, port } => write!(f, "chain {chain}, stage {stage}, input {input} (`{port}`)"),
            Self::Feedback { chain, position } => write!(f, "chain {chain}, feedback {position}"),
            Self::Stop { chain } => write!(f, "chain {chain}, stop"),
            Self::Output { name } => write!(f, "output `{name}`"),
            Self::Watch { position } => write!(f, "watched output {position}"),
            Self::Keep { position } => write!(f, "kept output {position}"),
            Self::Next => f.write_str("continuation"),
        }
    }
}

/// What can be wrong with a growth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum GraphFault {
    #[error("it has {count} {what}, more than the limit of {limit}")]
    Limit { what: &'static str, count: u64, limit: u64 },
    #[error("up to here there are {count} {what}, more than the limit of {limit}")]
    Sum { what: &'static str, count: u64, limit: u64 },
    #[error("it has no stages")]
    NoStages,
    #[error("it has no steps; a chain has at least 1")]
    NoSteps,
    #[error("there is no cell {cell}; the model has {cells}")]
    NoCell { cell: u32, cells: usize },
    #[error("it has {given} sources, but its cell takes {wanted} inputs")]
    SourceCount { given: usize, wanted: usize },
    #[error("chain {chain} does not stand before it; a reference goes to an earlier chain, or by `nodes` to an earlier step")]
    NotEarlier { chain: u32 },
    #[error("chain {chain} does not exist")]
    NoChain { chain: u32 },
    #[error("chain {chain} is of an earlier growth, and the continuation did not keep it")]
    ChainNotKept { chain: u32 },
    #[error("stage {stage}, output {output} of chain {chain} is of an earlier growth, and the continuation did not keep it")]
    OutputNotKept { chain: u32, stage: u32, output: u32 },
    #[error("chain {chain} is cancelled by the same growth")]
    Cancelled { chain: u32 },
    #[error("chain {chain} is cancelled, but the response reads it, and would depend on its progress: emit the wanted part instead")]
    CancelsAnswer { chain: u32 },
    #[error(
        "chain {chain} is cancelled, but chain {reader} reads it or ends where it does, and would depend on its progress: cancel both, or \
         neither"
    )]
    CancelsRead { chain: u32, reader: u32 },
    #[error("chain {chain} is cancelled too late: in a request this long, only chains from {from} on can be cancelled")]
    CancelsForgotten { chain: u32, from: u32 },
    #[error("chain {chain} has no stage {stage}")]
    NoStage { chain: u32, stage: u32 },
    #[error("stage {stage} of chain {chain} has no output {output}")]
    NoOutput { chain: u32, stage: u32, output: u32 },
    #[error("stage {stage} has no input {input}")]
    NoInput { stage: u32, input: u32 },
    #[error("stage {stage} is not an earlier stage of its step")]
    NotEarlierStage { stage: u32 },
    #[error("it takes {wanted}, but is given {given}; nothing is converted silently")]
    Datatype { wanted: Datatype, given: Datatype },
    #[error("it takes rows of shape {wanted}, but is given {given}")]
    Shape { wanted: ShapeText, given: ShapeText },
    #[error("step {step} would take {what} {number}, but there are {count}")]
    OutOfRange { what: &'static str, step: u32, number: i64, count: u64 },
    #[error("step {step} would begin with {what} 2^53 or one further from 0")]
    Far { what: &'static str, step: u32 },
    #[error("rows of spans go into ports of rank 2 or more, whose first extent is their number, not {shape}")]
    NoWindow { shape: ShapeText },
    #[error("a span has a count and a distance of at least 1")]
    EmptySpan,
    #[error("a span without a count goes into a ragged input")]
    CountMissing,
    #[error("a ragged input takes spans (`many`)")]
    WantsSpans,
    #[error("its spans must have as many rows as those of input {input}, at every step")]
    SpansDiffer { input: u32 },
    #[error("a span of its own chain has a count: its end is not there yet")]
    OwnSpanWhole,
    #[error("its spans have {given} rows or more, but it takes {wanted}")]
    SpanCount { given: u64, wanted: u64 },
    #[error("step {step} would take the number {number}, which its datatype does not hold")]
    NumberRange { step: u32, number: i64 },
    #[error("{given} elements are given for {wanted} steps")]
    ElementCount { given: usize, wanted: u32 },
    #[error("numbers go into INT32 or INT64 ports with rows of shape [] or [1]")]
    NotANumberPort,
    #[error("tensor {tensor} does not exist; the request has {count}")]
    NoTensor { tensor: u32, count: u64 },
    #[error("tensor {tensor} was let go; tensors from {from} on are kept")]
    TensorGone { tensor: u32, from: u32 },
    #[error("tensor `{name}` has no rows, because it is a scalar")]
    Scalar { name: String },
    #[error("tensor `{name}` is BYTES, and cells take no BYTES; read it and pass numbers")]
    BytesRow { name: String },
    #[error("tensor `{name}` does not hold what its datatype and shape say")]
    Inconsistent { name: String },
    #[error("it names step {step} of chain {chain}, which has at most {bound}")]
    NoStep { chain: u32, step: u32, bound: u32 },
    #[error("step {step} names step {named} of its own chain, which does not come before it")]
    NotEarlierStep { step: u32, named: u32 },
    #[error("at step {step} a span of its own chain ends with step {named}, which is not there yet")]
    OwnSpan { step: u32, named: i64 },
    #[error("a span of its own chain counts from the first step: the last one is not there yet")]
    OwnSpanFromEnd,
    #[error("a chain of a series has a number of steps of its own")]
    SeriesLike,
    #[error("it has {steps} steps, but its series holds the newest {rows} rows")]
    SeriesShort { steps: u32, rows: u32 },
    #[error("chain {chain} is of this growth; only a chain of an earlier one can be continued")]
    ContinuesHere { chain: u32 },
    #[error("chain {chain} is in no series, and cannot be continued")]
    NoSeries { chain: u32 },
    #[error("chain {chain} may stop, and only a chain with a known number of steps can be continued")]
    ContinuesStop { chain: u32 },
    #[error("chain {chain} is continued by another chain of this growth")]
    ContinuedTwice { chain: u32 },
    #[error("it does not run the same cells as chain {chain}, which it continues")]
    OtherCells { chain: u32 },
    #[error("at step {step} it would see row {number} of a series of which rows from {from} on are held")]
    RowGone { step: u32, number: i64, from: i64 },
    #[error("at step {step} it would see {what} {number} of a tensor, before which those from {from} on are held")]
    TensorRowGone { what: &'static str, step: u32, number: i64, from: i64 },
    #[error("it is like chain {chain}, which may stop, and so cannot stop by itself")]
    LikeAndStop { chain: u32 },
    #[error("`from-end` counts from an end that is not known yet, because the chain may stop")]
    OwnEnd,
    #[error("input {input} of stage {stage} is not carried, and only carried inputs take feedback")]
    NotCarried { stage: u32, input: u32 },
    #[error("input {input} of stage {stage} takes feedback already")]
    FedTwice { stage: u32, input: u32 },
    #[error("a stop is one BOOL (rows of shape [] or [1]), not {datatype} {shape}")]
    NotAStop { datatype: Datatype, shape: ShapeText },
    #[error("the model describes no such output")]
    UnknownOutput,
    #[error("it is given twice")]
    GivenTwice,
    #[error("it lists nothing")]
    NothingListed,
    #[error("the model describes {wanted}, but it is given {given}")]
    OutputDatatype { wanted: Datatype, given: Datatype },
    #[error("the model describes the shape {wanted:?}, but it is given {given:?} (-1 is any extent)")]
    OutputShape { wanted: Vec<i64>, given: Vec<i64> },
    #[error("chain {chain} is of an earlier growth; response tensors come from the growth that computes them")]
    OutputOfEarlier { chain: u32 },
    #[error("chain {chain} is of an earlier growth that did not watch this output, so that it was not sent")]
    NotWatched { chain: u32 },
    #[error("it asks to be called every 0 steps")]
    PaceZero,
    #[error("it keeps tensors from {from} on, but the request has those from {first} to {end}")]
    KeepTensors { from: u32, first: u32, end: u64 },
}
