//! Cell graphs by hand, and random ones of every family, in the checked form that the scheduler takes.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::graph::{Affine, Node, Pace};
use cellwright_cell_graph::unfolded::{
    Delivery, Dependency, Grouping, Length, Retention, Source, Successors, UnfoldedChain, UnfoldedInput, UnfoldedStage, Watch,
};

use super::dice::Dice;

/// Cells of every test model, by position.
pub(crate) const LSTM: u32 = 0;
pub(crate) const LEAF: u32 = 1;
pub(crate) const INNER: u32 = 2;
pub(crate) const HEAD: u32 = 3;
pub(crate) const CELLS: u32 = 4;

pub(crate) const EVERY: Affine = Affine::EVERY;
pub(crate) const BACKWARD: Affine = Affine { first: 0, stride: 1, from_end: true };

/// A stage that waits for `depends`, every node a subgraph.
pub(crate) fn stage(cell: u32, depends: &[Dependency]) -> UnfoldedStage {
    UnfoldedStage {
        cell,
        inputs: Vec::new(),
        depends: depends.to_vec(),
        named_producers: Vec::new(),
        successors: Successors::default(),
        retention: Retention::Double,
        grouping: Grouping::Each,
        delivery: vec![Delivery::Last],
    }
}

pub(crate) fn whole(cell: u32, depends: &[Dependency]) -> UnfoldedStage {
    UnfoldedStage { grouping: Grouping::Whole, ..stage(cell, depends) }
}

/// A chain of `bound` steps, in order if any stage waits for the step before.
pub(crate) fn chain(bound: u32, stages: Vec<UnfoldedStage>) -> UnfoldedChain {
    let sequential = stages.iter().flat_map(|stage| &stage.depends).any(|depends| matches!(depends, Dependency::Previous { .. }));
    UnfoldedChain { stages, length: Length { bound, like: None }, sequential, stop: None, continues: None }
}

pub(crate) fn lstm(bound: u32, also: &[Dependency]) -> UnfoldedChain {
    let mut depends = vec![Dependency::Previous { stage: 0 }];
    depends.extend_from_slice(also);
    chain(bound, vec![whole(LSTM, &depends)])
}

/// A chain whose step t waits for the nodes named by `of[t]`.
pub(crate) fn named(cell: u32, of: &[Vec<Node>]) -> UnfoldedChain {
    let width = of.iter().map(Vec::len).max().unwrap_or(0);
    let input = |index: usize| UnfoldedInput {
        source: Source::Nodes { stage: 0, output: 0, of: of.iter().map(|nodes| nodes[index.min(nodes.len() - 1)]).collect() },
        feedback: None,
    };
    let depends: Vec<_> = (0..width as u32).map(|input| Dependency::Nodes { input }).collect();
    let stage = UnfoldedStage { inputs: (0..width).map(input).collect(), retention: Retention::All, ..stage(cell, &depends) };
    UnfoldedChain { sequential: false, ..chain(of.len() as u32, vec![stage]) }
}

/// Fills in what the checker derives: who is named by whom, the subgraphs of tree-like stages, the number of nodes.
pub(crate) fn growth(first_chain: u32, mut chains: Vec<UnfoldedChain>, next: Option<Watch>) -> Arc<UnfoldedGrowth> {
    let mut edges: Vec<(usize, u32, u32, u32, u32, u32)> = Vec::new();
    for (number, chain) in chains.iter().enumerate() {
        for (stage, graph) in chain.stages.iter().enumerate() {
            for step in 0..chain.length.bound {
                for input in &graph.inputs {
                    let Source::Nodes { stage: from_stage, of, .. } = &input.source else { continue };
                    let node = of[step as usize];
                    if node.chain >= first_chain {
                        edges.push((
                            (node.chain - first_chain) as usize,
                            *from_stage,
                            node.step,
                            number as u32 + first_chain,
                            stage as u32,
                            step,
                        ));
                    }
                }
            }
        }
    }
    edges.sort_unstable();
    edges.dedup();
    for (local, chain) in chains.iter_mut().enumerate() {
        let bound = chain.length.bound;
        for (index, stage) in chain.stages.iter_mut().enumerate() {
            let mine: Vec<_> = edges.iter().filter(|edge| edge.0 == local && edge.1 == index as u32).collect();
            let mut offsets = vec![0_u32; bound as usize + 1];
            for edge in &mine {
                offsets[edge.2 as usize + 1] += 1;
            }
            for step in 0..bound as usize {
                offsets[step + 1] += offsets[step];
            }
            if !mine.is_empty() {
                stage.successors = Successors { offsets, targets: mine.iter().map(|edge| (edge.3, edge.4, edge.5)).collect() };
                stage.retention = Retention::All;
            }
            let number = first_chain + local as u32;
            let waits = |step| edges.iter().filter(|edge| (edge.3, edge.4, edge.5) == (number, index as u32, step)).count() as u32;
            if stage.depends.iter().any(|depends| matches!(depends, Dependency::Nodes { .. })) {
                stage.named_producers = (0..bound).map(waits).collect();
                if !stage.depends.contains(&Dependency::Previous { stage: index as u32 }) {
                    stage.grouping = components(bound, mine.iter().filter(|edge| edge.3 == number).map(|edge| (edge.2, edge.5)));
                }
            }
        }
    }
    let nodes = chains.iter().map(|chain| u64::from(chain.length.bound) * chain.stages.len() as u64).sum();
    Arc::new(UnfoldedGrowth { first_chain, chains, outputs: Vec::new(), cancel: Vec::new(), next, nodes, shared: None })
}

fn components(bound: u32, links: impl Iterator<Item = (u32, u32)>) -> Grouping {
    let mut group: Vec<u32> = (0..bound).collect();
    for (one, other) in links {
        let (low, high) = (group[one as usize].min(group[other as usize]), group[one as usize].max(group[other as usize]));
        for member in &mut group {
            if *member == high {
                *member = low;
            }
        }
    }
    let mut names = Vec::new();
    for member in &mut group {
        let name = names.iter().position(|name| name == member).unwrap_or_else(|| {
            names.push(*member);
            names.len() - 1
        });
        *member = name as u32;
    }
    match names.len() {
        1 => Grouping::Whole,
        count if count == bound as usize => Grouping::Each,
        _ => Grouping::Components(group),
    }
}

pub(crate) fn watch(keep: &[u32]) -> Option<Watch> {
    Some(Watch { outputs: Vec::new(), pace: Pace::All, keep: keep.to_vec(), keep_tensors_from: 0, state: Vec::new() })
}

/// A binary forest over `leaves` leaves: two chains, from `first` on. `trees` roots are left over.
pub(crate) fn forest(dice: &mut Dice, first: u32, leaves: u32, trees: u32) -> Vec<UnfoldedChain> {
    let mut roots: Vec<Node> = (0..leaves).map(|step| Node { chain: first, step }).collect();
    let mut of = Vec::new();
    while roots.len() > trees.max(1) as usize {
        let one = roots.remove(dice.below(roots.len() as u32) as usize);
        let other = roots.remove(dice.below(roots.len() as u32) as usize);
        roots.push(Node { chain: first + 1, step: of.len() as u32 });
        of.push(vec![one, other]);
    }
    let mut chains = vec![chain(leaves, vec![stage(LEAF, &[])])];
    if !of.is_empty() {
        chains.push(named(INNER, &of));
    }
    chains
}

/// The balanced tree over a power of two of leaves.
pub(crate) fn balanced_tree(leaves: u32) -> Vec<UnfoldedChain> {
    let mut level: Vec<Node> = (0..leaves).map(|step| Node { chain: 0, step }).collect();
    let mut of = Vec::new();
    while level.len() > 1 {
        level = level
            .chunks(2)
            .map(|pair| {
                of.push(pair.to_vec());
                Node { chain: 1, step: of.len() as u32 - 1 }
            })
            .collect();
    }
    vec![chain(leaves, vec![stage(LEAF, &[])]), named(INNER, &of)]
}

/// A stage that reads one step of a chain once that has ended.
pub(crate) fn counting(chain: u32, at: Affine) -> UnfoldedStage {
    let source = Source::Steps { chain, stage: 0, output: 0, at };
    UnfoldedStage { inputs: vec![UnfoldedInput { source, feedback: None }], ..stage(HEAD, &[Dependency::End { chain }]) }
}

/// A decoder of one stage that may stop, reading the end of `encoder`.
pub(crate) fn decoder(bound: u32, encoder: u32) -> UnfoldedChain {
    let depends = [Dependency::Previous { stage: 0 }, Dependency::End { chain: encoder }];
    UnfoldedChain { stop: Some((0, 1)), ..chain(bound, vec![whole(INNER, &depends)]) }
}

/// A decoder of two stages, cell and projection, that may stop.
pub(crate) fn two_stage_decoder(bound: u32, encoder: Option<u32>) -> UnfoldedChain {
    let mut depends = vec![Dependency::Previous { stage: 0 }, Dependency::Previous { stage: 1 }];
    depends.extend(encoder.map(|chain| Dependency::End { chain }));
    let stages = vec![stage(INNER, &depends), stage(HEAD, &[Dependency::Sibling { stage: 0 }])];
    UnfoldedChain { stop: Some((1, 0)), ..chain(bound, stages) }
}

/// Random chains of one of the families, numbered from `first` on, whose lengths stay below `longest`.
pub(crate) fn family(dice: &mut Dice, first: u32, longest: u32) -> Vec<UnfoldedChain> {
    let bound = dice.between(1, longest);
    let streams = dice.once_in(3);
    let mut chains = match dice.below(14) {
        0 | 1 => vec![lstm(bound, &[])],
        2 => {
            // Bidirectional, and a head over both directions, step by step.
            let both =
                [Dependency::Step { chain: first, stage: 0, at: EVERY }, Dependency::Step { chain: first + 1, stage: 0, at: BACKWARD }];
            vec![lstm(bound, &[]), lstm(bound, &[]), chain(bound, vec![stage(HEAD, &both)])]
        }
        3 => vec![lstm(bound, &[]), decoder(dice.between(1, longest), first)],
        4 => vec![lstm(bound, &[]), two_stage_decoder(dice.between(1, longest), Some(first))],
        5 => {
            let leaves = dice.between(1, longest.max(2));
            let trees = dice.between(1, 3);
            forest(dice, first, leaves, trees)
        }
        6 => {
            // Who follows a chain that may stop, and reads it step by step.
            let reads = [Dependency::Step { chain: first, stage: 0, at: EVERY }];
            let leader = UnfoldedChain { stop: Some((0, 0)), ..lstm(bound, &[]) };
            let one = if dice.once_in(2) { lstm(bound, &reads) } else { chain(bound, vec![stage(HEAD, &reads)]) };
            let follower = UnfoldedChain { length: Length { bound, like: Some(first) }, ..one };
            vec![leader, follower]
        }
        7 => {
            // A stack of two layers, released step by step, and a head at the end.
            let reads = [Dependency::Step { chain: first, stage: 0, at: EVERY }];
            let end = [Dependency::End { chain: first + 1 }];
            vec![lstm(bound, &[]), lstm(bound, &reads), chain(1, vec![stage(HEAD, &end)])]
        }
        8 => {
            // Reads steps of a chain that may stop before them.
            let named = dice.below(bound);
            let at = Affine { first: named.into(), stride: 0, from_end: false };
            let leader = UnfoldedChain { stop: Some((0, 0)), ..lstm(bound, &[]) };
            vec![leader, chain(dice.between(1, 3), vec![stage(HEAD, &[Dependency::Step { chain: first, stage: 0, at }])])]
        }
        9 => {
            // Counts back from where a chain stops, further than that may be.
            let at = Affine { first: dice.below(bound).into(), stride: 0, from_end: true };
            let leader = UnfoldedChain { stop: Some((0, 0)), ..lstm(bound, &[]) };
            vec![leader, chain(dice.between(1, 3), vec![counting(first, at)])]
        }
        10 => {
            // Follows a chain that may stop, and waits for all its steps so far.
            let through = [Dependency::Through { chain: first, stage: 0, at: Affine { first: -i64::from(dice.below(3)), ..EVERY } }];
            let leader = UnfoldedChain { stop: Some((0, 0)), ..lstm(bound, &[]) };
            vec![leader, UnfoldedChain { length: Length { bound, like: Some(first) }, ..chain(bound, vec![stage(HEAD, &through)]) }]
        }
        11 | 12 => {
            // Waits for steps that run in any order or one after the other, as far as a line says that may begin before them and end behind.
            let (own, behind) = (first + 3, dice.below(2));
            let mut line = || {
                let stride = [0, 1, 1, 2, -1][dice.below(5) as usize];
                let at = Affine { first: i64::from(dice.below(longest + 3)) - 3, stride, from_end: false };
                Dependency::Through { chain: first, stage: 0, at }
            };
            let (one, other) = ([line()], [line(), line()]);
            let read = if dice.once_in(2) { lstm(bound, &[]) } else { chain(bound, vec![stage(LEAF, &[])]) };
            let reader = if dice.once_in(2) { lstm(bound, &other) } else { chain(dice.between(1, longest), vec![stage(INNER, &other)]) };
            // And all its own steps so far: of the stage itself, and of the one before it.
            let own = |first| [Dependency::Through { chain: own, stage: 0, at: Affine { first, ..EVERY } }];
            let both = chain(bound, vec![stage(LEAF, &own(-1 - i64::from(behind))), stage(HEAD, &own(-i64::from(behind)))]);
            // A state, and all its own steps before.
            let own = Dependency::Through { chain: first + 4, stage: 0, at: Affine { first: -1, ..EVERY } };
            let state = UnfoldedChain { sequential: true, ..chain(bound, vec![stage(LEAF, &[Dependency::Previous { stage: 0 }, own])]) };
            vec![read, chain(dice.between(1, longest), vec![stage(HEAD, &one)]), reader, both, state]
        }
        _ => {
            let end = [Dependency::End { chain: first }];
            let strided = [Dependency::Step { chain: first, stage: 0, at: Affine { first: 0, stride: 2, from_end: false } }];
            vec![
                chain(bound, vec![stage(LEAF, &[])]),
                chain(dice.between(1, longest), vec![stage(HEAD, &end)]),
                chain(bound.div_ceil(2), vec![stage(INNER, &strided)]),
            ]
        }
    };
    for stage in chains.iter_mut().flat_map(|chain| &mut chain.stages) {
        stage.delivery = vec![if streams { Delivery::All } else { Delivery::Last }];
    }
    chains
}
