//! Operations over all rows of a span but attention, for one node at a time.
//!
//! Sums are made of blocks of [`BLOCK`] rows, counted from the span's first row, so that their error
//! does not grow with its length.

use cellwright_cell_graph::typed::ReduceKind;

use super::attention::{Stretch, rows_of};
use super::rows::tree;
use super::{dispatch, math};
use crate::level::Level;

/// Rows that are summed before they are added to other blocks.
const BLOCK: usize = 64;

/// What is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpanOp {
    Reduce(ReduceKind),
    Softmax { log: bool },
    CumSum { exclusive: bool, reverse: bool },
    ArgMax { last: bool },
    TopK { k: usize, largest: bool },
    MatMul,
    Mix,
}

impl SpanOp {
    /// How many rows there must be.
    pub(crate) const fn rows_least(self) -> usize {
        match self {
            Self::ArgMax { .. } => 1,
            Self::TopK { k, .. } => k,
            _ => 0,
        }
    }
}

/// One node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    pub(crate) op: SpanOp,
    /// Rows of the first operand, of so many floats.
    pub(crate) a: &'a [Stretch],
    pub(crate) width: usize,
    /// Rows of the second, or its only one, of so many floats.
    pub(crate) b: &'a [Stretch],
    pub(crate) columns: usize,
    /// Results: one row, or as many as the span has, one behind the other.
    pub(crate) y: *mut u8,
    /// The second result, if it is wanted.
    pub(crate) places: *mut i64,
}

/// # Safety
/// Operands are there, results are nobody else's, and the processor has what the kernel was compiled for. There is room for as many floats as the first operand has, and
/// as the result has.
pub(crate) type SpanKernel = unsafe fn(Node<'_>, *mut f32);

/// The kernel for a processor.
pub(crate) fn kernel(level: Level) -> SpanKernel {
    dispatch!(level, run::<>, [], (node: Node<'_>, scratch: *mut f32))
}

/// Floats from there on.
///
/// # Safety
/// So many are there, and nobody writes them meanwhile.
#[inline(always)]
unsafe fn floats<'a>(at: *const u8, count: usize) -> &'a [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at.cast(), count) }
}

/// The same, to be written.
///
/// # Safety
/// So many are there, and nobody else reads or writes them meanwhile.
#[inline(always)]
unsafe fn written<'a, T>(at: *mut u8, count: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), count) }
}

/// # Safety
/// As for [`SpanKernel`].
#[inline(always)]
unsafe fn run(node: Node<'_>, scratch: *mut f32) {
    let Node { op, a, width, b, columns, y, places } = node;
    let count: usize = a.iter().map(|stretch| stretch.rows).sum();
    // Operands, results and scratch memory are as large as these say: that is the caller's promise.
    // SAFETY: see above.
    let rows = rows_of(a).map(|at| unsafe { floats(at, width) });
    // SAFETY: see above.
    let result = |count: usize| unsafe { written::<f32>(y, count) };
    // SAFETY: see above; these are three parts of it.
    let [partial, top, total] = [0, 1, 2].map(|part| unsafe { written::<f32>(scratch.add(part * width).cast(), width) });
    match op {
        SpanOp::Reduce(ReduceKind::Max) => largest(rows, result(width)),
        SpanOp::Reduce(kind) => {
            let y = result(width);
            sum(rows, partial, y, |x, _| x);
            if matches!(kind, ReduceKind::Mean) {
                y.iter_mut().for_each(|y| *y /= count as f32);
            }
        }
        SpanOp::Softmax { log } => {
            largest(rows.clone(), top);
            sum(rows.clone(), partial, total, |x, at| math::exp(x - top[at]));
            if log {
                total.iter_mut().for_each(|total| *total = total.ln());
            }
            for (x, y) in rows.zip(result(width * count).chunks_exact_mut(width)) {
                for at in 0..width {
                    y[at] = if log { x[at] - top[at] - total[at] } else { math::exp(x[at] - top[at]) / total[at] };
                }
            }
        }
        SpanOp::CumSum { exclusive, reverse } => {
            let y = result(width * count);
            rows.zip(y.chunks_exact_mut(width)).for_each(|(x, y)| y.copy_from_slice(x));
            partial.fill(0.0);
            for number in 0..count {
                let at = if reverse { count - 1 - number } else { number };
                for (y, sum) in y[at * width..][..width].iter_mut().zip(&mut *partial) {
                    let before = *sum;
                    *sum += *y;
                    *y = if exclusive { before } else { *sum };
                }
            }
        }
        SpanOp::ArgMax { last } => {
            // SAFETY: see above.
            let y = unsafe { written::<i64>(y, width) };
            for (number, x) in rows.enumerate() {
                for at in 0..width {
                    let is_more = x[at] > partial[at] || (x[at].is_nan() && !partial[at].is_nan());
                    let is_as_much = x[at] == partial[at] || (x[at].is_nan() && partial[at].is_nan());
                    if number == 0 || is_more || (last && is_as_much) {
                        (partial[at], y[at]) = (x[at], number as i64);
                    }
                }
            }
        }
        SpanOp::TopK { k, largest } => {
            // SAFETY: see above.
            let places = if places.is_null() { &mut [][..] } else { unsafe { written::<i64>(places.cast(), k * width) } };
            top_k(rows, (width, k, largest), result(k * width), places);
        }
        SpanOp::MatMul => {
            // SAFETY: see above.
            let b = b.first().map_or(&[][..], |b| unsafe { floats(b.at, width * columns) });
            for (x, y) in rows.zip(result(columns * count).chunks_exact_mut(columns)) {
                if columns == 1 {
                    y[0] = dot(x, b);
                    continue;
                }
                y.fill(0.0);
                for (x, b) in x.iter().zip(b.chunks_exact(columns)) {
                    y.iter_mut().zip(b).for_each(|(y, b)| *y = x.mul_add(*b, *y));
                }
            }
        }
        SpanOp::Mix => {
            let y = result(width * columns);
            y.fill(0.0);
            // SAFETY: see above.
            for (a, b) in rows.zip(rows_of(b).map(|at| unsafe { floats(at, columns) })) {
                for (a, y) in a.iter().zip(y.chunks_exact_mut(columns)) {
                    y.iter_mut().zip(b).for_each(|(y, b)| *y = a.mul_add(*b, *y));
                }
            }
        }
    }
}

/// The largest of each element; NaN is larger than all.
#[inline(always)]
fn largest<'a>(rows: impl Iterator<Item = &'a [f32]>, y: &mut [f32]) {
    y.fill(f32::NEG_INFINITY);
    for x in rows {
        for (y, x) in y.iter_mut().zip(x) {
            *y = if *x > *y || x.is_nan() { *x } else { *y };
        }
    }
}

/// The sum over all rows of a function of each element.
#[inline(always)]
fn sum<'a>(rows: impl Iterator<Item = &'a [f32]>, partial: &mut [f32], y: &mut [f32], of: impl Fn(f32, usize) -> f32) {
    y.fill(0.0);
    let mut rows = rows.peekable();
    while rows.peek().is_some() {
        partial.fill(0.0);
        for x in rows.by_ref().take(BLOCK) {
            for (at, (sum, x)) in partial.iter_mut().zip(x).enumerate() {
                *sum += of(*x, at);
            }
        }
        y.iter_mut().zip(&*partial).for_each(|(y, sum)| *y += sum);
    }
}

/// The sum of products, in sixteen lanes and a fixed tree.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; super::rows::LANES];
    for (a, b) in a.chunks(lanes.len()).zip(b.chunks(lanes.len())) {
        for (lane, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[lane] = a.mul_add(*b, lanes[lane]);
        }
    }
    tree(lanes)
}

/// The first k of each element, in their order; NaN is larger than all.
fn top_k<'a>(
    rows: impl Iterator<Item = &'a [f32]> + Clone,
    (width, k, is_largest): (usize, usize, bool),
    y: &mut [f32],
    places: &mut [i64],
) {
    let mut column: Vec<(f32, usize)> = Vec::new();
    for at in 0..width {
        column.clear();
        column.extend(rows.clone().map(|x| x[at]).zip(0..));
        let order = |a: f32, b: f32| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
        column.sort_by(|(a, _), (b, _)| if is_largest { order(*b, *a) } else { order(*a, *b) });
        for (place, (value, row)) in column.iter().take(k).enumerate() {
            y[place * width + at] = *value;
            places.get_mut(place * width + at).into_iter().for_each(|place| *place = *row as i64);
        }
    }
}
