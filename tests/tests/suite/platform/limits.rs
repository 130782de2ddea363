//! Calls beyond what a tenant or a model may have in flight, calls without time, and the end of a platform's day.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::PolicyKind;
use cellwright_gate::{Call, Deployed, NewUpload, Platform, Readiness};
use cellwright_protocol::InferRequest;
use cellwright_registry::TenantSettings;
use cellwright_serving::ErrorKind;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{
    archive, begin, begin_then, infer, model, options, other_tenant, start, start_on, start_with, summing, tenant,
};
use cellwright_tests::requests;
use crossbeam_channel::bounded;
use tempfile::TempDir;

/// Rows of a call that is still there when the next one comes.
const LONG: usize = 20_000;

#[test]
fn a_model_and_a_tenant_may_have_so_many_calls_in_flight() {
    let folder = TempDir::new().unwrap();
    let platform = start_with(folder.path(), cellwright_gate::PlatformOptions { model_in_flight_max: 3, ..options() });
    let other = other_tenant(&platform, "other");
    for tenant in [&tenant(), &other] {
        platform.upload(tenant, &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    }
    platform.set_tenant(&tenant(), &TenantSettings { queued_max: 0, ..TenantSettings::default() }).unwrap();
    platform.set_tenant(&other, &TenantSettings { in_flight_max: 2, queued_max: 0, ..TenantSettings::default() }).unwrap();
    for (tenant, room, whose) in [(&tenant(), 3, "model"), (&other, 2, "tenant")] {
        let deployed = platform.find(tenant, "sums", None).unwrap();
        let taken: Vec<_> = (0..room).map(|seed| begin(&platform, &deployed, Call::new(requests::sum(seed, LONG))).unwrap()).collect();
        let refused = begin(&platform, &deployed, Call::new(requests::sum(1, 1))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert_eq!(refused.to_string(), format!("{room} calls of this {whose} are in flight, which is its limit: try again later"));
        for (seed, answer) in taken.into_iter().enumerate() {
            let response = answer.recv().unwrap().unwrap();
            let bias = LONG as f32 * (1.0 - 1.0);
            assert_eq!(response.outputs[0].to_f32().unwrap()[0], requests::sum_answer(seed, LONG)[0] + bias);
        }
        infer(&platform, tenant, "sums", requests::sum(1, 1)).unwrap();
    }
    // A call gives its place back when its client has been told.
    wait_until("nobody has a place", || platform.figures(None).models.iter().all(|model| model.in_flight == 0));
    let figures = platform.figures(None).models;
    assert_eq!(
        figures.iter().map(|model| (model.calls.success.count, model.calls.shed, model.in_flight)).collect::<Vec<_>>(),
        [(4, 1, 0), (3, 1, 0)]
    );
}

#[test]
fn a_call_whose_time_is_up_is_cancelled() {
    let folder = TempDir::new().unwrap();
    let mut patient = options();
    // The default refuses what cannot be in time before it runs, if it has learned how long that takes.
    patient.serving.engine.scheduler.policy = PolicyKind::Cellular;
    let platform = start_with(folder.path(), patient);
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let within = |timeout, rows| Call { timeout: Some(timeout), ..Call::new(requests::sum(1, rows)) };
    let late = begin(&platform, &deployed, within(Duration::from_micros(1), LONG)).unwrap().recv().unwrap().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Deadline);
    assert!(late.to_string().starts_with("the timeout of 1.0µs passed before the answer was there: the call waited "), "{late}");
    begin(&platform, &deployed, within(Duration::from_secs(600), 1)).unwrap().recv().unwrap().unwrap();
    let calls = platform.figures(None).models[0].calls.clone();
    assert_eq!((calls.expired, calls.failure.count, calls.success.count), (1, 1, 1));
}

#[test]
fn a_calls_time_and_its_figures_begin_when_it_came() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let minute = Duration::from_secs(60);
    let kept = |timeout| Call { timeout, since: Instant::now().checked_sub(minute).unwrap(), ..Call::new(requests::sum(1, 3)) };
    begin(&platform, &deployed, kept(None)).unwrap().recv().unwrap().unwrap();
    let late = begin(&platform, &deployed, kept(Some(minute))).unwrap().recv().unwrap().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Deadline, "{late}");
    platform.drain(Duration::ZERO);
    let refused = begin(&platform, &deployed, kept(None)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Draining, "{refused}");
    let calls = platform.figures(None).models[0].calls.clone();
    assert_eq!((calls.success.count, calls.expired, calls.shed, calls.failure.count), (1, 1, 1, 2));
    for (total, times) in [(calls.success, 1), (calls.failure, 2), (calls.queue, 1)] {
        assert!(u128::from(total.ns) >= (minute * times).as_nanos(), "{calls:?}");
    }
}

#[test]
fn no_row_is_begun_when_the_time_is_up() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&BundleFolder::summing_rows()).as_slice(), NewUpload::default()).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let rows = InferRequest { inputs: vec![Tensor::from_f32("x", &[100, 1, 4], &[1.0; 400])], ..InferRequest::default() };
    let engine = platform.serving().engine().counters();
    let ended = || engine.finished.load(Ordering::Relaxed) + engine.failed.load(Ordering::Relaxed);
    let at_first = ended();
    let late = begin(&platform, &deployed, Call { timeout: Some(Duration::ZERO), ..Call::new(rows.clone()) });
    let late = late.unwrap().recv().unwrap().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Deadline);
    assert_eq!(platform.figures(None).models[0].calls.expired, 1);
    infer(&platform, &tenant(), "sums", rows).unwrap();
    assert_eq!(ended() - at_first, 100, "the rows of the second call alone");
}

#[test]
fn a_plugin_that_only_fails_is_known_to_be_slow() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let quick = Duration::from_millis(1);
    assert!(deployed.unfold_usual() > quick, "what nobody knows counts as slow");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while deployed.unfold_usual() > quick {
        assert!(std::time::Instant::now() < deadline, "{:?}", deployed.unfold_usual());
        infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap();
    }
    let looping = requests::misbehaving("loop");
    let error = begin(&platform, &deployed, Call::new(looping)).unwrap().recv().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PluginFault, "{error}");
    assert!(deployed.unfold_usual() > 10 * quick, "{:?}", deployed.unfold_usual());
}

#[test]
fn draining_lets_calls_end_and_takes_no_more() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let answers: Vec<_> = (0..4).map(|seed| begin(&platform, &deployed, Call::new(requests::sum(seed, LONG))).unwrap()).collect();
    assert_eq!(platform.drain(Duration::from_secs(600)).left, 0);
    assert_eq!(platform.readiness(), Readiness::Draining);
    assert!(answers.into_iter().all(|answer| answer.recv().unwrap().is_ok()));
    let refused = begin(&platform, &deployed, Call::new(requests::sum(1, 1))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Draining, "{refused}");
}

/// A platform whose only worker stands still until all of some calls have come.
struct HeldUp {
    gate: Gate,
    platform: Arc<Platform>,
}

impl HeldUp {
    fn new(folder: &TempDir) -> Self {
        let gate = Gate::default();
        let platform = start_on(folder.path(), options(), vec![gate.before(worker(&domain(64)))]);
        Self { gate, platform }
    }

    /// How many of 400 calls of the one model have ended when one of the other has, which came last.
    fn ended_before(&self, many: &Arc<Deployed>, last: (&Arc<Deployed>, u32)) -> usize {
        const MANY: usize = 400;
        let (ends, ended) = bounded(MANY + 1);
        let counters = self.platform.serving().engine().counters();
        wait_until("nothing else goes on", || counters.in_flight.load(Ordering::Relaxed) == 0);
        self.gate.close();
        let request = |number: usize| Call::new(requests::sum(number, 1000));
        for number in 0..MANY {
            let ends = ends.clone();
            begin_then(&self.platform, many, request(number), move |result| ends.send((number, result.is_ok())).unwrap()).unwrap();
        }
        let (deployed, priority) = last;
        let call = Call { priority, ..request(MANY) };
        begin_then(&self.platform, deployed, call, move |result| ends.send((MANY, result.is_ok())).unwrap()).unwrap();
        wait_until("all have come", || counters.in_flight.load(Ordering::Relaxed) == MANY as u64 + 1);
        self.gate.open();
        let ended: Vec<(usize, bool)> = ended.iter().collect();
        assert!(ended.len() == MANY + 1 && ended.iter().all(|(_, is_answered)| *is_answered));
        ended.iter().position(|(number, _)| *number == MANY).unwrap()
    }
}

#[test]
fn a_call_of_high_priority_goes_before_those_that_came_first() {
    let folder = TempDir::new().unwrap();
    let held_up = HeldUp::new(&folder);
    let platform = &held_up.platform;
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let before = held_up.ended_before(&deployed, (&deployed, 1));
    assert!(before < 100, "{before} of 400 calls went before the one of the highest priority");
    let before = held_up.ended_before(&deployed, (&deployed, 0));
    assert!(before > 300, "{before} of 400 calls went before the last one of no priority");
}

#[test]
fn a_tenant_that_floods_does_not_keep_others_waiting() {
    let folder = TempDir::new().unwrap();
    let held_up = HeldUp::new(&folder);
    let platform = &held_up.platform;
    let other = other_tenant(platform, "other");
    for tenant in [&tenant(), &other] {
        platform.upload(tenant, &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    }
    let flooding = platform.find(&tenant(), "sums", None).unwrap();
    let quiet = platform.find(&other, "sums", None).unwrap();
    let before = held_up.ended_before(&flooding, (&quiet, 0));
    assert!(before < 100, "{before} of 400 calls of the tenant that floods went before the other tenant's only one");
}
