//! Nodes of binary trees: which cells are, and that no bit of theirs depends on the rows of a task.

use std::sync::Arc;

use cellwright_cell_graph::Datatype::Fp32;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, delivering_everything, growth_of, independent};

use crate::recurrent::forms::{projected, runs_by};
use crate::recurrent::{CELL, UNITS, count, launched, random, worker};

fn weights(units: usize) -> impl Fn(&str) -> Tensor {
    move |name| match name {
        "node.weight" => random(name, &[5 * units, 2 * units], 1),
        _ => random(name, &[5 * units], 2),
    }
}

/// Both children, and the sums of all gates from them.
fn sums() -> Draft {
    let mut draft = Draft::new("sums");
    for name in ["h_left", "c_left", "h_right", "c_right"] {
        draft = draft.input(name, Fp32, &[UNITS]);
    }
    let draft = draft.weight(random("w", &[2 * UNITS, 5 * UNITS], 1)).weight(random("b", &[5 * UNITS], 2));
    let draft = draft.operator("Concat", &["h_right", "h_left"], &["both"]).with("axis", 1);
    draft.operator("Gemm", &["both", "w", "b"], &["gates"])
}

/// A child's h multiplied by weights of its own, whose factor and order differ.
fn of_children(draft: Draft, (gate, width): (&str, usize), seed: u64) -> Draft {
    let name = |what: &str| format!("{what}{gate}");
    let draft = draft.weight(random(&name("left"), &[UNITS, width], seed)).weight(random(&name("right"), &[width, UNITS], seed + 1));
    let draft = draft.operator("MatMul", &["h_left", &name("left")], &[&name("of_left")]);
    draft.operator("Gemm", &["h_right", &name("right")], &[&name("of_right")]).with("alpha", 0.5).with("transB", 1)
}

/// Both children, by themselves.
fn children() -> Draft {
    ["h_right", "c_left", "c_right", "h_left"].into_iter().fold(Draft::new("apart"), |draft, name| draft.input(name, Fp32, &[UNITS]))
}

/// The sums of all gates from a product of each child's h, and of an input of the node's own of so many values.
fn two_products(x: Option<usize>) -> Draft {
    let draft = of_children(children(), ("", 5 * UNITS), 1).weight(random("b", &[5 * UNITS], 3));
    let draft = draft.operator("Add", &["of_left", "b"], &["begun"]);
    let Some(x) = x else { return draft.operator("Add", &["of_right", "begun"], &["gates"]) };
    let draft = draft.known("x", Fp32, &[x]).weight(random("v", &[x, 5 * UNITS], 4)).operator("MatMul", &["x", "v"], &["of_x"]);
    draft.operator("Add", &["of_right", "begun"], &["of_both"]).operator("Add", &["of_both", "of_x"], &["gates"])
}

/// A product of each child's h, and of two inputs as wide that lie one behind the other, and that somebody else reads.
fn beside_a_concatenation() -> Draft {
    let draft = of_children(children(), ("", 5 * UNITS), 1).known("x", Fp32, &[UNITS]).known("y", Fp32, &[UNITS]);
    let draft = draft.weight(random("v", &[2 * UNITS, 5 * UNITS], 4)).operator("Concat", &["x", "y"], &["xy"]).with("axis", 1);
    let draft = draft.operator("MatMul", &["xy", "v"], &["of_xy"]).operator("Add", &["of_left", "of_right"], &["of_both"]);
    let draft = draft.operator("Add", &["of_both", "of_xy"], &["gates"]);
    states(terms(split(draft, ORDER), "Tanh"), LAST).output("xy", Fp32, &[2 * UNITS])
}

/// Every gate from two products of its own; the last of the left child alone, if that is said.
fn ten_products(is_last_of_left: bool) -> Draft {
    ORDER.into_iter().zip([1, 3, 5, 7, 9]).fold(children(), |draft, (gate, seed)| {
        let draft = of_children(draft, (gate, UNITS), seed);
        if is_last_of_left && gate == "u" {
            let draft = draft.weight(random("b", &[UNITS], 11)).operator("Tanh", &["of_rightu"], &["unused"]);
            return draft.operator("Add", &["of_leftu", "b"], &["u"]);
        }
        draft.operator("Add", &[&format!("of_left{gate}"), &format!("of_right{gate}")], &[gate])
    })
}

fn split(draft: Draft, order: [&str; 5]) -> Draft {
    draft.operator("Split", &["gates"], &order).with("axis", 1)
}

/// What each child keeps, and what is new: `kept_left`, `kept_right`, `new`; that function squashes what is new.
fn terms(draft: Draft, squash: &str) -> Draft {
    let draft = draft.operator("Sigmoid", &["i"], &["i_s"]).operator(squash, &["u"], &["u_t"]).operator("Mul", &["u_t", "i_s"], &["new"]);
    let draft = draft.operator("Sigmoid", &["fl"], &["fl_s"]).operator("Mul", &["c_left", "fl_s"], &["kept_left"]);
    draft.operator("Sigmoid", &["fr"], &["fr_s"]).operator("Mul", &["fr_s", "c_right"], &["kept_right"])
}

/// The new states, the terms added up in that order.
fn states(draft: Draft, [one, two, three]: [&str; 3]) -> Draft {
    let draft = draft.operator("Add", &[one, two], &["part"]).operator("Add", &[three, "part"], &["c_next"]);
    let draft = draft.operator("Tanh", &["c_next"], &["c_t"]).operator("Sigmoid", &["o"], &["o_s"]);
    draft.operator("Mul", &["c_t", "o_s"], &["h_next"]).output("h_next", Fp32, &[UNITS]).output("c_next", Fp32, &[UNITS])
}

const ORDER: [&str; 5] = ["i", "fl", "fr", "o", "u"];
const LAST: [&str; 3] = ["kept_left", "kept_right", "new"];

fn whole() -> Draft {
    states(terms(split(sums(), ORDER), "Tanh"), LAST)
}

/// With a summand that the node itself brings along.
fn with_input() -> Draft {
    let draft = sums().known("x", Fp32, &[9]).weight(random("v", &[9, 5 * UNITS], 4)).operator("MatMul", &["x", "v"], &["of_x"]);
    let draft = draft.operator("Add", &["of_x", "gates"], &["all"]).operator("Split", &["all"], &ORDER).with("axis", 1);
    states(terms(draft, "Tanh"), LAST)
}

#[test]
fn a_tree_is_known_by_what_it_computes() {
    let of_two = |x| states(terms(split(two_products(x), ORDER), "Tanh"), LAST);
    let forms: [(&str, Draft); 12] = [
        ("as the SDK writes it", whole()),
        ("as the suite has it", cells::tree_node(UNITS, &weights(UNITS))),
        ("in another order", states(terms(split(sums(), ["u", "o", "fr", "fl", "i"]), "Tanh"), ["kept_right", "new", "kept_left"])),
        ("odd", cells::tree_node(13, &weights(13))),
        ("wide", cells::tree_node(72, &weights(72))),
        ("with an input", with_input()),
        ("projected", projected(whole())),
        ("of two products", of_two(None)),
        ("of two products and an input's", of_two(Some(9))),
        ("of two products and one of an input as wide as they are", of_two(Some(UNITS))),
        ("of two products beside a concatenation", beside_a_concatenation()),
        ("of two products for each gate", states(terms(ten_products(false), "Tanh"), LAST)),
    ];
    for (form, draft) in forms {
        assert!(runs_by("tree_step", draft.at(Precision::Bf16), (9, 0)), "a tree {form}");
    }
}

#[test]
fn what_is_almost_a_tree_is_a_cell_like_any_other() {
    let kept_twice = split(sums(), ORDER).operator("Sigmoid", &["i"], &["i_s"]).operator("Tanh", &["u"], &["u_t"]);
    let kept_twice = kept_twice.operator("Mul", &["u_t", "i_s"], &["new"]).operator("Sigmoid", &["fl"], &["fl_s"]);
    let kept_twice = kept_twice.operator("Mul", &["c_left", "fl_s"], &["kept_left"]).operator("Sigmoid", &["fr"], &["fr_s"]);
    let kept_twice = kept_twice.operator("Mul", &["fr_s", "c_left"], &["kept_right"]).operator("Neg", &["c_right"], &["unused"]);
    let of_two = || states(terms(split(two_products(None), ORDER), "Tanh"), LAST);
    let more = of_two().weight(random("w2", &[UNITS, 3], 7)).operator("MatMul", &["h_right", "w2"], &["more"]);
    let forms: [(&str, Draft); 11] = [
        ("of another function", states(terms(split(sums(), ORDER), "Relu"), LAST)),
        ("that keeps one child twice", states(kept_twice, LAST).output("unused", Fp32, &[UNITS])),
        ("whose sums somebody else reads", whole().output("gates", Fp32, &[5 * UNITS])),
        ("whose children somebody else reads", whole().output("both", Fp32, &[2 * UNITS])),
        ("that adds a child's h", whole().operator("Add", &["h_left", "h_next"], &["more"]).output("more", Fp32, &[UNITS])),
        ("that gives a child's c as well", whole().output("c_right", Fp32, &[UNITS])),
        ("of two products, that adds a child's h", of_two().operator("Add", &["h_right", "h_next"], &["m"]).output("m", Fp32, &[UNITS])),
        ("of two products, that gives a child's h as well", of_two().output("h_left", Fp32, &[UNITS])),
        ("of two products, of which a child's h is multiplied elsewhere too", more.output("more", Fp32, &[3])),
        ("of which a gate is of one child", states(terms(ten_products(true), "Tanh"), LAST).output("unused", Fp32, &[UNITS])),
        ("of which a gate is read twice", whole().operator("Neg", &["fr_s"], &["more"]).output("more", Fp32, &[UNITS])),
    ];
    for (form, draft) in forms {
        assert!(!runs_by("tree_step", draft.at(Precision::Bf16), (9, 0)), "a cell {form}");
    }
    assert!(!runs_by("tree_step", whole().at(Precision::Bf16), (8, 0)), "a device without the kernels");
    assert!(!runs_by("tree", whole().at(Precision::F32), (9, 0)), "in another precision");
    assert!(runs_by("tree_f16_step", whole().at(Precision::F16), (9, 0)), "in f16");
}

/// What nodes give in tasks of so many, and the kernels that ran.
fn in_tasks_of(cell: &Arc<TypedCell>, nodes: usize, most: usize) -> (Deliveries, Vec<(&'static str, u32)>) {
    let (worker, control) = worker(most as u64, (9, 0));
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let rows: Vec<_> = (0..nodes as u64)
        .map(|node| {
            let row = |(input, width): (usize, usize)| random("row", &[width], 10 * node + input as u64).data.to_vec();
            let widths = cell.inputs.iter().map(|port| port.shape[0] as usize);
            let sources = widths.enumerate().map(|input| Source::Literal(row(input).into())).collect();
            let growth = delivering_everything(&growth_of(vec![independent(0, 2, sources, 1)]));
            (driver.place(growth, &[], 0, &[]).lanes[0][0], 0)
        })
        .collect();
    let _ = control.take_log();
    for task in rows.chunks(most) {
        driver.task(CELL, task, 1);
    }
    (driver.delivered, launched(&control))
}

#[test]
fn no_bit_depends_on_how_many_nodes_a_task_has() {
    let of = |precision, units| cells::tree_node(units, &weights(units)).at(precision).resolve();
    let of_two = |precision| states(terms(split(two_products(Some(9)), ORDER), "Tanh"), LAST).at(precision).resolve();
    let cases =
        [of(Precision::Bf16, 45), of(Precision::Bf16, 200), of(Precision::F16, 200), of_two(Precision::Bf16), of_two(Precision::F16)];
    for cell in cases {
        let name = format!("`{}` of {:?} in {}", cell.name, cell.outputs[0].port.shape, cell.precision);
        let step = if cell.precision == Precision::F16 { "tree_f16_step" } else { "tree_step" };
        // A node's own input is multiplied first.
        let own = cell.inputs.len() - 4;
        let (alone, of_one) = in_tasks_of(&cell, 70, 1);
        assert_eq!((alone.len(), count(&of_one, step), count(&of_one, "tree_rows")), (140, 70, 70));
        for most in [70, 65, 3] {
            let (together, launched) = in_tasks_of(&cell, 70, most);
            assert!(together == alone, "{name}, tasks of up to {most} nodes");
            let tasks = 70_usize.div_ceil(most);
            assert_eq!((count(&launched, step), count(&launched, "wide_")), (tasks, own * tasks), "{name}: {launched:?}");
        }
    }
}
