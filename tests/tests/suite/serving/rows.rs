//! Calls whose rows are requests: one answer for all, in the order of the rows, or one error.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::Urgency;
use cellwright_protocol::InferRequest;
use cellwright_serving::{Answer, Delivery, ErrorKind, Patience};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::graphs::{settled, wait_until};
use cellwright_tests::requests;
use cellwright_tests::sessions::open_session;

use super::{IN_FLIGHT, LONG, bad_input, behaving, fault, host, host_of, refused};

/// A call of rows that are requests of three rows each.
fn call(seeds: impl IntoIterator<Item = usize>) -> InferRequest {
    let rows: Vec<Vec<f32>> = seeds.into_iter().map(|seed| requests::sum(seed, 3).inputs[0].to_f32().unwrap()).collect();
    shaped(&[rows.len(), 3, 4], &rows.concat())
}

fn shaped(shape: &[usize], data: &[f32]) -> InferRequest {
    requests::of(vec![Tensor::from_f32("x", shape, data)])
}

/// The same with a row that the picky behaviours cannot bear.
fn with_a_bad_row(seeds: usize, bad: usize) -> InferRequest {
    let mut data = call(0..seeds).inputs[0].to_f32().unwrap();
    data[bad * 12] = -1000.0;
    shaped(&[seeds, 3, 4], &data)
}

#[test]
fn each_row_has_its_answer() {
    let host = host();
    let model = host.model("rows");
    for delivery in [Delivery::Whole, Delivery::Parts] {
        for seeds in [vec![1], vec![1, 2, 3], (0..40).collect()] {
            let request = InferRequest { id: Some("the call's".to_owned()), ..call(seeds.clone()) };
            let response = host.serving.infer(&model, request, delivery).unwrap().wait().unwrap();
            let sums: Vec<f32> = seeds.iter().flat_map(|seed| requests::sum_answer(*seed, 3)).collect();
            assert_eq!(response.outputs, [Tensor::from_f32("sum", &[seeds.len(), 4], &sums)]);
            assert_eq!(response.id.as_deref(), Some("the call's"));
        }
    }
    host.is_whole_again();
}

#[test]
fn calls_that_cannot_be_taken_apart_are_refused() {
    let host = host();
    let model = host.model("rows");
    let sentence = |request| refused(host.whole(&model, request));
    assert_eq!(sentence(shaped(&[0, 3, 4], &[])).0, ErrorKind::BadInput);
    assert_eq!(sentence(shaped(&[2, 3, 3], &[0.0; 18])), bad_input("input `x` has shape [3, 3], the model takes [any, 4]"));
    let too_many = shaped(&[4097, 1, 4], &vec![0.0; 4097 * 4]);
    assert_eq!(sentence(too_many), bad_input("the call has 4097 rows, more than the limit of 4096"));
    assert_eq!(refused(open_session(&host.serving, &model, call([1])).map(drop)).0, ErrorKind::BadInput);
    host.is_whole_again();
}

/// Those before it were taken, and are cancelled.
#[test]
fn a_row_that_is_refused_ends_the_call() {
    let host = host();
    let model = host.model("rows");
    for bad in [0, 7, 31] {
        let request = behaving("picky", with_a_bad_row(32, bad));
        assert_eq!(refused(host.at_last(&model, &request)), bad_input("I cannot bear this row"));
    }
    let honest = behaving("picky", call(0..32));
    assert!(host.at_last(&model, &honest).is_ok(), "without a bad row it is answered");
    settled(host.serving.engine());
    let failed = host.serving.engine().counters().failed.load(Ordering::Relaxed);
    host.gate.close();
    // More rows than may be in flight: what was taken makes room again, even while the worker stands still.
    let (kind, text) = refused(host.whole(&model, call(0..IN_FLIGHT as usize + 1)));
    assert_eq!(kind, ErrorKind::Busy, "{text}");
    let counters = host.serving.engine().counters();
    wait_until("those that were taken are cancelled", || counters.failed.load(Ordering::Relaxed) >= failed + u64::from(IN_FLIGHT));
    host.gate.open();
    host.is_whole_again();
}

#[test]
fn a_row_that_fails_later_ends_the_call() {
    let host = host();
    let model = host.model("rows");
    for bad in [0, 7, 31] {
        let (kind, text) = refused(host.at_last(&model, &behaving("resume-picky", with_a_bad_row(32, bad))));
        assert_eq!(kind, ErrorKind::PluginFault, "{text}");
    }
    assert!(host.at_last(&model, &behaving("resume-picky", call(0..32))).is_ok(), "without a bad row it is answered");
    host.is_whole_again();
}

#[test]
fn a_client_that_leaves_takes_all_rows_along() {
    let host = host();
    let model = host.model("rows");
    host.gate.close();
    // Eight rows are with the worker, the others wait.
    let reply = host.serving.infer(&model, call(0..32), Delivery::Whole).unwrap();
    let counters = host.serving.engine().counters();
    wait_until("all rows have arrived", || counters.in_flight.load(Ordering::Relaxed) == 32);
    drop(reply);
    wait_until("every row is cancelled", || counters.failed.load(Ordering::Relaxed) == 32);
    host.gate.open();
    host.is_whole_again();
}

#[test]
fn no_more_rows_are_begun_when_the_time_is_up() {
    const ROWS: usize = 4000;
    let host = host_of(ROWS as u32);
    let model = host.model("rows");
    let counters = host.serving.engine().counters();
    let since = Instant::now();
    let (answer, writer) = Answer::new(0, Patience { since, until: Some(since + Duration::from_millis(3)) });
    let taken = host.serving.begin(&model, (call(0..ROWS), Urgency::default()), Delivery::Whole, writer);
    assert!(!taken, "all rows were begun although the deadline has passed");
    assert_eq!(answer.wait().unwrap_err().kind(), ErrorKind::Deadline);
    host.is_whole_again();
    let begun = counters.failed.load(Ordering::Relaxed) + counters.finished.load(Ordering::Relaxed);
    assert!(begun < ROWS as u64, "{begun} rows were begun");
}

/// Each of them is quick, and none is called back.
#[test]
fn rows_share_the_time_that_their_plugin_may_take() {
    let host = host_of(4096);
    let model = host.load_limited(&BundleFolder::summing_rows(), "request_cpu_ms = 10");
    assert!(host.whole(&model, call([1])).is_ok(), "a single row is answered");
    let all = "plugin `plugin.wasm` took more than 10 ms of processor time for one request, in all its calls together";
    assert_eq!(refused(host.whole(&model, call(0..4096))), fault(all));
    host.is_whole_again();
}

/// However quick each of them is.
#[test]
fn of_many_rows_that_take_long_together_their_thread_hears() {
    let host = host_of(4096);
    let model = host.model("rows");
    let before = LONG.get();
    assert!(host.whole(&model, call(0..4096)).is_ok());
    assert!(LONG.get() > before);
    host.is_whole_again();
}
