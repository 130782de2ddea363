//! Calls beyond what a tenant or a model may have in flight, calls without time, and the end of a platform's day.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cellwright_cell_graph::Tensor;
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_registry::TenantSettings;
use cellwright_serving::{Call, ErrorKind, InferError, Readiness};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::platform::{archive, begin, call, infer, model, options, other_tenant, start, start_with, summing, tenant};
use cellwright_tests::requests;
use crossbeam_channel::Receiver;
use tempfile::TempDir;

/// Rows of a call that is still there when the next one comes.
const LONG: usize = 20_000;

#[test]
fn a_model_and_a_tenant_may_have_so_many_calls_in_flight() {
    let folder = TempDir::new().unwrap();
    let platform = start_with(folder.path(), cellwright_serving::PlatformOptions { model_in_flight_max: 3, ..options() });
    let other = other_tenant(&platform, "other");
    for tenant in [&tenant(), &other] {
        platform.upload(tenant, &model("sums"), archive(&summing(1.0)).as_slice(), true).unwrap();
    }
    platform.set_tenant(&tenant(), &TenantSettings { queued_max: 0, ..TenantSettings::default() }).unwrap();
    platform.set_tenant(&other, &TenantSettings { in_flight_max: 2, queued_max: 0, ..TenantSettings::default() }).unwrap();
    for (tenant, room, whose) in [(&tenant(), 3, "model"), (&other, 2, "tenant")] {
        let deployed = platform.find(tenant, "sums", None).unwrap();
        let taken: Vec<_> = (0..room).map(|seed| begin(&platform, &deployed, call(requests::sum(seed, LONG))).unwrap()).collect();
        let refused = begin(&platform, &deployed, call(requests::sum(1, 1))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert_eq!(refused.to_string(), format!("{room} calls of this {whose} are in flight, which is its limit: try again later"));
        for (seed, answer) in taken.into_iter().enumerate() {
            let response = answer.recv().unwrap().unwrap();
            let bias = LONG as f32 * (1.0 - 1.0);
            assert_eq!(response.outputs[0].to_f32().unwrap()[0], requests::sum_answer(seed, LONG)[0] + bias);
        }
        infer(&platform, tenant, "sums", requests::sum(1, 1)).unwrap();
    }
    let figures = platform.figures(None).models;
    assert_eq!(
        figures.iter().map(|model| (model.calls.success.count, model.calls.shed, model.in_flight)).collect::<Vec<_>>(),
        [(4, 1, 0), (3, 1, 0)]
    );
}

#[test]
fn a_call_whose_time_is_up_is_cancelled() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), true).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let within = |timeout, rows| Call { timeout: Some(timeout), ..call(requests::sum(1, rows)) };
    let late = begin(&platform, &deployed, within(Duration::from_micros(1), LONG)).unwrap().recv().unwrap().unwrap_err();
    assert_eq!((late.kind(), late.to_string().as_str()), (ErrorKind::Deadline, "the timeout passed before the answer was there"));
    begin(&platform, &deployed, within(Duration::from_secs(600), 1)).unwrap().recv().unwrap().unwrap();
    let calls = platform.figures(None).models[0].calls.clone();
    assert_eq!((calls.expired, calls.failure.count, calls.success.count), (1, 1, 1));
}

#[test]
fn no_row_is_begun_when_the_time_is_up() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&BundleFolder::summing_rows()).as_slice(), true).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let rows = InferRequest { inputs: vec![Tensor::from_f32("x", &[100, 1, 4], &[1.0; 400])], ..InferRequest::default() };
    let engine = platform.serving().engine().counters();
    let ended = || engine.finished.load(Ordering::Relaxed) + engine.failed.load(Ordering::Relaxed);
    let at_first = ended();
    let late = begin(&platform, &deployed, Call { timeout: Some(Duration::ZERO), ..call(rows.clone()) }).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Deadline);
    assert_eq!(platform.figures(None).models[0].calls.expired, 1);
    infer(&platform, &tenant(), "sums", rows).unwrap();
    assert_eq!(ended() - at_first, 100, "the rows of the second call alone");
}

#[test]
fn a_plugin_that_only_fails_is_known_to_be_slow() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), true).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let quick = Duration::from_millis(1);
    assert!(deployed.unfold_usual() > quick, "what nobody knows counts as slow");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while deployed.unfold_usual() > quick {
        assert!(std::time::Instant::now() < deadline, "{:?}", deployed.unfold_usual());
        infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap();
    }
    let looping = requests::misbehaving("loop");
    let error = begin(&platform, &deployed, call(looping)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PluginFault, "{error}");
    assert!(deployed.unfold_usual() > 10 * quick, "{:?}", deployed.unfold_usual());
}

#[test]
fn draining_lets_calls_end_and_takes_no_more() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), true).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let answers: Vec<_> = (0..4).map(|seed| begin(&platform, &deployed, call(requests::sum(seed, LONG))).unwrap()).collect();
    assert_eq!(platform.drain(Duration::from_secs(600)).left, 0);
    assert_eq!(platform.readiness(), Readiness::Draining);
    assert!(answers.into_iter().all(|answer| answer.recv().unwrap().is_ok()));
    let refused = begin(&platform, &deployed, call(requests::sum(1, 1))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Draining, "{refused}");
}

/// How many of the calls that came first were answered when the last one was.
fn answered_before(first: &[Receiver<Result<InferResponse, InferError>>], last: &Receiver<Result<InferResponse, InferError>>) -> usize {
    last.recv().unwrap().unwrap();
    first.iter().filter(|answer| !answer.is_empty()).count()
}

#[test]
fn a_call_of_high_priority_goes_before_those_that_came_first() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), true).unwrap();
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let many: Vec<_> = (0..400).map(|seed| begin(&platform, &deployed, call(requests::sum(seed, 1000))).unwrap()).collect();
    let first = begin(&platform, &deployed, Call { priority: 1, ..call(requests::sum(1, 1000)) }).unwrap();
    let before = answered_before(&many, &first);
    assert!(before < 200, "{before} of 400 calls went before the one of the highest priority");
    assert!(many.iter().all(|answer| answer.recv().unwrap().is_ok()));
}

#[test]
fn a_tenant_that_floods_does_not_keep_others_waiting() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let other = other_tenant(&platform, "other");
    for tenant in [&tenant(), &other] {
        platform.upload(tenant, &model("sums"), archive(&summing(1.0)).as_slice(), true).unwrap();
    }
    let flooding = platform.find(&tenant(), "sums", None).unwrap();
    let quiet = platform.find(&other, "sums", None).unwrap();
    let flood: Vec<_> = (0..400).map(|seed| begin(&platform, &flooding, call(requests::sum(seed, 1000))).unwrap()).collect();
    let last = begin(&platform, &quiet, call(requests::sum(1, 1000))).unwrap();
    let before = answered_before(&flood, &last);
    assert!(before < 200, "{before} of 400 calls of the tenant that floods went before the other tenant's only one");
    assert!(flood.iter().all(|answer| answer.recv().unwrap().is_ok()));
}
