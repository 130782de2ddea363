//! Logs for machines: what is in them, and what never is.

use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::Server;
use serde_json::{Value, json};

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).expect("a line of the log is JSON")
}

#[test]
fn logs_for_machines_name_the_request_and_not_what_it_holds() {
    let server = Server::start(&["--log-format", "json", "--log", "debug"]);
    server.push("sums", &BundleFolder::summing());
    let input = json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [31415, 31415, 31415, 31415] }] });
    let answer = server.send("POST", "/v2/models/sums/infer", &[("x-request-id", "find-me")], input.to_string().as_bytes());
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("find-me")));
    let mut lines: Vec<String> = Vec::new();
    let end = Instant::now() + Duration::from_secs(30);
    let found = loop {
        lines.extend(server.said().into_iter().filter(|line| line.starts_with('{')));
        let of_request =
            lines.iter().map(|line| parsed(line)).find(|line| line["span"]["id"] == "find-me" && line["message"] == "answered");
        match of_request {
            Some(line) => break line,
            None => assert!(Instant::now() < end, "{lines:#?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((&found["status"], &found["span"]["path"]), (&200.into(), &"/v2/models/sums/infer".into()));
    assert!(lines.iter().all(|line| !line.contains("31415")), "{lines:#?}");
    assert!(lines.len() > 1, "the upload is in the log too");
}

#[test]
fn a_log_at_info_says_what_was_changed_and_of_whom() {
    let server = Server::start(&["--log-format", "json", "--log", "info"]);
    server.push("sums", &BundleFolder::summing());
    let input = json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4] }] });
    assert_eq!(server.send("POST", "/v2/models/sums/infer", &[], input.to_string().as_bytes()).status, 200);
    assert_eq!(server.send("GET", "/v1/models", &[], b"").status, 200);
    assert_eq!(server.send("DELETE", "/v1/models/none", &[], b"").status, 404);
    assert_eq!(server.send("POST", "/v2/repository/models/sums/unload", &[], b"").status, 200);
    assert_eq!(server.send("DELETE", "/v1/models/sums", &[("x-request-id", "the-last")], b"").status, 204);
    let mut changes: Vec<String> = Vec::new();
    let end = Instant::now() + Duration::from_secs(30);
    while !changes.iter().any(|change| change.contains("the-last")) {
        assert!(Instant::now() < end, "{changes:#?}");
        let said = server.said().into_iter().filter(|line| line.starts_with('{')).map(|line| parsed(&line));
        changes.extend(said.filter(|line| line["span"]["id"].is_string()).map(|line| {
            let of = |name: &str| line["span"][name].as_str().unwrap_or_default().to_owned();
            [line["message"].as_str().unwrap_or_default(), &of("method"), &of("path"), &of("tenant"), &of("id")].join(" ")
        }));
        std::thread::sleep(Duration::from_millis(5));
    }
    let changes: Vec<&str> = changes.iter().map(|change| change.rsplit_once(' ').unwrap().0).collect();
    let wanted = [
        "changed PUT /v1/models/sums default",
        "changed POST /v2/repository/models/sums/unload default",
        "changed DELETE /v1/models/sums default",
    ];
    assert_eq!(changes, wanted);
}
