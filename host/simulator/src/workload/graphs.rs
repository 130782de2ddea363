//! Graphs of cells, in the form that the checker gives them.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::graph::Node;
use cellwright_cell_graph::unfolded::{
    Delivery, Dependency, Grouping, Length, Retention, Source, Successors, UnfoldedChain, UnfoldedInput, UnfoldedStage,
};

use super::trees::Tree;

/// A stage whose last output is the request's.
pub(super) fn stage(cell: u32, depends: Vec<Dependency>) -> UnfoldedStage {
    UnfoldedStage {
        cell,
        inputs: Vec::new(),
        depends,
        named_producers: Vec::new(),
        successors: Successors::default(),
        retention: Retention::Double,
        grouping: Grouping::Each,
        delivery: vec![Delivery::Last],
    }
}

/// So many steps in order, each stage fed by itself: all of a stage's steps are one subgraph.
pub(super) fn recurrent(bound: u32, mut stages: Vec<UnfoldedStage>) -> UnfoldedChain {
    for (number, stage) in (0..).zip(&mut stages) {
        stage.depends.insert(0, Dependency::Previous { stage: number });
        stage.grouping = if bound > 1 { Grouping::Whole } else { Grouping::Each };
        // Two places are for two steps to take turns; fewer steps have one each.
        stage.retention = if bound > 2 { Retention::Double } else { Retention::All };
    }
    UnfoldedChain { stages, length: Length { bound, like: None }, sequential: true, stop: None, continues: None }
}

/// So many steps that do not wait for one another.
pub(super) fn independent(bound: u32, stages: Vec<UnfoldedStage>) -> UnfoldedChain {
    UnfoldedChain { stages, length: Length { bound, like: None }, sequential: false, stop: None, continues: None }
}

pub(super) fn growth(chains: Vec<UnfoldedChain>) -> Arc<UnfoldedGrowth> {
    let nodes = chains.iter().map(|chain| u64::from(chain.length.bound) * chain.stages.len() as u64).sum();
    Arc::new(UnfoldedGrowth { first_chain: 0, chains, outputs: Vec::new(), cancel: Vec::new(), next: None, nodes, shared: None })
}

/// A layer of LSTM over so many steps.
pub(super) fn lstm(length: u32) -> Arc<UnfoldedGrowth> {
    growth(vec![recurrent(length, vec![stage(0, Vec::new())])])
}

/// An encoder, and a decoder from its end on; `stops`: at most so many steps of it.
pub(super) fn seq2seq(source: u32, target: u32, stops: bool) -> Arc<UnfoldedGrowth> {
    let mut encoder = recurrent(source, vec![stage(0, Vec::new())]);
    encoder.stages[0].delivery = vec![Delivery::None];
    let mut decoder = recurrent(target, vec![stage(1, vec![Dependency::End { chain: 0 }])]);
    decoder.stages[0].delivery = vec![Delivery::All];
    decoder.stop = stops.then_some((0, 1));
    growth(vec![encoder, decoder])
}

/// A chain of leaves, and one of internal nodes that name their children.
pub(super) fn tree(tree: &Tree) -> Arc<UnfoldedGrowth> {
    let leaves = independent(tree.leaves, vec![stage(0, Vec::new())]);
    if tree.children.is_empty() {
        return growth(vec![leaves]);
    }
    let node = |number: u32| match number.checked_sub(tree.leaves) {
        None => Node { chain: 0, step: number },
        Some(step) => Node { chain: 1, step },
    };
    // h and c of the left child, and of the right one.
    let input = |side: usize, output: u32| {
        let of = tree.children.iter().map(|children| node(children[side])).collect();
        UnfoldedInput { source: Source::Nodes { stage: 0, output, of }, feedback: None }
    };
    let count = tree.children.len() as u32;
    let mut internal = stage(1, (0..4).map(|input| Dependency::Nodes { input }).collect());
    internal.inputs = vec![input(0, 0), input(0, 1), input(1, 0), input(1, 1)];
    internal.retention = Retention::All;
    internal.named_producers = vec![2; tree.children.len()];
    internal.grouping = if count > 1 { Grouping::Whole } else { Grouping::Each };
    let mut chains = vec![leaves, independent(count, vec![internal])];
    name_successors(&mut chains, tree, node);
    growth(chains)
}

/// Tells each node who names it.
fn name_successors(chains: &mut [UnfoldedChain], tree: &Tree, node: impl Fn(u32) -> Node) {
    let mut parents: Vec<(Node, u32)> =
        (0..).zip(&tree.children).flat_map(|(parent, children)| children.map(|child| (node(child), parent))).collect();
    parents.sort_unstable();
    for (number, chain) in (0..).zip(&mut *chains) {
        let mine = || parents.iter().filter(|(child, _)| child.chain == number);
        let stage = &mut chain.stages[0];
        if mine().next().is_none() {
            continue;
        }
        let mut offsets = vec![0_u32; chain.length.bound as usize + 1];
        for (child, _) in mine() {
            offsets[child.step as usize + 1] += 1;
        }
        for step in 1..offsets.len() {
            offsets[step] += offsets[step - 1];
        }
        stage.successors = Successors { offsets, targets: mine().map(|(_, parent)| (1, 0, *parent)).collect() };
        stage.retention = Retention::All;
    }
    // The root is delivered, and nobody reads it.
    chains[0].stages[0].delivery = vec![Delivery::None];
}
