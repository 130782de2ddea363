//! Messages that were made to do harm.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use cellwright_gate::Bounds;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::harness::{Answer, Running, request};
use super::models::{GENERATE, INFER};

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn names_that_mean_other_paths_are_refused() {
    let server = Running::start();
    for name in ["%2e%2e", "..", "%2Fetc%2Fpasswd", "a%2fb", "a%00b", "a%0ab", "%C3%A4", "a%20b", &"x".repeat(129), ".hidden"] {
        for path in
            [format!("/v2/models/{name}/infer"), format!("/v2/repository/models/{name}/load"), format!("/v1/models/{name}/rollback")]
        {
            let answer = server.post(&path, "{}");
            assert!(matches!(answer.status, 400 | 404), "{path}: {} {}", answer.status, answer.text());
            assert!(answer.json()["error"].is_string());
        }
    }
    server.post("/v2/models/%ff/infer", "{}").refused(400, "not UTF-8");
    server.post("/v1/models/sums/versions/1e3/activate", "").refused(400, "is not a version");
    server.post("/v1/models/sums/versions/-1/activate", "").refused(400, "is not a version");
}

#[test]
fn bodies_over_the_limit_are_refused_while_they_come() {
    let server = Running::with(Bounds { body_bytes_max: 1 << 20, ..Bounds::default() }, None);
    let large = vec![b' '; (1 << 20) + 1];
    server.send("POST", "/v2/models/sums/infer", &[], &large).refused(413, "more than 1048576 bytes");
    let mut chunked =
        b"POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..32 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    server.raw(&chunked).refused(413, "more than 1048576 bytes");
    let bomb = gzipped(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 1 << 20);
    server.send("POST", "/v2/models/sums/infer", &[("content-encoding", "gzip")], &bomb).refused(413, "more than 1048576 bytes");
}

#[test]
fn a_body_in_several_members_is_one_body() {
    let server = Running::with(Bounds { body_bytes_max: 1 << 20, ..Bounds::default() }, None);
    let send = |body: &[u8]| server.send("POST", "/v2/models/sums/infer", &[("content-encoding", "gzip")], body);
    let (first, second) = INFER.as_bytes().split_at(20);
    let answer = send(&[gzipped(first), gzipped(b""), gzipped(second)].concat());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let half = gzipped(&vec![b' '; 600_000]);
    send(&half).refused(400, "not the JSON");
    send(&[&half[..], &half].concat()).refused(413, "more than 1048576 bytes");
    let cut = gzipped(second);
    send(&[&gzipped(first)[..], &cut[..cut.len() - 1]].concat()).refused(400, "cannot be inflated");
}

#[test]
fn what_is_left_behind_a_compressed_body_is_refused() {
    let server = Running::start();
    let zlib = {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(INFER.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    for (encoding, whole) in [("gzip", gzipped(INFER.as_bytes())), ("deflate", zlib)] {
        let send = |body: &[u8]| server.send("POST", "/v2/models/sums/infer", &[("content-encoding", encoding)], body);
        assert_eq!(send(&whole).status, 200);
        for rest in [&b"GARBAGE"[..], b"\0", b"more than the head of a member"] {
            let bytes = format!("is followed by {} bytes", rest.len());
            send(&[&whole[..], rest].concat()).refused(400, &bytes);
        }
        send(&whole[..whole.len() - 1]).refused(400, "cannot be inflated");
    }
}

#[test]
fn all_bodies_together_are_bounded() {
    let server = Running::with(Bounds { bodies_bytes_max: 100_000, ..Bounds::default() }, None);
    let body = vec![b' '; 90_000];
    let mut first = server.connect();
    let head = request("POST", "/v2/models/sums/infer", &[("expect", "100-continue")], &body);
    first.write_all(&head[..head.len() - body.len()]).unwrap();
    // It is told to go on when its share is taken.
    let mut told = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    first.read_exact(&mut told).unwrap();
    assert!(told.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&told));
    server.send("POST", "/v2/models/sums/infer", &[], &body).refused(503, "as many bytes of requests as it may");
    first.write_all(&body).unwrap();
    Answer::read(&mut first).refused(400, "not the JSON");
}

/// A request that has so many bytes.
fn padded(path: &str, length: usize) -> Vec<u8> {
    let input = if path.contains("generate") { GENERATE } else { INFER };
    format!("{input}{}", " ".repeat(length - input.len())).into_bytes()
}

const HELD: &str = "the tenant's requests hold as many bytes as they may";

/// Begins a call of the summing model, which is the one of that number, and waits until it is in flight.
fn begin(server: &Running, number: u32, (how, encoding): (&str, &str), body: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    let headers = [("content-encoding", encoding)];
    stream.write_all(&request("POST", &format!("/v2/models/sums/{how}"), &headers, body)).unwrap();
    server.in_flight(number);
    stream
}

/// Lets all of them end.
fn answered(server: &Running, calls: impl IntoIterator<Item = TcpStream>) {
    server.gate.open();
    calls.into_iter().for_each(|mut stream| assert_eq!(Answer::read(&mut stream).status, 200));
}

#[test]
fn what_a_call_holds_counts_until_its_end() {
    // Of which a tenant may hold half, but one request of it always.
    let server = Running::with(Bounds { bodies_bytes_max: 200_000, ..Bounds::default() }, None);
    for how in ["infer", "generate", "generate_stream"] {
        let path = format!("/v2/models/sums/{how}");
        server.gate.close();
        let mut calls: Vec<_> = (1..=3).map(|number| begin(&server, number, (how, "identity"), &padded(how, 30_000))).collect();
        server.send("POST", &path, &[], &padded(how, 30_000)).refused(429, HELD);
        calls.push(begin(&server, 4, (how, "identity"), &padded(how, 9_000)));
        answered(&server, calls);
        assert_eq!(server.send("POST", &path, &[], &padded(how, 90_000)).status, 200, "{how}");
        server.in_flight(0);
    }
}

#[test]
fn tensors_that_are_larger_than_their_body_count_as_what_they_are() {
    let server = Running::with(Bounds { bodies_bytes_max: 100_000, ..Bounds::default() }, None);
    server.gate.close();
    let long = format!("{{\"x\":[[1,1,1,1]{}]}}", ",[1,1,1,1]".repeat(2_499));
    let first = begin(&server, 1, ("generate", "identity"), long.as_bytes());
    server.send("POST", "/v2/models/sums/generate", &[], &padded("generate", 11_000)).refused(429, HELD);
    let second = begin(&server, 2, ("generate", "identity"), &padded("generate", 9_000));
    answered(&server, [first, second]);
}

#[test]
fn a_body_that_came_compressed_counts_as_what_it_is() {
    let server = Running::with(Bounds { bodies_bytes_max: 3_000_000, ..Bounds::default() }, None);
    server.gate.close();
    let first = begin(&server, 1, ("generate", "gzip"), &gzipped(&padded("generate", 1_000_000)));
    server.send("POST", "/v2/models/sums/generate", &[], &padded("generate", 600_000)).refused(429, HELD);
    let second = begin(&server, 2, ("generate", "identity"), &padded("generate", 400_000));
    answered(&server, [first, second]);
    assert_eq!(server.send("POST", "/v2/models/sums/generate", &[], &padded("generate", 600_000)).status, 200);
}

#[test]
fn small_bodies_count_too() {
    let server = Running::with(Bounds { bodies_bytes_max: 20_000, ..Bounds::default() }, None);
    server
        .send("POST", "/v2/models/sums/infer", &[], &vec![b' '; 30_000])
        .refused(503, "the server holds as many bytes of requests as it may");
    server.send("POST", "/v2/models/sums/infer", &[], &vec![b' '; 2000]).refused(400, "not the JSON");
}

#[test]
fn heads_are_bounded() {
    let server = Running::start();
    let head = |length: usize| format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {}\r\n\r\n", "a".repeat(length));
    assert_eq!(server.raw(head(20_000).as_bytes()).status, 200);
    let answer = server.raw(head(100_000).as_bytes());
    assert_eq!(answer.status, 431);
    assert!(answer.json()["error"].as_str().is_some_and(|error| error.contains("head")), "{}", answer.text());
}

#[test]
fn what_is_no_http_is_told_so() {
    let server = Running::start();
    let told = |bytes: &str, status: u16, words: &str| {
        let answer = server.raw(bytes.as_bytes());
        assert_eq!(answer.status, status, "{bytes}: {}", answer.text());
        assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
        let id = answer.header("x-request-id").expect("every answer has one");
        let error = answer.json()["error"].as_str().map(str::to_owned).unwrap_or_default();
        assert!(error.contains(words) && error.contains(&format!("request `{id}`)")), "{bytes}: {}", answer.text());
    };
    let post = "POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    told(&format!("{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"), 400, "head");
    told(&format!("{post}content-length: -2\r\n\r\n{{}}"), 400, "head");
    told("what is this\r\n\r\n", 400, "head");
    told(&format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(66_000)), 431, "head");
    told(&format!("{post}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501, "Transfer-Encoding");
    told("GET /v2 HTTP/1.1\r\nconnection: close\r\n\r\n", 400, "Host");
    // After an answer on the same connection too.
    let mut stream = server.connect();
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    stream.write_all(b"what is this\r\n\r\n").unwrap();
    assert!(Answer::read(&mut stream).json()["error"].is_string());
}

#[test]
fn heads_that_lie_are_refused() {
    let server = Running::start();
    let raw = |head: &str| {
        server.raw(format!("POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\n{{}}").as_bytes())
    };
    assert_eq!(raw("content-length: 2\r\ncontent-length: 3\r\n").status, 400);
    assert_eq!(raw("content-length: -2\r\n").status, 400);
    assert_eq!(raw("content-length: 2\r\ntransfer-encoding: chunked\r\n").status, 400);
    raw("content-length: 2\r\ninference-header-content-length: 1\r\ninference-header-content-length: 2\r\n").refused(400, "more than once");
    raw("content-length: 2\r\ncontent-encoding: gzip\r\ncontent-encoding: gzip\r\n").refused(400, "more than once");
    for version in ["1.0", "1.1"] {
        let twice = format!("GET /v2/health/live HTTP/{version}\r\nhost: localhost\r\nHost: localhost\r\nconnection: close\r\n\r\n");
        server.raw(twice.as_bytes()).refused(400, "the header host is given more than once");
    }
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert_eq!(raw(&format!("content-length: 2\r\n{many}")).status, 431);
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(100_000));
    assert!(matches!(server.raw(long.as_bytes()).status, 414 | 431));
    assert_eq!(server.raw(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n").status, 400);
    assert_eq!(server.get("/v2").status, 200);
}
