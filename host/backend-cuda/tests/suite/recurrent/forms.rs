//! Which cells are LSTMs: those that compute one, however they are written.

use std::sync::Arc;

use cellwright_cell_graph::Datatype::{Fp32, Int64};
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Driver, growth_of, independent};
use cellwright_conformance::reference::{Elements, evaluate};

use crate::recurrent::{CELL, TOKENS, UNITS, count, launched, random, weights, worker};

/// x and the states, and the sums of all gates from them.
pub(crate) fn sums() -> Draft {
    let draft = Draft::new("sums").known("x", Fp32, &[9]).input("h", Fp32, &[UNITS]).input("c", Fp32, &[UNITS]);
    let draft =
        draft.weight(random("w", &[9, 4 * UNITS], 1)).weight(random("u", &[UNITS, 4 * UNITS], 2)).weight(random("b", &[4 * UNITS], 3));
    let draft = draft.operator("MatMul", &["x", "w"], &["of_x"]).operator("MatMul", &["h", "u"], &["of_h"]);
    draft.operator("Add", &["of_h", "of_x"], &["both"]).operator("Add", &["b", "both"], &["gates"])
}

/// Gates cut out of `gates` in that order.
pub(crate) fn split(draft: Draft, order: [&str; 4]) -> Draft {
    draft.operator("Split", &["gates"], &order).with("axis", 1)
}

/// The new states from the gates i, f, g and o.
pub(crate) fn states(draft: Draft) -> Draft {
    hidden(kept(draft))
}

/// The new c from the gates i, f and g.
fn kept(draft: Draft) -> Draft {
    let draft = draft.operator("Sigmoid", &["i"], &["i_s"]).operator("Sigmoid", &["f"], &["f_s"]).operator("Tanh", &["g"], &["g_t"]);
    let draft = draft.operator("Mul", &["c", "f_s"], &["kept"]).operator("Mul", &["g_t", "i_s"], &["new"]);
    draft.operator("Add", &["new", "kept"], &["c_next"])
}

/// The new h from that and the gate o.
fn hidden(draft: Draft) -> Draft {
    let draft = draft.operator("Tanh", &["c_next"], &["c_t"]).operator("Sigmoid", &["o"], &["o_s"]);
    out(draft.operator("Mul", &["c_t", "o_s"], &["h_next"]))
}

fn out(draft: Draft) -> Draft {
    draft.output("h_next", Fp32, &[UNITS]).output("c_next", Fp32, &[UNITS])
}

/// Every gate's sums cut out of `gates` by slices, in the order of ONNX: i, o, f, g.
fn sliced(mut draft: Draft) -> Draft {
    for (at, name) in ["i", "o", "f", "g"].into_iter().enumerate() {
        let (start, end) = ((at * UNITS) as i64, ((at + 1) * UNITS) as i64);
        draft = draft.operator("Slice", &["gates"], &[name]).with("starts", [start].as_slice()).with("ends", [end].as_slice());
        draft = draft.with("axes", [1].as_slice());
    }
    draft
}

/// Every gate from products of its own.
fn four_sums() -> Draft {
    let mut draft = Draft::new("four sums").known("x", Fp32, &[9]).input("h", Fp32, &[UNITS]).input("c", Fp32, &[UNITS]);
    for (number, gate) in ["o", "i", "g", "f"].into_iter().enumerate() {
        let name = |what: &str| format!("{what}_{gate}");
        let seed = 10 * number as u64;
        draft = draft.weight(random(&name("w"), &[9, UNITS], seed)).weight(random(&name("u"), &[UNITS, UNITS], seed + 1));
        draft = draft.weight(random(&name("b"), &[UNITS], seed + 2));
        draft = draft.operator("Gemm", &["x", &name("w"), &name("b")], &[&name("x")]);
        draft = draft.operator("Gemm", &["h", &name("u")], &[&name("h")]).with("alpha", 0.5).with("transB", 1);
        draft = draft.operator("Add", &[&name("x"), &name("h")], &[gate]);
    }
    draft
}

/// A cell's sums begin with an input that was computed before.
fn begun() -> Draft {
    let draft = Draft::new("begun").known("sums", Fp32, &[4 * UNITS]).input("h", Fp32, &[UNITS]).input("c", Fp32, &[UNITS]);
    draft.weight(random("u", &[UNITS, 4 * UNITS], 2)).operator("Gemm", &["h", "u", "sums"], &["gates"])
}

/// A cell without other inputs than its states.
fn alone() -> Draft {
    let draft = Draft::new("alone").input("c", Fp32, &[UNITS]).input("h", Fp32, &[UNITS]).weight(random("b", &[4 * UNITS], 5));
    draft.weight(random("u", &[UNITS, 4 * UNITS], 2)).operator("Gemm", &["h", "u", "b"], &["gates"])
}

/// With the best of a projection of h.
pub(crate) fn projected(draft: Draft) -> Draft {
    let draft = draft.weight(random("p", &[UNITS, 40], 8)).operator("MatMul", &["h_next", "p"], &["logits"]);
    draft.operator("ArgMax", &["logits"], &["best"]).with("axis", 1).with("keepdims", 0).output("best", Int64, &[])
}

/// What a cell gives for a row of every input, drawn from a seed; and what the reference gives.
fn given_and_expected(cell: &Arc<TypedCell>, driver: &mut Driver, seed: u64) -> (Vec<Elements>, Vec<Elements>) {
    let mut rng = Rng::new(seed);
    let rows: Vec<Vec<u8>> = cell
        .inputs
        .iter()
        .map(|port| match port.datatype {
            Fp32 => (0..port.shape.iter().product()).flat_map(|_: u32| (rng.float() * 2.0).to_le_bytes()).collect(),
            _ => rng.below(TOKENS as u64).to_le_bytes().to_vec(),
        })
        .collect();
    let elements: Vec<Elements> = cell.inputs.iter().zip(&rows).map(|(port, row)| Elements::from_bytes(port.datatype, row)).collect();
    let sources = rows.into_iter().map(|row| Source::Literal(row.into())).collect();
    let lane = driver.place(Arc::new(growth_of(vec![independent(0, cell.outputs.len(), sources, 1)])), &[], 0, &[]).lanes[0][0];
    driver.task(CELL, &[(lane, 0)], 1);
    let got = (0..).zip(&cell.outputs);
    let got = got.map(|(number, output)| Elements::from_bytes(output.port.datatype, &driver.delivered[&(lane, number, 0)]));
    (got.collect(), evaluate(cell, &elements).expect("tokens are in their tables"))
}

fn is_near(got: &[Elements], expected: &[Elements]) -> bool {
    got.iter().zip(expected).all(|(got, expected)| match (got, expected) {
        (Elements::Floats(got), Elements::Floats(expected)) => {
            got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-4)
        }
        _ => got == expected,
    })
}

/// Whether a cell's step was an LSTM's.
fn is_an_lstm(draft: Draft, capability: (u32, u32)) -> bool {
    runs_by("lstm_step", draft, capability)
}

/// Runs a cell, compares it, and says whether its step was one of these kernels'.
pub(crate) fn runs_by(kernels: &str, draft: Draft, capability: (u32, u32)) -> bool {
    let cell = draft.resolve();
    let (worker, control) = worker(1, capability);
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(&cell));
    for seed in 0..3 {
        let (got, expected) = given_and_expected(&cell, &mut driver, seed);
        assert!(is_near(&got, &expected), "`{}`: {got:?}, not {expected:?}", cell.name);
    }
    let launched = launched(&control);
    let lists = if kernels.starts_with("tree") { "tree_rows" } else { "lstm_rows" };
    let [lists, steps] = [lists, kernels].map(|kernel| count(&launched, kernel));
    assert!(lists == steps && [0, 3].contains(&steps), "`{}`: {launched:?}", cell.name);
    steps > 0
}

#[test]
fn an_lstm_is_known_by_what_it_computes() {
    let of_two = cells::lstm_of_two("two", 9, 21, &weights(18, 21));
    let token = || Draft::new("token").input("token", Int64, &[]);
    let forms: [(&str, Draft); 10] = [
        ("as PyTorch has it", split(sums(), ["i", "f", "g", "o"])),
        ("in another order", split(sums(), ["g", "o", "i", "f"])),
        ("in slices", sliced(sums())),
        ("in four sums", four_sums()),
        ("begun before", split(begun(), ["i", "f", "g", "o"])),
        ("of nothing else", split(alone(), ["f", "i", "g", "o"])),
        ("odd", cells::lstm("odd", 5, 13, &weights(5, 13))),
        ("of two inputs", of_two),
        ("of a token", cells::lstm_of_tokens(token(), 20, &weights(8, 20))),
        ("projected", projected(states(split(sums(), ["i", "f", "g", "o"])))),
    ];
    for (form, draft) in forms {
        let draft = if ["odd", "of two inputs", "of a token", "projected"].contains(&form) { draft } else { states(draft) };
        assert!(is_an_lstm(draft.at(Precision::Bf16), (9, 0)), "an LSTM {form}");
    }
}

#[test]
fn what_is_almost_an_lstm_is_a_cell_like_any_other() {
    let order = ["i", "f", "g", "o"];
    let whole = || states(split(sums(), order));
    let (other, more) = (|draft: Draft| draft.operator("Identity", &["i"], &["i_again"]), split(sums(), order));
    let squashed = more.operator("Tanh", &["f"], &["f_s"]).operator("Sigmoid", &["i"], &["i_s"]).operator("Tanh", &["g"], &["g_t"]);
    let squashed = squashed.operator("Mul", &["c", "f_s"], &["kept"]).operator("Mul", &["g_t", "i_s"], &["new"]);
    let squashed = squashed.operator("Add", &["new", "kept"], &["c_next"]).operator("Tanh", &["c_next"], &["c_t"]);
    let squashed = squashed.operator("Sigmoid", &["o"], &["o_s"]).operator("Mul", &["c_t", "o_s"], &["h_next"]);
    let peephole = split(sums(), ["i_part", "f", "g", "o"]).weight(random("p", &[UNITS], 9));
    let peephole = peephole.operator("Mul", &["c", "p"], &["seen"]).operator("Add", &["i_part", "seen"], &["i"]);
    // o is of the new c as well, by a product.
    let draft = Draft::new("late").known("x", Fp32, &[9]).input("h", Fp32, &[UNITS]).input("c", Fp32, &[UNITS]);
    let draft = draft.weight(random("w", &[9, 3 * UNITS], 1)).weight(random("u", &[UNITS, 3 * UNITS], 2));
    let draft =
        draft.weight(random("w_o", &[9, UNITS], 3)).weight(random("u_o", &[UNITS, UNITS], 4)).weight(random("v", &[UNITS, UNITS], 5));
    let draft = draft.operator("MatMul", &["x", "w"], &["of_x"]).operator("MatMul", &["h", "u"], &["of_h"]);
    let draft = draft.operator("Add", &["of_x", "of_h"], &["gates"]).operator("Split", &["gates"], &["i", "f", "g"]).with("axis", 1);
    let draft = kept(draft).operator("MatMul", &["x", "w_o"], &["x_o"]).operator("MatMul", &["h", "u_o"], &["h_o"]);
    let draft = draft.operator("Add", &["x_o", "h_o"], &["early"]).operator("MatMul", &["c_next", "v"], &["late"]);
    let late = hidden(draft.operator("Add", &["early", "late"], &["o"]));
    let forms: [(&str, Draft); 9] = [
        ("whose sums somebody else reads", whole().output("gates", Fp32, &[4 * UNITS])),
        ("whose gate somebody else reads", other(whole()).output("i_again", Fp32, &[UNITS])),
        ("that forgets by another function", out(squashed)),
        ("with a peephole", states(peephole)),
        ("with a peephole that is a product of the new c", late),
        ("that gives the old h as well", whole().output("h", Fp32, &[UNITS])),
        ("that adds the old h", whole().operator("Add", &["h", "h_next"], &["skipped"]).output("skipped", Fp32, &[UNITS])),
        ("that adds the old c", whole().operator("Add", &["c", "h_next"], &["skipped"]).output("skipped", Fp32, &[UNITS])),
        ("of which h is multiplied elsewhere too", whole().operator("MatMul", &["h", "w2"], &["out"]).output("out", Fp32, &[3])),
    ];
    for (form, draft) in forms {
        let draft = draft.weight(random("w2", &[UNITS, 3], 7));
        assert!(!is_an_lstm(draft.at(Precision::Bf16), (9, 0)), "a cell {form}");
    }
    assert!(is_an_lstm(whole().at(Precision::Bf16), (9, 0)), "they differ from this one");
    assert!(!is_an_lstm(whole().at(Precision::Bf16), (8, 0)), "a device without the kernels");
    assert!(!runs_by("lstm", whole().at(Precision::F32), (9, 0)), "in another precision");
    assert!(runs_by("lstm_f16_step", whole().at(Precision::F16), (9, 0)), "in f16");
}
