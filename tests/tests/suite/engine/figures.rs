//! Figures: what is counted of cell types, models and requests adds up, and how the engine stands can be seen at any time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellwright_backend::Backend;
use cellwright_cell_graph::generate;
use cellwright_engine::{Engine, EngineOptions, LoadedCell, ModelCounts, ModelError, Snapshot};
use cellwright_scheduler::Config;
use cellwright_tests::devices::{Fuse, Gate, domain, worker};
use cellwright_tests::graphs::{Case, Outcome, Pending, spec};

use super::engine;

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// An engine and a gate before its workers, which opens before the engine goes.
fn gated(in_flight_max: u32, workers: impl FnOnce(&Gate) -> Vec<Box<dyn Backend>>) -> (Engine, Gate) {
    let gate = Gate::default();
    (engine(Config::default(), in_flight_max, workers(&gate)), gate)
}

/// Waits until the engine stands so.
fn until(engine: &Engine, what: &str, so: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let start = Instant::now();
    loop {
        let snapshot = engine.snapshot();
        if so(&snapshot) {
            return snapshot;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {snapshot:?}");
        std::thread::yield_now();
    }
}

#[test]
fn what_models_and_cell_types_had_adds_up() {
    let model = generate::model(41);
    let cases = Case::mixed(&model, 200, 41);
    let home = domain(64);
    let engine = engine(Config::default(), 1 << 10, vec![worker(&home), worker(&home)]);
    // Two models of one tenant share their types.
    let models = [engine.load(&spec(&model, 0, 8)).unwrap(), engine.load(&spec(&model, 0, 8)).unwrap()];
    let counts = |n: usize| models[n].counters.counts();
    cases.iter().take(20).map(|case| case.submit(&engine, &models[0])).for_each(|pending| drop(pending.wait()));
    while read(&engine.counters().in_flight) > 0 {
        std::thread::yield_now();
    }
    let alone = counts(0);
    assert!(alone.tasks() > 0);
    assert_eq!(
        (alone.tasks(), counts(1)),
        (read(&engine.counters().tasks), ModelCounts::default()),
        "tasks are not a model's that has no rows in them"
    );
    let pending: Vec<Pending> = cases.iter().enumerate().map(|(n, case)| case.submit(&engine, &models[n % 2])).collect();
    pending.iter().for_each(|pending| drop(pending.wait()));
    // Nothing of them is in flight any more once they are unloaded.
    models.iter().for_each(|model| engine.unload(model));
    let types: BTreeMap<_, &LoadedCell> = models.iter().flat_map(|model| &model.cells).map(|cell| (cell.cell_type, cell)).collect();
    let sum = |of: fn(&LoadedCell) -> u64| types.values().map(|cell| of(cell)).sum::<u64>();
    let all = engine.counters();
    assert_eq!(sum(|cell| read(&cell.counters.tasks)), read(&all.tasks));
    assert_eq!(sum(|cell| read(&cell.counters.rows)), read(&all.rows));
    assert_eq!(sum(|cell| read(&cell.counters.busy_ns)), read(&all.busy_ns));
    assert_eq!(sum(|cell| cell.counters.batches.iter().map(read).sum()), read(&all.tasks));
    assert_eq!(sum(|cell| cell.counters.batches[4..].iter().map(read).sum()), 0, "no batch is larger than 8");
    assert!(sum(|cell| cell.counters.batches[3..].iter().map(read).sum()) > 0, "some batches are full");
    let tasks = [counts(0).since(alone).tasks(), counts(1).tasks()];
    let together = read(&all.tasks) - alone.tasks();
    assert!(tasks.iter().all(|own| *own <= together), "{tasks:?} of {together} tasks: none is counted twice");
    assert!(tasks[0] + tasks[1] > together, "{tasks:?} of {together} tasks: some have rows of both");
    let device_ns = |n: usize| counts(n).device_ns;
    let (charged, busy) = (device_ns(0) + device_ns(1), read(&all.busy_ns));
    // Each share is rounded down.
    assert!(charged <= busy && charged + read(&all.rows) >= busy, "{charged} of {busy} ns");
    assert!([counts(0).since(alone).device_ns, device_ns(1)].iter().all(|own| *own > 0), "each had a share");
}

#[test]
fn a_request_knows_how_long_it_waited_and_in_what_company_it_ran() {
    let model = generate::model(42);
    let cases: Vec<Case> = Case::mixed(&model, 100, 42).into_iter().filter(|case| case.wanted.is_some()).take(40).collect();
    let (engine, gate) = gated(1 << 10, |gate| vec![gate.before(worker(&domain(64)))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    let lone = cases[0].submit(&engine, &loaded).wait_times();
    assert!(lone.submitted <= lone.first_task.unwrap() && lone.first_task.unwrap() <= lone.finished);
    assert_eq!(lone.waited() + lone.ran(), lone.finished - lone.submitted);
    gate.close();
    let pending: Vec<Pending> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
    until(&engine, "nothing was handed over", |snapshot| snapshot.workers[0].outstanding > 0);
    let opened = Instant::now();
    gate.open();
    let times: Vec<_> = pending.iter().map(Pending::wait_times).collect();
    assert!(times.iter().all(|times| times.joins > 0 && (1..=8).contains(&times.batch_max)));
    assert!(times.iter().all(|times| times.batch_mean() >= 1.0 && times.batch_mean() <= f64::from(times.batch_max)));
    assert!(times.iter().any(|times| times.batch_max == 8), "they ran together");
    assert!(times.iter().all(|times| times.finished >= opened), "nobody ends behind the gate");
    assert!(times.iter().any(|times| times.first_task.unwrap() > opened), "not all can be handed over at once");
}

#[test]
fn who_is_cancelled_while_waiting_had_no_task() {
    let model = generate::model(42);
    let case = Case::mixed(&model, 100, 42).into_iter().find(|case| case.wanted.is_some()).unwrap();
    let (engine, gate) = gated(1 << 12, |gate| vec![gate.before(worker(&domain(64)))]);
    let loaded = engine.load(&spec(&model, 0, 2)).unwrap();
    gate.close();
    let pending: Vec<Pending> = (0..1000).map(|_| case.submit(&engine, &loaded)).collect();
    until(&engine, "nothing was handed over", |snapshot| snapshot.workers[0].outstanding > 0);
    let last = pending.last().unwrap();
    engine.cancel(last.handle);
    let times = last.wait_times();
    assert_eq!((times.first_task, times.joins, times.ran()), (None, 0, Duration::ZERO));
    assert_eq!(times.waited(), times.finished - times.submitted);
}

#[test]
fn how_the_engine_stands_can_be_seen_while_it_is_held_up() {
    let model = generate::model(43);
    let cases: Vec<Case> = Case::mixed(&model, 400, 43).into_iter().filter(|case| case.wanted.is_some()).collect();
    let (fuse, homes) = (Fuse::new(false), [domain(1), domain(1)]);
    let (engine, gate) = gated(1 << 12, |gate| vec![gate.before(worker(&homes[0])), fuse.on(worker(&homes[1]))]);
    let idle = engine.snapshot();
    assert_eq!(idle.domains.iter().map(|domain| (domain.slots_used, domain.slots > 0)).collect::<Vec<_>>(), [(0, true); 2]);
    assert_ne!(idle.domains[0].name, idle.domains[1].name);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    // The second device goes with its first task; from then on there is the gate alone.
    fuse.light(0);
    gate.close();
    let mut pending: Vec<Pending> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
    until(&engine, "the second device is lost", |snapshot| !snapshot.workers[1].up && snapshot.workers[0].up);
    let full = |snapshot: &Snapshot| snapshot.waiting > 0 && snapshot.workers[0].outstanding > 0;
    let start = Instant::now();
    while !full(&engine.snapshot()) {
        assert!(start.elapsed() < Duration::from_secs(60), "memory never runs out: {:?}", engine.snapshot());
        pending.extend(cases.iter().take(50).filter_map(|case| case.try_submit(&engine, &loaded).ok()));
    }
    let held = engine.snapshot();
    assert!(held.domains[0].slots_used > held.domains[0].slots / 2 && held.domains[0].slots_used <= held.domains[0].slots, "{held:?}");
    gate.open();
    let lost = pending.iter().filter(|pending| pending.wait().outcome != Outcome::Finished).count();
    assert!(lost < pending.len());
    until(&engine, "something is left over", |snapshot| {
        let used = snapshot.domains.iter().map(|domain| domain.slots_used).sum::<u32>();
        (snapshot.waiting, used, snapshot.workers[0].outstanding) == (0, 0, 0)
    });
}

/// Weights are counted once for all models that share them, and no more are loaded than allowed.
#[test]
fn weights_are_bounded() {
    let (one, other) = (generate::model(44), generate::model(45));
    let start = |weight_bytes_max| {
        let options = EngineOptions { weight_bytes_max, batch_max: 8, task_time_max: Duration::ZERO, ..EngineOptions::default() };
        Engine::start(options, vec![worker(&domain(8))]).unwrap()
    };
    let roomy = start(None);
    let bytes = [&one, &other].map(|model| roomy.load(&spec(model, 0, 8)).unwrap().weight_bytes());
    assert!(bytes[0] > 1 && bytes[1] > 0, "{bytes:?}");
    assert_eq!(roomy.snapshot().weight_bytes, bytes[0] + bytes[1]);
    assert!(roomy.snapshot().weight_bytes_max > 1 << 20, "half of the machine's memory");

    let engine = start(Some(bytes[0] + bytes[1] - 1));
    let models = [engine.load(&spec(&one, 0, 8)).unwrap(), engine.load(&spec(&one, 0, 4)).unwrap()];
    assert_eq!(engine.snapshot().weight_bytes, bytes[0], "both have the same");
    let refused = engine.load(&spec(&other, 0, 8)).unwrap_err();
    assert!(matches!(refused, ModelError::Weights { needed, held } if held >= bytes[0] && needed <= bytes[1]), "{refused:?}");
    assert_eq!(engine.snapshot().weight_bytes, bytes[0], "nothing of it is left");
    engine.unload(&models[0]);
    assert_eq!(engine.snapshot().weight_bytes, bytes[0], "one of them is still there");
    engine.unload(&models[1]);
    assert_eq!(engine.snapshot().weight_bytes, 0);
    engine.load(&spec(&other, 0, 8)).unwrap();
    assert_eq!(engine.snapshot().weight_bytes, bytes[1]);
}
