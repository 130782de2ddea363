//! The load generator, against servers that are slow, that refuse, and that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellwright_cell_graph::Tensor;
use cellwright_client::load::{Arrivals, LoadError, Plan, Report, Target, run};
use cellwright_client::{Address, Form, Trust};
use cellwright_protocol::{InferRequest, JSON_LENGTH_HEADER};

use crate::server::{Server, answer};

/// A busy machine may hold the last few requests back until it is too late to send them.
const UNSENT_MAX: u64 = 40;

fn request() -> InferRequest {
    InferRequest { inputs: vec![Tensor::from_f32("x", &[2], &[1.0, 2.0])], ..InferRequest::default() }
}

fn plan(server: &Server, arrivals: Arrivals, connections: usize) -> Plan {
    let address = Address::parse(&format!("http://{}", server.address)).unwrap();
    let target = Target::infer(&address, Some("cw_secret"), "m", [request()], Form::Binary).unwrap();
    Plan {
        address,
        trust: Trust::System,
        targets: vec![target],
        arrivals,
        connections,
        threads: 1,
        warm_up: Duration::from_millis(100),
        measured: Duration::from_millis(500),
        seed: 1,
    }
}

async fn report(plan: Plan) -> Report {
    tokio::task::spawn_blocking(move || run(&plan)).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_sends_at_its_rate_and_counts_everything() {
    let server = Server::start(|_| answer(200, "{}")).await;
    let report = report(plan(&server, Arrivals::Constant(400.0), 4)).await;
    let total = &report.total;
    assert_eq!((total.sent + report.unsent, total.ok, total.unanswered, total.broken), (200, total.sent, 0, 0), "{report:?}");
    assert!(report.unsent <= UNSENT_MAX, "{report:?}");
    assert!(total.latency.p50_us > 0.0 && total.latency.p50_us <= total.latency.max_us, "{total:?}");
    let asked = server.asked();
    // What arrived while it warmed up is sent, and not counted.
    assert_eq!(asked.len() as u64, 40 + total.sent);
    assert_eq!(asked[0].what, "POST /v2/models/m/infer");
    assert_eq!(asked[0].headers["authorization"], "Bearer cw_secret");
    let length = asked[0].headers[JSON_LENGTH_HEADER].to_str().unwrap().parse().unwrap();
    let mut sent = InferRequest::from_body(asked[0].body.as_ref().unwrap(), Some(length)).unwrap();
    assert!(sent.take_options().unwrap().wanted.binary);
    assert_eq!(sent.inputs, request().inputs);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_is_charged_for_everyone_who_would_have_come() {
    let number = AtomicU64::new(0);
    // The hundredth request stalls the only connection for 200 ms.
    let server = Server::start(move |_| {
        if number.fetch_add(1, Ordering::Relaxed) == 100 {
            std::thread::sleep(Duration::from_millis(200));
        }
        answer(200, "{}")
    })
    .await;
    let report = report(plan(&server, Arrivals::Constant(500.0), 1)).await;
    let latency = report.total.latency;
    // 100 of 250 were meant to arrive during the stall, and wait 100 ms on average. Counted from when they were sent, one would be slow.
    assert!(latency.p90_us > 60_000.0 && latency.max_us >= 190_000.0, "{latency:?}");
    assert!(report.late_max_us > 150_000.0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_slow_is_not_kept_up_with() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(20));
        answer(200, "{}")
    })
    .await;
    let report = report(plan(&server, Arrivals::Constant(1000.0), 2)).await;
    assert!(!report.kept_up && report.unsent > 100, "{report:?}");
    assert!(report.total.throughput < 150.0, "{report:?}");
    // Neither leaves the warm-up's arrivals out alone, and who is left waiting counts as slow.
    assert_eq!(report.total.sent + report.unsent, 500, "{report:?}");
    assert!(report.total.latency.p90_us > 400_000.0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_breaks_are_told_apart() {
    let number = AtomicU64::new(0);
    let server = Server::start(move |_| {
        if number.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { answer(200, "{}") } else { answer(429, r#"{"error":"full"}"#) }
    })
    .await;
    let report = self::report(plan(&server, Arrivals::Constant(200.0), 2)).await;
    let total = &report.total;
    assert_eq!((total.sent + report.unsent, total.ok + total.statuses[&429]), (100, total.sent), "{report:?}");
    assert!(total.ok.abs_diff(total.sent / 2) <= 1 && total.first_fault.as_deref() == Some("status 429: full"), "{report:?}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs_up = Server { address: listener.local_addr().unwrap(), ..server };
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let report = self::report(plan(&hangs_up, Arrivals::Constant(100.0), 2)).await;
    assert_eq!((report.total.ok, report.total.broken), (0, report.total.sent), "{report:?}");
    assert!(report.unsent <= UNSENT_MAX && report.total.broken + report.unsent == 50, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_and_threads_share_the_load() {
    let other = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&other);
    let server = Server::start(move |asked| {
        counted.fetch_add(u64::from(asked.what.contains("/other/")), Ordering::Relaxed);
        answer(200, "{}")
    })
    .await;
    let mut plan = plan(&server, Arrivals::Constant(1000.0), 5);
    let target = Target::infer(&plan.address, None, "other", [request()], Form::Json).unwrap();
    plan.targets.push(Target { weight: 3.0, ..target });
    plan.threads = 2;
    plan.warm_up = Duration::ZERO;
    let report = report(plan).await;
    assert_eq!((report.total.sent + report.unsent, report.targets.len()), (500, 2), "{report:?}");
    assert_eq!(server.asked().len() as u64, report.total.sent, "{report:?}");
    assert!(report.unsent <= UNSENT_MAX, "{report:?}");
    assert_eq!(report.targets[1].ok, other.load(Ordering::Relaxed));
    assert!(report.targets[1].ok.abs_diff(375) < 50, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_is_as_fast_as_the_answers() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(1));
        answer(200, "{}")
    })
    .await;
    let report = report(plan(&server, Arrivals::Closed, 1)).await;
    assert!(report.kept_up && report.unsent == 0 && report.total.ok > 50 && report.total.ok <= 500, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_that_make_no_sense_are_refused() {
    let server = Server::start(|_| answer(200, "{}")).await;
    let good = plan(&server, Arrivals::Closed, 1);
    let sentence = |plan: Plan| run(&plan).unwrap_err().to_string();
    assert!(sentence(Plan { targets: vec![], ..good.clone() }).starts_with("there is nothing to send"));
    assert!(sentence(Plan { arrivals: Arrivals::Poisson(f64::NAN), ..good.clone() }).starts_with("NaN is not a rate"));
    assert!(
        sentence(Plan { arrivals: Arrivals::Constant(1e-20), ..good.clone() }).contains("is not a rate"),
        "times would be too long to count"
    );
    assert!(sentence(Plan { connections: 0, ..good.clone() }).starts_with("0 connections on 1 threads"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = Address::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    drop(listener);
    assert!(matches!(run(&Plan { address: nobody, ..good }), Err(LoadError::Unreachable { .. })));
}
