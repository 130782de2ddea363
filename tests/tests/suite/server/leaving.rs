//! Clients that go away: what they asked for stops, whether it waits, runs or streams, and everything it held is given back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::OnceLock;

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::neighbours::beside_clients;
use cellwright_tests::server::Server;
use serde_json::json;

/// Steps of a request that nobody could wait for.
pub(crate) const STEPS: usize = 1 << 19;
const CLIENTS: usize = 12;

/// A server with the summing model, and with a chain over dense rows that takes long requests and streams every step of them.
pub(crate) fn start() -> Server {
    start_with(&[])
}

/// The same with those options.
pub(crate) fn start_with(options: &[&str]) -> Server {
    let server = Server::start(options);
    server.push("sums", &BundleFolder::summing());
    let chain = BundleFolder::dense();
    chain.edit("model.toml", "max_length = 16", &format!("max_length = {STEPS}"));
    chain.edit("model.toml", "output = \"last\"", "output = \"all\"");
    server.push("chain", &chain);
    server
}

/// The beginning of a connection on which a request has been sent.
fn ask(server: &Server, path: &str, body: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).expect("it is taken");
    stream
}

fn rows(steps: usize) -> Vec<f32> {
    (0..steps * 4).map(|n| (n % 7) as f32).collect()
}

/// A request of that many steps, with its tensor as bytes.
pub(crate) fn long(steps: usize) -> (String, Vec<u8>) {
    // Made once: the first of many such requests would else have its answer before the last is made.
    static LONGEST: OnceLock<Vec<u8>> = OnceLock::new();
    let longest = LONGEST.get_or_init(|| rows(STEPS).iter().flat_map(|value| value.to_le_bytes()).collect());
    let data = longest[..steps * 4 * size_of::<f32>()].to_vec();
    (
        json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [steps, 4], "parameters": { "binary_data_size": data.len() } }] })
            .to_string(),
        data,
    )
}

pub(crate) fn ask_long(server: &Server, steps: usize) -> TcpStream {
    let (json, data) = long(steps);
    let mut stream = server.connect();
    let head = format!(
        "POST /v2/models/chain/infer HTTP/1.1\r\nhost: localhost\r\ninference-header-content-length: {}\r\ncontent-length: {}\r\n\r\n",
        json.len(),
        json.len() + data.len()
    );
    stream.write_all(&[head.as_bytes(), json.as_bytes(), &data].concat()).expect("it is taken");
    stream
}

fn pending(server: &Server) -> f64 {
    server.figure("nv_inference_pending_request_count", "model=\"chain\"")
}

/// Everything that requests of the model held is free, and nothing of it runs any more.
fn assert_idle(server: &Server, cancelled: usize) {
    server.until("nothing is pending", || pending(server) == 0.0);
    server.until("every leaver was noticed", || server.figure("cellwright_cancelled", "model=\"chain\"") == cancelled as f64);
    server.until("no slots are held", || server.figure("cellwright_slots_used", "") == 0.0);
    server.until("no worker has tasks", || server.figure("cellwright_worker_outstanding", "") == 0.0);
    assert_eq!(server.figure("cellwright_waiting", ""), 0.0);
    let ran = || server.figure("cellwright_batch_rows_sum", "model=\"chain\"");
    let before = ran();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(ran(), before, "cells of a request that nobody waits for still run");
}

#[test]
fn requests_that_run_or_wait_are_given_up() {
    let server = start();
    let leavers: Vec<_> = (0..CLIENTS).map(|_| ask_long(&server, STEPS)).collect();
    server.until("all of them are pending", || pending(&server) >= CLIENTS as f64);
    server.until("some of them run", || server.figure("cellwright_batch_rows_sum", "model=\"chain\"") > 100.0);
    beside_clients(&server, "sums", || drop(leavers));
    server.until("nothing is pending", || pending(&server) == 0.0);
    assert_idle(&server, CLIENTS);
    let all = (CLIENTS * STEPS) as f64;
    assert!(server.figure("cellwright_batch_rows_sum", "model=\"chain\"") < all / 2.0, "most of the work was done for nobody");
}

#[test]
fn requests_that_wait_in_line_are_given_up() {
    const IN_FLIGHT: usize = 3;
    let server = start();
    let bounds = json!({ "in_flight_max": IN_FLIGHT, "queued_max": CLIENTS - IN_FLIGHT }).to_string();
    assert_eq!(server.send("PUT", "/v1/tenants/default", &[], bounds.as_bytes()).status, 200);
    let in_line = || server.figure("cellwright_queued", "model=\"chain\"") as usize;
    let leavers: Vec<_> = (0..CLIENTS).map(|_| ask_long(&server, STEPS)).collect();
    server.until("the line is full", || in_line() == CLIENTS - IN_FLIGHT);
    assert_eq!(server.figure("cellwright_in_flight", "model=\"chain\"") as usize, IN_FLIGHT);
    let refused = server.infer("sums", &json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4] }] }));
    assert_eq!(refused.status, 429);
    assert!(refused.text().contains("9 calls of this tenant wait to begin, which is its limit"), "{}", refused.text());
    drop(leavers);
    assert_idle(&server, CLIENTS);
    let (json, data) = long(5);
    let headers = [("inference-header-content-length", &*json.len().to_string())];
    let answer = server.send("POST", "/v2/models/chain/infer", &headers, &[json.as_bytes(), &data].concat());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_stream_that_nobody_reads_on_ends() {
    let server = start();
    let body = json!({ "x": rows(100_000) }).to_string();
    let mut readers: Vec<_> =
        (0..CLIENTS).map(|_| BufReader::new(ask(&server, "/v2/models/chain/generate_stream", body.as_bytes()))).collect();
    for reader in &mut readers {
        let mut line = String::new();
        while !line.starts_with("data:") {
            line.clear();
            assert!(reader.read_line(&mut line).expect("it streams") > 0, "the stream ended");
        }
    }
    beside_clients(&server, "sums", || drop(readers));
    assert_idle(&server, CLIENTS);
}

#[test]
fn one_that_stays_is_answered_among_many_that_leave() {
    let server = start();
    let stays = std::thread::scope(|scope| {
        let stays = scope.spawn(|| {
            let (json, data) = long(2000);
            let headers = [("inference-header-content-length", &*json.len().to_string())];
            server.send("POST", "/v2/models/chain/infer", &headers, &[json.as_bytes(), &data].concat())
        });
        for _ in 0..5 {
            let leavers: Vec<_> = (0..CLIENTS).map(|_| ask_long(&server, 50_000)).collect();
            drop(leavers);
        }
        stays.join().expect("it is answered")
    });
    assert_eq!(stays.status, 200, "{}", stays.text());
    server.until("nothing is pending", || pending(&server) == 0.0);
}
