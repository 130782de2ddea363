//! Clients that take their time, which must cost nobody else any.

use std::io::{BufReader, Read as _, Write as _};
use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::{BundleFolder, HIDDEN};
use cellwright_tests::http2::Http2;
use cellwright_tests::neighbours::beside_clients;
use cellwright_tests::server::{Answer, Server, is_sum, sum};

use crate::server::leaving;

/// All of them wait together for the time that a body has before its pace counts, which is ten seconds where nobody says otherwise.
#[test]
fn bodies_that_do_not_come_are_given_up() {
    let server = Server::start(&["--body-seconds", "2"]);
    server.push("sums", &BundleFolder::summing());
    let cases: [(&str, &[u8], &[u8]); 3] = [
        ("a body that stands still", b"POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{", b""),
        (
            "chunks that drip without end",
            b"POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
            b"1\r\n[\r\n",
        ),
        ("an upload that stands still", b"PUT /v1/models/late HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\nmodel", b""),
    ];
    beside_clients(&server, "sums", || {
        std::thread::scope(|scope| {
            for (what, beginning, drop) in cases {
                let server = &server;
                scope.spawn(move || drip(server, what, beginning, drop));
            }
        });
    });
    assert!(server.get("/v1/models/late").status == 404, "half of an upload is a model");
}

fn drip(server: &Server, what: &str, beginning: &[u8], drop: &[u8]) {
    let mut stream = server.connect();
    stream.write_all(beginning).expect("it is taken");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit can be set");
    let started = Instant::now();
    let mut heard = Vec::new();
    while heard.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(9), "{what}: it is still waited for");
        let _ = stream.write_all(drop);
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap_or(0);
        heard.extend_from_slice(&buffer[..read]);
    }
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit can be set");
    let answer = Answer::read(&mut BufReader::new(heard.chain(stream))).expect("an answer").expect("an answer");
    answer.refuses(what, &[408], &["too slowly"]);
}

#[test]
fn a_connection_whose_client_does_not_read_is_closed_in_the_time_that_is_set() {
    let server = leaving::start_with(&["--write-seconds", "1"]);
    let unread: Vec<_> = (0..3).map(|_| leaving::ask_long(&server, STEPS)).collect();
    server.until("all of them are computed", || server.figure("nv_inference_request_success", "model=\"chain\"") == 3.0);
    let written = Instant::now();
    server.until("they are closed", || server.figure("cellwright_http_connections", "") <= 1.0);
    assert!(written.elapsed() < Duration::from_secs(30), "{:?}, which is nearer to the default of a minute", written.elapsed());
    drop(unread);
}

/// An answer of megabytes, more than sockets hold.
const STEPS: usize = 1 << 18;

/// They hold nothing but their answer: no place in flight, no worker, and over HTTP/2 not their connection.
#[test]
fn answers_that_are_left_unread_hold_nobody_up() {
    let server = leaving::start();
    let (json, data) = leaving::long(STEPS);
    let body = [json.as_bytes(), &data].concat();
    let headers = [("inference-header-content-length", &*json.len().to_string())];
    let connection = Http2::connect(&server);
    let mut unread: Vec<_> = (0..3).map(|_| leaving::ask_long(&server, STEPS)).collect();
    let stream = connection.ask("POST", "/v2/models/chain/infer", &headers, body);
    server.until("all of them are computed", || server.figure("nv_inference_request_success", "model=\"chain\"") == 4.0);
    let stream = connection.head(stream);
    assert_eq!(server.figure("nv_inference_pending_request_count", "model=\"chain\""), 0.0);
    assert_eq!(server.figure("cellwright_slots_used", ""), 0.0);
    beside_clients(&server, "sums", || {
        for seed in 0..20 {
            let body = sum(seed, 9).to_string();
            assert!(is_sum(&connection.send("POST", "/v2/models/sums/infer", &[], body), seed, 9));
        }
    });
    let over_http2 = connection.whole(stream);
    let late = Answer::read(&mut BufReader::new(unread.pop().expect("three"))).expect("an answer").expect("an answer");
    assert_eq!((late.status, late.body.len() > 4 << 20), (200, true));
    assert_eq!(late.json()["outputs"][0]["data"].as_array().map(Vec::len), Some(STEPS * HIDDEN));
    assert!(late.body == over_http2.body, "the same request has two answers");
    drop(unread);
    server.until("those that leave are forgotten", || server.figure("cellwright_http_connections", "") <= 2.0);
}
