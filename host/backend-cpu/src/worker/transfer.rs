//! Rows into a frame and out of it: the arena, the request's tensors and literals on one side, the plan's inputs and outputs on the other.

use std::ops::Range;
use std::sync::Arc;

use cellwright_backend::{InputRef, Lane, SLOT_BYTES};
use cellwright_cell_graph::hoist::Feed;
use cellwright_cell_graph::unfolded::Retention;

use super::ahead::Given;
use super::{Active, Loaded};
use crate::arena::Arena;
use crate::compiled::Body;
use crate::kernels::element::Element;
use crate::plan::{Input, Memory, Plan, share};
use crate::team::Team;

/// Bytes below which one thread copies and packs alone.
const WORTH_SHARING: usize = 64 << 10;

/// What transfers of one step need.
#[derive(Clone, Copy)]
pub(super) struct Transfer<'a> {
    pub(super) arena: &'a Arena,
    pub(super) cells: &'a [Option<Loaded>],
    pub(super) lanes: &'a [Option<Arc<Lane>>],
    pub(super) loaded: &'a Loaded,
    /// What of the cell is run.
    pub(super) body: &'a Body,
    pub(super) memory: Memory<'a>,
    /// What the cell's first half gave.
    pub(super) given: Option<&'a Given>,
}

/// Calls `work` with the part of the rows that each thread has; one thread alone if there are few bytes.
pub(super) fn by_rows(team: &mut Team, rows: usize, row_bytes: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    if rows < 2 || rows * row_bytes < WORTH_SHARING {
        return work(0..rows);
    }
    let threads = team.size();
    team.run(&|thread| work(share(rows, thread, threads)));
}

impl Transfer<'_> {
    pub(super) fn lane(&self, active: &Active) -> Option<&Lane> {
        self.lanes.get(active.row.lane.index()).and_then(Option::as_deref)
    }

    /// Fills the plan's inputs.
    pub(super) fn gather(&self, batch: &[Active], team: &mut Team) {
        let inputs = &self.body.plan.inputs;
        by_rows(team, batch.len(), inputs.iter().map(|input| input.bytes).sum(), &|rows| {
            for row in rows {
                let lane = self.lane(&batch[row]).filter(|_| !batch[row].is_padding);
                for (feed, input) in self.body.feeds.iter().zip(inputs) {
                    match feed {
                        Feed::Own(index) => {
                            let from = lane.map_or(InputRef::Zeros, |lane| lane.input(*index as usize, batch[row].row.step));
                            self.fill(from, input, (row, batch.len()));
                        }
                        Feed::Pre(output) => self.fill_given(&batch[row], *output as usize, input, (row, batch.len())),
                    }
                }
            }
        });
    }

    /// Writes a row of one input, of which so many are gathered, or packs it.
    pub(super) fn fill(&self, from: InputRef<'_>, input: &Input, row: (usize, usize)) {
        match from {
            InputRef::Slot { first, place, output, cell } => {
                let producer = self.cells.get(cell.index()).and_then(Option::as_ref);
                let Some(layout) = producer.map(|producer| &producer.layout) else { return zero(input, self.memory, row) };
                let output = output as usize;
                if layout.sizes.get(output) != Some(&input.bytes) {
                    debug_assert!(false, "the graph was checked");
                    return zero(input, self.memory, row);
                }
                let offset = layout.slot(first, place).index() * SLOT_BYTES + layout.offsets[output];
                // SAFETY: these bytes are in the arena; what wrote the node has run, and nothing writes it now (the scheduler's promise).
                unsafe { self.put(self.arena.bytes(offset, input.bytes), input, row) }
            }
            // SAFETY: so many bytes are there.
            InputRef::Host(bytes) if bytes.len() == input.bytes => unsafe { self.put(bytes.as_ptr(), input, row) },
            InputRef::Int(number) => match input.element {
                // SAFETY: so many bytes are there, if it is one number.
                Element::I64 if input.bytes == size_of::<i64>() => unsafe { self.put(number.to_ne_bytes().as_ptr(), input, row) },
                // SAFETY: as above.
                Element::I32 if input.bytes == size_of::<i32>() => unsafe { self.put((number as i32).to_ne_bytes().as_ptr(), input, row) },
                _ => zero(input, self.memory, row),
            },
            InputRef::Zeros | InputRef::Host(_) => {
                debug_assert!(matches!(from, InputRef::Zeros), "the graph was checked");
                zero(input, self.memory, row);
            }
        }
    }

    /// Writes one row of one input from what the first half gave.
    fn fill_given(&self, active: &Active, output: usize, input: &Input, row: (usize, usize)) {
        match self.given.and_then(|rows| rows.at(active.given, output)) {
            // SAFETY: the first half gave as many bytes.
            Some(from) => unsafe { self.put(from, input, row) },
            None => {
                debug_assert!(active.is_padding, "the first half ran before the second");
                zero(input, self.memory, row);
            }
        }
    }

    /// Copies a row of an input to where it is read, and packs it for products.
    ///
    /// # Safety
    /// As many bytes can be read as the input has.
    unsafe fn put(&self, from: *const u8, input: &Input, (row, of): (usize, usize)) {
        if let Some(place) = input.place {
            // SAFETY: the caller's promise; the frame has this row of this input, which no other thread writes.
            unsafe { std::ptr::copy_nonoverlapping(from, self.memory.at(place, row), input.bytes) }
        }
        if let Some(packed) = &input.packed {
            // SAFETY: as above; kernels were chosen for this processor.
            unsafe { packed.packing.pack(from, self.memory.packed(packed), (row, of)) }
        }
    }

    /// Leaves the plan's outputs in the slots of those rows whose nodes are held.
    pub(super) fn scatter(&self, batch: &[Active], team: &mut Team) {
        let outputs = &self.body.plan.outputs;
        let layout = &self.loaded.layout;
        by_rows(team, batch.len(), outputs.iter().map(|output| output.bytes).sum(), &|rows| {
            for row in rows {
                let active = &batch[row];
                let Some(lane) = self.lane(active).filter(|_| !active.is_padding && !active.is_refused) else { continue };
                let retention = lane.stage().retention;
                if retention == Retention::None {
                    continue;
                }
                let node = layout.slot(lane.slot(), retention.place(active.row.step)).index() * SLOT_BYTES;
                for (output, offset) in outputs.iter().zip(&layout.offsets) {
                    // SAFETY: the frame has this row of this output; the node's slots are this lane's alone (the scheduler's promise).
                    unsafe { self.arena.write(node + offset, self.memory.at(output.place, row), output.bytes) };
                }
            }
        });
    }

    /// A row of an output.
    pub(super) fn output(&self, output: usize, row: usize) -> &[u8] {
        let Some(terminal) = self.body.plan.outputs.get(output) else { return &[] };
        // SAFETY: the frame has this row of this output, and nobody writes it between a step's end and the next one's beginning.
        unsafe { std::slice::from_raw_parts(self.memory.at(terminal.place, row), terminal.bytes) }
    }
}

/// Zeroes a row of an input, of which there are so many.
fn zero(input: &Input, memory: Memory<'_>, (row, of): (usize, usize)) {
    if let Some(place) = input.place {
        // SAFETY: callers pass a row that the frame has of this input, and that no other thread writes.
        unsafe { std::ptr::write_bytes(memory.at(place, row), 0, input.bytes) }
    }
    if let Some(packed) = &input.packed {
        // SAFETY: as above.
        unsafe { packed.packing.pack_zeros(memory.packed(packed), (row, of)) }
    }
}

/// Makes every input of a frame zeros.
pub(super) fn zero_inputs(plan: &Plan, memory: Memory<'_>, rows: usize) {
    for input in &plan.inputs {
        (0..rows).for_each(|row| zero(input, memory, (row, rows)));
    }
}
