//! Sessions: input that keeps arriving, answers that leave in between, state that stays.

use cellwright_serving::InferError;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::host::Host;
use cellwright_tests::neighbours::beside;
use cellwright_tests::requests;
use cellwright_tests::sessions::open_session;

use super::sentence::complaint;

/// The sum after each chunk is that of all rows so far; chunks of other sessions run in between.
#[test]
fn a_session_goes_on_where_it_was() {
    let host = Host::shared();
    beside(host, host.summing(), || {
        let chunks = [3, 1, 20, 7];
        let sessions: Vec<_> = (0..8)
            .map(|n| open_session(host.serving(), host.summing(), requests::session(n, chunks[0])).expect("a session opens"))
            .collect();
        let mut sums: Vec<Vec<f32>> = vec![vec![0.0; 4]; sessions.len()];
        for (turn, rows) in chunks.into_iter().enumerate() {
            for (n, session) in sessions.iter().enumerate() {
                if turn > 0 {
                    session.push(requests::sum(n + turn, rows)).expect("a chunk is taken");
                }
            }
            for (n, session) in sessions.iter().enumerate() {
                let part = session.next_part().expect("a sum after each chunk");
                sums[n].iter_mut().zip(requests::sum_answer(n + turn, rows)).for_each(|(sum, chunk)| *sum += chunk);
                assert_eq!((part.name.as_str(), part.to_f32()), ("sum", Some(sums[n].clone())), "session {n}, chunk {turn}");
            }
        }
        for session in sessions {
            session.wait().expect("a session ends");
        }
    });
}

#[test]
fn a_bad_chunk_is_refused_or_ends_its_session_alone() {
    let host = Host::shared();
    beside(host, host.summing(), || {
        let open = || open_session(host.serving(), host.summing(), requests::session(1, 2)).expect("a session opens");
        let (bad, good) = (open(), open());
        let too_wide = cellwright_cell_graph::Tensor::from_f32("x", &[1, 5], &[0.0; 5]);
        assert_eq!(complaint("a chunk too wide", bad.push(requests::of(vec![too_wide])), &["x", "5", "4"]), None);
        bad.push(requests::sum(1, 0)).expect("a chunk without rows is the plugin's to refuse");
        assert_eq!(complaint("an empty chunk", bad.wait().map(|_| ()), &["at least one row"]), None);
        good.wait().expect("the other session ends");
    });
}

/// A session that nobody holds any more gives back what it held.
#[test]
fn a_session_that_is_dropped_leaves_room() {
    let host = Host::shared();
    beside(host, host.summing(), || {
        for _ in 0..1000 {
            let session = open_session(host.serving(), host.summing(), requests::session(1, 2)).expect("a session opens");
            drop(session);
        }
    });
}

/// What nobody reads does not pile up: the session ends, and says why.
#[test]
fn parts_that_nobody_reads_end_their_session() {
    let host = Host::shared();
    let bundle = BundleFolder::summing();
    bundle.edit("model.toml", "[samples]", "[limits]\nanswer_mb = 1\n[samples]");
    let model = host.load(&bundle).expect("the bundle loads");
    let session = open_session(host.serving(), &model, requests::session(1, 1)).expect("a session opens");
    let refused = (0..20_000).find_map(|n| session.push(requests::sum(n, 1)).err());
    assert!(matches!(refused, Some(InferError::SessionOver)), "20,000 parts wait for a client that reads none: {refused:?}");
    while session.next_part().is_some() {}
    assert_eq!(complaint("parts that wait", session.wait().map(|_| ()), &["1048576 bytes", "too slowly"]), None);
}
