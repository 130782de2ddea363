//! Operators over axes of a row: Softmax, LogSoftmax, ArgMax, TopK and the reductions.

use super::error::CellFault;
use super::operator::{Call, narrow};
use crate::datatype::Datatype;
use crate::typed::{Compute, ReduceKind, ValueId};

pub(super) fn softmax(call: &mut Call<'_, '_>, compute: impl FnOnce(u32) -> Compute) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let axis = call.attributes.int("axis")?.unwrap_or(-1);
    let operand = call.floats(0)?;
    let shape = call.value(operand).shape.clone();
    let axis = Call::row_axis(axis, shape.len())?;
    call.one(compute(narrow(axis)), vec![operand], (Datatype::Fp32, shape))
}

pub(super) fn arg_max(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let axis = call.attributes.int("axis")?.unwrap_or(0);
    let keep = call.attributes.truth("keepdims", true)?;
    let select_last = call.attributes.truth("select_last_index", false)?;
    let operand = call.floats(0)?;
    let mut shape = call.value(operand).shape.clone();
    let axis = Call::row_axis(axis, shape.len())?;
    without(&mut shape, &[axis], keep);
    call.one(Compute::ArgMax { axis: narrow(axis), select_last }, vec![operand], (Datatype::Int64, shape))
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
    let axis = Call::row_axis(axis, shape.len())?;
    let extent = shape[axis];
    let Some(count) = usize::try_from(k).ok().filter(|count| (1..=extent).contains(count)) else {
        return Err(CellFault::TopK { k, extent });
    };
    shape[axis] = count;
    let compute = Compute::TopK { axis: narrow(axis), k: narrow(count), largest };
    call.scope.emit(compute, vec![operand], vec![(Datatype::Fp32, shape.clone()), (Datatype::Int64, shape)])
}

pub(super) fn reduce(call: &mut Call<'_, '_>, kind: ReduceKind) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let keep = call.attributes.truth("keepdims", true)?;
    let none_is_identity = call.attributes.truth("noop_with_empty_axes", false)?;
    let axes = call.parameter("axes", 1)?.unwrap_or_default();
    let operand = call.floats(0)?;
    if axes.is_empty() {
        let refusal = CellFault::CrossesBatch { how: "without axes it would reduce over the batch" };
        return if none_is_identity { Ok(vec![operand]) } else { Err(refusal) };
    }
    let mut shape = call.value(operand).shape.clone();
    let axes = Call::row_axes(&axes, shape.len())?;
    without(&mut shape, &axes, keep);
    let axes = axes.into_iter().map(narrow).collect();
    call.one(Compute::Reduce { kind, axes }, vec![operand], (Datatype::Fp32, shape))
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
