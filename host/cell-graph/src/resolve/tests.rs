//! Operators by what they give, refusals by their sentences, identity by what changes it.

mod arbitrary;
mod identity;
mod infer;
mod refusals;
mod spans;

use super::{CellError, CellLimits, ResolveContext, Weights};
use crate::cell::{Attribute, AttributeValue, Body, Cell, Operator, Port};
use crate::datatype::Datatype;
use crate::tensor::Tensor;
use crate::typed::{Precision, TypedCell};

/// Ports `x` FP32 [4], `m` FP32 [3, 4], `s` FP32 [], `n` INT64 [], `i` INT32 [4], `b` BOOL [4], `u` UINT8 [4].
fn ports() -> Vec<Port> {
    vec![
        port("x", Datatype::Fp32, &[4]),
        port("m", Datatype::Fp32, &[3, 4]),
        port("s", Datatype::Fp32, &[]),
        port("n", Datatype::Int64, &[]),
        port("i", Datatype::Int32, &[4]),
        port("b", Datatype::Bool, &[4]),
        port("u", Datatype::Uint8, &[4]),
    ]
}

fn weights() -> Weights {
    let f32s = |name: &str, shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        Tensor::from_f32(name, shape, &(0..count).map(|at| at as f32).collect::<Vec<_>>())
    };
    let mut half = f32s("half", &[2]);
    half.datatype = Datatype::Fp16;
    half.data.truncate(4);
    let mut broken = f32s("broken", &[4]);
    broken.data.truncate(4);
    [
        f32s("w", &[4, 5]),
        f32s("wt", &[5, 4]),
        f32s("c4", &[4]),
        f32s("c5", &[5]),
        f32s("c14", &[1, 4]),
        f32s("c24", &[2, 4]),
        f32s("c114", &[1, 1, 4]),
        f32s("one", &[]),
        Tensor::from_i64("k2", &[1], &[2]),
        Tensor::from_i64("axes1", &[1], &[1]),
        Tensor::from_i64("n0", &[], &[0]),
        half,
        broken,
    ]
    .into_iter()
    .collect()
}

fn port(name: &str, datatype: Datatype, shape: &[u32]) -> Port {
    Port { name: name.to_owned(), datatype, shape: shape.to_vec(), ragged: false, carried: false }
}

/// `"Gemm x w c5 -> y"`.
fn op(text: &str, attributes: &[(&str, AttributeValue)]) -> Operator {
    let (left, right) = text.split_once(" -> ").unwrap();
    let mut left = left.split(' ').map(str::to_owned);
    let kind = left.next().unwrap();
    let attributes = attributes.iter().map(|(name, value)| Attribute { name: (*name).to_owned(), value: value.clone() }).collect();
    Operator { kind, inputs: left.collect(), outputs: right.split(' ').map(str::to_owned).collect(), attributes }
}

fn cell(operators: Vec<Operator>, outputs: Vec<Port>) -> Cell {
    Cell { name: "c".to_owned(), inputs: ports(), outputs, body: Body::Operators(operators), batch_max: None, priority: None }
}

fn resolve(cell: &Cell) -> Result<TypedCell, CellError> {
    let weights = weights();
    let limits = CellLimits { operators_max: 40, ports_max: 16, rank_max: 4, row_elements_max: 4000, ..CellLimits::default() };
    TypedCell::resolve(cell, &ResolveContext { weights: &weights, precision: Precision::F32, tenant: "t", limits, may_copy: &|_| true })
}

const fn int(value: i64) -> AttributeValue {
    AttributeValue::Int(value)
}

fn ints(values: &[i64]) -> AttributeValue {
    AttributeValue::Ints(values.to_vec())
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::Text(value.to_owned())
}
