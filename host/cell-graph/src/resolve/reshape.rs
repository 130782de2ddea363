//! Values under another shape or name: Constant, Identity, Reshape, Flatten, Squeeze, Unsqueeze. Nothing is computed, so constants may pass.

use std::sync::Arc;

use super::error::{CellFault, ShapeText};
use super::operator::Call;
use super::scope::Span;
use crate::cell::AttributeValue;
use crate::tensor::Tensor;
use crate::typed::{Compute, ValueId};

pub(super) fn constant(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(0, 0)?;
    let wanted = "a value";
    let tensor = if let Some(value) = call.attributes.take("value_float") {
        let AttributeValue::Float(value) = value else { return Err(CellFault::AttributeType { name: "value_float", wanted: "a float" }) };
        Tensor::from_f32("", &[], &[to_f32(*value)])
    } else if let Some(value) = call.attributes.take("value_int") {
        let AttributeValue::Int(value) = value else { return Err(CellFault::AttributeType { name: "value_int", wanted: "an integer" }) };
        Tensor::from_i64("", &[], &[*value])
    } else if let Some(values) = call.attributes.take("value_floats") {
        let AttributeValue::Floats(values) = values else {
            return Err(CellFault::AttributeType { name: "value_floats", wanted: "floats" });
        };
        let values: Vec<f32> = values.iter().map(|value| to_f32(*value)).collect();
        Tensor::from_f32("", &[values.len()], &values)
    } else if let Some(values) = call.attributes.take("value_ints") {
        let AttributeValue::Ints(values) = values else { return Err(CellFault::AttributeType { name: "value_ints", wanted: "integers" }) };
        Tensor::from_i64("", &[values.len()], values)
    } else {
        return Err(CellFault::AttributeType { name: "value_float, value_int, value_floats or value_ints", wanted });
    };
    if tensor.data.is_empty() {
        return Err(CellFault::EmptyResult);
    }
    Ok(vec![call.scope.add_constant(Arc::new(tensor))?])
}

#[expect(clippy::cast_possible_truncation, reason = "ONNX's attributes are 32-bit floats")]
const fn to_f32(value: f64) -> f32 {
    value as f32
}

pub(super) fn identity(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    Ok(vec![call.input(0)?])
}

pub(super) fn reshape(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let zero_is_zero = call.attributes.truth("allowzero", false)?;
    let Some(target) = call.parameter("shape", 1)? else { return Err(CellFault::AttributeMissing { name: "shape" }) };
    let limit = call.scope.limits.rank_max + 1;
    if target.len() > limit {
        return Err(CellFault::Limit { what: "dimensions", count: target.len() as u64, limit: limit as u64 });
    }
    let id = call.input(0)?;
    let value = call.value(id);
    let fault = || CellFault::Reshape { from: ShapeText::row(value.shape.iter().copied()), to: target.clone() };
    if !value.batched {
        let shape = target_shape(&target, &value.shape, zero_is_zero).ok_or_else(fault)?;
        return Ok(vec![call.scope.reshape_constant(id, shape)?]);
    }
    if let Some(span) = call.scope.span(id) {
        // The ragged extent stays as it is, whether it is copied or counted.
        let shape = match &target[..] {
            [0, -1, rest @ ..] if span.axis == 0 && !zero_is_zero && !rest.contains(&-1) => target_shape(rest, &value.shape, false),
            [0, 0, rest @ ..] if span.axis == 0 && !zero_is_zero => target_shape(rest, &value.shape, false),
            _ => return Err(CellFault::Unusable { what: "a ragged value's new shape begins with 0 and then 0 or -1" }),
        };
        let shape = shape.ok_or_else(fault)?;
        return as_shape(call, id, shape);
    }
    let shape = match target.split_first() {
        Some((0, rest)) if !zero_is_zero => target_shape(rest, &value.shape, false),
        Some((-1, rest)) if !rest.contains(&-1) => target_shape(rest, &value.shape, zero_is_zero),
        _ => return Err(CellFault::CrossesBatch { how: "a new shape must begin with 0 or -1, which stand for the batch" }),
    };
    let shape = shape.ok_or_else(fault)?;
    as_shape(call, id, shape)
}

/// The extents a target means, if it means as many elements.
fn target_shape(target: &[i64], from: &[usize], zero_is_zero: bool) -> Option<Vec<usize>> {
    let elements: usize = from.iter().product();
    let mut shape = Vec::with_capacity(target.len());
    let mut open = None;
    for (axis, extent) in target.iter().enumerate() {
        shape.push(match *extent {
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            0 if !zero_is_zero => *from.get(axis)?,
            extent => usize::try_from(extent).ok()?,
        });
    }
    let known = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent))?;
    if let Some(axis) = open {
        shape[axis] = elements.checked_div(known)?;
    }
    (shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent)) == Some(elements)).then_some(shape)
}

pub(super) fn flatten(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let axis = call.attributes.int("axis")?.unwrap_or(1);
    let id = call.batched(0, &crate::Datatype::ALL, "any datatype")?;
    let rank = call.value(id).shape.len();
    if axis != 1 && axis.checked_add_unsigned(rank as u64) != Some(0) {
        return Err(CellFault::CrossesBatch { how: "only axis 1 leaves the batch as it is" });
    }
    let elements = call.value(id).elements();
    as_shape(call, id, vec![elements])
}

pub(super) fn squeeze(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let Some(axes) = call.parameter("axes", 1)? else { return Err(CellFault::AttributeMissing { name: "axes" }) };
    let id = call.input(0)?;
    let mut extents = call.extents(id);
    let axes = if call.value(id).batched { Call::row_axes(&axes, extents.len())? } else { constant_axes(&axes, extents.len())? };
    for axis in axes.into_iter().rev() {
        if extents.remove(axis) != Some(1) {
            return Err(CellFault::InputShape { input: 0, given: call.text(id), wanted: "only axes of extent 1 can be squeezed" });
        }
    }
    with_extents(call, id, &extents)
}

pub(super) fn unsqueeze(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let Some(axes) = call.parameter("axes", 1)? else { return Err(CellFault::AttributeMissing { name: "axes" }) };
    let id = call.input(0)?;
    let mut extents = call.extents(id);
    let limit = call.scope.limits.rank_max;
    if axes.len() > limit {
        return Err(CellFault::Limit { what: "axes", count: axes.len() as u64, limit: limit as u64 });
    }
    let rank = extents.len() + axes.len();
    let axes = if call.value(id).batched { Call::row_axes(&axes, rank)? } else { constant_axes(&axes, rank)? };
    for axis in axes {
        extents.insert(axis, Some(1));
    }
    with_extents(call, id, &extents)
}

/// The value with those extents, of which a ragged one may stand elsewhere than before.
pub(super) fn with_extents(call: &mut Call<'_, '_>, id: ValueId, extents: &[Option<usize>]) -> Result<Vec<ValueId>, CellFault> {
    let shape: Vec<usize> = extents.iter().flatten().copied().collect();
    let axis = extents.iter().position(Option::is_none).unwrap_or(0);
    let span = call.scope.span(id).map(|span| Span { axis, ..span });
    if span == call.scope.span(id) {
        return as_shape(call, id, shape);
    }
    let datatype = call.value(id).datatype;
    call.one_in(span, Compute::Reshape, vec![id], (datatype, shape))
}

/// Axes of a constant, each once, ascending.
fn constant_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, CellFault> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let mut resolved = Vec::new();
    for axis in axes {
        let from_front = if *axis < 0 { axis.checked_add(signed) } else { Some(*axis) };
        match from_front.and_then(|axis| usize::try_from(axis).ok()) {
            Some(found) if found < rank && resolved.contains(&found) => return Err(CellFault::AxisTwice { axis: *axis }),
            Some(found) if found < rank => resolved.push(found),
            _ => return Err(CellFault::AxisRange { axis: *axis, rank }),
        }
    }
    resolved.sort_unstable();
    Ok(resolved)
}

/// The value under another shape of as many elements.
fn as_shape(call: &mut Call<'_, '_>, id: ValueId, shape: Vec<usize>) -> Result<Vec<ValueId>, CellFault> {
    let value = call.value(id);
    if !value.batched {
        return Ok(vec![call.scope.reshape_constant(id, shape)?]);
    }
    if value.shape == shape {
        return Ok(vec![id]);
    }
    let datatype = value.datatype;
    call.one(Compute::Reshape, vec![id], (datatype, shape))
}
