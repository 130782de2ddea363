//! GRUs: which cells are, and that no bit of theirs depends on the rows, the steps and the tables of tasks either.

use std::sync::Arc;

use cellwright_backend::Backend;
use cellwright_cell_graph::Datatype::{Fp32, Int64};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, delivering_everything, growth_of, independent};
use cellwright_conformance::hoisting::{self, Recurrent};

use crate::recurrent::forms::{projected, runs_by};
use crate::recurrent::table::{least_budget, with_budget};
use crate::recurrent::{CELL, TOKENS, UNITS, are_together, count, launched, options, random, staying, with};

/// PyTorch's weights of a GRU over so much.
pub(crate) fn weights(x: usize, units: usize) -> impl Fn(&str) -> Tensor {
    move |name| match name {
        "weight_ih" => random(name, &[3 * units, x], 1),
        "weight_hh" => random(name, &[3 * units, units], 2),
        "bias_ih" => random(name, &[3 * units], 5),
        _ => random(name, &[3 * units], 4),
    }
}

/// What is known, and the state.
fn inputs(name: &str) -> Draft {
    let one = Tensor::from_f32("one", &[1], &[1.0]);
    Draft::new(name).known("x", Fp32, &[9]).input("h", Fp32, &[UNITS]).weight(one).weight(random("u", &[UNITS, 3 * UNITS], 2))
}

/// Sums of x and of h, cut in that order: parts `x_r` and `h_r`, and so on.
fn sums(draft: Draft, order: [&str; 3]) -> Draft {
    let draft = draft.weight(random("w", &[9, 3 * UNITS], 1)).weight(random("b", &[3 * UNITS], 3)).weight(random("b2", &[3 * UNITS], 4));
    let draft = draft.operator("Gemm", &["x", "w", "b"], &["of_x"]).operator("Gemm", &["h", "u", "b2"], &["of_h"]);
    let cut = |draft: Draft, of: &str| {
        let names = order.map(|gate| format!("{of}_{gate}"));
        let names = [names[0].as_str(), names[1].as_str(), names[2].as_str()];
        draft.operator("Split", &[&format!("of_{of}")], &names).with("axis", 1)
    };
    cut(cut(draft, "x"), "h")
}

/// r and z of their sums.
fn added(draft: Draft) -> Draft {
    draft.operator("Add", &["h_r", "x_r"], &["r_sum"]).operator("Add", &["x_z", "h_z"], &["z_sum"])
}

/// n of its parts.
fn reset(draft: Draft) -> Draft {
    let draft = draft.operator("Sigmoid", &["r_sum"], &["r"]).operator("Sigmoid", &["z_sum"], &["z"]);
    let draft = draft.operator("Mul", &["h_n", "r"], &["n_r"]).operator("Add", &["n_r", "x_n"], &["n_sum"]);
    draft.operator("Tanh", &["n_sum"], &["n"])
}

/// n + z · (h − n), as the SDK writes it.
fn stepped(draft: Draft) -> Draft {
    let draft = draft.operator("Sub", &["h", "n"], &["rest"]).operator("Mul", &["rest", "z"], &["kept"]);
    draft.operator("Add", &["n", "kept"], &["h_next"]).output("h_next", Fp32, &[UNITS])
}

/// h + z · (n − h): z says how much is taken of n.
fn taking(draft: Draft) -> Draft {
    let draft = draft.operator("Sub", &["n", "h"], &["rest"]).operator("Mul", &["z", "rest"], &["taken"]);
    draft.operator("Add", &["taken", "h"], &["h_next"]).output("h_next", Fp32, &[UNITS])
}

/// The same two, with a difference from what is stepped away from.
fn stepped_back(draft: Draft, from: &str, to: &str) -> Draft {
    let draft = draft.operator("Sub", &[from, to], &["rest"]).operator("Mul", &["rest", "z"], &["left"]);
    draft.operator("Sub", &[from, "left"], &["h_next"]).output("h_next", Fp32, &[UNITS])
}

/// (1 − z) · n + z · h, with that for the one; swapped z · n + (1 − z) · h.
fn weighted(draft: Draft, one: &str, swapped: bool) -> Draft {
    let draft = draft.operator("Sub", &[one, "z"], &["rest"]).operator("Mul", &["n", if swapped { "z" } else { "rest" }], &["new"]);
    let draft = draft.operator("Mul", &["h", if swapped { "rest" } else { "z" }], &["kept"]);
    draft.operator("Add", &["kept", "new"], &["h_next"]).output("h_next", Fp32, &[UNITS])
}

fn whole() -> Draft {
    stepped(reset(added(sums(inputs("gru"), ["r", "z", "n"]))))
}

/// r and z of one sum of x and h, n of two others.
fn apart() -> Draft {
    let draft = inputs("apart").weight(random("w", &[9, 2 * UNITS], 1)).weight(random("b", &[2 * UNITS], 3));
    let draft =
        draft.weight(random("u2", &[UNITS, 2 * UNITS], 5)).weight(random("w3", &[9, UNITS], 6)).weight(random("u3", &[UNITS, UNITS], 7));
    let draft = draft.operator("Gemm", &["x", "w", "b"], &["of_x"]).operator("MatMul", &["h", "u2"], &["of_h"]);
    let draft = draft.operator("Add", &["of_h", "of_x"], &["both"]);
    let draft = draft.operator("Split", &["both"], &["z_sum", "r_sum"]).with("axis", 1);
    reset(draft.operator("MatMul", &["x", "w3"], &["x_n"]).operator("Gemm", &["h", "u3"], &["h_n"]).with("alpha", 0.5).with("transB", 1))
}

/// The same is known for all gates, each of which has a bias of its own.
fn shared() -> Draft {
    let draft = inputs("shared").weight(random("w", &[9, UNITS], 1)).weight(random("b", &[3 * UNITS], 4));
    let draft = draft.operator("MatMul", &["x", "w"], &["known"]).operator("Gemm", &["h", "u", "b"], &["of_h"]);
    let draft = draft.operator("Split", &["of_h"], &["h_r", "h_z", "h_n"]).with("axis", 1);
    let draft = draft.operator("Add", &["h_r", "known"], &["r_sum"]).operator("Add", &["known", "h_z"], &["z_sum"]);
    let draft = draft.operator("Sigmoid", &["r_sum"], &["r"]).operator("Sigmoid", &["z_sum"], &["z"]);
    let draft = draft.operator("Mul", &["h_n", "r"], &["n_r"]).operator("Add", &["n_r", "known"], &["n_sum"]);
    stepped(draft.operator("Tanh", &["n_sum"], &["n"]))
}

/// One number says of all units how much of h is forgotten.
fn narrow() -> Draft {
    let draft = inputs("narrow").weight(random("w", &[9, UNITS + 1], 1)).weight(random("u2", &[UNITS, UNITS + 1], 5));
    let draft = draft.weight(random("w3", &[9, UNITS], 6)).weight(random("u3", &[UNITS, UNITS], 7));
    let draft = draft.operator("MatMul", &["x", "w"], &["of_x"]).operator("MatMul", &["h", "u2"], &["of_h"]);
    let draft = draft.operator("Add", &["of_h", "of_x"], &["both"]);
    let draft = draft.operator("Split", &["both"], &["z_sum", "r_sum"]).with("axis", 1).with("split", [1, UNITS as i64].as_slice());
    stepped(reset(draft.operator("MatMul", &["x", "w3"], &["x_n"]).operator("MatMul", &["h", "u3"], &["h_n"])))
}

/// What r and z begin with comes from a token, and what n begins with is brought along.
fn beside_a_token() -> Draft {
    let draft = Draft::new("beside a token").known("token", Int64, &[]).known("x_n", Fp32, &[UNITS]).input("h", Fp32, &[UNITS]);
    let draft = draft.weight(random("emb.weight", &[TOKENS, 8], 3)).weight(random("u", &[UNITS, 3 * UNITS], 2));
    let draft = draft.weight(random("w", &[8, 2 * UNITS], 1)).operator("Gather", &["emb.weight", "token"], &["x"]);
    let draft = draft.operator("MatMul", &["x", "w"], &["of_x"]).operator("Split", &["of_x"], &["x_r", "x_z"]).with("axis", 1);
    let draft = draft.operator("MatMul", &["h", "u"], &["of_h"]);
    stepped(reset(added(draft.operator("Split", &["of_h"], &["h_r", "h_z", "h_n"]).with("axis", 1))))
}

/// All of what is known comes from elsewhere.
fn begun() -> Draft {
    let draft =
        Draft::new("begun").known("of_x", Fp32, &[3 * UNITS]).input("h", Fp32, &[UNITS]).weight(random("u", &[UNITS, 3 * UNITS], 2));
    let draft = draft.operator("MatMul", &["h", "u"], &["of_h"]).operator("Split", &["of_x"], &["x_n", "x_r", "x_z"]).with("axis", 1);
    stepped(reset(added(draft.operator("Split", &["of_h"], &["h_n", "h_r", "h_z"]).with("axis", 1))))
}

/// Over tokens of a table.
fn of_tokens(units: usize) -> Arc<TypedCell> {
    let draft = Draft::new("gru of tokens").known("token", Int64, &[]).weight(random("emb.weight", &[TOKENS, 8], 3));
    let draft = draft.operator("Gather", &["emb.weight", "token"], &["x"]);
    let weight = weights(8, units);
    let draft = draft.input("h", Fp32, &[units]).weight(weight("weight_ih")).weight(weight("weight_hh")).weight(weight("bias_ih"));
    let draft = draft.weight(weight("bias_hh")).operator("Gemm", &["x", "weight_ih", "bias_ih"], &["of_x"]).with("transB", 1);
    let draft = draft.operator("Gemm", &["h", "weight_hh", "bias_hh"], &["of_h"]).with("transB", 1);
    let draft = draft.operator("Split", &["of_x"], &["x_r", "x_z", "x_n"]).with("axis", 1);
    let draft = reset(added(draft.operator("Split", &["of_h"], &["h_r", "h_z", "h_n"]).with("axis", 1)));
    let draft = draft.operator("Sub", &["h", "n"], &["rest"]).operator("Mul", &["rest", "z"], &["kept"]);
    draft.operator("Add", &["n", "kept"], &["h_next"]).output("h_next", Fp32, &[units]).at(Precision::Bf16).resolve()
}

#[test]
fn a_gru_is_known_by_what_it_computes() {
    let gates = |name| reset(added(sums(inputs(name), ["r", "z", "n"])));
    let forms: [(&str, Draft); 14] = [
        ("as the SDK writes it", whole()),
        ("as PyTorch has it", cells::gru("gru", 9, UNITS, &weights(9, UNITS))),
        ("with its gates in another order", stepped(reset(added(sums(inputs("order"), ["n", "z", "r"]))))),
        ("weighted", weighted(gates("weighted"), "one", false)),
        ("that takes what others keep", taking(gates("taking"))),
        ("weighted, that takes what others keep", weighted(gates("taking, weighted"), "one", true)),
        ("that steps back from n", stepped_back(gates("back from n"), "n", "h")),
        ("that steps back from h", stepped_back(gates("back from h"), "h", "n")),
        ("of several sums", stepped(apart())),
        ("begun before", begun()),
        ("that knows the same for all gates", shared()),
        ("of a token and of something else", beside_a_token()),
        ("odd", cells::gru("odd", 5, 13, &weights(5, 13))),
        ("projected", projected(whole())),
    ];
    for (form, draft) in forms {
        assert!(runs_by("gru_step", draft.at(Precision::Bf16), (9, 0)), "a GRU {form}");
    }
}

#[test]
fn what_is_almost_a_gru_is_a_cell_like_any_other() {
    let order = ["r", "z", "n"];
    let gates = || reset(added(sums(inputs("almost"), order)));
    // r is multiplied with h before the product, as in the GRU's first form.
    let before = added(sums(inputs("before"), order)).operator("Sigmoid", &["r_sum"], &["r"]).operator("Sigmoid", &["z_sum"], &["z"]);
    let before = before.operator("Mul", &["h", "r"], &["kept_h"]).weight(random("un", &[UNITS, UNITS], 8));
    let before = before.operator("MatMul", &["kept_h", "un"], &["of_kept"]).operator("Add", &["of_kept", "x_n"], &["n_sum"]);
    let relu = added(sums(inputs("relu"), order)).operator("Sigmoid", &["r_sum"], &["r"]).operator("Sigmoid", &["z_sum"], &["z"]);
    let relu =
        relu.operator("Mul", &["h_n", "r"], &["n_r"]).operator("Add", &["n_r", "x_n"], &["n_sum"]).operator("Relu", &["n_sum"], &["n"]);
    let of_h = sums(inputs("of h"), order).operator("Add", &["h_r", "h"], &["r_sum"]).operator("Add", &["x_z", "h_z"], &["z_sum"]);
    let two = |name| reset(added(sums(inputs(name), order))).weight(Tensor::from_f32("two", &[1], &[2.0]));
    let later = gates().operator("Sub", &["n", "h"], &["rest"]).operator("Mul", &["rest", "z"], &["kept"]);
    let later = later.operator("Add", &["n", "kept"], &["h_next"]).output("h_next", Fp32, &[UNITS]);
    // n − z · (h − n).
    let beyond = gates().operator("Sub", &["h", "n"], &["rest"]).operator("Mul", &["rest", "z"], &["kept"]);
    let beyond = beyond.operator("Sub", &["n", "kept"], &["h_next"]).output("h_next", Fp32, &[UNITS]);
    let forms: [(&str, Draft); 12] = [
        ("that forgets before the product", stepped(before.operator("Tanh", &["n_sum"], &["n"]))),
        ("of another function", stepped(relu)),
        ("that begins with the old h", stepped(reset(of_h))),
        ("whose weights are not one together", weighted(two("other"), "two", false)),
        ("that takes, and whose weights are not one together", weighted(two("taking"), "two", true)),
        ("that steps away", later),
        ("that steps back too far", beyond),
        ("with a gate of one number", narrow()),
        ("whose sums somebody else reads", whole().output("of_h", Fp32, &[3 * UNITS])),
        ("whose gate somebody else reads", whole().output("z", Fp32, &[UNITS])),
        ("that gives the old h as well", whole().output("h", Fp32, &[UNITS])),
        ("of which h is multiplied elsewhere too", whole().operator("MatMul", &["h", "w2"], &["out"]).output("out", Fp32, &[3])),
    ];
    for (form, draft) in forms {
        let draft = draft.weight(random("w2", &[UNITS, 3], 7));
        assert!(!runs_by("gru_step", draft.at(Precision::Bf16), (9, 0)), "a cell {form}");
    }
    assert!(runs_by("gru_step", whole().at(Precision::Bf16), (9, 0)), "they differ from this one");
    assert!(!runs_by("gru_step", whole().at(Precision::Bf16), (8, 0)), "a device without the kernels");
    assert!(!runs_by("gru", whole().at(Precision::F32), (9, 0)), "in another precision");
    assert!(runs_by("gru_f16_step", whole().at(Precision::F16), (9, 0)), "in f16");
}

/// Many steps in one graph, or in one launch, of cells whose weights stay in the blocks, and of one whose do not; of rows and of tokens.
#[test]
fn no_bit_depends_on_how_many_rows_and_steps_a_task_has() {
    let of_rows_at = |precision, units| cells::gru("gru", 5, units, &weights(5, units)).at(precision).resolve();
    let of_rows = |units| of_rows_at(Precision::Bf16, units);
    let in_f16 = [(of_rows_at(Precision::F16, 45), "gru_f16_resident_64x8"), (of_rows_at(Precision::F16, 256), "gru_f16_queue_64x32")];
    let cases = [(of_rows(16), "gru_resident_64x8"), (of_rows(45), "gru_resident_64x8"), (of_rows(104), "gru_resident_64x16")];
    let of_taking = |precision| taking(reset(added(sums(inputs("taking"), ["r", "z", "n"])))).at(precision).resolve();
    let of_taking = [(of_taking(Precision::Bf16), "gru_resident_64x8"), (of_taking(Precision::F16), "gru_f16_resident_64x8")];
    let cases = cases.into_iter().chain(in_f16).chain(of_taking);
    for (cell, kernel) in cases.chain([(of_rows(256), "gru_queue_64x32"), (of_tokens(UNITS), "gru_resident_64x8")]) {
        let name = format!("`{}` of {:?}", cell.name, cell.outputs[0].port.shape);
        let step = if cell.precision == Precision::F16 { "gru_f16_step_" } else { "gru_step_" };
        let recurrent = Recurrent { cell, feedback: vec![(0, 1)] };
        let mut rng = Rng::new(7);
        let mut seed = 0;
        let mut run = |most, options| {
            seed += 1;
            let (worker, control) = with(seed, (9, 0), options);
            let mut worker: Option<Box<dyn Backend>> = Some(Box::new(worker));
            let got = hoisting::deliveries(&mut || worker.take().expect("one worker"), (&recurrent, hoisting::REQUESTS), most, &mut rng);
            (got, launched(&control))
        };
        let (alone, of_steps) = run((1, 1), options());
        assert!(count(&of_steps, step) == alone.len() && count(&of_steps, "gru") == alone.len());
        for (most, options) in [((24, 9), staying()), ((5, 4), staying()), ((24, 9), options()), ((5, 4), options())] {
            let stays = !options.graphs;
            let (got, together) = run(most, options);
            assert!(got == alone, "{name}, tasks of up to {most:?} rows and steps");
            assert!(are_together(&together) && (count(&together, kernel) > 0 || !stays), "{name}: {together:?}");
            assert!(count(&together, "gather") < of_steps.len(), "rows of several steps are one batch");
        }
    }
}

/// All tokens in one task, by a worker whose weights may take so many bytes; and how many products that took.
fn over_all_tokens(cell: &Arc<TypedCell>, weight_bytes: u64) -> (Deliveries, usize) {
    let (worker, control) = with_budget(weight_bytes);
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let _ = control.take_log();
    let tokens = Source::Ints((0..2 * TOKENS as i64).map(|token| token - TOKENS as i64).collect());
    let mut chain = independent(0, 1, vec![tokens, Source::Zeros], 2 * TOKENS as u32);
    chain.sequential = true;
    chain.stages[0].inputs[1].feedback = Some((0, 0));
    chain.stages[0].retention = Retention::Double;
    let lane = driver.place(delivering_everything(&growth_of(vec![chain])), &[], 0, &[]).lanes[0][0];
    driver.task(CELL, &[(lane, 0)], 2 * TOKENS as u32);
    (driver.delivered, count(&launched(&control), "wide_"))
}

/// What is known of n is in the table, what is added to h's sums is not.
#[test]
fn no_bit_depends_on_whether_there_is_a_table() {
    let cell = of_tokens(UNITS);
    let (without, products) = over_all_tokens(&cell, least_budget(&cell));
    assert!(products > 0, "there is no room for a table");
    let (with, products) = over_all_tokens(&cell, 1 << 20);
    assert_eq!(products, 0, "nothing is multiplied that is in the table");
    assert_eq!(without.len(), 2 * TOKENS);
    assert!(with == without);
}
