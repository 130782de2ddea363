//! Projections whose softmax is wanted, or only the best few of it.
//!
//! The sum of a softmax is defined by blocks of columns from the row's beginning
//! (`kernels::softmax`), so it does not depend on who computes a block, or when. The best elements
//! of a softmax are mostly known before the sum. But different elements may have equal results, and
//! of those the first columns count. So one element more than wanted is kept, in the order of the
//! elements. If its result differs from the wanted ones, everything that was dropped does too. If
//! not, which is rare, the product is computed once more with the largest element and the sum at
//! hand.
//!
//! A softmax that is wanted itself has its scores written once, where the softmax will stand.

use std::ops::Range;

use super::super::Projection;
use super::super::frame::Memory;
use super::super::run::share;
use super::{Run, point};
use crate::kernels::running::{KEPT_MOST, Keeper};
use crate::kernels::softmax::{BLOCK, Scale, Softmax, are_apart};
use crate::matrix::Target;

/// Where it stands whether a row is looked at again, in what is known of it: behind its scale.
const AGAIN: usize = 2;

impl Projection {
    /// What is known of a row's blocks. Threads share it, each writes its own blocks.
    fn known(&self, memory: Memory<'_>, (row, rows): (usize, usize), (words, softmax): (usize, &Softmax)) -> *mut f32 {
        self.kept(memory, rows, 0).wrapping_add(rows * words).cast::<f32>().wrapping_add(row * softmax.words())
    }

    /// The best of the softmax of every row.
    ///
    /// # Safety
    /// The frame was prepared for these rows.
    pub(super) unsafe fn run_best_of_softmax(
        &self,
        (keeper, softmax): (&Keeper, &Softmax),
        memory: Memory<'_>,
        rows: usize,
        threads: usize,
        run: Run<'_>,
    ) {
        let more = &keeper.one_more();
        let known = |row| self.known(memory, (row, rows), (more.words(), softmax));
        // SAFETY: the caller's promise; a thread takes columns of its own.
        run(&|thread| unsafe {
            let kept = self.kept(memory, rows, thread);
            more.begin_rows(kept, rows);
            self.show_blocks(softmax, memory, 0..rows, (thread, threads), &mut |elements, of, columns| {
                softmax.look(elements, of.len(), columns.clone(), known(of.start));
                more.pass(elements, of.len(), &columns, kept.wrapping_add(of.start * more.words()));
            });
        });
        // SAFETY: now all are done, and a thread takes rows of its own.
        run(&|thread| unsafe {
            for row in share(rows, thread, threads) {
                let kept = self.joined(more, memory, (row, rows), threads);
                let scale = softmax.settle(known(row));
                let is_found = order_anew((keeper, softmax), kept, scale);
                known(row).add(AGAIN).write(if is_found { 0.0 } else { 1.0 });
                self.write(memory, row, keeper.found(&mut kept[..keeper.words()]));
            }
        });
        // SAFETY: all rows have been settled.
        let is_again = |row: usize| unsafe { known(row).add(AGAIN).read() != 0.0 };
        let (Some(first), Some(last)) = ((0..rows).find(|row| is_again(*row)), (0..rows).rfind(|row| is_again(*row))) else { return };
        // A product may read two rows where it has one: the last has none behind it.
        let first = first.min(rows.saturating_sub(2));
        // SAFETY: as the first time.
        run(&|thread| unsafe {
            let kept = self.kept(memory, rows, thread);
            keeper.begin_rows(kept, rows);
            self.show_blocks(softmax, memory, first..last + 1, (thread, threads), &mut |(elements, stride), of, columns| {
                for (at, row) in of.enumerate().filter(|(_, row)| is_again(*row)) {
                    let elements = elements.wrapping_add(at * stride);
                    softmax.apply(std::slice::from_raw_parts_mut(elements, columns.len()), Scale::of(known(row)));
                    keeper.pass((elements, stride), 1, &columns, kept.wrapping_add(row * keeper.words()));
                }
            });
        });
        // SAFETY: as the first time.
        run(&|thread| unsafe {
            for row in share(rows, thread, threads).filter(|row| is_again(*row)) {
                self.write(memory, row, keeper.found(self.joined(keeper, memory, (row, rows), threads)));
            }
        });
    }

    /// Computes a thread's blocks of some rows and shows them: elements and floats from row to row, rows, columns.
    ///
    /// # Safety
    /// The frame has room for these rows, and no other thread has this one's scratch memory.
    unsafe fn show_blocks(
        &self,
        softmax: &Softmax,
        memory: Memory<'_>,
        rows: Range<usize>,
        (thread, threads): (usize, usize),
        seen: &mut dyn FnMut((*mut f32, usize), Range<usize>, Range<usize>),
    ) {
        let columns = softmax.columns(share(softmax.blocks(), thread, threads));
        let (lefts, showing) = (self.lefts(memory, rows.start), self.product.showing_columns(columns, BLOCK));
        // SAFETY: the caller's promise; `sums` makes no more than [`TERMS`] terms; a stretch's elements are there while it is shown.
        unsafe {
            self.product.run_in_stretches(
                (&lefts[..self.lefts.len()], rows.len()),
                &showing,
                memory.scratch(thread),
                None,
                &mut |stretch| {
                    seen(stretch.elements, rows.start + stretch.rows.start..rows.start + stretch.rows.end, stretch.columns);
                    point(threads);
                },
            );
        }
    }

    /// The softmax of every row, in the place where elements are put.
    ///
    /// # Safety
    /// The frame was prepared for these rows.
    pub(super) unsafe fn run_softmax(&self, softmax: &Softmax, memory: Memory<'_>, rows: usize, threads: usize, run: Run<'_>) {
        let float = size_of::<f32>();
        let known = |row| self.known(memory, (row, rows), (0, softmax));
        let into = || Target::rows(memory.at(self.result, 0).cast(), memory.stride(self.result) / float);
        // SAFETY: the caller's promise; a thread takes columns of its own, and shows the blocks that are its alone.
        run(&|thread| unsafe {
            let (lefts, showing) = (self.lefts(memory, 0), self.product.showing_inner(thread, threads, BLOCK));
            let lefts = (&lefts[..self.lefts.len()], rows);
            self.product.run_in_stretches(lefts, &showing, memory.scratch(thread), Some(into()), &mut |stretch| {
                softmax.look(stretch.elements, stretch.rows.len(), stretch.columns, known(stretch.rows.start));
                point(threads);
            });
        });
        // SAFETY: now all are done, and a thread takes rows of its own.
        run(&|thread| unsafe {
            for row in share(rows, thread, threads) {
                let elements = memory.at(self.result, row).cast::<f32>();
                for column in (1..threads).map(|other| self.product.showing_share(other, threads).columns().start) {
                    if !column.is_multiple_of(BLOCK) {
                        let columns = softmax.columns(column / BLOCK..column / BLOCK + 1);
                        softmax.look((elements.wrapping_add(columns.start), softmax.n()), 1, columns, known(row));
                    }
                }
                let scale = softmax.settle(known(row));
                softmax.apply(std::slice::from_raw_parts_mut(elements, softmax.n()), scale);
            }
        });
    }
}

/// Orders what was kept of a row by its elements (one more than is wanted) by the elements' results instead, and of equal ones by columns; what is wanted of that stands in front. Whether
/// it is what would be found in the whole row.
fn order_anew((keeper, softmax): (&Keeper, &Softmax), kept: &mut [u32], scale: Scale) -> bool {
    let (mut values, mut columns, mut count) = ([0.0_f32; KEPT_MOST + 1], [0_u32; KEPT_MOST + 1], 0);
    for (value, column) in keeper.one_more().found(kept) {
        (values[count], columns[count]) = (value, column as u32);
        count += 1;
    }
    let values = &mut values[..count];
    softmax.apply(values, scale);
    let last = values.last().copied();
    let mut order = [0_u8; KEPT_MOST + 1];
    let order = &mut order[..count];
    order.iter_mut().enumerate().for_each(|(at, place)| *place = at as u8);
    order.sort_unstable_by_key(|at| columns[usize::from(*at)]);
    let kept = &mut kept[..keeper.words()];
    Keeper::begin(kept);
    for at in order.iter().map(|at| usize::from(*at)) {
        keeper.take(kept, values[at], columns[at]);
    }
    let wanted = keeper.found(kept).last();
    // Those that were not kept come behind the last that was.
    wanted.zip(last).is_some_and(|((wanted, _), last)| are_apart(wanted, last))
}
