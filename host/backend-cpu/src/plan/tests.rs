//! What plans look like: how few steps a cell is, and that views copy nothing.

use std::sync::Arc;

use cellwright_backend::conformance::cells::{self, Draft};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use super::{Plan, StepKind};
use crate::level::{Kernels, Level};

fn weight(sizes: &'static [(&'static str, &'static [usize])]) -> impl Fn(&str) -> Tensor {
    move |name| {
        let shape = sizes.iter().find(|(known, _)| *known == name).expect("a weight of the cell").1;
        Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()])
    }
}

/// The kinds of steps, in order.
fn steps(cell: &Arc<TypedCell>) -> Vec<&'static str> {
    let plan = Plan::compile(cell, Level::detect(), Kernels::Best).expect("it compiles");
    let kind = |kind: &StepKind| match kind {
        StepKind::Linear(_) => "product",
        StepKind::Group(_) => "group",
        StepKind::Assembly(_) => "copy",
        StepKind::Lookup(_) => "lookup",
        StepKind::Whole(_) => "row",
    };
    plan.steps.iter().map(|step| kind(&step.kind)).collect()
}

#[test]
fn a_recurrent_cell_is_products_and_one_group() {
    let lstm = weight(&[("weight_ih", &[28, 5]), ("weight_hh", &[28, 7]), ("bias_ih", &[28]), ("bias_hh", &[28])]);
    let cell = cells::lstm("lstm", 5, 7, &lstm).resolve();
    assert_eq!(steps(&cell), ["product", "group"], "both products are one, gates are views of it");
    let plan = Plan::compile(&cell, Level::detect(), Kernels::Best).expect("it compiles");
    let StepKind::Group(group) = &plan.steps[1].kind else { panic!("just seen") };
    assert_eq!(group.instructions.len(), 9);
    let gru = weight(&[("weight_ih", &[21, 5]), ("weight_hh", &[21, 7]), ("bias_ih", &[21]), ("bias_hh", &[21])]);
    assert_eq!(steps(&cells::gru("gru", 5, 7, &gru).resolve()), ["product", "product", "group"]);
}

#[test]
fn what_is_concatenated_is_gathered_or_computed_in_its_place() {
    let node = weight(&[("node.weight", &[35, 14]), ("node.bias", &[35])]);
    assert_eq!(steps(&cells::tree_node(7, &node).resolve()), ["product", "group"]);
    let leaf = weight(&[("emb.weight", &[6, 5]), ("leaf.weight", &[21, 5]), ("leaf.bias", &[21])]);
    assert_eq!(steps(&cells::tree_leaf(7, &leaf).resolve()), ["lookup", "product", "group"]);
    let twice = Draft::new("twice")
        .input("x", Datatype::Fp32, &[3])
        .operator("Tanh", &["x"], &["y"])
        .operator("Concat", &["y", "y"], &["z"])
        .with("axis", 1)
        .output("z", Datatype::Fp32, &[6]);
    assert_eq!(steps(&twice.resolve()), ["group", "copy"], "one place is not enough for two");
}

#[test]
fn intermediate_values_of_a_group_take_no_memory() {
    let chain = Draft::new("chain")
        .input("x", Datatype::Fp32, &[100])
        .operator("Tanh", &["x"], &["a"])
        .operator("Neg", &["a"], &["b"])
        .operator("Exp", &["b"], &["c"])
        .operator("Mul", &["c", "a"], &["d"])
        .output("d", Datatype::Fp32, &[100])
        .resolve();
    let plan = Plan::compile(&chain, Level::detect(), Kernels::Best).expect("it compiles");
    assert_eq!(plan.strides, [400, 400], "the input and the output");
    // Three values between them; the third takes the place of one that is done.
    assert_eq!(plan.register_bytes % 3, 0);
    assert!(plan.register_bytes <= 3 * 1024 * 8);
}
