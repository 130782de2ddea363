//! Requests whose state goes from one memory domain to another, and what may happen to them on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::Backend;
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_engine::{Engine, LoadedModel, ModelSpec, RequestFailure, RequestTensors};
use cellwright_scheduler::{Config, Release};
use cellwright_tests::devices::{Doing, Fuse, Gate, domain, worker};
use cellwright_tests::graphs::{Answer, Case, Outcome, Pending, settled, spec, submit, wait_until};

use super::engine;

const LOST: Outcome = Outcome::Failed(RequestFailure::WorkerLost);
const CANCELLED: Outcome = Outcome::Failed(RequestFailure::Cancelled);

/// Requests at the beginning: as many in the one domain as in the other.
const REQUESTS: usize = 16;
/// Tasks that the first worker completes before it stands still: all its requests are under way then, and none of them is over.
const TASKS: u64 = 60;
/// Slots of each arena.
const SLOTS: u32 = 1 << 16;

/// Two domains with a worker each. The first stands still in the middle of its requests, the second has nothing left to do.
struct Bench {
    first: Gate,
    second: Gate,
    engine: Engine,
    loaded: Arc<LoadedModel>,
    model: Arc<Model>,
    cases: Vec<Case>,
    pending: Vec<Pending>,
}

/// In pairs of the same size, so that each domain gets one of each.
fn cases(model: &Arc<Model>) -> Vec<Case> {
    let families = [Family::Lstm, Family::Stacked, Family::Bidirectional, Family::TwoStage];
    let case = |number: usize| {
        let pair = number / 2;
        let (growth, tensors) = generate::growth_of(model, families[pair % families.len()], 60, &mut Rng::new(pair as u64));
        Case::new(model, generate::unfold(model, growth, &tensors), tensors)
    };
    (0..REQUESTS).map(case).collect()
}

/// The worker asks when it is idle, and for one task: what does not run is ready and could go elsewhere.
fn config(release: Release) -> Config {
    Config { release, low_water: 0, max_tasks_to_submit: 1, ..Config::default() }
}

impl Bench {
    /// Until a request is on its way from the first domain to the second, which waits for the first worker.
    fn new(release: Release, with: impl Fn(usize, Box<dyn Backend>) -> Box<dyn Backend>) -> Self {
        let model = generate::model(41);
        let (first, second) = (Gate::default(), Gate::default());
        let device = |number| with(number, worker(&domain((u64::from(SLOTS) * 64) >> 20)));
        let engine = engine(config(release), 1 << 10, vec![first.before(device(0)), second.before(device(1))]);
        // If this fails on the way, they open before the engine waits for its workers.
        let (first, second) = (first, second);
        let loaded = engine.load(&spec(&model, 0, 2)).unwrap();
        let cases = cases(&model);
        first.close();
        second.close();
        let pending: Vec<Pending> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
        let counters = engine.counters();
        wait_until("all have arrived", || counters.in_flight.load(Ordering::Relaxed) == REQUESTS as u64);
        first.close_after(TASKS);
        // Were the second done before, it would take one request after the other from the first; and a first worker that is not held up yet would give the state away before the test goes on.
        wait_until("the first stands still", || first.holds_somebody());
        second.open();
        wait_until("somebody is on the way", || counters.moves.load(Ordering::Relaxed) > 0);
        Self { first, second, engine, loaded, model, cases, pending }
    }

    /// Every request is answered rightly or was lost; how many were.
    fn lost(&self, what: &str) -> usize {
        let mut lost = 0;
        for (number, (case, pending)) in self.cases.iter().zip(&self.pending).enumerate() {
            let answer = pending.wait();
            if answer.outcome == LOST {
                lost += 1;
            } else {
                case.check(&answer).unwrap_or_else(|wrong| panic!("{what}, request {number}: {wrong}"));
            }
        }
        lost
    }

    /// Nothing is left of anybody: a request that needs all of an arena finds it, and others are answered as before.
    fn is_whole_again(&self, what: &str) {
        settled(&self.engine);
        let largest = self.loaded.cells.iter().map(|cell| cell.slots).max().unwrap();
        let greedy = ModelSpec { live_max: Some(SLOTS / largest), ..spec(&self.model, 0, 2) };
        let greedy = self.engine.load(&greedy).unwrap();
        let chunk = generate::session(&self.model, 2, &mut Rng::new(1)).remove(0);
        let growth = generate::unfold(&self.model, chunk.growth, &chunk.tensors);
        let pending = submit(&self.engine, &greedy, &growth, &RequestTensors { first: 0, tensors: chunk.tensors }).unwrap();
        self.engine.close(pending.handle);
        assert_eq!(pending.wait().outcome, Outcome::Finished, "{what}");
        let pending: Vec<Pending> = self.cases.iter().map(|case| case.submit(&self.engine, &self.loaded)).collect();
        for (case, pending) in self.cases.iter().zip(&pending) {
            case.check(&pending.wait()).unwrap_or_else(|wrong| panic!("{what}, afterwards: {wrong}"));
        }
        settled(&self.engine);
    }
}

/// Answers of requests that have the engine for themselves.
fn alone(model: &Arc<Model>, cases: &[Case]) -> Vec<Answer> {
    let engine = engine(Config::default(), 4, vec![worker(&domain(4))]);
    let loaded = engine.load(&spec(model, 0, 2)).unwrap();
    cases.iter().map(|case| case.submit(&engine, &loaded).wait()).collect()
}

#[test]
fn who_moves_has_the_same_bits() {
    // On a busy machine it may be that only those move who have no state yet.
    let took_something = |release| {
        let bench = Bench::new(release, |_, device| device);
        let alone = alone(&bench.model, &bench.cases);
        bench.first.open();
        for (number, (pending, alone)) in bench.pending.iter().zip(&alone).enumerate() {
            let answer = pending.wait();
            bench.cases[number].check(&answer).unwrap_or_else(|wrong| panic!("{release:?}, request {number}: {wrong}"));
            assert!(answer == *alone, "{release:?}, request {number}: other bits than alone");
        }
        let took_something = bench.first.slots_read() > 0;
        bench.is_whole_again("all have moved");
        took_something
    };
    for release in [Release::Node, Release::Subgraph] {
        assert!((0..10).any(|_| took_something(release)), "{release:?}: nobody had anything to take along");
    }
}

/// Whoever moves first may have no state yet, of which nothing is read or written: then the device goes with somebody who moves later, or stays. Tries until as
/// many are lost as when the first has some; that engine goes on as if nothing had been.
fn first_that_takes_state(what: &str, lost: usize, attempt: impl Fn() -> (usize, Bench)) {
    let mut attempts = (0..20).map(|_| attempt());
    let meant = attempts.find(|(seen, _)| *seen == lost);
    meant.unwrap_or_else(|| panic!("{what}: never were {lost} lost")).1.is_whole_again(what);
}

/// The first domain goes, before its state is read or while it is: all of its requests go with it, the other's are answered.
#[test]
fn the_domain_that_is_left_may_die_on_the_way() {
    for (doing, panics) in [(Doing::Tasks, false), (Doing::Tasks, true), (Doing::Reading, false), (Doing::Reading, true)] {
        let what = format!("{doing:?}, panics: {panics}");
        first_that_takes_state(&what, REQUESTS / 2, || {
            let fuse = Fuse::at(doing, panics);
            let bench = Bench::new(Release::Node, |number, device| if number == 0 { fuse.on(device) } else { device });
            fuse.light(0);
            bench.first.open();
            let lost = bench.lost(&what);
            assert!(lost <= REQUESTS / 2, "{what}: {lost} were lost");
            (lost, bench)
        });
    }
}

/// The second domain goes while the state is written: who was on the way goes with it, and nobody else.
#[test]
fn the_domain_that_is_moved_to_may_die_on_the_way() {
    for panics in [false, true] {
        let what = format!("panics: {panics}");
        first_that_takes_state(&what, 1, || {
            let fuse = Fuse::at(Doing::Writing, panics);
            let bench = Bench::new(Release::Node, |number, device| if number == 1 { fuse.on(device) } else { device });
            fuse.light(0);
            bench.first.open();
            (bench.lost(&what), bench)
        });
    }
}

/// The second domain goes before anything is read: what is read then goes nowhere.
#[test]
fn the_domain_that_is_moved_to_may_die_before_the_state_comes() {
    for panics in [false, true] {
        let what = format!("panics: {panics}");
        let fuse = Fuse::new(panics);
        let bench = Bench::new(Release::Node, |number, device| if number == 1 { fuse.on(device) } else { device });
        let left_behind = || bench.engine.snapshot().domains[0].slots_used;
        let before = left_behind();
        fuse.light(0);
        // There is more room in the second domain: it runs there.
        let last = bench.cases[0].submit(&bench.engine, &bench.loaded);
        assert_eq!(last.wait().outcome, LOST, "{what}");
        // The first worker has yet to read it: another worker of its domain may not write there.
        assert_eq!(left_behind(), before, "{what}: somebody else may have what is still to be read");
        bench.first.open();
        assert_eq!(bench.lost(&what), 1, "{what}");
        bench.is_whole_again(&what);
    }
}

#[test]
fn a_client_may_leave_on_the_way() {
    let bench = Bench::new(Release::Node, |_, device| device);
    for pending in &bench.pending {
        bench.engine.cancel(pending.handle);
    }
    // The second domain's requests are over. The others hear of it now, though the first worker stands still.
    let cancelled = bench.pending.iter().filter(|pending| pending.wait().outcome == CANCELLED).count();
    assert_eq!(cancelled, REQUESTS / 2);
    bench.first.open();
    bench.is_whole_again("all have left");
}

#[test]
fn the_engine_may_stop_on_the_way() {
    let Bench { first, second, engine, pending, .. } = Bench::new(Release::Node, |_, device| device);
    std::thread::scope(|scope| {
        // They open even if something here fails: the scope waits for its thread.
        let (first, second) = (first, second);
        scope.spawn(move || drop(engine));
        let stopped = pending.iter().filter(|pending| pending.wait().outcome == Outcome::Failed(RequestFailure::Stopped)).count();
        first.open();
        second.open();
        assert_eq!(stopped, REQUESTS / 2);
    });
}
