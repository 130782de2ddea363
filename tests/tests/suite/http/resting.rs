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

use super::harness::{Answer, Running, request};
use super::models::{parts, streamed, wide, wide_rows};
use super::tls_and_h2::files;

/// Steps of a request that has to wait at a gate which lets few tasks pass. As events they fit into the window that HTTP/2 begins with.
const STEPS: usize = 400;
const IDLE: Duration = Duration::from_millis(300);
/// Longer than a connection at rest has once it was asked to end.
const LONG: Duration = Duration::from_millis(2500);

fn resting_briefly() -> Running {
    Running::with(Limits { idle_timeout: IDLE, ..Limits::default() }, None)
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
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
    server.has("parts", &parts());
    server.gate.close();
    let body = streamed(STEPS).to_string();
    let mut waiting = server.connect();
    waiting.write_all(&request("POST", "/v2/models/parts/generate", &[], body.as_bytes())).unwrap();
    let mut paused = server.connect();
    paused.write_all(&request("POST", "/v2/models/parts/generate_stream", &[], body.as_bytes())).unwrap();
    let mut over_http2 = server.connect();
    over_http2.write_all(&[preface(), posted("/v2/models/parts/generate_stream", body.as_bytes())].concat()).unwrap();
    server.in_flight(3);
    // Some of their parts are sent, and the rest is not.
    server.gate.close_after(4);
    sleep(IDLE + LONG);
    assert_eq!(server.counts().in_flight, 3);
    server.gate.open();
    assert_eq!(Answer::read(&mut waiting).status, 200);
    assert!(has_all_parts(&mut paused));
    assert!(has_all_parts(&mut over_http2));
}

#[test]
fn a_request_that_comes_as_its_connection_ends_is_answered() {
    let server = resting_briefly();
    server.has("parts", &parts());
    server.gate.close();
    let mut stream = server.connect();
    stream.write_all(&preface()).unwrap();
    // It has been told that the connection ends, and asks none the less.
    sleep(IDLE + Duration::from_millis(500));
    stream.write_all(&posted("/v2/models/parts/generate_stream", streamed(STEPS).to_string().as_bytes())).unwrap();
    server.in_flight(1);
    server.gate.close_after(4);
    sleep(LONG);
    assert_eq!(server.counts().in_flight, 1);
    server.gate.open();
    assert!(has_all_parts(&mut stream));
}

#[test]
fn a_head_and_a_pause_have_limits_of_their_own() {
    let closed_after = |limits: Limits, opening: &[u8], is_closed: bool| {
        let server = Running::with(limits, None);
        let mut stream = server.connect();
        stream.write_all(opening).unwrap();
        let started = Instant::now();
        stream.set_read_timeout(Some(if is_closed { Duration::from_secs(20) } else { LONG })).unwrap();
        stream.read_to_end(&mut Vec::new()).is_ok().then(|| started.elapsed())
    };
    let long = Duration::from_secs(600);
    let (short_head, short_idle) = (
        Limits { idle_timeout: long, header_timeout: IDLE, ..Limits::default() },
        Limits { idle_timeout: IDLE, header_timeout: long, ..Limits::default() },
    );
    let (half, preface) = (b"GET /v2 HTTP/1.1\r\nhost: loc", preface());
    let cases = [
        (&short_head, &half[..], true),
        (&short_head, b"", false),
        (&short_head, b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n", false),
        // Not all that comes in HTTP/2 is of a request.
        (&short_head, &preface, false),
        (&short_idle, half, false),
        (&short_idle, b"", true),
        (&short_idle, &preface, true),
    ];
    std::thread::scope(|scope| {
        for (limits, opening, is_closed) in cases {
            scope.spawn(move || {
                let closed = closed_after(limits.clone(), opening, is_closed);
                assert_eq!(closed.is_some(), is_closed, "{:?} {limits:?}", String::from_utf8_lossy(opening));
                assert!(closed.is_none_or(|after| after >= IDLE));
            });
        }
    });
}

/// Whether a stream's first part came, and what comes at its end.
fn has_all_parts(stream: &mut impl std::io::Read) -> bool {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.contains(r#""sums":[[2.0,3.0,4.0,5.0]]"#) && text.contains(r#""sum":["#)
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
    std::thread::scope(|scope| {
        for (mut server, openings) in [(Running::start(), &openings[..]), (secured, &openings[..1])] {
            scope.spawn(move || {
                let streams = half_open(&server, openings);
                let started = Instant::now();
                server.stop();
                assert!(server.stopped());
                assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
                drop(streams);
            });
        }
    });
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
    server.has("wide", &wide());
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/wide/infer", &[], wide_rows(32).to_string().as_bytes())).unwrap();
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
