//! Projections of which one column is wanted, and most are ruled out by a screen ([`Screen`]).

use super::super::Projection;
use super::super::frame::Memory;
use super::super::run::share;
use super::{Run, point};
use crate::kernels::running::Keeper;
use crate::kernels::screening::{Apart, Candidates, Looking, Reach, WORDS};
use crate::matrix::{Left, Screen, Stretch, TERMS, Told};

/// What all threads know of a row.
#[derive(Debug)]
struct Prepared {
    apart: Apart,
    told: Told,
    /// Whether it is computed as if there were no screen.
    is_lost: bool,
    /// Of the first of these so many: which rows are.
    lost: u32,
}

impl Prepared {
    const fn reach(&self) -> Option<Reach> {
        if let Told::Within(reach) = self.told { Some(reach) } else { None }
    }
}

/// Words that it takes.
const WORDS_PREPARED: usize = size_of::<Prepared>().next_multiple_of(64) / size_of::<u32>();

/// Bytes that a thread keeps of a row.
pub(super) const fn row_bytes(screen: &Screen) -> usize {
    (WORDS + WORDS_PREPARED + screen.depth()) * size_of::<u32>()
}

/// Floats that a thread keeps of rows: candidates, and of all threads' rows (in the first one's memory) what is prepared and a copy.
pub(super) fn kept(rows: usize, screen: &Screen) -> usize {
    // The first row of what is prepared begins at a line.
    rows * (WORDS + WORDS_PREPARED + screen.depth()) + 16
}

/// A screened projection's memory.
#[derive(Clone, Copy)]
struct Kept<'a> {
    projection: &'a Projection,
    screen: &'a Screen,
    memory: Memory<'a>,
    rows: usize,
}

impl<'a> Kept<'a> {
    /// What a thread knows of a row of its columns.
    ///
    /// # Safety
    /// Nobody else uses it meanwhile.
    unsafe fn candidates(&self, row: usize, thread: usize) -> Candidates<'a> {
        // SAFETY: there is scratch memory for every row of every thread.
        Candidates::of(unsafe { std::slice::from_raw_parts_mut(self.known(thread).wrapping_add(row * WORDS), WORDS) })
    }

    /// The same of all rows, one behind the other.
    fn known(&self, thread: usize) -> *mut u32 {
        self.projection.kept(self.memory, self.rows, thread)
    }

    /// What all threads know of a row.
    fn prepared(&self, row: usize) -> *mut Prepared {
        let behind = self.known(0).wrapping_add(self.rows * WORDS);
        behind.wrapping_add(behind.align_offset(64)).wrapping_add(row * WORDS_PREPARED).cast()
    }

    /// The copy of a row.
    fn copy(&self, row: usize) -> *mut f32 {
        self.prepared(self.rows).cast::<f32>().wrapping_add(row * self.screen.depth())
    }

    /// A row as the product multiplies it.
    ///
    /// # Safety
    /// The frame has this row. Nobody else uses the thread's scratch memory as long as this is used.
    unsafe fn operand(&self, row: usize, thread: usize) -> &'a [f32] {
        let from = self.memory.at(self.projection.lefts[0], row).cast::<f32>();
        // SAFETY: the caller's promise; scratch memory has room for a row.
        unsafe {
            let scratch = std::slice::from_raw_parts_mut(self.memory.scratch(thread), self.screen.depth());
            self.screen.operand(std::slice::from_raw_parts(from, self.screen.depth()), scratch)
        }
    }

    /// Prepares a row.
    ///
    /// # Safety
    /// As for [`Self::operand`]; nobody else uses what is prepared of it.
    unsafe fn prepare(&self, row: usize, thread: usize) {
        // SAFETY: the caller's promise; there is memory for every row, aligned for it.
        unsafe {
            let into = std::slice::from_raw_parts_mut(self.copy(row), self.screen.depth());
            let (apart, told) = self.screen.prepare(self.operand(row, thread), into);
            self.prepared(row).write(Prepared { apart, told, is_lost: false, lost: 0 });
        }
    }

    /// Looks at a thread's columns of all rows.
    ///
    /// # Safety
    /// All rows are prepared, and nobody else uses the thread's scratch memory.
    unsafe fn look(&self, thread: usize, threads: usize) {
        let Self { screen, rows, .. } = *self;
        for row in 0..rows {
            // SAFETY: the caller's promise.
            unsafe { self.candidates(row, thread).begin((*self.prepared(row)).reach()) };
        }
        let (left, showing) = (Left::floats(self.copy(0), screen.depth()), screen.coarse.showing_share(thread, threads));
        let mut seen = |Stretch { rows, columns, elements: (elements, stride) }: Stretch| {
            for (at, row) in rows.clone().enumerate() {
                // SAFETY: the caller's promise; a stretch's elements are there while it is shown.
                unsafe {
                    let elements = std::slice::from_raw_parts_mut(elements.wrapping_add(at * stride), columns.len());
                    screen.add_apart(elements, columns.start, &(*self.prepared(row)).apart);
                }
            }
            let known = self.known(thread).wrapping_add(rows.start * WORDS);
            let (elements, columns) = ((elements.cast_const(), stride), (columns.start, columns.end));
            // SAFETY: as above; the candidates of these rows were begun.
            unsafe { screen.look(Looking { elements, rows: rows.len(), columns, bounds: screen.columns(), known }) };
            point(threads);
        };
        // SAFETY: the caller's promise; the copies are rows of the product, which packs them one by one.
        unsafe { screen.coarse.run_in_stretches((&[left], rows), &showing, self.memory.scratch(thread), None, &mut seen) };
    }

    /// Leaves of a row's candidates those that could still be the largest when all are told more exactly; how many there are, if they can be told and computed.
    ///
    /// # Safety
    /// All threads have looked at their columns. Nobody else uses what is known of the row, nor the thread's scratch memory.
    unsafe fn sift(&self, row: usize, (thread, threads): (usize, usize)) -> Option<usize> {
        let screen = self.screen;
        // SAFETY: the caller's promise; one of them is used at a time.
        let candidates = || (0..threads).map(|thread| unsafe { self.candidates(row, thread) });
        let left = || candidates().map(|candidates| candidates.columns().len()).sum::<usize>();
        // SAFETY: the caller's promise.
        let reach = unsafe { (*self.prepared(row)).reach()? };
        if candidates().any(|candidates| candidates.is_lost()) {
            return None;
        }
        let least = candidates().map(|candidates| candidates.least()).fold(f32::NEG_INFINITY, f32::max);
        let bounds = screen.columns();
        for mut candidates in candidates() {
            candidates.sift(least, |column, value| (value, bounds.bound(column, reach)));
        }
        if left() > screen.told_most() {
            return None;
        }
        let (bounds, reach) = (screen.fine_columns(), screen.fine_reach(reach));
        // SAFETY: the caller's promise.
        let operand = unsafe { self.operand(row, thread) };
        let mut told = f32::NEG_INFINITY;
        for mut candidates in candidates() {
            told = candidates.sift(told, |column, _| (screen.tell(operand, column), bounds.bound(column, reach)));
        }
        for mut candidates in candidates() {
            candidates.sift(told, |column, value| (value, bounds.bound(column, reach)));
        }
        Some(left()).filter(|left| (1..=screen.computed_most()).contains(left))
    }

    /// Settles a row: writes its best column, or says that it is lost.
    ///
    /// # Safety
    /// As for [`Self::sift`]; nobody else uses the row's result.
    unsafe fn settle(&self, keeper: &Keeper, row: usize, (thread, threads): (usize, usize)) {
        let mut best = [0_u32; 3];
        Keeper::begin(&mut best);
        // SAFETY: the caller's promise.
        unsafe {
            if let Told::Bias(columns) = (*self.prepared(row)).told {
                columns.iter().for_each(|column| keeper.take(&mut best, 0.0, *column));
            } else if let Some(left) = self.sift(row, (thread, threads)) {
                for candidates in (0..threads).map(|thread| self.candidates(row, thread)) {
                    for column in candidates.columns() {
                        // Whatever the only one is, it is the best.
                        let value = if left == 1 { 0.0 } else { self.element(row, *column as usize, thread) };
                        keeper.take(&mut best, value, *column);
                    }
                }
            } else {
                (*self.prepared(row)).is_lost = true;
                return;
            }
            self.projection.write(self.memory, row, keeper.found(&mut best));
        }
    }

    /// An element of a row, as the product computes it.
    ///
    /// # Safety
    /// The frame has room for the rows (two at least), and no other thread has this one's scratch memory.
    unsafe fn element(&self, row: usize, column: usize, thread: usize) -> f32 {
        let Self { projection, memory, rows, .. } = *self;
        // A product may read two rows where it has one: the last has none behind it.
        let first = row.min(rows.saturating_sub(2));
        let (lefts, showing) = (projection.lefts(memory, first), projection.product.showing_columns(column..column + 1, 1));
        let lefts = (&lefts[..projection.lefts.len()], row + 1 - first);
        let mut found = 0.0;
        // SAFETY: the caller's promise; a stretch's elements are there while it is shown.
        unsafe {
            projection.product.run_in_stretches(lefts, &showing, memory.scratch(thread), None, &mut |stretch| {
                found = *stretch.elements.0.wrapping_add((row - first - stretch.rows.start) * stretch.elements.1);
            });
        }
        found
    }

    /// Lists the rows that are lost; how many there are.
    ///
    /// # Safety
    /// All rows are settled, and nobody else uses what is prepared.
    unsafe fn list_lost(&self) -> usize {
        let mut count = 0;
        for row in 0..self.rows {
            // SAFETY: the caller's promise; there are no more lost rows than rows.
            unsafe {
                if (*self.prepared(row)).is_lost {
                    (*self.prepared(count)).lost = row as u32;
                    count += 1;
                }
            }
        }
        count
    }

    /// Which row the lost one of that number is.
    ///
    /// # Safety
    /// They were listed, and nobody writes what is prepared.
    unsafe fn lost(&self, number: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { (*self.prepared(number)).lost as usize }
    }
}

impl Projection {
    /// The best of every row.
    ///
    /// # Safety
    /// The frame was prepared for these rows.
    pub(super) unsafe fn run_screened(
        &self,
        (keeper, screen): (&Keeper, &Screen),
        memory: Memory<'_>,
        rows: usize,
        threads: usize,
        run: Run<'_>,
    ) {
        let kept = Kept { projection: self, screen, memory, rows };
        // SAFETY: the caller's promise; a thread takes rows of its own.
        run(&|thread| share(rows, thread, threads).for_each(|row| unsafe { kept.prepare(row, thread) }));
        // SAFETY: now all rows are prepared; a thread takes columns of its own.
        run(&|thread| unsafe { kept.look(thread, threads) });
        // SAFETY: now all columns have been looked at; a thread takes rows of its own.
        run(&|thread| share(rows, thread, threads).for_each(|row| unsafe { kept.settle(keeper, row, (thread, threads)) }));
        // SAFETY: now all rows are settled.
        let lost = unsafe { kept.list_lost() };
        screen.learn(lost, rows);
        if lost == 0 {
            return;
        }
        // What was copied was for the screen; now it is the rows that the product is computed for, side by side.
        // SAFETY: a thread writes copies of its own; a row has so many floats.
        run(&|thread| unsafe {
            for number in share(lost, thread, threads) {
                let row = memory.at(self.lefts[0], kept.lost(number)).cast::<f32>();
                std::ptr::copy_nonoverlapping(row, kept.copy(number), screen.depth());
            }
        });
        let lefts = || [Left::floats(kept.copy(0), screen.depth()); TERMS];
        // SAFETY: the caller's promise; there is a copy for each row that the frame has room for. What is kept meanwhile takes less than the candidates did, which nobody looks at again.
        unsafe { self.run_best(keeper, memory, (&lefts, lost, rows), threads, &|number| kept.lost(number), run) };
    }
}

#[cfg(test)]
mod tests;
