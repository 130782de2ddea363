//! What runs ahead of what it waits for, or is looked up, beside stops, refusals, cancellations, sessions and other workers: nothing of it shows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellTypeId, LaneId, Refused, Stopped};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Deliveries, Driver, Placed, growth_of, independent};

/// Rows of the table of tokens.
const TOKENS: u64 = 11;
/// The token that ends a chain.
const END: i64 = 3;
/// A token that is in no table.
const UNKNOWN: i64 = 99;
/// Requests of a run.
const REQUESTS: usize = 18;
const CELL: CellTypeId = CellTypeId(0);

/// h' = tanh(e(token)·w + x·v + h·u), until the token is [`END`]: inputs token, the same to be compared, x, h; outputs h, stop.
fn cell(precision: Precision) -> Arc<TypedCell> {
    let weight = |name: &str, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed));
    Draft::new("until the end")
        .known("token", Datatype::Int64, &[])
        .known("word", Datatype::Int64, &[])
        .known("x", Datatype::Fp32, &[9])
        .input("h", Datatype::Fp32, &[33])
        .weight(weight("e", &[TOKENS as usize, 12], 1))
        .weight(weight("w", &[12, 33], 2))
        .weight(weight("v", &[9, 33], 3))
        .weight(weight("u", &[33, 33], 4))
        .weight(Tensor::from_i64("end", &[], &[END]))
        .operator("Gather", &["e", "token"], &["embedded"])
        .operator("MatMul", &["embedded", "w"], &["of_token"])
        .operator("MatMul", &["x", "v"], &["of_x"])
        .operator("MatMul", &["h", "u"], &["of_h"])
        .operator("Add", &["of_h", "of_x"], &["part"])
        .operator("Add", &["part", "of_token"], &["sum"])
        .operator("Tanh", &["sum"], &["next"])
        .operator("Equal", &["word", "end"], &["stop"])
        .output("next", Datatype::Fp32, &[33])
        .output("stop", Datatype::Bool, &[])
        .at(precision)
        .resolve()
}

fn random(name: &str, shape: &[usize], rng: &mut Rng) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.5).collect();
    Tensor::from_f32(name, shape, &values)
}

/// What a worker does with what it can compute before the state is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Leave,
    Ahead,
    Table,
}

fn domain(way: Way) -> Arc<CpuDomain> {
    let (table_bytes, ahead_weights_least) = match way {
        Way::Leave => (0, u64::MAX),
        Way::Ahead => (0, 0),
        Way::Table => (1 << 20, u64::MAX),
    };
    let (table_bytes, ahead_weights_least) = (Some(table_bytes), Some(ahead_weights_least));
    CpuDomain::new(DomainOptions { arena_bytes: Some(16 << 20), table_bytes, ahead_weights_least, ..DomainOptions::default() })
        .expect("16 MiB are there")
}

fn driver(domain: &Arc<CpuDomain>, threads: usize, cell: &Arc<TypedCell>) -> Driver {
    let worker = CpuWorker::new(domain.clone(), CpuOptions { threads, ..CpuOptions::default() }).expect("threads start");
    Driver::new(Box::new(worker), std::slice::from_ref(cell))
}

/// A chain over those tokens, whose state begins there, and the rows of x for it.
fn chain(tokens: &[i64], begin: Source, rng: &mut Rng) -> (UnfoldedChain, Arc<Tensor>) {
    let at = cellwright_cell_graph::graph::Affine::EVERY;
    let sources = vec![Source::Ints(tokens.to_vec()), Source::Ints(tokens.to_vec()), Source::Rows { tensor: 0, at }, begin];
    let mut chain = independent(0, 2, sources, tokens.len() as u32);
    chain.sequential = true;
    chain.stop = tokens.contains(&END).then_some((0, 1));
    chain.stages[0].inputs[3].feedback = Some((0, 0));
    chain.stages[0].retention = Retention::Double;
    (chain, Arc::new(random("x", &[tokens.len(), 9], rng)))
}

/// Up to forty tokens. Most chains end before the last, and what follows is in no table; some ask for such a token before they end.
fn tokens(rng: &mut Rng) -> Vec<i64> {
    let mut tokens: Vec<i64> = (0..rng.between(4, 40)).map(|_| rng.between(4, TOKENS as u32 - 1).into()).collect();
    let any = |rng: &mut Rng| rng.below(tokens.len() as u64) as usize;
    let (end, bad) = (any(rng), any(rng));
    if !rng.one_in(4) {
        tokens[end] = END;
        tokens[end + 1..].fill(UNKNOWN);
    }
    if rng.one_in(5) {
        tokens[bad] = UNKNOWN;
    }
    tokens
}

/// All that is told of a run.
#[derive(Debug, Default, PartialEq)]
struct Told {
    delivered: Deliveries,
    stopped: Vec<Stopped>,
    refused: Vec<Refused>,
}

/// Requests, and then what follows in their sessions, in tasks of so many rows and steps at most, also beyond where chains stop.
fn told(driver: &mut Driver, (rows_most, steps_most): (u32, u32), rng: &mut Rng) -> Told {
    let (mut told, mut own) = (Told::default(), Rng::new(7));
    let mut requests: Vec<Vec<Placed>> = vec![Vec::new(); REQUESTS];
    for chunk in 0..2 {
        let mut left: Vec<(LaneId, u32, u32)> = Vec::new();
        for request in &mut requests {
            let tokens = tokens(&mut own);
            let begin = if chunk == 0 { Source::Zeros } else { Source::Last { chain: 0, stage: 0, output: 0 } };
            let (chain, x) = chain(&tokens, begin, &mut own);
            let mut growth = growth_of(vec![chain]);
            growth.first_chain = chunk;
            let placed = driver.place(Arc::new(growth), &[x], 0, request);
            left.push((placed.lanes[0][0], 0, tokens.len() as u32));
            request.push(placed);
        }
        while !left.is_empty() {
            for at in (1..left.len()).rev() {
                left.swap(at, rng.below(at as u64 + 1) as usize);
            }
            let rows = left.len().min(rng.between(1, rows_most) as usize);
            let steps = rng.between(1, steps_most);
            let lanes: Vec<_> = left[..rows].iter().map(|(lane, step, _)| (*lane, *step)).collect();
            let completed = driver.task(CELL, &lanes, steps);
            told.stopped.extend(&completed.stopped);
            told.refused.extend(completed.refused.iter().cloned());
            left[..rows].iter_mut().for_each(|(_, step, _)| *step += steps);
            left.retain(|(_, step, bound)| step < bound);
        }
    }
    told.delivered = std::mem::take(&mut driver.delivered);
    told.stopped.sort_by_key(|stopped| (stopped.lane, stopped.step));
    told.refused.sort_by_key(|refused| (refused.lane, refused.step));
    told
}

#[test]
fn stops_refusals_and_sessions_are_those_of_single_steps() {
    for precision in Precision::ALL {
        let cell = cell(precision);
        let mut rng = Rng::new(11);
        let expected = told(&mut driver(&domain(Way::Leave), 1, &cell), (1, 1), &mut rng);
        assert!(expected.stopped.len() > REQUESTS && expected.refused.len() > 2, "chains stop, and some are refused");
        for way in [Way::Leave, Way::Ahead, Way::Table] {
            for (threads, most) in [(1, (1, 50)), (1, (5, 9)), (2, (18, 4)), (3, (3, 21))] {
                let mut driver = driver(&domain(way), threads, &cell);
                assert_eq!(driver.backend.table(CELL).is_some(), way == Way::Table);
                let got = told(&mut driver, most, &mut rng);
                assert!(got == expected, "{precision}, {way:?}, {threads} threads, tasks of up to {most:?} rows and steps");
            }
        }
    }
}

/// Of a chain that cannot stop, tokens of later steps fill the table with the first one; what is wrong with them is told when they run.
#[test]
fn a_table_is_filled_for_later_steps_as_soon_as_one_token_is_missing() {
    let cell = cell(Precision::F32);
    let step = |driver: &mut Driver, lane: LaneId, step: u32| {
        let refused = driver.task(CELL, &[(lane, step)], 1).refused.len();
        let table = driver.backend.table(CELL).expect("it has one");
        (refused, table.filled.load(Ordering::Relaxed))
    };
    let place = |driver: &mut Driver, tokens: &[i64]| {
        let (chain, x) = chain(tokens, Source::Zeros, &mut Rng::new(21));
        driver.place(Arc::new(growth_of(vec![chain])), &[x], 0, &[]).lanes[0][0]
    };
    let mut driver = driver(&domain(Way::Table), 1, &cell);
    let first = place(&mut driver, &[4, 5, 4, UNKNOWN, 6, 5, 7]);
    assert_eq!(step(&mut driver, first, 0), (0, 4), "each once, without what no token is");
    // It may end with any step: what follows is not computed in vain.
    let stops = place(&mut driver, &[8, 9, END]);
    assert_eq!(step(&mut driver, stops, 0), (0, 5));
    assert_eq!([1, 2].map(|at| step(&mut driver, first, at)), [(0, 5); 2]);
    assert_eq!(step(&mut driver, first, 3), (1, 5), "refused at its step");
    // There is nothing to compute for this one, so that nothing is looked for.
    let known = place(&mut driver, &[7, 10]);
    assert_eq!(step(&mut driver, known, 0), (0, 5));
    assert_eq!(step(&mut driver, known, 1), (0, 6));
}

/// A request that ends while a task of many steps of it is run: others do not notice, and what had come of it is right.
#[test]
fn a_request_that_ends_in_the_middle_of_a_task_leaves_the_others_alone() {
    let cell = cell(Precision::F32);
    let steps = 40;
    let place = |driver: &mut Driver| {
        let mut rng = Rng::new(21);
        let mut bad = vec![5; steps];
        bad[5] = UNKNOWN;
        let [first, other] = [vec![4; steps], vec![6; steps]].map(|tokens| chain(&tokens, Source::Zeros, &mut rng));
        // The second chain of the first request asks for a token that there is not, which ends them both.
        let second = chain(&bad, Source::Zeros, &mut rng).0;
        let one = driver.place(Arc::new(growth_of(vec![first.0, second])), &[first.1], 0, &[]);
        let other = driver.place(Arc::new(growth_of(vec![other.0])), &[other.1], 0, &[]);
        [one, other]
    };
    let alone = {
        let mut driver = driver(&domain(Way::Leave), 1, &cell);
        let [one, other] = place(&mut driver);
        for lane in [one.lanes[0][0], other.lanes[0][0]] {
            (0..steps as u32).for_each(|step| drop(driver.task(CELL, &[(lane, step)], 1)));
        }
        driver.delivered
    };
    for way in [Way::Leave, Way::Ahead, Way::Table] {
        let mut driver = driver(&domain(way), 1, &cell);
        let [one, other] = place(&mut driver);
        let lanes = [one.lanes[0][0], one.lanes[1][0], other.lanes[0][0]];
        let completed = driver.task(CELL, &lanes.map(|lane| (lane, 0)), steps as u32);
        let refused: Vec<_> = completed.refused.iter().map(|refused| (refused.lane, refused.step)).collect();
        assert_eq!(refused, [(lanes[1], 5)], "{way:?}");
        assert!(one.growth.flags.dead.load(Ordering::Acquire) && !other.growth.flags.dead.load(Ordering::Acquire));
        let of = |lane: LaneId, delivered: &Deliveries| delivered.range((lane, 0, 0)..=(lane, u32::MAX, u32::MAX)).count();
        assert_eq!(of(lanes[2], &driver.delivered), 2 * steps, "{way:?}: the other goes on to its end");
        assert!((10..=12).contains(&of(lanes[0], &driver.delivered)), "{way:?}: nothing is computed for a request that has ended");
        let untouched = |(at, bytes): (&(LaneId, u32, u32), &Vec<u8>)| at.0 == lanes[1] || alone.get(at) == Some(bytes);
        assert!(driver.delivered.iter().all(untouched), "{way:?}");
    }
}

/// Cancelling is a flag that is raised at any time.
#[test]
fn a_request_that_is_cancelled_while_its_task_runs_leaves_the_others_alone() {
    let cell = cell(Precision::F32);
    let steps = 2000;
    let run = |way: Way, cancelled_after: Option<u32>| {
        let mut driver = driver(&domain(way), 1, &cell);
        let mut rng = Rng::new(22);
        let chains = [7, 8].map(|token| chain(&vec![token; steps], Source::Zeros, &mut rng));
        let placed = chains.map(|(chain, x)| driver.place(Arc::new(growth_of(vec![chain])), &[x], 0, &[]));
        let lanes = [0, 1].map(|request: usize| placed[request].lanes[0][0]);
        let task = driver.prepare(CELL, &lanes.map(|lane| (lane, 0)), steps as u32);
        driver.submit(task);
        std::thread::scope(|scope| {
            if let Some(turns) = cancelled_after {
                let flags = &placed[0].growth.flags;
                scope.spawn(move || {
                    (0..turns).for_each(|_| std::hint::spin_loop());
                    flags.dead.store(true, Ordering::Release);
                });
            }
            let completed = driver.complete();
            assert!(completed.refused.is_empty());
        });
        (lanes, driver.delivered)
    };
    let (_, expected) = run(Way::Leave, None);
    // Sooner or later: one of these is in the middle of the task, wherever that is.
    let turns = [0, 8, 10, 12, 13, 14, 15, 16, 17, 18].map(|power| 1 << power);
    for (way, turns) in [Way::Leave, Way::Ahead, Way::Table].into_iter().flat_map(|way| turns.map(|turns| (way, turns))) {
        let (lanes, got) = run(way, Some(turns));
        assert!(got.iter().all(|(at, bytes)| expected.get(at) == Some(bytes)), "{way:?}: what was delivered is right");
        let steps_of = |lane: LaneId| got.range((lane, 0, 0)..=(lane, 0, u32::MAX)).map(|((.., step), _)| *step).collect::<Vec<_>>();
        assert!(steps_of(lanes[0]).into_iter().eq(0..steps_of(lanes[0]).len() as u32), "{way:?}: up to some step, and none beyond");
        assert_eq!(steps_of(lanes[1]).len(), steps, "{way:?}");
    }
}

/// Workers of one domain fill one table and run at the same time.
#[test]
fn workers_beside_one_another_give_what_one_gives_alone() {
    let cell = cell(Precision::F32);
    let expected = told(&mut driver(&domain(Way::Leave), 1, &cell), (1, 1), &mut Rng::new(31));
    for way in [Way::Leave, Way::Ahead, Way::Table] {
        let domain = domain(way);
        let drivers: Vec<Driver> = (0..3)
            .map(|worker| {
                let mut driver = driver(&domain, 1, &cell);
                // Each in slots of its own.
                driver.slots(worker * 4096);
                driver
            })
            .collect();
        std::thread::scope(|scope| {
            let run = |(worker, mut driver): (usize, Driver)| {
                let (cell, expected) = (&cell, &expected);
                scope.spawn(move || {
                    for round in 0..3 {
                        let got = told(&mut driver, (6, 8), &mut Rng::new(32 + 10 * round + worker as u64));
                        // Requests of a round have lanes behind those of the rounds before.
                        let own = |lane: LaneId| LaneId(lane.0 - round as u32 * 2 * REQUESTS as u32);
                        let told = Told {
                            delivered: got
                                .delivered
                                .into_iter()
                                .map(|((lane, output, step), of)| ((own(lane), output, step), of))
                                .collect(),
                            stopped: got.stopped.into_iter().map(|of| Stopped { lane: own(of.lane), ..of }).collect(),
                            refused: got.refused.into_iter().map(|of| Refused { lane: own(of.lane), ..of }).collect(),
                        };
                        assert!(told == *expected, "`{}`, {way:?}, worker {worker}, round {round}", cell.name);
                    }
                })
            };
            let workers: Vec<_> = drivers.into_iter().enumerate().map(run).collect();
            workers.into_iter().for_each(|worker| worker.join().expect("it gives the same"));
        });
    }
}
