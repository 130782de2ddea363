//! A type's identity is what it computes and whose it is, and nothing else.

use crate::cell::{AttributeValue, Cell};
use crate::datatype::Datatype;
use crate::resolve::{CellLimits, ResolveContext};
use crate::tensor::Tensor;
use crate::typed::{CellTypeKey, Precision, TypedCell};
use crate::weights::Weights;

use super::{cell, op, port};

fn weights(scale: f32) -> Weights {
    let values: Vec<f32> = (0..20).map(|at| at as f32 * scale).collect();
    [Tensor::from_f32("w", &[4, 5], &values), Tensor::from_f32("other", &[4, 5], &values)].into_iter().collect()
}

fn key(cell: &Cell, weights: &Weights, tenant: &str) -> CellTypeKey {
    key_at(Precision::F32, cell, weights, tenant)
}

fn key_at(precision: Precision, cell: &Cell, weights: &Weights, tenant: &str) -> CellTypeKey {
    let context = ResolveContext { weights, precision, tenant, limits: CellLimits::default(), may_copy: &|_| true };
    TypedCell::resolve(cell, &context).unwrap().key
}

fn plain() -> Cell {
    cell(vec![op("Gemm x w -> g", &[]), op("Tanh g -> y", &[])], vec![port("y", Datatype::Fp32, &[5])])
}

#[test]
fn names_do_not_matter() {
    let mut renamed = cell(vec![op("Gemm input other -> a", &[]), op("Tanh a -> z", &[])], vec![port("z", Datatype::Fp32, &[5])]);
    renamed.name = "another".to_owned();
    renamed.inputs[0].name = "input".to_owned();
    (renamed.batch_max, renamed.priority) = (Some(3), Some(4));
    let weights = weights(1.0);
    assert_eq!(key(&plain(), &weights, "t"), key(&renamed, &weights, "t"));
}

#[test]
fn everything_else_does() {
    let same = key(&plain(), &weights(1.0), "t");
    let change = |change: fn(&mut Cell)| {
        let mut cell = plain();
        change(&mut cell);
        key(&cell, &weights(1.0), "t")
    };
    let operators = |first: super::Operator, second: &str| {
        let cell = cell(vec![first, op(second, &[])], vec![port("y", Datatype::Fp32, &[5])]);
        key(&cell, &weights(1.0), "t")
    };
    let others = [
        key(&plain(), &weights(2.0), "t"),
        key(&plain(), &weights(1.0), "u"),
        key_at(Precision::Bf16, &plain(), &weights(1.0), "t"),
        key_at(Precision::F16, &plain(), &weights(1.0), "t"),
        key_at(Precision::Int8, &plain(), &weights(1.0), "t"),
        change(|cell| cell.inputs[0].carried = true),
        change(|cell| cell.inputs[1].shape = vec![7]),
        change(|cell| cell.inputs[1].datatype = Datatype::Int64),
        change(|cell| drop(cell.inputs.pop())),
        change(|cell| cell.outputs.push(port("g", Datatype::Fp32, &[5]))),
        operators(op("Gemm x w -> g", &[]), "Sigmoid g -> y"),
        operators(op("Gemm x w -> g", &[("alpha", AttributeValue::Float(2.0))]), "Tanh g -> y"),
    ];
    for (at, other) in others.iter().enumerate() {
        assert_ne!(*other, same, "change {at}");
        assert!(!others[..at].contains(other), "change {at} is like an earlier one");
    }
}

#[test]
fn identity_is_stable() {
    // Calibration tables are stored under it: a change must be meant, and raises `FORM`.
    let keys = Precision::ALL.map(|precision| key_at(precision, &plain(), &weights(1.0), "t").to_string());
    assert_eq!(keys, ["54876fc04b5e", "e75ce95b56a1", "423a32470340", "305f6a5b15f7"]);
}
