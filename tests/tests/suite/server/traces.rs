//! Traces: what a collector hears of a request, and what nobody notices when there is none.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::collector::{Collector, attribute};
use cellwright_tests::server::{Server, is_sum, sum};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rustix::process::Signal;
use serde_json::{Value, json};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const ROUTE: &str = "POST /v2/models/{model}/infer";
/// A status code of a span: an error.
const ERROR: i32 = 2;
/// What is said in a request, and never of it.
const SECRETS: [&str; 4] = ["KEY-MARK", "PAYLOAD-MARK", "QUERY-MARK", "7654321"];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The exchange that had that request id.
fn exchange<'a>(spans: &'a [Span], id: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| attribute(&span.attributes, "cellwright.request.id").as_deref() == Some(id)).collect();
    assert_eq!(found.len(), 1, "exchanges `{id}` in {spans:#?}");
    found[0]
}

/// The one span within another.
fn child<'a>(spans: &'a [Span], parent: &Span) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.parent_span_id == parent.span_id).collect();
    assert_eq!(found.len(), 1, "spans within {parent:#?} in {spans:#?}");
    assert_eq!(found[0].trace_id, parent.trace_id);
    found[0]
}

#[track_caller]
fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(attribute(&span.attributes, key).as_deref(), Some(*value), "`{key}` of {span:#?}");
    }
}

fn number(span: &Span, key: &str) -> f64 {
    let text = attribute(&span.attributes, key).unwrap_or_else(|| panic!("no `{key}` in {span:#?}"));
    text.parse().unwrap_or_else(|_| panic!("`{key}` is `{text}`"))
}

/// A request with something in it that nobody else may read.
fn secretive() -> Value {
    json!({ "id": SECRETS[1], "parameters": { "priority": 3 }, "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [2, 4], "data": [7_654_321, 0, 0, 0, 0, 0, 0, 0] },
    ] })
}

fn infer(server: &Server, id: &str, body: &Value) -> u16 {
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("x-request-id", id), ("traceparent", &parent), ("authorization", "Bearer KEY-MARK")];
    server.send("POST", "/v2/models/sums/infer?note=QUERY-MARK", &headers, body.to_string().as_bytes()).status
}

#[test]
fn a_collector_hears_of_a_request_and_nothing_of_what_it_carries() {
    let collector = Collector::start();
    let log = "cellwright_gate=debug,cellwright_http_api=debug";
    let server = Server::start(&["--otlp-endpoint", &collector.url(), "--log-format", "json", "--log", log]);
    server.push("sums", &BundleFolder::summing());
    assert_eq!(infer(&server, "fine", &secretive()), 200);
    let mut late = sum(1, 20_000);
    late["parameters"] = json!({ "timeout": 1 });
    assert_eq!(infer(&server, "late", &late), 504);
    let mut trapped = secretive();
    trapped["parameters"] = json!({ "behave": "panic" });
    assert_eq!(infer(&server, "trapped", &trapped), 502);
    assert_eq!(server.send("GET", "/v2/models/nothing", &[("x-request-id", "unknown")], b"").status, 404);
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert_eq!(status, Some(0), "{said:?}");

    let spans = collector.spans();
    let fine = exchange(&spans, "fine");
    assert_eq!((fine.name.as_str(), fine.kind), (ROUTE, SpanKind::Server as i32));
    assert_eq!((hex(&fine.trace_id), hex(&fine.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    let expected = [
        ("http.request.method", "POST"),
        ("http.route", "/v2/models/{model}/infer"),
        ("http.response.status_code", "200"),
        ("url.path", "/v2/models/sums/infer"),
        ("url.scheme", "http"),
        ("cellwright.tenant", "default"),
    ];
    assert_attributes(fine, &expected);
    the_call_is_told(child(&spans, fine), fine);

    let late = exchange(&spans, "late");
    assert_attributes(late, &[("http.response.status_code", "504"), ("error.type", "504")]);
    let call = child(&spans, late);
    assert_attributes(call, &[("error.type", "Deadline")]);
    assert_eq!(call.status.as_ref().map(|status| status.code), Some(ERROR), "{call:#?}");
    let trapped = exchange(&spans, "trapped");
    assert_eq!(trapped.status.as_ref().map(|status| status.code), Some(ERROR), "{trapped:#?}");
    let unknown = exchange(&spans, "unknown");
    assert_eq!((unknown.name.as_str(), unknown.parent_span_id.len()), ("GET", 0), "{unknown:#?}");
    assert_attributes(unknown, &[("http.response.status_code", "404")]);

    assert_eq!(attribute(&collector.resource(), "service.name").as_deref(), Some("cellwright"));
    let is_probe = |span: &Span| attribute(&span.attributes, "url.path").is_some_and(|path| path.starts_with("/v2/health"));
    assert!(!spans.iter().any(is_probe), "{spans:#?}");
    for secret in SECRETS {
        assert!(!collector.has_seen(secret.as_bytes()), "`{secret}` was exported");
    }
    assert!(collector.has_seen(b"default"), "nothing would be found");
    the_log_names_requests(&said);
}

fn the_call_is_told(call: &Span, exchange: &Span) {
    assert_eq!(call.name, "infer");
    let expected = [
        ("cellwright.model.name", "sums"),
        ("cellwright.model.version", "1"),
        ("cellwright.tenant", "default"),
        ("cellwright.priority", "3"),
        ("cellwright.requests", "1"),
    ];
    assert_attributes(call, &expected);
    let (mean, max) = (number(call, "cellwright.batch.mean"), number(call, "cellwright.batch.max"));
    assert!((1.0..=max).contains(&mean), "{mean} of at most {max}");
    assert_eq!(attribute(&call.attributes, "error.type"), None);
    let moments: Vec<_> = call.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(moments, ["admitted", "unfolded", "first_cell", "last_cell", "replied"]);
    let times: Vec<_> = call.events.iter().map(|event| event.time_unix_nano).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!((times[0], times[4]), (call.start_time_unix_nano, call.end_time_unix_nano));
    // Microseconds are cut off where a call's times become a span's.
    let slack = 2_000;
    assert!(times[0] + slack >= exchange.start_time_unix_nano && times[4] <= exchange.end_time_unix_nano, "{call:#?} in {exchange:#?}");
    assert!(times[4] > times[0], "{times:?}");
}

/// What the log says of a call's end stands under its request's id, and quotes nothing of it either.
fn the_log_names_requests(said: &[String]) {
    let lines: Vec<Value> = said.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ends: Vec<_> = lines.iter().filter(|line| line["message"] == "a call has ended").collect();
    let of_fine: Vec<_> = ends.iter().filter(|line| line["span"]["id"] == "fine").collect();
    assert_eq!(of_fine.len(), 1, "{said:#?}");
    assert!(of_fine[0]["replied_us"].as_u64() > Some(0), "{}", of_fine[0]);
    for secret in SECRETS {
        assert!(!said.iter().any(|line| line.contains(secret)), "`{secret}` was logged: {said:#?}");
    }
}

#[test]
fn a_collector_that_is_away_disturbs_nobody() {
    // As many as make more than one batch of spans.
    const REQUESTS: usize = 300;
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent_url = format!("http://{}", silent.local_addr().expect("it listens"));
    for url in ["http://127.0.0.1:1", &silent_url] {
        let server = Server::start(&["--otlp-endpoint", url]);
        server.push("sums", &BundleFolder::summing());
        for seed in 0..REQUESTS {
            assert!(is_sum(&server.infer("sums", &sum(seed, 3)), seed, 3));
        }
        let asked = Instant::now();
        server.signal(Signal::TERM);
        let (status, said) = server.wait();
        assert_eq!(status, Some(0), "{url}: {said:?}");
        assert!(asked.elapsed() < Duration::from_secs(15), "{url}: {:?}", asked.elapsed());
        let count = |piece: &str| said.iter().filter(|line| line.contains(piece)).count();
        assert_eq!((count("traces do not reach"), count("spans did not reach the collector")), (1, 1), "{url}: {said:?}");
    }
}
