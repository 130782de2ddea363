//! Devices that go away: what they had fails, the rest goes on.

use cellwright_cell_graph::generate;
use cellwright_engine::{ModelError, RequestFailure};
use cellwright_scheduler::{Config, Graph, PolicyKind, Release};
use cellwright_tests::devices::{Fuse, Gate, domain, worker};
use cellwright_tests::graphs::{Case, Outcome, spec};

use super::engine;

/// How often all requests are made at most until a worker is lost.
const ROUNDS: usize = 100;

const LOST: Outcome = Outcome::Failed(RequestFailure::WorkerLost);

fn configs() -> [Config; 3] {
    let subgraph = Config { release: Release::Subgraph, ..Config::default() };
    let graph = Config { policy: PolicyKind::Graph(Graph { bucket_width: 4, window_ns: 0 }), ..Config::default() };
    [Config::default(), subgraph, graph]
}

/// One of two workers is lost in the middle, whether it says so or panics, and whether they share their memory or not.
#[test]
fn a_lost_worker_takes_only_its_own_with_it() {
    let model = generate::model(31);
    let cases = Case::mixed(&model, 150, 31);
    for (config, panics, domains) in configs().into_iter().flat_map(|config| [(config, false, 1), (config, true, 2), (config, false, 2)]) {
        let what = format!("{config:?}, panics: {panics}, {domains} domain(s)");
        let homes = [domain(64), domain(64)];
        let fuse = Fuse::new(panics);
        let engine = engine(config, 1 << 10, vec![fuse.on(worker(&homes[0])), worker(&homes[domains - 1])]);
        let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
        fuse.light(10);
        let mut lost = 0;
        // Beside one that is much quicker a worker may have had too few tasks by then; it will have had them in the end.
        for _ in 0..ROUNDS {
            let pending: Vec<_> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
            for (number, (case, pending)) in cases.iter().zip(&pending).enumerate() {
                let answer = pending.wait();
                if answer.outcome == LOST {
                    lost += 1;
                } else {
                    case.check(&answer).unwrap_or_else(|wrong| panic!("{what}, request {number}: {wrong}"));
                }
            }
            if lost > 0 {
                break;
            }
        }
        assert!(lost > 0 && lost < cases.len(), "{what}: {lost} requests were lost");
        // Everything runs on the other one now, models loaded from now on too.
        let later = generate::model(32);
        let later_cases = Case::mixed(&later, 30, 32);
        let later = engine.load(&spec(&later, 0, 8)).unwrap();
        let runs = cases.iter().map(|case| (case, case.submit(&engine, &loaded)));
        let later_runs = later_cases.iter().map(|case| (case, case.submit(&engine, &later)));
        let runs: Vec<_> = runs.chain(later_runs).collect();
        for (case, pending) in runs {
            case.check(&pending.wait()).unwrap_or_else(|wrong| panic!("{what}, after the loss: {wrong}"));
        }
    }
}

#[test]
fn without_workers_requests_and_models_are_refused() {
    let model = generate::model(33);
    let cases = Case::mixed(&model, 60, 33);
    let (home, fuse) = (domain(64), Fuse::new(false));
    let engine = engine(Config::default(), 1 << 10, vec![fuse.on(worker(&home)), fuse.on(worker(&home))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    fuse.light(10);
    let pending: Vec<_> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
    for (case, pending) in cases.iter().zip(&pending) {
        let answer = pending.wait();
        if !matches!(answer.outcome, LOST | Outcome::Failed(RequestFailure::NoWorker)) {
            case.check(&answer).unwrap();
        }
    }
    let refused = loop {
        let answer = cases[0].submit(&engine, &loaded).wait();
        if answer.outcome != LOST {
            break answer;
        }
    };
    assert_eq!(refused.outcome, Outcome::Failed(RequestFailure::NoWorker));
    let failed = engine.load(&spec(&generate::model(34), 0, 8));
    assert!(matches!(failed, Err(ModelError::WorkerLost(_))), "{failed:?}");
    engine.unload(&loaded);
}

/// Who asks a worker something just before it is lost hears that it is, rather than nothing for ever.
#[test]
fn what_a_lost_worker_was_asked_is_refused() {
    for panics in [false, true] {
        let model = generate::model(35);
        let cases = Case::mixed(&model, 3, 35);
        let (home, fuse, gate) = (domain(64), Fuse::new(panics), Gate::default());
        let engine = engine(Config::default(), 1 << 10, vec![gate.before(fuse.on(worker(&home)))]);
        let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
        gate.close();
        fuse.light(0);
        let pending: Vec<_> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
        while !gate.holds_somebody() {
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            let gate = gate;
            let loading = scope.spawn(|| engine.load(&spec(&generate::model(36), 0, 8)));
            // Long enough for the question to lie in the worker's line; if it is not there yet, it comes to a worker that is gone.
            std::thread::sleep(std::time::Duration::from_millis(50));
            gate.open();
            let failed = loading.join().unwrap();
            assert!(matches!(failed, Err(ModelError::WorkerLost(_))), "panics: {panics}: {failed:?}");
        });
        for pending in &pending {
            assert_eq!(pending.wait().outcome, LOST);
        }
        engine.unload(&loaded);
    }
}
