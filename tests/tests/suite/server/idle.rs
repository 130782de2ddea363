//! Ten thousand connections on which nothing happens.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::{Server, is_sum, sum};
use cellwright_tests::town::connect_from;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: u64 = 10_000;
/// Descriptors beside those of the connections, here and in the server.
const BESIDE: u64 = 600;
/// What a connection that is asked for nothing may cost.
const BYTES_EACH_MAX: u64 = 32 << 10;

#[test]
fn ten_thousand_idle_connections_disturb_nobody() {
    let limit = getrlimit(Resource::Nofile);
    let possible = limit.maximum.unwrap_or(u64::MAX);
    let raised = possible.min(CONNECTIONS + BESIDE);
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).expect("up to the hard limit it may be raised");
    let connections = CONNECTIONS.min(raised.saturating_sub(BESIDE));

    let server = Server::start(&["--address-connections-max", "0"]);
    server.push("sums", &BundleFolder::summing());
    let before = resident_bytes(server.id());
    let idle: Vec<_> = (0..connections).map(|_| server.connect()).collect();
    server.until("all of them are accepted", || server.figure("cellwright_http_connections", "") >= connections as f64);
    let each = resident_bytes(server.id()).saturating_sub(before) / connections;
    assert!(each <= BYTES_EACH_MAX, "each idle connection costs {each} bytes");
    let started = Instant::now();
    for seed in 0..100 {
        assert!(is_sum(&server.infer("sums", &sum(seed, 3)), seed, 3));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "100 requests took {:?}", started.elapsed());
    drop(idle);
    server.until("all of them are closed", || server.figure("cellwright_http_connections", "") < 10.0);
    assert!(connections == CONNECTIONS || possible < CONNECTIONS + BESIDE);
}

fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// With fewer descriptors than connections that it may have: 188.
const FEW: &str = "ulimit -n 700; exec \"$0\" \"$@\"";

#[test]
fn an_address_leaves_others_half_of_the_connections_that_are_possible() {
    let data = tempfile::TempDir::new().expect("a temporary folder");
    let server = Server::start_by(FEW, data.path());
    let _idle = connect_from(&server, [127, 0, 0, 2], 400);
    let bounded = || server.said().iter().any(|line| line.contains("an address has as many open connections as it may"));
    server.until("it says that the address has no more", bounded);
    assert_eq!(server.send("GET", "/v2", &[], b"").status, 200);
}

/// Where there are fewer descriptors than connections it may have, a server says what it has.
#[test]
fn a_server_that_may_not_have_as_many_says_so() {
    let data = tempfile::TempDir::new().expect("a temporary folder");
    let server = Server::start_by(FEW, data.path());
    server.push("sums", &BundleFolder::summing());
    // More than it takes at once: the others wait, and are served when there is room.
    let idle: Vec<_> = (2..=8).map(|last| connect_from(&server, [127, 0, 0, last], 50)).collect();
    let said = RefCell::new(Vec::new());
    let count = |words: &str| {
        said.borrow_mut().extend(server.said());
        said.borrow().iter().filter(|line: &&String| line.contains(words)).count()
    };
    let full = "new ones wait until one closes";
    server.until("it says that all are open", || count(full) > 0);
    drop(idle);
    assert!(is_sum(&server.infer("sums", &sum(1, 3)), 1, 3));
    assert!(count("700 files") > 0, "it does not say how many connections it takes");
    assert_eq!(count(full), 1, "that all are open is told, but not again and again: {said:?}");
}
