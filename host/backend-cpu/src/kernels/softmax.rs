//! Softmax of rows, the definition that holds on this worker, whether a row is there as a whole or passes by some columns at a time.
//!
//! Exponentials are summed by blocks of [`BLOCK`] columns, counted from the row's beginning: of each, its largest element and the sum relative to that.
//! What blocks have is then put together relative to the row's largest element, in sixteen lanes and a fixed tree. So a sum's bits depend neither on who looked at a
//! block nor on when, and nothing need be known of a row beforehand. An element's result is a function of it, the row's largest and the sum: equal elements have equal results.

use std::ops::Range;

use super::rows::{LANES, largest, sum_of, tree};
use super::{dispatch, math};
use crate::level::Level;

/// Columns of a block.
pub(crate) const BLOCK: usize = 128;

/// By how much results may be out of the order of their elements: those of the exponential err by less than three units, each of them.
const MARGIN: f32 = 16.0 * f32::EPSILON;
/// The same of those that are too small to have all their digits.
const MARGIN_LEAST: f32 = 16.0 * f32::MIN_POSITIVE * f32::EPSILON;

/// What has been found of a row: its largest element, and what the sum of exponentials makes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    top: f32,
    /// The sum, or its logarithm.
    by: f32,
}

impl Scale {
    /// What was found of a row.
    ///
    /// # Safety
    /// The row was settled ([`Softmax::settle`]), and nobody writes what is known of it.
    pub(crate) unsafe fn of(known: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self { top: known.read(), by: known.add(1).read() } }
    }
}

/// What becomes of an element.
pub(super) trait Normal {
    fn of_sum(sum: f32) -> f32;
    fn of(x: f32, scale: Scale) -> f32;
}

pub(super) struct Probability;
pub(super) struct LogProbability;

impl Normal for Probability {
    #[inline(always)]
    fn of_sum(sum: f32) -> f32 {
        sum
    }

    #[inline(always)]
    fn of(x: f32, scale: Scale) -> f32 {
        math::exp(x - scale.top) / scale.by
    }
}

impl Normal for LogProbability {
    #[inline(always)]
    fn of_sum(sum: f32) -> f32 {
        sum.ln()
    }

    #[inline(always)]
    fn of(x: f32, scale: Scale) -> f32 {
        x - scale.top - scale.by
    }
}

/// The largest element, one zero and one NaN for all.
#[inline(always)]
fn top_of(x: &[f32]) -> f32 {
    let top = largest(x) + 0.0;
    if top.is_nan() { f32::NAN } else { top }
}

/// A block's largest element, and the sum of exponentials relative to it.
#[inline(always)]
fn partial(block: &[f32]) -> (f32, f32) {
    let top = top_of(block);
    // What is as small as can be adds nothing, to others of its kind neither.
    let from = if top == f32::NEG_INFINITY { 0.0 } else { top };
    (top, sum_of(block, |x| math::exp(x - from)))
}

/// The sum of exponentials relative to `top` of blocks, in their order.
#[inline(always)]
fn joined(top: f32, partials: impl Iterator<Item = (f32, f32)>) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (at, (largest, sum)) in partials.enumerate() {
        lanes[at % LANES] += sum * math::exp(largest - top);
    }
    tree(lanes)
}

/// The results of a whole row.
#[inline(always)]
pub(super) fn whole<N: Normal>(x: &[f32], y: &mut [f32]) {
    let top = top_of(x);
    let sum = joined(top, x.chunks(BLOCK).map(partial));
    let scale = Scale { top, by: N::of_sum(sum) };
    for (y, x) in y.iter_mut().zip(x) {
        *y = N::of(*x, scale);
    }
}

/// Where rows of floats are: the first, and floats from row to row.
type Floats = (*mut f32, usize);

/// # Safety
/// There are so many rows of the elements of these columns, of which each block begins at a multiple of [`BLOCK`], and these blocks' places in what is known of the rows
/// are nobody else's. The processor has what the kernel was compiled for.
type LookKernel = unsafe fn(Floats, usize, Range<usize>, (*mut f32, usize));
/// # Safety
/// So many blocks were looked at, what is known of them is nobody else's, and the processor has what the kernel was compiled for.
type SettleKernel = unsafe fn(*mut f32, usize);
/// # Safety
/// There are so many elements, which are nobody else's, and the processor has what the kernel was compiled for.
type ApplyKernel = unsafe fn(*mut f32, usize, Scale);

/// The softmax of rows of `n` elements, or its logarithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    n: usize,
    look: LookKernel,
    settle: SettleKernel,
    apply: ApplyKernel,
}

impl Softmax {
    pub(crate) fn new(n: usize, is_log: bool, level: Level) -> Self {
        let look = dispatch!(level, look::<>, [], (elements: Floats, rows: usize, columns: Range<usize>, known: (*mut f32, usize)));
        if is_log { Self::of::<LogProbability>(n, look, level) } else { Self::of::<Probability>(n, look, level) }
    }

    fn of<N: Normal>(n: usize, look: LookKernel, level: Level) -> Self {
        Self {
            n,
            look,
            settle: dispatch!(level, settle::<N>, [N: Normal], (known: *mut f32, blocks: usize)),
            apply: dispatch!(level, apply::<N>, [N: Normal], (elements: *mut f32, count: usize, scale: Scale)),
        }
    }

    /// Elements of a row.
    pub(crate) const fn n(&self) -> usize {
        self.n
    }

    pub(crate) const fn blocks(&self) -> usize {
        self.n.div_ceil(BLOCK)
    }

    /// The columns of blocks.
    pub(crate) fn columns(&self, blocks: Range<usize>) -> Range<usize> {
        (blocks.start * BLOCK).min(self.n)..(blocks.end * BLOCK).min(self.n)
    }

    /// Floats of what is known of a row: the blocks' largest elements, then their sums.
    pub(crate) const fn words(&self) -> usize {
        2 * self.blocks()
    }

    /// Looks at some columns of some rows, whole blocks of them.
    ///
    /// # Safety
    /// There are these elements, so many floats from row to row; of what is known of these rows ([`Self::words`] each, one behind the other) nobody else uses the places of these blocks.
    pub(crate) unsafe fn look(&self, elements: (*mut f32, usize), rows: usize, columns: Range<usize>, known: *mut f32) {
        debug_assert!(columns.start.is_multiple_of(BLOCK) && (columns.end.is_multiple_of(BLOCK) || columns.end == self.n));
        // SAFETY: the caller's promise; the kernel was chosen for this processor.
        unsafe { (self.look)(elements, rows, columns, (known, self.blocks())) }
    }

    /// Puts together what is known of a row, all of whose blocks were looked at. What comes of that takes the first places of it ([`Scale::of`]).
    ///
    /// # Safety
    /// There is as much as [`Self::words`] says, and it is nobody else's.
    pub(crate) unsafe fn settle(&self, known: *mut f32) -> Scale {
        // SAFETY: the caller's promise; the kernel was chosen for this processor.
        unsafe {
            (self.settle)(known, self.blocks());
            Scale::of(known)
        }
    }

    /// Puts results in the place of elements.
    pub(crate) fn apply(&self, elements: &mut [f32], scale: Scale) {
        // SAFETY: the elements are the caller's own; the kernel was chosen for this processor.
        unsafe { (self.apply)(elements.as_mut_ptr(), elements.len(), scale) }
    }
}

/// Whether two results are so far apart that their elements' order is theirs; nothing is apart from NaN.
pub(crate) fn are_apart(a: f32, b: f32) -> bool {
    (a - b).abs() > (MARGIN * a.abs().max(b.abs())).max(MARGIN_LEAST)
}

/// # Safety
/// As for [`LookKernel`].
#[inline(always)]
unsafe fn look((elements, stride): Floats, rows: usize, columns: Range<usize>, (known, blocks): (*mut f32, usize)) {
    for row in 0..rows {
        // SAFETY: the caller's promise.
        let x = unsafe { std::slice::from_raw_parts(elements.add(row * stride), columns.len()) };
        let known = known.wrapping_add(row * 2 * blocks + columns.start / BLOCK);
        for (at, block) in x.chunks(BLOCK).enumerate() {
            let (top, sum) = partial(block);
            // SAFETY: as above.
            unsafe {
                known.add(at).write(top);
                known.add(blocks + at).write(sum);
            }
        }
    }
}

/// # Safety
/// As for [`SettleKernel`].
#[inline(always)]
unsafe fn settle<N: Normal>(known: *mut f32, blocks: usize) {
    // SAFETY: the caller's promise: of each block there are two floats, so that there are two of them at least.
    let words = unsafe { std::slice::from_raw_parts_mut(known, 2 * blocks) };
    let (tops, sums) = words.split_at(blocks);
    let top = top_of(tops);
    let by = N::of_sum(joined(top, tops.iter().copied().zip(sums.iter().copied())));
    (words[0], words[1]) = (top, by);
}

/// # Safety
/// As for [`ApplyKernel`].
#[inline(always)]
unsafe fn apply<N: Normal>(elements: *mut f32, count: usize, scale: Scale) {
    // SAFETY: the caller's promise.
    for x in unsafe { std::slice::from_raw_parts_mut(elements, count) } {
        *x = N::of(*x, scale);
    }
}

#[cfg(test)]
mod tests;
