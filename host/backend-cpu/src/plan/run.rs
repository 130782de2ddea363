//! Carries a plan out over the rows of a frame. Nothing here allocates.
//!
//! A team shares the work by columns or by rows:
//!
//! - By columns for few rows, or if the last cache does not keep the weights. Each thread computes
//!   some columns of every product, so each weight is read by one thread. The rest of the plan goes
//!   on by rows, and most sums of a row come from other cores.
//! - By rows from 16 rows a thread on, if the last cache keeps all weights in use, those of the
//!   first half included (`cache`). Each thread takes its rows through the whole plan, and threads
//!   meet at its end only.
//!
//! A task that runs in slices ([`crate::slices`]) is shared by columns alone. Long products are then
//! cut by columns, long groups by tiles and instructions, and all else by rows. No bit depends on a
//! cut.
//!
//! A large batch that is shared by rows is computed in parts of about 32 rows a thread. So its rows
//! stay in a near cache from step to step. AMX multiplies faster than weights are read: it stays
//! with columns and large parts, and so do products of the library.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cellwright_backend::WORKING_BYTES;

use super::frame::Memory;
use super::{Assembly, Group, Instruction, LeftPlace, Linear, Lookup, Place, Plan, Source, Step, StepKind, Whole};
use crate::kernels::element::Element;
use crate::kernels::rows::Rows;
use crate::matrix::{Left, Packing, Sharing, TERMS, Target, Units};
use crate::memory::Lines;
use crate::slices;
use crate::team::Team;

/// Work below so many picoseconds is done by one thread: waking another takes as long.
const WORTH_SHARING_PS: usize = 4_000_000;

/// How long a part of a step takes about, in picoseconds, where a slice may end behind each.
const PART_PS: usize = 250_000_000;

/// Bytes of a frame that stay near while a thread works on its part of them.
const NEAR_BYTES: usize = 1280 << 10;
/// Rows of each thread from which on it computes all of its own, where it can read all weights for them: nobody waits for others between steps, and what a step
/// leaves is near to whoever goes on with it.
const ROWS_EACH: usize = 16;
/// Rows of each thread that are worth reading such weights for.
const ROWS_NEAR: usize = 32;
/// Rows of each thread for which weights are read once, so that reading them stays in the background however many threads there are; and how many
/// they are at least: a weight as large as the last cache comes from memory each time.
const ROWS_WORTH: usize = 16;
const ROWS_LEAST: usize = 256;

/// A row that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RefusedRow {
    pub(crate) row: usize,
    pub(crate) why: Refusal,
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// It asked for a row that its table does not have.
    Index { index: i64, rows: u64 },
    /// It asked for a row that its span does not have.
    SpanIndex { index: i64, rows: u64 },
    /// Its span has fewer rows than it takes.
    TooFewRows { rows: u64, needed: u64 },
}

/// The part of `rows` that one of several threads has.
pub(crate) fn share(rows: usize, thread: usize, threads: usize) -> Range<usize> {
    rows * thread / threads..rows * (thread + 1) / threads
}

impl Plan {
    /// Floats of scratch memory that a thread needs for products of so many rows of a batch.
    pub(super) fn scratch(&self, rows: usize) -> usize {
        let of = |step: &super::Step| match &step.kind {
            // What is packed already is where it was gathered.
            StepKind::Linear(linear) if linear.lefts.iter().all(|(left, _)| matches!(left, LeftPlace::Packed(_))) => 0,
            StepKind::Linear(linear) => linear.product.scratch(rows * linear.lead),
            StepKind::Project(projection) => projection.scratch(rows),
            _ => 0,
        };
        self.steps.iter().map(of).max().unwrap_or(0)
    }

    /// Bytes of a row in all buffers.
    pub(crate) fn row_bytes(&self) -> usize {
        (self.strides.iter().sum::<usize>() + self.packings.iter().map(Packing::row_bytes).sum::<usize>()).max(1)
    }

    /// How many rows take no more than so many bytes; one at least.
    pub(crate) fn rows_within(&self, bytes: usize) -> usize {
        (bytes / self.row_bytes()).max(1)
    }

    /// Bytes of a frame for each row, with what so many threads need for it.
    pub(crate) fn frame_row_bytes(&self, threads: usize) -> usize {
        let scratch = |step: &Step| if let StepKind::Project(projection) = &step.kind { projection.scratch_row_bytes() } else { 0 };
        self.row_bytes() + threads * self.steps.iter().map(scratch).max().unwrap_or(0)
    }

    /// In how many parts of about equal size so many rows are computed, one at least. Parts have as many rows as stay in the threads' near caches from the
    /// gathering of their inputs to the scattering of their outputs, or so many that reading all weights for them is worth it; fewer if they are so long that
    /// they would take too much memory.
    pub(crate) fn parts(&self, rows: usize, threads: usize) -> usize {
        let row = self.row_bytes();
        let near = NEAR_BYTES * threads / row;
        let parts = if self.is_read_by_all {
            // Few more rows than that are no reason for parts of half the size.
            let near = near.max(ROWS_NEAR * threads);
            (rows + near / 2) / near
        } else {
            // Rounded numbers, and floats by AMX, are multiplied several times as fast as they are read.
            let is_rounded = self.steps.iter().any(|step| step.kind.product().is_some_and(|(product, _)| product.is_rounded()));
            let worth = (ROWS_WORTH * threads * if is_rounded { 4 } else { 1 }).max(ROWS_LEAST);
            rows.div_ceil(near.max(worth))
        };
        let within = WORKING_BYTES as usize / self.frame_row_bytes(threads);
        parts.max(rows.div_ceil(within.max(1))).max(1)
    }

    /// Whether each of several threads computes all of its rows, and not some columns of all.
    pub(super) fn is_split_by_rows(&self, rows: usize, threads: usize) -> bool {
        threads > 1 && rows >= ROWS_EACH * threads && self.is_read_by_all && self.is_worth_sharing(rows) && !slices::is_sliced()
    }

    fn is_worth_sharing(&self, rows: usize) -> bool {
        self.steps.iter().map(|step| step.row_ps).sum::<usize>().saturating_mul(rows) >= WORTH_SHARING_PS
    }

    /// Computes outputs from inputs for the first `rows` rows of a frame that was prepared for this plan and at least as many rows. Rows that
    /// name what is not there are reported, and computed on something else. Inputs were gathered, or zeroed, before: packed ones as so many rows, and what is pointed to is still there. Where outputs are pointed
    /// to nobody else reads or writes meanwhile.
    pub(crate) fn run(&self, memory: Memory<'_>, rows: usize, team: &mut Team, refused: &Mutex<Vec<RefusedRow>>) {
        self.run_steps((memory, rows), team, refused, None);
    }

    /// As [`Self::run`], saying how long products took, the first thread's if each computes rows of its own, and everything else.
    pub(crate) fn run_timed(
        &self,
        memory: Memory<'_>,
        rows: usize,
        team: &mut Team,
        refused: &Mutex<Vec<RefusedRow>>,
    ) -> (Duration, Duration) {
        let times = Mutex::default();
        self.run_steps((memory, rows), team, refused, Some(&times));
        times.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_steps(
        &self,
        (memory, rows): (Memory<'_>, usize),
        team: &mut Team,
        refused: &Mutex<Vec<RefusedRow>>,
        times: Option<&Mutex<(Duration, Duration)>>,
    ) {
        let threads = team.size();
        if self.is_split_by_rows(rows, threads) {
            let began = Instant::now();
            team.run(&|thread| {
                let mine = share(rows, thread, threads);
                let memory = memory.of_thread(thread, mine.start);
                for step in &self.steps {
                    timed(step, times.filter(|_| thread == 0), || step.run(self, (memory, mine.len()), 1, refused, |job| job(0)));
                }
            });
            if let Some(times) = times {
                // What the first thread waited for the others is no product.
                let (products, others) = &mut *times.lock().unwrap_or_else(PoisonError::into_inner);
                *others = began.elapsed().saturating_sub(*products);
            }
            return;
        }
        let (sliced, most) = (slices::is_sliced(), team.guests());
        for step in &self.steps {
            if sliced {
                team.set_guests(slices::guests().min(most));
            }
            let threads = team.size();
            let threads = if step.row_ps.saturating_mul(rows) < WORTH_SHARING_PS { 1 } else { threads };
            let run = |job: &(dyn Fn(usize) + Sync)| if threads == 1 { job(0) } else { team.run(job) };
            timed(step, times, || step.run(self, (memory, rows), threads, refused, run));
            slices::point();
        }
        if sliced {
            // The frames of what comes next have room for as many as there were.
            team.set_guests(most);
        }
    }
}

/// Does a step, and adds how long it took to the times of products or to those of everything else, if anybody wants to know.
fn timed(step: &Step, times: Option<&Mutex<(Duration, Duration)>>, run: impl FnOnce()) {
    let Some(times) = times else { return run() };
    let began = Instant::now();
    run();
    let (products, others) = &mut *times.lock().unwrap_or_else(PoisonError::into_inner);
    *(if step.kind.product().is_some() { products } else { others }) += began.elapsed();
}

impl Step {
    /// As a team of so many threads: `run` has each of them do a part.
    fn run(
        &self,
        plan: &Plan,
        (memory, rows): (Memory<'_>, usize),
        threads: usize,
        refused: &Mutex<Vec<RefusedRow>>,
        mut run: impl FnMut(&(dyn Fn(usize) + Sync)),
    ) {
        if let StepKind::Project(projection) = &self.kind {
            return projection.run(memory, rows, threads, run);
        }
        let parts = if slices::is_sliced() { self.parts(rows, threads) } else { 1 };
        for part in 0..parts {
            self.run_part(plan, (memory, rows), threads, refused, (part, parts), &mut run);
            if parts > 1 {
                slices::point();
            }
        }
    }

    /// In how many parts it is done, so that each takes about [`PART_PS`].
    fn parts(&self, rows: usize, threads: usize) -> usize {
        let parts = (self.row_ps.saturating_mul(rows) / threads / PART_PS).max(1);
        if matches!(self.kind, StepKind::Linear(_) | StepKind::Group(_)) { parts } else { parts.min(rows.div_ceil(threads)) }
    }

    fn run_part(
        &self,
        plan: &Plan,
        (memory, rows): (Memory<'_>, usize),
        threads: usize,
        refused: &Mutex<Vec<RefusedRow>>,
        part: (usize, usize),
        run: &mut impl FnMut(&(dyn Fn(usize) + Sync)),
    ) {
        let taken = AtomicU64::new(0);
        run(&|thread: usize| {
            let mine = share(rows, thread, threads);
            let of_part = share(mine.len(), part.0, part.1);
            let of_part = mine.start + of_part.start..mine.start + of_part.end;
            // SAFETY: the frame was prepared for this plan and these rows, its inputs were gathered, and where outputs are pointed to is theirs alone; of threads that share them each takes different columns of a product and different
            // rows of everything else, and one that has them for itself has registers and scratch memory of its own (`Memory::of_thread`); kernels were
            // chosen for this processor when the plan was compiled.
            unsafe {
                match &self.kind {
                    StepKind::Linear(linear) => {
                        linear.run(memory, rows, Sharing { thread, threads, backwards: memory.backwards, taken: &taken }, part)
                    }
                    StepKind::Group(group) => group.run(&plan.constants, memory, mine, thread, part),
                    StepKind::Assembly(assembly) => assembly.run(&plan.constants, memory, of_part),
                    StepKind::Lookup(lookup) => lookup.run(memory, of_part, refused),
                    StepKind::Whole(whole) => whole.run(memory, of_part),
                    StepKind::Project(_) => {}
                }
            }
        });
    }
}

impl Linear {
    /// # Safety
    /// The frame has room for `rows` rows (two at least), and no other thread has this one's scratch memory; all have one record of what is taken.
    unsafe fn run(&self, memory: Memory<'_>, rows: usize, sharing: Sharing<'_>, (part, parts): (usize, usize)) {
        let float = size_of::<f32>();
        let result_stride = memory.stride(self.result);
        // All rows of the matrix at once if they are evenly apart, else those of one row of the batch at a time.
        let is_apart = |(left, k): &(LeftPlace, usize)| match left {
            LeftPlace::Floats(place) => memory.stride(*place) == self.lead * k * float,
            LeftPlace::Packed(_) | LeftPlace::Pointed(_) => false,
        };
        let is_even = self.lead == 1 || (result_stride == self.lead * self.n * float && self.lefts.iter().all(is_apart));
        let (calls, rows_a_call) = if is_even { (1, rows * self.lead) } else { (rows, self.lead) };
        let units = if is_even && parts == 1 {
            self.product.share_of_rows(rows_a_call, sharing)
        } else {
            let own = self.product.share(sharing.thread, sharing.threads);
            let part = share(own.len(), part, parts);
            Units::own(own.start + part.start..own.start + part.end)
        };
        for call in 0..calls {
            let mut lefts = [Left::NONE; TERMS];
            for (left, (place, k)) in lefts.iter_mut().zip(&self.lefts) {
                *left = match place {
                    LeftPlace::Floats(place) if self.lead > 1 => Left::floats(memory.at(*place, call).cast(), *k),
                    place => memory.left(place),
                };
            }
            let stride = if self.lead == 1 { result_stride / float } else { self.n };
            let rows = Target::rows(memory.at(self.result, call).cast(), stride);
            let target = self.begin.map_or(rows, |begin| rows.begun(memory.pointers(begin)));
            // SAFETY: the caller's promise; `sums` makes no more than [`TERMS`] terms.
            unsafe { self.product.run(&lefts[..self.lefts.len()], target, rows_a_call, units.clone(), memory.scratch(sharing.thread)) };
        }
    }
}

impl Group {
    /// # Safety
    /// The frame has room for these rows, which are no other thread's, what is pointed to is there, and nobody else reads or writes where results are pointed to.
    unsafe fn run(&self, constants: &[Lines], memory: Memory<'_>, rows: Range<usize>, thread: usize, (part, parts): (usize, usize)) {
        let count = self.instructions.len();
        // Tile by tile. What a part leaves in the thread's registers the next one finds there.
        let mut mine = share(rows.len().div_ceil(self.tile_rows) * count, part, parts);
        while !mine.is_empty() {
            let (tile, at) = (mine.start / count, mine.start % count);
            let first = rows.start + tile * self.tile_rows;
            let tile =
                Tile { constants, memory, first, rows: self.tile_rows.min(rows.end - first), end: rows.end, width: self.width, thread };
            let until = count.min(at + mine.len());
            for instruction in &self.instructions[at..until] {
                // SAFETY: the caller's promise.
                unsafe { instruction.run(&tile) };
            }
            mine.start += until - at;
        }
    }
}

/// Rows that an instruction runs over.
struct Tile<'a> {
    constants: &'a [Lines],
    memory: Memory<'a>,
    first: usize,
    rows: usize,
    /// Behind the last row that the thread has.
    end: usize,
    width: usize,
    thread: usize,
}

impl Tile<'_> {
    /// Where a row of the tile is, and how far from it the next one.
    ///
    /// # Safety
    /// Pointers were set for rows of what is pointed to.
    unsafe fn at(&self, source: Source, size: usize, row: usize) -> (*const u8, usize) {
        let dense = self.width * size;
        match source {
            Source::Buffer(place) => (self.memory.at(place, self.first + row).cast_const(), self.memory.stride(place)),
            Source::Register(offset) => (self.memory.register(self.thread, offset).cast_const().wrapping_add(row * dense), dense),
            Source::Constant(number) => (self.constants[number].pointer().wrapping_add(row * dense), dense),
            Source::Pointed(pointed) => {
                let pointers = self.memory.pointers(pointed).wrapping_add(self.first + row).cast_const();
                // SAFETY: the caller's promise, of this row and of the next if the thread has one.
                let (this, next) = unsafe { (*pointers, if self.first + row + 1 < self.end { *pointers.add(1) } else { *pointers }) };
                (this.cast(), next.addr().wrapping_sub(this.addr()))
            }
        }
    }
}

impl Instruction {
    /// # Safety
    /// As for [`Group::run`].
    unsafe fn run(&self, tile: &Tile<'_>) {
        let is_pointed = |source: &Source| matches!(source, Source::Pointed(_));
        if is_pointed(&self.result) || self.sources.iter().any(is_pointed) {
            for row in 0..tile.rows {
                // SAFETY: the caller's promise.
                unsafe { self.run_from(tile, row, 1) };
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.run_from(tile, 0, tile.rows) };
        }
    }

    /// Over so many rows of a tile, from that one on; rows of what is pointed to one by one.
    ///
    /// # Safety
    /// As for [`Group::run`].
    unsafe fn run_from(&self, tile: &Tile<'_>, row: usize, rows: usize) {
        let is_last_alone = rows == 1 && tile.first + row + 1 == tile.end;
        // SAFETY: the caller's promise.
        let (result, stride) = unsafe { tile.at(self.result, self.result_size, row) };
        // SAFETY: the caller's promise.
        let sources = std::array::from_fn(|index| unsafe { tile.at(self.sources[index], self.source_sizes[index], row) });
        // Rows that stand one behind the other are one long row.
        let is_dense = rows > 1
            && stride == tile.width * self.result_size
            && sources.iter().zip(self.source_sizes).all(|((_, stride), size)| *stride == tile.width * size);
        let (rows, width) = if is_dense { (1, rows * tile.width) } else { (rows, tile.width) };
        let sources = if is_last_alone { sources.map(|(start, _)| (start, 0)) } else { sources };
        // SAFETY: the caller's promise.
        unsafe { (self.kernel)(result.cast_mut(), stride, sources, rows, width) }
    }
}

impl Assembly {
    /// # Safety
    /// As for [`Group::run`].
    unsafe fn run(&self, constants: &[Lines], memory: Memory<'_>, rows: Range<usize>) {
        for row in rows {
            for (source, copies) in &self.parts {
                let from = match source {
                    Source::Buffer(place) => memory.at(*place, row).cast_const(),
                    Source::Constant(number) => constants[*number].pointer(),
                    Source::Register(_) | Source::Pointed(_) => continue,
                };
                // SAFETY: the caller's promise; copies are within their values' rows, and no value is assembled from itself.
                unsafe { copies.run(from, memory.at(self.result, row)) };
            }
        }
    }
}

impl Lookup {
    /// # Safety
    /// As for [`Group::run`].
    unsafe fn run(&self, memory: Memory<'_>, rows: Range<usize>, refused: &Mutex<Vec<RefusedRow>>) {
        for row in rows {
            let mut is_refused = false;
            for at in 0..self.count {
                // SAFETY: the caller's promise.
                let index = unsafe {
                    match self.index_element {
                        Element::I32 => i64::from(*memory.at(self.index, row).cast::<i32>().add(at)),
                        _ => *memory.at(self.index, row).cast::<i64>().add(at),
                    }
                };
                let found = self.table_row(index);
                // Once for a row, so that what is reported never outgrows the batch.
                if found.is_none() && !is_refused {
                    is_refused = true;
                    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                    let why = Refusal::Index { index, rows: self.table_rows as u64 };
                    refused.push(RefusedRow { row: memory.first + row, why });
                }
                // SAFETY: the table's row exists; the rest is the caller's promise.
                unsafe {
                    let from = self.table.data.as_ptr().add(found.unwrap_or(0) * self.row_bytes);
                    let into = memory.at(self.result, row).add(at * self.row_bytes);
                    std::ptr::copy_nonoverlapping(from, into, self.row_bytes);
                }
            }
        }
    }

    /// Which row of the table an index means; a negative one counts from the end.
    fn table_row(&self, index: i64) -> Option<usize> {
        let rows = self.table_rows as i64;
        let row = if index < 0 { index.checked_add(rows)? } else { index };
        (0..rows).contains(&row).then_some(row as usize)
    }
}

impl Whole {
    /// # Safety
    /// As for [`Group::run`].
    unsafe fn run(&self, memory: Memory<'_>, rows: Range<usize>) {
        let at = |place: Place| (memory.at(place, rows.start), memory.stride(place));
        let (source, stride) = at(self.source);
        let work = Rows {
            source: (source, stride),
            result: at(self.result),
            second: self.second.map_or((std::ptr::null_mut(), 0), at),
            rows: rows.len(),
            shape: self.shape,
        };
        // SAFETY: the caller's promise.
        unsafe { (self.kernel)(work) }
    }
}
