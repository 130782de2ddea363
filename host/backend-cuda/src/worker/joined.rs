//! What a task's rows need to know of a lane's graph, read once when the lane joins.
//!
//! A graph is many small pieces of memory, in no cache by the time a task comes. A task of hundreds
//! of rows would look for each of them anew. What is kept cannot change: where the step before
//! leaves its states, where the rows lie that came with the request (`given`), which steps bring
//! values to the host. How far a chain runs is kept only if the chain cannot stop; such a chain has
//! no word on the device either.
//!
//! Whether anybody still wants a lane is checked when it joins and when its tasks complete, not at
//! each step.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellTypeId, Lane, LaneId, SLOT_BYTES, Slot};
use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Delivery, Source, UnfoldedInput};

use super::cost::hosted_in_pieces;
use super::given::{Given, row_bytes};
use super::resident::Resident;
use super::seat::{Brings, Held, INPUTS, Known, Places, Seat};
use super::together;
use super::words::Word;
use crate::driver::DeviceAddress;

/// Where inputs are.
#[derive(Clone, Copy)]
pub(super) struct Arena<'a> {
    pub(super) address: DeviceAddress,
    pub(super) cells: &'a [Option<Arc<Resident>>],
}

impl<'a> Arena<'a> {
    /// The cell of a lane.
    fn resident(&self, lane: &Lane) -> Option<&'a Resident> {
        self.cells.get(lane.growth.cells.get(lane.stage().cell as usize)?.index())?.as_deref()
    }

    /// Where an output of a cell's node lies from the node on, how long it is, and how long the node.
    fn output(&self, cell: CellTypeId, output: usize) -> Option<(usize, usize, usize)> {
        let layout = &self.cells.get(cell.index())?.as_ref()?.layout;
        Some((*layout.offsets.get(output)?, *layout.sizes.get(output)?, layout.slots as usize * SLOT_BYTES))
    }

    /// Bytes from node to node of a cell.
    pub(super) fn node_bytes(&self, cell: CellTypeId) -> Option<usize> {
        Some(self.cells.get(cell.index())?.as_ref()?.layout.slots as usize * SLOT_BYTES)
    }

    /// Where an output of a node lies, if it has so many bytes.
    pub(super) fn place(&self, (first, place): (Slot, u32), (cell, output): (CellTypeId, usize), bytes: usize) -> Option<DeviceAddress> {
        let (offset, size, node) = self.output(cell, output)?;
        (size == bytes).then(|| self.address.plus(first.index() * SLOT_BYTES + place as usize * node + offset))
    }
}

/// Whose rows a lane's are: what is asked when a task completes, and of few rows before.
#[derive(Debug)]
pub(super) struct Whose {
    pub(super) lane: Arc<Lane>,
    /// Where the ends of its chain and of the one that it follows are noted on the device; none if it runs to its bound whatever it computes.
    pub(super) words: Option<[Word; 2]>,
    bound: u32,
    /// By input, whether it came with the request ([`Lane::is_given`]), if something is computed ahead of the cell's steps, or else nobody asks; of more than so
    /// many the graph is asked. One that the stage does not have is nothing, whatever it is.
    given: u32,
    /// Bytes of rows that the host has of the first step, at most.
    pub(super) hosted: u32,
    /// By output, whether every step's leaves, and whether the last one's does; of more than so many the graph is asked.
    all: u32,
    last: u32,
}

impl Whose {
    /// How many steps its chain executes, as far as is known.
    pub(super) fn executed(&self) -> u32 {
        if self.words.is_none() { self.bound } else { self.lane.executed() }
    }

    /// Whether nobody wants what it computes any more.
    pub(super) fn is_dead(&self) -> bool {
        self.lane.growth.flags.dead.load(Ordering::Relaxed)
    }

    /// Nobody does any more.
    pub(super) fn die(&self) {
        self.lane.growth.flags.dead.store(true, Ordering::Relaxed);
    }

    fn delivery(&self, output: usize) -> Delivery {
        let has = |outputs: u32| outputs >> output & 1 != 0;
        match output < u32::BITS as usize {
            true if has(self.all) => Delivery::All,
            true if has(self.last) => Delivery::Last,
            true => Delivery::None,
            false => self.lane.stage().delivery.get(output).cloned().unwrap_or(Delivery::None),
        }
    }

    /// Whether an output of a step is brought to the host. The last output of a chain that may stop is any of them, until it is known which.
    pub(super) fn brings(&self, output: usize, step: u32) -> bool {
        match self.delivery(output) {
            Delivery::None => false,
            Delivery::All => true,
            Delivery::Last => self.words.is_some() || step + 1 == self.bound,
        }
    }

    /// Whether an input came with the request. Of a cell of which something is computed ahead.
    pub(super) fn is_given(&self, input: usize) -> bool {
        if input < u32::BITS as usize { self.given >> input & 1 != 0 } else { self.lane.is_given(input) }
    }

    /// Whether what is brought of a step that ran leaves the worker.
    pub(super) fn delivers(&self, output: usize, step: u32) -> bool {
        self.delivery(output) != Delivery::Last || step + 1 == self.executed()
    }
}

/// A lane: what most of its steps need, and the rest.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) seat: Seat,
    pub(super) whose: Arc<Whose>,
}

impl Joined {
    pub(super) fn new(lane: Arc<Lane>, words: Option<[Word; 2]>, arena: Arena<'_>) -> Self {
        let (chain, stage, resident) = (lane.chain(), lane.stage(), arena.resident(&lane));
        let bound = chain.length.bound;
        let (mut all, mut last) = (0, 0);
        for (output, delivery) in stage.delivery.iter().enumerate() {
            let bit = if output < u32::BITS as usize { 1 << output } else { 0 };
            match delivery {
                Delivery::None => {}
                Delivery::All => all |= bit,
                Delivery::Last => last |= bit,
            }
        }
        let brings = match stage.delivery.iter().all(|delivery| *delivery == Delivery::None) {
            true => Brings::Never,
            false if words.is_none() && !stage.delivery.contains(&Delivery::All) => Brings::AtItsBound,
            false => Brings::Perhaps,
        };
        // Of a cell that is not there nobody knows.
        let has_ahead = resident.is_none_or(|resident| resident.ahead.is_some());
        let (mut known, mut of_first, mut of_others, mut given) = ([Known::Asked; INPUTS], 0_u32, 0_u32, u32::MAX);
        for (number, input) in stage.inputs.iter().enumerate() {
            let rows = Rows::of(&lane, input);
            let port = resident.and_then(|resident| Some((resident.plan.inputs.get(number)?.bytes, *resident.plan.pieces.get(number)?)));
            let hosted = hosted(input, rows, port.unwrap_or_default());
            of_first = of_first.saturating_add(hosted);
            if input.feedback.is_none() {
                of_others = of_others.saturating_add(hosted);
            }
            if has_ahead && number < u32::BITS as usize && !lane.is_given(number) {
                given &= !(1 << number);
            }
            if let Some(known) = known.get_mut(number) {
                *known = self::known(&lane, (input, rows, port.map(|(bytes, _)| bytes)), arena).unwrap_or(Known::Asked);
            }
        }
        // Nobody looks again: whoever ends a request stops asking for its steps, and what is computed of those that were asked for before is told to nobody.
        let is_dead = lane.growth.flags.dead.load(Ordering::Relaxed);
        let seat = Seat {
            known,
            bound: if is_dead { 0 } else { bound },
            slot: lane.slot(),
            hosted: of_others,
            brings,
            held: Held::of(stage.retention),
            may_stop: words.is_some(),
            goes_together: resident.is_some_and(|resident| together::goes_together(&lane, resident)),
        };
        Self { seat, whose: Arc::new(Whose { words, bound, given, hosted: of_first, all, last, lane }) }
    }
}

/// Reads what joining reads of lanes, one piece of all of them after the other: a graph is many small pieces of memory, which other threads have written, and
/// so not each of them is waited for by itself.
pub(super) fn read_ahead(lanes: &[(LaneId, Arc<Lane>)]) {
    let read = |piece: fn(&Lane) -> usize| {
        black_box(lanes.iter().fold(0, |read, (_, lane)| read ^ piece(lane)));
    };
    read(|lane| lane.stage as usize);
    read(|lane| lane.growth.tensors.len() ^ lane.growth.first_tensor as usize);
    read(|lane| lane.growth.growth.chains.len());
    read(|lane| lane.chain().stages.len() ^ lane.slot().index());
    read(|lane| lane.stage().inputs.len() ^ lane.growth.tensors.first().map_or(0, |tensor| tensor.data.len()));
    read(|lane| lane.stage().inputs.iter().filter(|input| input.feedback.is_some()).count());
    read(|lane| usize::from(lane.stage().delivery.contains(&Delivery::All)));
    read(|lane| lane.growth.tensors.first().map_or(0, |tensor| tensor.shape.first().copied().unwrap_or_default()));
    read(|lane| usize::from(lane.growth.flags.dead.load(Ordering::Relaxed)));
}

/// Rows of a tensor that an input is, if it is.
#[derive(Clone, Copy)]
struct Rows<'a> {
    tensor: &'a Tensor,
    at: Affine,
    /// Of a row.
    bytes: usize,
}

impl<'a> Rows<'a> {
    fn of(lane: &'a Lane, input: &UnfoldedInput) -> Option<Self> {
        let Source::Rows { tensor, at } = &input.source else { return None };
        let tensor = &**lane.growth.tensor(*tensor)?;
        Some(Self { tensor, at: *at, bytes: row_bytes(tensor) })
    }
}

/// Bytes of an input that the host has, where it is not fed back; a little more, as they are aligned. A row of it has so many bytes, in so many pieces.
fn hosted(input: &UnfoldedInput, rows: Option<Rows<'_>>, (bytes, pieces): (u32, u32)) -> u32 {
    let bytes = match &input.source {
        Source::Literal(bytes) => bytes.len(),
        Source::Ints(_) | Source::Index(_) => size_of::<i64>(),
        Source::Rows { .. } => rows.map_or(0, |rows| rows.bytes),
        Source::Frames { .. } => bytes as usize,
        Source::Window(_) => hosted_in_pieces(bytes as usize, pieces as usize),
        Source::Zeros | Source::Steps { .. } | Source::Last { .. } | Source::Nodes { .. } | Source::Sibling { .. } | Source::Span(_) => 0,
    };
    u32::try_from(bytes.next_multiple_of(16)).unwrap_or(u32::MAX / 64)
}

/// What is known in advance of an input, which has so many bytes.
fn known(lane: &Lane, (input, rows, bytes): (&UnfoldedInput, Option<Rows<'_>>, Option<u32>), arena: Arena<'_>) -> Option<Known> {
    let growth = &lane.growth;
    let Some((stage, output)) = input.feedback else {
        let Rows { tensor, at, bytes } = rows?;
        return Given::new(tensor, bytes, at, lane.chain().length.bound).map(Known::Rows);
    };
    let of = lane.chain().stages.get(stage as usize)?;
    let first = *growth.slots.get(lane.chain as usize)?.get(stage as usize)?;
    let (offset, size, stride) = arena.output(*growth.cells.get(of.cell as usize)?, output as usize)?;
    (bytes? as usize == size).then_some(Known::Carried {
        first: arena.address.plus(first.index() * SLOT_BYTES + offset),
        stride: u32::try_from(stride).ok()?,
        places: Places::of(of.retention)?,
        begins_with_zeros: input.source == Source::Zeros,
    })
}
