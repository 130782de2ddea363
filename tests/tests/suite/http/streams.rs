//! `generate` and `generate_stream`.

use std::io::Write as _;

use cellwright_tests::graphs::wait_until;
use serde_json::{Value, json};

use super::harness::{Answer, Running, Settings, request};
use super::models::{INFER, parts, streamed, tokens, wide};

fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let event = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    text.split_terminator("\n\n").map(event).collect()
}

#[test]
fn a_stream_has_an_event_for_each_part_and_one_for_the_rest() {
    let server = Running::start();
    server.has("parts", &parts());
    let answer = server.post("/v2/models/parts/generate_stream", &streamed(3).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"));
    let events = events(&answer);
    assert_eq!(events.len(), 4);
    let last = json!([6.0, 9.0, 12.0, 15.0]);
    assert_eq!(events[2], json!({ "id": "mine", "model_name": "parts", "model_version": "1", "sums": [last] }));
    assert_eq!(events[3]["sum"], last);
}

#[test]
fn an_error_before_the_first_event_is_a_status_and_later_an_event() {
    let server = Running::start();
    server.has("tokens", &tokens());
    let path = "/v2/models/tokens/generate_stream";
    server.post(path, r#"{"id":"mine","parameters":{"timeout":1},"tokens":[0]}"#).refused(504, "model `tokens`, request `mine`");
    server.post(path, r#"{"nothing":[1]}"#).refused(400, "");
    server.post(path, r#"{"tokens":[99]}"#).refused(400, "index 99 is out of range");
    let mut tokens = vec![0; 4000];
    tokens.push(99);
    let answer = server.post(path, &json!({ "id": "mine", "tokens": tokens }).to_string());
    assert_eq!(answer.status, 200);
    let events = events(&answer);
    assert!(events[0]["hidden"].is_array(), "{}", events[0]);
    let error = events.last().unwrap();
    let sentence = error["error"].as_str().unwrap_or_default();
    assert!(sentence.contains("index 99 is out of range") && sentence.ends_with("(model `tokens`, request `mine`)"), "{error}");
    assert_eq!(error.as_object().unwrap().len(), 1);
}

#[test]
fn generate_takes_and_gives_plain_values() {
    let server = Running::start();
    let answer = server.post("/v2/models/sums/generate", r#"{"x":[[1,2.5,3,4]]}"#);
    assert_eq!(answer.json(), json!({ "model_name": "sums", "model_version": "1", "sum": [2.0, 4.5, 6.0, 8.0] }));
    server.post("/v2/models/sums/generate", r#"{"x":"text"}"#).refused(400, "input `x`");
}

#[test]
fn an_answer_that_nobody_reads_is_bounded() {
    let server = Running::with(Settings { part_bytes_max: 4 << 20, ..Settings::default() }, None);
    server.has("wide", &wide());
    let mut stream = server.connect();
    // Parts of 256 KiB, 40 MB as events: more than sockets hold and may wait.
    let body = json!({ "x": vec![[0]; 64] }).to_string();
    stream.write_all(&request("POST", "/v2/models/wide/generate_stream", &[], body.as_bytes())).unwrap();
    wait_until("it is given up", || server.counts().failed == 1);
    let answer = Answer::read(&mut stream);
    let last = events(&answer).pop().unwrap();
    assert!(last["error"].as_str().is_some_and(|error| error.contains("wait for the client")), "no error at the end");
}

/// Each is counted with all it takes, and not as its contents alone.
#[test]
fn small_parts_count_too() {
    const MAX: usize = 256 << 10;
    // All contents together are fewer bytes than may wait; as events, with that id, they are more than sockets hold.
    let parts_sent = MAX / 16 - 1;
    let server = Running::with(Settings { part_bytes_max: MAX as u64, ..Settings::default() }, None);
    server.has("parts", &parts());
    let mut body = streamed(parts_sent);
    body["id"] = "i".repeat(2000).into();
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/v2/models/parts/generate_stream", &[], body.to_string().as_bytes())).unwrap();
    wait_until("it is given up", || server.counts().failed == 1);
}

#[test]
fn one_part_alone_may_be_as_large_as_it_is() {
    let server = Running::with(Settings { part_bytes_max: 2, ..Settings::default() }, None);
    server.has("parts", &parts());
    let answer = server.post("/v2/models/parts/generate_stream", &streamed(1).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(events(&answer)[0]["sums"], json!([[2.0, 3.0, 4.0, 5.0]]));
}

#[test]
fn an_endless_id_is_not_repeated_in_errors() {
    let (server, id) = (Running::start(), "i".repeat(10_000));
    let late = INFER.replace("\"inputs\"", &format!("\"id\":\"{id}\",\"parameters\":{{\"timeout\":1}},\"inputs\""));
    let answer = server.post("/v2/models/sums/infer", &late);
    answer.refused(504, "request `iii");
    assert!(answer.body.len() < 1000, "{} bytes", answer.body.len());
}
