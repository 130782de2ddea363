//! Calls that wait for a place among those that their tenant or their model may have in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cellwright_gate::{Call, Deployed, Error, NewUpload, Platform, PlatformOptions, Readiness};
use cellwright_registry::TenantSettings;
use cellwright_serving::{Delivery, ErrorKind};
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{Ending, archive, begin, begin_then, begin_to_leave, model, options, start_on, summing, tenant};
use cellwright_tests::requests;
use crossbeam_channel::bounded;
use tempfile::TempDir;

const FULL: &str = "2 calls of this tenant wait to begin, which is its limit: try again later";

/// A platform with the summing model, whose device stands still while its gate is closed.
struct Bench {
    // Dropped first: what waits behind it must go on for the rest to end.
    gate: Gate,
    platform: Arc<Platform>,
    sums: Arc<Deployed>,
    _folder: TempDir,
}

impl Bench {
    /// With the gate closed.
    fn new(in_flight_max: u32, queued_max: u32) -> Self {
        Self::with(options(), in_flight_max, queued_max)
    }

    fn with(options: PlatformOptions, in_flight_max: u32, queued_max: u32) -> Self {
        let (folder, gate) = (TempDir::new().unwrap(), Gate::default());
        let platform = start_on(folder.path(), options, vec![gate.before(worker(&domain(16)))]);
        for name in ["sums", "twice"] {
            platform.upload(&tenant(), &model(name), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
        }
        let sums = platform.find(&tenant(), "sums", None).unwrap();
        let bench = Self { gate, platform, sums, _folder: folder };
        bench.allow(in_flight_max, queued_max);
        bench.gate.close();
        bench
    }

    fn allow(&self, in_flight_max: u32, queued_max: u32) {
        let settings = TenantSettings { in_flight_max, queued_max, ..TenantSettings::default() };
        self.platform.set_tenant(&tenant(), &settings).unwrap();
    }

    fn begin(&self, seed: usize) -> Ending {
        begin(&self.platform, &self.sums, Call::new(requests::sum(seed, 3))).unwrap()
    }

    fn refused(&self) -> Error {
        begin(&self.platform, &self.sums, Call::new(requests::sum(1, 3))).unwrap_err()
    }

    /// Calls of both models in flight and in line.
    fn counts(&self) -> [(u32, u32); 2] {
        let models = self.platform.figures(None).models;
        [0, 1].map(|number: usize| (models[number].in_flight, models[number].queued))
    }

    /// All calls have ended.
    fn is_over(&self) {
        while self.counts() != [(0, 0), (0, 0)] {
            std::thread::yield_now();
        }
    }
}

fn right(answer: &Ending, seed: usize) {
    let response = answer.recv().unwrap().unwrap();
    assert_eq!(response.outputs[0].to_f32().unwrap()[0], requests::sum_answer(seed, 3)[0]);
}

#[test]
fn calls_beyond_a_tenants_bound_wait_and_more_are_refused() {
    let bench = Bench::new(2, 2);
    let answers: Vec<_> = (0..4).map(|seed| bench.begin(seed)).collect();
    assert_eq!(bench.counts(), [(2, 2), (0, 0)]);
    let refused = bench.refused();
    assert_eq!((refused.kind(), refused.to_string().as_str()), (ErrorKind::Busy, FULL));
    bench.gate.open();
    (0..4).for_each(|seed| right(&answers[seed], seed));
    bench.is_over();
    let calls = bench.platform.figures(None).models[0].calls.clone();
    assert_eq!((calls.success.count, calls.shed, calls.failure.count), (4, 1, 1));
}

#[test]
fn a_model_that_has_no_room_lets_calls_of_others_pass() {
    let bench = Bench::with(PlatformOptions { model_in_flight_max: 1, ..options() }, 2, 2);
    let answers: Vec<_> = (0..3).map(|seed| bench.begin(seed)).collect();
    assert_eq!(bench.counts(), [(1, 2), (0, 0)]);
    assert_eq!(bench.refused().to_string(), FULL);
    let twice = bench.platform.find(&tenant(), "twice", None).unwrap();
    let other = begin(&bench.platform, &twice, Call::new(requests::sum(7, 3))).unwrap();
    assert_eq!(bench.counts(), [(1, 2), (1, 0)]);
    bench.gate.open();
    (0..3).for_each(|seed| right(&answers[seed], seed));
    right(&other, 7);
    bench.is_over();
}

#[test]
fn a_higher_bound_lets_those_that_wait_begin() {
    let bench = Bench::new(1, 2);
    let answers: Vec<_> = (0..3).map(|seed| bench.begin(seed)).collect();
    assert_eq!(bench.counts()[0], (1, 2));
    bench.allow(3, 2);
    assert_eq!(bench.counts()[0], (3, 0));
    bench.gate.open();
    (0..3).for_each(|seed| right(&answers[seed], seed));
}

#[test]
fn those_of_high_priority_begin_first_and_then_those_that_came_first() {
    let bench = Bench::new(1, 8);
    let (sender, ended) = bounded(8);
    for (name, priority) in [(0, 0), (1, 0), (2, 3), (3, 1), (4, 3), (5, 0)] {
        let call = Call { priority, ..Call::new(requests::sum(1, 3)) };
        let sender = sender.clone();
        begin_then(&bench.platform, &bench.sums, call, move |result| sender.send((name, result.is_ok())).unwrap()).unwrap();
    }
    bench.gate.open();
    let order: Vec<_> = ended.iter().take(6).collect();
    assert_eq!(order, [0, 3, 2, 4, 1, 5].map(|name| (name, true)));
}

#[test]
fn a_call_that_waits_ends_when_its_time_is_up_or_its_client_leaves() {
    let bench = Bench::new(1, 2);
    let runs = bench.begin(0);
    let short = Call { timeout: Some(Duration::from_millis(1)), ..Call::new(requests::sum(1, 3)) };
    let late = begin(&bench.platform, &bench.sums, short).unwrap();
    assert_eq!(late.recv().unwrap().unwrap_err().kind(), ErrorKind::Deadline);
    let (leaver, left) = begin_to_leave(&bench.platform, &bench.sums, Call::new(requests::sum(1, 3))).unwrap();
    let stays = bench.begin(2);
    assert_eq!((bench.counts()[0], bench.refused().to_string().as_str()), ((1, 2), FULL));
    leaver.abort();
    assert!(left.recv().is_err(), "it is not answered");
    let comes = bench.begin(3);
    bench.gate.open();
    for (answer, seed) in [(runs, 0), (stays, 2), (comes, 3)] {
        right(&answer, seed);
    }
    let calls = bench.platform.figures(None).models[0].calls.clone();
    assert_eq!((calls.expired, calls.cancelled, calls.shed, calls.success.count), (1, 1, 1, 3));
}

/// It waited, and now it runs: leaving still ends it.
#[test]
fn a_call_that_has_waited_is_cancelled_where_it_runs() {
    let bench = Bench::new(1, 1);
    let (_, first) = begin_to_leave(&bench.platform, &bench.sums, Call::new(requests::sum(1, 3))).unwrap();
    let (leaver, left) = begin_to_leave(&bench.platform, &bench.sums, Call::new(requests::sum(1, 100_000))).unwrap();
    bench.gate.open();
    right(&first, 1);
    bench.gate.close();
    while bench.platform.figures(None).models[0].calls.unfold.count < 2 {
        std::thread::yield_now();
    }
    leaver.abort();
    assert!(left.recv().is_err(), "it is not answered");
    bench.gate.open();
    bench.is_over();
    assert_eq!(bench.platform.figures(None).models[0].calls.cancelled, 1);
}

/// It is cancelled because its client does not read what it is sent, and counts as that.
#[test]
fn a_call_that_is_cancelled_counts_as_what_it_was_cancelled_for() {
    let bench = Bench::with(PlatformOptions { part_bytes_max: 1, ..options() }, 1, 1);
    let streams = summing(1.0);
    streams.parameter("describe", "\"sums\"");
    let sample = r#"{"parameters":{"behave":"stream-all"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
    streams.write("samples.jsonl", sample.as_bytes());
    bench.gate.open();
    bench.platform.upload(&tenant(), &model("streams"), archive(&streams).as_slice(), NewUpload::default()).unwrap();
    let streams = bench.platform.find(&tenant(), "streams", None).unwrap();
    bench.gate.close();
    let request = requests::behaving("stream-all", requests::sum(1, 1000));
    let unread = Call { delivery: Delivery::Parts, ..Call::new(request) };
    let calls = bench.platform.calls();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let answer = runtime.block_on(calls.call(&streams, unread)).unwrap();
    bench.gate.open();
    wait_until("it is counted", || bench.platform.figures(None).models[0].calls.failure.count == 1);
    assert_eq!(answer.wait().unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(bench.platform.figures(None).models[0].calls.cancelled, 0);
}

#[test]
fn one_that_is_refused_when_it_begins_hears_why_and_keeps_nobody() {
    let bench = Bench::new(1, 8);
    let runs = bench.begin(0);
    let bad = [requests::of(Vec::new()), requests::misbehaving("trap")];
    let bad = bad.map(|request| begin(&bench.platform, &bench.sums, Call::new(request)).unwrap());
    let last = bench.begin(1);
    bench.gate.open();
    right(&runs, 0);
    assert_eq!(bad.map(|answer| answer.recv().unwrap().unwrap_err().kind()), [ErrorKind::BadInput, ErrorKind::PluginFault]);
    right(&last, 1);
    bench.is_over();
}

#[test]
fn draining_lets_those_that_wait_begin_and_end() {
    let bench = Bench::new(1, 2);
    let answers: Vec<_> = (0..3).map(|seed| bench.begin(seed)).collect();
    assert_eq!(bench.platform.drain(Duration::ZERO).left, 3);
    assert_eq!((bench.platform.readiness(), bench.refused().kind()), (Readiness::Draining, ErrorKind::Draining));
    bench.gate.open();
    assert_eq!(bench.platform.drain(Duration::from_secs(600)).left, 0);
    (0..3).for_each(|seed| right(&answers[seed], seed));
}

/// Nobody is forgotten in line, whoever comes, leaves and ends at once: this would never end.
#[test]
fn every_call_ends_once_whatever_happens_beside_it() {
    const CLIENTS: usize = 6;
    const CALLS: usize = 150;
    let bench = Bench::with(PlatformOptions { model_in_flight_max: 2, ..options() }, 3, 8);
    bench.gate.open();
    let twice = bench.platform.find(&tenant(), "twice", None).unwrap();
    let ended = AtomicU32::new(0);
    let client = |number: usize| {
        for turn in 0..CALLS {
            let seed = number + turn * CLIENTS;
            let deployed = if seed.is_multiple_of(3) { &twice } else { &bench.sums };
            let timeout = seed.is_multiple_of(5).then(|| Duration::from_micros(seed as u64));
            let call = Call { timeout, priority: seed as u32 % 3, ..Call::new(requests::sum(seed, 3)) };
            let Ok((running, answer)) = begin_to_leave(&bench.platform, deployed, call) else { continue };
            let leaves = seed.is_multiple_of(7);
            if leaves {
                running.abort();
            }
            match answer.recv() {
                Ok(result) => drop(ended.fetch_add(u32::from(result.is_ok()), Ordering::Relaxed)),
                Err(_) => assert!(leaves, "every call whose client stays hears its end"),
            }
            assert!(answer.recv().is_err(), "a call heard its end twice");
        }
    };
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn({
                let client = &client;
                move || client(number)
            });
        }
        scope.spawn(|| (0..100).for_each(|turn| bench.allow(2 + turn % 2, 8)));
    });
    bench.is_over();
    assert!(ended.load(Ordering::Relaxed) as usize > CLIENTS * CALLS / 4, "most are answered");
}
