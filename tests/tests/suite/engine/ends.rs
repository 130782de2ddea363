//! Requests that end before their time: cancelled, refused, stopped, or left without their model. Each ends once, and the others go on.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_engine::{
    Canceller, Engine, EngineOptions, Handle, LoadedModel, ModelSpec, RequestFailure, RequestTensors, RequestTimes, Sink, SubmitError,
    Urgency, Value,
};
use cellwright_scheduler::{Config, Graph, PolicyKind};
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::graphs::{Case, Outcome, Pending, spec, submit_urgent};

use super::engine;

const CANCELLED: Outcome = Outcome::Failed(RequestFailure::Cancelled);

/// The gate opens before the engine waits for its workers: here, and where it is taken apart with the gate last.
struct Bench {
    gate: Gate,
    engine: Engine,
    model: Arc<Model>,
    loaded: Arc<LoadedModel>,
}

/// An engine on two workers behind a gate.
fn bench(config: Config, in_flight_max: u32) -> Bench {
    let (gate, home, model) = (Gate::default(), domain(64), generate::model(21));
    let engine = engine(config, in_flight_max, vec![gate.before(worker(&home)), gate.before(worker(&home))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    Bench { gate, engine, model, loaded }
}

fn sound(model: &Arc<Model>, count: usize, seed: u64) -> Vec<Case> {
    Case::mixed(model, 2 * count, seed).into_iter().filter(|case| case.wanted.is_some()).take(count).collect()
}

/// A chain of so many steps.
fn chain(model: &Arc<Model>, steps: u32) -> Case {
    let (growth, tensors) = generate::growth_of(model, Family::Lstm, steps, &mut Rng::new(1));
    Case::new(model, generate::unfold(model, growth, &tensors), tensors)
}

#[test]
fn cancelled_before_and_while_they_run() {
    for config in [Config::default(), Config { policy: PolicyKind::Graph(Graph { bucket_width: 4, window_ns: 0 }), ..Config::default() }] {
        let Bench { engine, model, loaded, gate } = bench(config, 1 << 10);
        let cases = sound(&model, 120, 22);
        gate.close();
        let pending: Vec<Pending> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
        let cancel = |number: usize| engine.cancel(pending[number].handle);
        (0..cases.len()).step_by(3).for_each(cancel);
        // Nothing has run, yet nobody who left has to wait.
        for pending in pending.iter().step_by(3) {
            assert_eq!(pending.wait().outcome, CANCELLED);
        }
        gate.open();
        (1..cases.len()).step_by(3).for_each(cancel);
        for (number, (case, pending)) in cases.iter().zip(&pending).enumerate().filter(|(number, _)| number % 3 != 0) {
            let answer = pending.wait();
            if number % 3 == 2 || answer.outcome != CANCELLED {
                case.check(&answer).unwrap_or_else(|wrong| panic!("request {number}: {wrong}"));
            }
        }
    }
}

/// While the devices stand still: who has no time left hears of it at once, without running; the others wait, and one whose model does not mind
/// deadlines with them.
#[test]
fn what_cannot_be_in_time_is_given_up_where_the_policy_minds() {
    let Bench { engine, model, loaded, gate } = bench(Config { policy: PolicyKind::Adaptive, ..Config::default() }, 1 << 10);
    let cellular = engine.load(&ModelSpec { policy: Some(PolicyKind::Cellular), ..spec(&model, 1, 8) }).unwrap();
    let case = chain(&model, 20);
    let within = |time: Duration, model: &Arc<LoadedModel>| {
        let urgency = Urgency { deadline: Some(Instant::now() + time), ..Urgency::default() };
        let tensors = RequestTensors { first: 0, tensors: case.tensors.clone() };
        submit_urgent(urgency, &engine, model, (&case.growth, &tensors)).unwrap()
    };
    gate.close();
    let (in_time, unminded) = (within(Duration::from_secs(3600), &loaded), within(Duration::ZERO, &cellular));
    let (late, later) = (within(Duration::ZERO, &loaded), within(Duration::from_millis(50), &loaded));
    for given_up in [late, later] {
        let outcome = given_up.wait().outcome;
        assert!(matches!(outcome, Outcome::Failed(RequestFailure::Late { .. })), "{outcome:?}");
    }
    gate.open();
    for waited in [in_time, unminded] {
        case.check(&waited.wait()).unwrap();
    }
}

/// While the devices stand still, so that nothing but the clock ends anything. A session waits on.
#[test]
fn a_request_that_takes_too_long_ends_by_itself() {
    let (gate, home, model) = (Gate::default(), domain(64), generate::model(21));
    let max = Duration::from_secs(1);
    let options = EngineOptions { request_time_max: Some(max), ..EngineOptions::default() };
    let engine = Engine::start(options, vec![gate.before(worker(&home))]).unwrap();
    let (loaded, case) = (engine.load(&spec(&model, 0, 8)).unwrap(), chain(&model, 20));
    let submit = |is_session| {
        let (urgency, tensors) = (Urgency { is_session, ..Urgency::default() }, RequestTensors { first: 0, tensors: case.tensors.clone() });
        submit_urgent(urgency, &engine, &loaded, (&case.growth, &tensors)).unwrap()
    };
    gate.close();
    let (session, request) = (submit(true), submit(false));
    assert_eq!(request.wait().outcome, Outcome::Failed(RequestFailure::Overdue { max }));
    gate.open();
    for goes_on in [session, submit(false)] {
        case.check(&goes_on.wait()).unwrap();
    }
}

#[test]
fn a_handle_that_is_over_names_nobody() {
    let Bench { engine, model, loaded, gate } = bench(Config::default(), 2);
    let cases = sound(&model, 100, 23);
    let mut old: Vec<Handle> = Vec::new();
    for case in &cases {
        gate.close();
        let pending = case.submit(&engine, &loaded);
        // There are two places, so most of these had this one's.
        for handle in &old {
            engine.cancel(*handle);
            engine.close(*handle);
        }
        gate.open();
        case.check(&pending.wait()).unwrap();
        old.push(pending.handle);
    }
}

#[test]
fn a_full_engine_refuses_until_there_is_room() {
    let Bench { engine, model, loaded, gate } = bench(Config::default(), 3);
    let cases = sound(&model, 4, 24);
    for _ in 0..20 {
        // A chain that stopped may have steps on their way, and its request has a place until they are back.
        while engine.snapshot().workers.iter().any(|worker| worker.outstanding > 0) {
            std::thread::yield_now();
        }
        gate.close();
        let pending: Vec<Pending> = cases[..3].iter().map(|case| case.submit(&engine, &loaded)).collect();
        assert_eq!(cases[3].try_submit(&engine, &loaded).err(), Some(SubmitError::Full));
        gate.open();
        for (case, pending) in cases.iter().zip(&pending) {
            case.check(&pending.wait()).unwrap();
        }
        cases[3].check(&cases[3].submit(&engine, &loaded).wait()).unwrap();
    }
}

/// Submits another request from the engine's own thread when it hears of its end.
struct Successor {
    engine: Weak<Engine>,
    case: Case,
    loaded: Arc<LoadedModel>,
    submitted: SyncSender<Result<Pending, SubmitError>>,
}

impl Sink for Successor {
    fn value(&mut self, _value: Value<'_>) {}

    fn ended(&mut self, _chain: u32, _executed: u32) {}

    fn finished(self: Box<Self>, _times: RequestTimes) {
        let engine = self.engine.upgrade().expect("somebody waits for the answer");
        let _ = self.submitted.send(self.case.try_submit(&engine, &self.loaded));
    }

    fn failed(self: Box<Self>, failure: RequestFailure, _times: RequestTimes) {
        panic!("it is well: {failure:?}");
    }
}

#[test]
fn who_hears_of_an_end_finds_room_for_another() {
    let Bench { engine, model, loaded, gate: _gate } = bench(Config::default(), 1);
    let engine = Arc::new(engine);
    for steps in [1, 3, 24] {
        let case = || chain(&model, steps);
        let (submitted, heard) = sync_channel(1);
        let sink = Successor { engine: Arc::downgrade(&engine), case: case(), loaded: Arc::clone(&loaded), submitted };
        let tensors = RequestTensors { first: 0, tensors: case().tensors.clone() };
        engine.submit(&loaded, case().growth.clone(), tensors, |_| Box::new(sink)).unwrap();
        let next = heard.recv_timeout(Duration::from_secs(60)).expect("it ends").expect("it has left its place");
        case().check(&next.wait()).unwrap();
        while engine.counters().in_flight.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_model_of_another_engine_is_none_of_this_one() {
    let (one, other) = (bench(Config::default(), 10), bench(Config::default(), 10));
    assert_eq!(one.loaded.id, other.loaded.id);
    let case = chain(&one.model, 3);
    assert_eq!(case.submit(&other.engine, &one.loaded).wait().outcome, Outcome::Failed(RequestFailure::NoWorker));
    case.check(&case.submit(&one.engine, &one.loaded).wait()).unwrap();
}

/// Cancels everybody else from the engine's own thread as soon as it hears of its end.
struct Quitter {
    canceller: Canceller,
    others: Vec<Handle>,
    done: SyncSender<()>,
}

impl Sink for Quitter {
    fn value(&mut self, _value: Value<'_>) {}

    fn ended(&mut self, _chain: u32, _executed: u32) {}

    fn finished(self: Box<Self>, _times: RequestTimes) {
        panic!("it is cancelled while nothing runs");
    }

    fn failed(self: Box<Self>, _failure: RequestFailure, _times: RequestTimes) {
        for _ in 0..1000 {
            self.others.iter().for_each(|handle| self.canceller.cancel(*handle));
        }
        let _ = self.done.send(());
    }
}

#[test]
fn a_sink_may_cancel() {
    let Bench { engine, model, loaded, gate } = bench(Config::default(), 50);
    let case = chain(&model, 24);
    gate.close();
    let others: Vec<Pending> = (0..49).map(|_| case.submit(&engine, &loaded)).collect();
    let (done, quit) = sync_channel(1);
    let canceller = engine.canceller();
    let sink = Quitter { canceller, others: others.iter().map(|pending| pending.handle).collect(), done };
    let tensors = RequestTensors { first: 0, tensors: case.tensors.clone() };
    let handle = engine.submit(&loaded, case.growth.clone(), tensors, |_| Box::new(sink)).unwrap();
    engine.cancel(handle);
    quit.recv_timeout(Duration::from_secs(60)).expect("the engine's thread waits for nobody");
    for pending in &others {
        assert_eq!(pending.wait().outcome, CANCELLED);
    }
    gate.open();
    case.check(&case.submit(&engine, &loaded).wait()).unwrap();
}

#[test]
fn a_model_that_goes_waits_for_its_requests_and_takes_no_more() {
    let Bench { engine, model, loaded, gate } = bench(Config::default(), 1 << 10);
    let cases = sound(&model, 50, 25);
    let other_model = generate::model(26);
    let other_cases = sound(&other_model, 50, 26);
    let other = engine.load(&spec(&other_model, 0, 8)).unwrap();
    gate.close();
    let pending: Vec<Pending> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
    std::thread::scope(|scope| {
        // Opens even if something here fails: the scope waits for its threads.
        let gate = gate;
        let unloading = scope.spawn(|| engine.unload(&loaded));
        // As soon as the engine's thread has heard of it, nobody enters.
        let refused = loop {
            let late = cases[0].submit(&engine, &loaded);
            engine.cancel(late.handle);
            match late.wait().outcome {
                Outcome::Failed(RequestFailure::NoWorker) => break late,
                outcome => assert_eq!(outcome, CANCELLED),
            }
        };
        drop(refused);
        assert!(!unloading.is_finished(), "requests of it are in flight");
        gate.open();
        for (case, pending) in cases.iter().zip(&pending) {
            case.check(&pending.wait()).unwrap();
        }
        unloading.join().unwrap();
    });
    engine.unload(&loaded);
    let again = engine.load(&spec(&model, 0, 8)).unwrap();
    let pending: Vec<_> = cases.iter().map(|case| case.submit(&engine, &again)).collect();
    let others: Vec<_> = other_cases.iter().map(|case| case.submit(&engine, &other)).collect();
    for (case, pending) in cases.iter().zip(&pending).chain(other_cases.iter().zip(&others)) {
        case.check(&pending.wait()).unwrap();
    }
    // It has the same place as the one before, but is another model.
    let stale = cases[0].submit(&engine, &loaded).wait();
    assert_eq!(stale.outcome, Outcome::Failed(RequestFailure::NoWorker));
}

/// Its cells are forgotten once, so that another model has those that it shares.
#[test]
fn a_model_may_be_unloaded_by_several_at_a_time() {
    let Bench { engine, model, loaded, gate } = bench(Config::default(), 1 << 10);
    let other = engine.load(&spec(&model, 0, 8)).unwrap();
    let cases = sound(&model, 20, 28);
    for case in &cases {
        let again = engine.load(&spec(&model, 0, 8)).unwrap();
        let pending = case.submit(&engine, &again);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| engine.unload(&again));
            }
        });
        case.check(&pending.now().expect("all wait for its requests")).unwrap();
    }
    engine.unload(&loaded);
    for case in &cases {
        case.check(&case.submit(&engine, &other).wait()).unwrap();
    }
    engine.unload(&other);
    assert_eq!(engine.snapshot().weight_bytes, 0);
    drop(gate);
}

#[test]
fn an_engine_that_goes_ends_everybody() {
    let Bench { engine, model, loaded, gate } = bench(Config::default(), 1 << 10);
    let cases = sound(&model, 100, 27);
    gate.close();
    let pending: Vec<Pending> = cases.iter().map(|case| case.submit(&engine, &loaded)).collect();
    let canceller = engine.canceller();
    std::thread::scope(|scope| {
        let gate = gate;
        scope.spawn(move || drop(engine));
        for pending in &pending {
            assert_eq!(pending.wait().outcome, Outcome::Failed(RequestFailure::Stopped));
            canceller.cancel(pending.handle);
        }
        gate.open();
    });
}
