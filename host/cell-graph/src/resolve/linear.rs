//! Products with weights, and tables of weights: Gemm, MatMul, Gather.

use super::arithmetic::fit_constant;
use super::error::CellFault;
use super::operator::Call;
use crate::datatype::Datatype;
use crate::typed::{Compute, ValueId};

pub(super) fn gemm(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(2, 3)?;
    let alpha = call.attributes.float("alpha", 1.0)?;
    let beta = call.attributes.float("beta", 1.0)?;
    let transposed = call.attributes.truth("transB", false)?;
    if call.attributes.truth("transA", false)? {
        return Err(CellFault::CrossesBatch { how: "transA would sum over the batch" });
    }
    let x = left(call)?;
    if call.value(x).shape.len() != 1 {
        return Err(CellFault::InputShape { input: 0, given: call.text(x), wanted: "Gemm takes [N, K]" });
    }
    let (w, width) = right(call, x, transposed)?;
    let mut operands = vec![x, w];
    let c = call.optional(2);
    if let Some(c) = c {
        call.datatype(2, &[Datatype::Fp32], "FP32")?;
        let c = fit_constant(call, c, 1)?;
        let shape = &call.value(c).shape;
        let fits = shape.as_slice() == [width] || shape.as_slice() == [1] || (shape.is_empty() && !call.value(c).batched);
        if !fits {
            return Err(CellFault::InputShape { input: 2, given: call.text(c), wanted: "it must broadcast to the product" });
        }
        operands.push(c);
    }
    let beta = if c.is_some() { beta } else { 1.0 };
    call.one(Compute::Linear { transposed, alpha, beta }, operands, (Datatype::Fp32, vec![width]))
}

pub(super) fn matmul(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(2, 2)?;
    if let (Some(a), Some(b)) = (call.optional(0), call.optional(1))
        && call.value(a).batched
        && call.value(b).batched
        && (call.scope.span(a).is_some() || call.scope.span(b).is_some())
    {
        return super::spans::matmul(call, a, b);
    }
    let x = left(call)?;
    if call.extents(x).last() == Some(&None) {
        return Err(CellFault::RaggedInput { input: 0 });
    }
    let mut shape = call.value(x).shape.clone();
    if shape.is_empty() {
        return Err(CellFault::CrossesBatch { how: "the product of a [N] with a matrix would sum over the batch" });
    }
    let (w, width) = right(call, x, false)?;
    if let Some(last) = shape.last_mut() {
        *last = width;
    }
    call.one(Compute::Linear { transposed: false, alpha: 1.0, beta: 1.0 }, vec![x, w], (Datatype::Fp32, shape))
}

fn left(call: &Call<'_, '_>) -> Result<ValueId, CellFault> {
    let x = call.input(0)?;
    if !call.value(x).batched {
        return Err(CellFault::CrossesBatch { how: "a constant on the left would sum over the batch" });
    }
    call.floats(0)
}

/// The constant right-hand side and its width.
fn right(call: &Call<'_, '_>, x: ValueId, transposed: bool) -> Result<(ValueId, usize), CellFault> {
    let w = call.input(1)?;
    if call.value(w).batched {
        return Err(CellFault::NotConstant { input: 1 });
    }
    call.datatype(1, &[Datatype::Fp32], "FP32")?;
    let [rows, columns] = call.value(w).shape[..] else {
        return Err(CellFault::InputShape { input: 1, given: call.text(w), wanted: "a weight of a product has two dimensions" });
    };
    let (depth, width) = if transposed { (columns, rows) } else { (rows, columns) };
    if call.value(x).shape.last() != Some(&depth) {
        return Err(CellFault::ShapesDiffer { left: call.text(x), right: call.text(w) });
    }
    Ok((w, width))
}

pub(super) fn gather(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(2, 2)?;
    let axis = call.attributes.int("axis")?.unwrap_or(0);
    let table = call.constant(0)?;
    let index = call.batched(1, &[Datatype::Int32, Datatype::Int64], "INT32 or INT64")?;
    let rank = call.value(table).shape.len();
    if rank == 0 {
        return Err(CellFault::InputShape { input: 0, given: call.text(table), wanted: "a table has at least one dimension" });
    }
    if axis != 0 && axis.checked_add_unsigned(rank as u64) != Some(0) {
        return Err(CellFault::Unusable { what: "it gathers along axis 0 of its table only" });
    }
    let mut shape = call.value(index).shape.clone();
    shape.extend(call.value(table).shape.iter().skip(1));
    let datatype = call.value(table).datatype;
    call.one(Compute::Gather, vec![table, index], (datatype, shape))
}
