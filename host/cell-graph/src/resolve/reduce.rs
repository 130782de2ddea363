//! Operators over axes of a row, or over the ragged one: Softmax, LogSoftmax, ArgMax, TopK and the reductions.

use super::error::CellFault;
use super::operator::{Call, narrow};
use super::spans;
use crate::datatype::Datatype;
use crate::typed::{BinaryKind, Compute, ReduceKind, UnaryKind, ValueId};

pub(super) fn softmax(call: &mut Call<'_, '_>, compute: impl FnOnce(u32) -> Compute) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let axis = call.attributes.int("axis")?.unwrap_or(-1);
    let operand = call.floats(0)?;
    let shape = call.value(operand).shape.clone();
    let compute = match call.axis(operand, axis)? {
        Some(axis) => compute(narrow(axis)),
        None => Compute::SpanSoftmax { log: matches!(compute(0), Compute::LogSoftmax { .. }) },
    };
    call.one(compute, vec![operand], (Datatype::Fp32, shape))
}

pub(super) fn arg_max(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let axis = call.attributes.int("axis")?.unwrap_or(0);
    let keep = call.attributes.truth("keepdims", true)?;
    let select_last = call.attributes.truth("select_last_index", false)?;
    let operand = call.floats(0)?;
    let mut shape = call.value(operand).shape.clone();
    let Some(axis) = call.axis(operand, axis)? else {
        let found = call.one(Compute::SpanArgMax { select_last }, vec![operand], (Datatype::Int64, shape))?;
        let span = call.scope.span(operand).ok_or(CellFault::SpanAxes)?;
        return spans::keep_axis(call, span, found[0], keep);
    };
    let span = call.scope.span(operand).map(|span| span.without(&[axis], keep));
    without(&mut shape, &[axis], keep);
    call.one_in(span, Compute::ArgMax { axis: narrow(axis), select_last }, vec![operand], (Datatype::Int64, shape))
}

/// Values and positions; `sorted = 0` leaves the order open, so sorted is right for it too.
pub(super) fn top_k(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let axis = call.attributes.int("axis")?.unwrap_or(-1);
    let largest = call.attributes.truth("largest", true)?;
    call.attributes.truth("sorted", true)?;
    let k = match call.parameter("k", 1)?.as_deref() {
        Some([k]) => *k,
        Some(_) => return Err(CellFault::AttributeType { name: "k", wanted: "one integer" }),
        None => return Err(CellFault::AttributeMissing { name: "k" }),
    };
    let operand = call.floats(0)?;
    let mut shape = call.value(operand).shape.clone();
    let Some(axis) = call.axis(operand, axis)? else { return spans::top_k(call, operand, k, largest) };
    let extent = shape[axis];
    let Some(count) = usize::try_from(k).ok().filter(|count| (1..=extent).contains(count)) else {
        return Err(CellFault::TopK { k, extent });
    };
    shape[axis] = count;
    let compute = Compute::TopK { axis: narrow(axis), k: narrow(count), largest };
    call.scope.emit(compute, vec![operand], vec![(Datatype::Fp32, shape.clone()), (Datatype::Int64, shape)])
}

pub(super) fn reduce(call: &mut Call<'_, '_>, kind: ReduceKind) -> Result<Vec<ValueId>, CellFault> {
    let Reduction { operand, axes, keep, none_is_identity } = reduction(call)?;
    if axes.is_empty() {
        let refusal = CellFault::CrossesBatch { how: WHOLE };
        return if none_is_identity { Ok(vec![operand]) } else { Err(refusal) };
    }
    over(call, operand, &axes, kind, keep)
}

/// The square root of a sum of squares.
pub(super) fn euclidean(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    let Reduction { operand, axes, keep, none_is_identity } = reduction(call)?;
    if axes.is_empty() {
        let how = if none_is_identity { "without axes it would be Abs, which this host has not" } else { WHOLE };
        return Err(CellFault::CrossesBatch { how });
    }
    let shape = call.value(operand).shape.clone();
    let squares = call.one(Compute::Binary(BinaryKind::Mul), vec![operand, operand], (Datatype::Fp32, shape))?[0];
    let sum = over(call, squares, &axes, ReduceKind::Sum, keep)?[0];
    let shape = call.value(sum).shape.clone();
    call.one(Compute::Unary(UnaryKind::Sqrt), vec![sum], (Datatype::Fp32, shape))
}

/// What every reduction says.
struct Reduction {
    operand: ValueId,
    axes: Vec<i64>,
    keep: bool,
    none_is_identity: bool,
}

fn reduction(call: &mut Call<'_, '_>) -> Result<Reduction, CellFault> {
    call.arity(1, 2)?;
    let keep = call.attributes.truth("keepdims", true)?;
    let none_is_identity = call.attributes.truth("noop_with_empty_axes", false)?;
    let axes = call.parameter("axes", 1)?.unwrap_or_default();
    Ok(Reduction { operand: call.floats(0)?, axes, keep, none_is_identity })
}

const WHOLE: &str = "without axes it would reduce over the batch";

/// Over axes of the row first, and then over the ragged one, if it is among them.
fn over(call: &mut Call<'_, '_>, operand: ValueId, axes: &[i64], kind: ReduceKind, keep: bool) -> Result<Vec<ValueId>, CellFault> {
    let axes = Call::row_axes(axes, call.extents(operand).len())?;
    let span = call.scope.span(operand);
    let ragged = span.map(|span| span.axis);
    // Counted among the axes of the shape.
    let fixed = axes.iter().filter(|axis| ragged != Some(**axis)).map(|axis| axis - usize::from(ragged.is_some_and(|at| at < *axis)));
    let fixed: Vec<usize> = fixed.collect();
    let left = span.map(|span| span.without(&fixed, keep));
    let mut shape = call.value(operand).shape.clone();
    let mut reduced = vec![operand];
    if !fixed.is_empty() {
        without(&mut shape, &fixed, keep);
        let compute = Compute::Reduce { kind, axes: fixed.into_iter().map(narrow).collect() };
        reduced = call.one_in(left, compute, reduced, (Datatype::Fp32, shape.clone()))?;
    }
    let Some(left) = left.filter(|_| ragged.is_some_and(|axis| axes.contains(&axis))) else { return Ok(reduced) };
    let found = call.one(Compute::SpanReduce(kind), reduced, (Datatype::Fp32, shape))?[0];
    spans::keep_axis(call, left, found, keep)
}

/// Axes (ascending) reduced to extent 1, or removed.
fn without(shape: &mut Vec<usize>, axes: &[usize], keep: bool) {
    for axis in axes.iter().rev() {
        if keep {
            shape[*axis] = 1;
        } else {
            shape.remove(*axis);
        }
    }
}
