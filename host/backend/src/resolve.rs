//! Where the row of an input is, for a lane and a step: the checked source of the graph turned into a place that a device can read.
//!
//! This is the one reading of [`Source`] that every backend shares. It owns no bytes and checks nothing again; a reference that the graph's
//! checks would have refused reads as zeros.

use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Tensor, graph::Affine};

use crate::lane::{Lane, PlacedGrowth};
use crate::task::{CellIndex, Slot};

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
        cell: CellIndex,
    },
    /// Bytes in host memory, in the port's datatype.
    Host(&'a [u8]),
    /// A number, to be stored in the port's (integer) datatype.
    Int(i64),
}

impl Lane {
    /// Where input `input` of step `step` is: its feedback from step 1 on, its source otherwise.
    #[must_use]
    pub fn input(&self, input: usize, step: u32) -> InputRef<'_> {
        let Some(input) = self.stage().inputs.get(input) else { return InputRef::Zeros };
        let growth = &*self.growth;
        let own = growth.growth.first_chain + self.chain;
        if let (Some((stage, output)), Some(previous)) = (input.feedback, step.checked_sub(1)) {
            return growth.node(own, stage, output, previous);
        }
        let found = match &input.source {
            Source::Zeros => None,
            Source::Literal(bytes) => Some(InputRef::Host(bytes)),
            Source::Ints(numbers) => numbers.get(step as usize).map(|number| InputRef::Int(*number)),
            Source::Index(at) => self.index(*at, step).map(InputRef::Int),
            Source::Rows { tensor, at } => growth.tensor(*tensor).and_then(|tensor| row(tensor, *at, step)).map(InputRef::Host),
            Source::Steps { chain, stage, output, at } => {
                self.step_of(*chain, *at, step).map(|step| growth.node(*chain, *stage, *output, step))
            }
            Source::Last { chain, stage, output } => growth
                .executed_steps(*chain)
                .and_then(|executed| executed.checked_sub(1))
                .map(|last| growth.node(*chain, *stage, *output, last)),
            Source::Nodes { stage, output, of } => of.get(step as usize).map(|node| growth.node(node.chain, *stage, *output, node.step)),
            Source::Sibling { stage, output } => Some(growth.node(own, *stage, *output, step)),
        };
        found.unwrap_or(InputRef::Zeros)
    }

    fn step_of(&self, chain: u32, at: Affine, step: u32) -> Option<u32> {
        let number = at.at(step)?;
        if !at.from_end {
            return Some(number);
        }
        self.growth.executed_steps(chain)?.checked_sub(1)?.checked_sub(number)
    }

    /// The number an index source means; from the end it counts back from this chain's own last step.
    fn index(&self, at: Affine, step: u32) -> Option<i64> {
        let number = i64::from(at.at(step)?);
        Some(if at.from_end { i64::from(self.executed()) - 1 - number } else { number })
    }
}

impl PlacedGrowth {
    /// An output of a node, by the chain's number in the request.
    fn node(&self, chain: u32, stage: u32, output: u32, step: u32) -> InputRef<'_> {
        let found = match chain.checked_sub(self.growth.first_chain) {
            Some(local) => self.own_stage(local as usize, stage as usize),
            None => self.earlier(chain).and_then(|earlier| earlier.stages.get(stage as usize)).copied(),
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
    let rows = *tensor.shape.first()?;
    let number = at.at(step)? as usize;
    let number = if at.from_end { rows.checked_sub(1)?.checked_sub(number)? } else { number };
    let bytes = tensor.data.len().checked_div(rows)?;
    tensor.data.get(number.checked_mul(bytes)?..)?.get(..bytes)
}
