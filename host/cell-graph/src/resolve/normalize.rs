//! LayerNormalization and RMSNormalization over the last axes of a row.

use super::arithmetic::fit_constant;
use super::error::CellFault;
use super::operator::{Call, narrow};
use crate::datatype::Datatype;
use crate::typed::{Compute, ValueId};

pub(super) fn layer(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(2, 3)?;
    normalize(call, |axis, epsilon| Compute::LayerNormalization { axis, epsilon })
}

pub(super) fn rms(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(2, 2)?;
    normalize(call, |axis, epsilon| Compute::RmsNormalization { axis, epsilon })
}

fn normalize(call: &mut Call<'_, '_>, compute: impl FnOnce(u32, f32) -> Compute) -> Result<Vec<ValueId>, CellFault> {
    let axis = call.attributes.int("axis")?.unwrap_or(-1);
    let epsilon = call.attributes.float("epsilon", 1e-5)?;
    if epsilon < 0.0 {
        return Err(CellFault::AttributeType { name: "epsilon", wanted: "at least 0" });
    }
    if !matches!(call.attributes.int("stash_type")?, None | Some(1)) {
        return Err(CellFault::AttributeType { name: "stash_type", wanted: "1 (FP32)" });
    }
    let x = call.floats(0)?;
    let shape = call.value(x).shape.clone();
    let first = call.fixed_axis(x, axis)?;
    if call.scope.span(x).is_some_and(|span| first < span.axis) {
        return Err(CellFault::RaggedInput { input: 0 });
    }
    let axis = first;
    let mut operands = vec![x, factor(call, 1, call.input(1)?, &shape[axis..])?];
    if let Some(bias) = call.optional(2) {
        operands.push(factor(call, 2, bias, &shape[axis..])?);
    }
    call.one(compute(narrow(axis), epsilon), operands, (Datatype::Fp32, shape))
}

/// A scale or bias: a constant of exactly the normalised shape, leading extents of 1 aside.
fn factor(call: &mut Call<'_, '_>, input: usize, id: ValueId, wanted: &[usize]) -> Result<ValueId, CellFault> {
    call.constant(input)?;
    call.datatype(input, &[Datatype::Fp32], "FP32")?;
    let id = fit_constant(call, id, wanted.len())?;
    if call.value(id).shape != wanted {
        return Err(CellFault::InputShape { input, given: call.text(id), wanted: "it must have the normalised shape" });
    }
    Ok(id)
}
