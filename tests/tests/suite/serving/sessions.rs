//! Sessions: how many chunks may wait, what comes after the end, and sessions that nobody holds any more.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cellwright_cell_graph::Tensor;
use cellwright_protocol::{InferRequest, RequestedOutput};
use cellwright_serving::ErrorKind;
use cellwright_tests::graphs::{settled, wait_until};
use cellwright_tests::requests;
use cellwright_tests::sessions::open_session;

use super::{bad_input, behaving, host, refused};

/// The sum after a first chunk of seed 1 and so many of seed 2, of two rows each.
fn sum_after(chunks: usize) -> Tensor {
    let (first, chunk) = (requests::sum_answer(1, 2), requests::sum_answer(2, 2));
    let sum: Vec<f32> = first.iter().zip(&chunk).map(|(first, chunk)| first + chunk * chunks as f32).collect();
    Tensor::from_f32("sum", &[4], &sum)
}

#[test]
fn chunks_that_wait_are_bounded() {
    /// As many as may wait.
    const WAITING_MAX: usize = 64;
    let host = host();
    let model = host.model("honest");
    host.gate.close();
    let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
    let (taken, is_open, was_early) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let parts = std::thread::scope(|scope| {
        scope.spawn(|| {
            for chunks in 1..=2 * WAITING_MAX {
                session.push(requests::sum(2, 2)).unwrap();
                was_early.fetch_or(chunks > WAITING_MAX && !is_open.load(Ordering::SeqCst), Ordering::SeqCst);
                taken.store(chunks, Ordering::SeqCst);
            }
        });
        wait_until("as many wait as may", || taken.load(Ordering::SeqCst) >= WAITING_MAX);
        // One more would be taken at once.
        (0..1000).for_each(|_| std::thread::yield_now());
        is_open.store(true, Ordering::SeqCst);
        host.gate.open();
        (0..=2 * WAITING_MAX).map(|_| session.next_part().unwrap()).collect::<Vec<_>>()
    });
    assert!(!was_early.into_inner(), "more than {WAITING_MAX} chunks were taken and none computed");
    assert_eq!(parts, (0..=2 * WAITING_MAX).map(sum_after).collect::<Vec<_>>(), "an answer to each chunk");
    session.wait().unwrap();
    host.is_whole_again();
}

#[test]
fn who_waits_for_room_gets_it() {
    let host = host();
    let model = host.model("honest");
    let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..300).for_each(|_| session.push(requests::sum(2, 2)).unwrap()));
        for chunks in 0..=300 {
            assert_eq!(session.next_part(), Some(sum_after(chunks)));
        }
    });
    session.wait().unwrap();
    host.is_whole_again();
}

/// What a growth says it lets go of is gone at the next call, also where the first growth says so.
#[test]
fn a_session_may_wait_before_it_has_answered() {
    let host = host();
    let model = host.model("honest");
    let session = open_session(&host.serving, &model, behaving("waiting-session", requests::sum(1, 2))).unwrap();
    // The plugin takes the number of rows from the first tensor that it still has.
    session.push(requests::sum(2, 3)).unwrap();
    let sum: Vec<f32> = requests::sum_answer(1, 2).iter().zip(requests::sum_answer(2, 3)).map(|(first, second)| first + second).collect();
    assert_eq!(session.next_part(), Some(Tensor::from_f32("sum", &[4], &sum)));
    session.wait().unwrap();
    host.is_whole_again();
}

#[test]
fn later_chunks_bring_inputs_alone() {
    let host = host();
    let model = host.model("honest");
    let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
    let inputs_alone = bad_input("the first chunk of a session sets its parameters and outputs: later chunks may have inputs only");
    assert_eq!(refused(session.push(requests::session(2, 2))), inputs_alone);
    let outputs = vec![RequestedOutput { name: "sum".to_owned(), parameters: Vec::new() }];
    assert_eq!(refused(session.push(InferRequest { outputs, ..requests::sum(2, 2) })), inputs_alone);
    session.push(requests::sum(2, 2)).unwrap();
    assert_eq!([session.next_part(), session.next_part()], [Some(sum_after(0)), Some(sum_after(1))]);
    session.wait().unwrap();
}

#[test]
fn calls_of_the_plugin_are_counted_anew_for_each_chunk() {
    let host = host();
    // One for a chunk, one for what came of it, which may come behind the next chunk, and one for the end.
    let model = host.limited("resumes_max = 4");
    let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
    for chunks in 0..10 {
        assert_eq!(session.next_part(), Some(sum_after(chunks)));
        session.push(requests::sum(2, 2)).unwrap();
    }
    session.wait().unwrap();
}

#[test]
fn nothing_is_taken_after_the_end() {
    let host = host();
    let model = host.model("honest");
    let over = bad_input("the session has ended");
    host.gate.close();
    let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
    session.push(requests::sum(2, 2)).unwrap();
    session.finish();
    assert_eq!(refused(session.push(requests::sum(2, 2))), over, "no more was to come");
    assert_eq!(refused(session.push(requests::sum(2, 2))), over);
    host.gate.open();
    let parts: Vec<Tensor> = std::iter::from_fn(|| session.next_part()).collect();
    assert_eq!(parts, [sum_after(0), sum_after(1)], "what came before is answered");
    assert_eq!(refused(session.push(requests::sum(2, 2))), over, "everything has been answered");
    session.finish();
    session.wait().unwrap();

    // The same for one that failed.
    let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
    session.push(requests::sum(2, 0)).unwrap();
    while session.next_part().is_some() {}
    assert_eq!(refused(session.push(requests::sum(2, 2))), over);
    assert_eq!(refused(session.wait()).0, ErrorKind::BadInput);
    host.is_whole_again();
}

/// Whether nothing of it runs, its first chunk runs, or it waits for more.
#[test]
fn a_session_that_is_dropped_is_over() {
    let host = host();
    let model = host.model("honest");
    let counters = host.serving.engine().counters();
    for (round, (chunks, stands_still)) in (1..).zip([(0, true), (5, true), (64, true), (0, false), (5, false)]) {
        if stands_still {
            host.gate.close();
        }
        let session = open_session(&host.serving, &model, requests::session(1, 2)).unwrap();
        (0..chunks).for_each(|_| session.push(requests::sum(2, 2)).unwrap());
        if !stands_still {
            (0..=chunks).for_each(|_| drop(session.next_part()));
        }
        drop(session);
        wait_until("it is cancelled", || counters.failed.load(Ordering::Relaxed) == round);
        host.gate.open();
        settled(host.serving.engine());
    }
    host.is_whole_again();
}
