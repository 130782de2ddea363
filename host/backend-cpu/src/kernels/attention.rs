//! Attention over spans with a running softmax: no matrix of scores is ever in memory.
//!
//! Sixteen queries that see the same keys are computed side by side, one in each lane of a vector. So
//! a key is read once for all of them, and no sum goes across lanes. A query's bits depend neither on
//! the lane that it has nor on the other queries: each lane computes its sums in the order of its own
//! span. Blocks of [`BLOCK`] rows are counted from the span's first row. After each, sums are scaled
//! to the largest score so far.
//!
//! Spans that begin at the same row may have different ends. A row beyond a lane's own end adds
//! nothing to it.

use super::{dispatch, math};
use crate::level::Level;

/// Queries side by side.
pub(crate) const LANES: usize = 16;
/// Rows of a span between which sums are scaled.
const BLOCK: usize = 64;

type Lane = [f32; LANES];

/// Rows at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) at: *const u8,
    /// Bytes from row to row.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

impl Stretch {
    /// Where a row is.
    pub(crate) fn row(&self, row: usize) -> *const u8 {
        self.at.wrapping_add(row * self.stride)
    }
}

/// The rows of stretches, one behind the other.
pub(crate) fn rows_of(stretches: &[Stretch]) -> impl Iterator<Item = *const u8> + Clone {
    stretches.iter().flat_map(|stretch| (0..stretch.rows).map(|row| stretch.row(row)))
}

/// The mask: numbers that are added to scores, or which scores count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask {
    None,
    Floats,
    Truths,
}

/// Sizes and options of a cell's attention: the same for all its queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Floats of a query and of a key.
    pub(crate) depth: usize,
    /// Floats of a value.
    pub(crate) size: usize,
    pub(crate) scale: f32,
    /// 0: there is none.
    pub(crate) softcap: f32,
    pub(crate) mask: Mask,
}

/// A query: one row, one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) q: *const f32,
    pub(crate) y: *mut f32,
    /// Rows of the span that it sees.
    pub(crate) rows: usize,
    /// Where its element of a row of the mask is, in elements.
    pub(crate) mask: usize,
}

/// Up to [`LANES`] queries of one key head. Keys, values and masks are there for as many rows as the longest span has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    pub(crate) head: Head,
    pub(crate) queries: &'a [Query],
    pub(crate) keys: &'a [Stretch],
    pub(crate) values: &'a [Stretch],
    /// Of no rows where there is none.
    pub(crate) masks: &'a [Stretch],
}

/// Floats of scratch memory for a tile.
pub(crate) fn scratch(head: &Head) -> usize {
    (head.depth + head.size + BLOCK) * LANES
}

/// # Safety
/// What the tile points to is there, results are nobody else's, there is as much scratch memory as [`scratch`] says, and the processor has what the kernel was
/// compiled for.
pub(crate) type AttentionKernel = unsafe fn(Tile<'_>, *mut f32);

/// The kernel for a processor.
pub(crate) fn kernel(level: Level) -> AttentionKernel {
    // As many rows side by side as there are registers for.
    if level >= Level::Avx512 { with::<8>(level) } else { with::<4>(level) }
}

fn with<const ROWS: usize>(level: Level) -> AttentionKernel {
    dispatch!(level, attend::<ROWS>, [const ROWS: usize], (tile: Tile<'_>, scratch: *mut f32))
}

/// The next rows of stretches, up to a block of them.
struct Blocks<'a> {
    left: &'a [Stretch],
    done: usize,
}

impl Blocks<'_> {
    #[inline(always)]
    fn next(&mut self, into: &mut [*const u8; BLOCK], count: usize) {
        for into in &mut into[..count] {
            while self.left.first().is_some_and(|stretch| self.done >= stretch.rows) {
                (self.left, self.done) = (&self.left[1..], 0);
            }
            if let Some(stretch) = self.left.first() {
                *into = stretch.row(self.done);
                self.done += 1;
            }
        }
    }
}

/// # Safety
/// As for [`AttentionKernel`].
#[inline(always)]
unsafe fn attend<const ROWS: usize>(tile: Tile<'_>, scratch: *mut f32) {
    let Tile { head, queries, keys, values, masks } = tile;
    let Head { depth, size, .. } = head;
    // SAFETY: the caller's promise.
    let (q, sums, scores) = unsafe {
        let all = std::slice::from_raw_parts_mut(scratch.cast::<Lane>(), depth + size + BLOCK);
        let (q, rest) = all.split_at_mut(depth);
        let (sums, scores) = rest.split_at_mut(size);
        (q, sums, scores)
    };
    q.fill([0.0; LANES]);
    sums.fill([0.0; LANES]);
    let mut ends = [0; LANES];
    for (lane, query) in queries.iter().enumerate() {
        ends[lane] = query.rows;
        for (d, q) in q.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            q[lane] = unsafe { *query.q.add(d) };
        }
    }
    let rows = ends.iter().copied().max().unwrap_or(0);
    let mut top = [f32::NEG_INFINITY; LANES];
    let mut total = [0.0_f32; LANES];
    let (mut keys, mut values, mut masks) =
        (Blocks { left: keys, done: 0 }, Blocks { left: values, done: 0 }, Blocks { left: masks, done: 0 });
    let mut at = [std::ptr::null::<u8>(); BLOCK];
    for first in (0..rows).step_by(BLOCK) {
        let count = BLOCK.min(rows - first);
        keys.next(&mut at, count);
        // SAFETY: the caller's promise: so many keys are there.
        unsafe { score::<ROWS>(q, head.scale, &at[..count], &mut scores[..count]) };
        let scores = &mut scores[..count];
        if head.softcap > 0.0 {
            for score in scores.iter_mut() {
                score.iter_mut().for_each(|score| *score = head.softcap * math::tanh(*score / head.softcap));
            }
        }
        if !matches!(head.mask, Mask::None) {
            masks.next(&mut at, count);
            // SAFETY: the caller's promise: so many rows of the mask are there.
            unsafe { apply_mask(head.mask, queries, &at[..count], scores) };
        }
        // Where some queries end before others.
        let is_ragged = ends[..queries.len()].iter().any(|end| *end < first + count);
        if is_ragged {
            for (row, score) in scores.iter_mut().enumerate() {
                for lane in 0..LANES {
                    score[lane] = if first + row < ends[lane] { score[lane] } else { f32::NEG_INFINITY };
                }
            }
        }
        let mut largest = top;
        for score in scores.iter() {
            for lane in 0..LANES {
                largest[lane] = if score[lane] > largest[lane] { score[lane] } else { largest[lane] };
            }
        }
        let mut from = [0.0; LANES];
        let mut factor = [0.0; LANES];
        for lane in 0..LANES {
            from[lane] = if largest[lane] == f32::NEG_INFINITY { 0.0 } else { largest[lane] };
            // What is as small as can be is 0.
            factor[lane] = math::exp(top[lane] - from[lane]);
            total[lane] *= factor[lane];
        }
        top = largest;
        for score in scores.iter_mut() {
            for lane in 0..LANES {
                score[lane] = math::exp(score[lane] - from[lane]);
                total[lane] += score[lane];
            }
        }
        values.next(&mut at, count);
        let (values, ends) = (&at[..count], is_ragged.then_some((first, &ends)));
        match ends {
            // SAFETY: the caller's promise: so many values are there.
            None => unsafe { weigh::<ROWS>(scores, values, &factor, sums, |_, added, _, _| added) },
            // Beyond a query's end a value may be anything.
            // SAFETY: as above.
            Some((first, ends)) => unsafe {
                weigh::<ROWS>(
                    scores,
                    values,
                    &factor,
                    sums,
                    |row, added, before, lane| if first + row < ends[lane] { added } else { before },
                );
            },
        }
    }
    for (lane, query) in queries.iter().enumerate() {
        for (e, sum) in sums.iter().enumerate() {
            // Where no row counts it is 0.
            let y = if total[lane] == 0.0 { 0.0 } else { sum[lane] / total[lane] };
            // SAFETY: the caller's promise.
            unsafe { *query.y.add(e) = y };
        }
    }
}

/// Products of queries with keys, some keys at a time.
///
/// # Safety
/// There are as many floats of each key as of a query.
#[inline(always)]
unsafe fn score<const ROWS: usize>(q: &[Lane], scale: f32, keys: &[*const u8], scores: &mut [Lane]) {
    let (some, rest) = keys.as_chunks::<ROWS>();
    let (of_some, of_rest) = scores.as_chunks_mut::<ROWS>();
    for (keys, scores) in some.iter().zip(of_some) {
        // SAFETY: the caller's promise.
        unsafe { score_some(q, scale, keys, scores) };
    }
    for (key, score) in rest.iter().zip(of_rest) {
        // SAFETY: the caller's promise.
        unsafe { score_some(q, scale, &[*key], std::array::from_mut(score)) };
    }
}

/// # Safety
/// As for [`score`].
#[inline(always)]
unsafe fn score_some<const ROWS: usize>(q: &[Lane], scale: f32, keys: &[*const u8; ROWS], scores: &mut [Lane; ROWS]) {
    let keys = keys.map(<*const u8>::cast::<f32>);
    let mut sums = [[0.0_f32; LANES]; ROWS];
    for (d, q) in q.iter().enumerate() {
        for (sum, key) in sums.iter_mut().zip(keys) {
            // SAFETY: the caller's promise.
            let key = unsafe { *key.add(d) };
            for lane in 0..LANES {
                sum[lane] = q[lane].mul_add(key, sum[lane]);
            }
        }
    }
    for (score, sum) in scores.iter_mut().zip(sums) {
        for lane in 0..LANES {
            score[lane] = sum[lane] * scale;
        }
    }
}

/// # Safety
/// Each row of the mask has the elements that queries name.
#[inline(always)]
unsafe fn apply_mask(mask: Mask, queries: &[Query], rows: &[*const u8], scores: &mut [Lane]) {
    for (at, scores) in rows.iter().zip(scores) {
        for (query, score) in queries.iter().zip(scores) {
            match mask {
                Mask::None => {}
                // SAFETY: the caller's promise.
                Mask::Floats => *score += unsafe { *at.cast::<f32>().add(query.mask) },
                Mask::Truths => {
                    // SAFETY: the caller's promise.
                    let counts = unsafe { *at.add(query.mask) } != 0;
                    *score = if counts { *score } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// Adds weighted values to sums that are scaled first, some elements at a time. `kept` says which of the new and the old sum of a lane is the sum behind a row.
///
/// # Safety
/// There are as many floats of each value as there are sums.
#[inline(always)]
unsafe fn weigh<const PARTS: usize>(
    weights: &[Lane],
    values: &[*const u8],
    factor: &Lane,
    sums: &mut [Lane],
    kept: impl Fn(usize, f32, f32, usize) -> f32 + Copy,
) {
    let (some, rest) = sums.as_chunks_mut::<PARTS>();
    let of_rest = some.len() * PARTS;
    for (at, sums) in some.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { weigh_some(weights, (values, at * PARTS), factor, sums, kept) };
    }
    for (at, sum) in rest.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { weigh_some(weights, (values, of_rest + at), factor, std::array::from_mut(sum), kept) };
    }
}

/// # Safety
/// As for [`weigh`], of the sums from that one on.
#[inline(always)]
unsafe fn weigh_some<const PARTS: usize>(
    weights: &[Lane],
    (values, first): (&[*const u8], usize),
    factor: &Lane,
    sums: &mut [Lane; PARTS],
    kept: impl Fn(usize, f32, f32, usize) -> f32,
) {
    let mut own = *sums;
    for sum in &mut own {
        for lane in 0..LANES {
            sum[lane] *= factor[lane];
        }
    }
    for (row, (weight, value)) in weights.iter().zip(values).enumerate() {
        // SAFETY: the caller's promise.
        let value: [f32; PARTS] = unsafe { value.cast::<f32>().add(first).cast::<[f32; PARTS]>().read_unaligned() };
        for (sum, value) in own.iter_mut().zip(value) {
            for lane in 0..LANES {
                sum[lane] = kept(row, weight[lane].mul_add(value, sum[lane]), sum[lane], lane);
            }
        }
    }
    *sums = own;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries of different ends beside one another have the bits that each has alone.
    #[test]
    fn a_query_has_the_same_bits_in_any_lane_and_company() {
        let (depth, size, rows) = (12, 13, 150);
        let values =
            |count: usize, salt: usize| -> Vec<f32> { (0..count).map(|at| ((at * 37 + salt * 101) % 211) as f32 / 50.0 - 2.0).collect() };
        let (keys, mut held) = (values(rows * depth, 1), values(rows * size, 2));
        held[80 * size..].fill(f32::NAN);
        let stretch = |of: &[f32], width: usize| Stretch { at: of.as_ptr().cast(), stride: 4 * width, rows };
        let halves = |of: &[f32], width: usize| {
            let whole = stretch(of, width);
            [Stretch { rows: 33, ..whole }, Stretch { at: whole.row(33), rows: rows - 33, ..whole }]
        };
        let q = values(LANES * depth, 3);
        let ends: Vec<usize> = (0..LANES).map(|lane| [0, 1, 63, 64, 65, 80][lane % 6]).collect();
        let head = Head { depth, size, scale: 0.3, softcap: 0.0, mask: Mask::None };
        for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
            let run = |lanes: &[usize], keys: &[Stretch], held: &[Stretch]| {
                let mut y = vec![7.0_f32; lanes.len() * size];
                let queries: Vec<Query> = lanes
                    .iter()
                    .enumerate()
                    .map(|(at, lane)| Query { q: &raw const q[lane * depth], y: &raw mut y[at * size], rows: ends[*lane], mask: 0 })
                    .collect();
                let mut room = vec![0.0_f32; scratch(&head)];
                let tile = Tile { head, queries: &queries, keys, values: held, masks: &[] };
                // SAFETY: everything is there, and the processor has this level.
                unsafe { kernel(level)(tile, room.as_mut_ptr()) };
                y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>()
            };
            let all: Vec<usize> = (0..LANES).rev().collect();
            let together = run(&all, &halves(&keys, depth), &halves(&held, size));
            for (at, lane) in all.iter().enumerate() {
                let alone = run(&[*lane], &[stretch(&keys, depth)], &[stretch(&held, size)]);
                assert_eq!(together[at * size..][..size], alone, "{level:?}, lane {lane}");
                assert!(alone.iter().all(|bits| !f32::from_bits(*bits).is_nan()));
                assert_eq!(ends[*lane] == 0, alone.iter().all(|bits| *bits == 0), "over nothing it is 0");
            }
        }
    }
}
