//! What one row of a cell costs, before anything of it is run.

use super::{CellFault, CellLimits};
use crate::typed::{Compute, Operation, Origin, TypedCell, Value};

/// Sets the cell's floating-point operations and weight bytes.
pub(super) fn measure(cell: &mut TypedCell, limits: CellLimits) -> Result<(), CellFault> {
    let mut flops = 0_u64;
    for operation in &cell.operations {
        let span = operation.operands.iter().chain(&operation.results).find_map(|id| cell.value(*id).span);
        let rows = span.and_then(|span| cell.joined(span)).map_or(1, |joined| joined.inputs.len() + joined.rows);
        flops = flops.saturating_add(operation_flops(cell, operation).saturating_mul(rows as u64));
    }
    let mut bytes = 0_u64;
    for value in &cell.values {
        if let Origin::Constant(tensor) = &value.origin {
            bytes = bytes.saturating_add(tensor.data.len() as u64);
        }
    }
    if flops > limits.flops_max {
        return Err(CellFault::Limit { what: "floating-point operations for a row", count: flops, limit: limits.flops_max });
    }
    if bytes > limits.weight_bytes_max {
        return Err(CellFault::Limit { what: "bytes of weights", count: bytes, limit: limits.weight_bytes_max });
    }
    (cell.flops, cell.weight_bytes) = (flops, bytes);
    let held = |value: &Value| {
        let inputs = value.span.map_or(0, |span| cell.joined(span).map_or(1, |joined| joined.inputs.len()));
        (value.elements() * inputs) as u64
    };
    cell.span_elements = cell.values.iter().map(held).sum();
    Ok(())
}

/// A product counts 2·K for each result; anything else a small number for each element it reads or writes.
fn operation_flops(cell: &TypedCell, operation: &Operation) -> u64 {
    let elements = |ids: &[crate::typed::ValueId]| ids.iter().map(|id| cell.value(*id).elements() as u64).fold(0_u64, u64::saturating_add);
    let results = elements(&operation.results);
    let first = operation.operands.first().map_or(0, |id| cell.value(*id).elements() as u64);
    match &operation.compute {
        Compute::Linear { .. } => {
            let depth = operation.operands.first().and_then(|x| cell.value(*x).shape.last()).map_or(0, |depth| *depth as u64);
            let bias = if operation.operands.len() > 2 { results } else { 0 };
            results.saturating_mul(depth).saturating_mul(2).saturating_add(bias)
        }
        Compute::Unary(_) | Compute::Binary(_) | Compute::Where | Compute::Cast => results,
        Compute::Softmax { .. } | Compute::LogSoftmax { .. } => first.saturating_mul(4),
        Compute::LayerNormalization { .. } | Compute::RmsNormalization { .. } => first.saturating_mul(6),
        Compute::ArgMax { .. } | Compute::Reduce { .. } => first,
        Compute::TopK { k, .. } => first.saturating_mul(u64::from(k.ilog2()) + 1),
        Compute::SpanReduce(_) | Compute::SpanArgMax { .. } | Compute::SpanCumSum { .. } => first,
        Compute::SpanTopK { k, .. } => first.saturating_mul(u64::from(k.ilog2()) + 1),
        Compute::SpanSoftmax { .. } => first.saturating_mul(4),
        Compute::SpanMatMul => results.saturating_mul(first).saturating_mul(2),
        Compute::SpanMix => results.saturating_mul(2),
        Compute::Attention { .. } => {
            let keys = elements(&operation.operands[1..3]);
            let rows = operation.results.first().and_then(|id| cell.value(*id).shape.first()).map_or(1, |rows| *rows as u64);
            keys.saturating_mul(rows).saturating_mul(2)
        }
        Compute::Repeat
        | Compute::Concat { .. }
        | Compute::Split { .. }
        | Compute::Slice { .. }
        | Compute::Gather
        | Compute::SpanGather
        | Compute::SpanConcat
        | Compute::Reshape => 0,
    }
}
