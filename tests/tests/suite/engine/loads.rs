//! Models come while others are answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate;
use cellwright_engine::{Engine, EngineOptions, ModelError};
use cellwright_scheduler::Config;
use cellwright_tests::devices::{Doing, Fuse, Gate, Stopwatch, domain, worker};
use cellwright_tests::graphs::{Case, spec, wait_until};

use super::engine;

/// Packing weights and compiling kernels may take seconds, in which a worker has others' tasks to run.
#[test]
fn others_are_answered_while_a_model_is_made_ready() {
    let (model, later) = (generate::model(61), generate::model(62));
    let cases = Case::mixed(&model, 20, 61);
    let gate = Gate::default();
    let engine = engine(Config::default(), 1 << 10, vec![gate.before_cells(|_| true, worker(&domain(64)))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    gate.close();
    thread::scope(|scope| {
        // Which opens when anything here fails.
        let gate = gate;
        let loading = scope.spawn(|| engine.load(&spec(&later, 0, 8)));
        wait_until("a cell of the later model is being made ready", || gate.holds_somebody());
        for (number, case) in cases.iter().enumerate() {
            case.check(&case.submit(&engine, &loaded).wait()).unwrap_or_else(|wrong| panic!("request {number}: {wrong}"));
        }
        assert!(!loading.is_finished());
        gate.open();
        let loaded = loading.join().unwrap().unwrap();
        for case in Case::mixed(&later, 20, 62) {
            case.check(&case.submit(&engine, &loaded).wait()).unwrap();
        }
    });
}

#[test]
fn a_panic_while_a_cell_is_made_ready_ends_its_load_alone() {
    let (model, later) = (generate::model(63), generate::model(64));
    let cases = Case::mixed(&model, 20, 63);
    let fuse = Fuse::at(Doing::Preparing, true);
    let engine = engine(Config::default(), 1 << 10, vec![fuse.on(worker(&domain(64)))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    // The second of its cells.
    fuse.light(1);
    let error = engine.load(&spec(&later, 0, 8)).unwrap_err();
    assert!(matches!(&error, ModelError::Panicked { cell, .. } if *cell == later.cells[1].name), "{error}");
    fuse.light(u32::MAX);
    let later_loaded = engine.load(&spec(&later, 0, 8)).unwrap();
    let later_cases = Case::mixed(&later, 20, 64);
    for (case, loaded) in cases.iter().map(|case| (case, &loaded)).chain(later_cases.iter().map(|case| (case, &later_loaded))) {
        case.check(&case.submit(&engine, loaded).wait()).unwrap();
    }
}

/// A worker before whose gate the cells of that model wait, but for those without weights, which other models have too.
fn holding(gate: &Gate, model: &Model) -> Box<dyn Backend> {
    let held: Vec<_> = model.cells.iter().filter(|cell| cell.weight_bytes > 0).map(|cell| cell.key).collect();
    gate.before_cells(move |cell| held.contains(&cell.key), worker(&domain(64)))
}

/// Loads waited for one another, and a rollback for all of them.
#[test]
fn a_load_holds_up_no_other_and_no_unload() {
    let (slow, quick) = (generate::model(65), generate::model(66));
    let cases = Case::mixed(&quick, 5, 66);
    let gate = Gate::default();
    let engine = engine(Config::default(), 1 << 10, vec![holding(&gate, &slow)]);
    gate.close();
    thread::scope(|scope| {
        // Which opens when anything here fails.
        let gate = gate;
        let loading = scope.spawn(|| engine.load(&spec(&slow, 0, 8)));
        wait_until("a cell of the slow model is being made ready", || gate.holds_somebody());
        // Of its own tenant, too.
        let others = [0, 1].map(|tenant| {
            let (engine, quick, cases) = (&engine, &quick, &cases);
            scope.spawn(move || {
                for _ in 0..3 {
                    let loaded = engine.load(&spec(quick, tenant, 8)).unwrap();
                    cases.iter().for_each(|case| case.check(&case.submit(engine, &loaded).wait()).unwrap());
                    engine.unload(&loaded);
                }
            })
        });
        wait_until("other models have come and gone", || others.iter().all(thread::ScopedJoinHandle::is_finished));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(!loading.is_finished());
        gate.open();
        engine.unload(&loading.join().unwrap().unwrap());
    });
    assert_eq!(engine.snapshot().weight_bytes, 0);
}

#[test]
fn equal_cells_are_made_ready_once_however_many_load_them_at_once() {
    let model = generate::model(67);
    let cases = Case::mixed(&model, 5, 67);
    let (gate, unwanted) = (Gate::default(), AtomicBool::new(false));
    let watch = Stopwatch::saying(Duration::from_micros(10));
    let engine = engine(Config::default(), 1 << 10, vec![gate.before_cells(|_| true, watch.on(worker(&domain(64))))]);
    gate.close();
    thread::scope(|scope| {
        let gate = gate;
        let first = scope.spawn(|| engine.load(&spec(&model, 0, 8)).unwrap());
        wait_until("a cell is being made ready", || gate.holds_somebody());
        let second = scope.spawn(|| engine.load(&spec(&model, 0, 8)).unwrap());
        let third = scope.spawn(|| engine.load_unless(&spec(&model, 0, 8), &|| unwanted.load(Ordering::Acquire)));
        unwanted.store(true, Ordering::Release);
        wait_until("nobody waits for the third", || third.is_finished());
        assert!(matches!(third.join().unwrap(), Err(ModelError::Cancelled(_))));
        gate.open();
        let loaded = [first, second].map(|load| load.join().unwrap());
        let types = |of: usize| loaded[of].cells.iter().map(|cell| cell.cell_type).collect::<Vec<_>>();
        assert_eq!(types(0), types(1));
        let (asked, again) = (watch.asked(), engine.load(&spec(&model, 0, 8)).unwrap());
        assert_eq!(watch.asked(), asked, "it is known");
        loaded.iter().for_each(|loaded| engine.unload(loaded));
        cases.iter().for_each(|case| case.check(&case.submit(&engine, &again).wait()).unwrap());
        engine.unload(&again);
    });
    assert_eq!(engine.snapshot().weight_bytes, 0);
}

#[test]
fn a_load_ends_when_nobody_wants_it_any_more() {
    let model = generate::model(70);
    let watch = Stopwatch::saying(Duration::from_micros(10));
    let engine = engine(Config::default(), 1 << 10, vec![watch.on(worker(&domain(64)))]);
    for batches in [0, 1, 7, 40] {
        let end = watch.asked() + batches;
        let error = engine.load_unless(&spec(&model, 0, 8), &|| watch.asked() >= end).unwrap_err();
        assert!(matches!(error, ModelError::Cancelled(_)), "{error}");
        assert_eq!((watch.asked(), engine.snapshot().weight_bytes), (end, 0));
    }
    engine.load(&spec(&model, 0, 8)).unwrap();
}

/// Two paused tasks of a worker hold their working memory.
#[test]
fn a_cell_that_runs_in_slices_counts_the_memory_of_its_tasks() {
    let model = generate::model(72);
    let held = |row: Duration, batch_max| {
        let options = EngineOptions { batch_max, task_time_max: Duration::from_secs(1), ..EngineOptions::default() };
        let engine = Engine::start(options, vec![Stopwatch::saying(row).on(worker(&domain(64)))]).unwrap();
        let loaded = engine.load(&spec(&model, 0, batch_max)).unwrap();
        assert_eq!(engine.snapshot().weight_bytes, loaded.weight_bytes());
        loaded.weight_bytes()
    };
    let (short, long) = (Duration::from_micros(10), Duration::from_millis(6));
    let [one, four, seven] = [1, 4, 7].map(|batch_max| held(long, batch_max));
    assert_eq!([1, 4, 7].map(|batch_max| held(short, batch_max)), [one; 3], "a row is counted for every cell");
    assert!(four > one);
    assert_eq!(seven - four, four - one, "each row takes as much");
}

#[test]
fn the_time_to_measure_a_model_is_bounded() {
    let model = generate::model(71);
    // Batches of up to 32 rows, five times each: 315 ms for each cell.
    let watch = Stopwatch::saying(Duration::from_millis(1));
    let of_cells = 315 * u64::try_from(model.cells.len()).unwrap();
    let load = |load_time_max: Duration| {
        let options = EngineOptions { load_time_max, batch_max: 32, ..EngineOptions::default() };
        let engine = Engine::start(options, vec![watch.on(worker(&domain(64)))]).unwrap();
        let error = engine.load(&spec(&model, 0, 8)).map(drop).map_err(|error| error.to_string());
        assert_eq!(error.is_ok(), engine.snapshot().weight_bytes > 0);
        error
    };
    assert_eq!(load(Duration::from_millis(2 * of_cells)), Ok(()));
    let refused = load(Duration::from_millis(of_cells - 1)).unwrap_err();
    let sentence = format!("measuring the cells took more than {} s, which is the limit for one model", (of_cells - 1) as f64 / 1000.0);
    assert!(refused.starts_with(&sentence), "{refused}");
}

/// Whoever unloads models closes all of them first.
#[test]
fn a_model_whose_requests_end_slowly_holds_up_the_unload_of_no_other() {
    let (slow, quick) = (generate::model(74), generate::model(75));
    let case = &Case::mixed(&slow, 1, 74)[0];
    let gate = Gate::default();
    let engine = engine(Config::default(), 1 << 10, vec![gate.before(worker(&domain(64)))]);
    let [slow, quick] = [&slow, &quick].map(|model| engine.load(&spec(model, 0, 8)).unwrap());
    gate.close();
    let request = case.submit(&engine, &slow);
    wait_until("a task of it runs", || gate.holds_somebody());
    let [slow_closed, quick_closed] = [&slow, &quick].map(|model| engine.close_model(model).unwrap());
    thread::scope(|scope| {
        // Which opens when anything here fails.
        let gate = gate;
        let (engine, quick_closed) = (&engine, &quick_closed);
        let forgetting = scope.spawn(move || wait_until("the other has no requests", || engine.forget_if_left(quick_closed)));
        assert!(!engine.forget_if_left(&slow_closed), "its request goes on");
        // Only now may workers forget cells.
        gate.open();
        forgetting.join().unwrap();
    });
    case.check(&request.wait()).unwrap();
    wait_until("its request has ended", || engine.forget_if_left(&slow_closed));
    assert_eq!(engine.snapshot().weight_bytes, 0);
    assert!(engine.close_model(&slow).is_none(), "it is not loaded");
}

/// A row that is not done in time is given up, and others are answered between its slices.
#[test]
fn a_row_that_never_ends_holds_up_nobody() {
    let (model, later) = (generate::model(72), generate::model(73));
    let cases = Case::mixed(&model, 5, 72);
    let watch = Stopwatch::saying(Duration::from_micros(10)).after(Duration::from_micros(100));
    let options = EngineOptions { batch_max: 4, row_time_max: Duration::from_secs(3600), ..EngineOptions::default() };
    let engine = Engine::start(options, vec![watch.on(worker(&domain(64)))]).unwrap();
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    watch.never_end();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let loading = scope.spawn(|| engine.load_unless(&spec(&later, 1, 8), &|| is_over.load(Ordering::Acquire)));
        let begun = watch.asked() + 3;
        wait_until("a row is tried", || watch.asked() >= begun);
        cases.iter().for_each(|case| case.check(&case.submit(&engine, &loaded).wait()).unwrap());
        assert!(!loading.is_finished());
        is_over.store(true, Ordering::Release);
        assert!(matches!(loading.join().unwrap(), Err(ModelError::Cancelled(_))));
    });
    let bound = Duration::from_millis(2);
    let options = EngineOptions { row_time_max: bound, task_time_max: bound, ..EngineOptions::default() };
    let engine = Engine::start(options, vec![watch.on(worker(&domain(64)))]).unwrap();
    let asked = watch.asked();
    let error = engine.load(&spec(&later, 0, 8)).unwrap_err();
    assert!(matches!(&error, ModelError::Slow { took, .. } if *took > bound), "{error}");
    assert!(watch.asked() - asked <= 81, "8 ms of slices of at least 0.1 ms");
}
