//! Requests that grow: each growth goes on from what the one before kept, for as long as it likes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::generate::{self, Chunk, Family, Rng};
use cellwright_cell_graph::graph::{Continuation, Extent, Gathered, Growth, OutputRef, Pace, ResponseTensor, Source};
use cellwright_engine::{RequestFailure, RequestTensors};
use cellwright_scheduler::{Config, Graph, PolicyKind, Release};
use cellwright_tests::devices::{domain, worker};
use cellwright_tests::graphs::{Case, Outcome, Pending, settled, spec, submit};
use cellwright_tests::naive::{Naive, NaiveFailure, compare};

use super::engine;

struct Session {
    growths: Vec<(Arc<UnfoldedGrowth>, RequestTensors)>,
    wanted: Naive,
}

fn session(model: &Arc<Model>, chunks: u32, rng: &mut Rng) -> Session {
    let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
    let mut wanted = Naive::new(model.clone());
    let growths = generate::session(model, chunks, rng).into_iter().map(|Chunk { growth, first_tensor, tensors }| {
        let growth = Arc::new(unfolding.grow(growth, first_tensor, &tensors).unwrap());
        wanted.grow(&growth, first_tensor, &tensors).unwrap();
        (growth, RequestTensors { first: first_tensor, tensors })
    });
    let growths = growths.collect();
    Session { growths, wanted }
}

/// Values of a chunk's answer: one of its two chains is in it.
fn answered(growth: &UnfoldedGrowth) -> u64 {
    growth.nodes / 2
}

/// The same, but that the first chunk's answer is kept for ever.
fn hoarding(model: &Arc<Model>, chunks: u32, rng: &mut Rng) -> Vec<(Arc<UnfoldedGrowth>, RequestTensors)> {
    let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
    let growths = generate::session(model, chunks, rng).into_iter().map(|Chunk { mut growth, first_tensor, tensors }| {
        if let Some(next) = growth.next.as_mut() {
            next.keep.push(OutputRef { chain: 1, stage: 0, output: 0 });
        }
        (Arc::new(unfolding.grow(growth, first_tensor, &tensors).unwrap()), RequestTensors { first: first_tensor, tensors })
    });
    growths.collect()
}

/// What later chunks referred to is let go of, though something older is kept.
#[test]
fn what_lies_between_is_not_kept() {
    let model = generate::model(14);
    let growths = hoarding(&model, 40, &mut Rng::new(14));
    let engine = engine(Config::default(), 4, vec![worker(&domain(64))]);
    let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
    let (first, tensors) = &growths[0];
    let pending = submit(&engine, &loaded, first, tensors).unwrap();
    for (number, (growth, tensors)) in growths[..39].iter().enumerate() {
        if number > 0 {
            engine.grow(pending.handle, growth.clone(), tensors.clone());
        }
        for _ in 0..answered(growth) {
            let _ = pending.next_value();
        }
    }
    // This list has a chunk's own two tensors twice: the next chunk sees them, too.
    let held = |number: usize| growths[number].1.tensors.iter().rev().take(2).any(|tensor| Arc::strong_count(tensor) > 2);
    assert!(pending.now().is_none(), "it goes on");
    let between: Vec<usize> = (1..30).filter(|number| held(*number)).collect();
    assert!(between.is_empty(), "tensors of the chunks {between:?} are held");
    assert!(held(0), "the first is kept");
    engine.cancel(pending.handle);
    let _ = pending.wait();
}

fn assert_right(session: &Session, pending: &Pending) {
    let answer = pending.wait();
    assert_eq!(answer.outcome, Outcome::Finished);
    compare(&session.wanted.delivered, &answer.values).unwrap();
}

fn configs() -> [Config; 3] {
    let subgraph = Config { release: Release::Subgraph, ..Config::default() };
    let graph = Config { policy: PolicyKind::Graph(Graph { bucket_width: 4, window_ns: 0 }), ..Config::default() };
    [Config::default(), subgraph, graph]
}

/// All growths of many sessions at once, and other requests among them.
#[test]
fn growths_that_wait_for_one_another() {
    for config in configs() {
        let model = generate::model(11);
        let mut rng = Rng::new(11);
        let sessions: Vec<Session> = (0..20).map(|_| session(&model, 30, &mut rng)).collect();
        let others = Case::mixed(&model, 100, 11);
        let home = domain(512);
        let engine = engine(config, 1 << 10, vec![worker(&home), worker(&home)]);
        let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
        let pending: Vec<Pending> = sessions
            .iter()
            .map(|session| {
                let (first, tensors) = &session.growths[0];
                submit(&engine, &loaded, first, tensors).unwrap()
            })
            .collect();
        let company: Vec<Pending> = others.iter().map(|case| case.submit(&engine, &loaded)).collect();
        for turn in 1..30 {
            for (session, pending) in sessions.iter().zip(&pending) {
                let (growth, tensors) = &session.growths[turn];
                engine.grow(pending.handle, growth.clone(), tensors.clone());
            }
        }
        for (session, pending) in sessions.iter().zip(&pending) {
            assert_right(session, pending);
        }
        for (case, pending) in others.iter().zip(&company) {
            case.check(&pending.wait()).unwrap_or_else(|wrong| panic!("{config:?}: {wrong}"));
        }
    }
}

/// Two growths, of whose first a chain stops early, what their nodes refer to, and what must come of them; none: the second names a step that the first did not execute.
type Pair = ([Arc<UnfoldedGrowth>; 2], RequestTensors, Option<Naive>);

fn pairs(model: &Arc<Model>, count: usize, rng: &mut Rng) -> Vec<Pair> {
    let mut pairs = Vec::with_capacity(count);
    while pairs.len() < count {
        let (growths, tensors) = generate::wild_pair(model, rng);
        let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
        let checked: Result<Vec<_>, _> = growths.into_iter().map(|growth| unfolding.grow(growth, 0, &tensors).map(Arc::new)).collect();
        let Ok([first, second]) = checked.map(|growths| <[_; 2]>::try_from(growths).expect("there are two")) else { continue };
        let mut naive = Naive::new(model.clone());
        let is_short = |(chain, executed): (&u32, &u32)| *executed < first.chains[*chain as usize].length.bound;
        if naive.grow(&first, 0, &tensors).is_err() || !naive.ended.iter().any(is_short) {
            continue;
        }
        let wanted = match naive.grow(&second, 0, &tensors) {
            Ok(()) => Some(naive),
            Err(NaiveFailure::BeyondEnd(_)) => None,
            Err(NaiveFailure::Row(_)) => continue,
        };
        pairs.push(([first, second], RequestTensors { first: 0, tensors }, wanted));
    }
    pairs
}

/// Growths of any kind that name any steps of the one before, whose chains stop where they like.
#[test]
fn a_growth_reads_what_was_executed_and_nothing_else() {
    for config in configs() {
        let model = generate::model(17);
        let pairs = pairs(&model, 400, &mut Rng::new(17));
        let beyond = pairs.iter().filter(|(_, _, wanted)| wanted.is_none()).count();
        assert!((10..200).contains(&beyond), "{beyond} of 400 name what is not there");
        let home = domain(4096);
        let engine = engine(config, 1 << 10, vec![worker(&home), worker(&home)]);
        let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
        let begun: Vec<Pending> = pairs.iter().map(|([first, _], tensors, _)| submit(&engine, &loaded, first, tensors).unwrap()).collect();
        for (([_, second], tensors, _), pending) in pairs.iter().zip(&begun) {
            engine.grow(pending.handle, second.clone(), tensors.clone());
        }
        for (number, ((_, _, wanted), pending)) in pairs.iter().zip(&begun).enumerate() {
            let answer = pending.wait();
            match wanted {
                Some(wanted) => {
                    assert_eq!(answer.outcome, Outcome::Finished, "{config:?}, request {number}");
                    compare(&wanted.delivered, &answer.values).unwrap_or_else(|wrong| panic!("{config:?}, request {number}: {wrong}"));
                }
                None => assert!(
                    matches!(answer.outcome, Outcome::Failed(RequestFailure::BeyondEnd { .. })),
                    "{config:?}, request {number}: {:?}",
                    answer.outcome
                ),
            }
        }
    }
}

/// A session holds what its last chunks need, however many there were.
#[test]
fn a_long_session_stays_small() {
    for config in configs() {
        let model = generate::model(12);
        let session = session(&model, 1000, &mut Rng::new(12));
        let home = domain(64);
        let engine = engine(config, 4, vec![worker(&home), worker(&home)]);
        let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
        let (first, tensors) = &session.growths[0];
        let pending = submit(&engine, &loaded, first, tensors).unwrap();
        let mut most = [0; 2];
        for (number, (growth, tensors)) in session.growths.iter().enumerate() {
            if number > 0 {
                engine.grow(pending.handle, growth.clone(), tensors.clone());
            }
            for _ in 0..answered(growth) {
                let _ = pending.next_value();
            }
            let counters = engine.counters();
            for (most, gauge) in most.iter_mut().zip([&counters.growths, &counters.lanes]) {
                *most = gauge.load(Ordering::Relaxed).max(*most);
            }
        }
        assert_right(&session, &pending);
        assert!(most[0] <= 4 && most[1] <= 8, "{config:?}: it held {most:?} growths and lanes at once");
    }
}

/// A request that may still grow stays until it is closed, and nothing comes of growing it after its end.
#[test]
fn open_until_closed() {
    let model = generate::model(13);
    let open = session(&model, 3, &mut Rng::new(13));
    let home = domain(64);
    let engine = engine(Config::default(), 4, vec![worker(&home), worker(&home)]);
    let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
    let (first, tensors) = &open.growths[0];
    let pending = submit(&engine, &loaded, first, tensors).unwrap();
    for _ in 0..answered(first) {
        let _ = pending.next_value();
    }
    assert_eq!(pending.now(), None, "it waits for more");
    engine.close(pending.handle);
    let answer = pending.wait();
    assert_eq!((answer.outcome, answer.values.len() as u64), (Outcome::Finished, answered(first)));
    let (second, tensors) = &open.growths[1];
    engine.grow(pending.handle, second.clone(), tensors.clone());
    engine.close(pending.handle);
    engine.cancel(pending.handle);
    // The next one gets the same place.
    settled(&engine);
    let whole = session(&model, 3, &mut Rng::new(14));
    let (first, tensors) = &whole.growths[0];
    let again = submit(&engine, &loaded, first, tensors).unwrap();
    for (growth, tensors) in &whole.growths[1..] {
        // These handles name nothing.
        engine.grow(pending.handle, second.clone(), tensors.clone());
        engine.cancel(pending.handle);
        engine.grow(again.handle, growth.clone(), tensors.clone());
    }
    assert_right(&whole, &again);
}

/// A chain that need not go on stops: the request ends with the rest of it, and as if that chain had never been.
#[test]
fn a_cancelled_chain_holds_nobody_up() {
    const STEPS: u32 = 1 << 19;
    let model = generate::model(15);
    let (mut first, tensors) = generate::growth_of(&model, Family::Lstm, 3, &mut Rng::new(15));
    first.chains.truncate(1);
    let mut endless = first.chains[0].clone();
    endless.length = Extent::Fixed(STEPS);
    for source in &mut endless.stages[0].inputs {
        if let Source::Rows { at, .. } = source {
            at.stride = 0;
        }
    }
    let short = first.chains[0].clone();
    first.chains.push(endless);
    first.next = Some(Continuation { watch: vec![], pace: Pace::All, keep: vec![], keep_tensors_from: 0, state: vec![] });
    let answer = |chain| {
        let from = Gathered::All(OutputRef { chain, stage: 0, output: 0 });
        vec![ResponseTensor { name: "all".to_owned(), from, stream: false }]
    };
    first.outputs = answer(0);
    let second = Growth { chains: vec![short], outputs: answer(2), cancel: vec![1], next: None };
    let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
    let [first, second] = [first, second].map(|growth| Arc::new(unfolding.grow(growth, 0, &tensors).unwrap()));
    let tensors = RequestTensors { first: 0, tensors };
    for config in &configs()[..2] {
        let home = domain(64);
        let engine = engine(*config, 4, vec![worker(&home), worker(&home)]);
        let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
        let pending = submit(&engine, &loaded, &first, &tensors).unwrap();
        engine.grow(pending.handle, second.clone(), tensors.clone());
        let answer = pending.wait();
        assert_eq!(answer.outcome, Outcome::Finished);
        let delivered = |chain: u32| answer.values.iter().filter(move |(at, _)| at.0 == chain).map(|(at, row)| (at.3, row));
        assert_eq!(delivered(2).count(), 3);
        assert!(delivered(0).eq(delivered(2)), "{config:?}: {answer:?}");
        let rows = engine.counters().rows.load(Ordering::Relaxed);
        assert!(rows < u64::from(STEPS), "{config:?}: {rows} nodes were run, those of the chain that was cancelled among them");
    }
}
