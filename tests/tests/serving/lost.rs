//! Requests whose device is lost: those that can begin again elsewhere do so, once, and nobody can tell by the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use cellwright_cell_graph::Tensor;
use cellwright_engine::EngineOptions;
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_serving::{Client, Delivery, ErrorKind, InferError, ServedModel, Serving, ServingOptions};
use cellwright_tests::devices::{Fuse, Gate, domain, worker};
use cellwright_tests::graphs::settled;
use cellwright_tests::requests;

use super::{Host, behaving, refused};

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
        plugin_threads: 2,
        answers_bytes_max,
    };
    Fused { host: Host { gate, serving: Serving::start(options, backends).unwrap() }, fuses }
}

/// What a client was told.
struct Told {
    replays: Arc<AtomicU32>,
    end: Receiver<Result<InferResponse, InferError>>,
}

impl Told {
    fn wait(&self) -> Result<Vec<Tensor>, InferError> {
        self.end.recv().unwrap().map(|response| response.outputs)
    }

    fn replays(&self) -> u32 {
        self.replays.load(Ordering::Acquire)
    }
}

struct Counting(Arc<AtomicU32>, SyncSender<Result<InferResponse, InferError>>);

impl Client for Counting {
    fn part(&mut self, _: Tensor) {}

    fn replayed(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        let _ = self.1.send(result);
    }
}

impl Fused {
    fn begin(&self, model: &Arc<ServedModel>, request: InferRequest) -> Told {
        let (replays, (sender, end)) = (Arc::<AtomicU32>::default(), sync_channel(1));
        let client = Box::new(Counting(replays.clone(), sender));
        self.host.serving.begin(model, request, Delivery::Whole, client).unwrap();
        Told { replays, end }
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
            let replays: u32 = told.iter().map(Told::replays).sum();
            assert!(replays > 0 && told.iter().all(|told| told.replays() <= 1), "{what}: {replays} requests began again");
            assert_eq!(u64::from(replays), failed() - before, "{what}: each that failed in the engine, and no other");
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
    settled(bench.host.serving.engine());
}

/// Parts that were sent cannot be taken back, and what a session was told is gone.
#[test]
fn what_was_sent_and_what_was_told_piece_by_piece_is_lost() {
    let bench = fused(2, false, None);
    let model = bench.host.model("sums");
    bench.host.gate.close_after(10);
    let reply = bench.host.serving.infer(&model, behaving("stream-all", requests::sum(5, 500)), Delivery::Parts).unwrap();
    assert!(reply.next_part().is_some());
    bench.fuses.iter().for_each(|fuse| fuse.light(0));
    bench.host.gate.open();
    assert_eq!(refused(reply.wait()), (ErrorKind::Unavailable, LOST.to_owned()));
    bench.fuses.iter().for_each(|fuse| fuse.light(u32::MAX));
    bench.host.is_whole_again();

    let bench = fused(2, false, None);
    let model = bench.host.model("honest");
    bench.host.gate.close();
    let session = bench.host.serving.open_session(&model, requests::session(1, 2)).unwrap();
    bench.fuses.iter().for_each(|fuse| fuse.light(0));
    bench.host.gate.open();
    while session.next_part().is_some() {}
    assert_eq!(refused(session.wait()), (ErrorKind::Unavailable, LOST.to_owned()));
    bench.fuses.iter().for_each(|fuse| fuse.light(u32::MAX));
    bench.host.is_whole_again();
}

/// Parts that nobody was sent yet are no reason.
#[test]
fn a_stream_that_has_not_begun_begins_elsewhere() {
    let bench = fused(2, false, None);
    let model = bench.host.model("sums");
    let request = behaving("stream-all", requests::sum(5, 40));
    let (wanted, _) = bench.host.parts(&model, request.clone());
    let joined = |parts: &[Tensor]| parts.iter().flat_map(|part| part.to_f32().unwrap()).collect::<Vec<f32>>();
    bench.host.gate.close();
    let others: Vec<Told> = (0..8).map(|seed| bench.begin(&model, behaving("stream-all", requests::sum(seed, 30)))).collect();
    let replies: Vec<_> = (0..8).map(|_| bench.host.serving.infer(&model, request.clone(), Delivery::Parts).unwrap()).collect();
    bench.fuses[0].light(0);
    bench.host.gate.open();
    for reply in replies {
        let parts: Vec<Tensor> = std::iter::from_fn(|| reply.next_part()).collect();
        assert_eq!(joined(&parts), joined(&wanted));
        reply.wait().unwrap();
    }
    assert!(others.iter().all(|told| told.wait().is_ok()));
    assert!(bench.host.serving.engine().counters().failed.load(Ordering::Acquire) > 0, "nobody lost a device");
    bench.host.is_whole_again();
}
