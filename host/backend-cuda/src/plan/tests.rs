//! Plans by their shape: how many launches, which barriers, what is only looked at differently.

use std::sync::Arc;

use cellwright_cell_graph::Datatype::{Fp32, Int64};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::invariance::family_cells;

use super::*;
use crate::abi::{flag, op};

pub(super) const HOPPER: Target = Target { is_hopper: true, tf32: false };

pub(super) fn compiled(draft: Draft) -> Plan {
    Plan::compile(&draft.resolve(), u64::MAX, HOPPER).expect("the worker can run it")
}

/// For each step `product` or the operations of its group, those behind a barrier marked.
pub(super) fn told(plan: &Plan) -> Vec<String> {
    let name = |number: u32| op::ALL.iter().find(|(_, known)| *known == number).map_or("?", |(name, _)| *name);
    let step = |step: &Step| match step {
        Step::Product(product) => {
            format!("product of {} terms{}", product.terms.len(), if product.kept.is_some() { ", the best" } else { "" })
        }
        Step::Best(_) => "best".to_owned(),
        Step::Group { instructions, .. } => {
            let one = |at: &GroupInstruction| format!("{}{}", if at.flags & flag::BARRIER == 0 { "" } else { "|" }, name(at.op));
            instructions.iter().map(one).collect::<Vec<_>>().join(" ")
        }
    };
    plan.steps.iter().map(step).collect()
}

fn weight(name: &str, shape: &[usize]) -> Tensor {
    Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()])
}

#[test]
fn an_lstm_is_one_product_and_one_group() {
    let shapes = [("weight_ih", [180, 37]), ("weight_hh", [180, 45])];
    let weights = |name: &str| match shapes.iter().find(|(known, _)| *known == name) {
        Some((_, shape)) => weight(name, shape),
        None => weight(name, &[180]),
    };
    let plan = compiled(cells::lstm("lstm", 37, 45, &weights));
    let steps = told(&plan);
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert_eq!(steps[0], "product of 2 terms");
    assert!(!steps[1].contains("COPY") && !steps[1].contains('|'), "gates are read where the product left them: {}", steps[1]);
}

/// An LSTM's h is rounded by the step that leaves it; what else warpgroups multiply is rounded in the group before.
#[test]
fn rows_are_rounded_before_warpgroups_multiply_them() {
    let weights = |name: &str| match name {
        "weight_ih" => weight(name, &[192, 37]),
        "weight_hh" => weight(name, &[192, 48]),
        _ => weight(name, &[192]),
    };
    let decoder = |precision| {
        let draft = cells::lstm("decoder", 37, 48, &weights).weight(weight("out", &[48, 7])).operator("MatMul", &["h_next", "out"], &["y"]);
        let draft = draft.operator("Tanh", &["y"], &["t"]).weight(weight("last", &[7, 3])).operator("MatMul", &["t", "last"], &["z"]);
        draft.output("z", Fp32, &[3]).at(precision)
    };
    for (precision, arithmetic) in [(Precision::Bf16, Arithmetic::WideBf16), (Precision::F16, Arithmetic::WideF16)] {
        let plan = compiled(decoder(precision));
        let recurrence = plan.recurrence.as_ref().expect("an LSTM's step");
        let told = told(&plan);
        let (before, after) = told.split_at(recurrence.at);
        assert_eq!(before, ["CAST", "product of 1 terms"], "x is rounded");
        assert_eq!(after, ["product of 1 terms", "TANH CAST", "product of 1 terms"], "h is not");
        let products: Vec<&Product> =
            plan.steps.iter().filter_map(|step| if let Step::Product(one) = step { Some(one) } else { None }).collect();
        assert!(products.iter().all(|product| product.arithmetic == arithmetic));
        assert_eq!(products[1].terms[0].x, recurrence.h_out.expect("a place"), "h as the step rounded it");
    }
}

#[test]
fn barriers_stand_where_a_thread_needs_what_another_left() {
    let draft = Draft::new("pieces").input("x", Fp32, &[4, 6]);
    let draft = draft.operator("Tanh", &["x"], &["t"]).operator("Neg", &["t"], &["n"]);
    let draft = draft.operator("Slice", &["n"], &["part"]).with("starts", [1].as_slice()).with("ends", [3].as_slice());
    let draft = draft.with("axes", [1].as_slice()).operator("Exp", &["part"], &["e"]);
    let draft = draft.operator("Softmax", &["e"], &["s"]).with("axis", -1).operator("Sqrt", &["t"], &["r"]);
    let plan = compiled(draft.output("s", Fp32, &[2, 6]).output("r", Fp32, &[4, 6]));
    assert_eq!(told(&plan), ["TANH NEG |EXP |SOFTMAX SQRT"]);
}

#[test]
fn views_are_not_copied_and_outputs_are_whole() {
    let draft = Draft::new("views").input("x", Fp32, &[4, 6]);
    let draft = draft.operator("Split", &["x"], &["a", "b"]).with("axis", 1).with("split", [1, 3].as_slice());
    let draft = draft.operator("Reshape", &["b"], &["flat"]).with("shape", [0, 18].as_slice());
    let draft = draft.operator("Split", &["x"], &["left", "right"]).with("axis", 2).with("split", [2, 4].as_slice());
    let plan =
        compiled(draft.output("a", Fp32, &[1, 6]).output("flat", Fp32, &[18]).output("right", Fp32, &[4, 4]).output("left", Fp32, &[4, 2]));
    assert_eq!(told(&plan), ["COPY COPY"]);
    assert_eq!(plan.outlets[0].place, plan.inputs[0].place);
    assert_eq!(plan.outlets[1].place, plan.inputs[0].place + 24);
    assert_eq!([plan.outlets[1].node_offset, plan.outlets[2].node_offset, plan.outlets[3].node_offset], [64, 192, 256]);
}

#[test]
fn products_read_and_write_aligned_rows_alone() {
    let mut plans: Vec<Plan> = [Precision::F32, Precision::F16, Precision::Bf16]
        .into_iter()
        .flat_map(family_cells)
        .map(|cell| Plan::compile(&cell, u64::MAX, HOPPER).expect("it runs"))
        .collect();
    let draft = Draft::new("odd rows").input("x", Fp32, &[3, 5]).weight(weight("w", &[5, 7]));
    plans.push(compiled(draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Fp32, &[3, 7])));
    assert_eq!(told(&plans[plans.len() - 1]), ["COPY", "product of 1 terms", "product of 1 terms", "product of 1 terms", "COPY"]);
    for plan in plans {
        assert_eq!(plan.stride % ALIGNMENT, 0);
        for step in &plan.steps {
            let Step::Product(product) = step else { continue };
            let places = product.terms.iter().map(|term| term.x).chain([product.y]).chain(product.begin);
            assert!(places.into_iter().all(|place| place % ALIGNMENT == 0 && place < plan.stride), "{product:?}");
        }
    }
}

#[test]
fn one_weight_is_packed_once() {
    let shared = Draft::new("twice").input("x", Fp32, &[5]).input("h", Fp32, &[5]).weight(weight("w", &[5, 7]));
    let draft = shared.operator("MatMul", &["x", "w"], &["a"]).operator("MatMul", &["h", "w"], &["b"]).operator("Add", &["a", "b"], &["y"]);
    let plan = compiled(draft.output("y", Fp32, &[7]));
    assert_eq!(told(&plan), ["product of 2 terms"]);
    assert_eq!(plan.blobs.len(), 1);
}

#[test]
fn what_the_device_cannot_run_is_said() {
    let draft = Draft::new("constant").input("x", Int64, &[]).weight(weight("w", &[2]));
    assert_eq!(told(&compiled(draft.operator("Neg", &["x"], &["y"]).output("y", Int64, &[]))), ["NEG"]);
    let draft = Draft::new("narrow").input("x", Fp32, &[5]).weight(weight("w", &[5, 7])).operator("MatMul", &["x", "w"], &["y"]);
    let cell: Arc<_> = draft.output("y", Fp32, &[7]).at(Precision::Int8).resolve();
    let error = Plan::compile(&cell, u64::MAX, HOPPER).expect_err("there is no such kernel");
    assert!(matches!(error, LoadError::Unsupported { ref what, .. } if what.contains("int8")), "{error}");
}

/// What one upload could otherwise make a device, or its host, do for hours.
#[test]
fn what_would_take_too_long_or_too_much_is_refused() {
    let first_few = |k: i64, n: usize| {
        let draft = Draft::new("few").input("x", Fp32, &[n]).weight(Tensor::from_i64("k", &[1], &[k]));
        let draft = draft.operator("TopK", &["x", "k"], &["values", "positions"]).output("values", Fp32, &[k as usize]);
        Plan::compile(&draft.resolve(), u64::MAX, HOPPER).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(first_few(1 << 10, 1 << 16), Ok(()));
    assert!(first_few(1 << 11, 1 << 16).is_err_and(|said| said.contains("the first 2048 of 65536 elements")));
    let rows = |rows: usize| {
        let draft = Draft::new("rows").input("x", Fp32, &[rows, 4]).weight(weight("w", &[4, 4]));
        let draft = draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Fp32, &[rows, 4]);
        Plan::compile(&draft.resolve(), u64::MAX, HOPPER).map(|plan| plan.steps.len()).map_err(|error| error.to_string())
    };
    assert_eq!(rows(1024), Ok(1024));
    assert!(rows(1025).is_err_and(|said| said.contains("products of 1025 rows each")));
    // Of one column, each of which takes a panel of 64.
    let draft = Draft::new("thin").input("x", Fp32, &[4096]).weight(weight("w", &[4096, 1])).operator("MatMul", &["x", "w"], &["y"]);
    let thin = draft.output("y", Fp32, &[1]).resolve();
    let needed = 4096 * 64 * 4;
    assert!(Plan::compile(&thin, needed, HOPPER).is_ok());
    let error = Plan::compile(&thin, needed - 1, HOPPER).expect_err("it takes one byte more");
    assert_eq!(error, LoadError::OutOfMemory { cell: "thin".to_owned(), needed, available: needed - 1 });
}

/// Each of them would do. A device that is busy with all of them for half a minute is taken for lost, and with it everybody's requests.
#[test]
fn what_would_take_too_long_together_is_refused() {
    let compile = |draft: Draft| Plan::compile(&draft.resolve(), u64::MAX, HOPPER).map(drop).map_err(|error| error.to_string());
    let first_few = |times: usize| {
        let draft = Draft::new("few").input("x", Fp32, &[1 << 16]).weight(Tensor::from_i64("k", &[1], &[1 << 10]));
        let few = |draft: Draft, number: usize| {
            let (values, positions) = (format!("values {number}"), format!("positions {number}"));
            draft.operator("TopK", &["x", "k"], &[&values, &positions]).output(&values, Fp32, &[1 << 10])
        };
        compile((0..times).fold(draft, few))
    };
    assert_eq!(first_few(16), Ok(()));
    assert!(first_few(17).is_err_and(|said| said.contains("operations that look at 1140850688 elements of a row")));
    let thin = |times: usize| {
        let draft = Draft::new("thin").input("x", Fp32, &[64, 1 << 16]).weight(weight("w", &[1 << 16, 1]));
        let product = |draft: Draft, number: usize| {
            let y = format!("y {number}");
            draft.operator("MatMul", &["x", "w"], &[&y]).output(&y, Fp32, &[64, 1])
        };
        compile((0..times).fold(draft, product))
    };
    assert_eq!(thin(32), Ok(()));
    assert!(thin(33).is_err_and(|said| said.contains("products that walk 8650752 slabs of a row")));
}

/// A worker does nothing else while it compiles a cell. Looking again at all that is left for each launch, of which there are a thousand here, would take it a minute.
#[test]
fn a_cell_of_many_operations_is_compiled_in_no_time() {
    const LINKS: usize = 1000;
    let draft = Draft::new("many").input("x", Fp32, &[1]).weight(weight("w", &[1, 1])).operator("Neg", &["x"], &["t 0"]);
    let link = |draft: Draft, number: usize| {
        let [t, y, next] = [format!("t {number}"), format!("y {number}"), format!("t {}", number + 1)];
        draft.operator("MatMul", &[&t, "w"], &[&y]).operator("Tanh", &[&y], &[&next])
    };
    let draft = (0..LINKS).fold(draft, link).operator("Neg", &["x"], &["s 0"]);
    // All of what these are put together of waits for the last link.
    let last = format!("t {LINKS}");
    let many = |draft: Draft, number: usize| {
        let [s, all, next] = [format!("s {number}"), format!("all {number}"), format!("s {}", number + 1)];
        let parts: Vec<&str> = std::iter::once(s.as_str()).chain(std::iter::repeat_n(last.as_str(), 255)).collect();
        let draft = draft.operator("Concat", &parts, &[&all]).with("axis", 1);
        let draft = draft.operator("Slice", &[&all], &[&next]).with("starts", [7].as_slice()).with("ends", [8].as_slice());
        draft.with("axes", [1].as_slice())
    };
    let plan = compiled((0..LINKS).fold(draft, many).output(&format!("s {LINKS}"), Fp32, &[1]));
    assert_eq!(plan.steps.len(), 2 * LINKS + 1);
    assert_eq!(plan.instructions().count(), 1 + LINKS + 1 + 256 * LINKS);
    // And what others read is not looked for of groups that are never written down, of which each is too long here.
    let draft = Draft::new("many groups").input("x", Fp32, &[1]).weight(weight("w", &[1, 1])).operator("Neg", &["x"], &["t 0"]);
    let link = |draft: Draft, number: usize| {
        let [t, all, one, y, next] =
            [format!("t {number}"), format!("all {number}"), format!("one {number}"), format!("y {number}"), format!("t {}", number + 1)];
        let draft = draft.operator("Concat", &[t.as_str(); 256], &[&all]).with("axis", 1);
        let draft = draft.operator("Slice", &[&all], &[&one]).with("starts", [0].as_slice()).with("ends", [1].as_slice());
        draft.with("axes", [1].as_slice()).operator("MatMul", &[&one, "w"], &[&y]).operator("Tanh", &[&y], &[&next])
    };
    let plan = compiled((0..LINKS).fold(draft, link).output(&last, Fp32, &[1]));
    assert_eq!(plan.steps.len(), 2 * LINKS + 1);
    let written = (0..plan.steps.len()).filter(|step| generate(&plan, *step).is_some()).count();
    assert_eq!(written, 1, "the last");
}
