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
    /// Elements of a request's tensors.
    Frame(Frame<'a>),
    /// Several rows, one behind the other.
    Window(Window<'a>),
    /// The rows of a ragged input.
    Span(Span<'a>),
}

/// Consecutive elements of the tensors of one name. Beyond the first and the last they are zeros.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    growth: &'a PlacedGrowth,
    tensor: u32,
    first: i64,
}

impl Frame<'_> {
    /// Writes as many elements as there is room for, of the tensor's datatype.
    pub fn copy_to(self, into: &mut [u8]) {
        into.fill(0);
        let Some(size) = self.growth.tensor(self.tensor).and_then(|tensor| tensor.datatype.size()) else { return };
        let end = self.first.saturating_add((into.len() / size) as i64);
        let mut from = self.first.max(-self.growth.before(self.tensor, elements_of));
        while let Some((tensor, element)) = self.growth.reaching(self.tensor, from, elements_of).filter(|_| from < end) {
            let count = (elements_of(tensor) - element).min(end - from);
            let [at, element, bytes] = [from - self.first, element, count].map(|count| count.unsigned_abs() as usize * size);
            into[at..at + bytes].copy_from_slice(&tensor.data[element..element + bytes]);
            from += count;
        }
    }
}

impl PartialEq for Frame<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.growth, other.growth) && (self.tensor, self.first) == (other.tensor, other.first)
    }
}

impl Eq for Frame<'_> {}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from element {} of tensor {} on", self.first, self.tensor)
    }
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
        self.runs.iter().flat_map(move |run| self.growth.pieces(run, self.step))
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
        runs.iter().flat_map(move |run| growth.rows(run, step)).map(|row| row.unwrap_or(InputRef::Zeros))
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
    /// Its step. Numbers below 0 are steps of the chain that this chain continues.
    number: i64,
}

/// The rows that a run selects from.
#[derive(Clone, Copy)]
struct Origin {
    of: RunOf,
    /// The number of the first row.
    least: i64,
    /// The number of the last row, plus 1.
    end: i64,
}

fn rows_of(tensor: &Tensor) -> i64 {
    tensor.shape.first().map_or(0, |rows| *rows as i64)
}

fn elements_of(tensor: &Tensor) -> i64 {
    tensor.shape.iter().product::<usize>() as i64
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
        let Found::Node(Node { chain, stage, output, number }) = growth.find((self.chain, self.stage), input, step) else { return None };
        let step = u32::try_from(number).ok()?;
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
            return Found::Node(Node { chain: own, stage, output, number: previous.into() });
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
            Source::Steps { chain, stage, output, at } => self
                .step_of(*chain, *at, step)
                .map(|step| Found::Node(Node { chain: *chain, stage: *stage, output: *output, number: step.into() })),
            Source::Last { chain, stage, output } => self
                .executed_steps(*chain)
                .and_then(|executed| executed.checked_sub(1))
                .map(|step| Found::Node(Node { chain: *chain, stage: *stage, output: *output, number: step.into() })),
            Source::Nodes { stage, output, of } => of
                .get(step as usize)
                .map(|node| Found::Node(Node { chain: node.chain, stage: *stage, output: *output, number: node.step.into() })),
            Source::Sibling { stage, output } => {
                Some(Found::Node(Node { chain: own, stage: *stage, output: *output, number: step.into() }))
            }
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

    /// Those rows of a step's run that are there, in pieces.
    fn pieces<'a>(&'a self, run: &'a Run, step: u32) -> impl Iterator<Item = Piece<'a>> {
        let every = i64::from(run.every.max(1));
        let found = self.run(run, step);
        // Rows before the first and behind the last are left out.
        let missing = found.map_or(0, |(origin, first)| ((origin.least - first).max(0) + every - 1) / every);
        let mut number = found.map_or(0, |(_, first)| first + missing * every);
        let mut left = i64::from(run.count) - missing;
        std::iter::from_fn(move || {
            let (first, end) = self.stretch(found?.0, number).filter(|_| left > 0)?;
            let rows = ((end - number + every - 1) / every).min(left);
            (number, left) = (number + rows * every, left - rows);
            Some(Piece { first, rows: u32::try_from(rows).ok()?, every: run.every })
        })
    }

    /// Each row of a step's run, in order. None for a row beyond either end.
    fn rows<'a>(&'a self, run: &'a Run, step: u32) -> impl Iterator<Item = Option<InputRef<'a>>> {
        let found = self.run(run, step);
        (0..run.count).map(move |row| {
            let (origin, first) = found?;
            match (self.stretch(origin, first + i64::from(run.every) * i64::from(row))?.0, run.of) {
                (InputRef::Host(bytes), RunOf::Tensor(tensor)) => Some(InputRef::Host(bytes.get(..row_bytes(self.tensor(tensor)?)?)?)),
                (found, _) => Some(found),
            }
        })
    }

    /// A run's origin, and the number of its first row at a step. The number may lie beyond either end.
    fn run(&self, run: &Run, step: u32) -> Option<(Origin, i64)> {
        let (origin, first) = (self.origin(run.of)?, run.at.number(step)?);
        Some((origin, if run.at.from_end { origin.end - 1 - first } else { first }))
    }

    /// Where rows of runs come from.
    fn origin(&self, of: RunOf) -> Option<Origin> {
        let (end, least) = match of {
            RunOf::Tensor(tensor) => (i64::try_from(*self.tensor(tensor)?.shape.first()?).ok()?, -self.before(tensor, rows_of)),
            RunOf::Chain { chain, stage, .. } => (self.executed_steps(chain)?.into(), -i64::from(self.held(chain, stage)?.1.before())),
        };
        Some(Origin { of, least, end })
    }

    /// Finds a row by number. Rows from it up to the returned number lie at equal distances.
    fn stretch(&self, Origin { of, least, end }: Origin, number: i64) -> Option<(InputRef<'_>, i64)> {
        if number < least || number >= end {
            return None;
        }
        match of {
            RunOf::Chain { chain, stage, output } => {
                let end = match self.held(chain, stage)?.1 {
                    held @ Retention::Ring { places, .. } => end.min(number + i64::from(places - held.place_of(number))),
                    _ => end,
                };
                Some((self.node(&Node { chain, stage, output, number }), end))
            }
            RunOf::Tensor(tensor) => {
                let (tensor, row) = self.reaching(tensor, number, rows_of)?;
                let behind = rows_of(tensor) - row;
                Some((InputRef::Host(rows_from(tensor, u32::try_from(row).ok()?)?), number + behind))
            }
        }
    }

    /// The rows or elements of all earlier tensors of the same name.
    fn before(&self, tensor: u32, size: fn(&Tensor) -> i64) -> i64 {
        self.earlier_tensors(tensor).map(size).sum()
    }

    /// Finds the tensor that holds a row or element. Gives it with the number within that tensor.
    fn reaching(&self, tensor: u32, number: i64, size: fn(&Tensor) -> i64) -> Option<(&Tensor, i64)> {
        let mut number = number;
        if number >= 0 {
            let tensor = &**self.tensor(tensor)?;
            return (number < size(tensor)).then_some((tensor, number));
        }
        for earlier in self.earlier_tensors(tensor) {
            number += size(earlier);
            if number >= 0 {
                return Some((earlier, number));
            }
        }
        None
    }

    /// The earlier tensors that a tensor continues, the latest first.
    fn earlier_tensors(&self, tensor: u32) -> impl Iterator<Item = &Tensor> {
        let at = tensor.checked_sub(self.first_tensor).map_or(0, |at| at as usize).min(self.tensors.len());
        let mut latest = self.tensors.get(at);
        let same_name = self.tensors[..at].iter().rev().filter(move |earlier| latest.is_some_and(|latest| latest.name == earlier.name));
        same_name.map_while(move |earlier| {
            let follows = latest.is_some_and(|latest| latest.follows(earlier));
            latest = Some(earlier);
            follows.then_some(&**earlier)
        })
    }

    /// The elements of a tensor from that of a step on.
    fn frame(&self, tensor: u32, at: Affine, step: u32) -> Option<InputRef<'_>> {
        self.tensor(tensor)?;
        Some(InputRef::Frame(Frame { growth: self, tensor, first: at.number(step)? }))
    }

    /// The number an index source of a chain means; from the end it counts back from the chain's own last step.
    fn index(&self, own: u32, at: Affine, step: u32) -> Option<i64> {
        let number = i64::from(at.at(step)?);
        Some(if at.from_end { i64::from(self.executed_steps(own).unwrap_or_default()) - 1 - number } else { number })
    }

    fn node(&self, node: &Node) -> InputRef<'_> {
        let Node { chain, stage, output, number } = *node;
        // A place that this chain did not write may hold another request's row.
        let is_there = || chain >= self.growth.first_chain || self.earlier(chain).is_some_and(|earlier| number < earlier.executed().into());
        let Some((first, retention, cell)) = self.held(chain, stage).filter(|_| is_there()) else { return InputRef::Zeros };
        let Some(cell) = self.cells.get(cell as usize).copied() else { return InputRef::Zeros };
        debug_assert!(retention != Retention::None, "a node that is read in place is held");
        InputRef::Slot { first, place: retention.place_of(number), output, cell }
    }

    /// The first slot, retention and cell of a stage. The chain is given by its number in the request.
    fn held(&self, chain: u32, stage: u32) -> Option<(Slot, Retention, u32)> {
        let Some(local) = chain.checked_sub(self.growth.first_chain) else {
            return self.earlier(chain)?.stages.get(stage as usize).copied();
        };
        let of = self.growth.chains.get(local as usize)?.stages.get(stage as usize)?;
        Some((*self.slots.get(local as usize)?.get(stage as usize)?, of.retention, of.cell))
    }
}

/// A row of a tensor along its first dimension; from the end it counts back from the last row.
fn row(tensor: &Tensor, at: Affine, step: u32) -> Option<&[u8]> {
    let rows = u32::try_from(*tensor.shape.first()?).unwrap_or(u32::MAX);
    let number = at.at(step)?;
    row_of(tensor, if at.from_end { rows.checked_sub(1)?.checked_sub(number)? } else { number })
}

fn row_of(tensor: &Tensor, number: u32) -> Option<&[u8]> {
    rows_from(tensor, number)?.get(..row_bytes(tensor)?)
}

/// A row of a tensor and all behind it.
fn rows_from(tensor: &Tensor, number: u32) -> Option<&[u8]> {
    tensor.data.get((number as usize).checked_mul(row_bytes(tensor)?)?..)
}

fn row_bytes(tensor: &Tensor) -> Option<usize> {
    Some(tensor.shape.iter().skip(1).product::<usize>() * tensor.datatype.size()?)
}

#[cfg(test)]
mod tests;
