//! Clients that go away while they wait, and clients that never come to the point.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use cellwright_http_api::Limits;
use cellwright_serving::ErrorKind;

use crate::harness::{Answer, Running, request};

const WAIT: &[u8] = br#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let server = Running::start();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/wait/infer", &[], WAIT)).unwrap();
    server.host.waiting.reaches(1);
    drop(stream);
    server.host.cancelled.reaches(1);
}

#[test]
fn a_client_that_leaves_a_kept_connection_cancels_too() {
    let server = Running::start();
    let mut stream = server.connect();
    let head = format!("POST /v2/models/wait/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", WAIT.len());
    stream.write_all(&[head.as_bytes(), WAIT].concat()).unwrap();
    server.host.waiting.reaches(1);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    server.host.cancelled.reaches(1);
}

#[test]
fn a_client_that_leaves_a_stream_cancels_it() {
    let server = Running::start();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/wait/generate_stream", &[], br#"{"x":[1]}"#)).unwrap();
    server.host.waiting.reaches(1);
    drop(stream);
    server.host.cancelled.reaches(1);
}

#[test]
fn one_that_stays_is_answered_and_nothing_is_cancelled() {
    let server = Running::start();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/wait/infer", &[], WAIT)).unwrap();
    server.host.waiting.reaches(1);
    server.host.answer_all();
    assert_eq!(Answer::read(&mut stream).status, 200);
    // Were it counted as cancelled, this one would be the second.
    let mut other = server.connect();
    other.write_all(&request("POST", "/v2/models/wait/infer", &[], WAIT)).unwrap();
    server.host.waiting.reaches(2);
    drop(other);
    server.host.cancelled.reaches(1);
}

#[test]
fn a_body_that_stands_still_is_given_up() {
    let limits = Limits { body_grace: Duration::from_millis(200), ..Limits::default() };
    let server = Running::with(limits, None);
    let mut stream = server.connect();
    stream
        .write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{")
        .unwrap();
    Answer::read(&mut stream).refused(408, "too slowly");
    // Chunks without end, each in time and all of them too slow.
    let mut stream = server.connect();
    stream.write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let started = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        assert!(started.elapsed() < Duration::from_secs(10), "it is still taken");
        let _ = stream.write_all(b"1\r\n[\r\n");
        let mut buffer = [0; 1024];
        let read = stream.read(&mut buffer).unwrap_or(0);
        answer.extend_from_slice(&buffer[..read]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 408"));
}

#[test]
fn an_answer_that_is_left_unread_is_given_up() {
    let server = Running::with(Limits { write_timeout: Duration::from_millis(300), ..Limits::default() }, None);
    // More than sockets hold.
    let values = 4 << 20;
    let body = format!(r#"{{"inputs":[{{"name":"x","shape":[{values}],"datatype":"FP32","data":[{}1]}}]}}"#, "1,".repeat(values - 1));
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/echo/infer", &[], body.as_bytes())).unwrap();
    let started = Instant::now();
    // Whoever asks for the figures has a connection too.
    while !server.get("/metrics").text().contains("\ncellwright_http_connections 1\n") {
        assert!(started.elapsed() < Duration::from_secs(30), "it is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    let answer = Answer::read(&mut stream);
    let announced: usize = answer.header("content-length").unwrap().parse().unwrap();
    assert!(answer.status == 200 && answer.body.len() < announced, "all {announced} bytes of it came");
}

#[test]
fn a_connection_that_asks_nothing_is_closed() {
    let limits = Limits { idle_timeout: Duration::from_millis(200), ..Limits::default() };
    let server = Running::with(limits, None);
    for opening in [&b""[..], b"P", b"GET /v2 HTTP/1.1\r\nhost: localh", b"PRI * HTTP/2.0\r\n"] {
        let mut stream = server.connect();
        stream.write_all(opening).unwrap();
        let started = Instant::now();
        // Closed with or without a word, but closed.
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(started.elapsed() < Duration::from_secs(10), "{opening:?} is still waited for");
    }
    assert_eq!(server.get("/v2").status, 200);
}

#[test]
fn connections_beyond_the_limit_wait_for_others_to_end() {
    let server = Running::with(Limits { connections_max: 2, ..Limits::default() }, None);
    let [first, second] = [(); 2].map(|()| {
        let mut stream = server.connect();
        stream.write_all(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0, "it is answered, and the address to which nobody comes keeps no place");
        stream
    });
    let mut third = server.connect();
    third.write_all(&request("GET", "/v2", &[], b"")).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(third.read(&mut [0; 1]).is_err(), "it was answered beyond the limit");
    drop((first, second));
    third.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(Answer::read(&mut third).status, 200);
}

#[test]
fn plugins_that_take_their_time_hold_up_nobody_else() {
    let server = Running::with(Limits { slow_begins_max: 3, ..Limits::default() }, None);
    // More of them than the server has threads for everyone.
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&request("POST", "/v2/models/slow/infer", &[], WAIT)).unwrap();
            stream
        })
        .collect();
    server.host.waiting.reaches(3);
    assert_eq!(server.send("POST", "/v2/models/echo/infer", &[], WAIT).status, 200);
    let late = br#"{"parameters":{"timeout":20000},"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;
    server.send("POST", "/v2/models/slow/infer", &[], late).refused(504, "timeout passed");
    assert_eq!(server.host.waiting.now(), 3, "a tenant may have so many at once");
    let mut leaves = server.connect();
    leaves.write_all(&request("POST", "/v2/models/slow/infer", &[], WAIT)).unwrap();
    leaves.shutdown(std::net::Shutdown::Both).unwrap();
    let (ends, ended) = &*server.host.ended_before;
    ended.reaches(2);
    assert_eq!(
        *ends.lock().unwrap(),
        [ErrorKind::Deadline, ErrorKind::Cancelled],
        "its version hears of those that came to no more than waiting"
    );
    server.host.unblocked.add();
    slow.into_iter().for_each(|mut stream| assert_eq!(Answer::read(&mut stream).status, 200));
}

#[test]
fn many_idle_connections_disturb_nobody() {
    let server = Running::start();
    // Both ends are in this process, which has to have descriptors for them.
    let idle: Vec<_> = (0..400).map(|_| server.connect()).collect();
    assert_eq!(server.get("/v2").status, 200);
    drop(idle);
}

#[test]
fn calls_that_take_long_for_once_hold_up_nobody_else() {
    for threads in [1, 2] {
        let server = Running::on_threads(threads, Limits::default(), None);
        // More of them than the server has threads.
        let surprises: Vec<_> = (1..=4)
            .map(|count| {
                let mut stream = server.connect();
                stream.write_all(&request("POST", "/v2/models/surprise/infer", &[], WAIT)).unwrap();
                server.host.waiting.reaches(count);
                stream
            })
            .collect();
        assert_eq!(server.send("POST", "/v2/models/echo/infer", &[], WAIT).status, 200);
        server.host.unblocked.add();
        surprises.into_iter().for_each(|mut stream| assert_eq!(Answer::read(&mut stream).status, 200));
    }
}
