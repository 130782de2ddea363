//! Every refusal, by its sentence.

use super::{cell, int, ints, op, port, resolve, text};
use crate::cell::{AttributeValue, Body, Cell, Operator};
use crate::datatype::Datatype;
use crate::resolve::{CellLimits, ResolveContext};
use crate::typed::{Precision, TypedCell};

fn refused(cell: &Cell) -> String {
    match resolve(cell) {
        Ok(typed) => panic!("accepted: {typed:?}"),
        Err(error) => error.to_string(),
    }
}

/// A cell of one operator and the output `y`.
fn of(operator: Operator) -> String {
    refused(&cell(vec![operator], vec![port("y", Datatype::Fp32, &[4])]))
}

/// A cell that gives its input `x`, changed.
fn changed(change: impl FnOnce(&mut Cell)) -> String {
    let mut cell = cell(vec![], vec![port("x", Datatype::Fp32, &[4])]);
    change(&mut cell);
    refused(&cell)
}

#[test]
fn cells() {
    let table = [
        (changed(|cell| cell.body = Body::Onnx("c.onnx".to_owned())), "its body is an ONNX file, and ONNX files are not supported yet"),
        (
            changed(|cell| (cell.inputs[0].ragged, cell.inputs[0].carried) = (true, true)),
            "input `x` is ragged and carried, but state has one row",
        ),
        (changed(|cell| cell.outputs[0].ragged = true), "output `x` is ragged, but only inputs may be: reduce it over its ragged axis"),
        (changed(|cell| cell.inputs[0].name.clear()), "an input has no name"),
        (changed(|cell| cell.inputs[1].name = "x".to_owned()), "input `x` has the name of another input"),
        (changed(|cell| cell.inputs[1].name = "w".to_owned()), "input `w` has the name of a weight of the bundle"),
        (changed(|cell| cell.outputs.push(cell.outputs[0].clone())), "output `x` has the name of another output"),
        (changed(|cell| cell.inputs[0].datatype = Datatype::Fp16), "input `x` is FP16, but ports are BOOL, UINT8, INT32, INT64 or FP32"),
        (changed(|cell| cell.inputs[0].shape = vec![4, 0]), "input `x` has an extent of 0"),
        (changed(|cell| cell.inputs[0].shape = vec![1; 5]), "it has 5 dimensions in a row, more than the limit of 4"),
        (changed(|cell| cell.inputs[0].shape = vec![4001]), "it has 4001 elements in the values of a row, more than the limit of 4000"),
        (
            changed(|cell| cell.inputs[0].shape = vec![u32::MAX; 4]),
            "it has 18446744073709551615 elements in the values of a row, more than the limit of 4000",
        ),
        (changed(|cell| cell.inputs = vec![cell.inputs[0].clone(); 17]), "it has 17 inputs, more than the limit of 16"),
        (changed(|cell| cell.outputs = vec![cell.outputs[0].clone(); 17]), "it has 17 outputs, more than the limit of 16"),
        (changed(|cell| cell.outputs.clear()), "it has no outputs"),
        (changed(|cell| cell.outputs[0].name = "z".to_owned()), "output `z` is computed by no operator"),
        (changed(|cell| cell.outputs[0].datatype = Datatype::Int64), "output `x` is declared INT64, but its operators give FP32"),
        (changed(|cell| cell.outputs[0].shape = vec![5]), "output `x` is declared with rows of shape [5], but its operators give [4]"),
        (changed(|cell| cell.body = Body::Operators(vec![op("Tanh x -> y", &[]); 41])), "it has 41 operators, more than the limit of 40"),
        (
            refused(&cell(vec![op("Identity c4 -> y", &[])], vec![port("y", Datatype::Fp32, &[4])])),
            "output `y` is a constant, not a value of each row",
        ),
    ];
    for (given, wanted) in table {
        assert_eq!(given, format!("cell `c`: {wanted}"));
    }
}

#[test]
fn weights_that_are_no_numbers_in_f16() {
    let resolved = |alpha: f64, precision: Precision| {
        let product = cell(vec![op("Gemm x w -> y", &[("alpha", AttributeValue::Float(alpha))])], vec![port("y", Datatype::Fp32, &[5])]);
        let weights = super::weights();
        let context = ResolveContext { weights: &weights, precision, tenant: "t", limits: CellLimits::default(), may_copy: &|_| true };
        TypedCell::resolve(&product, &context).map(|_| ()).map_err(|error| error.to_string())
    };
    let beyond = |value: &str| Err(format!("cell `c`: weight `w` has {value} in a product, which is beyond the range of f16 (±65504)"));
    // Its largest number is 19.
    assert_eq!(resolved(65519.0 / 19.0, Precision::F16), Ok(()), "it rounds to the largest");
    assert_eq!(resolved(65520.5 / 19.0, Precision::F16), beyond("65520.5"));
    assert_eq!(resolved(-10_000.0, Precision::F16), beyond("-70000"));
    assert_eq!(resolved(3e38, Precision::F16), beyond("300000000000000000000000000000000000000"));
    assert_eq!(resolved(3e38, Precision::Bf16), Ok(()));
}

#[test]
fn a_long_name_is_cut() {
    let sentence = changed(|cell| cell.outputs[0].name = "ä".repeat(10_000));
    assert!(sentence.len() < 250, "{sentence}");
}

#[test]
fn names_attributes_and_counts() {
    let table = [
        (of(op("Conv x -> y", &[])), "Conv", "this host has no such operator"),
        (of(op("Tanh q -> y", &[])), "Tanh", "`q` is neither an input, nor an output of an earlier operator, nor a weight of the bundle"),
        (of(op("Tanh y -> y", &[])), "Tanh", "`y` is neither an input, nor an output of an earlier operator, nor a weight of the bundle"),
        (of(op("Tanh x -> x", &[])), "Tanh", "output `x` has the name of an input or an earlier output"),
        (of(op("Tanh x -> w", &[])), "Tanh", "output `w` has the name of a weight of the bundle"),
        (of(op("Tanh x -> y z", &[])), "Tanh", "it has 1 output, not 2"),
        (of(op("Tanh x x -> y", &[])), "Tanh", "it takes 1 input, not 2"),
        (of(op("Add x -> y", &[])), "Add", "it takes 2 inputs, not 1"),
        (of(op("Gemm x -> y", &[])), "Gemm", "it takes 2 to 3 inputs, not 1"),
        (of(op("Add x  -> y", &[])), "Add", "input 1 is missing"),
        (of(op("Tanh x -> y", &[("axis", int(1))])), "Tanh", "it has no attribute `axis`"),
        (of(op("Softmax x -> y", &[("axis", int(1)), ("axis", int(1))])), "Softmax", "attribute `axis` is given twice"),
        (of(op("Softmax x -> y", &[("axis", text("1"))])), "Softmax", "attribute `axis` must be an integer"),
        (of(op("ArgMax x -> y", &[("axis", int(1)), ("keepdims", int(2))])), "ArgMax", "attribute `keepdims` must be 0 or 1"),
        (of(op("Gemm x w -> y", &[("alpha", AttributeValue::Float(1e300))])), "Gemm", "attribute `alpha` must be a finite 32-bit float"),
        (of(op("Gelu x -> y", &[("approximate", text("fast"))])), "Gelu", "attribute `approximate` must be `none` or `tanh`"),
        (of(op("Concat x x -> y", &[])), "Concat", "it needs `axis`"),
        (of(op("TopK x -> y", &[])), "TopK", "it needs `k`"),
        (of(op("TopK x k2 -> y", &[("k", int(2))])), "TopK", "`k` is given both as an attribute and as an input"),
        (of(op("TopK x c4 -> y", &[])), "TopK", "`k` must be a constant INT64 tensor of rank 0 or 1"),
        (of(op("TopK x n -> y", &[])), "TopK", "`k` must be a constant INT64 tensor of rank 0 or 1"),
        (of(op("Cast x -> y", &[("to", int(10))])), "Cast", CAST),
        (
            of(op("Tanh half -> y", &[])),
            "Tanh",
            "weight `half` is FP16, but weights are FP32, INT32 or INT64 and are not converted silently",
        ),
        (of(op("Tanh broken -> y", &[])), "Tanh", "weight `broken` does not hold what its shape says, or holds nothing"),
        (of(op("Add c4 c4 -> y", &[])), "Add", "it works on constants alone; give its result as a weight"),
    ];
    for (given, kind, wanted) in table {
        assert_eq!(of_kind(&given), format!("cell `c`, operator 0 ({kind}): {wanted}"));
    }
}

/// Without the names of the inputs, and of weights that may be meant.
fn of_kind(sentence: &str) -> String {
    let (before, after) = sentence.split_once(')').expect("an operator is at fault");
    let after = after.split("; the nearest weights").next().unwrap_or(after);
    format!("{}){after}", before.split(" of `").next().unwrap_or(before))
}

#[test]
fn a_faulty_operators_first_inputs_are_named() {
    assert_eq!(of(op("Gemm x wt -> y", &[])), "cell `c`, operator 0 (Gemm of `x`, `wt`): shapes [N, 4] and [5, 4] do not fit together");
    let many = of(op("Concat x x x x x x m -> y", &[("axis", int(1))]));
    assert!(many.starts_with("cell `c`, operator 0 (Concat of `x`, `x`, `x`, `x`): "), "{many}");
}

const CAST: &str = "it cannot cast to `10`: a datatype is BOOL, UINT8, INT32, INT64 or FP32, or their ONNX numbers 9, 2, 6, 7, 1";

#[test]
fn datatypes_and_shapes() {
    let slice = |starts: &[i64], ends: &[i64]| [("starts", ints(starts)), ("ends", ints(ends)), ("axes", ints(&[1]))];
    let table = [
        (of(op("Tanh i -> y", &[])), "Tanh", "input 0 is INT32, but must be FP32"),
        (of(op("Not x -> y", &[])), "Not", "input 0 is FP32, but must be BOOL"),
        (of(op("Add x i -> y", &[])), "Add", "its inputs are FP32 and INT32, but must be of one datatype (Cast converts)"),
        (of(op("Div i i -> y", &[])), "Div", "input 0 is INT32, but must be FP32"),
        (of(op("Where x x x -> y", &[])), "Where", "input 0 is FP32, but must be BOOL"),
        (of(op("Gather w x -> y", &[])), "Gather", "input 1 is FP32, but must be INT32 or INT64"),
        (of(op("Gather x n -> y", &[])), "Gather", "input 0 must be a constant: a weight of the bundle or an output of Constant"),
        (of(op("Gather w n -> y", &[("axis", int(1))])), "Gather", "it gathers along axis 0 of its table only"),
        (of(op("Add x c5 -> y", &[])), "Add", "shapes [N, 4] and [5] do not broadcast"),
        (of(op("Gemm x wt -> y", &[])), "Gemm", "shapes [N, 4] and [5, 4] do not fit together"),
        (of(op("Gemm x x -> y", &[])), "Gemm", "input 1 must be a constant: a weight of the bundle or an output of Constant"),
        (of(op("Gemm m w -> y", &[])), "Gemm", "input 0 has the shape [N, 3, 4], but Gemm takes [N, K]"),
        (of(op("Gemm x c4 -> y", &[])), "Gemm", "input 1 has the shape [4], but a weight of a product has two dimensions"),
        (of(op("Gemm x w c4 -> y", &[])), "Gemm", "input 2 has the shape [4], but it must broadcast to the product"),
        (of(op("Concat x m -> y", &[("axis", int(1))])), "Concat", "shapes [N, 4] and [N, 3, 4] do not fit together"),
        (
            of(op("Split x -> y z", &[("axis", int(1)), ("split", ints(&[1, 2]))])),
            "Split",
            "the sizes [1, 2] do not add up to the 4 elements of the axis",
        ),
        (of(op("TopK x -> y", &[("k", int(5))])), "TopK", "k is 5, but the axis has 4 elements"),
        (of(op("Slice x -> y", &slice(&[2], &[2]))), "Slice", "its result would be empty"),
        (of(op("Slice x -> y", &slice(&[0, 1], &[1]))), "Slice", "its starts, ends, axes and steps must be equally many"),
        (of(op("Reshape m -> y", &[("shape", ints(&[0, 5]))])), "Reshape", "rows of shape [3, 4] cannot be reshaped to [0, 5]"),
        (
            of(op("Squeeze m -> y", &[("axes", int(1))])),
            "Squeeze",
            "input 0 has the shape [N, 3, 4], but only axes of extent 1 can be squeezed",
        ),
        (
            of(op("LayerNormalization x c5 -> y", &[])),
            "LayerNormalization",
            "input 1 has the shape [5], but it must have the normalised shape",
        ),
        (of(op("Softmax x -> y", &[("axis", int(2))])), "Softmax", "axis 2 is out of range for 2 dimensions (the batch is one of them)"),
        (of(op("ReduceSum m -> y", &[("axes", ints(&[1, -2]))])), "ReduceSum", "axis -2 is named twice"),
    ];
    for (given, kind, wanted) in table {
        assert_eq!(of_kind(&given), format!("cell `c`, operator 0 ({kind}): {wanted}"));
    }
}

#[test]
fn rows_stay_independent() {
    let batch = |axis| format!("axis {axis} is the batch dimension");
    let table = [
        (of(op("Concat x x -> y", &[("axis", int(0))])), "Concat", batch(0)),
        (of(op("Concat x x -> y", &[("axis", int(-2))])), "Concat", batch(-2)),
        (of(op("Split x -> y z", &[])), "Split", batch(0)),
        (of(op("Slice x -> y", &[("starts", int(0)), ("ends", int(1))])), "Slice", batch(0)),
        (of(op("Softmax x -> y", &[("axis", int(0))])), "Softmax", batch(0)),
        (of(op("Softmax s -> y", &[])), "Softmax", batch(-1)),
        (of(op("ArgMax x -> y", &[])), "ArgMax", batch(0)),
        (of(op("TopK x k2 -> y", &[("axis", int(-2))])), "TopK", batch(-2)),
        (of(op("ReduceMean x -> y", &[("axes", ints(&[1, 0]))])), "ReduceMean", batch(0)),
        (of(op("ReduceMean x -> y", &[])), "ReduceMean", "without axes it would reduce over the batch".to_owned()),
        (of(op("Unsqueeze x -> y", &[("axes", int(0))])), "Unsqueeze", batch(0)),
        (of(op("LayerNormalization x c4 -> y", &[("axis", int(0))])), "LayerNormalization", batch(0)),
        (of(op("Gemm x w -> y", &[("transA", int(1))])), "Gemm", "transA would sum over the batch".to_owned()),
        (of(op("MatMul wt x -> y", &[])), "MatMul", "a constant on the left would sum over the batch".to_owned()),
        (of(op("MatMul s w -> y", &[])), "MatMul", "the product of a [N] with a matrix would sum over the batch".to_owned()),
        (
            of(op("Add x m -> y", &[])),
            "Add",
            "its inputs have different ranks, so that the batch of one would meet an axis of another".to_owned(),
        ),
        (of(op("Add x c24 -> y", &[])), "Add", "a constant of that shape would be laid along the batch".to_owned()),
        (of(op("Add x c114 -> y", &[])), "Add", "a constant of that shape would be laid along the batch".to_owned()),
        (
            of(op("Reshape x -> y", &[("shape", ints(&[1, 4]))])),
            "Reshape",
            "a new shape must begin with 0 or -1, which stand for the batch".to_owned(),
        ),
        (of(op("Flatten m -> y", &[("axis", int(2))])), "Flatten", "only axis 1 leaves the batch as it is".to_owned()),
    ];
    for (given, kind, wanted) in table {
        assert_eq!(of_kind(&given), format!("cell `c`, operator 0 ({kind}): {wanted}, and rows of a batch must stay independent"));
    }
}
