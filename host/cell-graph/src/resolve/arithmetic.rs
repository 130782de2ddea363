//! Element-wise operators, and how ONNX (numpy) broadcasting is kept off the batch dimension.

use super::error::{CellFault, ShapeText, short};
use super::operator::Call;
use crate::cell::AttributeValue;
use crate::datatype::Datatype;
use crate::typed::{BinaryKind, Compute, UnaryKind, ValueId};

const FLOAT: &[Datatype] = &[Datatype::Fp32];
const SIGNED: &[Datatype] = &[Datatype::Fp32, Datatype::Int32, Datatype::Int64];
const NUMBER: &[Datatype] = &[Datatype::Fp32, Datatype::Int32, Datatype::Int64, Datatype::Uint8];
const TRUTH: &[Datatype] = &[Datatype::Bool];
const ANY: &[Datatype] = &[Datatype::Fp32, Datatype::Int32, Datatype::Int64, Datatype::Uint8, Datatype::Bool];

pub(super) fn unary(call: &mut Call<'_, '_>, kind: UnaryKind) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let (datatypes, wanted) = match kind {
        UnaryKind::Neg => (SIGNED, "FP32, INT32 or INT64"),
        UnaryKind::Not => (TRUTH, "BOOL"),
        _ => (FLOAT, "FP32"),
    };
    let operand = call.batched(0, datatypes, wanted)?;
    let result = (call.value(operand).datatype, call.value(operand).shape.clone());
    call.one(Compute::Unary(kind), vec![operand], result)
}

pub(super) fn gelu(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    match call.attributes.text("approximate")? {
        None | Some("none") => unary(call, UnaryKind::Gelu),
        Some("tanh") => unary(call, UnaryKind::GeluTanh),
        Some(_) => Err(CellFault::AttributeType { name: "approximate", wanted: "`none` or `tanh`" }),
    }
}

/// Integers wrap around; they are not divided, because a divisor of 0 would have no meaning.
pub(super) fn binary(call: &mut Call<'_, '_>, kind: BinaryKind) -> Result<Vec<ValueId>, CellFault> {
    use BinaryKind::{Add, And, Div, Equal, Greater, Less, Mul, Or, Pow, Sub};
    call.arity(2, 2)?;
    let (datatypes, wanted) = match kind {
        Add | Sub | Mul => (SIGNED, "FP32, INT32 or INT64"),
        Div | Pow => (FLOAT, "FP32"),
        Equal => (ANY, "BOOL, UINT8, INT32, INT64 or FP32"),
        Greater | Less => (NUMBER, "UINT8, INT32, INT64 or FP32"),
        And | Or => (TRUTH, "BOOL"),
    };
    let left = call.datatype(0, datatypes, wanted)?;
    let right = call.datatype(1, datatypes, wanted)?;
    if left != right {
        return Err(CellFault::DatatypesDiffer { left, right });
    }
    let (operands, shape) = broadcast(call)?;
    let datatype = if matches!(kind, Equal | Greater | Less) { Datatype::Bool } else { left };
    call.one(Compute::Binary(kind), operands, (datatype, shape))
}

pub(super) fn choose(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(3, 3)?;
    call.datatype(0, TRUTH, "BOOL")?;
    let left = call.datatype(1, ANY, "BOOL, UINT8, INT32, INT64 or FP32")?;
    let right = call.datatype(2, ANY, "BOOL, UINT8, INT32, INT64 or FP32")?;
    if left != right {
        return Err(CellFault::DatatypesDiffer { left, right });
    }
    let (operands, shape) = broadcast(call)?;
    call.one(Compute::Where, operands, (left, shape))
}

pub(super) fn cast(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let to = match call.attributes.take("to") {
        None => return Err(CellFault::AttributeMissing { name: "to" }),
        Some(AttributeValue::Int(number)) => onnx_datatype(*number).ok_or_else(|| CellFault::CastTo { to: number.to_string() })?,
        Some(AttributeValue::Text(name)) => {
            let to = Datatype::from_name(name).filter(|datatype| ANY.contains(datatype));
            to.ok_or_else(|| CellFault::CastTo { to: short(name) })?
        }
        Some(_) => return Err(CellFault::AttributeType { name: "to", wanted: "a datatype's name or ONNX number" }),
    };
    let operand = call.batched(0, ANY, "BOOL, UINT8, INT32, INT64 or FP32")?;
    if call.value(operand).datatype == to {
        return Ok(vec![operand]);
    }
    let shape = call.value(operand).shape.clone();
    call.one(Compute::Cast, vec![operand], (to, shape))
}

/// `TensorProto.DataType`.
fn onnx_datatype(number: i64) -> Option<Datatype> {
    match number {
        1 => Some(Datatype::Fp32),
        2 => Some(Datatype::Uint8),
        6 => Some(Datatype::Int32),
        7 => Some(Datatype::Int64),
        9 => Some(Datatype::Bool),
        _ => None,
    }
}

/// The operands and the row shape they broadcast to.
///
/// ONNX aligns shapes at the right, so batched operands must have rows of equal rank, or the batch of one would meet an axis of another. A
/// constant may have no more dimensions than a row, or a leading extent of 1, which is dropped. Where an operand is ragged, others are repeated
/// along that axis, in which they have an extent of 1.
fn broadcast(call: &mut Call<'_, '_>) -> Result<(Vec<ValueId>, Vec<usize>), CellFault> {
    let mut operands = (0..call.inputs()).map(|input| call.input(input)).collect::<Result<Vec<_>, _>>()?;
    let ranks = operands.iter().filter(|id| call.value(**id).batched).map(|id| call.extents(*id).len());
    let (least, most) = ranks.fold((usize::MAX, 0), |(least, most), rank| (least.min(rank), most.max(rank)));
    if least != most {
        return Err(CellFault::CrossesBatch {
            how: "its inputs have different ranks, so that the batch of one would meet an axis of another",
        });
    }
    for operand in &mut operands {
        *operand = fit_constant(call, *operand, most)?;
    }
    let mut rank = most;
    if let Some(span) = call.scope.join(&operands)? {
        rank -= 1;
        for operand in &mut operands {
            *operand = super::spans::repeat(call, *operand, span, most)?;
        }
    }
    let mut shape = vec![1; rank];
    for operand in &operands {
        let other = &call.value(*operand).shape;
        let offset = rank - other.len();
        for (axis, extent) in other.iter().enumerate() {
            let so_far = &mut shape[offset + axis];
            if *so_far == 1 {
                *so_far = *extent;
            } else if *extent != 1 && *extent != *so_far {
                return Err(CellFault::Broadcast { left: ShapeText::batched(shape), right: call.text(*operand) });
            }
        }
    }
    Ok((operands, shape))
}

/// A constant as something that broadcasts to a row of that rank; batched values are left as they are.
pub(super) fn fit_constant(call: &mut Call<'_, '_>, id: ValueId, rank: usize) -> Result<ValueId, CellFault> {
    let value = call.value(id);
    if value.batched || value.shape.len() <= rank {
        return Ok(id);
    }
    if value.shape.len() > rank + 1 || value.shape.first() != Some(&1) {
        return Err(CellFault::CrossesBatch { how: "a constant of that shape would be laid along the batch" });
    }
    let shape = value.shape.get(1..).unwrap_or_default().to_vec();
    call.scope.reshape_constant(id, shape)
}
