//! Whether the weights of a cell's products are numbers in f16: an infinite one would make every sum over it infinite or undefined, and nobody would know why.

use super::{CellFault, error};
use crate::typed::{Compute, F16_MOST, Operation, Origin, TypedCell};

/// The least that rounds to more than [`F16_MOST`]: half a step beyond it, where the even one of two is infinity.
const INFINITE: f32 = F16_MOST + 16.0;

/// Refuses a finite number of a weight that would not be one in f16, times its product's factor.
pub(super) fn check(cell: &TypedCell) -> Result<(), CellFault> {
    cell.operations.iter().try_for_each(|operation| check_operation(cell, operation))
}

fn check_operation(cell: &TypedCell, operation: &Operation) -> Result<(), CellFault> {
    let (Compute::Linear { alpha, .. }, Some(weight)) = (&operation.compute, operation.operands.get(1)) else { return Ok(()) };
    let value = cell.value(*weight);
    let Origin::Constant(tensor) = &value.origin else { return Ok(()) };
    let finite = tensor.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).filter(|value| value.is_finite());
    match finite.map(|value| alpha * value).find(|value| value.abs() >= INFINITE) {
        Some(beyond) => Err(CellFault::BeyondHalves { name: error::short(&value.name), value: beyond }),
        None => Ok(()),
    }
}
