//! Requests whose device is lost: those that can begin again elsewhere do so, once, and nobody can tell by the answer.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{EngineOptions, Urgency};
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_serving::{Answer, CallTimes, Delivery, ErrorKind, InferError, Observer, Patience, ServedModel, Serving, ServingOptions};
use cellwright_tests::devices::{Fuse, Gate, domain, worker};
use cellwright_tests::graphs::{settled, wait_until};
use cellwright_tests::requests;
use cellwright_tests::sessions::open_session;

use super::{Host, behaving, refused};

/// Calls of one model's plugin at once.
const PLUGIN_THREADS: usize = 2;

const LOST: &str = "the device that ran this request is lost";

/// A host whose devices each have a fuse, and stand behind one gate.
struct Fused {
    host: Host,
    fuses: Vec<Fuse>,
}

fn fused(devices: usize, panics: bool, answers_bytes_max: Option<u64>) -> Fused {
    let gate = Gate::default();
    let fuses: Vec<Fuse> = (0..devices).map(|_| Fuse::new(panics)).collect();
    let backends = fuses.iter().map(|fuse| gate.before(fuse.on(worker(&domain(64))))).collect();
    let options = ServingOptions {
        runtime: RuntimeOptions::new(Compiler::InProcess),
        engine: EngineOptions { batch_max: 8, in_flight_max: super::IN_FLIGHT, ..EngineOptions::default() },
        plugin_threads: PLUGIN_THREADS,
        answers_bytes_max,
    };
    Fused { host: Host { gate, serving: Serving::start(options, backends).unwrap() }, fuses }
}

fn joined(parts: &[Tensor]) -> Vec<f32> {
    parts.iter().flat_map(|part| part.to_f32().unwrap()).collect()
}

/// A request's answer, and what its observer is told.
struct Told {
    answer: Answer,
    parts: RefCell<Vec<Tensor>>,
    times: Receiver<CallTimes>,
    seen: RefCell<Option<CallTimes>>,
}

impl Told {
    fn wait(&self) -> Result<Vec<Tensor>, InferError> {
        self.parts.borrow_mut().extend(std::iter::from_fn(|| self.answer.next_part()));
        self.answer.wait().map(|response| response.outputs)
    }

    /// How it fared, once it has ended.
    fn times(&self) -> CallTimes {
        self.seen.borrow_mut().get_or_insert_with(|| self.times.recv_timeout(Duration::from_secs(20)).expect("it ends")).clone()
    }

    fn has_ended(&self) -> bool {
        let mut seen = self.seen.borrow_mut();
        if seen.is_none() {
            *seen = self.times.try_recv().ok();
        }
        seen.is_some()
    }

    fn replays(&self) -> u64 {
        self.times().replays
    }

    /// Values of the parts that came, one behind the other.
    fn values(&self) -> Vec<f32> {
        joined(&self.parts.borrow())
    }
}

struct Telling(SyncSender<CallTimes>);

impl Observer for Telling {
    fn ended(&mut self, _: &mut Result<InferResponse, InferError>, times: &CallTimes) {
        let _ = self.0.send(times.clone());
    }
}

/// Keeps the thread on which its request ends until it may go on.
struct Holding {
    _answer: Answer,
    ends: SyncSender<()>,
    may_go_on: Receiver<()>,
}

impl Observer for Holding {
    fn ended(&mut self, result: &mut Result<InferResponse, InferError>, _: &CallTimes) {
        assert!(result.is_ok(), "{result:?}");
        let _ = self.ends.send(());
        let _ = self.may_go_on.recv();
    }
}

impl Fused {
    /// Keeps all threads busy on which the model's plugin may be called, until what it gives is dropped: with answers that are so large that they are put
    /// together there.
    fn hold(&self, model: &Arc<ServedModel>) -> Vec<SyncSender<()>> {
        let held = (0..PLUGIN_THREADS).map(|seed| {
            let ((has_begun, begun), (go_on, may_go_on)) = (sync_channel(1), sync_channel(0));
            let request = behaving("stream-all", requests::sum(seed, 5000));
            let (answer, mut writer) = Answer::new(0, Patience::endless());
            writer.observe(Box::new(Holding { _answer: answer, ends: has_begun, may_go_on }));
            assert!(self.host.serving.begin(model, (request, Urgency::default()), Delivery::Whole, writer));
            begun.recv().unwrap();
            go_on
        });
        held.collect()
    }

    fn begin(&self, model: &Arc<ServedModel>, request: InferRequest) -> Told {
        self.begin_as(model, request, Delivery::Whole)
    }

    fn begin_as(&self, model: &Arc<ServedModel>, request: InferRequest, delivery: Delivery) -> Told {
        let (telling, times) = sync_channel(1);
        let (answer, mut writer) = Answer::new(u64::MAX, Patience::endless());
        writer.observe(Box::new(Telling(telling)));
        assert!(self.host.serving.begin(model, (request, Urgency::default()), delivery, writer));
        Told { answer, parts: RefCell::default(), times, seen: RefCell::default() }
    }

    /// Begins requests while all devices stand still, then lets one of these go with its task after so many.
    fn lose_one(&self, model: &Arc<ServedModel>, (lost, tasks): (usize, u32), requests: &[InferRequest]) -> Vec<Told> {
        self.host.gate.close();
        let told = requests.iter().map(|request| self.begin(model, request.clone())).collect();
        self.fuses[lost].light(tasks);
        self.host.gate.open();
        told
    }
}

/// In whatever way it behaves: plain, called back once or again and again, done with its input long before its end, put together of what it emits.
#[test]
fn a_request_that_loses_its_device_is_answered_as_if_it_had_not() {
    let cases = [
        ("honest", 0),
        ("resume-honest", 7),
        ("resume-every", 3),
        ("session", 2),
        ("honest", 9),
        ("resume-overtakes", 3),
        ("stream-all", 5),
    ];
    for panics in [false, true] {
        let bench = fused(cases.len() + 1, panics, None);
        let [honest, sums] = ["honest", "sums"].map(|describe| bench.host.model(describe));
        let failed = || bench.host.serving.engine().counters().failed.load(Ordering::Acquire);
        for (lost, (behaviour, tasks)) in cases.into_iter().enumerate() {
            let what = format!("{behaviour}, lost after {tasks} tasks, panics: {panics}");
            let model = if lost < 5 { &honest } else { &sums };
            let requests: Vec<InferRequest> = (0..24).map(|seed| behaving(behaviour, requests::sum(seed, 20 + seed))).collect();
            let wanted: Vec<_> = requests.iter().map(|request| bench.host.whole(model, request.clone()).unwrap()).collect();
            let before = failed();
            let told = bench.lose_one(model, (lost, tasks), &requests);
            for (told, wanted) in told.iter().zip(&wanted) {
                assert_eq!(&told.wait().unwrap(), wanted, "{what}");
            }
            let replays: u64 = told.iter().map(Told::replays).sum();
            assert!(replays > 0 && told.iter().all(|told| told.replays() <= 1), "{what}: {replays} requests began again");
            assert_eq!(replays, failed() - before, "{what}: each that failed in the engine, and no other");
        }
        bench.host.is_whole_again();
    }
}

#[test]
fn so_are_the_rows_of_a_call() {
    let bench = fused(2, false, None);
    let model = bench.host.model("rows");
    let request = requests::of(vec![Tensor::from_f32("x", &[16, 9, 4], &requests::sum(3, 16 * 9).inputs[0].to_f32().unwrap())]);
    let wanted = bench.host.whole(&model, request.clone()).unwrap();
    let told = bench.lose_one(&model, (0, 2), &[request]);
    assert_eq!(told[0].wait().unwrap(), wanted);
    let replays = told[0].replays();
    assert!(replays > 0 && replays < 16, "{replays} rows of 16 began again");
    bench.host.is_whole_again();
}

/// What was taken for the first time is given back before it is taken again.
#[test]
fn an_answer_for_which_there_is_room_once_has_it_when_it_begins_again() {
    let bench = fused(2, false, Some(1 << 16));
    let model = bench.host.model("sums");
    let request = |rows| behaving("stream-all", requests::sum(5, rows));
    // Twice as many rows do not fit, so twice the room for these is not there.
    let rows = (4..).map(|power| 1 << power).find(|rows| bench.host.whole(&model, request(2 * rows)).is_err()).unwrap();
    let wanted = bench.host.whole(&model, request(rows)).unwrap();
    let mut replays = 0;
    for lost in 0..2 {
        let told = bench.lose_one(&model, (lost, 3), &[request(rows)]);
        assert_eq!(told[0].wait().unwrap(), wanted);
        replays = told[0].replays();
        if replays > 0 {
            break;
        }
        // It was the other's.
        bench.fuses[lost].light(u32::MAX);
    }
    assert_eq!(replays, 1);
}

/// Until a plugin thread comes to them others have taken the places that they had.
#[test]
fn what_cannot_begin_again_is_lost_and_not_counted() {
    let bench = fused(2, false, None);
    let model = bench.host.model("sums");
    let request = |seed| behaving("stream-all", requests::sum(seed, 20));
    let held = bench.hold(&model);
    let engine = bench.host.serving.engine();
    settled(engine);
    let ended = || engine.counters().finished.load(Ordering::Acquire) + engine.counters().failed.load(Ordering::Acquire);
    let before = ended();
    let told = bench.lose_one(&model, (0, 3), &(0..24).map(request).collect::<Vec<_>>());
    // As long as the engine has not looked nothing is in flight.
    wait_until("all have ended in the engine", || ended() == before + told.len() as u64);
    settled(engine);
    bench.host.gate.close();
    let others: Vec<Told> = (0..super::IN_FLIGHT as usize).map(|seed| bench.begin(&model, request(seed))).collect();
    drop(held);
    let mut lost = 0;
    for told in &told {
        if let Err(error) = told.wait() {
            assert_eq!(refused::<()>(Err(error)), (ErrorKind::Unavailable, LOST.to_owned()));
            lost += 1;
        }
        assert_eq!((told.replays(), told.times().requests), (0, 1));
    }
    assert!(lost > 0, "nobody was lost");
    bench.host.gate.open();
    assert!(others.iter().all(|told| told.wait().is_ok()));
    bench.host.is_whole_again();
}

/// No plugin thread comes to them: those that were cancelled hear it all the same, and nothing of them begins again.
#[test]
fn whoever_waits_to_begin_again_hears_at_once_that_it_is_cancelled() {
    let bench = fused(2, false, None);
    let model = bench.host.model("sums");
    let requests: Vec<InferRequest> = (0..24).map(|seed| behaving("stream-all", requests::sum(seed, 20 + seed))).collect();
    let wanted: Vec<_> = requests.iter().map(|request| bench.host.whole(&model, request.clone()).unwrap()).collect();
    let held = bench.hold(&model);
    let engine = bench.host.serving.engine();
    settled(engine);
    let ended = || engine.counters().finished.load(Ordering::Acquire) + engine.counters().failed.load(Ordering::Acquire);
    let before = ended();
    let told = bench.lose_one(&model, (0, 3), &requests);
    wait_until("all have ended in the engine", || ended() == before + requests.len() as u64);
    settled(engine);
    let lost = Instant::now();
    let waiting: Vec<(Told, _)> = told
        .into_iter()
        .zip(wanted)
        .filter_map(|(told, wanted)| {
            if told.has_ended() {
                assert_eq!(told.wait().unwrap(), wanted);
                return None;
            }
            Some((told, wanted))
        })
        .collect();
    assert!(waiting.len() > 1, "{} requests wait to begin again", waiting.len());
    let (left, kept) = waiting.split_at(waiting.len() / 2);
    // Some had their place on the device that was lost, and no task yet.
    let ran = |told: &Told| {
        let times = told.times();
        assert_eq!(times.requests, 1, "what it had is told once");
        (times.submitted.is_some_and(|submitted| submitted < lost), times.first_task.is_some_and(|began| began < lost), times.joins)
    };
    for (told, _) in left {
        told.answer.canceller().cancel();
        // It hears while nobody comes to it.
        told.times();
        assert_eq!(refused(told.wait()).0, ErrorKind::Cancelled);
        let ran = ran(told);
        assert!(matches!(ran, (true, true, 1..) | (true, false, 0)), "what it had until then: {ran:?}");
    }
    drop(held);
    for (told, wanted) in kept {
        assert_eq!((&told.wait().unwrap(), told.replays()), (wanted, 1));
        let ran = ran(told);
        assert!(matches!(ran, (true, true, 2..) | (true, false, 1..)), "what it had in both runs: {ran:?}");
    }
    bench.host.is_whole_again();
    assert!(left.iter().all(|(told, _)| told.replays() == 0), "one that was cancelled goes on");
}

/// A request that no device survives takes two of them.
#[test]
fn a_request_begins_again_once() {
    let bench = fused(3, false, None);
    let model = bench.host.model("honest");
    bench.host.gate.close();
    let told = bench.begin(&model, requests::sum(1, 50));
    bench.fuses.iter().for_each(|fuse| fuse.light(0));
    bench.host.gate.open();
    assert_eq!(refused(told.wait()), (ErrorKind::Unavailable, LOST.to_owned()));
    assert_eq!(told.replays(), 1);
    bench.fuses.iter().for_each(|fuse| fuse.light(u32::MAX));
    bench.host.is_whole_again();
}

#[test]
fn without_another_device_there_is_no_answer() {
    let bench = fused(1, false, None);
    let model = bench.host.model("honest");
    let told = bench.lose_one(&model, (0, 0), &[requests::sum(1, 50)]);
    assert_eq!(refused(told[0].wait()).0, ErrorKind::Unavailable);
    assert_eq!(told[0].replays(), 0, "nothing of it ran again");
    assert!(told[0].times().first_task.is_some(), "it ran once");
    settled(bench.host.serving.engine());
}

/// Parts that were sent cannot be taken back, and what a session was told is gone.
#[test]
fn what_was_sent_and_what_was_told_piece_by_piece_is_lost() {
    let bench = fused(2, false, None);
    let model = bench.host.model("sums");
    let request = behaving("stream-all", requests::sum(5, 500));
    let (wanted, _) = bench.host.parts(&model, request.clone());
    bench.host.gate.close_after(10);
    let reply = bench.host.serving.infer(&model, request, Delivery::Parts).unwrap();
    let first = reply.next_part().unwrap();
    bench.fuses.iter().for_each(|fuse| fuse.light(0));
    bench.host.gate.open();
    let parts: Vec<Tensor> = std::iter::once(first).chain(std::iter::from_fn(|| reply.next_part())).collect();
    let (got, wanted) = (joined(&parts), joined(&wanted));
    assert!(got.len() < wanted.len() && wanted.starts_with(&got), "what was sent is the beginning of what would have been");
    assert_eq!(refused(reply.wait()), (ErrorKind::Unavailable, LOST.to_owned()));
    bench.fuses.iter().for_each(|fuse| fuse.light(u32::MAX));
    bench.host.is_whole_again();

    let bench = fused(2, false, None);
    let model = bench.host.model("honest");
    bench.host.gate.close();
    let session = open_session(&bench.host.serving, &model, requests::session(1, 2)).unwrap();
    bench.fuses.iter().for_each(|fuse| fuse.light(0));
    bench.host.gate.open();
    while session.next_part().is_some() {}
    assert_eq!(refused(session.wait()), (ErrorKind::Unavailable, LOST.to_owned()));
    bench.fuses.iter().for_each(|fuse| fuse.light(u32::MAX));
    bench.host.is_whole_again();
}

/// Streams of which nothing was sent yet begin elsewhere, and all others end with the device: no client is sent anything twice, or anything else than a
/// device would have given it that stays.
#[test]
fn a_stream_is_what_it_would_have_been_or_ends_as_lost() {
    let bench = fused(4, false, None);
    let model = bench.host.model("sums");
    let requests: Vec<InferRequest> = (0..24).map(|seed| behaving("stream-all", requests::sum(seed, 30 + seed))).collect();
    let wanted: Vec<_> = requests.iter().map(|request| bench.host.parts(&model, request.clone())).collect();
    let (mut replays, mut broken) = (0, 0);
    for (lost, tasks) in [0, 2, 15].into_iter().enumerate() {
        bench.host.gate.close();
        let told: Vec<Told> = requests.iter().map(|request| bench.begin_as(&model, request.clone(), Delivery::Parts)).collect();
        bench.fuses[lost].light(tasks);
        bench.host.gate.open();
        for (told, (parts, rest)) in told.iter().zip(&wanted) {
            let (end, wanted) = (told.wait(), joined(parts));
            match end {
                Ok(outputs) => assert_eq!((&outputs, told.values()), (rest, wanted), "lost after {tasks} tasks"),
                Err(error) => {
                    assert_eq!(refused::<()>(Err(error)), (ErrorKind::Unavailable, LOST.to_owned()));
                    let sent = told.values();
                    assert!(!sent.is_empty() && wanted.starts_with(&sent), "lost after {tasks} tasks, and begun anew");
                    assert_eq!(told.replays(), 0, "what was sent cannot be taken back");
                    broken += 1;
                }
            }
            replays += told.replays();
        }
        assert!(tasks > 0 || (replays > 0 && broken == 0), "{replays} began again, {broken} were lost, although nothing was sent");
    }
    assert!(broken > 0, "nothing was sent before a device was lost");
    bench.host.is_whole_again();
}
