//! HTTP/2 in clear: the same answers as over HTTP/1.1, also where they come before a body has been read, or piece by piece.

use std::io::Write as _;
use std::process::Command;

use cellwright_tests::bundle_folder::{BundleFolder, HIDDEN};
use cellwright_tests::http2::Http2;
use cellwright_tests::server::{Server, is_sum, sum};
use serde_json::{Value, json};

#[test]
fn requests_that_share_a_connection_get_their_own_answers() {
    let server = Server::start(&[]);
    server.push("sums", &BundleFolder::summing());
    let connection = Http2::connect(&server);
    let rows = |seed: usize| 1 + (seed * 37) % 211;
    let asked = |seed: usize| connection.ask("POST", "/v2/models/sums/infer", &[], sum(seed, rows(seed)).to_string());
    let asked: Vec<_> = (0..50).map(asked).collect();
    for (seed, asked) in asked.into_iter().enumerate() {
        let answer = connection.whole(connection.head(asked));
        assert!(is_sum(&answer, seed, rows(seed)), "{} {}", answer.status, answer.text());
    }
    let metadata = connection.send("GET", "/v2/models/sums", &[], "");
    assert_eq!(metadata.json(), server.get("/v2/models/sums").json());
}

#[test]
fn a_refusal_that_comes_before_the_body_was_read_arrives() {
    const BODY_MAX: &str = "1000000";
    let server = Server::start(&["--body-bytes-max", BODY_MAX, "--upload-bytes-max", BODY_MAX]);
    server.push("sums", &BundleFolder::summing());
    let body = vec![b' '; 4_000_000];
    let connection = Http2::connect(&server);
    for (method, path, status, piece) in [
        ("POST", "/v2/models/nobody/infer", 404, "nobody"),
        ("POST", "/v2/models/sums/versions/7/infer", 404, "version 7"),
        ("POST", "/v2/models/sums/infer", 413, BODY_MAX),
        ("POST", "/v2/models/sums/generate_stream", 413, BODY_MAX),
        ("PUT", "/v1/models/other", 413, BODY_MAX),
    ] {
        connection.send(method, path, &[], body.clone()).refuses(path, &[status], &[piece]);
        server.send(method, path, &[], &body).refuses(path, &[status], &[piece]);
        if let Some(heard) = curl(&server, method, path, &body) {
            assert_eq!(heard, status.to_string(), "what curl hears of {method} {path}");
        }
    }
    let key = server.send("POST", "/v1/keys", &[], br#"{"tenant":"operator","scopes":["admin"],"label":"first"}"#);
    assert_eq!(key.status, 201, "{}", key.text());
    connection.send("PUT", "/v1/models/other", &[], body).refuses("no key", &[401], &["key"]);
}

/// The status that `curl` sees, or what it says instead, if it is installed. It gives up an answer whose stream is reset, where others have read it.
fn curl(server: &Server, method: &str, path: &str, body: &[u8]) -> Option<String> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(body).expect("room for it");
    let output = Command::new("curl")
        .args([
            "--silent",
            "--http2-prior-knowledge",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}%{errormsg}",
            "--request",
            method,
        ])
        .args(["--header", "Expect:", "--data-binary"])
        .arg(format!("@{}", file.path().display()))
        .arg(format!("http://{}{path}", server.address()))
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(cause) => {
            let _ = writeln!(std::io::stderr(), "curl cannot be asked: {cause}");
            None
        }
    }
}

/// The numbers in a value, however they are nested.
fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().map_or_else(|| value.as_f64().into_iter().collect(), |values| values.iter().flat_map(numbers).collect())
}

#[test]
fn a_stream_has_one_event_for_each_step() {
    const STEPS: usize = 16;
    let server = Server::start(&[]);
    let chain = BundleFolder::dense();
    chain.edit("model.toml", "output = \"last\"", "output = \"all\"");
    server.push("chain", &chain);
    let rows: Vec<[f32; 4]> = (0..STEPS).map(|step| [step as f32, 1.0, -1.0, 0.5]).collect();
    let connection = Http2::connect(&server);
    let body = json!({ "x": rows }).to_string();
    let whole = server.send("POST", "/v2/models/chain/generate", &[], body.as_bytes()).json();
    let all = numbers(&whole["hidden"]);
    assert_eq!(all.len(), STEPS * HIDDEN, "{whole}");
    let streamed = connection.send("POST", "/v2/models/chain/generate_stream", &[], body.clone());
    assert_eq!((streamed.status, streamed.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    let over_http1 = server.send("POST", "/v2/models/chain/generate_stream", &[], body.as_bytes());
    for text in [streamed.text(), over_http1.text()] {
        let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let events: Vec<Value> = events.map(|event| serde_json::from_str(event).expect("JSON")).collect();
        let steps: Vec<_> = events.iter().map(|event| numbers(&event["hidden"])).filter(|step| !step.is_empty()).collect();
        assert_eq!(steps.concat(), all, "{text}");
        assert!(steps.len() == STEPS, "{} events for {STEPS} steps: {text}", steps.len());
    }
    connection.send("POST", "/v2/models/chain/generate_stream", &[], r#"{"y":1}"#).refuses("before the first event", &[400], &["x"]);
}
