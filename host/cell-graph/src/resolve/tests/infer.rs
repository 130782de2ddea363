//! What each operator gives: datatype, row shape, and the operation with its axes and constants resolved.

use super::{cell, int, ints, op, port, resolve, text};
use crate::cell::{AttributeValue, Operator};
use crate::datatype::Datatype::{self, Bool, Fp32, Int64};
use crate::typed::{BinaryKind, Compute, Origin, ReduceKind, TypedCell, UnaryKind};

fn accepted(operators: Vec<Operator>, output: &str, datatype: Datatype, shape: &[u32]) -> TypedCell {
    match resolve(&cell(operators, vec![port(output, datatype, shape)])) {
        Ok(typed) => typed,
        Err(error) => panic!("{error}"),
    }
}

/// The last operation of a cell of one operator that gives `y`.
fn compute(operator: Operator, datatype: Datatype, shape: &[u32]) -> Compute {
    accepted(vec![operator], "y", datatype, shape).operations.pop().unwrap().compute
}

#[test]
fn products() {
    let linear = |transposed, alpha, beta| Compute::Linear { transposed, alpha, beta };
    assert_eq!(compute(op("Gemm x w -> y", &[]), Fp32, &[5]), linear(false, 1.0, 1.0));
    let scaled = [("transB", int(1)), ("alpha", AttributeValue::Float(0.5)), ("beta", AttributeValue::Float(2.0))];
    assert_eq!(compute(op("Gemm x wt c5 -> y", &scaled), Fp32, &[5]), linear(true, 0.5, 2.0));
    assert_eq!(compute(op("Gemm x w one -> y", &[]), Fp32, &[5]), linear(false, 1.0, 1.0));
    assert_eq!(compute(op("MatMul x w -> y", &[]), Fp32, &[5]), linear(false, 1.0, 1.0));
    assert_eq!(compute(op("MatMul m w -> y", &[]), Fp32, &[3, 5]), linear(false, 1.0, 1.0));
    assert_eq!(compute(op("Gather w n -> y", &[]), Fp32, &[5]), Compute::Gather);
    assert_eq!(compute(op("Gather w i -> y", &[("axis", int(-2))]), Fp32, &[4, 5]), Compute::Gather);
}

#[test]
fn element_wise() {
    let binary = Compute::Binary;
    assert_eq!(compute(op("Add x c4 -> y", &[]), Fp32, &[4]), binary(BinaryKind::Add));
    assert_eq!(compute(op("Mul m c4 -> y", &[]), Fp32, &[3, 4]), binary(BinaryKind::Mul));
    assert_eq!(compute(op("Pow one m -> y", &[]), Fp32, &[3, 4]), binary(BinaryKind::Pow));
    assert_eq!(compute(op("Equal n n0 -> y", &[]), Bool, &[]), binary(BinaryKind::Equal));
    assert_eq!(compute(op("Greater x one -> y", &[]), Bool, &[4]), binary(BinaryKind::Greater));
    assert_eq!(compute(op("And b b -> y", &[]), Bool, &[4]), binary(BinaryKind::And));
    assert_eq!(compute(op("Not b -> y", &[]), Bool, &[4]), Compute::Unary(UnaryKind::Not));
    assert_eq!(compute(op("Gelu x -> y", &[("approximate", text("tanh"))]), Fp32, &[4]), Compute::Unary(UnaryKind::GeluTanh));
    assert_eq!(compute(op("Gelu x -> y", &[]), Fp32, &[4]), Compute::Unary(UnaryKind::Gelu));
    assert_eq!(compute(op("Where b x one -> y", &[]), Fp32, &[4]), Compute::Where);
    assert_eq!(compute(op("Cast b -> y", &[("to", int(1))]), Fp32, &[4]), Compute::Cast);
    assert_eq!(compute(op("Cast u -> y", &[("to", text("INT64"))]), Int64, &[4]), Compute::Cast);
}

#[test]
fn a_constant_with_the_batch_as_its_leading_one_loses_it() {
    let typed = accepted(vec![op("Add x c14 -> y", &[])], "y", Fp32, &[4]);
    let constant = typed.value(typed.operations[0].operands[1]);
    let Origin::Constant(tensor) = &constant.origin else { panic!("a constant") };
    assert_eq!((constant.shape.as_slice(), tensor.shape.as_slice()), ([4].as_slice(), [4].as_slice()));
    accepted(vec![op("Gemm x w c5 -> g", &[]), op("Add g one -> y", &[])], "y", Fp32, &[5]);
}

#[test]
fn selections() {
    let axes = |axes: &[(u32, u32, i32)]| Compute::Slice { axes: axes.to_vec() };
    let slice = |starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]| {
        [("starts", ints(starts)), ("ends", ints(ends)), ("axes", ints(axes)), ("steps", ints(steps))]
    };
    assert_eq!(compute(op("Concat x x c4 -> y", &[("axis", int(-1))]), Fp32, &[12]), Compute::Concat { axis: 0 });
    assert_eq!(compute(op("Concat m m -> y", &[("axis", int(1))]), Fp32, &[6, 4]), Compute::Concat { axis: 0 });
    let split = [("axis", int(2)), ("split", ints(&[1, 3]))];
    assert_eq!(compute(op("Split m -> y z", &split), Fp32, &[3, 1]), Compute::Split { axis: 1, sizes: vec![1, 3] });
    let uneven = [("axis", int(1)), ("num_outputs", int(2))];
    assert_eq!(compute(op("Split m -> y z", &uneven), Fp32, &[2, 4]), Compute::Split { axis: 0, sizes: vec![2, 1] });
    assert_eq!(compute(op("Slice x -> y", &slice(&[1], &[i64::MAX], &[1], &[2])), Fp32, &[2]), axes(&[(0, 1, 2)]));
    assert_eq!(compute(op("Slice x -> y", &slice(&[-1], &[i64::MIN], &[-1], &[-1])), Fp32, &[4]), axes(&[(0, 3, -1)]));
    assert_eq!(compute(op("Slice m -> y", &slice(&[-2, 0], &[4, 9], &[2, 1], &[1, 2])), Fp32, &[2, 2]), axes(&[(0, 0, 2), (1, 2, 1)]));
}

#[test]
fn reductions() {
    assert_eq!(compute(op("Softmax m -> y", &[]), Fp32, &[3, 4]), Compute::Softmax { axis: 1 });
    assert_eq!(compute(op("LogSoftmax m -> y", &[("axis", int(1))]), Fp32, &[3, 4]), Compute::LogSoftmax { axis: 0 });
    let drop = [("axis", int(1)), ("keepdims", int(0))];
    assert_eq!(compute(op("ArgMax x -> y", &drop), Int64, &[]), Compute::ArgMax { axis: 0, select_last: false });
    let last = [("axis", int(-1)), ("select_last_index", int(1))];
    assert_eq!(compute(op("ArgMax m -> y", &last), Int64, &[3, 1]), Compute::ArgMax { axis: 1, select_last: true });
    let top = Compute::TopK { axis: 0, k: 2, largest: true };
    assert_eq!(compute(op("TopK x k2 -> y z", &[]), Fp32, &[2]), top);
    assert_eq!(compute(op("TopK x -> z y", &[("k", int(2))]), Int64, &[2]), top);
    let both = [("axes", ints(&[2, 1])), ("keepdims", int(0))];
    assert_eq!(compute(op("ReduceSum m -> y", &both), Fp32, &[]), Compute::Reduce { kind: ReduceKind::Sum, axes: vec![0, 1] });
    assert_eq!(compute(op("ReduceMax m axes1 -> y", &[]), Fp32, &[1, 4]), Compute::Reduce { kind: ReduceKind::Max, axes: vec![0] });
    let norm = [("epsilon", AttributeValue::Float(0.5))];
    assert_eq!(
        compute(op("LayerNormalization m c4 c14 -> y", &norm), Fp32, &[3, 4]),
        Compute::LayerNormalization { axis: 1, epsilon: 0.5 }
    );
    assert_eq!(compute(op("RMSNormalization x c4 -> y", &[]), Fp32, &[4]), Compute::RmsNormalization { axis: 0, epsilon: 1e-5 });
}

#[test]
fn shapes_and_names() {
    let shape = |shape: &[i64]| [("shape", ints(shape))];
    assert_eq!(compute(op("Reshape m -> y", &shape(&[0, -1])), Fp32, &[12]), Compute::Reshape);
    assert_eq!(compute(op("Reshape m -> y", &shape(&[-1, 2, 6])), Fp32, &[2, 6]), Compute::Reshape);
    assert_eq!(compute(op("Reshape m -> y", &shape(&[0, 0, 2, 2])), Fp32, &[3, 2, 2]), Compute::Reshape);
    assert_eq!(compute(op("Unsqueeze x axes1 -> y", &[]), Fp32, &[1, 4]), Compute::Reshape);
    assert_eq!(compute(op("Flatten m -> y", &[]), Fp32, &[12]), Compute::Reshape);
    let squeezed = vec![op("Unsqueeze x -> t", &[("axes", int(-1))]), op("Squeeze t -> y", &[("axes", int(2))])];
    accepted(squeezed, "y", Fp32, &[4]);
    let constants = vec![
        op("Constant -> two", &[("value_float", AttributeValue::Float(2.0))]),
        op("Unsqueeze two -> row", &[("axes", int(0))]),
        op("Identity x -> same", &[]),
        op("Mul same row -> y", &[]),
    ];
    // A constant without inputs: the builder of these tests leaves one empty name.
    let constants: Vec<Operator> = constants
        .into_iter()
        .map(|mut operator| {
            operator.inputs.retain(|name| !name.is_empty() && name != "->");
            operator
        })
        .collect();
    assert_eq!(accepted(constants, "y", Fp32, &[4]).operations.len(), 1);
    // An input may be an output.
    assert!(accepted(vec![], "x", Fp32, &[4]).operations.is_empty());
}

#[test]
fn what_no_output_needs_is_dropped_and_costs_nothing() {
    let lean = accepted(vec![op("Gemm x w -> y", &[])], "y", Fp32, &[5]);
    let fat = vec![op("MatMul m w -> unused", &[]), op("Gemm x w -> y", &[]), op("Add y c5 -> too", &[])];
    let fat = accepted(fat, "y", Fp32, &[5]);
    assert_eq!((fat.flops, fat.weight_bytes, fat.operations.len(), fat.values.len()), (40, 80, 1, lean.values.len()));
    assert_eq!(fat.key, lean.key);
    assert_eq!(fat.values.iter().filter(|value| matches!(value.origin, Origin::Operation(0))).count(), 1);
}
