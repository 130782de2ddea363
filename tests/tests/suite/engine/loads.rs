//! Models come while others are answered.

use std::thread;

use cellwright_cell_graph::generate;
use cellwright_engine::ModelError;
use cellwright_scheduler::Config;
use cellwright_tests::devices::{Doing, Fuse, Gate, domain, worker};
use cellwright_tests::graphs::{Case, spec, wait_until};

use super::engine;

/// Packing weights and compiling kernels may take seconds, in which a worker has others' tasks to run.
#[test]
fn others_are_answered_while_a_model_is_made_ready() {
    let (model, later) = (generate::model(61), generate::model(62));
    let cases = Case::mixed(&model, 20, 61);
    let gate = Gate::default();
    let engine = engine(Config::default(), 1 << 10, vec![gate.before_cells_of(worker(&domain(64)))]);
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
