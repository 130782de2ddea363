//! Stopping in order.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellwright_gate::Readiness;
use cellwright_http_api::Limits;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::harness::{Answer, Running, request};
use super::models::INFER;

const SUM: &[u8] = INFER.as_bytes();

/// Sends a request that has begun when this returns, and does not end before the gate opens.
fn held(server: &Running) -> TcpStream {
    server.gate.close();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/sums/infer", &[], SUM)).unwrap();
    server.in_flight(1);
    stream
}

#[test]
fn what_has_begun_is_finished_and_nothing_new_is_taken() {
    let mut server = Running::start();
    let mut idle = server.connect();
    idle.write_all(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 4096]).unwrap() > 0);
    let mut stream = held(&server);
    server.stop();
    // A connection that nobody uses is closed soon.
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    let refused = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpStream::connect(server.address).is_err()
    });
    assert!(refused, "it still accepts");
    server.gate.open();
    assert_eq!(Answer::read(&mut stream).status, 200);
    assert!(server.stopped());
}

#[test]
fn what_does_not_finish_in_time_is_cut_off() {
    let mut server = Running::with(Limits { drain: Duration::from_millis(300), ..Limits::default() }, None);
    let _stream = held(&server);
    let started = Instant::now();
    server.stop();
    assert!(!server.stopped());
    assert!(started.elapsed() < Duration::from_secs(20));
    server.cancelled(1);
}

#[test]
fn a_request_that_had_begun_to_arrive_is_answered() {
    let mut server = Running::start();
    let mut stream = server.connect();
    let request = request("POST", "/v2/models/sums/infer", &[("expect", "100-continue")], SUM);
    let (head, body) = request.split_at(request.len() - SUM.len());
    stream.write_all(head).unwrap();
    // It is told to go on when its head was taken.
    stream.read_exact(&mut [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()]).unwrap();
    let mut idle = server.connect();
    idle.write_all(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 4096]).unwrap() > 0);
    server.stop();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    // It has stopped accepting, and goes on to what has begun, for longer than it leaves to connections at rest.
    std::thread::sleep(Duration::from_millis(2500));
    stream.write_all(body).unwrap();
    assert_eq!(Answer::read(&mut stream).status, 200);
    assert!(server.stopped());
    assert_eq!(server.platform.readiness(), Readiness::Draining);
}

const KEPT: &[u8] = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[test]
fn a_server_that_is_to_stop_says_so_and_serves_on_for_the_delay() {
    let mut server = Running::with(Limits { drain_delay: Duration::from_secs(5), ..Limits::default() }, None);
    let mut kept = server.connect();
    let mut over_http2 = server.runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let (sender, connection) = http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        (sender, tokio::spawn(connection))
    });
    let ready = "/v2/health/ready";
    assert_eq!(server.get(ready).status, 200);
    server.stop();
    while server.get(ready).status == 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.get(ready).refused(503, "about to stop");
    server.get("/v2/models/sums/ready").refused(503, "about to stop");
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(server.send("POST", "/v2/models/sums/infer", &[], SUM).status, 200);
    // A connection that was kept open is told that this answer is its last.
    kept.write_all(KEPT).unwrap();
    let answer = Answer::read(&mut kept);
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    let status = server.runtime.block_on(async {
        let live = http::Request::get("http://localhost/v2/health/live").body(Full::default()).unwrap();
        let status = over_http2.0.send_request(live).await.unwrap().status();
        over_http2.1.await.unwrap().unwrap();
        status
    });
    assert_eq!(status, 200);
    assert_eq!(server.get("/v2/health/live").status, 200, "it still serves");
    assert!(server.stopped());
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn connections_that_were_made_before_the_stop_are_answered() {
    let mut server = Running::with(Limits { connections_max: 1, ..Limits::default() }, None);
    let mut first = held(&server);
    // One of them waits in the server, the others in the listener's queue.
    let mut queued: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for stream in &mut queued {
        stream.write_all(KEPT).unwrap();
    }
    server.stop();
    std::thread::sleep(Duration::from_millis(300));
    server.gate.open();
    assert_eq!(Answer::read(&mut first).status, 200);
    for stream in &mut queued {
        let answer = Answer::read(stream);
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    assert!(server.stopped());
}

#[test]
fn a_request_that_comes_just_after_the_stop_is_answered() {
    let mut server = Running::start();
    let (mut silent, mut kept) = (server.connect(), server.connect());
    kept.write_all(KEPT).unwrap();
    assert!(kept.read(&mut [0; 4096]).unwrap() > 0);
    server.stop();
    std::thread::sleep(Duration::from_millis(300));
    for stream in [&mut silent, &mut kept] {
        stream.write_all(KEPT).unwrap();
        let answer = Answer::read(stream);
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    assert!(server.stopped());
}
