//! Workers that are lost while others have something in hand for them, step by step, on devices that do what a script says and note all of it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod scripted;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use cellwright_backend::Backend;
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_engine::{
    CellOverride, Engine, EngineOptions, LoadedModel, ModelSpec, RequestFailure, RequestTensors, RequestTimes, Sink, Urgency, Value,
};
use cellwright_scheduler::Config;

use self::scripted::{PATIENCE, Scripted, until};

/// Says how a request ended; none: it finished.
struct Ends(SyncSender<Option<RequestFailure>>);

impl Sink for Ends {
    fn value(&mut self, _value: Value<'_>) {}

    fn ended(&mut self, _chain: u32, _executed: u32) {}

    fn finished(self: Box<Self>, _times: RequestTimes) {
        let _ = self.0.send(None);
    }

    fn failed(self: Box<Self>, failure: RequestFailure, _times: RequestTimes) {
        let _ = self.0.send(Some(failure));
    }
}

struct Bench {
    engine: Engine,
    model: Arc<Model>,
    loaded: Arc<LoadedModel>,
}

impl Bench {
    /// Each worker has one task of one row at a time.
    fn new(devices: Vec<Box<dyn Backend>>) -> Self {
        let scheduler = Config { low_water: 0, max_tasks_to_submit: 1, ..Config::default() };
        let engine = Engine::start(EngineOptions { scheduler, batch_max: 1, ..EngineOptions::default() }, devices).unwrap();
        let model = generate::model(41);
        let spec = ModelSpec {
            name: "scripted".to_owned(),
            tenant: 0,
            weight: 1,
            policy: None,
            cells: model.cells.clone(),
            overrides: vec![CellOverride { batch_max: Some(1), priority: None }; model.cells.len()],
            live_max: None,
            charged: Vec::new(),
        };
        let loaded = engine.load(&spec).unwrap();
        Self { engine, model, loaded }
    }

    /// A request of so many steps, which holds the values of two of them at most.
    fn chain(&self, rank: u32, steps: u32) -> Receiver<Option<RequestFailure>> {
        let (growth, tensors) = generate::growth_of(&self.model, Family::Lstm, steps, &mut Rng::new(1));
        let growth = generate::unfold(&self.model, growth, &tensors);
        let (ends, end) = sync_channel(1);
        let (urgency, tensors) = (Urgency { rank, ..Urgency::default() }, RequestTensors { first: 0, tensors });
        self.engine.submit_urgent(urgency, &self.loaded, growth, tensors, |_| Box::new(Ends(ends))).unwrap();
        end
    }
}

/// The state of a request has been read and waits in the queue of a worker that is busy. Then the worker that read it is lost, and so the request. The slots
/// that it was to have are another's only when what waits has been written.
#[test]
fn state_that_comes_late_is_written_over_nobody() {
    let source = Scripted::new("source", "left", 1 << 12);
    // The larger domain, so that it gets the first request, and whoever comes after the loss.
    let target = Scripted::new("target", "right", (1 << 12) + 1);
    let beside = Scripted::new("beside", "right", (1 << 12) + 1);
    source.is_lost_with_task(3);
    let bench = Bench::new(vec![source.device(), target.device(), beside.device()]);
    let counters = bench.engine.counters();
    let long = bench.chain(0, 50);
    until("the target is busy", || target.tasks() == 1);
    let moves = bench.chain(1, 50);
    until("the source is busy", || source.tasks() == 1);
    let short = bench.chain(0, 2);
    until("who is beside the target is busy", || beside.tasks() == 1);
    let stays = bench.chain(0, 50);
    until("all have arrived", || counters.in_flight.load(Ordering::Relaxed) == 4);
    // Who has a lower rank runs next at the source: the other, which has run a step, is moved to who is idle.
    source.complete(1);
    until("the source goes on", || source.tasks() == 2);
    beside.complete(100);
    assert_eq!(short.recv_timeout(PATIENCE).unwrap(), None);
    until("somebody is on the way", || counters.moves.load(Ordering::Relaxed) == 1);
    source.complete(100);
    for lost in [&moves, &stays] {
        assert_eq!(lost.recv_timeout(PATIENCE).unwrap(), Some(RequestFailure::WorkerLost));
    }
    assert!(source.has_read(), "the state goes through the host");
    let before = beside.tasks();
    // Others run beside the target, which is busy with the same task as before.
    for _ in 0..4 {
        assert_eq!(bench.chain(0, 4).recv_timeout(PATIENCE).unwrap(), None);
    }
    assert_eq!(target.tasks(), 1);
    let ran = beside.slots_run(before);
    target.complete(1000);
    assert_eq!(long.recv_timeout(PATIENCE).unwrap(), None);
    let written = target.slots_written();
    assert!(!written.is_empty(), "the state was in its queue");
    assert!(written.is_disjoint(&ran), "written over others: {:?}", written.intersection(&ran).collect::<Vec<_>>());
    // They are free again.
    until("nobody holds anything", || bench.engine.snapshot().domains[1].slots_used == 0);
}
