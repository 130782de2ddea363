//! What plans look like: how few steps a cell is, and that views copy nothing.

use std::sync::Arc;

use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell, sums};
use cellwright_conformance::cells::{self, Draft};

use super::{LeftPlace, Plan, StepKind};
use crate::level::{Kernels, Level};
use crate::matrix::Packs;

fn weight(sizes: &'static [(&'static str, &'static [usize])]) -> impl Fn(&str) -> Tensor {
    move |name| {
        let shape = sizes.iter().find(|(known, _)| *known == name).expect("a weight of the cell").1;
        Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()])
    }
}

/// The kinds of steps, in order.
fn steps(cell: &Arc<TypedCell>) -> Vec<&'static str> {
    let plan =
        Plan::compile((cell, &sums::find(cell)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX)).expect("it compiles");
    let kind = |kind: &StepKind| match kind {
        StepKind::Linear(_) => "product",
        StepKind::Project(_) => "projection",
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
    let plan =
        Plan::compile((&cell, &sums::find(&cell)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX)).expect("it compiles");
    let StepKind::Group(group) = &plan.steps[1].kind else { panic!("just seen") };
    assert_eq!(group.instructions.len(), 4, "each gate is one with the product that reads it");
    let gru = weight(&[("weight_ih", &[21, 5]), ("weight_hh", &[21, 7]), ("bias_ih", &[21]), ("bias_hh", &[21])]);
    assert_eq!(steps(&cells::gru("gru", 5, 7, &gru).resolve()), ["product", "product", "group"]);
}

#[test]
fn what_is_concatenated_is_gathered_or_computed_in_its_place() {
    let node = weight(&[("node.weight", &[35, 14]), ("node.bias", &[35])]);
    assert_eq!(steps(&cells::tree_node(7, &node).resolve()), ["product", "group"]);
    let leaf = weight(&[("emb.weight", &[6, 5]), ("leaf.weight", &[21, 5]), ("leaf.bias", &[21])]);
    assert_eq!(steps(&cells::tree_leaf(7, &leaf).resolve()), ["lookup", "product", "group"]);
    let read = |reader: &str, outputs: usize| {
        let draft = Draft::new("read").input("x", Datatype::Fp32, &[3]).operator("Tanh", &["x"], &["y"]);
        let draft = draft.operator("Concat", &["y", "x"], &["z"]).with("axis", 1).weight(Tensor::from_f32("w", &[6, 6], &[0.5; 36]));
        let draft = match reader {
            "MatMul" => draft.operator(reader, &["z", "w"], &["read"]),
            _ => draft.operator(reader, &["z"], &["read"]).with("axis", -1),
        };
        steps(&draft.output("read", Datatype::Fp32, &[outputs]).resolve())
    };
    assert_eq!([read("MatMul", 6), read("Softmax", 6)], [["group", "product"], ["group", "row"]], "read when all of it is there");
    let twice = Draft::new("twice")
        .input("x", Datatype::Fp32, &[3])
        .operator("Tanh", &["x"], &["y"])
        .operator("Concat", &["y", "y"], &["z"])
        .with("axis", 1)
        .output("z", Datatype::Fp32, &[6]);
    assert_eq!(steps(&twice.resolve()), ["group", "copy"], "one place is not enough for two");
}

/// Tokens' scores, of which so much is read.
fn scores(read: impl FnOnce(Draft) -> Draft) -> Vec<&'static str> {
    let draft = Draft::new("scores").input("x", Datatype::Fp32, &[6]).weight(Tensor::from_f32("w", &[6, 900], &[0.5; 5400]));
    steps(&read(draft.operator("MatMul", &["x", "w"], &["y"])).resolve())
}

#[test]
fn scores_of_which_the_best_are_read_are_not_written_down() {
    let best =
        |draft: Draft| draft.operator("ArgMax", &["y"], &["z"]).with("axis", 1).with("keepdims", 0).output("z", Datatype::Int64, &[]);
    let first = |kept: usize| {
        move |draft: Draft| {
            let draft = draft.operator("TopK", &["y"], &["few", "at"]).with("axis", 1).with("k", kept as i64);
            draft.output("few", Datatype::Fp32, &[kept]).output("at", Datatype::Int64, &[kept])
        }
    };
    assert_eq!([scores(best), scores(first(64))], [["projection"], ["projection"]]);
    assert_eq!(scores(first(65)), ["product", "row"], "too many to be kept aside");
    assert_eq!(scores(|draft| best(draft).output("y", Datatype::Fp32, &[900])), ["product", "row"], "all of them are read");
    assert_eq!(scores(|draft| best(first(2)(draft))), ["product", "row", "row"], "two operations read them");
    let softmax = |kind: &'static str| move |draft: Draft| draft.operator(kind, &["y"], &["s"]).with("axis", 1);
    let best_of = |kept: i64| move |draft: Draft| draft.operator("TopK", &["s"], &["few", "at"]).with("axis", 1).with("k", kept);
    let few = |kept: usize| move |draft: Draft| best_of(kept as i64)(draft).output("few", Datatype::Fp32, &[kept]);
    let all = |draft: Draft| draft.output("s", Datatype::Fp32, &[900]);
    assert_eq!(scores(|draft| few(5)(softmax("Softmax")(draft))), ["projection"]);
    assert_eq!(scores(|draft| few(64)(softmax("LogSoftmax")(draft))), ["projection"]);
    assert_eq!(scores(|draft| few(65)(softmax("Softmax")(draft))), ["projection", "row"], "too many to be kept aside");
    assert_eq!(scores(|draft| all(softmax("Softmax")(draft))), ["projection"], "in its own place");
    assert_eq!(scores(|draft| all(few(5)(softmax("Softmax")(draft)))), ["projection", "row"], "all of it is read");
    let twice = |draft: Draft| few(5)(softmax("Softmax")(draft)).output("y", Datatype::Fp32, &[900]);
    assert_eq!(scores(twice), ["product", "row", "row"], "the scores are read");
    let flat = |draft: Draft| draft.operator("Reshape", &["y"], &["f"]).with("shape", [0, 30, 30].as_slice());
    let rows = |draft: Draft| flat(draft).operator("ArgMax", &["f"], &["z"]).with("axis", 2).with("keepdims", 0);
    assert_eq!(scores(|draft| rows(draft).output("z", Datatype::Int64, &[30])), ["product", "row"], "the best of each thirty");
    let plan = |cell: &TypedCell| {
        Plan::compile((cell, &sums::find(cell)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX)).expect("it compiles")
    };
    let draft = Draft::new("scores").input("x", Datatype::Fp32, &[6]).weight(Tensor::from_f32("w", &[6, 900], &[0.5; 5400]));
    let cell = best(draft.operator("MatMul", &["x", "w"], &["y"])).resolve();
    assert_eq!(plan(&cell).strides, [24, 8], "the input and the output");
    let draft = Draft::new("chances").input("x", Datatype::Fp32, &[6]).weight(Tensor::from_f32("w", &[6, 900], &[0.5; 5400]));
    let cell = all(softmax("Softmax")(draft.operator("MatMul", &["x", "w"], &["y"]))).resolve();
    assert_eq!(plan(&cell).strides.len(), 2, "the input and the output");
}

#[test]
fn inputs_that_products_round_are_packed_as_they_are_gathered() {
    let inputs = |cell: &Arc<TypedCell>| {
        let how = (Level::detect(), Kernels::Best);
        let plan = Plan::compile((cell, &sums::find(cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
        assert_eq!(plan.inputs.iter().map(|input| input.packed.len()).sum::<usize>(), plan.packings.len());
        plan.inputs.iter().map(|input| (input.place.is_some(), !input.packed.is_empty())).collect::<Vec<_>>()
    };
    let (as_it_is, packed, both) = ((true, false), (false, true), (true, true));
    let lstm = weight(&[("weight_ih", &[28, 5]), ("weight_hh", &[28, 7]), ("bias_ih", &[28]), ("bias_hh", &[28])]);
    let lstm = |precision: Precision| cells::lstm("lstm", 5, 7, &lstm).at(precision).resolve();
    assert_eq!(inputs(&lstm(Precision::F32)), [as_it_is; 3]);
    assert_eq!(inputs(&lstm(Precision::Bf16)), [packed, packed, as_it_is], "c meets no product");
    let gru = weight(&[("weight_ih", &[21, 5]), ("weight_hh", &[21, 7]), ("bias_ih", &[21]), ("bias_hh", &[21])]);
    assert_eq!(
        inputs(&cells::gru("gru", 5, 7, &gru).at(Precision::Int8).resolve()),
        [packed, both],
        "the last state is mixed with the next"
    );
    let node = weight(&[("node.weight", &[35, 14]), ("node.bias", &[35])]);
    let node = inputs(&cells::tree_node(7, &node).at(Precision::Bf16).resolve());
    assert!(node.iter().all(|input| *input == as_it_is), "a product reads two states as one row");
}

#[test]
fn an_input_that_one_product_packs_is_there_as_floats_for_another() {
    if Level::detect() < Level::Amx {
        return;
    }
    let weight = |name: &str, n: usize| Tensor::from_f32(name, &[6, n], &vec![0.5; 6 * n]);
    let draft = Draft::new("two").input("x", Datatype::Fp32, &[6]).weight(weight("wide", 64)).weight(weight("narrow", 10));
    let draft = draft.operator("MatMul", &["x", "wide"], &["y"]).operator("MatMul", &["x", "narrow"], &["z"]);
    let cell = draft.output("y", Datatype::Fp32, &[64]).output("z", Datatype::Fp32, &[10]).resolve();
    let how = (Level::detect(), Kernels::Tiles);
    let plan = Plan::compile((&cell, &sums::find(&cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
    assert!(plan.inputs[0].packed.len() == 1 && plan.inputs[0].place.is_some());
    let mut are_packed: Vec<(usize, bool)> = Vec::new();
    for step in &plan.steps {
        if let StepKind::Linear(linear) = &step.kind {
            let (left, _) = linear.lefts[0];
            are_packed.push((linear.product.flops() / 12, matches!(left, LeftPlace::Packed(_))));
        }
    }
    assert_eq!(are_packed, [(64, true), (10, false)]);
}

/// Digits are those of rows as a weight has them multiplied: by factors of its own.
#[test]
fn an_input_is_packed_once_for_each_weight_that_has_its_own_way() {
    let weight = |name: &str| Tensor::from_f32(name, &[6, 64], &vec![0.5; 6 * 64]);
    let draft = Draft::new("two").input("x", Datatype::Fp32, &[6]).weight(weight("one")).weight(weight("other"));
    let draft = draft.operator("MatMul", &["x", "one"], &["y"]).operator("MatMul", &["x", "other"], &["z"]);
    let draft = draft.operator("MatMul", &["x", "one"], &["again"]);
    let draft = draft.output("y", Datatype::Fp32, &[64]).output("z", Datatype::Fp32, &[64]).output("again", Datatype::Fp32, &[64]);
    let compiled = |precision, kernels| {
        let cell = draft.clone().at(precision).resolve();
        Plan::compile((&cell, &sums::find(&cell)), (Level::detect(), kernels), &mut Packs::within(u64::MAX)).expect("it compiles")
    };
    let tiles = if Level::detect() < Level::Amx { None } else { Some((compiled(Precision::F32, Kernels::Tiles), 2)) };
    for (plan, ways) in tiles.into_iter().chain([(compiled(Precision::Bf16, Kernels::Best), 1)]) {
        assert!(plan.inputs[0].place.is_none(), "nobody reads floats");
        assert_eq!((plan.inputs[0].packed.len(), plan.packings.len()), (ways, ways));
        for step in &plan.steps {
            let StepKind::Linear(linear) = &step.kind else { continue };
            let LeftPlace::Packed(packed) = linear.lefts[0].0 else { panic!("floats") };
            assert_eq!(Some(packed.packing), linear.product.packing(0));
        }
    }
}

#[test]
fn rows_that_sums_begin_with_are_pointed_to() {
    let draft = Draft::new("step").input("z", Datatype::Fp32, &[28]).input("h", Datatype::Fp32, &[7]);
    let draft = draft.weight(Tensor::from_f32("u", &[7, 28], &[0.5; 196])).operator("Gemm", &["h", "u", "z"], &["y"]);
    let cell = draft.output("y", Datatype::Fp32, &[28]).resolve();
    let how = (Level::detect(), Kernels::Best);
    let plan = Plan::compile((&cell, &sums::find(&cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
    let StepKind::Linear(linear) = &plan.steps[0].kind else { panic!("a product") };
    assert!(linear.begin.is_some() && plan.inputs[0].pointed.is_some());
    assert_eq!(plan.strides, [112, 28], "rows that are copied lie where the sums will be");
}

#[test]
fn rows_are_copied_only_for_those_who_need_them_together() {
    let pointed = |cell: &Arc<TypedCell>, kernels: Kernels| {
        let how = (Level::detect(), kernels);
        let plan = Plan::compile((cell, &sums::find(cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
        let inputs: Vec<bool> = plan.inputs.iter().map(|input| input.pointed.is_some()).collect();
        let outputs: Vec<bool> = plan.outputs.iter().map(|output| output.pointed.is_some()).collect();
        assert_eq!(plan.pointed, inputs.iter().chain(&outputs).filter(|is| **is).count());
        (inputs, outputs)
    };
    let short = weight(&[("weight_ih", &[1020, 5]), ("weight_hh", &[1020, 255]), ("bias_ih", &[1020]), ("bias_hh", &[1020])]);
    let short = cells::lstm("lstm", 5, 255, &short).resolve();
    let long = weight(&[("weight_ih", &[1024, 5]), ("weight_hh", &[1024, 256]), ("bias_ih", &[1024]), ("bias_hh", &[1024])]);
    let long = cells::lstm("lstm", 5, 256, &long);
    // The library takes rows that are evenly apart.
    let is_ours = Level::detect() > Level::Portable;
    for (kernels, products) in [(Kernels::Best, is_ours), (Kernels::Library, false)] {
        let short = pointed(&short, kernels);
        assert_eq!(short, (vec![products, products, false], vec![false; 2]), "c is copied as fast");
        assert_eq!(pointed(&long.clone().resolve(), kernels), (vec![products, products, true], vec![true, true]));
        assert_eq!(
            pointed(&long.clone().at(Precision::F16).resolve(), kernels).0,
            [false, false, true],
            "rounded from where they stand together"
        );
        let next = long.clone().weight(Tensor::from_f32("w", &[256, 3], &[0.5; 768])).operator("MatMul", &["h_next", "w"], &["y"]);
        let next = next.output("y", Datatype::Fp32, &[3]).resolve();
        assert_eq!(pointed(&next, kernels).1, [false, true, false], "the next product reads it where it was made");
        let copy = long.clone().operator("Concat", &["x", "c"], &["both"]).with("axis", 1).output("both", Datatype::Fp32, &[261]);
        assert_eq!(pointed(&copy.resolve(), kernels).0, [false, products, false], "copies are made of what was gathered");
    }
    let twice =
        Draft::new("twice").input("x", Datatype::Fp32, &[300]).operator("Tanh", &["x"], &["y"]).operator("Identity", &["y"], &["z"]);
    let twice = twice.output("y", Datatype::Fp32, &[300]).output("z", Datatype::Fp32, &[300]).resolve();
    let plan = Plan::compile((&twice, &sums::find(&twice)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX));
    assert_eq!(plan.expect("it compiles").pointed, 2, "one value is one row, however many outputs it is");
    let passed = Draft::new("passed").input("x", Datatype::Fp32, &[300]).operator("Tanh", &["x"], &["y"]);
    let passed = passed.output("y", Datatype::Fp32, &[300]).output("x", Datatype::Fp32, &[300]).resolve();
    assert_eq!(pointed(&passed, Kernels::Best), (vec![false], vec![true, false]), "what passes is scattered from where it was gathered");
}

#[test]
fn a_function_that_one_product_reads_is_a_part_of_it() {
    let instructions = |read: &dyn Fn(Draft) -> Draft| {
        let draft = Draft::new("gate").input("x", Datatype::Fp32, &[6]).input("z", Datatype::Fp32, &[6]);
        let draft = draft.operator("Sigmoid", &["x"], &["s"]).operator("Mul", &["z", "s"], &["y"]).output("y", Datatype::Fp32, &[6]);
        let cell = read(draft).resolve();
        let how = (Level::detect(), Kernels::Best);
        let plan = Plan::compile((&cell, &sums::find(&cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
        let StepKind::Group(group) = &plan.steps[0].kind else { panic!("a group") };
        group.instructions.len()
    };
    assert_eq!(instructions(&|draft| draft), 1);
    assert_eq!(instructions(&|draft| draft.output("s", Datatype::Fp32, &[6])), 2, "an output is read, too");
    let sum = |draft: Draft| draft.operator("Add", &["s", "z"], &["t"]).output("t", Datatype::Fp32, &[6]);
    assert_eq!(instructions(&sum), 3);
    let square =
        |draft: Draft| draft.operator("Tanh", &["z"], &["u"]).operator("Mul", &["u", "u"], &["v"]).output("v", Datatype::Fp32, &[6]);
    assert_eq!(instructions(&square), 3, "a square reads it twice");
}

#[test]
fn sums_of_integers_that_could_overflow_are_refused() {
    let over = |k: usize, precision: Precision| {
        let draft = Draft::new("deep").input("x", Datatype::Fp32, &[k]).weight(Tensor::from_f32("w", &[k, 1], &vec![0.5; k]));
        let cell = draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Datatype::Fp32, &[1]).at(precision).resolve();
        Plan::compile((&cell, &sums::find(&cell)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX))
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!([over(1 << 16, Precision::Int8), over((1 << 16) + 1, Precision::Bf16)], [Ok(()), Ok(())]);
    let sentence = over((1 << 16) + 1, Precision::Int8).unwrap_err();
    assert_eq!(sentence, "cell `deep`: the CPU worker cannot run a product over 65537 elements in int8 (over at most 65536)");
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
    let plan =
        Plan::compile((&chain, &sums::find(&chain)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX)).expect("it compiles");
    assert_eq!(plan.strides, [400, 400], "the input and the output");
    // Three values between them; the third takes the place of one that is done.
    assert_eq!(plan.register_bytes % 3, 0);
    assert!(plan.register_bytes <= 3 * 1024 * 8);
}

#[test]
fn threads_take_rows_of_their_own_where_all_weights_stay_near() {
    let lstm = weight(&[("weight_ih", &[180, 37]), ("weight_hh", &[180, 45]), ("bias_ih", &[180]), ("bias_hh", &[180])]);
    let cell = cells::lstm("lstm", 37, 45, &lstm).resolve();
    let how = (Level::detect(), if Level::detect() > Level::Portable { Kernels::Best } else { Kernels::Library });
    let mut plan = Plan::compile((&cell, &sums::find(&cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles");
    // Where there are no kernels of ours the library shares columns.
    let is_ours = how.1 == Kernels::Best;
    assert_eq!(
        [(31, 2), (32, 2), (64, 3), (512, 1)].map(|(rows, threads)| plan.is_split_by_rows(rows, threads)),
        [false, is_ours, is_ours, false]
    );
    if is_ours {
        let most = |threads| (1..).find(|rows| plan.parts(*rows, threads) == 2).expect("some are too many") - 1;
        let near = most(1) * 2 / 3;
        assert_eq!(
            [1, near, 2 * near, 10 * near].map(|rows| plan.parts(rows, 1)),
            [1, 1, 2, 10],
            "parts of about {near} rows, or half as many again"
        );
        assert!(most(2).abs_diff(2 * most(1)) <= 2, "two threads have twice as many near");
    }
    plan.stands_beside(1 << 30);
    assert!(!plan.is_split_by_rows(512, 2), "other weights take their turns");
}

/// Each way took minutes as long as operations were looked at again for every other one.
#[test]
fn as_many_operations_as_a_cell_may_have_are_put_in_order_at_once() {
    let compile = |draft: Draft| {
        let cell = draft.resolve();
        Plan::compile((&cell, &sums::find(&cell)), (Level::detect(), Kernels::Best), &mut Packs::within(u64::MAX)).expect("it compiles")
    };
    // Half of the values are all there before the first is read.
    let mut draft = Draft::new("together").input("x", Datatype::Fp32, &[1]);
    for at in 0..2048 {
        draft = draft.operator("Neg", &["x"], &[&format!("n{at}")]);
    }
    draft = draft.operator("Mul", &["n0", "n0"], &["p0"]);
    for at in 1..2048 {
        draft = draft.operator("Mul", &[&format!("p{}", at - 1), &format!("n{at}")], &[&format!("p{at}")]);
    }
    let plan = compile(draft.output("p2047", Datatype::Fp32, &[1]));
    let [StepKind::Group(group)] = plan.steps.iter().map(|step| &step.kind).collect::<Vec<_>>()[..] else { panic!("one group") };
    assert_eq!(group.instructions.len(), 4096);
    // Half a million values, each a part of another.
    let mut draft = Draft::new("parts").input("x", Datatype::Fp32, &[256]);
    for at in 0..2000 {
        let names: Vec<String> = (0..256).map(|part| format!("v{at}.{part}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        draft = draft.operator("Split", &["x"], &names).with("axis", 1);
    }
    draft = draft.operator("Neg", &["v0.7"], &["y0"]);
    for at in 1..2000 {
        draft = draft.operator("Mul", &[&format!("y{}", at - 1), &format!("v{at}.7")], &[&format!("y{at}")]);
    }
    let plan = compile(draft.output("y1999", Datatype::Fp32, &[1]));
    assert!(matches!(plan.steps.iter().map(|step| &step.kind).collect::<Vec<_>>()[..], [StepKind::Group(_)]));
}
