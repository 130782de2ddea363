//! Projections of which only the best few results are read: their scores are looked at as they are made, and never stand in memory as a whole.

use std::ops::Range;

use super::Projection;
use super::lower::{LowOp, Lowered, Val};
use super::run::{Memory, share};
use crate::kernels::running::Keeper;
use crate::level::Level;
use crate::matrix::{Left, TERMS};

/// Puts every product of which one operation alone reads the scores, to keep the first few, together with that.
pub(super) fn fold(lowered: &mut Lowered, level: Level) {
    let mut folding = Folding::new(lowered);
    for whole in 0..folding.ops.len() {
        if let Some(chain) = folding.producer(whole, level) {
            folding.merge(whole, &chain);
        }
    }
    lowered.ops = folding.ops.into_iter().flatten().collect();
}

/// Operations that are put together, in their order; those that went into another are gone.
struct Folding {
    ops: Vec<Option<LowOp>>,
    /// By value: elements of a row, how often it is read (as an output, too), and which operation makes it.
    counts: Vec<usize>,
    reads: Vec<usize>,
    makers: Vec<Option<usize>>,
}

impl Folding {
    fn new(lowered: &mut Lowered) -> Self {
        let counts: Vec<usize> = lowered.values.iter().map(|value| value.count).collect();
        let (mut reads, mut makers) = (vec![0; counts.len()], vec![None; counts.len()]);
        for (at, op) in lowered.ops.iter().enumerate() {
            op.operands().into_iter().filter_map(|operand| operand.value()).for_each(|value| reads[value.0] += 1);
            op.results().for_each(|value| makers[value.0] = Some(at));
        }
        lowered.outputs.iter().for_each(|output| reads[output.0] += 1);
        let ops = std::mem::take(&mut lowered.ops).into_iter().map(Some).collect();
        Self { ops, counts, reads, makers }
    }

    /// The product that the operation `whole` could be part of, and the views between them, all of which nothing else reads.
    fn producer(&self, whole: usize, level: Level) -> Option<Vec<usize>> {
        let LowOp::Whole { op, outer: 1, n, k, source, .. } = self.ops[whole].as_ref()? else { return None };
        Keeper::new(*op, *k, level)?;
        let (mut value, mut chain): (Val, Vec<usize>) = (*source, Vec::new());
        loop {
            if self.reads[value.0] != 1 {
                return None;
            }
            let at = self.makers[value.0]?;
            chain.push(at);
            match self.ops[at].as_ref()? {
                LowOp::View { source, offset: 0, result } if self.counts[source.0] == self.counts[result.0] => value = *source,
                LowOp::Linear { begin: None, lead: 1, n: columns, .. } if columns == n => return Some(chain),
                _ => return None,
            }
        }
    }

    fn merge(&mut self, whole: usize, chain: &[usize]) {
        let linear = chain.last().and_then(|at| self.ops[*at].take());
        chain.iter().for_each(|at| self.ops[*at] = None);
        if let (Some(LowOp::Linear { product, lefts, .. }), Some(LowOp::Whole { op, k, result, second, .. })) =
            (linear, self.ops[whole].take())
        {
            self.ops[whole] = Some(LowOp::Project { product, lefts, op, k, result, second });
        }
    }
}

impl Projection {
    /// Floats of scratch memory that a thread needs for so many rows: of the product, and what is kept of each row.
    pub(super) fn scratch(&self, rows: usize) -> usize {
        self.product.stretch_scratch(rows) + rows * self.keeper.words()
    }

    fn kept(&self, memory: Memory<'_>, rows: usize, thread: usize) -> *mut u32 {
        memory.scratch(thread).wrapping_add(self.product.stretch_scratch(rows)).cast()
    }

    /// Looks at this thread's columns of all rows.
    ///
    /// # Safety
    /// The frame has room for `rows` rows (two at least), and no other thread has this one's number.
    pub(super) unsafe fn pass(&self, memory: Memory<'_>, rows: usize, thread: usize, threads: usize) {
        let words = self.keeper.words();
        let kept = self.kept(memory, rows, thread);
        for row in 0..rows {
            // SAFETY: there is scratch memory for every row.
            Keeper::begin(unsafe { std::slice::from_raw_parts_mut(kept.wrapping_add(row * words), words) });
        }
        let mut lefts = [Left { rows: std::ptr::null(), stride: 0 }; TERMS];
        for (left, place) in lefts.iter_mut().zip(&self.lefts) {
            *left = Left { rows: memory.at(*place, 0).cast(), stride: memory.stride(*place) / size_of::<f32>() };
        }
        let (lefts, units) = (&lefts[..self.lefts.len()], self.product.share(thread, threads));
        // SAFETY: the caller's promise; `sums` makes no more than [`TERMS`] terms; a stretch's elements are there while it is shown.
        unsafe {
            self.product.run_in_stretches(lefts, rows, units, memory.scratch(thread), &mut |stretch| {
                let kept = kept.wrapping_add(stretch.rows.start * words);
                self.keeper.pass(stretch.elements, stretch.rows.len(), &stretch.columns, kept);
            });
        }
    }

    /// Puts together what threads kept of some of the rows, in the order of their columns, and puts it where it is read.
    ///
    /// # Safety
    /// Every thread has passed all of the `rows` rows, and these are no other thread's.
    pub(super) unsafe fn finish(&self, memory: Memory<'_>, rows: usize, mine: Range<usize>, threads: usize) {
        let words = self.keeper.words();
        for row in mine {
            // SAFETY: as when it was written: there is scratch memory for every row of every thread.
            let of = |thread| unsafe { std::slice::from_raw_parts_mut(self.kept(memory, rows, thread).wrapping_add(row * words), words) };
            let kept = of(0);
            (1..threads).for_each(|thread| self.keeper.join(kept, of(thread)));
            for (at, (value, column)) in self.keeper.found(kept).enumerate() {
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
    }

    /// As a team: `run` has each of its threads do a part.
    pub(super) fn run(&self, memory: Memory<'_>, rows: usize, threads: usize, mut run: impl FnMut(&(dyn Fn(usize) + Sync))) {
        // SAFETY: the frame was prepared for this plan and these rows; a thread takes columns of its own, then, when all are done, rows of its own.
        run(&|thread| unsafe { self.pass(memory, rows, thread, threads) });
        // SAFETY: as above.
        run(&|thread| unsafe { self.finish(memory, rows, share(rows, thread, threads), threads) });
    }
}
