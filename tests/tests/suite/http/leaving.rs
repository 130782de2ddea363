//! Clients that go away while they wait, and clients that never come to the point.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_gate::Call;
use cellwright_http_api::Limits;
use cellwright_protocol::InferRequest;
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::tenant;
use cellwright_tests::requests;

use super::administration::block;
use super::harness::{Answer, LongCalls, Running, Settings, request};
use super::models::{GENERATE, INFER, LOOP, looping, parts, streamed, wide, wide_rows};

const SUM: &[u8] = INFER.as_bytes();

/// A server on which calls begin and do not end.
fn held() -> Running {
    let server = Running::start();
    server.gate.close();
    server
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let server = held();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/sums/infer", &[], SUM)).unwrap();
    server.in_flight(1);
    drop(stream);
    server.cancelled(1);
}

#[test]
fn a_client_that_leaves_a_kept_connection_cancels_too() {
    let server = held();
    let mut stream = server.connect();
    let head = format!("POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", SUM.len());
    stream.write_all(&[head.as_bytes(), SUM].concat()).unwrap();
    server.in_flight(1);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    server.cancelled(1);
}

#[test]
fn a_client_that_leaves_a_stream_cancels_it() {
    let server = held();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/sums/generate_stream", &[], GENERATE.as_bytes())).unwrap();
    server.in_flight(1);
    drop(stream);
    server.cancelled(1);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_stream_cancels_it() {
    let server = Running::start();
    server.has("parts", &parts());
    server.gate.close_after(1);
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/parts/generate_stream", &[], streamed(1000).to_string().as_bytes())).unwrap();
    stream.read_exact(&mut [0; b"HTTP/1.1 200".len()]).unwrap();
    assert_eq!(server.counts().cancelled, 0);
    drop(stream);
    server.cancelled(1);
}

#[test]
fn one_that_stays_is_answered_and_nothing_is_cancelled() {
    let server = held();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/sums/infer", &[], SUM)).unwrap();
    server.in_flight(1);
    server.gate.open();
    assert_eq!(Answer::read(&mut stream).status, 200);
    server.gate.close();
    // Were it counted as cancelled, this one would be the second.
    let mut other = server.connect();
    other.write_all(&request("POST", "/v2/models/sums/infer", &[], SUM)).unwrap();
    server.in_flight(1);
    drop(other);
    server.cancelled(1);
}

#[test]
fn a_body_that_stands_still_is_given_up() {
    let limits = Limits { body_grace: Duration::from_millis(200), ..Limits::default() };
    let server = Running::with(limits, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let head = b"POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{";
            server.raw(head).refused(408, "too slowly");
        });
        // Chunks without end, each in time and all of them too slow.
        let mut stream = server.connect();
        stream.write_all(b"POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
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
    });
}

#[test]
fn an_answer_that_is_left_unread_is_given_up() {
    let server = Running::with(Limits { write_timeout: Duration::from_millis(300), ..Limits::default() }, None);
    server.has("wide", &wide());
    let mut stream = server.connect();
    // More than sockets hold.
    stream.write_all(&request("POST", "/v2/models/wide/infer", &[], wide_rows(32).to_string().as_bytes())).unwrap();
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
    let limits = Limits { idle_timeout: Duration::from_millis(200), header_timeout: Duration::from_millis(200), ..Limits::default() };
    let server = Running::with(limits, None);
    std::thread::scope(|scope| {
        for opening in [&b""[..], b"P", b"GET /v2 HTTP/1.1\r\nhost: localh", b"PRI * HTTP/2.0\r\n"] {
            let mut stream = server.connect();
            scope.spawn(move || {
                stream.write_all(opening).unwrap();
                let started = Instant::now();
                // Closed with or without a word, but closed.
                let _ = stream.read_to_end(&mut Vec::new());
                assert!(started.elapsed() < Duration::from_secs(10), "{opening:?} is still waited for");
            });
        }
    });
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
    let server = Running::keeping_long_calls(2, Settings { slow_begins_max: 3, ..Settings::default() });
    server.has("loops", &looping());
    let path = "/v2/models/loops/infer";
    // From then on it is known to be slow.
    server.post(path, LOOP).refused(502, "the model's plugin failed");
    let long = LongCalls::keep(3);
    // More of them than the server has threads for everyone.
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&request("POST", path, &[], LOOP.as_bytes())).unwrap();
            stream
        })
        .collect();
    long.reach(3);
    assert_eq!(server.send("POST", "/v2/models/sums/infer", &[], SUM).status, 200);
    let late = LOOP.replace("\"behave\"", "\"timeout\":20000,\"behave\"");
    server.post(path, &late).refused(504, "the timeout of 20.0ms passed before the answer was there: the call waited for ");
    let mut leaves = server.connect();
    leaves.write_all(&request("POST", path, &[], LOOP.as_bytes())).unwrap();
    leaves.shutdown(std::net::Shutdown::Both).unwrap();
    // Its version hears of those that came to no more than waiting.
    wait_until("both are counted", || (server.counts().expired, server.counts().cancelled) == (1, 1));
    // The first one, that made it known, and these two: nothing of the fourth has begun.
    assert_eq!((server.counts().in_flight, server.counts().failed), (3, 3), "a tenant may have so many at once");
    drop(long);
    slow.into_iter().for_each(|mut stream| Answer::read(&mut stream).refused(502, "the model's plugin failed"));
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
        let server = Running::keeping_long_calls(threads, Limits::default());
        server.has("loops", &looping());
        server.is_quick("loops");
        let long = LongCalls::keep(4);
        // More of them than the server has threads.
        let surprises: Vec<_> = (1..=4)
            .map(|count| {
                let mut stream = server.connect();
                stream.write_all(&request("POST", "/v2/models/loops/infer", &[], LOOP.as_bytes())).unwrap();
                long.reach(count);
                stream
            })
            .collect();
        assert_eq!(server.send("POST", "/v2/models/sums/infer", &[], SUM).status, 200);
        drop(long);
        surprises.into_iter().for_each(|mut stream| Answer::read(&mut stream).refused(502, "the model's plugin failed"));
    }
}

#[test]
fn calls_that_bring_much_begin_where_they_hold_up_nobody_else() {
    let server = Running::on_one_thread_that_blocks(Limits::default());
    let deployed = server.platform.find(&tenant(), "sums", None).unwrap();
    let begin = |request: InferRequest| {
        let (calls, deployed) = (server.platform.calls().clone(), deployed.clone());
        server.runtime.spawn(async move { calls.call(&deployed, Call::new(request)).await.unwrap().end().await.0 })
    };
    let mut surplus = requests::sum(1, 3);
    surplus.inputs.extend((0..9).map(|number| Tensor::from_i64(&number.to_string(), &[1], &[1])));
    let begun = || server.platform.figures(None).models[0].calls.unfold.count;
    let (before, blocked) = (begun(), block(&server));
    // One thread serves connections, one after the other.
    let much = [requests::sum(1, 5000), surplus].map(begin);
    let little = begin(requests::sum(1, 3));
    server.runtime.block_on(little).unwrap().unwrap();
    assert!(begun() == before + 1 && much.iter().all(|call| !call.is_finished()), "they wait for the thread that blocks");
    drop(blocked);
    let [large, surplus] = much.map(|call| server.runtime.block_on(call).unwrap());
    assert_eq!(large.unwrap().outputs.len(), 1);
    assert!(surplus.unwrap_err().to_string().contains("the model has no input `0`: it takes `x`"));
}
