//! Calls whose device is lost, through all that lies between a front end and the devices: lines, places, deadlines, figures.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellwright_cell_graph::Tensor;
use cellwright_engine::{EngineOptions, Urgency};
use cellwright_gate::figures::CallFiguresView;
use cellwright_gate::{Call, Deployed, NewUpload, Platform, PlatformOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_registry::TenantSettings;
use cellwright_serving::{Answer, CallTimes, Delivery, ErrorKind, InferError, Observer, Patience, ServingOptions};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::devices::{Fuse, Gate, domain, worker};
use cellwright_tests::graphs::{settled, wait_until};
use cellwright_tests::platform::{Ending, archive, begin_to_leave, infer, model, options, start_on, tenant};
use cellwright_tests::requests;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tempfile::TempDir;
use tokio::task::AbortHandle;

/// A platform whose devices each have a fuse, and stand behind one gate.
struct Bench {
    // Dropped first: what waits behind it must go on for the rest to end.
    gate: Gate,
    fuses: Vec<Fuse>,
    platform: Arc<Platform>,
    _folder: TempDir,
}

impl Bench {
    fn new(devices: usize, plugin_threads: usize, bundles: &[(&str, BundleFolder)]) -> Self {
        let (folder, gate) = (TempDir::new().unwrap(), Gate::default());
        let fuses: Vec<Fuse> = (0..devices).map(|_| Fuse::new(false)).collect();
        let backends = fuses.iter().map(|fuse| gate.before(fuse.on(worker(&domain(16))))).collect();
        let options = options();
        let engine = EngineOptions { batch_max: 4, ..options.serving.engine };
        let serving = ServingOptions { plugin_threads, engine, ..options.serving };
        let platform = start_on(folder.path(), PlatformOptions { serving, ..options }, backends);
        for (name, bundle) in bundles {
            platform.upload(&tenant(), &model(name), archive(bundle).as_slice(), NewUpload::default()).unwrap();
        }
        Self { gate, fuses, platform, _folder: folder }
    }

    fn allow(&self, in_flight_max: u32) {
        let settings = TenantSettings { in_flight_max, queued_max: 1000, ..TenantSettings::default() };
        self.platform.set_tenant(&tenant(), &settings).unwrap();
    }

    fn find(&self, name: &str) -> Arc<Deployed> {
        self.platform.find(&tenant(), name, None).unwrap()
    }

    /// Calls in flight and in line, and requests that the engine has.
    fn counts(&self) -> (u32, u32, u64) {
        let models = self.platform.figures(None).models;
        let in_engine = self.platform.serving().engine().counters().in_flight.load(Ordering::Acquire);
        (models.iter().map(|model| model.in_flight).sum(), models.iter().map(|model| model.queued).sum(), in_engine)
    }

    fn calls(&self, model: usize) -> CallFiguresView {
        self.platform.figures(None).models[model].calls.clone()
    }
}

/// Keeps the plugin thread on which its request ends until it may go on.
struct Holding {
    _answer: Answer,
    ends: Sender<()>,
    may_go_on: Receiver<()>,
}

impl Observer for Holding {
    fn ended(&mut self, _: &mut Result<InferResponse, InferError>, _: &CallTimes) {
        let _ = self.ends.send(());
        let _ = self.may_go_on.recv();
    }
}

/// Keeps all threads on which plugins of that model may be called, until what this gives is dropped: with answers so large that they are put together there.
fn hold(platform: &Platform, model: &Arc<Deployed>, threads: usize) -> Vec<Sender<()>> {
    let held = (0..threads).map(|seed| {
        let ((ends, has_ended), (go_on, may_go_on)) = (bounded(1), bounded(0));
        let (answer, mut writer) = Answer::new(0, Patience::endless());
        writer.observe(Box::new(Holding { _answer: answer, ends, may_go_on }));
        let request = (many_rows(seed), Urgency::default());
        assert!(platform.serving().begin(model.served(), request, Delivery::Whole, writer));
        has_ended.recv().unwrap();
        go_on
    });
    held.collect()
}

/// One row that is a request.
fn row(seed: usize) -> InferRequest {
    let rows = requests::sum(seed, 9).inputs[0].to_f32().unwrap();
    requests::of(vec![Tensor::from_f32("x", &[1, 9, 4], &rows)])
}

/// A call of so many rows that its answer is put together on a plugin thread.
fn many_rows(seed: usize) -> InferRequest {
    const ROWS: usize = 4000;
    let rows = requests::sum(seed, ROWS).inputs[0].to_f32().unwrap();
    requests::of(vec![Tensor::from_f32("x", &[ROWS, 1, 4], &rows)])
}

/// How many calls there are. All but the first have to wait.
const CALLS: usize = 24;

/// A call that has not been told its end.
struct Waiting {
    leaver: AbortHandle,
    answer: Ending,
    wanted: InferResponse,
    has_timeout: bool,
}

/// Loses one of two devices while no plugin thread is free, and waits until the engine has nothing any more: those that are to begin again, and what
/// keeps the thread. Every other call of a device may wait so long; how many had ended by then because they had waited so long.
fn lost(bench: &Bench, timeout: Duration) -> (Vec<Waiting>, u64, Vec<Sender<()>>) {
    let deployed = bench.find("rows");
    let wanted: Vec<_> = (0..CALLS).map(|seed| infer(&bench.platform, &tenant(), "rows", row(seed)).unwrap()).collect();
    wait_until("the bench is free", || bench.counts() == (0, 0, 0));
    let held = hold(&bench.platform, &deployed, 1);
    settled(bench.platform.serving().engine());
    bench.allow(1);
    bench.gate.close();
    let calls = wanted.into_iter().enumerate().map(|(seed, wanted)| {
        // Requests are given to the devices in turn.
        let has_timeout = seed % 4 >= 2;
        let call = Call { timeout: has_timeout.then_some(timeout), ..Call::new(row(seed)) };
        let (leaver, answer) = begin_to_leave(&bench.platform, &deployed, call).unwrap();
        Waiting { leaver, answer, wanted, has_timeout }
    });
    let mut calls: Vec<Waiting> = calls.collect();
    bench.allow(CALLS as u32);
    wait_until("all have begun", || bench.counts().1 == 0 && bench.counts().2 == u64::from(bench.counts().0));
    bench.fuses[0].light(2);
    bench.gate.open();
    wait_until("the engine has nothing", || bench.counts().2 == 0);
    let mut expired = 0;
    let mut is_waiting = |waiting: &Waiting| match waiting.answer.try_recv() {
        Ok(Ok(response)) => {
            assert_eq!(response.outputs, waiting.wanted.outputs);
            false
        }
        // While all stood still.
        Ok(Err(error)) => {
            assert!(waiting.has_timeout && error.kind() == ErrorKind::Deadline, "{error}");
            expired += 1;
            false
        }
        Err(_) => true,
    };
    wait_until("calls that ran have their answers", || {
        calls.retain(&mut is_waiting);
        calls.len() == bench.counts().0 as usize
    });
    (calls, expired, held)
}

/// Calls hear of their deadline, and those whose clients leave end, before any plugin thread comes to them. Their places are free then; the rest
/// restart and are answered.
#[test]
fn between_two_devices_calls_hear_of_their_end_at_once() {
    for timeout in [2, 10, 60].map(Duration::from_secs) {
        let bench = Bench::new(2, 1, &[("rows", BundleFolder::summing_rows())]);
        let (waiting, expired, held) = lost(&bench, timeout);
        let (timed, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiting| waiting.has_timeout);
        if timed.is_empty() {
            // The machine was too slow: their time was up before the device was lost.
            continue;
        }
        assert!(others.len() >= 2, "{} calls without a timeout were lost", others.len());
        let (left, kept) = others.split_at(others.len() / 2);
        for waiting in left {
            waiting.leaver.abort();
            let left = waiting.answer.recv_timeout(Duration::from_secs(20));
            assert!(matches!(left, Err(RecvTimeoutError::Disconnected)), "it ends at once: {left:?}");
        }
        for waiting in &timed {
            let error = waiting.answer.recv_timeout(timeout + Duration::from_secs(20)).expect("it hears in time").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        }
        // Their places are free, although nobody has come to them; only those that are kept have theirs.
        wait_until("places are free", || bench.counts().0 as usize == kept.len());
        assert_eq!(bench.calls(0).replayed, 0);
        drop(held);
        for waiting in kept {
            assert_eq!(waiting.answer.recv().unwrap().unwrap().outputs, waiting.wanted.outputs);
        }
        wait_until("all calls have ended", || bench.counts() == (0, 0, 0));
        let calls = bench.calls(0);
        assert_eq!(calls.replayed, kept.len() as u64, "those that were cancelled did not begin again");
        assert_eq!((calls.expired, calls.cancelled), (expired + timed.len() as u64, left.len() as u64));
        // What both runs of a request took is one request's.
        assert_eq!(calls.queue.count, 2 * CALLS as u64);
        assert_eq!(calls.success.count + calls.expired + calls.cancelled, 2 * CALLS as u64);
        return;
    }
    panic!("their time is always up before the device is lost");
}

/// How calls behave under load, and of which model.
const KINDS: [(&str, &str); 4] = [("honest", "honest"), ("honest", "stream-last"), ("honest", "resume-honest"), ("rows", "")];

/// Two of three devices go while clients call as fast as they can, more than may be in flight: each call is answered as if nothing were, or says that it
/// lost its device, which is so for those that lost two.
#[test]
fn devices_that_go_under_load_change_no_answer() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 40;
    let bundles = [("honest", BundleFolder::summing()), ("rows", BundleFolder::summing_rows())];
    let bench = Bench::new(3, 2, &bundles);
    let request = |kind: usize, seed: usize| match KINDS[kind] {
        ("rows", _) => row(seed),
        (_, behaviour) => requests::behaving(behaviour, requests::sum(seed, 10 + seed)),
    };
    let kinds = 0..KINDS.len();
    let wanted: Vec<Vec<InferResponse>> = kinds
        .map(|kind| (0..5).map(|seed| infer(&bench.platform, &tenant(), KINDS[kind].0, request(kind, seed)).unwrap()).collect())
        .collect();
    wait_until("the bench is free", || bench.counts() == (0, 0, 0));
    bench.allow(4);
    let failed = bench.platform.serving().engine().counters().failed.load(Ordering::Acquire);
    bench.fuses[0].light(50);
    bench.fuses[1].light(120);
    let lost: usize = std::thread::scope(|scope| {
        let client = |client: usize| {
            let (bench, wanted) = (&bench, &wanted);
            move || {
                let one = |round: usize| {
                    let (kind, seed) = ((client + round) % KINDS.len(), (client * 7 + round) % 5);
                    let (_, answer) = begin_to_leave(&bench.platform, &bench.find(KINDS[kind].0), Call::new(request(kind, seed))).unwrap();
                    match answer.recv().expect("every call is told its end") {
                        Ok(response) => {
                            assert_eq!(response.outputs, wanted[kind][seed].outputs, "client {client}, round {round}");
                            false
                        }
                        Err(error) => {
                            let told = (error.kind(), error.to_string());
                            assert_eq!(told, (ErrorKind::Unavailable, "the device that ran this request is lost".to_owned()));
                            true
                        }
                    }
                };
                (0..ROUNDS).filter(|round| one(*round)).count()
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(client(number))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    wait_until("all calls have ended", || bench.counts() == (0, 0, 0));
    settled(bench.platform.serving().engine());
    let workers = bench.platform.serving().engine().snapshot().workers;
    assert_eq!(workers.iter().map(|worker| worker.up).collect::<Vec<_>>(), [false, false, true]);
    let figures: Vec<CallFiguresView> = (0..bundles.len()).map(|model| bench.calls(model)).collect();
    let sum = |of: fn(&CallFiguresView) -> u64| figures.iter().map(of).sum::<u64>();
    let calls = (CLIENTS * ROUNDS + KINDS.len() * 5) as u64;
    assert_eq!((sum(|calls| calls.failure.count), sum(|calls| calls.success.count)), (lost as u64, calls - lost as u64));
    assert_eq!(sum(|calls| calls.queue.count), calls, "what both runs of a request took is one request's");
    let failed = bench.platform.serving().engine().counters().failed.load(Ordering::Acquire) - failed;
    assert!(failed > 1, "{failed} requests lost a device");
    // Whoever failed in the engine began again, unless it is told so; who failed there twice is counted as having begun again if it came to a device.
    let (replayed, lost) = (sum(|calls| calls.replayed), lost as u64);
    assert!(replayed > 0, "nobody began again");
    assert!((failed.saturating_sub(2 * lost)..=failed - lost).contains(&replayed), "{replayed} of {failed} began again, {lost} are lost");
}
