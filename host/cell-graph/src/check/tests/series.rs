//! Series of chains: rows of earlier growths are held as long as somebody may read them, and what is not held is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::check::{GraphLimits, Model, Unfolding};
use crate::generate::{self, CELLS, ModelShape, Rng};
use crate::graph::{Affine, Chain, Continuation, Extent, Feedback, Growth, Node, OutputRef, Pace, Series, Source, Span, SpanOf, Stage};
use crate::oracle::{self, Edges, NodeId};
use crate::tensor::Tensor;
use crate::unfolded::{Dependency, Retention, RunOf, UnfoldedChain, UnfoldedGrowth};

/// All growths of a session: edges between their nodes too.
fn waits(growths: &[UnfoldedGrowth]) -> Edges {
    let bounds = |growth: &UnfoldedGrowth| growth.chains.iter().map(|chain| chain.length.bound).collect::<Vec<_>>();
    let mut all = Edges::new();
    for growth in growths {
        for ((chain, stage, step), mut waits) in oracle::waits(growth, &bounds(growth)) {
            for depends in &growth.chains[(chain - growth.first_chain) as usize].stages[stage as usize].depends {
                if let Dependency::End { chain } = depends {
                    waits.extend(all.keys().filter(|node: &&NodeId| node.0 == *chain && *chain < growth.first_chain).copied());
                }
            }
            all.insert((chain, stage, step), waits);
        }
    }
    all
}

/// Chains by number.
fn chains(growths: &[UnfoldedGrowth]) -> BTreeMap<u32, &UnfoldedChain> {
    growths.iter().flat_map(|growth| (growth.first_chain..).zip(&growth.chains)).collect()
}

/// The node that a number means, counted from a chain's step 0.
fn node_of(chains: &BTreeMap<u32, &UnfoldedChain>, mut chain: u32, stage: u32, mut number: i64) -> Option<NodeId> {
    while number < 0 {
        chain = chains[&chain].continues?;
        number += i64::from(chains[&chain].length.bound);
    }
    (number < i64::from(chains[&chain].length.bound)).then_some((chain, stage, number as u32))
}

/// The first chain of a series.
fn root(chains: &BTreeMap<u32, &UnfoldedChain>, chain: u32) -> u32 {
    chains[&chain].continues.map_or(chain, |before| root(chains, before))
}

/// In whatever order a session's nodes run: what a step sees is in the place where it looks for it.
#[test]
fn rows_of_a_session_are_held_until_they_are_read() {
    let mut seen = (0, 0);
    for seed in 0..60 {
        let model = generate::model(seed % 7);
        let mut rng = Rng::new(seed);
        let mut unfolding = Unfolding::new(Arc::clone(&model), GraphLimits::default());
        let chunks = generate::session(&model, 6, &mut rng);
        let grown = chunks.into_iter().map(|chunk| unfolding.grow(chunk.growth, chunk.first_tensor, &chunk.tensors).unwrap());
        let growths: Vec<UnfoldedGrowth> = grown.collect();
        let (waits, chains) = (waits(&growths), chains(&growths));
        for _ in 0..4 {
            let mut places: BTreeMap<(u32, u32, u32), NodeId> = BTreeMap::new();
            for node in oracle::order(&waits, |count| rng.below(count as u64) as usize).expect("a cycle") {
                let stage = &chains[&node.0].stages[node.1 as usize];
                for run in stage.inputs.iter().flat_map(|input| input.source.runs()) {
                    let RunOf::Chain { chain, stage, .. } = run.of else { continue };
                    let held = chains[&chain].stages[stage as usize].retention;
                    for row in 0..i64::from(run.count) {
                        let number = run.at.number(node.2).unwrap() + row * i64::from(run.every);
                        let Some(wanted) = node_of(&chains, chain, stage, number) else { continue };
                        let place = (root(&chains, chain), stage, held.place_of(number));
                        assert_eq!(places.get(&place), Some(&wanted), "seed {seed}: what {node:?} sees");
                        seen = (seen.0 + u32::from(number < 0), seen.1 + 1);
                    }
                }
                if stage.retention != Retention::None {
                    places.insert((root(&chains, node.0), node.1, stage.retention.place(node.2)), node);
                }
            }
        }
    }
    assert!(seen.0 > 1000 && seen.1 > 4000, "{seen:?}");
}

fn model() -> Arc<Model> {
    generate::model_of(ModelShape { width: 2, hidden: 2, vocabulary: 4, spans: true }, 1)
}

fn tensors(parts: u32) -> Vec<Arc<Tensor>> {
    (0..parts).map(|_| Arc::new(Tensor::from_f32("x", &[4, 2], &[0.0; 8]))).collect()
}

const fn of(chain: u32) -> OutputRef {
    OutputRef { chain, stage: 0, output: 0 }
}

fn lstm(steps: u32, tensor: u32, series: Option<Series>) -> Chain {
    let feedback = |output, input| Feedback { stage: 0, output, to_stage: 0, input };
    let x = Source::Rows { tensor, at: Affine { first: 0, stride: 0, from_end: false } };
    let stages = vec![Stage { cell: CELLS.lstm, inputs: vec![x, Source::Zeros, Source::Zeros] }];
    Chain { stages, length: Extent::Fixed(steps), feedback: vec![feedback(0, 1), feedback(1, 2)], stop: None, series }
}

/// A step that sees so many states and rows from there on.
fn span(cell: u32, states: (SpanOf, i64, Option<u32>), rows: (SpanOf, i64, Option<u32>)) -> Chain {
    let many = |(of, first, count)| {
        let at = Affine { first, stride: 0, from_end: false };
        Source::Many(vec![Span { of, at, every: 1, count }])
    };
    let stages = vec![Stage { cell, inputs: vec![many(states), many(rows), Source::Zeros] }];
    Chain { stages, length: Extent::Fixed(1), feedback: vec![], stop: None, series: None }
}

fn keeping(chains: Vec<Chain>, keep: Vec<OutputRef>, tensors: u32) -> Growth {
    let next = Continuation { watch: vec![], pace: Pace::All, keep, keep_tensors_from: tensors, state: vec![] };
    Growth { chains, next: Some(next), ..Growth::default() }
}

/// A session whose first part has a series of 6 rows, and 4 steps.
fn begun() -> Unfolding {
    let mut unfolding = Unfolding::new(model(), GraphLimits::default());
    let first = keeping(vec![lstm(4, 0, Some(Series::Begins(6))), lstm(4, 0, None)], vec![of(0), of(1)], 0);
    unfolding.grow(first, 0, &tensors(1)).unwrap();
    unfolding
}

#[test]
fn a_chain_goes_on_in_the_places_of_another() {
    let mut unfolding = begun();
    let next = keeping(vec![lstm(3, 1, Some(Series::Continues(0)))], vec![of(2)], 1);
    let chain = &unfolding.grow(next, 0, &tensors(2)).unwrap().chains[0];
    assert_eq!(chain.continues, Some(0));
    assert_eq!(chain.stages[0].retention, Retention::Ring { places: 6, first: 4, before: 4 });
    assert!(chain.stages[0].depends.contains(&Dependency::End { chain: 0 }));
    let seen = span(CELLS.span, (SpanOf::Chain(of(3)), -4, Some(4)), (SpanOf::Tensor(2), -4, Some(4)));
    let last = Growth { chains: vec![lstm(2, 2, Some(Series::Continues(2))), seen], ..Growth::default() };
    let last = unfolding.grow(last, 1, &tensors(2)).unwrap();
    assert_eq!(last.chains[0].stages[0].retention, Retention::Ring { places: 6, first: 1, before: 6 });
    let depends: BTreeSet<String> = last.chains[1].stages[0].depends.iter().map(|depends| format!("{depends:?}")).collect();
    assert_eq!(depends, BTreeSet::from(["End { chain: 2 }".to_owned()]), "all that it sees was there before");
}

#[test]
fn what_reads_a_row_has_read_it_before_its_place_is_taken() {
    let mut unfolding = Unfolding::new(model(), GraphLimits::default());
    let reader = span(CELLS.span, (SpanOf::Chain(of(0)), 0, None), (SpanOf::Tensor(0), 0, None));
    unfolding.grow(keeping(vec![lstm(4, 0, Some(Series::Begins(4))), reader], vec![of(0)], 0), 0, &tensors(1)).unwrap();
    let next = Growth { chains: vec![lstm(4, 1, Some(Series::Continues(0)))], ..Growth::default() };
    let depends = unfolding.grow(next, 0, &tensors(2)).unwrap().chains[0].stages[0].depends.clone();
    assert!([0, 1].iter().all(|chain| depends.contains(&Dependency::End { chain: *chain })), "{depends:?}");
}

/// The scheduler counts rows of spans, and does not see tensors.
#[test]
fn a_span_has_no_rows_behind_the_last_of_its_tensor() {
    let rows = |first, every, count| {
        let mut chain = span(CELLS.span, (SpanOf::Chain(of(0)), 0, None), (SpanOf::Tensor(0), first, count));
        let Source::Many(spans) = &mut chain.stages[0].inputs[1] else { panic!("rows of a tensor") };
        spans[0].every = every;
        let growth = Growth { chains: vec![lstm(4, 0, None), chain], ..Growth::default() };
        let growth = Unfolding::new(model(), GraphLimits::default()).grow(growth, 0, &tensors(1)).unwrap();
        growth.chains[1].stages[0].inputs[1].source.runs()[0].rows(0, (0, i64::MAX >> 1))
    };
    assert_eq!([rows(0, 1, None), rows(-1, 1, None), rows(2, 1, Some(9)), rows(9, 1, None)], [4, 4, 2, 0]);
    assert_eq!([rows(0, 2, None), rows(-1, 2, None), rows(1, 2, Some(9)), rows(0, 3, Some(1))], [2, 2, 2, 1]);
}

#[test]
fn what_cannot_go_on_is_refused() {
    let said = |growth: Growth| begun().grow(growth, 0, &tensors(2)).unwrap_err().to_string();
    let goes_on = |steps| lstm(steps, 1, Some(Series::Continues(0)));
    let one = |chain: Chain| said(Growth { chains: vec![chain], ..Growth::default() });
    assert_eq!(one(lstm(7, 1, Some(Series::Begins(6)))), "chain 2: it has 7 steps, but its series holds the newest 6 rows");
    assert_eq!(one(goes_on(7)), "chain 2: it has 7 steps, but its series holds the newest 6 rows");
    assert_eq!(
        one(lstm(1, 1, Some(Series::Begins(u32::MAX)))),
        "chain 2: it has 4294967295 rows in its series, more than the limit of 1048576"
    );
    assert_eq!(
        one(Chain { series: Some(Series::Continues(1)), ..goes_on(1) }),
        "chain 2: chain 1 is in no series, and cannot be continued"
    );
    assert_eq!(one(Chain { series: Some(Series::Continues(9)), ..goes_on(1) }), "chain 2: chain 9 does not exist",);
    assert_eq!(one(Chain { length: Extent::Like(0), ..goes_on(1) }), "chain 2: a chain of a series has a number of steps of its own");
    let two = |second: Chain| said(Growth { chains: vec![goes_on(1), second], ..Growth::default() });
    assert_eq!(two(goes_on(2)), "chain 2: chain 0 is continued by another chain of this growth");
    assert_eq!(
        two(Chain { series: Some(Series::Continues(2)), ..goes_on(1) }),
        "chain 3: chain 2 is of this growth; only a chain of an earlier one can be continued"
    );
    let other = span(CELLS.span, (SpanOf::Tensor(0), 0, None), (SpanOf::Tensor(0), 0, None));
    assert_eq!(
        one(Chain { series: Some(Series::Continues(0)), ..other }),
        "chain 2: it does not run the same cells as chain 0, which it continues"
    );
    assert_eq!(said(keeping(vec![goes_on(1)], vec![of(0)], 1)), "kept output 0: chain 0 is continued by another chain of this growth");
}

#[test]
fn rows_that_are_not_held_are_refused() {
    let sees = |steps, states, rows, parts: u32| {
        let mut unfolding = begun();
        let growth =
            Growth { chains: vec![lstm(steps, 1, Some(Series::Continues(0))), span(CELLS.span, states, rows)], ..Growth::default() };
        unfolding.grow(growth, 0, &tensors(parts)).map(drop).map_err(|error| error.to_string())
    };
    let (rows, own) = ((SpanOf::Tensor(1), -4, None), SpanOf::Chain(of(2)));
    assert_eq!(sees(2, (own, -4, None), rows, 2), Ok(()), "four rows of before, and two");
    assert_eq!(sees(2, (own, -9, None), rows, 2), Ok(()), "there were never more");
    assert_eq!(
        sees(3, (own, -4, None), rows, 2).unwrap_err(),
        "chain 3, stage 0, input 0 (`states`): at step 0 it would see row -4 of a series of which rows from -3 on are held"
    );
    assert_eq!(
        sees(3, (SpanOf::Chain(of(0)), 0, None), rows, 2).unwrap_err(),
        "chain 3, stage 0, input 0 (`states`): at step 0 it would see row 0 of a series of which rows from 1 on are held"
    );
    let last = |steps| {
        let mut unfolding = begun();
        let mut goes_on = lstm(steps, 1, Some(Series::Continues(0)));
        goes_on.stages[0].inputs[1] = Source::Last(of(0));
        unfolding.grow(Growth { chains: vec![goes_on], ..Growth::default() }, 0, &tensors(2)).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(last(5), Ok(()));
    assert_eq!(
        last(6).unwrap_err(),
        "chain 2, stage 0, input 1 (`h`): at step 0 it would see row 3 of a series of which rows from 4 on are held"
    );
    let mut named = lstm(6, 1, Some(Series::Continues(0)));
    named.stages[0].inputs[1] = Source::Nodes { stage: 0, output: 0, of: vec![Node { chain: 0, step: 3 }] };
    assert!(begun().grow(Growth { chains: vec![named], ..Growth::default() }, 0, &tensors(2)).is_err());
}

#[test]
fn rows_of_tensors_that_were_let_go_are_refused() {
    let mut unfolding = Unfolding::new(model(), GraphLimits::default());
    unfolding.grow(keeping(vec![lstm(4, 0, None)], vec![], 1), 0, &tensors(1)).unwrap();
    let sees = |unfolding: &mut Unfolding, first| {
        let rows = (SpanOf::Tensor(1), first, None);
        let growth = keeping(vec![span(CELLS.span, (SpanOf::Tensor(1), 0, None), rows)], vec![], 1);
        unfolding.grow(growth, 1, &tensors(1)).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(sees(&mut unfolding, 0), Ok(()));
    assert_eq!(
        sees(&mut unfolding, -1).unwrap_err(),
        "chain 2, stage 0, input 1 (`rows`): at step 0 it would see row -1 of a tensor, before which those from 0 on are held"
    );
    // One that came at first: before it there are none.
    let mut unfolding = Unfolding::new(model(), GraphLimits::default());
    let rows = (SpanOf::Tensor(1), -9, None);
    let growth = Growth { chains: vec![span(CELLS.span, (SpanOf::Tensor(1), -4, Some(8)), rows)], ..Growth::default() };
    assert!(unfolding.grow(growth, 0, &tensors(2)).is_ok());
}
