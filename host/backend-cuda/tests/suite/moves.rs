//! Requests that move between two CUDA workers of an engine: from device to device where one reaches the other, through the host where it does not.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, SLOT_BYTES};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, Injection, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_cell_graph::{Tensor, UnfoldedGrowth};
use cellwright_engine::{
    CellOverride, Engine, EngineOptions, LoadedModel, ModelSpec, RequestFailure, RequestTensors, RequestTimes, Sink, Urgency, Value,
};
use cellwright_scheduler::Config;

const REQUESTS: usize = 8;
/// Those that begin first, and go last.
const FIRST: usize = 4;
/// Rows of a batch, at most.
const BATCH: u32 = 2;
/// Slots of an arena.
const SLOTS: u64 = 1 << 14;
const PATIENCE: Duration = Duration::from_secs(120);

/// Values by chain, stage, output and step.
type Values = BTreeMap<(u32, u32, u32, u32), Vec<u8>>;
type Answer = Result<Values, RequestFailure>;

struct Collecting {
    number: usize,
    values: Values,
    done: SyncSender<(usize, Answer)>,
}

impl Sink for Collecting {
    fn value(&mut self, value: Value<'_>) {
        self.values.insert((value.chain, value.stage, value.output, value.step), value.bytes.to_vec());
    }

    fn ended(&mut self, _chain: u32, _executed: u32) {}

    fn finished(self: Box<Self>, _times: RequestTimes) {
        let _ = self.done.send((self.number, Ok(self.values)));
    }

    fn failed(self: Box<Self>, failure: RequestFailure, _times: RequestTimes) {
        let _ = self.done.send((self.number, Err(failure)));
    }
}

/// An engine with devices made of threads, and requests for it.
struct Bench {
    engine: Engine,
    controls: Vec<Control>,
    loaded: Arc<LoadedModel>,
    cases: Vec<(Arc<UnfoldedGrowth>, Vec<Arc<Tensor>>)>,
    done: SyncSender<(usize, Answer)>,
    answers: Receiver<(usize, Answer)>,
    /// Bytes that came from device to device, as far as anybody looked.
    fetched: Cell<usize>,
}

impl Bench {
    /// Devices with so many slots, which reach one another or do not.
    fn new(arenas: &[u64], reaches: bool) -> Self {
        Self::waiting(arenas, reaches, CudaOptions::default().wait_max)
    }

    /// The same, and workers that wait so long at most.
    fn waiting(arenas: &[u64], reaches: bool, wait_max: Duration) -> Self {
        let model: Arc<Model> = generate::model(41);
        let mut controls = Vec::new();
        let devices = (0_u32..).zip(arenas).map(|(ordinal, slots)| {
            let device =
                Emulated::new(&Emulation { seed: u64::from(ordinal), ordinal, reaches, memory_bytes: 128 << 20, ..Emulation::default() });
            controls.push(device.control());
            let options = CudaOptions {
                arena_bytes: Some(slots * SLOT_BYTES as u64),
                frame_bytes: Some(4 << 20),
                ring_bytes: 1 << 20,
                spin: Duration::ZERO,
                wait_max,
                ..CudaOptions::default()
            };
            Box::new(CudaWorker::new(Box::new(device), options).expect("a device made of threads")) as Box<dyn Backend>
        });
        // The worker asks when it is idle, and for one task: what does not run is ready and could go elsewhere.
        let scheduler = Config { low_water: 0, max_tasks_to_submit: 1, ..Config::default() };
        let (most, batch_max) = (Duration::from_secs(60), BATCH);
        let options = EngineOptions { scheduler, batch_max, row_time_max: most, task_time_max: most, ..EngineOptions::default() };
        let engine = Engine::start(options, devices.collect()).expect("it starts");
        let cases = (0..REQUESTS).map(|number| {
            let (growth, tensors) = generate::growth_of(&model, Family::Lstm, 24, &mut Rng::new(number as u64));
            (generate::unfold(&model, growth, &tensors), tensors)
        });
        let (done, answers) = sync_channel(2 * REQUESTS);
        let cases: Vec<(Arc<UnfoldedGrowth>, Vec<Arc<Tensor>>)> = cases.collect();
        let loaded = engine.load(&spec(&model, &cases)).expect("its cells are loaded");
        // What was measured at load is no task.
        controls.iter().for_each(|control| drop(control.take_log()));
        Self { cases, engine, controls, loaded, done, answers, fetched: Cell::new(0) }
    }

    fn submit(&self) {
        self.submit_some(0..REQUESTS, 0);
    }

    fn submit_some(&self, which: Range<usize>, rank: u32) {
        for number in which {
            let (growth, tensors) = &self.cases[number];
            let sink = Box::new(Collecting { number, values: Values::new(), done: self.done.clone() });
            let tensors = RequestTensors { first: 0, tensors: tensors.clone() };
            let urgency = Urgency { rank, ..Urgency::default() };
            self.engine.submit_urgent(urgency, &self.loaded, growth.clone(), tensors, |_| sink).expect("the engine has room");
        }
    }

    /// So many answers, by request.
    fn wait(&self, count: usize) -> Vec<(usize, Answer)> {
        let (mut answers, began) = (Vec::new(), Instant::now());
        while answers.len() < count {
            match self.answers.recv_timeout(Duration::from_millis(5)) {
                Ok(answer) => answers.push(answer),
                Err(RecvTimeoutError::Timeout) => assert!(began.elapsed() < PATIENCE, "every request ends"),
                Err(RecvTimeoutError::Disconnected) => panic!("the bench has an end of it"),
            }
            // A log keeps the latest alone.
            for control in &self.controls {
                self.look(control);
            }
        }
        answers.sort_by_key(|(number, _)| *number);
        answers
    }

    /// Counts what a device has run since the last time: tasks and what else has a signal.
    fn look(&self, control: &Control) -> usize {
        let mut signals = 0;
        for ran in control.take_log() {
            match ran.what {
                What::Fetch { bytes, .. } => self.fetched.set(self.fetched.get() + bytes),
                What::Signal { .. } => signals += 1,
                _ => {}
            }
        }
        signals
    }

    fn moves(&self) -> u64 {
        self.engine.counters().moves.load(Ordering::Relaxed)
    }

    fn in_flight(&self) -> u64 {
        self.engine.counters().in_flight.load(Ordering::Relaxed)
    }

    /// All are on the first device, which stands still. Some of them have begun, and are not in the one task that it has: these are ready to go elsewhere,
    /// but for one that is on its way already. The second has nothing to do, and stands still too.
    fn submit_to_first(&self) {
        let [first, second] = [&self.controls[0], &self.controls[1]];
        let run = |tasks| {
            let mut ran = 0;
            wait_until("the first has run tasks", || {
                ran += self.look(first);
                ran >= tasks
            });
            first.hold();
        };
        second.hold();
        self.submit_some(0..FIRST, 1);
        run(8);
        self.submit_some(FIRST..REQUESTS, 0);
        wait_until("all have arrived", || self.in_flight() == REQUESTS as u64);
        first.release();
        run(4);
    }
}

/// Of the model's cells those that the requests name, which takes less time to load.
fn spec(model: &Model, cases: &[(Arc<UnfoldedGrowth>, Vec<Arc<Tensor>>)]) -> ModelSpec {
    let stages = cases.iter().flat_map(|(growth, _)| &growth.chains).flat_map(|chain| &chain.stages);
    let last = stages.map(|stage| stage.cell as usize).max().expect("requests have chains");
    ModelSpec {
        policy: None,
        name: "generated".to_owned(),
        tenant: 0,
        weight: 1,
        cells: model.cells[..=last].to_vec(),
        overrides: vec![CellOverride { batch_max: Some(BATCH), priority: None }; last + 1],
        live_max: None,
        charged: Vec::new(),
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "still waiting until {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Answers of requests that have one device for themselves.
static ALONE: LazyLock<Vec<(usize, Answer)>> = LazyLock::new(|| {
    let bench = Bench::new(&[SLOTS], true);
    bench.submit();
    bench.wait(REQUESTS)
});

#[test]
fn requests_move_from_device_to_device_and_their_answers_are_the_same() {
    let expected = &*ALONE;
    let bench = Bench::new(&[SLOTS, SLOTS / 8], true);
    bench.submit_to_first();
    bench.controls[1].release();
    // Whoever is not in the one task that the first device has goes to the second one, which does not wait for the first.
    let mut answers = bench.wait(REQUESTS - BATCH as usize);
    assert!(bench.moves() > 0 && bench.fetched.get() > 0, "{} moves, {} bytes", bench.moves(), bench.fetched.get());
    bench.controls[0].release();
    answers.extend(bench.wait(BATCH as usize));
    answers.sort_by_key(|(number, _)| *number);
    assert!(answers == *expected, "who moved has another answer");
}

#[test]
fn without_access_requests_move_through_the_host() {
    let expected = &*ALONE;
    let bench = Bench::new(&[SLOTS, SLOTS / 8], false);
    bench.submit_to_first();
    bench.controls.iter().for_each(Control::release);
    assert!(bench.wait(REQUESTS) == *expected, "who moved has another answer");
    assert!(bench.moves() > 0 && bench.fetched.get() == 0, "{} moves, {} bytes", bench.moves(), bench.fetched.get());
}

/// A driver that refuses the first copy is not asked for another one: what follows passes through the host.
#[test]
fn whose_memory_is_refused_once_is_read_through_the_host_from_then_on() {
    let expected = &*ALONE;
    let bench = Bench::new(&[SLOTS, SLOTS / 8], true);
    bench.controls.iter().for_each(|control| control.inject(Injection::NoFetch { after_fetches: 0 }));
    bench.submit_to_first();
    bench.controls.iter().for_each(Control::release);
    assert!(bench.wait(REQUESTS) == *expected, "who moved has another answer");
    assert!(bench.moves() > 1 && bench.fetched.get() == 0, "{} moves, {} bytes", bench.moves(), bench.fetched.get());
}

/// The first device is lost while the second copies from it: who was on the way fails with the others, but its place is kept until nothing writes there.
#[test]
fn the_device_that_is_left_may_be_lost_on_the_way() {
    let expected = &*ALONE;
    // There is more room in the first, so that all begin there.
    let bench = Bench::new(&[SLOTS, SLOTS / 8], true);
    bench.controls[1].hold();
    bench.submit();
    wait_until("somebody is on the way", || bench.moves() > 0 && bench.controls[1].queued() > 0);
    bench.controls[0].inject(Injection::DeviceLost { after_work: 0 });
    for (number, answer) in bench.wait(REQUESTS) {
        assert_eq!(answer, Err(RequestFailure::WorkerLost), "request {number}");
    }
    wait_until("only who is on the way is left", || bench.in_flight() <= 1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(bench.in_flight(), 1, "its place was given to others while the device may write there");
    bench.controls[1].release();
    wait_until("nobody is left", || bench.in_flight() == 0);
    bench.submit();
    assert!(bench.wait(REQUESTS) == *expected, "the device that is left does not answer as before");
}

#[test]
fn the_device_that_is_moved_to_may_be_lost_on_the_way() {
    let expected = &*ALONE;
    let bench = Bench::new(&[SLOTS, SLOTS / 8], true);
    bench.controls[1].hold();
    bench.submit();
    wait_until("somebody is on the way", || bench.moves() > 0 && bench.controls[1].queued() > 0);
    bench.controls[1].inject(Injection::DeviceLost { after_work: 0 });
    bench.controls[1].release();
    let (lost, kept): (Vec<_>, Vec<_>) = bench.wait(REQUESTS).into_iter().partition(|(_, answer)| answer.is_err());
    assert!(
        lost.len() == 1 && lost[0].1 == Err(RequestFailure::WorkerLost),
        "{:?}",
        lost.iter().map(|(_, answer)| answer.as_ref().err()).collect::<Vec<_>>()
    );
    assert!(kept.iter().all(|(number, answer)| *answer == expected[*number].1));
    wait_until("nobody is left", || bench.in_flight() == 0);
}

/// One of two devices never ends its task: who is in it fails, the others are answered by the other device, and the engine waits for nothing when it stops.
#[test]
fn a_device_that_never_ends_its_task_is_given_up() {
    let expected = &*ALONE;
    let bench = Bench::waiting(&[SLOTS, SLOTS / 8], true, Duration::from_secs(2));
    bench.submit_to_first();
    bench.controls[0].hold();
    bench.controls[1].release();
    let (lost, kept): (Vec<_>, Vec<_>) = bench.wait(REQUESTS).into_iter().partition(|(_, answer)| answer.is_err());
    assert!(!lost.is_empty() && lost.iter().all(|(_, answer)| *answer == Err(RequestFailure::WorkerLost)), "{} are lost", lost.len());
    assert!(kept.iter().all(|(number, answer)| *answer == expected[*number].1));
    wait_until("nobody is left", || bench.in_flight() == 0);
    bench.submit();
    assert!(bench.wait(REQUESTS) == *expected, "the device that is left does not answer as before");
}

#[test]
fn the_engine_may_stop_on_the_way() {
    let bench = Bench::new(&[SLOTS, SLOTS / 8], true);
    bench.controls[1].hold();
    bench.submit();
    wait_until("somebody is on the way", || bench.moves() > 0 && bench.controls[1].queued() > 0);
    let Bench { engine, answers, done, .. } = bench;
    drop((engine, done));
    assert_eq!(answers.iter().count(), REQUESTS, "each has an end");
}
