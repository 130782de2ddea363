//! Lanes as a worker keeps them: what their rows need to know of their request's graph, read once when they join. A graph is many small pieces of memory, and a
//! task of hundreds of rows would look for each of them anew.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellIndex, Lane, LaneIndex, RequestFlags, SLOT_BYTES, Slot};
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source, UnfoldedInput};

use super::given::{Given, row_bytes};
use super::resident::Resident;
use super::together;
use super::words::Word;
use crate::driver::DeviceAddress;

/// Inputs that are kept ready; of more the graph is asked.
const INPUTS: usize = 4;

/// Where an input is, as far as that is known in advance.
#[derive(Debug)]
enum Known {
    /// Where the graph says.
    Asked,
    /// A state that goes from step to step: where the step before leaves it. The first is zeros, or where the graph says.
    Carried {
        first: DeviceAddress,
        /// From place to place of its stage's block.
        stride: u32,
        retention: Retention,
        begins_with_zeros: bool,
    },
    /// Rows of a tensor that came with the request, of all steps of the chain.
    Rows(Given),
}

/// Where an input of a step is.
pub(super) enum At<'a> {
    /// There on the device; null: it is zeros.
    Device(DeviceAddress),
    /// With the host.
    Host(&'a [u8]),
    /// As the graph says it.
    Said,
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

impl<'a> Arena<'a> {
    /// The cell of a lane.
    fn resident(&self, lane: &Lane) -> Option<&'a Resident> {
        self.cells.get(lane.growth.cells.get(lane.stage().cell as usize)?.index())?.as_deref()
    }

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

/// Whose rows a lane's are: what is asked when a task completes, and of few rows before.
#[derive(Debug)]
pub(super) struct Whose {
    pub(super) lane: Arc<Lane>,
    /// Where the ends of its chain and of the one that it follows are noted on the device; none if it runs to its bound whatever it computes.
    pub(super) words: Option<[Word; 2]>,
    bound: u32,
    /// By input, whether it came with the request ([`Lane::is_given`]); of more than so many the graph is asked.
    given: u32,
    /// Bytes of rows that the host has of the first step.
    hosted: u32,
    /// By output, whether every step's leaves, and whether the last one's does; of more than so many the graph is asked.
    all: u32,
    last: u32,
}

impl Whose {
    fn new(lane: Arc<Lane>, words: Option<[Word; 2]>) -> Self {
        let outputs = |wanted: Delivery| {
            let wanted = (0..u32::BITS).zip(&lane.stage().delivery).filter(move |(_, delivery)| **delivery == wanted);
            wanted.fold(0, |outputs, (output, _)| outputs | 1 << output)
        };
        let inputs = &lane.stage().inputs;
        // One that the stage does not have is nothing, whatever it is.
        let late = (0..inputs.len().min(u32::BITS as usize)).filter(|input| !lane.is_given(*input));
        Self {
            words,
            bound: lane.chain().length.bound,
            given: late.fold(u32::MAX, |given, input| given & !(1 << input)),
            hosted: inputs.iter().map(|input| hosted(&lane, input, true)).sum(),
            all: outputs(Delivery::All),
            last: outputs(Delivery::Last),
            lane,
        }
    }

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

    /// Whether what is brought of a step that ran leaves the worker.
    pub(super) fn delivers(&self, output: usize, step: u32) -> bool {
        self.delivery(output) != Delivery::Last || step + 1 == self.executed()
    }
}

/// A lane: what most of its steps need, in two lines of memory, and the rest.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Joined {
    pub(super) whose: Arc<Whose>,
    flags: Arc<RequestFlags>,
    known: [Known; INPUTS],
    bound: u32,
    /// Where its outputs are held.
    pub(super) slot: Slot,
    /// Bytes of rows that the host has of each step but the first, at most.
    hosted: u32,
    brings: Brings,
    pub(super) retention: Retention,
    /// Whether it may end before its bound: whether it has words.
    pub(super) may_stop: bool,
    /// Whether several of its steps may be one batch ([`together`]).
    pub(super) goes_together: bool,
}

const _: () = assert!(size_of::<Option<Joined>>() == 128, "two lines");

impl Joined {
    pub(super) fn new(lane: Arc<Lane>, words: Option<[Word; 2]>, arena: Arena<'_>) -> Self {
        let (chain, stage) = (lane.chain(), lane.stage());
        let brings = match stage.delivery.iter().all(|delivery| *delivery == Delivery::None) {
            true => Brings::Never,
            false if words.is_none() && !stage.delivery.contains(&Delivery::All) => Brings::AtItsBound,
            false => Brings::Perhaps,
        };
        let resident = arena.resident(&lane);
        let mut known = [const { Known::Asked }; INPUTS];
        for (number, (known, input)) in known.iter_mut().zip(&stage.inputs).enumerate() {
            let bytes = resident.and_then(|resident| resident.plan.inputs.get(number)).map(|port| port.bytes);
            *known = self::known(&lane, (input, bytes), arena).unwrap_or(Known::Asked);
        }
        Self {
            flags: Arc::clone(&lane.growth.flags),
            known,
            bound: chain.length.bound,
            slot: lane.slot(),
            hosted: stage.inputs.iter().map(|input| hosted(&lane, input, false)).sum(),
            brings,
            retention: stage.retention,
            may_stop: words.is_some(),
            goes_together: resident.is_some_and(|resident| together::goes_together(&lane, resident)),
            whose: Arc::new(Whose::new(lane, words)),
        }
    }

    /// Whether a step of it is worth computing, as far as the host knows.
    pub(super) fn runs(&self, step: u32) -> bool {
        let executed = if self.may_stop { self.whose.executed() } else { self.bound };
        step < executed && !self.flags.dead.load(Ordering::Relaxed)
    }

    /// Numbers of its words.
    pub(super) fn words(&self) -> Option<[u32; 2]> {
        if self.may_stop { self.whose.words.as_ref().map(|words| words.each_ref().map(|word| word.number)) } else { None }
    }

    /// Whether a step may bring an output to the host.
    pub(super) const fn may_bring(&self, step: u32) -> bool {
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

    /// Bytes that a step takes of an upload beside its lists, at most.
    pub(super) fn hosted_bytes(&self, step: u32) -> u32 {
        if step > 0 { self.hosted } else { self.whose.hosted }
    }

    /// Whether an input came with the request.
    pub(super) fn is_given(&self, input: usize) -> bool {
        if input < u32::BITS as usize { self.whose.given >> input & 1 != 0 } else { self.whose.lane.is_given(input) }
    }

    /// Where an input of a step is.
    #[inline]
    pub(super) fn input(&self, input: usize, step: u32) -> At<'_> {
        match self.known.get(input) {
            Some(Known::Carried { first, stride, retention, .. }) if step > 0 => {
                At::Device(first.plus(retention.place(step - 1) as usize * *stride as usize))
            }
            Some(Known::Carried { begins_with_zeros: true, .. }) => At::Device(DeviceAddress::NULL),
            // SAFETY: it was made for as many steps, of a tensor of the lane's growth, which nobody changes while the lane has it.
            Some(Known::Rows(given)) if step < self.bound => At::Host(unsafe { given.row(step) }),
            _ => At::Said,
        }
    }
}

/// Reads what joining reads of lanes, one piece of all of them after the other: a graph is many small pieces of memory, which other threads have written, and
/// so not each of them is waited for by itself.
pub(super) fn read_ahead(lanes: &[(LaneIndex, Arc<Lane>)]) {
    let read = |piece: fn(&Lane) -> usize| {
        black_box(lanes.iter().fold(0, |read, (_, lane)| read ^ piece(lane)));
    };
    read(|lane| lane.stage as usize);
    read(|lane| lane.growth.tensors.len() ^ lane.growth.first_tensor as usize);
    read(|lane| lane.growth.growth.chains.len());
    read(|lane| lane.chain().stages.len() ^ lane.slot().index());
    read(|lane| lane.stage().inputs.len() ^ lane.growth.tensors.first().map_or(0, |tensor| tensor.data.len()));
    read(|lane| lane.stage().inputs.first().map_or(0, |input| usize::from(input.feedback.is_some())));
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

/// What is known in advance of an input, which has so many bytes.
#[inline]
fn known(lane: &Lane, (input, bytes): (&UnfoldedInput, Option<u32>), arena: Arena<'_>) -> Option<Known> {
    let growth = &lane.growth;
    let Some((stage, output)) = input.feedback else {
        let Source::Rows { tensor, at } = &input.source else { return None };
        return Given::new(growth.tensor(*tensor)?, *at, lane.chain().length.bound).map(Known::Rows);
    };
    let of = lane.chain().stages.get(stage as usize)?;
    let first = *growth.slots.get(lane.chain as usize)?.get(stage as usize)?;
    let (offset, size, stride) = arena.output(*growth.cells.get(of.cell as usize)?, output as usize)?;
    (bytes? as usize == size).then_some(Known::Carried {
        first: arena.address.plus(first.index() * SLOT_BYTES + offset),
        stride: u32::try_from(stride).ok()?,
        retention: of.retention,
        begins_with_zeros: input.source == Source::Zeros,
    })
}
