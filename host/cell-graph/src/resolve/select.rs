//! Parts of rows, and rows put together: Concat, Split, Slice.

use super::error::{CellFault, ShapeText};
use super::operator::{Call, narrow};
use crate::typed::{Compute, ValueId};

pub(super) fn concat(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    let operands = (0..call.inputs()).map(|input| call.input(input)).collect::<Result<Vec<_>, _>>()?;
    let Some(axis) = call.attributes.int("axis")? else { return Err(CellFault::AttributeMissing { name: "axis" }) };
    let Some(first) = operands.iter().copied().find(|id| call.value(*id).batched) else { return Err(CellFault::ConstantsOnly) };
    if let Some(ragged) = operands.iter().copied().find(|id| call.scope.span(*id).is_some())
        && call.axis(ragged, axis)?.is_none()
    {
        return super::spans::concat(call, operands, ragged);
    }
    let axis = call.fixed_axis(first, axis)?;
    let is_ragged = call.scope.span(first).is_some();
    if let Some(input) = operands.iter().position(|id| call.scope.span(*id).is_some() != is_ragged) {
        return Err(if is_ragged { CellFault::NotRagged { input } } else { CellFault::RaggedInput { input } });
    }
    let (datatype, mut shape) = (call.value(first).datatype, call.value(first).shape.clone());
    let mut total = 0_usize;
    for operand in &operands {
        let other = call.value(*operand);
        if other.datatype != datatype {
            return Err(CellFault::DatatypesDiffer { left: datatype, right: other.datatype });
        }
        let fits = |(position, (left, right)): (usize, (&usize, &usize))| position == axis || left == right;
        if other.shape.len() != shape.len() || !shape.iter().zip(&other.shape).enumerate().all(fits) {
            return Err(CellFault::ShapesDiffer { left: call.text(first), right: call.text(*operand) });
        }
        total = total.saturating_add(other.shape[axis]);
    }
    shape[axis] = total;
    call.one(Compute::Concat { axis: narrow(axis) }, operands, (datatype, shape))
}

pub(super) fn split(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let axis = call.attributes.int("axis")?.unwrap_or(0);
    let parts = call.attributes.int("num_outputs")?;
    let sizes = call.parameter("split", 1)?;
    let operand = call.batched(0, &crate::Datatype::ALL, "any datatype")?;
    let axis = call.fixed_axis(operand, axis)?;
    let extent = call.value(operand).shape[axis];
    let limit = call.scope.limits.ports_max;
    if let Some(sizes) = sizes.as_ref().filter(|sizes| sizes.len() > limit) {
        return Err(CellFault::Limit { what: "parts", count: sizes.len() as u64, limit: limit as u64 });
    }
    let sizes = match (sizes, parts) {
        (Some(_), Some(_)) => return Err(CellFault::ParameterTwice { name: "split" }),
        (Some(sizes), None) => given_sizes(&sizes, extent)?,
        (None, parts) => even_sizes(parts, call.outputs, extent)?,
    };
    let (datatype, shape) = (call.value(operand).datatype, call.value(operand).shape.clone());
    let part = |size: &usize| {
        let mut shape = shape.clone();
        shape[axis] = *size;
        (datatype, shape)
    };
    let results = sizes.iter().map(part).collect();
    let sizes = sizes.into_iter().map(narrow).collect();
    call.scope.emit(Compute::Split { axis: narrow(axis), sizes }, vec![operand], results)
}

fn given_sizes(sizes: &[i64], extent: usize) -> Result<Vec<usize>, CellFault> {
    let checked: Option<Vec<usize>> = sizes.iter().map(|size| usize::try_from(*size).ok()).collect();
    let Some(checked) = checked else { return Err(CellFault::AttributeType { name: "split", wanted: "sizes of at least 0" }) };
    let total = checked.iter().try_fold(0_usize, |total, size| total.checked_add(*size));
    if total != Some(extent) {
        return Err(CellFault::SplitSizes { sizes: ShapeText::row(checked), extent });
    }
    Ok(checked)
}

/// ONNX 18: parts of `ceil(extent / parts)`, the last one smaller if it must be.
fn even_sizes(parts: Option<i64>, outputs: usize, extent: usize) -> Result<Vec<usize>, CellFault> {
    let parts = parts.map_or(Some(outputs), |parts| usize::try_from(parts).ok());
    let Some(parts) = parts.filter(|parts| *parts == outputs && (1..=extent).contains(parts)) else {
        return Err(CellFault::AttributeType { name: "num_outputs", wanted: "the number of outputs, and at most the extent of the axis" });
    };
    let size = extent.div_ceil(parts);
    let sizes: Vec<usize> = (0..parts).map(|part| extent.saturating_sub(part.saturating_mul(size)).min(size)).collect();
    if sizes.contains(&0) { Err(CellFault::EmptyResult) } else { Ok(sizes) }
}

pub(super) fn slice(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 5)?;
    let Some(starts) = call.parameter("starts", 1)? else { return Err(CellFault::AttributeMissing { name: "starts" }) };
    let Some(ends) = call.parameter("ends", 2)? else { return Err(CellFault::AttributeMissing { name: "ends" }) };
    let axes = call.parameter("axes", 3)?;
    let steps = call.parameter("steps", 4)?;
    let operand = call.batched(0, &crate::Datatype::ALL, "any datatype")?;
    let axes = axes.unwrap_or_else(|| (0_i64..).take(starts.len()).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if starts.len() != ends.len() || starts.len() != axes.len() || starts.len() != steps.len() {
        return Err(CellFault::Unusable { what: "its starts, ends, axes and steps must be equally many" });
    }
    let mut shape = call.value(operand).shape.clone();
    Call::row_axes(&axes, call.extents(operand).len())?;
    let mut cuts = Vec::with_capacity(axes.len());
    for (position, axis) in axes.iter().enumerate() {
        let axis = call.fixed_axis(operand, *axis)?;
        let (start, count) = cut(starts[position], ends[position], steps[position], shape[axis])?;
        let Ok(step) = i32::try_from(steps[position]) else {
            return Err(CellFault::AttributeType { name: "steps", wanted: "32-bit integers other than 0" });
        };
        shape[axis] = count;
        cuts.push((narrow(axis), narrow(start), step));
    }
    cuts.sort_unstable();
    let datatype = call.value(operand).datatype;
    call.one(Compute::Slice { axes: cuts }, vec![operand], (datatype, shape))
}

/// First element and number of elements, clamped as ONNX says.
fn cut(start: i64, end: i64, step: i64, extent: usize) -> Result<(usize, usize), CellFault> {
    let extent = i128::try_from(extent).unwrap_or(i128::MAX);
    let (step, from_back) = (i128::from(step), |position: i64| i128::from(position) + if position < 0 { extent } else { 0 });
    let (start, end) = (from_back(start), from_back(end));
    let span = match step {
        0 => return Err(CellFault::AttributeType { name: "steps", wanted: "32-bit integers other than 0" }),
        1.. => (start.clamp(0, extent), end.clamp(0, extent)),
        _ => (start.clamp(0, extent - 1), end.clamp(-1, extent - 1)),
    };
    let distance = if step > 0 { span.1 - span.0 } else { span.0 - span.1 };
    if distance <= 0 {
        return Err(CellFault::EmptyResult);
    }
    let count = (distance + step.abs() - 1) / step.abs();
    Ok((usize::try_from(span.0).unwrap_or(0), usize::try_from(count).unwrap_or(0)))
}
