//! Sessions through the front door: what their parts take while they run, and what an idle session holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::RequestFailure;
use cellwright_gate::{Call, Deployed, Error, Limit, NewUpload, Platform, PlatformOptions};
use cellwright_registry::TenantSettings;
use cellwright_serving::{Abandoned, Answer, ErrorKind, InferError};
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{archive, begin, model, options, start_on, summing, tenant};
use cellwright_tests::requests;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Sender, channel};

/// A platform with the summing model, whose device stands still while its gate is closed. One call may be in flight.
struct Bench {
    // Dropped first: what waits behind it must go on for the rest to end.
    gate: Gate,
    platform: Arc<Platform>,
    sums: Arc<Deployed>,
    tasks: Runtime,
    _folder: TempDir,
}

fn sum(answer: &Answer) -> Vec<f32> {
    answer.next_part().expect("a sum after each part").to_f32().unwrap()
}

impl Bench {
    fn new() -> Self {
        Self::with(options())
    }

    fn with(options: PlatformOptions) -> Self {
        let (folder, gate) = (TempDir::new().unwrap(), Gate::default());
        let platform = start_on(folder.path(), options, vec![gate.before(worker(&domain(64)))]);
        platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
        let sums = platform.find(&tenant(), "sums", None).unwrap();
        let settings = TenantSettings { in_flight_max: 1, queued_max: 8, ..TenantSettings::default() };
        platform.set_tenant(&tenant(), &settings).unwrap();
        let tasks = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        Self { gate, platform, sums, tasks, _folder: folder }
    }

    fn open(&self, first: Call) -> Result<(Answer, Sender<Call>), Error> {
        let (sender, parts) = channel(4);
        let answer = self.tasks.block_on(self.platform.calls().session(&self.sums, first, parts))?;
        Ok((answer, sender))
    }

    /// Calls and parts in flight and in the queue.
    fn counts(&self) -> (u32, u32) {
        let models = self.platform.figures(None).models;
        (models[0].in_flight, models[0].queued)
    }

    fn in_engine(&self) -> u64 {
        self.platform.serving().engine().counters().in_flight.load(Ordering::Acquire)
    }
}

/// The bias of the model is one, added for each row.
fn added(sums: &[f32], seed: usize, rows: usize) -> Vec<f32> {
    let more = requests::sum(seed, rows).inputs[0].to_f32().unwrap();
    (0..4).map(|column| sums[column] + (0..rows).map(|row| more[4 * row + column] + 1.0).sum::<f32>()).collect()
}

#[test]
fn an_idle_session_holds_no_place_and_a_part_waits_for_one() {
    let bench = Bench::new();
    let (answer, parts) = bench.open(Call::new(requests::session(1, 2))).unwrap();
    let first = sum(&answer);
    assert_eq!(first, added(&[0.0; 4], 1, 2));
    wait_until("the session is idle", || bench.counts() == (0, 0));
    bench.gate.close();
    let other = begin(&bench.platform, &bench.sums, Call::new(requests::sum(7, 3))).unwrap();
    wait_until("a call has the only place", || bench.counts() == (1, 0));
    parts.blocking_send(Call::new(requests::sum(2, 3))).unwrap();
    wait_until("the part waits in the queue", || bench.counts() == (1, 1));
    bench.gate.open();
    assert!(other.recv().unwrap().is_ok());
    assert_eq!(sum(&answer), added(&first, 2, 3));
    drop(parts);
    answer.wait().unwrap();
    wait_until("its place is free", || bench.counts() == (0, 0) && bench.in_engine() == 0);
    assert_eq!(bench.platform.figures(None).models[0].calls.success.count, 3, "two parts and a call");
}

#[test]
fn a_part_that_is_late_ends_its_session() {
    let bench = Bench::new();
    let (answer, parts) = bench.open(Call::new(requests::session(1, 2))).unwrap();
    drop(sum(&answer));
    bench.gate.close();
    parts.blocking_send(Call { timeout: Some(Duration::from_millis(5)), ..Call::new(requests::sum(2, 3)) }).unwrap();
    assert!(matches!(answer.wait(), Err(InferError::Late(_))));
    bench.gate.open();
    wait_until("nothing of it is left", || bench.counts() == (0, 0) && bench.in_engine() == 0);
    assert_eq!(bench.platform.figures(None).models[0].calls.expired, 1);
}

/// Idle time does not count: the session lives for longer than a part may run.
#[test]
fn a_part_that_runs_for_too_long_ends_its_session() {
    let (mut options, max) = (options(), Duration::from_secs(1));
    options.serving.engine.request_time_max = Some(max);
    let bench = Bench::with(options);
    let (answer, parts) = bench.open(Call::new(requests::session(1, 2))).unwrap();
    let first = sum(&answer);
    std::thread::sleep(max + max / 4);
    parts.blocking_send(Call::new(requests::sum(2, 3))).unwrap();
    assert_eq!(sum(&answer), added(&first, 2, 3));
    bench.gate.close();
    parts.blocking_send(Call::new(requests::sum(3, 3))).unwrap();
    let ended = answer.wait();
    assert!(matches!(ended, Err(InferError::Engine(RequestFailure::Overdue { .. }))), "{ended:?}");
    bench.gate.open();
    wait_until("nothing of it is left", || bench.counts() == (0, 0) && bench.in_engine() == 0);
}

#[test]
fn a_part_that_is_refused_ends_its_session() {
    let bench = Bench::new();
    let (answer, parts) = bench.open(Call::new(requests::session(1, 2))).unwrap();
    drop(sum(&answer));
    parts.blocking_send(Call::new(requests::of(vec![Tensor::from_f32("x", &[1, 5], &[0.0; 5])]))).unwrap();
    assert_eq!(answer.wait().unwrap_err().kind(), ErrorKind::BadInput);
    let settings = TenantSettings { in_flight_max: 1, queued_max: 0, ..TenantSettings::default() };
    bench.platform.set_tenant(&tenant(), &settings).unwrap();
    bench.gate.close();
    let _other = begin(&bench.platform, &bench.sums, Call::new(requests::sum(7, 3))).unwrap();
    let refused = bench.open(Call::new(requests::session(1, 2))).err().and_then(|error| error.limit());
    assert_eq!(refused, Some(Limit::TenantInFlight));
    bench.gate.open();
}

#[test]
fn a_client_that_leaves_ends_its_idle_session() {
    let bench = Bench::new();
    let (answer, parts) = bench.open(Call::new(requests::session(1, 2))).unwrap();
    drop(sum(&answer));
    wait_until("the session is idle", || bench.counts() == (0, 0));
    drop(answer);
    wait_until("nothing of it is left", || bench.in_engine() == 0 && parts.is_closed());
}

#[test]
fn open_sessions_and_their_bytes_are_bounded() {
    let bench = Bench::new();
    let max = Limit::TenantSessions.default() as usize;
    let open: Vec<_> = (0..max).map(|_| bench.open(Call::new(requests::session(1, 1))).unwrap()).collect();
    let refused = |first: Call| bench.open(first).err().map(|error| (error.limit(), error.kind()));
    assert_eq!(refused(Call::new(requests::session(1, 1))), Some((Some(Limit::TenantSessions), ErrorKind::Busy)));
    drop(open);
    wait_until("all of them have ended", || bench.in_engine() == 0);
    wait_until("there is room", || bench.open(Call::new(requests::session(1, 1))).is_ok());
    let rows = Limit::TenantSessionBytes.default() as usize / 16 + 1;
    let large = Tensor::from_f32("x", &[rows, 4], &vec![0.0; 4 * rows]);
    assert_eq!(refused(Call::new(requests::of(vec![large]))), Some((Some(Limit::TenantSessionBytes), ErrorKind::Busy)));
}

#[test]
fn a_host_that_drains_opens_no_session() {
    let bench = Bench::new();
    assert_eq!(bench.platform.drain(Duration::ZERO).left, 0);
    assert!(matches!(bench.open(Call::new(requests::session(1, 1))).err(), Some(Error::Draining)));
    assert!(begin(&bench.platform, &bench.sums, Call { priority: 1, ..Call::new(requests::sum(1, 1)) }).is_err());
}

#[test]
fn a_host_that_goes_ends_its_idle_sessions() {
    let bench = Bench::new();
    let (answer, _parts) = bench.open(Call::new(requests::session(1, 2))).unwrap();
    drop(sum(&answer));
    wait_until("the session is idle", || bench.counts() == (0, 0));
    let Bench { platform, tasks: _tasks, .. } = bench;
    drop(platform);
    let ended = answer.wait_until(Instant::now() + Duration::from_secs(20), &Abandoned::default());
    assert!(matches!(ended, Err(InferError::Engine(RequestFailure::Stopped))), "{ended:?}");
}
