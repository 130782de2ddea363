//! Connections on which nothing is under way: they end when they have rested for long, and soon where the server stops.

use std::io::{Read as _, Write as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellwright_http_api::Limits;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::harness::{Answer, Running, request};
use crate::tls_and_h2::files;

const INFER: &[u8] = br#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;
const GENERATE: &[u8] = br#"{"x":[1]}"#;
const IDLE: Duration = Duration::from_millis(300);
/// Longer than a connection at rest has once it was asked to end.
const LONG: Duration = Duration::from_millis(2500);

fn resting_briefly() -> Running {
    Running::with(Limits { idle_timeout: IDLE, ..Limits::default() }, None)
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, stream], payload].concat()
}

/// How an HTTP/2 client begins.
fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(4, 0, 0, &[])[..]].concat()
}

/// A request on the first stream. Its fields are those of HPACK's static table (RFC 7541, appendix A), with values as they are.
fn posted(path: &str, body: &[u8]) -> Vec<u8> {
    const METHOD_POST: u8 = 0x83;
    const SCHEME_HTTP: u8 = 0x86;
    let text = |name: u8, value: &str| [&[name, u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let fields = [vec![METHOD_POST, SCHEME_HTTP], text(1, "localhost"), text(4, path)].concat();
    [frame(1, 4, 1, &fields), frame(0, 1, 1, body)].concat()
}

#[test]
fn an_http2_connection_that_asks_nothing_more_is_ended() {
    let server = resting_briefly();
    server.runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let (mut sender, connection) = http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        // It answers pings, and closes when it is told that nothing more is taken.
        let connection = tokio::spawn(connection);
        let live = Request::get("http://localhost/v2/health/live").body(Full::default()).unwrap();
        assert_eq!(sender.send_request(live).await.unwrap().status(), 200);
        let ended = tokio::time::timeout(Duration::from_secs(10), connection).await;
        ended.expect("it is kept for ever").unwrap().unwrap();
    });
}

#[test]
fn an_http2_client_that_answers_nothing_is_not_waited_for() {
    let server = resting_briefly();
    let mut stream = server.connect();
    stream.write_all(&preface()).unwrap();
    let started = Instant::now();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!((IDLE..Duration::from_secs(10)).contains(&started.elapsed()), "{:?}", started.elapsed());
}

#[test]
fn what_takes_long_is_not_ended_with_those_at_rest() {
    let server = resting_briefly();
    let mut waiting = server.connect();
    waiting.write_all(&request("POST", "/v2/models/wait/infer", &[], INFER)).unwrap();
    let mut paused = server.connect();
    paused.write_all(&request("POST", "/v2/models/pause/generate_stream", &[], GENERATE)).unwrap();
    let mut over_http2 = server.connect();
    over_http2.write_all(&[preface(), posted("/v2/models/pause/generate_stream", GENERATE)].concat()).unwrap();
    server.host.waiting.reaches(3);
    sleep(IDLE + LONG);
    server.host.answer_all();
    server.host.unblocked.add();
    assert_eq!(Answer::read(&mut waiting).status, 200);
    assert!(Answer::read(&mut paused).text().contains("2.0"));
    assert!(has_both_parts(&mut over_http2));
}

#[test]
fn a_request_that_comes_as_its_connection_ends_is_answered() {
    let server = resting_briefly();
    let mut stream = server.connect();
    stream.write_all(&preface()).unwrap();
    // It has been told that the connection ends, and asks none the less.
    sleep(IDLE + Duration::from_millis(500));
    stream.write_all(&posted("/v2/models/pause/generate_stream", GENERATE)).unwrap();
    server.host.waiting.reaches(1);
    sleep(LONG);
    server.host.unblocked.add();
    assert!(has_both_parts(&mut stream));
}

fn has_both_parts(stream: &mut impl std::io::Read) -> bool {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.contains("1.0") && text.contains("2.0")
}

/// Clients that have begun to say something, or nothing, and stay.
fn half_open(server: &Running, openings: &[&[u8]]) -> Vec<std::net::TcpStream> {
    let open = |opening: &&[u8]| {
        let mut stream = server.connect();
        stream.write_all(opening).unwrap();
        stream
    };
    let streams = openings.iter().map(open).collect();
    // The server takes what has come.
    sleep(Duration::from_millis(200));
    streams
}

#[test]
fn a_stop_does_not_wait_for_clients_that_have_not_asked() {
    let (preface, secured) = (preface(), Running::with(Limits::default(), Some(files())));
    let openings = [&b""[..], b"GET /v2 HT", b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n", &preface[..10], &preface[..24], &preface];
    for (mut server, openings) in [(Running::start(), &openings[..]), (secured, &openings[..1])] {
        let streams = half_open(&server, openings);
        let started = Instant::now();
        server.stop();
        assert!(server.stopped());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        drop(streams);
    }
}

#[test]
fn whether_all_was_finished_is_said_of_requests_alone() {
    let mut server = Running::with(Limits { drain: Duration::from_millis(100), ..Limits::default() }, None);
    let streams = half_open(&server, &[b"GET /v2 HT"]);
    server.stop();
    assert!(server.stopped(), "nobody was left unanswered");
    drop(streams);
}

/// A request whose answer is more than sockets hold, of which the head has come.
fn unread(server: &Running) -> std::net::TcpStream {
    let values = 4 << 20;
    let body = format!(r#"{{"inputs":[{{"name":"x","shape":[{values}],"datatype":"FP32","data":[{}1]}}]}}"#, "1,".repeat(values - 1));
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/echo/infer", &[], body.as_bytes())).unwrap();
    assert!(stream.peek(&mut [0]).unwrap() > 0);
    stream
}

#[test]
fn a_stop_waits_for_who_reads_slowly() {
    let mut server = Running::start();
    let mut stream = unread(&server);
    server.stop();
    sleep(LONG);
    let answer = Answer::read(&mut stream);
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    assert!(server.stopped());
}

#[test]
fn an_answer_that_was_not_read_is_not_finished() {
    let mut server = Running::with(Limits { drain: Duration::from_millis(300), ..Limits::default() }, None);
    let stream = unread(&server);
    server.stop();
    assert!(!server.stopped());
    drop(stream);
}
