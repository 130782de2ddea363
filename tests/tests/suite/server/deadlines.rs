//! Timeouts that cannot be kept: under `--policy adaptive` that is said at once, and costs no device anything.

use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::neighbours::beside_clients;
use cellwright_tests::server::{Answer, Server};
use serde_json::json;

/// Wide enough that a step's time is the device's and not the host's.
const HIDDEN: usize = 256;
const FEATURES: usize = 4;
const LONG: usize = 1 << 15;
const SHORT: usize = 8;

/// A server with the summing model, and with an LSTM over dense rows that takes long requests.
fn start(policy: &str) -> Server {
    let server = Server::start(&["--policy", policy]);
    server.push("sums", &BundleFolder::summing());
    let chain = BundleFolder::dense();
    chain.edit("model.toml", "max_length = 16", &format!("max_length = {LONG}"));
    chain.edit("model.toml", "hidden = 3", &format!("hidden = {HIDDEN}"));
    let spread = |count: usize| (0..count).map(|n| (n as f32 * 0.37).sin() * 0.1).collect::<Vec<_>>();
    let gates = 4 * HIDDEN;
    chain.weights(&[
        ("lstm.weight_ih_l0", &[gates, FEATURES], &spread(gates * FEATURES)),
        ("lstm.weight_hh_l0", &[gates, HIDDEN], &spread(gates * HIDDEN)),
        ("lstm.bias_ih_l0", &[gates], &spread(gates)),
        ("lstm.bias_hh_l0", &[gates], &spread(gates)),
    ]);
    server.push("chain", &chain);
    server
}

/// Asks for so many steps within a time, and gives how long the answer took.
fn ask(server: &Server, steps: usize, within: Option<Duration>) -> (Answer, Duration) {
    let mut request =
        json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [steps, FEATURES], "data": vec![0.5; steps * FEATURES] }] });
    if let Some(within) = within {
        request["parameters"] = json!({ "timeout": within.as_micros() as u64 });
    }
    let asked = Instant::now();
    (server.infer("chain", &request), asked.elapsed())
}

/// Rows of the model that were handed to a worker.
fn ran(server: &Server) -> f64 {
    server.figure("cellwright_batch_rows_sum", "model=\"chain\"")
}

/// What the long request takes here when nobody hurries it.
fn long_enough(server: &Server) -> Duration {
    let (answer, took) = ask(server, LONG, None);
    assert_eq!(answer.status, 200, "{}", answer.text());
    took
}

/// A part of that which the steps alone take longer than: most of the time is the answer's way, and other tests may have had the processors.
const TOO_SHORT: u32 = 32;

#[test]
fn what_cannot_be_in_time_is_said_at_once_and_never_runs() {
    let server = start("adaptive");
    let enough = long_enough(&server);
    beside_clients(&server, "sums", || {
        let before = ran(&server);
        let (late, _) = ask(&server, LONG, Some(enough / TOO_SHORT));
        // Not that the timeout has passed: that it would.
        late.refuses("a request that cannot be in time", &[504], &["too long for its timeout of ", "it takes at least "]);
        assert_eq!(ran(&server), before, "cells of it ran");
        let (short, _) = ask(&server, SHORT, Some(enough));
        assert_eq!(short.status, 200, "{}", short.text());
    });
    assert_eq!(ask(&server, LONG, None).0.status, 200);
}

/// What the other policies do: nobody asks whether it can be in time, and what ran until then ran for nothing.
#[test]
fn other_policies_try_until_the_time_is_over() {
    let server = start("cellular");
    let within = long_enough(&server) / TOO_SHORT;
    let before = ran(&server);
    let (late, after) = ask(&server, LONG, Some(within));
    late.refuses("a request that is late", &[504], &["passed before the answer was there: the call waited ", " to begin and ran for "]);
    assert!(after >= within && ran(&server) > before, "{after:?} of {within:?}");
}
