//! Projections whose full result nobody reads: only its best few elements, its softmax, or the best
//! few of that (`ArgMax`, `TopK` up to 64).
//!
//! They are computed a stretch of columns at a time, and each row's finds are passed on from
//! stretch to stretch. Threads keep the finds of their own columns, which are then put together in
//! the order of the columns. The finds are those of a whole row, bit for bit, ties and NaN
//! included. Where only the best are wanted, the row never stands in memory as a whole.

mod screened;
mod softmax;

use super::Projection;
use super::folding::Folding;
use super::frame::Memory;
use super::lower::{LowOp, Lowered, Val};
use super::run::share;
use crate::held::Held;
use crate::kernels::rows::RowOp;
use crate::kernels::running::Keeper;
use crate::kernels::softmax::{BLOCK, Softmax};
use crate::level::Level;
use crate::matrix::{Left, TERMS};
use crate::slices;

/// Has each thread of a team do a part.
type Run<'a> = &'a mut dyn FnMut(&(dyn Fn(usize) + Sync));

/// Where left-hand sides are, how many rows they have, and how many there is room for.
type Rows<'a> = (&'a (dyn Fn() -> [Left; TERMS] + Sync), usize, usize);

/// What is looked for in the rows of a product.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// The first few elements in an order.
    Best(Keeper),
    /// The first few elements of the softmax.
    BestOfSoftmax(Keeper, Softmax),
    /// The softmax itself.
    Softmax(Softmax),
}

impl Wanted {
    /// What finds the results of that operation in rows of `n` elements, or of their softmax; none if they must be written down.
    pub(super) fn new((op, k): (RowOp, usize), of: Option<RowOp>, n: usize, level: Level) -> Option<Self> {
        // Rows of one block stay near as it is.
        let softmax = |op: RowOp| match op {
            RowOp::Softmax | RowOp::LogSoftmax if n > BLOCK => Some(Softmax::new(n, op == RowOp::LogSoftmax, level)),
            _ => None,
        };
        match of {
            None => softmax(op).map(Self::Softmax).or_else(|| Keeper::new(op, k, level).map(Self::Best)),
            Some(of) => Some(Self::BestOfSoftmax(Keeper::new(op, k, level)?, softmax(of)?)),
        }
    }

    /// Columns at whose multiples stretches begin, and floats that each thread keeps of a row; no stretches where elements are put in their place.
    const fn keeps(&self) -> (Option<usize>, usize) {
        match self {
            Self::Best(keeper) => (Some(1), keeper.words()),
            Self::BestOfSoftmax(keeper, softmax) => (Some(BLOCK), keeper.one_more().words() + softmax.words()),
            Self::Softmax(softmax) => (None, softmax.words()),
        }
    }
}

/// Puts every product of which one operation alone reads the scores, to keep the first few or as a softmax, together with that.
pub(super) fn fold(lowered: &mut Lowered, level: Level) {
    let counts: Vec<usize> = lowered.values.iter().map(|value| value.count).collect();
    let mut folding = Folding::of(lowered);
    // What reads a softmax stands behind it, and comes first: of what only the best are read, nothing is written.
    for whole in (0..folding.ops.len()).rev() {
        if let Some(chain) = producer(&folding, whole, &counts, level) {
            merge(&mut folding, whole, &chain);
        }
    }
    folding.into(lowered);
}

/// The product that the operation `whole` could be part of, and what stands between them, all of which nothing else reads. Rows of values have so many elements.
fn producer(folding: &Folding, whole: usize, counts: &[usize], level: Level) -> Option<Vec<usize>> {
    let LowOp::Whole { op, outer: 1, n, k, source, .. } = folding.ops[whole].as_ref()? else { return None };
    let (mut value, mut chain, mut of): (Val, Vec<usize>, Option<RowOp>) = (*source, Vec::new(), None);
    loop {
        let at = folding.maker_for_one(value)?;
        chain.push(at);
        match folding.ops[at].as_ref()? {
            LowOp::View { source, offset: 0, result } if counts[source.0] == counts[result.0] => value = *source,
            LowOp::Whole { op, outer: 1, n: columns, source, .. } if of.is_none() && columns == n => (of, value) = (Some(*op), *source),
            LowOp::Linear { begin: None, lead: 1, n: columns, .. } if columns == n => {
                return Wanted::new((*op, *k), of, *n, level).map(|_| chain);
            }
            _ => return None,
        }
    }
}

fn merge(folding: &mut Folding, whole: usize, chain: &[usize]) {
    let linear = chain.last().and_then(|at| folding.ops[*at].take());
    let between = chain.iter().filter_map(|at| folding.ops[*at].take());
    let of = between.filter_map(|op| if let LowOp::Whole { op, .. } = op { Some(op) } else { None }).last();
    if let (Some(LowOp::Linear { product, lefts, .. }), Some(LowOp::Whole { op, k, n, result, second, .. })) =
        (linear, folding.ops[whole].take())
    {
        folding.ops[whole] = Some(LowOp::Project { product, lefts, op, k, of, n, result, second });
    }
}

/// Behind a stretch of columns: a long product may stop here, unless other threads have parts of it.
fn point(threads: usize) {
    if threads == 1 {
        slices::point();
    }
}

impl Projection {
    /// Adds weights, and what was made of them, to what is held.
    pub(super) fn hold(&self, held: &mut Held) {
        self.product.hold(held);
        self.screen.iter().for_each(|screen| held.share(screen, screen.bytes()));
    }

    /// Bytes that each row adds to every thread's scratch memory, if they are many.
    pub(super) fn scratch_row_bytes(&self) -> usize {
        self.screen.as_deref().map_or(0, screened::row_bytes)
    }

    /// Floats of scratch memory that a thread needs for so many rows: of the product, and what is kept of each row.
    pub(super) fn scratch(&self, rows: usize) -> usize {
        let (_, words) = self.wanted.keeps();
        // What is kept in either way.
        let screened = self.screen.as_ref().map_or(0, |screen| screened::kept(rows, screen));
        self.stretch_scratch(rows) + screened.max(rows * words)
    }

    /// The same of the product alone.
    fn stretch_scratch(&self, rows: usize) -> usize {
        let (block, _) = self.wanted.keeps();
        let of_screen = self.screen.as_ref().map_or(0, |screen| screen.coarse.stretch_scratch(rows, block).max(screen.depth()));
        self.product.stretch_scratch(rows, block).max(of_screen)
    }

    /// What a thread keeps of rows.
    fn kept(&self, memory: Memory<'_>, rows: usize, thread: usize) -> *mut u32 {
        memory.scratch(thread).wrapping_add(self.stretch_scratch(rows)).cast()
    }

    /// The left-hand sides of the product, from a row on.
    fn lefts(&self, memory: Memory<'_>, row: usize) -> [Left; TERMS] {
        let mut lefts = [Left::NONE; TERMS];
        for (left, place) in lefts.iter_mut().zip(&self.lefts) {
            *left = Left::floats(memory.at(*place, row).cast(), memory.stride(*place) / size_of::<f32>());
        }
        lefts
    }

    /// Writes what was kept of a row where it is read.
    ///
    /// # Safety
    /// The row is no other thread's.
    unsafe fn write(&self, memory: Memory<'_>, row: usize, found: impl Iterator<Item = (f32, i64)>) {
        for (at, (value, column)) in found.enumerate() {
            // SAFETY: results have a place for each of those that are kept, aligned to it.
            unsafe {
                match self.second {
                    None => memory.at(self.result, row).cast::<i64>().add(at).write(column),
                    Some(second) => {
                        memory.at(self.result, row).cast::<f32>().add(at).write(value);
                        memory.at(second, row).cast::<i64>().add(at).write(column);
                    }
                }
            }
        }
    }

    /// Looks at this thread's columns of all rows.
    ///
    /// # Safety
    /// The frame has room for `rows` rows (two at least), which are those of the left-hand sides, and no other thread has this one's scratch memory.
    unsafe fn pass(&self, keeper: &Keeper, memory: Memory<'_>, (lefts, rows, of): Rows<'_>, (thread, threads): (usize, usize)) {
        let words = keeper.words();
        let kept = self.kept(memory, of, thread);
        // SAFETY: there is scratch memory for every row.
        unsafe { keeper.begin_rows(kept, rows) };
        let (lefts, showing) = (lefts(), self.product.showing_share(thread, threads));
        // SAFETY: the caller's promise; `sums` makes no more than [`TERMS`] terms; a stretch's elements are there while it is shown.
        unsafe {
            self.product.run_in_stretches((&lefts[..self.lefts.len()], rows), &showing, memory.scratch(thread), None, &mut |stretch| {
                let kept = kept.wrapping_add(stretch.rows.start * words);
                keeper.pass(stretch.elements, stretch.rows.len(), &stretch.columns, kept);
                point(threads);
            });
        }
    }

    /// Puts together what threads kept of a row, in the order of their columns.
    ///
    /// # Safety
    /// Every thread has passed all of the `rows` rows, and this one is no other thread's.
    unsafe fn joined<'a>(&self, keeper: &Keeper, memory: Memory<'a>, (row, rows): (usize, usize), threads: usize) -> &'a mut [u32] {
        let words = keeper.words();
        // SAFETY: as when it was written: there is scratch memory for every row of every thread.
        let of = |thread| unsafe { std::slice::from_raw_parts_mut(self.kept(memory, rows, thread).wrapping_add(row * words), words) };
        let kept = of(0);
        (1..threads).for_each(|thread| keeper.join(kept, of(thread)));
        kept
    }

    /// The best of rows, each of which is the frame's row that `row_of` says.
    ///
    /// # Safety
    /// The frame was prepared for as many rows as there are of these, and for those.
    unsafe fn run_best(
        &self,
        keeper: &Keeper,
        memory: Memory<'_>,
        (lefts, rows, of): Rows<'_>,
        threads: usize,
        row_of: &(dyn Fn(usize) -> usize + Sync),
        run: Run<'_>,
    ) {
        // SAFETY: the caller's promise; a thread takes columns of its own.
        run(&|thread| unsafe { self.pass(keeper, memory, (lefts, rows, of), (thread, threads)) });
        run(&|thread| {
            for row in share(rows, thread, threads) {
                // SAFETY: now all are done, and a thread takes rows of its own.
                unsafe { self.write(memory, row_of(row), keeper.found(self.joined(keeper, memory, (row, of), threads))) };
            }
        });
    }

    /// As a team: `run` has each of its threads do a part.
    pub(super) fn run(&self, memory: Memory<'_>, rows: usize, threads: usize, mut run: impl FnMut(&(dyn Fn(usize) + Sync))) {
        match &self.wanted {
            Wanted::Best(keeper) => match self.screen.as_deref().filter(|screen| screen.is_worth_it()) {
                // SAFETY: the frame was prepared for this plan and these rows.
                Some(screen) => unsafe { self.run_screened((keeper, screen), memory, rows, threads, &mut run) },
                // SAFETY: as above.
                None => unsafe { self.run_best(keeper, memory, (&|| self.lefts(memory, 0), rows, rows), threads, &|row| row, &mut run) },
            },
            Wanted::BestOfSoftmax(keeper, softmax) => {
                // SAFETY: the frame was prepared for this plan and these rows.
                unsafe { self.run_best_of_softmax((keeper, softmax), memory, rows, threads, &mut run) }
            }
            // SAFETY: the frame was prepared for this plan and these rows.
            Wanted::Softmax(softmax) => unsafe { self.run_softmax(softmax, memory, rows, threads, &mut run) },
        }
    }
}
