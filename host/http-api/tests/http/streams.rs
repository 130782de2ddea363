//! `generate` and `generate_stream`.

use serde_json::{Value, json};

use crate::harness::{Answer, Running};

fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let event = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    text.split_terminator("\n\n").map(event).collect()
}

#[test]
fn a_stream_has_an_event_for_each_part_and_one_for_the_rest() {
    let server = Running::start();
    let answer = server.post("/v2/models/stream/generate_stream", r#"{"id":"mine","x":[1]}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"));
    let events = events(&answer);
    assert_eq!(events.len(), 4);
    assert_eq!(events[2], json!({ "id": "mine", "model_name": "stream", "model_version": "3", "y": 2.0 }));
    assert_eq!(events[3]["length"], 3.0);
}

#[test]
fn an_error_before_the_first_event_is_a_status_and_later_an_event() {
    let server = Running::start();
    server.post("/v2/models/late/generate_stream", r#"{"x":[1]}"#).refused(504, "model `late`");
    server.post("/v2/models/stream/generate_stream", r#"{"nothing":[1]}"#).refused(400, "");
    let answer = server.post("/v2/models/break/generate_stream", r#"{"id":"mine","x":[1]}"#);
    assert_eq!(answer.status, 200);
    let events = events(&answer);
    assert_eq!(events[0]["y"], 0.0);
    assert_eq!(events[1], json!({ "error": "it broke (model `break`, request `mine`)" }));
    assert_eq!(events.len(), 2);
}

#[test]
fn generate_takes_and_gives_plain_values() {
    let server = Running::start();
    let answer = server.post("/v2/models/echo/generate", r#"{"x":[1,2.5]}"#);
    assert_eq!(answer.json(), json!({ "model_name": "echo", "model_version": "3", "y": [1.0, 2.5] }));
    server.post("/v2/models/echo/generate", r#"{"x":"text"}"#).refused(400, "input `x`");
}

#[test]
fn an_answer_that_nobody_reads_is_bounded() {
    let limits = cellwright_http_api::Limits { stream_bytes_max: 4 << 20, ..Default::default() };
    let server = Running::with(limits, None);
    let mut stream = server.connect();
    let request = crate::harness::request("POST", "/v2/models/flood/generate_stream", &[], br#"{"x":[1]}"#);
    std::io::Write::write_all(&mut stream, &request).unwrap();
    // 64 MiB are produced while nothing is read: more than may wait.
    server.host.cancelled.reaches(1);
    let answer = Answer::read(&mut stream);
    let last = events(&answer).pop().unwrap();
    assert!(last["error"].as_str().is_some_and(|error| error.contains("wait for the client")), "no error at the end");
}

#[test]
fn parts_without_contents_count_too() {
    let limits = cellwright_http_api::Limits { stream_bytes_max: 1 << 20, ..Default::default() };
    let server = Running::with(limits, None);
    let mut stream = server.connect();
    let request = crate::harness::request("POST", "/v2/models/crumbs/generate_stream", &[], br#"{"x":[1]}"#);
    std::io::Write::write_all(&mut stream, &request).unwrap();
    server.host.cancelled.reaches(1);
}

#[test]
fn one_part_alone_may_be_as_large_as_it_is() {
    let limits = cellwright_http_api::Limits { stream_bytes_max: 2, ..Default::default() };
    let answer = Running::with(limits, None).post("/v2/models/break/generate_stream", r#"{"x":[1]}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(events(&answer)[0]["y"], 0.0);
}

#[test]
fn an_endless_id_is_not_repeated_in_errors() {
    let id = "i".repeat(10_000);
    let answer = Running::start()
        .post("/v2/models/late/infer", &format!(r#"{{"id":"{id}","inputs":[{{"name":"x","shape":[1],"datatype":"FP32","data":[1]}}]}}"#));
    answer.refused(504, "request `iii");
    assert!(answer.body.len() < 1000, "{} bytes", answer.body.len());
}
