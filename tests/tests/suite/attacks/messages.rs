//! Bodies and answers that are long, or that nobody reads.

use std::io::Write as _;

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::request;
use cellwright_tests::town::{Town, connect_from, hold, until};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::attacks;

type Form = (usize, f64);

attacks! {
    a_message_is_small_also_unpacked = bombs;
    pages_of_metrics_are_made_once_a_second_whoever_asks = metrics;
    answers_that_nobody_reads_are_bounded = unread_pages;
    streams_that_nobody_reads_are_reset = unread_streams;
    events_that_nobody_reads_are_bounded = unread_events;
}

fn bombs((requests, fraction): Form) {
    let town = Town::start(&[]);
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    bomb.write_all(&vec![b' '; 64 << 20]).expect("memory");
    let bomb = bomb.finish().expect("memory");
    let headers = [("authorization", town.attacker.as_str()), ("content-encoding", "gzip")];
    for path in ["/v2/repository/index", "/v1/keys"] {
        town.server.send("POST", path, &headers, &bomb).refuses(path, &[413], &["the body has more than 65536 bytes"]);
    }
    town.endures(requests, fraction, |over| {
        until(over, || drop(town.server.send("POST", "/v2/repository/index", &headers, &bomb)));
    });
}

/// A model with as many versions as the attacker likes to upload.
fn models(town: &Town, count: usize) {
    let bundle = BundleFolder::summing();
    for number in 0..count {
        let uploaded = town.upload(&town.attacker, &format!("{}{number}", "x".repeat(120)), &bundle);
        assert_eq!(uploaded.status, 201, "{}", uploaded.text());
    }
}

fn metrics((requests, fraction): Form) {
    let town = Town::start(&[]);
    models(&town, 8);
    town.endures(requests, fraction, |over| until(over, || assert_eq!(town.send(&town.attacker, "GET", "/metrics", b"").status, 200)));
}

fn unread_pages((requests, fraction): Form) {
    let town = Town::start(&[]);
    models(&town, 8);
    let ask = request("GET", "/metrics", &[("authorization", &town.attacker)], b"");
    town.endures(requests, fraction, |over| {
        let mut connections = connect_from(&town.server, [127, 0, 0, 2], 40);
        connections.iter_mut().for_each(|connection| connection.write_all(&ask).expect("the server reads"));
        hold(over, connections);
    });
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header field without compression (RFC 7541, section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("a short text")], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

fn unread_streams((requests, fraction): Form) {
    const CONNECTIONS: usize = 100;
    const STREAMS: u32 = 256;
    let town = Town::start(&[]);
    let head = [field(":method", "GET"), field(":scheme", "http"), field(":path", "/nothing"), field(":authority", "a")].concat();
    // No answer's body may be sent.
    let window = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let asked: Vec<u8> = (0..STREAMS).flat_map(|stream| frame(1, 5, 2 * stream + 1, &head)).collect();
    let all = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &window, &asked].concat();
    town.endures(requests, fraction, |over| {
        let mut connections = connect_from(&town.server, [127, 0, 0, 2], CONNECTIONS);
        connections.iter_mut().for_each(|connection| drop(connection.write_all(&all)));
        hold(over, connections);
    });
}

fn unread_events((requests, fraction): Form) {
    let town = Town::start(&[]);
    let uploaded = town.upload(&town.attacker, "sums", &BundleFolder::summing());
    assert_eq!(uploaded.status, 201, "{}", uploaded.text());
    let rows: Vec<[f32; 4]> = vec![[0.125; 4]; 100_000];
    let body = json!({ "x": rows, "parameters": { "behave": "stream-all" } }).to_string();
    let ask = request("POST", "/v2/models/sums/generate_stream", &[("authorization", &town.attacker)], body.as_bytes());
    town.endures(requests, fraction, |over| {
        let mut connections = connect_from(&town.server, [127, 0, 0, 2], 8);
        connections.iter_mut().for_each(|connection| drop(connection.write_all(&ask)));
        hold(over, connections);
    });
}
