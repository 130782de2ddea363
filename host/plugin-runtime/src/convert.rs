//! Between the ABI's types and `cell-graph`'s: one to one, without judgement of what they mean, but with a bound on how much there is.

mod description;
mod growth;

use cellwright_cell_graph::graph::{Growth, Reaction};
use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Description, Tensor, TensorSpec, WeightSpec};

use crate::abi::types;
use crate::error::LimitReached;
use crate::limits::Limits;

/// Why an answer cannot be taken.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// There is more of it than the limits allow.
    TooMuch(LimitReached),
    /// It contradicts itself.
    Malformed(String),
}

impl From<LimitReached> for Unfit {
    fn from(limit: LimitReached) -> Self {
        Self::TooMuch(limit)
    }
}

pub(crate) fn description(from: types::Description, limits: &Limits) -> Result<Description, Unfit> {
    Ok(description::Converter::new(limits).description(from)?)
}

pub(crate) fn growth(from: types::Growth, limits: &Limits) -> Result<Growth, Unfit> {
    growth::Converter::new(limits).growth(from)
}

pub(crate) fn reaction(from: types::Reaction, limits: &Limits) -> Result<Reaction, Unfit> {
    growth::Converter::new(limits).reaction(from)
}

/// How many list elements an answer may still have.
struct Budget {
    left: usize,
    limit: usize,
}

impl Budget {
    fn new(limits: &Limits) -> Self {
        Self { left: limits.list_elements, limit: limits.list_elements }
    }

    fn take(&mut self, elements: usize) -> Result<(), LimitReached> {
        self.left = self.left.checked_sub(elements).ok_or(LimitReached::ListElements(self.limit))?;
        Ok(())
    }
}

/// A larger extent stands beside one of 0, where it says nothing and data does not bound it. Whoever puts tensors together adds extents up.
const EXTENT_MAX: u64 = (1 << 32) - 1;

/// A tensor whose data is what its datatype and shape say.
fn tensor(from: types::Tensor) -> Result<Tensor, Unfit> {
    let name = from.name;
    let extent = |extent: &u64| usize::try_from(*extent).ok().filter(|_| *extent <= EXTENT_MAX).ok_or(*extent);
    let shape = from.shape.iter().map(extent).collect::<Result<_, _>>();
    let shape = shape.map_err(|found| Unfit::Malformed(format!("tensor `{name}` has an extent of {found}, more than {EXTENT_MAX}")))?;
    let tensor = Tensor { name, datatype: datatype(from.datatype), shape, data: from.data };
    if tensor.is_consistent() {
        return Ok(tensor);
    }
    let Tensor { name, datatype, shape, data } = tensor;
    Err(Unfit::Malformed(format!("tensor `{name}` has {} bytes, which do not make {datatype} of shape {shape:?}", data.len())))
}

pub(crate) fn tensor_to_guest(from: Tensor) -> types::Tensor {
    let shape = from.shape.iter().map(|extent| *extent as u64).collect();
    types::Tensor { name: from.name, datatype: datatype_to_guest(from.datatype), shape, data: from.data }
}

pub(crate) fn spec_to_guest(from: &TensorSpec) -> types::TensorSpec {
    types::TensorSpec { name: from.name.clone(), datatype: datatype_to_guest(from.datatype), shape: from.shape.clone() }
}

pub(crate) fn weight_to_guest(from: &WeightSpec) -> types::Weight {
    types::Weight { name: from.name.clone(), datatype: from.datatype.map(datatype_to_guest), shape: from.shape.clone() }
}

pub(crate) fn parameter_to_guest(from: &Attribute) -> types::Parameter {
    let value = match &from.value {
        AttributeValue::Int(value) => types::Value::Int(*value),
        AttributeValue::Float(value) => types::Value::Float(*value),
        AttributeValue::Text(value) => types::Value::Text(value.clone()),
        AttributeValue::Truth(value) => types::Value::Truth(*value),
        AttributeValue::Ints(values) => types::Value::Ints(values.clone()),
        AttributeValue::Floats(values) => types::Value::Floats(values.clone()),
        AttributeValue::Texts(values) => types::Value::Texts(values.clone()),
    };
    types::Parameter { name: from.name.clone(), value }
}

fn datatype(from: types::Datatype) -> Datatype {
    match from {
        types::Datatype::Bool => Datatype::Bool,
        types::Datatype::Uint8 => Datatype::Uint8,
        types::Datatype::Uint16 => Datatype::Uint16,
        types::Datatype::Uint32 => Datatype::Uint32,
        types::Datatype::Uint64 => Datatype::Uint64,
        types::Datatype::Int8 => Datatype::Int8,
        types::Datatype::Int16 => Datatype::Int16,
        types::Datatype::Int32 => Datatype::Int32,
        types::Datatype::Int64 => Datatype::Int64,
        types::Datatype::Fp16 => Datatype::Fp16,
        types::Datatype::Bf16 => Datatype::Bf16,
        types::Datatype::Fp32 => Datatype::Fp32,
        types::Datatype::Fp64 => Datatype::Fp64,
        types::Datatype::Bytes => Datatype::Bytes,
    }
}

fn datatype_to_guest(from: Datatype) -> types::Datatype {
    match from {
        Datatype::Bool => types::Datatype::Bool,
        Datatype::Uint8 => types::Datatype::Uint8,
        Datatype::Uint16 => types::Datatype::Uint16,
        Datatype::Uint32 => types::Datatype::Uint32,
        Datatype::Uint64 => types::Datatype::Uint64,
        Datatype::Int8 => types::Datatype::Int8,
        Datatype::Int16 => types::Datatype::Int16,
        Datatype::Int32 => types::Datatype::Int32,
        Datatype::Int64 => types::Datatype::Int64,
        Datatype::Fp16 => types::Datatype::Fp16,
        Datatype::Bf16 => types::Datatype::Bf16,
        Datatype::Fp32 => types::Datatype::Fp32,
        Datatype::Fp64 => types::Datatype::Fp64,
        Datatype::Bytes => types::Datatype::Bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datatypes_mean_the_same_on_both_sides() {
        for each in Datatype::ALL {
            assert_eq!(datatype(datatype_to_guest(each)), each);
            assert_eq!(datatype_to_guest(each) as usize, each as usize, "{each} has another number in the ABI");
        }
    }

    #[test]
    fn a_tensor_that_contradicts_itself_is_named() {
        let claimed = types::Tensor { name: "x".to_owned(), datatype: types::Datatype::Fp32, shape: vec![2], data: vec![0; 7] };
        let Err(Unfit::Malformed(sentence)) = tensor(claimed) else { panic!("accepted") };
        assert_eq!(sentence, "tensor `x` has 7 bytes, which do not make FP32 of shape [2]");
    }

    #[test]
    fn an_extent_is_bounded_also_where_another_is_zero() {
        let empty =
            |extent| tensor(types::Tensor { name: "x".to_owned(), datatype: types::Datatype::Fp32, shape: vec![extent, 0], data: vec![] });
        assert!(empty(u64::from(u32::MAX)).is_ok());
        let Err(Unfit::Malformed(sentence)) = empty(1 << 32) else { panic!("accepted") };
        assert_eq!(sentence, "tensor `x` has an extent of 4294967296, more than 4294967295");
    }
}
