//! Kernels that look at a whole row, or at several stretches of one: softmax, normalisation, reductions, arg-max, top-k.
//!
//! A row is `outer` stretches of `n` elements, one after the other; plans bring other axes into that form first. Sums run in sixteen lanes and a
//! fixed tree, by position in the stretch; those of a softmax in blocks ([`super::softmax`]).

mod top;

use std::marker::PhantomData;

use cellwright_cell_graph::typed::ReduceKind;

use super::convert::Number;
use super::element::Element;
use super::{dispatch, softmax};
use crate::level::Level;
use top::TopK;

/// What a row kernel works on: rows of elements and of results, each so many bytes apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) source: (*const u8, usize),
    pub(crate) result: (*mut u8, usize),
    /// Positions, of a top-k.
    pub(crate) second: (*mut u8, usize),
    pub(crate) rows: usize,
    pub(crate) shape: Shape,
}

/// What a row is to a row kernel: `outer` stretches of `n` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) outer: usize,
    pub(crate) n: usize,
    /// Results per stretch, of a top-k.
    pub(crate) k: usize,
    /// Of a normalisation.
    pub(crate) epsilon: f32,
}

/// # Safety
/// Rows are valid for their elements and results and aligned to them, results are nobody else's, and the processor has what the kernel was
/// compiled for.
pub(crate) type RowKernel = unsafe fn(Rows);

/// What a row kernel computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowOp {
    Softmax,
    LogSoftmax,
    /// Minus the mean, over the standard deviation.
    Standardize,
    /// Over the root mean square.
    RootMeanSquare,
    Reduce(ReduceKind),
    ArgMax {
        last: bool,
    },
    TopK {
        largest: bool,
    },
}

impl RowOp {
    /// Whether it finds where the largest element is, and nothing else.
    pub(crate) const fn is_arg_max(self) -> bool {
        matches!(self, Self::ArgMax { .. })
    }

    /// The kernel for stretches of that element type; none if there is no such operation.
    pub(crate) fn kernel(self, element: Element, level: Level) -> Option<RowKernel> {
        match (self, element) {
            (Self::Softmax, Element::F32) => Some(stretches::<Softmax>(level)),
            (Self::LogSoftmax, Element::F32) => Some(stretches::<LogSoftmax>(level)),
            (Self::Standardize, Element::F32) => Some(stretches::<Standardize>(level)),
            (Self::RootMeanSquare, Element::F32) => Some(stretches::<RootMeanSquare>(level)),
            (Self::Reduce(ReduceKind::Sum), Element::F32) => Some(stretches::<Sum<f32>>(level)),
            (Self::Reduce(ReduceKind::Mean), Element::F32) => Some(stretches::<Mean<f32>>(level)),
            (_, Element::F32) => order_kernel::<f32>(self, level),
            (_, Element::I64) => integer_kernel::<i64>(self, level),
            (_, Element::I32) => integer_kernel::<i32>(self, level),
            (_, Element::U8) => integer_kernel::<u8>(self, level),
            (_, Element::Bool) => None,
        }
    }
}

fn integer_kernel<T: Number>(op: RowOp, level: Level) -> Option<RowKernel> {
    match op {
        RowOp::Reduce(ReduceKind::Sum) => Some(stretches::<IntegerSum<T>>(level)),
        RowOp::Reduce(ReduceKind::Mean) => Some(stretches::<IntegerMean<T>>(level)),
        _ => order_kernel::<T>(op, level),
    }
}

fn order_kernel<T: Number>(op: RowOp, level: Level) -> Option<RowKernel> {
    Some(match op {
        RowOp::Reduce(ReduceKind::Max) => stretches::<Max<T>>(level),
        RowOp::ArgMax { last: false } => stretches::<ArgMax<T, false>>(level),
        RowOp::ArgMax { last: true } => stretches::<ArgMax<T, true>>(level),
        RowOp::TopK { largest: true } => stretches::<TopK<T, true>>(level),
        RowOp::TopK { largest: false } => stretches::<TopK<T, false>>(level),
        _ => return None,
    })
}

/// What happens to one stretch.
trait Stretch {
    type In: Copy;
    type Out: Copy;
    /// Results of a stretch.
    fn results(shape: &Shape) -> usize;
    /// `positions` is empty unless the operation has a second result.
    fn apply(shape: &Shape, x: &[Self::In], y: &mut [Self::Out], positions: &mut [i64]);
}

/// # Safety
/// As for [`RowKernel`].
#[inline(always)]
unsafe fn run<S: Stretch>(rows: Rows) {
    let results = S::results(&rows.shape);
    for row in 0..rows.rows {
        for outer in 0..rows.shape.outer {
            // SAFETY: the caller's promise.
            unsafe {
                let x = rows.source.0.add(row * rows.source.1).cast::<S::In>().add(outer * rows.shape.n);
                let y = rows.result.0.add(row * rows.result.1).cast::<S::Out>().add(outer * results);
                let positions = if rows.second.0.is_null() {
                    &mut []
                } else {
                    let positions = rows.second.0.add(row * rows.second.1).cast::<i64>().add(outer * results);
                    std::slice::from_raw_parts_mut(positions, results)
                };
                S::apply(&rows.shape, std::slice::from_raw_parts(x, rows.shape.n), std::slice::from_raw_parts_mut(y, results), positions);
            }
        }
    }
}

fn stretches<S: Stretch>(level: Level) -> RowKernel {
    dispatch!(level, run::<S>, [S: Stretch], (rows: Rows))
}

pub(super) const LANES: usize = 16;

/// Σ f(x) in sixteen lanes, which are then added pairwise.
#[inline(always)]
pub(super) fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += f(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    tree(lanes)
}

/// The sum of lanes, pairwise.
#[inline(always)]
pub(super) fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest, NaN if there is one; zero of nothing.
#[inline(always)]
pub(super) fn largest<T: Number>(x: &[T]) -> T {
    let Some(first) = x.first() else { return T::ZERO };
    let mut lanes = [*first; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if x.is_above_with_nan(*lane) { *x } else { *lane };
        }
    }
    rest.iter().chain(&lanes.clone()).fold(*first, |largest, x| if x.is_above_with_nan(largest) { *x } else { largest })
}

macro_rules! float_stretches {
    ($($name:ident: |$shape:ident, $x:ident, $y:ident| $body:block)*) => {$(
        struct $name;
        impl Stretch for $name {
            type In = f32;
            type Out = f32;
            #[inline(always)]
            fn results(shape: &Shape) -> usize {
                shape.n
            }
            #[inline(always)]
            fn apply($shape: &Shape, $x: &[f32], $y: &mut [f32], _: &mut [i64]) $body
        }
    )*};
}

float_stretches! {
    Softmax: |_shape, x, y| {
        softmax::whole::<softmax::Probability>(x, y);
    }
    LogSoftmax: |_shape, x, y| {
        softmax::whole::<softmax::LogProbability>(x, y);
    }
    Standardize: |shape, x, y| {
        let count = x.len() as f32;
        let mean = sum_of(x, |x| x) / count;
        let variance = sum_of(x, |x| (x - mean) * (x - mean)) / count;
        let deviation = (variance + shape.epsilon).sqrt();
        for (y, x) in y.iter_mut().zip(x) {
            *y = (x - mean) / deviation;
        }
    }
    RootMeanSquare: |shape, x, y| {
        let root = (sum_of(x, |x| x * x) / x.len() as f32 + shape.epsilon).sqrt();
        for (y, x) in y.iter_mut().zip(x) {
            *y = x / root;
        }
    }
}

macro_rules! single_stretches {
    ($($name:ident: $bound:ident, $out:ty, |$x:ident| $body:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        impl<T: $bound> Stretch for $name<T> {
            type In = T;
            type Out = $out;
            #[inline(always)]
            fn results(_: &Shape) -> usize {
                1
            }
            #[inline(always)]
            fn apply(_: &Shape, $x: &[T], y: &mut [$out], _: &mut [i64]) {
                y[0] = $body;
            }
        }
    )*};
}

/// A float: the bound that lets float-only kernels be written like the others.
trait Float: Copy + Into<f32> + From<f32> + 'static {
    fn floats(x: &[Self]) -> &[f32];
}

impl Float for f32 {
    fn floats(x: &[Self]) -> &[f32] {
        x
    }
}

single_stretches! {
    Sum: Float, T, |x| sum_of(T::floats(x), |x| x).into();
    Mean: Float, T, |x| (sum_of(T::floats(x), |x| x) / x.len() as f32).into();
    IntegerSum: Number, T, |x| x.iter().fold(T::ZERO, |sum, x| sum.add(*x));
    IntegerMean: Number, T, |x| T::mean_of(x.iter().fold(T::ZERO, |sum, x| sum.add(*x)), x.len());
    Max: Number, T, |x| largest(x);
}

struct ArgMax<T, const LAST: bool>(PhantomData<T>);

impl<T: Number, const LAST: bool> Stretch for ArgMax<T, LAST> {
    type In = T;
    type Out = i64;
    #[inline(always)]
    fn results(_: &Shape) -> usize {
        1
    }
    #[inline(always)]
    fn apply(_: &Shape, x: &[T], y: &mut [i64], _: &mut [i64]) {
        let top = largest(x);
        // Equal to the largest, or NaN like it: what is not above it and it is not above.
        let is_top = |x: &T| *x == top || (!x.is_above_with_nan(top) && !top.is_above_with_nan(*x));
        let position = if LAST { x.iter().rposition(is_top) } else { x.iter().position(is_top) };
        y[0] = position.unwrap_or(0) as i64;
    }
}
