//! Where the row of an input is, for a lane and a step: the checked source of the graph turned into a place that a device can read.
//!
//! This is the one reading of [`Source`] that every backend shares. It owns no bytes and checks nothing again; a reference that the graph's
//! checks would have refused reads as zeros.

use std::fmt;

use cellwright_cell_graph::unfolded::{Retention, Run, RunOf, Source};
use cellwright_cell_graph::{Tensor, graph::Affine};

use crate::lane::{Lane, PlacedGrowth};
use crate::task::{CellTypeId, Slot};

/// Where a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRef<'a> {
    /// Nowhere: it is zeros.
    Zeros,
    /// An output of a node in the arena. The node is the one at `place` of the block that begins at `first`: with the layout of `cell` its slot
    /// is [`crate::NodeLayout::slot`]`(first, place)`.
    Slot {
        /// First slot of the producing stage's block.
        first: Slot,
        /// The node's place in the block, counted in nodes.
        place: u32,
        /// Which output of the node.
        output: u32,
        /// The cell that produced it.
        cell: CellTypeId,
    },
    /// Bytes in host memory, in the port's datatype.
    Host(&'a [u8]),
    /// A number, to be stored in the port's (integer) datatype.
    Int(i64),
    /// Bytes in host memory behind so many that are zero. What the port has behind them is zero, too.
    Frame {
        /// Zeros in front.
        zeros: usize,
        /// In the port's datatype.
        bytes: &'a [u8],
    },
    /// Several rows, one behind the other.
    Window(Window<'a>),
    /// The rows of a ragged input.
    Span(Span<'a>),
}

/// The rows of a ragged input.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    growth: &'a PlacedGrowth,
    runs: &'a [Run],
    step: u32,
}

/// Rows of a span at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The first of them: [`InputRef::Slot`], or [`InputRef::Host`] with everything that stands behind it.
    pub first: InputRef<'a>,
    /// How many there are.
    pub rows: u32,
    /// How many rows, or places of a block, further on the next one is.
    pub every: u32,
}

impl<'a> Span<'a> {
    /// Its rows in pieces, of which none is empty.
    pub fn pieces(self) -> impl Iterator<Item = Piece<'a>> {
        self.runs.iter().filter_map(move |run| self.growth.piece(run, self.step))
    }

    /// How many rows it has.
    #[must_use]
    pub fn rows(self) -> u32 {
        self.pieces().map(|piece| piece.rows).sum()
    }
}

impl PartialEq for Span<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.pieces().eq(other.pieces())
    }
}

impl Eq for Span<'_> {}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pieces()).finish()
    }
}

/// The rows of an input that sees several.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    growth: &'a PlacedGrowth,
    runs: &'a [Run],
    step: u32,
}

impl<'a> Window<'a> {
    /// How many rows there are.
    #[must_use]
    pub fn count(self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }

    /// Where each of them is: none is a window.
    pub fn rows(self) -> impl Iterator<Item = InputRef<'a>> {
        let Self { growth, runs, step } = self;
        runs.iter().flat_map(move |run| (0..run.count).map(move |row| growth.run_row(run, step, row).unwrap_or(InputRef::Zeros)))
    }
}

impl PartialEq for Window<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rows().eq(other.rows())
    }
}

impl Eq for Window<'_> {}

impl fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rows()).finish()
    }
}

/// The node that gives an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Giver<'a> {
    /// Its cell.
    pub cell: CellTypeId,
    /// Which of its outputs the input is.
    pub output: u32,
    /// Its own first input.
    pub input: InputRef<'a>,
}

/// An output of a node, by its chain's number in the request.
struct Node {
    chain: u32,
    stage: u32,
    output: u32,
    step: u32,
}

/// Where an input comes from.
enum Found<'a> {
    Node(Node),
    Else(InputRef<'a>),
}

impl Lane {
    /// Where input `input` of step `step` is: its feedback from step 1 on, its source otherwise.
    #[must_use]
    pub fn input(&self, input: usize, step: u32) -> InputRef<'_> {
        match self.growth.find((self.chain, self.stage), input, step) {
            Found::Node(node) => self.growth.node(&node),
            Found::Else(found) => found,
        }
    }

    /// The node that gives input `input` of step `step`, if one of the same growth does.
    #[must_use]
    pub fn giver(&self, input: usize, step: u32) -> Option<Giver<'_>> {
        let growth = &*self.growth;
        let Found::Node(Node { chain, stage, output, step }) = growth.find((self.chain, self.stage), input, step) else { return None };
        let chain = chain.checked_sub(growth.growth.first_chain)?;
        let of = growth.growth.chains.get(chain as usize)?.stages.get(stage as usize)?;
        let input = match growth.find((chain, stage), 0, step) {
            Found::Node(node) => growth.node(&node),
            Found::Else(found) => found,
        };
        Some(Giver { cell: growth.cells.get(of.cell as usize).copied()?, output, input })
    }

    /// Whether input `input` is at every step what came with the request, or nothing: its tensors' rows, its numbers, zeros. Such a row is there
    /// before anything has run, and stays what it is wherever chains end.
    #[must_use]
    pub fn is_given(&self, input: usize) -> bool {
        let Some(input) = self.stage().inputs.get(input) else { return true };
        let is_given = match &input.source {
            Source::Zeros | Source::Literal(_) | Source::Ints(_) | Source::Rows { .. } => true,
            Source::Index(at) => !at.from_end,
            Source::Frames { .. } => true,
            Source::Window(runs) | Source::Span(runs) => runs.iter().all(|run| matches!(run.of, RunOf::Tensor(_))),
            Source::Steps { .. } | Source::Last { .. } | Source::Nodes { .. } | Source::Sibling { .. } => false,
        };
        is_given && input.feedback.is_none()
    }
}

impl PlacedGrowth {
    /// Where an input of a step of a stage of a chain, by position in this growth, comes from.
    fn find(&self, (chain, stage): (u32, u32), input: usize, step: u32) -> Found<'_> {
        let own = self.growth.first_chain + chain;
        let of = self.growth.chains.get(chain as usize).and_then(|chain| chain.stages.get(stage as usize));
        let Some(input) = of.and_then(|stage| stage.inputs.get(input)) else { return Found::Else(InputRef::Zeros) };
        if let (Some((stage, output)), Some(previous)) = (input.feedback, step.checked_sub(1)) {
            return Found::Node(Node { chain: own, stage, output, step: previous });
        }
        let found = match &input.source {
            Source::Zeros => None,
            Source::Literal(bytes) => Some(Found::Else(InputRef::Host(bytes))),
            Source::Ints(numbers) => numbers.get(step as usize).map(|number| Found::Else(InputRef::Int(*number))),
            Source::Index(at) => self.index(own, *at, step).map(|number| Found::Else(InputRef::Int(number))),
            Source::Rows { tensor, at } => {
                self.tensor(*tensor).and_then(|tensor| row(tensor, *at, step)).map(|bytes| Found::Else(InputRef::Host(bytes)))
            }
            Source::Frames { tensor, at } => self.frame(*tensor, *at, step).map(Found::Else),
            Source::Window(runs) => Some(Found::Else(InputRef::Window(Window { growth: self, runs, step }))),
            Source::Span(runs) => Some(Found::Else(InputRef::Span(Span { growth: self, runs, step }))),
            Source::Steps { chain, stage, output, at } => {
                self.step_of(*chain, *at, step).map(|step| Found::Node(Node { chain: *chain, stage: *stage, output: *output, step }))
            }
            Source::Last { chain, stage, output } => self
                .executed_steps(*chain)
                .and_then(|executed| executed.checked_sub(1))
                .map(|step| Found::Node(Node { chain: *chain, stage: *stage, output: *output, step })),
            Source::Nodes { stage, output, of } => {
                of.get(step as usize).map(|node| Found::Node(Node { chain: node.chain, stage: *stage, output: *output, step: node.step }))
            }
            Source::Sibling { stage, output } => Some(Found::Node(Node { chain: own, stage: *stage, output: *output, step })),
        };
        found.unwrap_or(Found::Else(InputRef::Zeros))
    }

    fn step_of(&self, chain: u32, at: Affine, step: u32) -> Option<u32> {
        let number = at.at(step)?;
        if !at.from_end {
            return Some(number);
        }
        self.executed_steps(chain)?.checked_sub(1)?.checked_sub(number)
    }

    /// The number of a run's first row at a step, which may be beyond either end of `count` rows.
    fn run_first(run: &Run, step: u32, count: u32) -> Option<i64> {
        let first = run.at.number(step)?;
        Some(if run.at.from_end { i64::from(count) - 1 - first } else { first })
    }

    /// Those rows of a step's run that are there.
    fn piece(&self, run: &Run, step: u32) -> Option<Piece<'_>> {
        let tensor = if let RunOf::Tensor(tensor) = run.of { Some(self.tensor(tensor)?) } else { None };
        let count = match run.of {
            RunOf::Tensor(_) => u32::try_from(*tensor?.shape.first()?).unwrap_or(u32::MAX),
            RunOf::Chain { chain, .. } => self.executed_steps(chain)?,
        };
        let (first, every) = (Self::run_first(run, step, count)?, u64::from(run.every.max(1)));
        // Rows before the first and behind the last are left out.
        let missing = first.min(0).unsigned_abs().div_ceil(every);
        let number = u32::try_from(first + (missing * every).cast_signed()).ok()?;
        let there = u64::from(count.saturating_sub(number)).div_ceil(every).min(u64::from(run.count).saturating_sub(missing));
        let rows = u32::try_from(there).ok().filter(|rows| *rows > 0)?;
        let first = match run.of {
            RunOf::Tensor(_) => InputRef::Host(rows_from(tensor?, number)?),
            RunOf::Chain { chain, stage, output } => self.node(&Node { chain, stage, output, step: number }),
        };
        Some(Piece { first, rows, every: run.every })
    }

    /// Row `row` of a step's run; none if it lies beyond either end.
    fn run_row(&self, run: &Run, step: u32, row: u32) -> Option<InputRef<'_>> {
        let number = |count: u32| {
            let first = Self::run_first(run, step, count)?;
            u32::try_from(first + i64::from(run.every) * i64::from(row)).ok().filter(|number| *number < count)
        };
        match run.of {
            RunOf::Tensor(tensor) => {
                let tensor = self.tensor(tensor)?;
                let rows = u32::try_from(*tensor.shape.first()?).unwrap_or(u32::MAX);
                row_of(tensor, number(rows)?).map(InputRef::Host)
            }
            RunOf::Chain { chain, stage, output } => {
                let step = number(self.executed_steps(chain)?)?;
                Some(self.node(&Node { chain, stage, output, step }))
            }
        }
    }

    /// The elements of a tensor from that of a step on. The port takes as many as it has.
    fn frame(&self, tensor: u32, at: Affine, step: u32) -> Option<InputRef<'_>> {
        let tensor = self.tensor(tensor)?;
        let size = tensor.datatype.size()?;
        let first = at.number(step)?;
        let zeros = usize::try_from(first.min(0).unsigned_abs()).ok()?.checked_mul(size)?;
        let from = usize::try_from(first.max(0)).ok()?.checked_mul(size)?;
        Some(InputRef::Frame { zeros, bytes: tensor.data.get(from..).unwrap_or_default() })
    }

    /// The number an index source of a chain means; from the end it counts back from the chain's own last step.
    fn index(&self, own: u32, at: Affine, step: u32) -> Option<i64> {
        let number = i64::from(at.at(step)?);
        Some(if at.from_end { i64::from(self.executed_steps(own).unwrap_or_default()) - 1 - number } else { number })
    }

    fn node(&self, node: &Node) -> InputRef<'_> {
        let Node { chain, stage, output, step } = *node;
        let found = match chain.checked_sub(self.growth.first_chain) {
            Some(local) => self.own_stage(local as usize, stage as usize),
            // The scheduler runs nothing that names more steps than there are; a place where nothing was written would be another request's.
            None => self
                .earlier(chain)
                .filter(|earlier| step < earlier.executed())
                .and_then(|earlier| earlier.stages.get(stage as usize))
                .copied(),
        };
        let Some((first, retention, cell)) = found else { return InputRef::Zeros };
        let Some(cell) = self.cells.get(cell as usize).copied() else { return InputRef::Zeros };
        debug_assert!(retention != Retention::None, "a node that is read in place is held");
        InputRef::Slot { first, place: retention.place(step), output, cell }
    }

    fn own_stage(&self, chain: usize, stage: usize) -> Option<(Slot, Retention, u32)> {
        let of = self.growth.chains.get(chain)?.stages.get(stage)?;
        Some((*self.slots.get(chain)?.get(stage)?, of.retention, of.cell))
    }
}

/// A row of a tensor along its first dimension; from the end it counts back from the last row.
fn row(tensor: &Tensor, at: Affine, step: u32) -> Option<&[u8]> {
    let rows = u32::try_from(*tensor.shape.first()?).unwrap_or(u32::MAX);
    let number = at.at(step)?;
    row_of(tensor, if at.from_end { rows.checked_sub(1)?.checked_sub(number)? } else { number })
}

fn row_of(tensor: &Tensor, number: u32) -> Option<&[u8]> {
    rows_from(tensor, number)?.get(..tensor.data.len().checked_div(*tensor.shape.first()?)?)
}

/// A row of a tensor and all behind it.
fn rows_from(tensor: &Tensor, number: u32) -> Option<&[u8]> {
    let bytes = tensor.data.len().checked_div(*tensor.shape.first()?)?;
    tensor.data.get((number as usize).checked_mul(bytes)?..)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use cellwright_cell_graph::unfolded::{Grouping, Length, Successors, UnfoldedChain, UnfoldedInput, UnfoldedStage};
    use cellwright_cell_graph::{UnfoldedGrowth, graph};

    use super::*;
    use crate::{EarlierChain, RequestFlags};

    const EARLIER: u32 = 4;

    fn chain(cell: u32, bound: u32, like: Option<u32>, retention: Retention, inputs: Vec<UnfoldedInput>) -> UnfoldedChain {
        let stage = UnfoldedStage {
            cell,
            inputs,
            depends: vec![],
            named_producers: vec![],
            successors: Successors::default(),
            retention,
            grouping: Grouping::Each,
            delivery: vec![],
        };
        UnfoldedChain { stages: vec![stage], length: Length { bound, like }, sequential: false, stop: None }
    }

    /// Chain 5, which stopped after three of its eight steps, and chain 6, which follows it and has that input.
    fn lane(input: UnfoldedInput) -> Lane {
        let chains = vec![chain(0, 8, None, Retention::All, vec![]), chain(1, 8, Some(5), Retention::Double, vec![input])];
        let growth = UnfoldedGrowth { first_chain: 5, chains, outputs: vec![], cancel: vec![], next: None, nodes: 16 };
        let earlier =
            EarlierChain { chain: EARLIER, stages: vec![(Slot(900), Retention::All, 1)], executed: ([AtomicU32::new(2)].into(), 0) };
        let placed = PlacedGrowth {
            growth: Arc::new(growth),
            cells: [CellTypeId(30), CellTypeId(31)].into(),
            slots: [vec![Slot(100)], vec![Slot(200)]].into(),
            executed: [AtomicU32::new(3), AtomicU32::new(8)].into(),
            earlier: vec![earlier],
            tensors: vec![Arc::new(Tensor::from_i64("x", &[4, 2], &[0, 1, 10, 11, 20, 21, 30, 31]))],
            first_tensor: 2,
            flags: Arc::new(RequestFlags::default()),
        };
        Lane { growth: Arc::new(placed), chain: 1, stage: 0 }
    }

    fn seen(source: Source, step: u32) -> InputRef<'static> {
        Box::leak(Box::new(lane(UnfoldedInput { source, feedback: None }))).input(0, step)
    }

    const fn at(first: i64, stride: i32, from_end: bool) -> Affine {
        Affine { first, stride, from_end }
    }

    fn slot(first: u32, place: u32, cell: u32) -> InputRef<'static> {
        InputRef::Slot { first: Slot(first), place, output: 1, cell: CellTypeId(cell) }
    }

    #[test]
    fn chains_end_where_they_stopped() {
        let steps = |chain, at| Source::Steps { chain, stage: 0, output: 1, at };
        assert_eq!(seen(steps(5, Affine::EVERY), 2), slot(100, 2, 30));
        assert_eq!(seen(steps(5, at(0, 1, true)), 0), slot(100, 2, 30), "the last executed step, not the last possible one");
        assert_eq!(seen(steps(5, at(0, 1, true)), 2), slot(100, 0, 30));
        assert_eq!(seen(steps(5, at(0, 1, true)), 3), InputRef::Zeros, "there is nothing before the first");
        assert_eq!(seen(Source::Last { chain: 5, stage: 0, output: 1 }, 0), slot(100, 2, 30));
        assert_eq!(seen(Source::Last { chain: 6, stage: 0, output: 1 }, 0), slot(200, 0, 31), "step 2 of a follower lies in place 0");
        assert_eq!(seen(Source::Last { chain: EARLIER, stage: 0, output: 1 }, 0), slot(900, 1, 31));
        assert_eq!(seen(Source::Last { chain: 3, stage: 0, output: 1 }, 0), InputRef::Zeros);
    }

    #[test]
    fn nodes_rows_and_numbers() {
        let of = vec![graph::Node { chain: 5, step: 1 }, graph::Node { chain: EARLIER, step: 1 }];
        let nodes = Source::Nodes { stage: 0, output: 1, of };
        assert_eq!(seen(nodes.clone(), 0), slot(100, 1, 30));
        assert_eq!(seen(nodes.clone(), 1), slot(900, 1, 31));
        assert_eq!(seen(nodes, 2), InputRef::Zeros);
        let beyond = |step| Source::Nodes { stage: 0, output: 1, of: vec![graph::Node { chain: EARLIER, step }] };
        assert_eq!(seen(beyond(2), 0), InputRef::Zeros, "it executed two");
        assert_eq!(seen(Source::Steps { chain: EARLIER, stage: 0, output: 1, at: at(2, 0, false) }, 0), InputRef::Zeros);
        let bytes = |first: i64| InputRef::Host([first.to_le_bytes(), (first + 1).to_le_bytes()].concat().leak());
        assert_eq!(seen(Source::Rows { tensor: 2, at: at(3, -1, false) }, 1), bytes(20));
        assert_eq!(seen(Source::Rows { tensor: 2, at: at(0, 1, true) }, 1), bytes(20));
        assert_eq!(seen(Source::Rows { tensor: 2, at: at(4, 1, false) }, 0), InputRef::Zeros);
        assert_eq!(seen(Source::Rows { tensor: 1, at: Affine::EVERY }, 0), InputRef::Zeros, "a tensor that was let go of");
        assert_eq!(seen(Source::Ints(vec![7, 8]), 1), InputRef::Int(8));
        assert_eq!(seen(Source::Index(at(5, 2, false)), 3), InputRef::Int(11));
        assert_eq!(seen(Source::Index(at(0, 1, true)), 0), InputRef::Int(2));
    }

    #[test]
    fn a_window_sees_rows_and_zeros_beyond_either_end() {
        let rows = |runs: &[Run], step| match seen(Source::Window(runs.into()), step) {
            InputRef::Window(window) => window.rows().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let of = |chain| RunOf::Chain { chain, stage: 0, output: 1 };
        let run = |of, at, every, count| Run { of, at, every, count };
        let causal = [run(of(5), at(-1, 1, false), 1, 3)];
        assert_eq!(rows(&causal, 0), [InputRef::Zeros, slot(100, 0, 30), slot(100, 1, 30)]);
        assert_eq!(rows(&causal, 2), [slot(100, 1, 30), slot(100, 2, 30), InputRef::Zeros], "it executed three");
        let wide = [run(of(5), at(-2, 0, false), 2, 2), run(of(EARLIER), at(0, 1, true), 1, 2)];
        assert_eq!(rows(&wide, 0), [InputRef::Zeros, slot(100, 0, 30), slot(900, 1, 31), InputRef::Zeros]);
        assert_eq!(rows(&wide, 1), [InputRef::Zeros, slot(100, 0, 30), slot(900, 0, 31), slot(900, 1, 31)]);
        let tensor = [run(RunOf::Tensor(2), at(2, 3, false), 1, 2)];
        let bytes = |first: i64| InputRef::Host([first.to_le_bytes(), (first + 1).to_le_bytes()].concat().leak());
        assert_eq!(rows(&tensor, 0), [bytes(20), bytes(30)]);
        assert_eq!(rows(&tensor, 1), [InputRef::Zeros; 2]);
        assert_eq!(rows(&[run(RunOf::Tensor(1), Affine::EVERY, 1, 1)], 0), [InputRef::Zeros], "a tensor that was let go of");
    }

    #[test]
    fn a_frame_begins_with_zeros_or_ends_with_the_tensor() {
        let frame = |first, stride, step| match seen(Source::Frames { tensor: 2, at: at(first, stride, false) }, step) {
            InputRef::Frame { zeros, bytes } => (zeros, bytes.len(), bytes.first().copied()),
            other => panic!("{other:?}"),
        };
        assert_eq!(frame(-1, 3, 0), (8, 64, Some(0)));
        assert_eq!(frame(-1, 3, 1), (0, 48, Some(10)));
        assert_eq!(frame(7, 3, 0), (0, 8, Some(31)));
        assert_eq!(frame(7, 3, 1), (0, 0, None));
    }

    #[test]
    fn a_feedback_replaces_the_source_from_step_one_on() {
        let lane = lane(UnfoldedInput { source: Source::Ints(vec![7]), feedback: Some((0, 1)) });
        assert_eq!(lane.input(0, 0), InputRef::Int(7));
        assert_eq!([lane.input(0, 1), lane.input(0, 2)], [slot(200, 0, 31), slot(200, 1, 31)]);
        assert_eq!(lane.input(1, 0), InputRef::Zeros);
    }

    #[test]
    fn a_giver_is_a_node_of_the_same_growth() {
        // Chain 5 takes numbers, of which step 2 has 12.
        let giver = |source: Source, feedback, step| {
            let mut lane = lane(UnfoldedInput { source, feedback });
            let growth = Arc::get_mut(&mut lane.growth).expect("nobody else has it");
            let graph = Arc::get_mut(&mut growth.growth).expect("nor that");
            graph.chains[0].stages[0].inputs = vec![UnfoldedInput { source: Source::Ints((10..18).collect()), feedback: None }];
            lane.giver(0, step).map(|giver| {
                let InputRef::Int(number) = giver.input else { return (giver.cell.0, giver.output, None) };
                (giver.cell.0, giver.output, Some(number))
            })
        };
        let of = |chain| vec![graph::Node { chain, step: 2 }];
        assert_eq!(giver(Source::Nodes { stage: 0, output: 1, of: of(5) }, None, 0), Some((30, 1, Some(12))));
        assert_eq!(giver(Source::Steps { chain: 5, stage: 0, output: 0, at: at(0, 1, false) }, None, 1), Some((30, 0, Some(11))));
        assert_eq!(giver(Source::Last { chain: 5, stage: 0, output: 1 }, None, 0), Some((30, 1, Some(12))), "the last of three");
        assert_eq!(giver(Source::Nodes { stage: 0, output: 1, of: of(EARLIER) }, None, 0), None, "of an earlier growth");
        assert_eq!(giver(Source::Ints(vec![7, 8]), None, 1), None, "no node");
        let fed_back = |step| giver(Source::Nodes { stage: 0, output: 1, of: of(5) }, Some((0, 1)), step);
        assert_eq!(
            [fed_back(0), fed_back(1)],
            [Some((30, 1, Some(12))), Some((31, 1, None))],
            "its own step before, which takes what chain 5 gives"
        );
    }

    #[test]
    fn spans_have_the_rows_that_are_there() {
        let span = |of: RunOf, at: Affine, every: u32, count: u32| Source::Span([Run { of, at, every, count }].into());
        let chain = RunOf::Chain { chain: 5, stage: 0, output: 1 };
        let pieces = |source: Source, step: u32| match seen(source, step) {
            InputRef::Span(span) => {
                assert_eq!(span.rows(), span.pieces().map(|piece| piece.rows).sum::<u32>());
                span.pieces().map(|piece| (piece.first, piece.rows, piece.every)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let all = |at, count| pieces(span(chain, at, 1, count), 2);
        assert_eq!(all(at(0, 0, false), u32::MAX), [(slot(100, 0, 30), 3, 1)], "as far as it was executed");
        assert_eq!(all(at(-4, 1, false), 4), [(slot(100, 0, 30), 2, 1)], "rows before the first are none");
        assert_eq!(all(at(-4, 1, false), 2), []);
        assert_eq!(all(at(3, 0, false), u32::MAX), []);
        assert_eq!(all(at(1, 0, true), u32::MAX), [(slot(100, 1, 30), 2, 1)]);
        assert_eq!(
            pieces(span(chain, at(-3, 0, false), 2, 9), 0),
            [(slot(100, 1, 30), 1, 2)],
            "distances count from the first row, there or not"
        );
        let rows = |first, every, count| pieces(span(RunOf::Tensor(2), at(first, 0, false), every, count), 0);
        let counted = |pieces: Vec<(InputRef<'_>, u32, u32)>| {
            pieces
                .iter()
                .map(|(first, rows, every)| (matches!(first, InputRef::Host(bytes) if bytes.len() % 16 == 0), *rows, *every))
                .collect::<Vec<_>>()
        };
        assert_eq!(counted(rows(1, 2, u32::MAX)), [(true, 2, 2)]);
        assert_eq!(counted(rows(-1, 1, 4)), [(true, 3, 1)]);
    }

    #[test]
    fn what_came_with_the_request_is_given() {
        let given = |source: Source, feedback| lane(UnfoldedInput { source, feedback }).is_given(0);
        let of = vec![graph::Node { chain: 5, step: 1 }];
        let given_ones = [
            Source::Zeros,
            Source::Literal([1].into()),
            Source::Ints(vec![7]),
            Source::Index(at(5, 2, false)),
            Source::Rows { tensor: 2, at: at(0, 1, true) },
        ];
        for source in given_ones {
            assert!(given(source.clone(), None), "{source:?}");
            assert!(!given(source.clone(), Some((0, 1))), "{source:?} and then what a node gives");
        }
        let others = [
            Source::Index(at(0, 1, true)),
            Source::Steps { chain: 5, stage: 0, output: 1, at: Affine::EVERY },
            Source::Last { chain: 5, stage: 0, output: 1 },
            Source::Nodes { stage: 0, output: 1, of },
            Source::Sibling { stage: 0, output: 1 },
        ];
        for source in others {
            assert!(!given(source.clone(), None), "{source:?}");
        }
    }
}
