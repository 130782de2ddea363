//! Logs for machines: what is in them, and what never is.

use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::Server;
use rustix::process::Signal;
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
            let own = |name: &str| line[name].as_str().unwrap_or_default();
            [own("message"), &of("method"), &of("path"), own("tenant"), &of("id")].join(" ")
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

#[test]
fn a_plugin_that_fails_is_one_line_of_the_log_without_its_words() {
    let server = Server::start(&["--log-format", "json"]);
    server.push("sums", &BundleFolder::summing());
    let input = json!({ "parameters": { "behave": "panic" }, "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4] }] });
    assert_eq!(server.send("POST", "/v2/models/sums/infer", &[("x-request-id", "find-me")], input.to_string().as_bytes()).status, 502);
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    let lines: Vec<_> = said.iter().filter(|line| line.starts_with('{')).collect();
    assert!(status == Some(0) && lines.len() == 1, "{said:#?}");
    let line = parsed(lines[0]);
    assert_eq!((&line["id"], &line["tenant"], &line["level"]), (&"find-me".into(), &"default".into(), &"WARN".into()));
    assert!(!lines[0].contains("panicked"), "{line}");
}

/// A change has the key that made it and the tenant that it concerns, and no secret.
#[test]
fn a_change_is_logged_with_its_key_and_its_tenant() {
    let server = Server::start(&["--log-format", "json", "--log", "info"]);
    let create = |message: Value, secret: &str| {
        let bearer = format!("Bearer {secret}");
        let headers: &[(&str, &str)] = if secret.is_empty() { &[] } else { &[("authorization", &bearer)] };
        let answer = server.send("POST", "/v1/keys", headers, message.to_string().as_bytes());
        assert_eq!(answer.status, 201, "{}", answer.text());
        let of = |value: &Value| value.as_str().expect("a text").to_owned();
        (of(&answer.json()["key"]["id"]), of(&answer.json()["secret"]))
    };
    let (operator, operator_secret) = create(json!({ "tenant": "operator", "scopes": ["admin", "upload"] }), "");
    let ask = |method: &str, path: &str, secret: &str, body: &[u8]| {
        let answer = server.send(method, path, &[("authorization", &format!("Bearer {secret}"))], body);
        assert!(matches!(answer.status, 200..=204), "{method} {path}: {}", answer.text());
    };
    ask("POST", "/v1/tenants", &operator_secret, br#"{"name": "acme"}"#);
    ask("PUT", "/v1/tenants/acme", &operator_secret, br#"{"weight": 3}"#);
    let (acme, acme_secret) = create(json!({ "tenant": "acme", "scopes": ["admin", "upload"] }), &operator_secret);
    let (other, _) = create(json!({ "scopes": ["infer"] }), &acme_secret);
    let archive = cellwright_tests::archives::Tar::of(BundleFolder::summing().path()).finish();
    ask("PUT", "/v1/models/own", &acme_secret, &archive);
    ask("DELETE", "/v1/models/own?tenant=acme", &operator_secret, b"");
    ask("DELETE", &format!("/v1/keys/{other}"), &operator_secret, b"");
    ask("DELETE", "/v1/tenants/acme", &operator_secret, b"");
    let wanted = [
        ["POST /v1/keys", "operator", ""].map(str::to_owned),
        ["POST /v1/tenants", "acme", &operator].map(str::to_owned),
        ["PUT /v1/tenants/acme", "acme", &operator].map(str::to_owned),
        ["POST /v1/keys", "acme", &operator].map(str::to_owned),
        ["POST /v1/keys", "acme", &acme].map(str::to_owned),
        ["PUT /v1/models/own", "acme", &acme].map(str::to_owned),
        ["DELETE /v1/models/own", "acme", &operator].map(str::to_owned),
        [format!("DELETE /v1/keys/{other}"), "acme".to_owned(), operator.clone()],
        ["DELETE /v1/tenants/acme", "acme", &operator].map(str::to_owned),
    ];
    let mut lines: Vec<String> = Vec::new();
    let end = Instant::now() + Duration::from_secs(30);
    while lines.iter().filter(|line| line.contains("\"changed\"")).count() < wanted.len() {
        assert!(Instant::now() < end, "{lines:#?}");
        lines.extend(server.said().into_iter().filter(|line| line.starts_with('{')));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(lines.iter().all(|line| !line.contains(&operator_secret) && !line.contains(&acme_secret)), "{lines:#?}");
    let changes = lines.iter().map(|line| parsed(line)).filter(|line| line["message"] == "changed").map(|line| {
        let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        [format!("{} {}", of(&line["span"]["method"]), of(&line["span"]["path"])), of(&line["tenant"]), of(&line["key"])]
    });
    assert_eq!(changes.collect::<Vec<_>>(), wanted);
}

/// However much of the log is asked for, a tenant fills no more of it than its part.
#[test]
fn refusals_do_not_fill_the_log() {
    let server = Server::start(&["--log", "debug"]);
    let path = format!("/v2/models/{}/infer", "m".repeat(30_000));
    let refused = (0..200).filter(|_| server.send("POST", &path, &[], b"{}").status == 400).count();
    assert_eq!(refused, 200);
    let (mut bytes, end) = (0, Instant::now() + Duration::from_secs(30));
    loop {
        let said = server.said();
        bytes += said.iter().map(String::len).sum::<usize>();
        if said.iter().any(|line| line.contains("were left out of the log")) {
            break;
        }
        assert!(Instant::now() < end, "{bytes} bytes");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(bytes < 6_000_000, "{bytes} bytes");
}
