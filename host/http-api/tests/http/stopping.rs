//! Stopping in order.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cellwright_http_api::Limits;

use crate::harness::{Answer, Running, request};

const WAIT: &[u8] = br#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;

#[test]
fn what_has_begun_is_finished_and_nothing_new_is_taken() {
    let mut server = Running::start();
    let mut idle = server.connect();
    idle.write_all(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 4096]).unwrap() > 0);
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/wait/infer", &[], WAIT)).unwrap();
    server.host.waiting.reaches(1);
    server.stop();
    // A connection that nobody uses is closed at once.
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    let refused = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpStream::connect(server.address).is_err()
    });
    assert!(refused, "it still accepts");
    server.host.answer_all();
    assert_eq!(Answer::read(&mut stream).status, 200);
    assert!(server.stopped());
}

#[test]
fn what_does_not_finish_in_time_is_cut_off() {
    let mut server = Running::with(Limits { drain: Duration::from_millis(300), ..Limits::default() }, None);
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/wait/infer", &[], WAIT)).unwrap();
    server.host.waiting.reaches(1);
    let started = Instant::now();
    server.stop();
    assert!(!server.stopped());
    assert!(started.elapsed() < Duration::from_secs(5));
    server.host.cancelled.reaches(1);
}

#[test]
fn a_request_that_had_begun_to_arrive_is_answered() {
    let mut server = Running::start();
    let mut stream = server.connect();
    let request = request("POST", "/v2/models/echo/infer", &[("expect", "100-continue")], WAIT);
    let (head, body) = request.split_at(request.len() - WAIT.len());
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
    assert!(server.host.draining.load(std::sync::atomic::Ordering::Acquire));
}
