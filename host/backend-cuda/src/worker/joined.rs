//! Lanes as a worker keeps them: what their rows need to know of their request's graph, read once when they join. A graph is many small pieces of memory, and a
//! task of hundreds of rows would look for each of them anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellIndex, InputRef, Lane, RequestFlags, SLOT_BYTES, Slot};
use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source, UnfoldedInput};

use super::resident::Resident;
use super::words::Word;
use crate::driver::DeviceAddress;

/// Inputs that are kept ready; of more the graph is asked.
const INPUTS: usize = 4;

/// A state that goes from step to step: where the step before leaves it.
#[derive(Clone, Copy, Debug)]
struct Carried {
    first: DeviceAddress,
    bytes: usize,
    /// From place to place of its stage's block.
    stride: usize,
    retention: Retention,
}

/// Rows of a tensor that came with the request.
#[derive(Clone, Debug)]
struct Rows {
    tensor: Arc<Tensor>,
    bytes: usize,
    at: Affine,
}

/// Where an input is, if that is known in advance.
#[derive(Clone, Debug, Default)]
struct Known {
    carried: Option<Carried>,
    rows: Option<Rows>,
}

/// Which steps bring outputs to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brings {
    Never,
    /// The chain's last step.
    AtItsBound,
    Perhaps,
}

/// Where inputs are.
#[derive(Clone, Copy)]
pub(super) struct Arena<'a> {
    pub(super) address: DeviceAddress,
    pub(super) cells: &'a [Option<Arc<Resident>>],
}

impl Arena<'_> {
    /// Where an output of a cell's node lies from the node on, how long it is, and how long the node.
    fn output(&self, cell: CellIndex, output: usize) -> Option<(usize, usize, usize)> {
        let layout = &self.cells.get(cell.index())?.as_ref()?.layout;
        Some((*layout.offsets.get(output)?, *layout.sizes.get(output)?, layout.slots as usize * SLOT_BYTES))
    }

    /// Where an output of a node lies, if it has so many bytes.
    pub(super) fn place(&self, (first, place): (Slot, u32), (cell, output): (CellIndex, usize), bytes: usize) -> Option<DeviceAddress> {
        let (offset, size, node) = self.output(cell, output)?;
        (size == bytes).then(|| self.address.plus(first.index() * SLOT_BYTES + place as usize * node + offset))
    }
}

/// A lane.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) lane: Arc<Lane>,
    /// Where the ends of its chain and of the one that it follows are noted on the device; none if it runs to its bound whatever it computes.
    pub(super) words: Option<[Word; 2]>,
    bound: u32,
    brings: Brings,
    /// Where its outputs are held.
    pub(super) slot: Slot,
    pub(super) retention: Retention,
    flags: Arc<RequestFlags>,
    known: [Known; INPUTS],
    /// By input, whether it came with the request ([`Lane::is_given`]); of more than so many the graph is asked.
    given: u32,
    /// Bytes of rows that the host has of the first step, and at most of each later one.
    hosted: [u32; 2],
}

impl Joined {
    pub(super) fn new(lane: Arc<Lane>, words: Option<[Word; 2]>, arena: Arena<'_>) -> Self {
        let (chain, stage) = (lane.chain(), lane.stage());
        let brings = match stage.delivery.iter().all(|delivery| *delivery == Delivery::None) {
            true => Brings::Never,
            false if words.is_none() && !stage.delivery.contains(&Delivery::All) => Brings::AtItsBound,
            false => Brings::Perhaps,
        };
        let given = (0..stage.inputs.len().min(u32::BITS as usize))
            .filter(|input| lane.is_given(*input))
            .fold(0, |given, input| given | 1 << input);
        Self {
            bound: chain.length.bound,
            brings,
            slot: lane.slot(),
            retention: stage.retention,
            flags: Arc::clone(&lane.growth.flags),
            known: std::array::from_fn(|input| known(&lane, input, arena)),
            given,
            hosted: [true, false].map(|is_first| stage.inputs.iter().map(|input| hosted(&lane, input, is_first)).sum()),
            lane,
            words,
        }
    }

    /// How many steps its chain executes, as far as is known.
    pub(super) fn executed(&self) -> u32 {
        if self.words.is_none() { self.bound } else { self.lane.executed() }
    }

    /// Whether nobody wants what it computes any more.
    pub(super) fn is_dead(&self) -> bool {
        self.flags.dead.load(Ordering::Relaxed)
    }

    /// Whether a step may bring an output to the host.
    pub(super) fn may_bring(&self, step: u32) -> bool {
        match self.brings {
            Brings::Never => false,
            Brings::AtItsBound => step + 1 == self.bound,
            Brings::Perhaps => true,
        }
    }

    /// Whether nothing is brought to the host but what the last step leaves, which is known.
    pub(super) const fn brings_at_its_end(&self) -> bool {
        !matches!(self.brings, Brings::Perhaps)
    }

    /// Whether an output of a step is brought to the host. The last output of a chain that may stop is any of them, until it is known which.
    pub(super) fn brings(&self, delivery: &Delivery, step: u32) -> bool {
        match delivery {
            Delivery::None => false,
            Delivery::All => true,
            Delivery::Last => self.words.is_some() || step + 1 == self.bound,
        }
    }

    /// Bytes that a step takes of an upload beside its lists, at most.
    pub(super) const fn hosted_bytes(&self, step: u32) -> usize {
        self.hosted[(step > 0) as usize] as usize
    }

    /// Whether an input came with the request.
    pub(super) fn is_given(&self, input: usize) -> bool {
        if input < self.lane.stage().inputs.len().min(u32::BITS as usize) {
            self.given >> input & 1 != 0
        } else {
            self.lane.is_given(input)
        }
    }

    /// Where an input of a step is on the device, if the step before leaves it there; of how many bytes.
    pub(super) fn carried(&self, input: usize, step: u32) -> Option<(DeviceAddress, usize)> {
        let carried = self.known.get(input)?.carried.as_ref()?;
        let place = carried.retention.place(step.checked_sub(1)?);
        Some((carried.first.plus(place as usize * carried.stride), carried.bytes))
    }

    /// Where an input of a step is.
    pub(super) fn input(&self, input: usize, step: u32) -> InputRef<'_> {
        match self.known.get(input).and_then(|known| known.rows.as_ref()) {
            Some(rows) => rows.row(step).map_or(InputRef::Zeros, InputRef::Host),
            None => self.lane.input(input, step),
        }
    }
}

impl Rows {
    fn row(&self, step: u32) -> Option<&[u8]> {
        let first = (self.at.at(step)? as usize).checked_mul(self.bytes)?;
        if self.bytes == 0 {
            return None;
        }
        self.tensor.data.get(first..)?.get(..self.bytes)
    }
}

/// Bytes of an input that the host has, at the lane's first step or at any other; a little more, as they are aligned.
fn hosted(lane: &Lane, input: &UnfoldedInput, is_first: bool) -> u32 {
    if input.feedback.is_some() && !is_first {
        return 0;
    }
    let bytes = match &input.source {
        Source::Literal(bytes) => bytes.len(),
        Source::Ints(_) | Source::Index(_) => size_of::<i64>(),
        Source::Rows { tensor, .. } => lane.growth.tensor(*tensor).map_or(0, |tensor| row_bytes(tensor)),
        Source::Zeros | Source::Steps { .. } | Source::Last { .. } | Source::Nodes { .. } | Source::Sibling { .. } => 0,
    };
    u32::try_from(bytes.next_multiple_of(16)).unwrap_or(u32::MAX / 64)
}

/// Bytes of a row along a tensor's first dimension.
fn row_bytes(tensor: &Tensor) -> usize {
    tensor.shape.first().and_then(|rows| tensor.data.len().checked_div(*rows)).unwrap_or_default()
}

/// What is known in advance of an input.
fn known(lane: &Lane, input: usize, arena: Arena<'_>) -> Known {
    let Some(input) = lane.stage().inputs.get(input) else { return Known::default() };
    let growth = &lane.growth;
    let carried = input.feedback.and_then(|(stage, output)| {
        let of = lane.chain().stages.get(stage as usize)?;
        let first = *growth.slots.get(lane.chain as usize)?.get(stage as usize)?;
        let cell = *growth.cells.get(of.cell as usize)?;
        let (offset, bytes, stride) = arena.output(cell, output as usize)?;
        Some(Carried { first: arena.address.plus(first.index() * SLOT_BYTES + offset), bytes, stride, retention: of.retention })
    });
    let rows = match &input.source {
        Source::Rows { tensor, at } if input.feedback.is_none() && !at.from_end => {
            growth.tensor(*tensor).map(|tensor| Rows { tensor: Arc::clone(tensor), bytes: row_bytes(tensor), at: *at })
        }
        _ => None,
    };
    Known { carried, rows }
}
