//! SIGTERM under load: what has begun is finished, nothing new is taken, and nobody gets half an answer.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::{Answer, Server, is_sum, sum};
use rustix::process::Signal;

use crate::server::leaving::{STEPS, ask_long};

const CLIENTS: usize = 8;
/// Steps of the requests that are under way. They take hundreds of times as long as it takes to send them, on any machine.
const ROWS: usize = STEPS / 2;

#[derive(Debug, Default)]
struct Seen {
    answered: AtomicUsize,
    refused: AtomicUsize,
    unanswered: AtomicUsize,
}

#[test]
fn what_has_begun_is_finished_and_nothing_else_is_taken() {
    let server = Server::start(&[]);
    server.push("sums", &BundleFolder::summing());
    server.push("chain", &long_chain());
    let whole = |stream| Answer::read(&mut BufReader::new(stream)).expect("an answer").expect("before the connection ends");
    let expected = whole(ask_long(&server, ROWS)).json()["outputs"].clone();
    let (address, seen) = (server.address(), Seen::default());
    std::thread::scope(|scope| {
        let load: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let seen = &seen;
                scope.spawn(move || one_after_the_other(address, client, seen))
            })
            .collect();
        server.until("there is load", || seen.answered.load(Ordering::Acquire) > CLIENTS);
        let under_way: Vec<_> = (0..CLIENTS).map(|_| ask_long(&server, ROWS)).collect();
        server.until("they are under way", || server.figure("nv_inference_pending_request_count", "model=\"chain\"") >= CLIENTS as f64);
        server.signal(Signal::TERM);
        for stream in under_way {
            let answer = whole(stream);
            assert_eq!((answer.status, &answer.json()["outputs"]), (200, &expected), "a request that was under way was lost");
        }
        for client in load {
            client.join().expect("it ends");
        }
    });
    let (status, said) = server.wait();
    assert_eq!(status, Some(0), "{said:?}");
    assert!(TcpStream::connect(address).is_err(), "something still listens");
    // At most the one request of each client that was on its way when its connection was closed.
    assert!(seen.unanswered.load(Ordering::Acquire) <= CLIENTS, "{seen:?}");
}

/// A chain that takes requests of up to [`STEPS`] steps and answers with the last one's.
fn long_chain() -> BundleFolder {
    let chain = BundleFolder::dense();
    chain.edit("model.toml", "max_length = 16", &format!("max_length = {STEPS}"));
    chain
}

/// Asks on one connection until the server ends it; every answer is whole and right, or a refusal that says why.
fn one_after_the_other(address: std::net::SocketAddr, client: usize, seen: &Seen) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    for turn in 0.. {
        let (seed, rows) = (client + turn, 1 + turn % 50);
        let body = sum(seed, rows).to_string();
        let head = format!("POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        let sent = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat());
        match Answer::read(&mut reader) {
            Ok(Some(answer)) if answer.status == 200 => {
                assert!(is_sum(&answer, seed, rows), "{}", answer.text());
                seen.answered.fetch_add(1, Ordering::AcqRel);
            }
            Ok(Some(answer)) => {
                answer.refuses("while it stops", &[503], &["stop"]);
                assert!(answer.header("retry-after").is_some());
                seen.refused.fetch_add(1, Ordering::AcqRel);
            }
            Ok(None) => {
                seen.unanswered.fetch_add(1, Ordering::AcqRel);
                return;
            }
            // The server had closed before this request came.
            Err(cause) => {
                let closed = matches!(cause.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe) || sent.is_err();
                assert!(closed, "half of an answer: {cause}");
                seen.unanswered.fetch_add(1, Ordering::AcqRel);
                return;
            }
        }
    }
}

/// A server that waits so long for what is unfinished, and requests that have just begun.
fn at_work(drain_seconds: &str) -> (Server, Vec<TcpStream>) {
    let server = Server::start(&["--drain-seconds", drain_seconds]);
    server.push("chain", &long_chain());
    let streams = (0..24).map(|_| ask_long(&server, STEPS)).collect();
    server.until("they are pending", || server.figure("nv_inference_pending_request_count", "model=\"chain\"") >= 24.0);
    (server, streams)
}

#[test]
fn a_stop_has_an_end_even_if_the_work_has_none() {
    let (server, streams) = at_work("1");
    let asked = std::time::Instant::now();
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert_eq!(status, Some(1), "{said:?}");
    assert!(said.iter().any(|line| line.contains("calls that have no answer")), "{said:?}");
    assert!(asked.elapsed() < std::time::Duration::from_secs(20), "{:?}", asked.elapsed());
    drop(streams);
}

#[test]
fn a_server_that_is_asked_to_stop_again_stops_at_once() {
    let (server, streams) = at_work("600");
    let asked = std::time::Instant::now();
    server.signal(Signal::TERM);
    // Two that come together are one.
    std::thread::sleep(std::time::Duration::from_secs(1));
    server.signal(Signal::INT);
    let (status, said) = server.wait();
    assert_eq!(status, Some(1), "{said:?}");
    assert!(said.iter().any(|line| line.contains("stopped at once by a second signal")), "{said:?}");
    assert!(asked.elapsed() < std::time::Duration::from_secs(60), "{:?}", asked.elapsed());
    drop(streams);
}

#[test]
fn a_server_may_be_told_to_wait_for_ever() {
    let server = Server::start(&["--drain-seconds", &u64::MAX.to_string()]);
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert_eq!(status, Some(0), "{said:?}");
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:?}");
}

/// Whatever asks a process and then its group to stop asks the process twice. What it has begun it still finishes.
#[test]
fn two_signals_of_one_moment_ask_once() {
    let server = Server::start(&[]);
    let mut connection = server.connect();
    let head = "POST /v2/repository/index HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
    let mut begun = [0; 25];
    connection.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.signal(Signal::TERM);
    server.signal(Signal::INT);
    let told = |what: &str| server.said().iter().any(|line| line.contains(what));
    let end = Instant::now() + Duration::from_secs(30);
    while !told("stopping: ") {
        assert!(Instant::now() < end, "{:?}", server.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    connection.write_all(b"{}").unwrap();
    let answer = Answer::read(&mut BufReader::new(&mut connection)).unwrap().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    drop(connection);
    assert_eq!(server.wait().0, Some(0));
}
