//! What one request may take, and the one sentence with which it ends when it takes more.

use cellwright_serving::{Delivery, ErrorKind};
use cellwright_tests::graphs::settled;
use cellwright_tests::requests;
use cellwright_tests::sessions::open_session;

use super::{IN_FLIGHT, behaving, fault, host, host_with, refused};

#[test]
fn a_plugin_that_goes_on_for_ever_is_stopped() {
    let host = host();
    for limit in [1, 7] {
        let model = host.limited(&format!("resumes_max = {limit}"));
        let sentence = refused(host.whole(&model, behaving("resume-forever", requests::sum(1, 3))));
        let times = if limit == 1 { "1 time".to_owned() } else { format!("{limit} times") };
        assert_eq!(sentence, fault(&format!("plugin `plugin.wasm` was called back {times} for one request, which is the limit")));
    }
    host.is_whole_again();
}

/// The client takes parts, but does not read them.
#[test]
fn an_answer_that_nobody_reads_is_bounded() {
    let host = host();
    let model = host.limited("answer_mb = 1");
    let request = behaving("stream-last", requests::sum(1, 20_000));
    let reply = host.serving.infer(&model, request, Delivery::Parts).unwrap();
    let failed = || host.serving.engine().counters().failed.load(std::sync::atomic::Ordering::Relaxed) == 1;
    cellwright_tests::graphs::wait_until("it is cancelled", failed);
    let waited: usize = std::iter::from_fn(|| reply.next_part()).map(|part| part.data.len()).sum();
    assert!(waited < 1 << 20, "{waited} bytes waited");
    let sentence = "more than 1048576 bytes of this answer's parts wait for the client, which reads them too slowly".to_owned();
    assert_eq!(refused(reply.wait()), (ErrorKind::TooLarge, sentence));
    host.is_whole_again();
}

/// Each of them alone is small enough.
#[test]
fn answers_together_are_bounded() {
    let host = host_with(IN_FLIGHT, Some(400_000));
    let model = host.model("sums");
    // 5000 rows of 16 bytes, and a byte for each, twice.
    let begin = || host.serving.infer(&model, behaving("stream-all", requests::sum(1, 5000)), Delivery::Whole);
    let begin_at_last = || loop {
        match begin() {
            Err(error) if error.kind() == ErrorKind::Busy => std::thread::yield_now(),
            begun => return begun.unwrap(),
        }
    };
    let is_full = || {
        let sentence = "the graphs and answers of this tenant that are in flight would take more than 400000 bytes of memory, which is the limit: \
                        try again later";
        assert_eq!(refused(begin().map(drop)), (ErrorKind::Busy, sentence.to_owned()));
    };
    host.gate.close();
    let (first, second) = (begin().unwrap(), begin().unwrap());
    is_full();
    drop(first);
    let third = begin_at_last();
    is_full();
    host.gate.open();
    assert!(second.wait().is_ok());
    let fourth = begin().unwrap();
    assert!(fourth.wait().is_ok());
    settled(host.serving.engine());
    let fifth = begin().unwrap();
    is_full();
    drop(third);
    let sixth = begin_at_last();
    assert!(fifth.wait().is_ok() && sixth.wait().is_ok());
    host.is_whole_again();
}

/// Its answer is a few bytes.
#[test]
fn a_graph_has_room_with_the_answers_or_is_not_begun() {
    let large = || behaving("many-chains-beside", requests::sum(1, 3));
    let host = host_with(IN_FLIGHT, Some(400_000));
    let sentence = refused(host.whole(&host.model("honest"), large()));
    assert_eq!(sentence.0, ErrorKind::Busy);
    assert!(sentence.1.contains("graphs and answers of this tenant that are in flight would take more than 400000 bytes"), "{sentence:?}");
    host.is_whole_again();
    let host = host_with(IN_FLIGHT, Some(4_000_000));
    let model = host.model("honest");
    for _ in 0..20 {
        let answer = host.whole(&model, large());
        assert!(answer.is_ok(), "what it took was not given back: {answer:?}");
    }
    host.is_whole_again();
}

/// A session that never lets go of its first chain is ended before the records of all later ones become many.
#[test]
fn what_is_kept_for_ever_is_bounded() {
    let host = host();
    let model = host.limited("chains_max = 8");
    let go_on = |behaviour| {
        let session = open_session(&host.serving, &model, behaving(behaviour, requests::sum(1, 2))).unwrap();
        let taken = (0..50).take_while(|_| session.next_part().is_some() && session.push(requests::sum(2, 2)).is_ok()).count();
        (taken, session.wait().map(drop))
    };
    let (taken, outcome) = go_on("session");
    assert!(taken == 50 && outcome.is_ok(), "{taken} chunks, {outcome:?}");
    let (taken, outcome) = go_on("hoarding-session");
    let (kind, text) = refused(outcome);
    assert!(taken <= 8 && kind == ErrorKind::PluginFault, "{taken} chunks, {text}");
    assert!(text.contains("9 chains since the oldest one it keeps") && text.contains("limit of 8"), "{text}");
    host.is_whole_again();
}
