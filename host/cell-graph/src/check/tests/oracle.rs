//! What passes the checks is what the oracle says it is; what does not pass is refused without a panic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use crate::check::{GraphLimits, Model, Unfolding};
use crate::generate::{self, ModelShape, Rng};
use crate::graph::{Extent, Growth, Node, Source, SpanOf};
use crate::oracle::{self, Edges, NodeId};
use crate::unfolded::{self, Dependency, Retention, UnfoldedGrowth};

/// A model in which most outputs fit most inputs.
fn model() -> Arc<Model> {
    generate::model_of(ModelShape { width: 3, hidden: 3, vocabulary: 3, spans: true }, 1)
}

/// How many steps each chain executes in one possible course of events.
fn executed(unfolded: &UnfoldedGrowth, rng: &mut Rng) -> Vec<u32> {
    let mut executed: Vec<u32> = Vec::new();
    for chain in &unfolded.chains {
        executed.push(match (chain.length.like, chain.stop) {
            (Some(like), _) => like.checked_sub(unfolded.first_chain).map_or(chain.length.bound, |local| executed[local as usize]),
            (None, Some(_)) => rng.between(1, chain.length.bound),
            (None, None) => chain.length.bound,
        });
    }
    executed
}

fn bounds(unfolded: &UnfoldedGrowth) -> Vec<u32> {
    unfolded.chains.iter().map(|chain| chain.length.bound).collect()
}

fn reaches(waits: &Edges, from: NodeId, to: NodeId) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::new());
    while let Some(node) = open.pop() {
        if node == to {
            return true;
        }
        open.extend(waits[&node].iter().copied().filter(|next| seen.insert(*next)));
    }
    false
}

/// Everything that holds of a checked growth.
fn assert_sound(growth: &Growth, unfolded: &UnfoldedGrowth, rng: &mut Rng) {
    let full = bounds(unfolded);
    assert_lengths(growth, unfolded);
    assert_waits_for_earlier(unfolded);
    assert_named(&oracle::expand(growth, unfolded.first_chain, &full), unfolded);
    let waits = oracle::waits(unfolded, &full);
    for group in oracle::subgraphs(unfolded) {
        assert!(oracle::is_connected(&group, &waits), "a subgraph in pieces: {group:?}");
        assert!(oracle::is_convex(&group, &waits), "a subgraph that is left and entered again: {group:?}");
    }
    for _ in 0..3 {
        let executed = executed(unfolded, rng);
        assert_course(growth, unfolded, &executed, rng);
    }
}

/// A stage waits for the ends of those chains of earlier growths that its inputs name: the engine asks nothing else where they lie.
fn assert_waits_for_earlier(unfolded: &UnfoldedGrowth) {
    for chain in &unfolded.chains {
        for stage in &chain.stages {
            let read = stage.inputs.iter().flat_map(|input| match &input.source {
                unfolded::Source::Steps { chain, .. } | unfolded::Source::Last { chain, .. } => vec![*chain],
                unfolded::Source::Nodes { of, .. } => of.iter().map(|node| node.chain).collect(),
                unfolded::Source::Window(runs) | unfolded::Source::Span(runs) => runs
                    .iter()
                    .filter_map(|run| if let unfolded::RunOf::Chain { chain, .. } = run.of { Some(chain) } else { None })
                    .collect(),
                _ => Vec::new(),
            });
            let end = |waits: &Dependency| if let Dependency::End { chain } = waits { Some(*chain) } else { None };
            let earlier = |chain: &u32| *chain < unfolded.first_chain;
            let waits: Vec<u32> = stage.depends.iter().filter_map(end).filter(earlier).collect();
            let read: BTreeSet<u32> = read.filter(earlier).collect();
            let each_once: BTreeSet<u32> = waits.iter().copied().collect();
            assert_eq!(each_once.len(), waits.len());
            assert!(read.is_subset(&each_once), "{stage:?}");
        }
    }
}

fn assert_lengths(growth: &Growth, unfolded: &UnfoldedGrowth) {
    let mut nodes = 0;
    for (given, chain) in growth.chains.iter().zip(&unfolded.chains) {
        if let Extent::Fixed(bound) = given.length {
            assert_eq!((chain.length.bound, chain.length.like), (bound, None));
        }
        assert_eq!(chain.sequential, !given.feedback.is_empty() || given.stop.is_some());
        nodes += u64::from(chain.length.bound) * chain.stages.len() as u64;
    }
    assert_eq!(nodes, unfolded.nodes);
}

/// Names are the oracle's, both ways.
fn assert_named(expanded: &oracle::Expanded, unfolded: &UnfoldedGrowth) {
    let mut inverse = Edges::new();
    for (node, producers) in &expanded.named {
        for producer in producers {
            inverse.entry(*producer).or_default().insert(*node);
        }
    }
    assert_eq!(inverse, oracle::successors(unfolded));
    for (local, chain) in unfolded.chains.iter().enumerate() {
        for (position, stage) in chain.stages.iter().enumerate() {
            let ascending = |targets: &[NodeId]| targets.is_sorted_by(|left, right| left < right);
            let offsets = &stage.successors.offsets;
            assert!(offsets.windows(2).all(|ends| ascending(&stage.successors.targets[ends[0] as usize..ends[1] as usize])));
            let named = |step: u32| {
                let node = (unfolded.first_chain + local as u32, position as u32, step);
                expanded.named.get(&node).map_or(0, BTreeSet::len) as u32
            };
            let wanted: Vec<u32> = (0..chain.length.bound).map(named).collect();
            let waits = stage.depends.iter().any(|dependency| matches!(dependency, Dependency::Nodes { .. }));
            assert_eq!(stage.named_producers, if waits { wanted.clone() } else { vec![] });
            assert!(waits || wanted.iter().all(|count| *count == 0));
        }
    }
}

/// In one course of events: nothing is read before it is there, nor after it was overwritten.
fn assert_course(growth: &Growth, unfolded: &UnfoldedGrowth, executed: &[u32], rng: &mut Rng) {
    let expanded = oracle::expand(growth, unfolded.first_chain, executed);
    if !expanded.beyond.is_empty() {
        return;
    }
    let waits = oracle::waits(unfolded, executed);
    for (node, producers) in &expanded.reads {
        for producer in producers {
            assert!(waits[node].contains(producer), "{node:?} reads {producer:?} and does not wait for it");
        }
    }
    for (node, chain) in &expanded.earlier {
        let stage = &unfolded.chains[(node.0 - unfolded.first_chain) as usize].stages[node.1 as usize];
        assert!(stage.depends.contains(&Dependency::End { chain: *chain }));
    }
    assert_stops(unfolded, &waits);
    assert_reasons(&expanded, unfolded, executed);
    for _ in 0..4 {
        let order = oracle::order(&waits, |count| rng.below(count as u64) as usize).expect("a cycle");
        assert_held(&expanded, unfolded, executed, &order);
    }
}

/// No step begins before the one before it decided whether to stop.
fn assert_stops(unfolded: &UnfoldedGrowth, waits: &Edges) {
    for (node, _) in waits.iter().filter(|(node, _)| node.2 > 0) {
        let chain = &unfolded.chains[(node.0 - unfolded.first_chain) as usize];
        if let Some((stage, _)) = chain.stop {
            assert!(reaches(waits, *node, (node.0, stage, node.2 - 1)), "{node:?} does not wait for the stop before it");
        }
    }
}

/// Every dependency is there once, and for a reason: something of that stage reads what it waits for, or it is the stop.
fn assert_reasons(expanded: &oracle::Expanded, unfolded: &UnfoldedGrowth, executed: &[u32]) {
    for (local, chain) in unfolded.chains.iter().enumerate() {
        let number = unfolded.first_chain + local as u32;
        for (position, stage) in chain.stages.iter().enumerate() {
            let own = expanded.reads.iter().filter(|(node, _)| (node.0, node.1) == (number, position as u32));
            let read: BTreeSet<(u32, u32)> = own.flat_map(|(_, reads)| reads).map(|node| (node.0, node.1)).collect();
            let runs = || stage.inputs.iter().flat_map(|input| input.source.runs());
            // Which of its rows are there does not depend on what it waits for.
            let sees = |number: u32| runs().any(|run| matches!(run.of, unfolded::RunOf::Chain { chain, .. } if chain == number));
            for (at, dependency) in stage.depends.iter().enumerate() {
                assert!(!stage.depends[..at].contains(dependency), "twice: {dependency:?}");
                let reason = match *dependency {
                    Dependency::Previous { stage } => {
                        read.contains(&(number, stage)) || executed[local] == 1 || chain.stop.is_some_and(|stop| stop.0 == stage)
                    }
                    Dependency::Sibling { stage } => read.contains(&(number, stage)),
                    Dependency::Step { chain, stage, .. } => read.contains(&(chain, stage)),
                    Dependency::Through { chain, .. } => sees(chain),
                    Dependency::End { chain } => {
                        chain < unfolded.first_chain || read.iter().any(|(other, _)| *other == chain) || sees(chain)
                    }
                    Dependency::Nodes { input } => matches!(stage.inputs[input as usize].source, crate::unfolded::Source::Nodes { .. }),
                };
                assert!(reason, "chain {number}, stage {position} waits without a reason: {dependency:?}");
            }
        }
    }
}

/// Runs the nodes in that order with no more places than are held.
fn assert_held(expanded: &oracle::Expanded, unfolded: &UnfoldedGrowth, executed: &[u32], order: &[NodeId]) {
    let stage = |node: NodeId| &unfolded.chains[(node.0 - unfolded.first_chain) as usize].stages[node.1 as usize];
    let mut places: BTreeMap<(u32, u32, u32), u32> = BTreeMap::new();
    for node in order {
        for producer in &expanded.reads[node] {
            let retention = stage(*producer).retention;
            assert_ne!(retention, Retention::None, "{producer:?} is read by {node:?} and not held");
            let place = (producer.0, producer.1, retention.place(producer.2));
            assert_eq!(places.get(&place), Some(&producer.2), "{node:?} reads {producer:?} from a place that holds another step");
        }
        let retention = stage(*node).retention;
        let place = retention.place(node.2);
        if retention != Retention::None {
            assert!(place < retention.places(unfolded.chains[(node.0 - unfolded.first_chain) as usize].length.bound));
            places.insert((node.0, node.1, place), node.2);
        }
    }
    for chain in unfolded.next.iter().flat_map(|next| &next.keep) {
        let Some(local) = chain.checked_sub(unfolded.first_chain) else { continue };
        let stages = &unfolded.chains[local as usize].stages;
        let held = |stage: usize| {
            let place = |step| (*chain, stage as u32, stages[stage].retention.place(step));
            (0..executed[local as usize]).all(|step| places.get(&place(step)) == Some(&step))
        };
        assert!((0..stages.len()).any(held), "kept chain {chain} is not held");
    }
}

#[test]
fn every_generated_growth_is_valid_and_sound() {
    for seed in 0..600 {
        let model = generate::model_with_spans(seed % 7);
        let mut rng = Rng::new(seed);
        let (growth, tensors) = generate::growth(&model, &mut rng);
        let unfolded = generate::unfold(&model, growth.clone(), &tensors);
        assert_sound(&growth, &unfolded, &mut rng);
    }
}

#[test]
fn every_generated_session_is_valid_and_sound() {
    for seed in 0..50 {
        let model = generate::model_with_spans(seed % 7);
        let mut rng = Rng::new(seed);
        let mut unfolding = Unfolding::new(Arc::clone(&model), GraphLimits::default());
        for chunk in generate::session(&model, 4, &mut rng) {
            let unfolded = unfolding.grow(chunk.growth.clone(), chunk.first_tensor, &chunk.tensors).unwrap();
            assert_sound(&chunk.growth, &unfolded, &mut rng);
        }
    }
}

#[test]
fn most_wild_growths_are_valid() {
    let model = model();
    let (mut valid, mut several, mut errors) = (0, 0, BTreeMap::<String, u32>::new());
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let (growth, tensors) = generate::wild(&model, &mut rng);
        match Unfolding::new(Arc::clone(&model), GraphLimits::default()).grow(growth, 0, &tensors) {
            Ok(unfolded) => {
                valid += 1;
                several += u32::from(unfolded.chains.iter().any(|chain| chain.stages.len() > 1 && chain.sequential));
            }
            Err(error) => *errors.entry(error.fault.to_string()).or_default() += 1,
        }
    }
    assert!(valid > 1000 && several > 300, "{valid} valid, {several} with stages that feed one another; {errors:?}");
}

/// Later growths see what was kept: chains are renumbered to stand after those of the request.
fn shift(growth: &mut Growth, by: u32) {
    let moved = |chain: &mut u32| *chain += by;
    for chain in &mut growth.chains {
        if let Extent::Like(like) = &mut chain.length {
            moved(like);
        }
        for source in chain.stages.iter_mut().flat_map(|stage| &mut stage.inputs) {
            match source {
                Source::Steps { of, .. } | Source::Last(of) => moved(&mut of.chain),
                Source::Nodes { of, .. } => of.iter_mut().for_each(|node| moved(&mut node.chain)),
                Source::Many(spans) => {
                    spans.iter_mut().for_each(|span| {
                        if let SpanOf::Chain(of) = &mut span.of {
                            moved(&mut of.chain)
                        }
                    });
                }
                _ => {}
            }
        }
    }
    for output in &mut growth.outputs {
        match &mut output.from {
            crate::graph::Gathered::Last(of) | crate::graph::Gathered::All(of) => moved(&mut of.chain),
            crate::graph::Gathered::Listed(list) => list.iter_mut().for_each(|of| moved(&mut of.chain)),
        }
    }
    if let Some(next) = &mut growth.next {
        next.watch.iter_mut().chain(&mut next.keep).for_each(|of| moved(&mut of.chain));
        next.keep_tensors_from = 0;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn wild_growths_are_refused_or_sound(seed in any::<u64>(), garbled in 0_u32..4) {
        let model = model();
        let mut rng = Rng::new(seed);
        let (mut growth, tensors) = generate::wild(&model, &mut rng);
        (0..garbled).for_each(|_| generate::garble(&mut growth, &mut rng));
        if let Ok(unfolded) = Unfolding::new(model, GraphLimits::default()).grow(growth.clone(), 0, &tensors) {
            assert_sound(&growth, &unfolded, &mut rng);
        }
    }

    #[test]
    fn later_growths_are_refused_or_sound(seed in any::<u64>()) {
        let model = model();
        let mut rng = Rng::new(seed);
        let mut unfolding = Unfolding::new(Arc::clone(&model), GraphLimits::default());
        for _ in 0..3 {
            let (mut growth, tensors) = generate::wild(&model, &mut rng);
            let kept: Vec<u32> = unfolding.kept.iter().map(|kept| kept.chain).collect();
            shift(&mut growth, unfolding.chains());
            refer_back(&mut growth, &kept, &mut rng);
            let before = unfolding.chains();
            match unfolding.grow(growth.clone(), 0, &tensors) {
                Ok(unfolded) => {
                    prop_assert_eq!(unfolded.first_chain, before);
                    assert_sound(&growth, &unfolded, &mut rng);
                }
                Err(_) => prop_assert_eq!(unfolding.chains(), before),
            }
        }
    }
}

/// Lets some sources refer to a kept chain instead.
fn refer_back(growth: &mut Growth, kept: &[u32], rng: &mut Rng) {
    let Some(chain) = kept.get(rng.below(kept.len() as u64) as usize) else { return };
    for source in growth.chains.iter_mut().flat_map(|chain| &mut chain.stages).flat_map(|stage| &mut stage.inputs) {
        if !rng.one_in(3) {
            continue;
        }
        match source {
            Source::Last(of) | Source::Steps { of, .. } => *of = crate::graph::OutputRef { chain: *chain, stage: 0, output: 0 },
            Source::Many(spans) => {
                let of = SpanOf::Chain(crate::graph::OutputRef { chain: *chain, stage: 0, output: 0 });
                spans.iter_mut().take(1).for_each(|span| span.of = of);
            }
            Source::Nodes { stage: 0, output: 0, of } => of.iter_mut().step_by(2).for_each(|node| *node = Node { chain: *chain, step: 0 }),
            _ => {}
        }
    }
}
