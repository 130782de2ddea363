//! Clients, models and hosts that go away while requests are in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_engine::RequestFailure;
use cellwright_serving::{Abandoned, Answer, Delivery, ErrorKind, InferError, ServedModel};
use cellwright_tests::graphs::{settled, wait_until};
use cellwright_tests::requests;

use super::{Host, IN_FLIGHT, behaving, host, refused};

/// Those that wait make room although the worker stands still; those whose task has begun, when it is done.
#[test]
fn a_reply_that_is_dropped_cancels_its_request() {
    let host = host();
    let model = host.model("honest");
    let counters = host.serving.engine().counters();
    let begin = || host.serving.infer(&model, requests::sum(1, 50), Delivery::Whole);
    host.gate.close();
    // So long that it is still there in the last round.
    let keep = host.serving.infer(&model, requests::sum(2, 5000), Delivery::Whole).unwrap();
    for round in 1..=10 {
        let others: Vec<_> = (1..IN_FLIGHT).map(|_| begin().unwrap()).collect();
        assert_eq!(begin().err().map(|error| error.kind()), Some(ErrorKind::Busy), "the host is full");
        drop(others);
        wait_until("all of them are cancelled", || counters.failed.load(Ordering::Relaxed) == round * u64::from(IN_FLIGHT - 1));
        // What a task in flight names keeps its place until that is done: let one batch after another pass.
        let begun = counters.tasks.load(Ordering::Relaxed);
        host.gate.close_after(20);
        wait_until("there is room", || counters.in_flight.load(Ordering::Relaxed) == 1);
        // Those of the next round are not to pass with what is left of these.
        wait_until("the worker stands still", || host.gate.holds_somebody());
        assert!(counters.tasks.load(Ordering::Relaxed) <= begun + 200, "nothing is computed for those who have left");
    }
    host.gate.open();
    assert_eq!(keep.wait().unwrap().outputs[0].to_f32(), Some(requests::sum_answer(2, 5000)));
    host.is_whole_again();
}

/// Dropping it when everything has come changes nothing for anybody.
#[test]
fn a_reply_that_is_dropped_late_cancels_nothing() {
    let host = host();
    let model = host.model("honest");
    for _ in 0..100 {
        let reply = host.serving.infer(&model, requests::sum(1, 5), Delivery::Parts).unwrap();
        assert_eq!(reply.next_part(), None, "nothing of it is streamed");
        drop(reply);
    }
    settled(host.serving.engine());
    assert_eq!(host.serving.engine().counters().failed.load(Ordering::Relaxed), 0);
}

fn begin(host: &Host, model: &Arc<ServedModel>) -> Answer {
    let request = behaving("resume-honest", requests::sum(1, 5));
    host.serving.infer(model, request, Delivery::Whole).unwrap()
}

/// Requests in the middle of their plugin's calls when the host goes: every client hears of its end.
#[test]
fn a_host_that_goes_ends_everybody() {
    let mut stopped = 0;
    for round in 0..10 {
        let host = host();
        let model = host.model("honest");
        host.gate.close_after(round * 3);
        let answers: Vec<_> = (0..50).map(|_| begin(&host, &model)).collect();
        let Host { serving, gate } = host;
        std::thread::scope(|scope| {
            scope.spawn(move || drop(serving));
            for answer in answers {
                let result = answer.wait_until(Instant::now() + Duration::from_secs(60), &Abandoned::default());
                match result {
                    Err(InferError::Engine(RequestFailure::Stopped)) => stopped += 1,
                    Ok(_) => {}
                    other => {
                        gate.open();
                        panic!("{other:?}");
                    }
                }
            }
            gate.open();
        });
    }
    assert!(stopped > 0, "the worker stood still in every round: some cannot have been answered");
}

#[test]
fn a_model_that_is_unloaded_takes_no_more() {
    let host = host();
    // The same cells, twice.
    let (model, other) = (host.model("honest"), host.model("honest"));
    let reply = host.serving.infer(&model, requests::sum(1, 50), Delivery::Whole).unwrap();
    host.serving.unload(&model);
    assert!(reply.wait().is_ok(), "those in flight end as they would");
    assert_eq!(refused(host.whole(&model, requests::sum(1, 5))).0, ErrorKind::Unavailable);
    assert!(host.whole(&other, requests::sum(1, 5)).is_ok());
    host.is_whole_again();
}
