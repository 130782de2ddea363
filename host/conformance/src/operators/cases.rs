//! The cases: one function for each group of operations.

use cellwright_cell_graph::Datatype::{Bool, Fp32, Int32, Int64, Uint8};

use super::{Case, Datatype, Draft, Inputs, Rng, Tensor, shape, tensor};

mod projections;

/// Every case.
pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for round in 0..3 {
        let rng = &mut Rng::new(100 + round);
        element_wise(&mut cases, rng);
        broadcasting(&mut cases, rng);
        choices_and_casts(&mut cases, rng);
        products(&mut cases, rng);
        sums_of_products(&mut cases, rng);
        projections::projections(&mut cases, rng);
        pieces(&mut cases, rng);
        tables(&mut cases, rng);
        over_axes(&mut cases, rng);
        normalisations(&mut cases, rng);
    }
    cases
}

fn add(cases: &mut Vec<Case>, draft: Draft, inputs: Inputs, slack: f64) {
    cases.push(Case { draft, inputs, slack });
}

/// ONNX's axis for an axis of the row, sometimes counted from the end.
fn onnx_axis(axis: usize, rank: usize, rng: &mut Rng) -> i64 {
    if rng.one_in(2) { axis as i64 + 1 } else { axis as i64 - rank as i64 }
}

fn element_wise(cases: &mut Vec<Case>, rng: &mut Rng) {
    for kind in ["Neg", "Sigmoid", "Tanh", "Relu", "Gelu", "Silu", "Exp", "Log", "Sqrt"] {
        let extents = shape(rng, 1 + cases.len() % 2, 37);
        let draft = Draft::new(kind).input("x", Fp32, &extents).operator(kind, &["x"], &["y"]).output("y", Fp32, &extents);
        add(cases, draft, Inputs::Extreme, 1.0);
    }
    let draft = Draft::new("Gelu by tanh").input("x", Fp32, &[33]).operator("Gelu", &["x"], &["y"]).with("approximate", "tanh");
    add(cases, draft.output("y", Fp32, &[33]), Inputs::Extreme, 2.0);
    for (kind, datatypes) in [
        ("Add", [Fp32, Int32, Int64].as_slice()),
        ("Sub", &[Fp32, Int32, Int64]),
        ("Mul", &[Fp32, Int32, Int64]),
        ("Div", &[Fp32]),
        ("Pow", &[Fp32]),
        ("Equal", &[Fp32, Int32, Int64, Uint8, Bool]),
        ("Greater", &[Fp32, Int32, Int64, Uint8]),
        ("Less", &[Fp32, Int32, Int64, Uint8]),
        ("And", &[Bool]),
        ("Or", &[Bool]),
    ] {
        for datatype in datatypes {
            let extents = shape(rng, 1, 50);
            let result = if matches!(kind, "Equal" | "Greater" | "Less") { Bool } else { *datatype };
            let draft = Draft::new(&format!("{kind} of {datatype}")).input("a", *datatype, &extents).input("b", *datatype, &extents);
            let draft = draft.operator(kind, &["a", "b"], &["y"]).output("y", result, &extents);
            add(cases, draft, Inputs::Extreme, 1.0);
        }
    }
    for datatype in [Int32, Int64] {
        let draft = Draft::new(&format!("Neg of {datatype}")).input("x", datatype, &[9]).operator("Neg", &["x"], &["y"]);
        add(cases, draft.output("y", datatype, &[9]), Inputs::Extreme, 1.0);
    }
    let draft = Draft::new("Not").input("x", Bool, &[17]).operator("Not", &["x"], &["y"]).output("y", Bool, &[17]);
    add(cases, draft, Inputs::Tame, 1.0);
    let draft = Draft::new("a passed through").input("x", Int64, &[3]).operator("Identity", &["x"], &["y"]).output("y", Int64, &[3]);
    add(cases, draft.output("x", Int64, &[3]), Inputs::Tame, 1.0);
}

fn broadcasting(cases: &mut Vec<Case>, rng: &mut Rng) {
    let [a, b, c] = [0; 3].map(|_| rng.between(2, 9) as usize);
    for (left, right, result) in [
        (vec![a, b], vec![1, b], vec![a, b]),
        (vec![a, 1], vec![1, b], vec![a, b]),
        (vec![1], vec![c], vec![c]),
        (vec![a, 1, c], vec![a, b, 1], vec![a, b, c]),
        (vec![], vec![], vec![]),
    ] {
        let draft = Draft::new(&format!("Sub of {left:?} and {right:?}")).input("a", Fp32, &left).input("b", Fp32, &right);
        add(cases, draft.operator("Sub", &["a", "b"], &["y"]).output("y", Fp32, &result), Inputs::Extreme, 1.0);
    }
    for (row, constant) in [
        (vec![a, b], vec![b]),
        (vec![a, b], vec![a, 1]),
        (vec![a, b], vec![1, a, b]),
        (vec![c], vec![]),
        (vec![c], vec![1]),
        (vec![c], vec![1, c]),
        (vec![1], vec![c]),
    ] {
        let widest = if row == [1] && constant == [c] { vec![c] } else { row.clone() };
        let weight = tensor("w", &constant, rng);
        for (kind, operands) in [("Div", ["x", "w"]), ("Sub", ["w", "x"])] {
            let draft =
                Draft::new(&format!("{kind} of {row:?} and the constant {constant:?}")).input("x", Fp32, &row).weight(weight.clone());
            add(cases, draft.operator(kind, &operands, &["y"]).output("y", Fp32, &widest), Inputs::Extreme, 1.0);
        }
    }
}

fn choices_and_casts(cases: &mut Vec<Case>, rng: &mut Rng) {
    for datatype in [Fp32, Int32, Int64, Uint8, Bool] {
        let extents = shape(rng, 2, 7);
        let draft = Draft::new(&format!("Where of {datatype}")).input("if", Bool, &[1, extents[1]]).input("a", datatype, &extents);
        let draft = draft.input("b", datatype, &[extents[0], 1]).operator("Where", &["if", "a", "b"], &["y"]);
        add(cases, draft.output("y", datatype, &extents), Inputs::Extreme, 1.0);
        for to in [Fp32, Int32, Int64, Uint8, Bool] {
            let draft = Draft::new(&format!("Cast from {datatype} to {to}")).input("x", datatype, &[21]).operator("Cast", &["x"], &["y"]);
            add(cases, draft.with("to", to.name()).output("y", to, &[21]), Inputs::Extreme, 1.0);
        }
    }
}

fn products(cases: &mut Vec<Case>, rng: &mut Rng) {
    for (k, n) in [(1, 1), (1, 7), (2, 5), (3, 2), (7, 1), (16, 64), (33, 31), (65, 33), (130, 97), (520, 40)] {
        let k = k + rng.below(2) as usize;
        // Rounding grows with the number of terms, and cancellation hides it.
        let slack = 10.0 + k as f64;
        for transposed in [false, true] {
            let weight = tensor("w", &if transposed { [n, k] } else { [k, n] }, rng);
            let draft = Draft::new(&format!("Gemm {k} × {n}")).input("x", Fp32, &[k]).weight(weight).weight(tensor("c", &[n], rng));
            let draft = draft.operator("Gemm", &["x", "w", "c"], &["y"]).with("transB", i64::from(transposed));
            add(cases, draft.with("alpha", 0.75).with("beta", -1.5).output("y", Fp32, &[n]), Inputs::Special, slack);
        }
        let draft = Draft::new(&format!("MatMul {k} × {n}")).input("x", Fp32, &[k]).weight(tensor("w", &[k, n], rng));
        add(cases, draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Fp32, &[n]), Inputs::Special, slack);
        let rows = rng.between(2, 5) as usize;
        let draft = Draft::new(&format!("MatMul of {rows} rows, {k} × {n}")).input("x", Fp32, &[rows, k]).weight(tensor("w", &[k, n], rng));
        add(cases, draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Fp32, &[rows, n]), Inputs::Special, slack);
    }
    // A summand that is a value, or one number.
    let draft = Draft::new("Gemm with a batched summand").input("x", Fp32, &[9]).input("c", Fp32, &[6]).weight(tensor("w", &[9, 6], rng));
    let draft = draft.operator("Gemm", &["x", "w", "c"], &["y"]).with("beta", 0.5).output("y", Fp32, &[6]);
    add(cases, draft, Inputs::Special, 10.0);
    let draft = Draft::new("Gemm with one summand").input("x", Fp32, &[9]).weight(tensor("c", &[1], rng)).weight(tensor("w", &[9, 6], rng));
    add(cases, draft.operator("Gemm", &["x", "w", "c"], &["y"]).output("y", Fp32, &[6]), Inputs::Special, 10.0);
    // A product of a part of a value.
    let draft = Draft::new("MatMul of a slice of rows").input("x", Fp32, &[5, 8]).weight(tensor("w", &[8, 3], rng));
    let draft =
        draft.operator("Slice", &["x"], &["part"]).with("starts", [1].as_slice()).with("ends", [4].as_slice()).with("axes", [1].as_slice());
    add(cases, draft.operator("MatMul", &["part", "w"], &["y"]).output("y", Fp32, &[3, 3]), Inputs::Special, 10.0);
}

fn sums_of_products(cases: &mut Vec<Case>, rng: &mut Rng) {
    for n in [4, 28, 65] {
        let draft = Draft::new("two products and biases, summed")
            .input("x", Fp32, &[5])
            .input("h", Fp32, &[11])
            .weight(tensor("w", &[5, n], rng))
            .weight(tensor("u", &[n, 11], rng))
            .weight(tensor("b", &[n], rng))
            .weight(tensor("c", &[1, n], rng))
            .weight(tensor("d", &[], rng))
            .operator("MatMul", &["x", "w"], &["from_x"])
            .operator("Gemm", &["h", "u", "b"], &["from_h"])
            .with("transB", 1)
            .with("alpha", 0.5)
            .with("beta", 2.0)
            .operator("Add", &["from_x", "c"], &["biased"])
            .operator("Add", &["biased", "from_h"], &["sum"])
            .operator("Add", &["d", "sum"], &["y"])
            .output("y", Fp32, &[n]);
        add(cases, draft, Inputs::Special, 10.0);
        // A product that is also used by itself, and a value among the summands, are no parts of the sum.
        let draft = Draft::new("a product used twice")
            .input("x", Fp32, &[5])
            .input("r", Fp32, &[n])
            .weight(tensor("w", &[5, n], rng))
            .weight(tensor("u", &[5, n], rng))
            .operator("MatMul", &["x", "w"], &["one"])
            .operator("MatMul", &["x", "u"], &["other"])
            .operator("Add", &["one", "other"], &["sum"])
            .operator("Add", &["sum", "r"], &["with"])
            .operator("Mul", &["with", "one"], &["y"])
            .output("y", Fp32, &[n])
            .output("sum", Fp32, &[n]);
        add(cases, draft, Inputs::Special, 20.0);
    }
    // More terms than one product takes.
    let mut draft = Draft::new("many products, summed").input("x", Fp32, &[4]);
    let mut sum = "y0".to_owned();
    for term in 0..11 {
        let (weight, product, next) = (format!("w{term}"), format!("y{term}"), format!("s{term}"));
        draft = draft.weight(tensor(&weight, &[4, 6], rng)).operator("MatMul", &["x", &weight], &[&product]);
        if term > 0 {
            draft = draft.operator("Add", &[&sum, &product], &[&next]);
            sum = next;
        }
    }
    add(cases, draft.output(&sum, Fp32, &[6]), Inputs::Special, 20.0);
}

fn pieces(cases: &mut Vec<Case>, rng: &mut Rng) {
    for datatype in [Fp32, Int64, Int32, Uint8, Bool] {
        for axis in 0..2 {
            let common = shape(rng, 2, 6);
            let parts: Vec<usize> = (0..3).map(|_| rng.between(1, 4) as usize).collect();
            let with = |extent| {
                let mut extents = common.clone();
                extents[axis] = extent;
                extents
            };
            concat_and_split(cases, datatype, (axis, &parts), &with, rng);
            slices(cases, datatype, (axis, &common), rng);
        }
    }
    let draft = Draft::new("Concat with a constant").input("x", Fp32, &[3]).weight(tensor("w", &[4], rng));
    let draft = draft.operator("Concat", &["w", "x", "x"], &["y"]).with("axis", 1).output("y", Fp32, &[10]);
    add(cases, draft, Inputs::Extreme, 1.0);
    let draft = Draft::new("Concat of what is computed, and of that again")
        .input("a", Fp32, &[3])
        .input("b", Fp32, &[3])
        .operator("Tanh", &["a"], &["t"])
        .operator("Concat", &["t", "b"], &["tb"])
        .with("axis", 1)
        .operator("Neg", &["b"], &["n"])
        .operator("Concat", &["n", "tb", "t"], &["y"])
        .with("axis", -1)
        .operator("Mul", &["t", "n"], &["m"])
        .output("y", Fp32, &[12])
        .output("tb", Fp32, &[6])
        .output("m", Fp32, &[3]);
    add(cases, draft, Inputs::Extreme, 1.0);
    let draft = Draft::new("Reshape").input("x", Fp32, &[4, 6]).operator("Reshape", &["x"], &["flat"]).with("shape", [0, 3, 8].as_slice());
    let draft = draft.operator("Neg", &["flat"], &["y"]).output("y", Fp32, &[3, 8]).operator("Flatten", &["x"], &["z"]);
    add(cases, draft.output("z", Fp32, &[24]), Inputs::Extreme, 1.0);
}

fn concat_and_split(
    cases: &mut Vec<Case>,
    datatype: Datatype,
    (axis, parts): (usize, &[usize]),
    with: &dyn Fn(usize) -> Vec<usize>,
    rng: &mut Rng,
) {
    let total: usize = parts.iter().sum();
    let names = ["a", "b", "c"];
    let mut concat = Draft::new(&format!("Concat of {datatype}, axis {axis}"));
    let mut split = Draft::new(&format!("Split of {datatype}, axis {axis}")).input("x", datatype, &with(total));
    let sizes: Vec<i64> = parts.iter().map(|part| *part as i64).collect();
    split = split.operator("Split", &["x"], &names).with("axis", onnx_axis(axis, 2, rng)).with("split", sizes.as_slice());
    for (name, part) in names.iter().zip(parts) {
        concat = concat.input(name, datatype, &with(*part));
        split = split.output(name, datatype, &with(*part));
    }
    concat = concat.operator("Concat", &names, &["y"]).with("axis", onnx_axis(axis, 2, rng)).output("y", datatype, &with(total));
    add(cases, concat, Inputs::Extreme, 1.0);
    add(cases, split, Inputs::Extreme, 1.0);
}

fn slices(cases: &mut Vec<Case>, datatype: Datatype, (axis, common): (usize, &[usize]), rng: &mut Rng) {
    for step in [1_i64, 2, -1, -3] {
        let mut from = common.to_vec();
        from[axis] += 4;
        let extent = from[axis] as i64;
        let (start, end) = if step > 0 { (i64::from(rng.between(0, 2)), extent + 9) } else { (-1, -extent - 5) };
        let mut result = from.clone();
        let span = if step > 0 { extent - start } else { extent };
        result[axis] = ((span + step.abs() - 1) / step.abs()) as usize;
        let draft = Draft::new(&format!("Slice of {datatype}, axis {axis}, step {step}")).input("x", datatype, &from);
        let axes = [onnx_axis(axis, 2, rng)];
        let draft = draft.operator("Slice", &["x"], &["y"]).with("starts", [start].as_slice()).with("ends", [end].as_slice());
        let draft = draft.with("axes", axes.as_slice()).with("steps", [step].as_slice()).output("y", datatype, &result);
        add(cases, draft, Inputs::Extreme, 1.0);
    }
}

fn tables(cases: &mut Vec<Case>, rng: &mut Rng) {
    for (rows, rest, index) in [(1, vec![], vec![]), (5, vec![3], vec![]), (9, vec![2, 3], vec![4]), (30, vec![], vec![2, 2])] {
        let mut extents = vec![rows];
        extents.extend(&rest);
        let mut result: Vec<usize> = index.clone();
        result.extend(&rest);
        for datatype in [Int64, Int32] {
            let draft = Draft::new(&format!("Gather of {extents:?} by {datatype}{index:?}")).input("at", datatype, &index);
            let draft =
                draft.weight(tensor("table", &extents, rng)).operator("Gather", &["table", "at"], &["y"]).output("y", Fp32, &result);
            add(cases, draft, Inputs::Below(rows as u32), 1.0);
        }
        let offset = Tensor::from_i64("offset", &[], &[-(rows as i64)]);
        let draft = Draft::new("Gather from the end").input("at", Int64, &index).weight(tensor("table", &extents, rng)).weight(offset);
        let draft = draft.operator("Add", &["at", "offset"], &["back"]).operator("Gather", &["table", "back"], &["y"]);
        add(cases, draft.output("y", Fp32, &result), Inputs::Below(rows as u32), 1.0);
    }
}

fn over_axes(cases: &mut Vec<Case>, rng: &mut Rng) {
    for axis in 0..3 {
        let extents = shape(rng, 3, 7);
        for kind in ["Softmax", "LogSoftmax"] {
            let draft = Draft::new(&format!("{kind} of {extents:?}, axis {axis}")).input("x", Fp32, &extents);
            let draft = draft.operator(kind, &["x"], &["y"]).with("axis", onnx_axis(axis, 3, rng)).output("y", Fp32, &extents);
            add(cases, draft, Inputs::Special, 2.0);
        }
        for last in [0, 1] {
            let mut kept = extents.clone();
            kept[axis] = 1;
            let gone: Vec<usize> = (0..3).filter(|other| *other != axis).map(|other| extents[other]).collect();
            let draft = Draft::new(&format!("ArgMax of {extents:?}, axis {axis}")).input("x", Fp32, &extents);
            let draft = draft.operator("ArgMax", &["x"], &["y"]).with("axis", onnx_axis(axis, 3, rng)).with("select_last_index", last);
            let draft = draft.operator("ArgMax", &["x"], &["z"]).with("axis", onnx_axis(axis, 3, rng)).with("keepdims", 0);
            add(cases, draft.output("y", Int64, &kept).output("z", Int64, &gone), Inputs::Special, 1.0);
        }
        for largest in [0, 1] {
            let mut result = extents.clone();
            result[axis] = rng.between(1, extents[axis] as u32) as usize;
            let draft = Draft::new(&format!("TopK of {extents:?}, axis {axis}")).input("x", Fp32, &extents);
            let draft = draft.operator("TopK", &["x"], &["y", "at"]).with("axis", onnx_axis(axis, 3, rng)).with("k", result[axis] as i64);
            add(cases, draft.with("largest", largest).output("y", Fp32, &result).output("at", Int64, &result), Inputs::Special, 1.0);
        }
    }
    for kind in ["Softmax", "LogSoftmax", "ReduceSum", "ReduceMean", "ReduceMax"] {
        let n = rng.between(90, 333) as usize;
        let is_reduction = kind.starts_with("Reduce");
        let draft = Draft::new(&format!("{kind} of {n}")).input("x", Fp32, &[n]).operator(kind, &["x"], &["y"]);
        let draft = if is_reduction { draft.with("axes", [1].as_slice()) } else { draft.with("axis", -1) };
        add(cases, draft.output("y", Fp32, &[if is_reduction { 1 } else { n }]), Inputs::Special, 10.0);
    }
    reductions(cases, rng);
}

fn reductions(cases: &mut Vec<Case>, rng: &mut Rng) {
    for kind in ["ReduceSum", "ReduceMean", "ReduceMax"] {
        for axes in [vec![0], vec![1], vec![2], vec![0, 2], vec![1, 2], vec![0, 1, 2]] {
            let extents = shape(rng, 3, 6);
            let kept: Vec<usize> = (0..3).map(|axis| if axes.contains(&axis) { 1 } else { extents[axis] }).collect();
            let gone: Vec<usize> = (0..3).filter(|axis| !axes.contains(axis)).map(|axis| extents[axis]).collect();
            let onnx: Vec<i64> = axes.iter().map(|axis| onnx_axis(*axis, 3, rng)).collect();
            let draft = Draft::new(&format!("{kind} of {extents:?}, axes {axes:?}")).input("x", Fp32, &extents);
            let draft = draft.operator(kind, &["x"], &["y"]).with("axes", onnx.as_slice());
            let draft = draft.operator(kind, &["x"], &["z"]).with("axes", onnx.as_slice()).with("keepdims", 0);
            add(cases, draft.output("y", Fp32, &kept).output("z", Fp32, &gone), Inputs::Special, 10.0);
        }
    }
}

fn normalisations(cases: &mut Vec<Case>, rng: &mut Rng) {
    for axis in 0..3 {
        let extents = shape(rng, 3, 9);
        let normal = &extents[axis..];
        for kind in ["LayerNormalization", "RMSNormalization"] {
            let draft = Draft::new(&format!("{kind} of {extents:?}, axis {axis}")).input("x", Fp32, &extents);
            let draft = draft.weight(tensor("scale", normal, rng)).weight(tensor("bias", normal, rng));
            let operands: &[&str] = if kind == "LayerNormalization" && axis != 1 { &["x", "scale", "bias"] } else { &["x", "scale"] };
            let draft = draft.operator(kind, operands, &["y"]).with("axis", onnx_axis(axis, 3, rng)).with("epsilon", 0.01);
            add(cases, draft.output("y", Fp32, &extents), Inputs::Special, 50.0);
        }
    }
    let n = rng.between(60, 130) as usize;
    let draft = Draft::new(&format!("LayerNormalization of {n}")).input("x", Fp32, &[n]).weight(tensor("scale", &[n], rng));
    let draft = draft.weight(tensor("bias", &[n], rng)).operator("LayerNormalization", &["x", "scale", "bias"], &["y"]);
    add(cases, draft.output("y", Fp32, &[n]), Inputs::Tame, 50.0);
}
