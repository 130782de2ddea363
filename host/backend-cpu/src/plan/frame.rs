//! The memory in which a plan runs, and how threads find their way in it.

use cellwright_backend::WORKING_BYTES;

use super::{LeftPlace, Output, Packed, Place, Plan, Pointed};
use crate::matrix::{Left, PackedRows};
use crate::memory::Lines;

/// The memory in which a plan runs, reused from task to task.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    lines: Lines,
    /// Where each buffer begins, behind them where packed rows do, and behind these where pointers to rows do.
    offsets: Vec<usize>,
    /// Where registers begin, and how many bytes of them a thread has.
    registers: (usize, usize),
    /// The same of products' scratch memory.
    scratch: (usize, usize),
}

/// A frame's memory as threads see it.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    base: *mut u8,
    offsets: &'a [usize],
    strides: &'a [usize],
    registers: (usize, usize),
    scratch: (usize, usize),
    /// Rows that there is room for.
    rows: usize,
    /// How many inputs and outputs have pointers.
    pointed: usize,
    /// The row of the frame that is its row 0.
    pub(super) first: usize,
    /// Whether products begin with the last of their columns: in turns, what one run read last the next finds near.
    pub(super) backwards: bool,
}

// SAFETY: threads that share it write different rows or columns of a buffer, and registers of their own.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl Memory<'_> {
    /// A row's value at a place.
    pub(crate) fn at(&self, place: Place, row: usize) -> *mut u8 {
        // The frame has room for every row of every buffer (`Frame::prepare`).
        self.base.wrapping_add(self.offsets[place.buffer] + place.offset + (self.first + row) * self.strides[place.buffer])
    }

    /// As one thread has it that computes alone from that row on.
    pub(super) fn of_thread(self, thread: usize, first: usize) -> Self {
        let own = |(begin, bytes): (usize, usize)| (begin + thread * bytes, bytes);
        Self { registers: own(self.registers), scratch: own(self.scratch), first: self.first + first, ..self }
    }

    /// The same for a run whose products begin with the last of their columns, or not.
    pub(crate) const fn running(self, backwards: bool) -> Self {
        Self { backwards, ..self }
    }

    pub(super) fn stride(&self, place: Place) -> usize {
        self.strides[place.buffer]
    }

    /// Rows that are packed.
    pub(crate) fn packed(&self, packed: &Packed) -> PackedRows {
        let begin = self.offsets[self.strides.len() + packed.number];
        packed.packing.rows_at(self.base.wrapping_add(begin), self.rows).beginning_at(self.first)
    }

    /// Where an output's row is left.
    pub(crate) fn output(&self, output: &Output, row: usize) -> *mut u8 {
        assert!(self.first + row < self.rows, "the frame has this row");
        match output.pointed {
            // SAFETY: the frame has a pointer for each row, which `Frame::prepare` set.
            Some(pointed) => unsafe { (*self.pointers(pointed).add(row)).cast_mut().cast() },
            None => self.at(output.place, row),
        }
    }

    /// Where each row's pointer is, of those that are read or written where they lie.
    pub(crate) fn pointers(&self, pointed: Pointed) -> *mut *const f32 {
        debug_assert!(pointed.0 < self.pointed, "pointers stand behind everything else");
        let begin = self.offsets[self.offsets.len() - 1 - pointed.0];
        self.base.wrapping_add(begin).cast::<*const f32>().wrapping_add(self.first)
    }

    /// Left-hand sides of a product of one row for each of the batch.
    pub(super) fn left(&self, left: &LeftPlace) -> Left {
        match left {
            LeftPlace::Floats(place) => Left::floats(self.at(*place, 0).cast(), self.stride(*place) / size_of::<f32>()),
            LeftPlace::Pointed(pointed) => Left::pointed(self.pointers(*pointed).cast_const()),
            LeftPlace::Packed(packed) => Left::packed(self.packed(packed)),
        }
    }

    pub(super) fn scratch(&self, thread: usize) -> *mut f32 {
        self.base.wrapping_add(self.scratch.0 + thread * self.scratch.1).cast()
    }

    pub(super) fn register(&self, thread: usize, offset: usize) -> *mut u8 {
        self.base.wrapping_add(self.registers.0 + thread * self.registers.1 + offset)
    }
}

impl Frame {
    /// Gives back what is much: a cell of very long rows is not to leave its memory to those of short ones.
    pub(crate) fn shrink(&mut self) -> Option<Self> {
        (self.bytes() as u64 > WORKING_BYTES).then(|| std::mem::take(self))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// Makes room for a plan's buffers of that many rows and for its threads' registers. Outputs are left in it until they are pointed elsewhere.
    pub(crate) fn prepare<'a>(&'a mut self, plan: &'a Plan, rows: usize, threads: usize) -> Memory<'a> {
        // Two at least: a product of one row may be computed as two.
        let rows = rows.max(2);
        let mut end = 0;
        self.offsets.clear();
        for stride in &plan.strides {
            self.offsets.push(end);
            end += (stride * rows).next_multiple_of(64);
        }
        for packing in &plan.packings {
            self.offsets.push(end);
            end += packing.bytes(rows);
        }
        for _ in 0..plan.pointed {
            self.offsets.push(end);
            end += (rows * size_of::<*const f32>()).next_multiple_of(64);
        }
        self.registers = (end, plan.register_bytes.next_multiple_of(64));
        end += self.registers.1 * threads;
        self.scratch = (end, (plan.scratch(rows) * size_of::<f32>()).next_multiple_of(64));
        self.lines.reserve(end + self.scratch.1 * threads);
        let Self { lines, offsets, registers, scratch } = self;
        let memory = Memory {
            base: lines.pointer_mut(),
            offsets,
            strides: &plan.strides,
            registers: *registers,
            scratch: *scratch,
            rows,
            pointed: plan.pointed,
            first: 0,
            backwards: false,
        };
        for (output, pointed) in plan.outputs.iter().filter_map(|output| Some((output, output.pointed?))) {
            for row in 0..rows {
                // SAFETY: there is room for as many pointers.
                unsafe { *memory.pointers(pointed).add(row) = memory.at(output.place, row).cast_const().cast() };
            }
        }
        memory
    }
}
