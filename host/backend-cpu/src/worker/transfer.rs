//! Rows into a frame and out of it: arena, request tensors and literals on one side, the plan's
//! inputs and outputs on the other.
//!
//! The frame has a pointer for each row that is read or written where it lies (`plan::moves`). It
//! has room for rows without such a place: zeros, unaligned bytes, values that nobody holds.
//! Writing an output straight into the arena is sound for two reasons. A lane's next node never has
//! the place of the node that it reads, and all other readers of a place have run before it is
//! given away.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use cellwright_backend::{InputRef, Lane, Piece, SLOT_BYTES};
use cellwright_cell_graph::hoist::Feed;
use cellwright_cell_graph::unfolded::Retention;

use super::ahead::Given;
use super::{Active, Loaded};
use crate::arena::Arena;
use crate::compiled::Body;
use crate::kernels::attention::Stretch;
use crate::kernels::element::Element;
use crate::plan::{Input, Memory, Place, Plan, share};
use crate::team::Team;

/// Bytes below which one thread copies and packs alone.
const WORTH_SHARING: usize = 64 << 10;
/// Bytes that are copied while it is found where a row lies.
const FINDING: usize = 512;

/// Where rows come from and go to.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    pub(super) arena: &'a Arena,
    pub(super) cells: &'a [Option<Arc<Loaded>>],
    pub(super) lanes: &'a [Option<Arc<Lane>>],
    /// The cell that is run.
    pub(super) loaded: &'a Loaded,
}

impl<'a> Ends<'a> {
    pub(super) fn lane(&self, active: &Active) -> Option<&'a Lane> {
        self.lanes.get(active.row.lane.index()).and_then(Option::as_deref)
    }

    /// Where so many bytes of an output of a node are in the arena. What wrote the node has run, and nothing writes it now (the scheduler's promise).
    pub(super) fn held(&self, from: InputRef<'_>, bytes: usize) -> Option<*const u8> {
        let InputRef::Slot { first, place, output, cell } = from else { return None };
        let layout = &self.cells.get(cell.index())?.as_ref()?.layout;
        let is_so_large = layout.sizes.get(output as usize) == Some(&bytes);
        debug_assert!(is_so_large, "the graph was checked");
        let offset = layout.slot(first, place).index() * SLOT_BYTES + layout.offsets.get(output as usize)?;
        is_so_large.then(|| self.arena.bytes(offset, bytes))
    }

    /// Where the rows of a piece are, of so many bytes each.
    pub(super) fn stretch(&self, piece: Piece<'_>, row_bytes: usize) -> Option<Stretch> {
        let (at, row_stride) = match piece.first {
            InputRef::Slot { cell, .. } => {
                let layout = &self.cells.get(cell.index())?.as_ref()?.layout;
                (self.held(piece.first, row_bytes)?, layout.slots as usize * SLOT_BYTES)
            }
            InputRef::Host(bytes) => {
                let last = (piece.rows as usize - 1) * piece.every as usize * row_bytes;
                debug_assert!(bytes.len() >= last + row_bytes, "the graph was checked");
                (bytes.get(..last + row_bytes)?.as_ptr(), row_bytes)
            }
            _ => return None,
        };
        Some(Stretch { at, stride: row_stride * piece.every as usize, rows: piece.rows as usize })
    }
}

/// What transfers of one step need.
#[derive(Clone, Copy)]
pub(super) struct Transfer<'a> {
    pub(super) ends: Ends<'a>,
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
        self.ends.lane(active)
    }

    /// Fills the plan's inputs, and points outputs to where they are `held`, if they are. What inputs point to is in the lanes' requests, a table or a frame of first halves, none of which is written before the
    /// plan has run, or in slots of the arena, of which it writes others.
    pub(super) fn gather(&self, batch: &[Active], held: bool, team: &mut Team) {
        let inputs = &self.body.plan.inputs;
        let moved = inputs.iter().map(|input| if input.pointed.is_some() { FINDING } else { input.bytes }).sum();
        by_rows(team, batch.len(), moved, &|rows| {
            for row in rows {
                if held {
                    self.point_outputs(&batch[row], row);
                }
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

    /// Writes a row of one input, of which so many are gathered, packs it, or points to it.
    pub(super) fn fill(&self, from: InputRef<'_>, input: &Input, row: (usize, usize)) {
        match from {
            InputRef::Slot { .. } => match self.ends.held(from, input.bytes) {
                // SAFETY: so many bytes are there, and stay.
                Some(bytes) => unsafe { put(bytes, input, self.memory, row) },
                None => zero(input, self.memory, row),
            },
            InputRef::Frame(frame) => assemble(input, self.memory, row, |into| frame.copy_to(into)),
            InputRef::Window(window) => assemble(input, self.memory, row, |into| {
                let size = into.len() / window.count().max(1);
                for (own, from) in into.chunks_exact_mut(size.max(1)).zip(window.rows()) {
                    match (from, self.ends.held(from, size)) {
                        // SAFETY: so many bytes are there, apart from the frame.
                        (_, Some(bytes)) => unsafe { std::ptr::copy_nonoverlapping(bytes, own.as_mut_ptr(), size) },
                        (InputRef::Host(bytes), None) if bytes.len() == size => own.copy_from_slice(bytes),
                        _ => own.fill(0),
                    }
                }
            }),
            // SAFETY: so many bytes are there.
            InputRef::Host(bytes) if bytes.len() == input.bytes => unsafe { put(bytes.as_ptr(), input, self.memory, row) },
            // What is pointed to is made of floats: nobody is pointed to a number that is gone when the plan runs.
            InputRef::Int(number) => match input.element {
                // SAFETY: so many bytes are there, if it is one number.
                Element::I64 if input.bytes == size_of::<i64>() => unsafe { put(number.to_ne_bytes().as_ptr(), input, self.memory, row) },
                // SAFETY: as above.
                Element::I32 if input.bytes == size_of::<i32>() => unsafe {
                    put((number as i32).to_ne_bytes().as_ptr(), input, self.memory, row)
                },
                _ => zero(input, self.memory, row),
            },
            InputRef::Zeros | InputRef::Host(_) | InputRef::Span(_) => {
                debug_assert!(matches!(from, InputRef::Zeros), "the graph was checked");
                zero(input, self.memory, row);
            }
        }
    }

    /// The same of a row that the first half gave.
    fn fill_given(&self, active: &Active, output: usize, input: &Input, row: (usize, usize)) {
        match self.given.and_then(|rows| rows.at(active.given, output)) {
            // SAFETY: the first half gave as many bytes.
            Some(from) => unsafe { put(from, input, self.memory, row) },
            None => {
                debug_assert!(active.is_padding, "the first half ran before the second");
                zero(input, self.memory, row);
            }
        }
    }

    /// Where a row's node is in the arena, if it is held.
    fn node(&self, active: &Active) -> Option<usize> {
        let lane = self.lane(active).filter(|_| !active.is_padding && !active.is_refused)?;
        let retention = lane.stage().retention;
        let slot = (retention != Retention::None).then(|| self.ends.loaded.layout.slot(lane.slot(), retention.place(active.row.step)))?;
        Some(slot.index() * SLOT_BYTES)
    }

    /// Points a row's outputs that may be written where they will be read to the slots of its node, if that is held. What lies there everybody has read who is to: a lane holds every step's node, or the last two, of
    /// which the elder waits for its readers before its place is another's (`cell-graph`'s `check`), and no row of a batch waits for another. What is written of a row that is refused nobody reads.
    fn point_outputs(&self, active: &Active, row: usize) {
        let outputs = &self.body.plan.outputs;
        let Some(node) = self.node(active).filter(|_| outputs.iter().any(|output| output.pointed.is_some())) else { return };
        for (output, offset) in outputs.iter().zip(&self.ends.loaded.layout.offsets) {
            if let Some(pointed) = output.pointed {
                // Outputs begin with slots, which are aligned to more than floats.
                let into = self.ends.arena.bytes_mut(node + offset, output.bytes).cast::<f32>();
                // SAFETY: the frame has a pointer for each row.
                unsafe { *self.memory.pointers(pointed).add(row) = into };
            }
        }
    }

    /// Leaves the plan's outputs in the slots of those rows whose nodes are held, if they are not there already.
    pub(super) fn scatter(&self, batch: &[Active], team: &mut Team) {
        let outputs = &self.body.plan.outputs;
        let moved = outputs.iter().map(|output| if output.pointed.is_some() { FINDING } else { output.bytes }).sum();
        by_rows(team, batch.len(), moved, &|rows| {
            for row in rows {
                let Some(node) = self.node(&batch[row]) else { continue };
                for (output, offset) in outputs.iter().zip(&self.ends.loaded.layout.offsets) {
                    let from = self.memory.output(output, row).cast_const();
                    if from != self.ends.arena.bytes(node + offset, output.bytes) {
                        // SAFETY: the frame has this row of this output; the node's slots are this lane's alone (the scheduler's promise).
                        unsafe { self.ends.arena.write(node + offset, from, output.bytes) };
                    }
                }
            }
        });
    }

    /// A row of an output.
    pub(super) fn output(&self, output: usize, row: usize) -> &[u8] {
        let Some(terminal) = self.body.plan.outputs.get(output) else { return &[] };
        // SAFETY: the row of this output is there, and nobody writes it between a step's end and the next one's beginning.
        unsafe { std::slice::from_raw_parts(self.memory.output(terminal, row), terminal.bytes) }
    }
}

/// Copies a row of an input, of which there are so many, to where it is read, packs it for products, or says where it lies.
///
/// # Safety
/// As many bytes can be read as the input has, until the plan has run; no other thread writes the frame's row.
pub(super) unsafe fn put(from: *const u8, input: &Input, memory: Memory<'_>, (row, of): (usize, usize)) {
    if let Some(pointed) = input.pointed
        && from.cast::<f32>().is_aligned()
    {
        // SAFETY: the frame has a pointer for each row.
        unsafe { *memory.pointers(pointed).add(row) = from.cast() };
        return;
    }
    if let Some(place) = input.place {
        // SAFETY: the caller's promise; the frame has this row of this input.
        unsafe { std::ptr::copy_nonoverlapping(from, memory.at(place, row), input.bytes) }
        point_to_place(input, place, memory, row);
    }
    // SAFETY: the caller's promise.
    unsafe { pack(from, input, memory, (row, of)) }
}

/// Packs a row of an input, of which there are so many, for products.
///
/// # Safety
/// As many bytes can be read as the input has; no other thread writes the frame's row.
unsafe fn pack(from: *const u8, input: &Input, memory: Memory<'_>, row: (usize, usize)) {
    for packed in &input.packed {
        // SAFETY: the caller's promise; kernels were chosen for this processor, and the plan has the weight.
        unsafe { packed.packing.pack(from, memory.packed(packed), row) }
    }
}

/// Makes a row of an input, of which there are so many, of pieces that `fill` writes.
fn assemble(input: &Input, memory: Memory<'_>, row: (usize, usize), fill: impl FnOnce(&mut [u8])) {
    thread_local! {
        /// For rows that are only packed.
        static APART: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    if let Some(place) = input.place {
        let at = memory.at(place, row.0);
        // SAFETY: the frame has this row of this input, and no other thread writes it.
        fill(unsafe { std::slice::from_raw_parts_mut(at, input.bytes) });
        point_to_place(input, place, memory, row.0);
        // SAFETY: the row was just written.
        return unsafe { pack(at, input, memory, row) };
    }
    APART.with_borrow_mut(|apart| {
        apart.resize(input.bytes, 0);
        fill(apart);
        // SAFETY: so many bytes are there.
        unsafe { pack(apart.as_ptr(), input, memory, row) }
    });
}

/// Of an input that is pointed to: the row is in its own place.
fn point_to_place(input: &Input, place: Place, memory: Memory<'_>, row: usize) {
    if let Some(pointed) = input.pointed {
        // SAFETY: the frame has a pointer for each row.
        unsafe { *memory.pointers(pointed).add(row) = memory.at(place, row).cast_const().cast() };
    }
}

/// Zeroes a row of an input, of which there are so many.
fn zero(input: &Input, memory: Memory<'_>, (row, of): (usize, usize)) {
    if let Some(place) = input.place {
        // SAFETY: callers pass a row that the frame has of this input, and that no other thread writes.
        unsafe { std::ptr::write_bytes(memory.at(place, row), 0, input.bytes) }
        point_to_place(input, place, memory, row);
    }
    for packed in &input.packed {
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use cellwright_cell_graph::typed::Precision;
    use cellwright_cell_graph::{Datatype, Tensor, sums};
    use cellwright_conformance::cells::Draft;

    use super::*;
    use crate::level::{Kernels, Level};
    use crate::matrix::Packs;
    use crate::plan::Frame;

    #[test]
    fn rows_that_sums_begin_with_are_read_where_they_lie_or_copied_if_they_cannot_be() {
        let (n, k) = (33, 9);
        let weight: Vec<f32> = (0..k * n).map(|at| (at % 7) as f32 - 3.0).collect();
        for precision in Precision::ALL {
            let cell = Draft::new("step")
                .input("z", Datatype::Fp32, &[n])
                .input("h", Datatype::Fp32, &[k])
                .weight(Tensor::from_f32("u", &[k, n], &weight))
                .operator("Gemm", &["h", "u", "z"], &["sum"])
                .output("sum", Datatype::Fp32, &[n])
                .at(precision)
                .resolve();
            let how = (Level::detect(), Kernels::Best);
            let plan = Plan::compile((&cell, &sums::find(&cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
            let [z, h] = &plan.inputs[..] else { panic!("two inputs") };
            let place = z.place.expect("room for rows that are copied");
            assert!(z.pointed.is_some());
            let bytes = |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_ne_bytes).collect::<Vec<u8>>();
            let (begin, state) = (bytes(&mut (0..n).map(|at| at as f32 * 0.5)), bytes(&mut (0..k).map(|at| at as f32 - 4.0)));
            // The allocator aligns bytes to more than one; a byte further on they are not.
            let moved: Vec<u8> = std::iter::once(0).chain(begin.iter().copied()).collect();
            let mut frame = Frame::default();
            let memory = frame.prepare(&plan, 3, 1);
            // SAFETY: inputs have as many bytes, which outlive the run, and the frame as many rows.
            let copied = unsafe {
                put(begin.as_ptr(), z, memory, (0, 3));
                put(moved[1..].as_ptr(), z, memory, (1, 3));
                zero(z, memory, (2, 3));
                (0..3).for_each(|row| put(state.as_ptr(), h, memory, (row, 3)));
                [0, 1, 2].map(|row| std::slice::from_raw_parts(memory.at(place, row), z.bytes) == begin)
            };
            assert_eq!(copied, [false, true, false], "{precision}");
            let mut team = Team::new(1, Duration::ZERO, None).expect("one thread");
            plan.run(memory, 3, &mut team, &Mutex::default());
            // SAFETY: the frame has these rows of the output.
            let rows = [0, 1, 2].map(|row| unsafe { std::slice::from_raw_parts(memory.at(plan.outputs[0].place, row).cast::<f32>(), n) });
            assert_eq!(rows[0], rows[1], "{precision}");
            for (at, (sum, product)) in rows[0].iter().zip(rows[2]).enumerate() {
                let begun = product + at as f32 * 0.5;
                assert!((sum - begun).abs() < 1e-3, "{precision}: {sum} instead of {begun}");
            }
        }
    }
}
