//! Requests and answers in every form.

use std::io::Write as _;

use cellwright_protocol::InferResponse;
use cellwright_registry::TenantSettings;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::tenant;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};

use super::harness::{Answer, Running, request};

/// Two rows of the summing model, and what they come to with its bias of 1 to 4 for each.
const SUM: &str = r#"{"id":"mine","inputs":[{"name":"x","shape":[2,4],"datatype":"FP32","data":[1.5,2,3,4,5,6,7,8]}]}"#;
const ANSWER: [f32; 4] = [8.5, 12.0, 16.0, 20.0];

#[test]
fn a_request_in_json_is_answered_in_json() {
    let server = Running::start();
    let answer = server.post("/v2/models/sums/infer", SUM);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.json(),
        json!({ "model_name": "sums", "model_version": "1", "id": "mine",
                "outputs": [{ "name": "sum", "shape": [4], "datatype": "FP32", "data": ANSWER }] })
    );
    assert_eq!(server.post("/v2/models/sums/versions/1/infer", SUM).status, 200);
    server.post("/v2/models/sums/versions/9/infer", SUM).refused(404, "version 1 does");
    server.post("/v2/models/other/infer", SUM).refused(404, "there is no model `other` (model `other`");
}

#[test]
fn tensors_travel_as_bytes_both_ways() {
    let server = Running::start();
    let json = r#"{"inputs":[{"name":"x","shape":[2,4],"datatype":"FP32","parameters":{"binary_data_size":32}}],"outputs":[{"name":"sum","parameters":{"binary_data":true}}]}"#;
    let tensor: Vec<u8> = [1.5_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let body = [json.as_bytes(), &tensor].concat();
    let length = json.len().to_string();
    let send =
        |length: &str, body: &[u8]| server.send("POST", "/v2/models/sums/infer", &[("Inference-Header-Content-Length", length)], body);
    let answer = send(&length, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let json_length = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    let response = InferResponse::from_body(&answer.body, Some(json_length)).unwrap();
    assert_eq!(response.outputs[0].to_f32(), Some(ANSWER.to_vec()));

    send(&length, &body[..body.len() - 1]).refused(400, "only 31 bytes of the message are left");
    send(&length, &[&body[..], b"!"].concat()).refused(400, "the message has 1 byte behind its last tensor");
    send("99999", &body).refused(400, "announces 99999 bytes of JSON");
    send("-1", &body).refused(400, "must be a number of bytes");
    let raw = send("0", &tensor);
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert_eq!(raw.body[raw.body.len() - 16..], ANSWER.map(f32::to_le_bytes).concat());
}

#[test]
fn compressed_bodies_are_inflated() {
    let server = Running::start();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(SUM.as_bytes()).unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(SUM.as_bytes()).unwrap();
    let send = |encoding: &str, body: &[u8]| server.send("POST", "/v2/models/sums/infer", &[("Content-Encoding", encoding)], body);
    assert_eq!(send("gzip", &gzip.finish().unwrap()).status, 200);
    assert_eq!(send("deflate", &deflate.finish().unwrap()).status, 200);
    send("gzip", SUM.as_bytes()).refused(400, "cannot be inflated");
    send("br", SUM.as_bytes()).refused(415, "use gzip or deflate");
}

#[test]
fn parameters_reach_whoever_they_are_for() {
    let server = Running::start();
    let with = |parameters: &str| SUM.replace("\"inputs\"", &format!("\"parameters\":{parameters},\"inputs\""));
    assert_eq!(server.post("/v2/models/sums/infer", &with(r#"{"timeout":5000000,"priority":2}"#)).status, 200);
    server.post("/v2/models/sums/infer", &with(r#"{"sequence_id":7}"#)).refused(501, "sequences");
    server.post("/v2/models/sums/infer", &with(r#"{"behave":"refuse-input"}"#)).refused(400, "I do not like this input");
    server.gate.close();
    let late = server.post("/v2/models/sums/infer", &with(r#"{"timeout":20000}"#));
    late.refused(504, "the timeout of 20.0ms passed");
    late.refused(504, "model `sums`, request `mine`");
}

#[test]
fn a_call_of_high_priority_begins_before_those_that_wait() {
    let server = Running::start();
    server.platform.set_tenant(&tenant(), &TenantSettings { in_flight_max: 1, ..TenantSettings::default() }).unwrap();
    server.gate.close();
    let mut calls: Vec<_> = [(0, 1, 0), (0, 1, 1), (1, 1, 2)]
        .map(|(priority, in_flight, queued)| {
            let mut stream = server.connect();
            let body = SUM.replace("\"inputs\"", &format!("\"parameters\":{{\"priority\":{priority}}},\"inputs\""));
            stream.write_all(&request("POST", "/v2/models/sums/infer", &[], body.as_bytes())).unwrap();
            wait_until("it has come", || (server.counts().in_flight, server.counts().queued) == (in_flight, queued));
            stream
        })
        .into();
    let mut urgent = calls.pop().unwrap();
    // Task by task, until the first call and one more have ended.
    while server.counts().queued + server.counts().in_flight > 1 {
        server.gate.close_after(1);
        wait_until("the next task has come", || server.gate.holds_somebody());
    }
    assert_eq!(Answer::read(&mut urgent).status, 200);
    server.gate.open();
    calls.iter_mut().for_each(|stream| assert_eq!(Answer::read(stream).status, 200));
}

#[test]
fn a_full_tenant_is_told_to_try_again() {
    let server = Running::start();
    let settings = TenantSettings { in_flight_max: 1, queued_max: 0, ..TenantSettings::default() };
    server.platform.set_tenant(&tenant(), &settings).unwrap();
    server.gate.close();
    let mut first = server.connect();
    first.write_all(&request("POST", "/v2/models/sums/infer", &[], SUM.as_bytes())).unwrap();
    server.in_flight(1);
    let busy = server.post("/v2/models/sums/infer", SUM);
    busy.refused(429, "request `mine`");
    assert!(busy.header("retry-after").is_some());
    server.gate.open();
    assert_eq!(Answer::read(&mut first).status, 200);
}

#[test]
fn malformed_requests_get_a_sentence() {
    let server = Running::start();
    let infer = |body: &str| server.post("/v2/models/sums/infer", body);
    infer("").refused(400, "not the JSON");
    infer("[1").refused(400, "not the JSON");
    infer(&"[".repeat(10_000)).refused(400, "not the JSON");
    infer(r#"{"inputs":[]}"#).refused(400, "no inputs");
    infer(&SUM.replace("FP32", "FP99")).refused(400, "`FP99` is no datatype");
    infer(&SUM.replace("FP32", "FP16")).refused(400, "only as binary data");
    infer(&SUM.replace("[2,4]", "[3,4]")).refused(400, "has 12 elements, the data has 8");
    let unknown = SUM.replace("\"inputs\"", "\"outputs\":[{\"name\":\"z\"}],\"inputs\"");
    infer(&unknown).refused(400, "the model has no such output; it has sum (model `sums`, request `mine`)");
    server.send("POST", "/v2/models/sums/infer", &[], b"\xff\xfe").refused(400, "not the JSON");
}

#[test]
fn a_model_says_what_it_is() {
    let server = Running::start();
    server.has("rows", &BundleFolder::summing_rows());
    let tensor = json!({ "name": "x", "datatype": "FP32", "shape": [-1, -1, 4] });
    let metadata = server.get("/v2/models/rows").json();
    assert_eq!((&metadata["versions"], &metadata["inputs"][0]), (&json!(["1"]), &tensor));
    let config = server.get("/v2/models/rows/config").json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(4096), &json!([-1, 4])));
    assert_eq!(server.get("/v2/models/sums/config").json()["max_batch_size"], 0);
    assert_eq!(server.get("/v2/models/rows/versions/1/ready").status, 200);
    server.get("/v2/models/none/ready").refused(404, "none");
    assert_eq!(server.get("/v2").json()["name"], "cellwright");
    assert_eq!(server.get("/v2/").json(), server.get("/v2").json());
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(server.get("/v2/health/ready").status, 200);
}

#[test]
fn statistics_and_metrics_show_what_was_counted() {
    let server = Running::start();
    server.has("counted", &BundleFolder::summing());
    // Three steps for the answered call; the two that are refused have none.
    let rows = SUM.replace("[2,4]", "[3,4]").replace("7,8]", "7,8,9,10,11,12]");
    assert_eq!(server.post("/v2/models/counted/infer", &rows).status, 200);
    for _ in 0..2 {
        let refused = rows.replace("\"inputs\"", "\"parameters\":{\"behave\":\"refuse-input\"},\"inputs\"");
        assert_eq!(server.post("/v2/models/counted/infer", &refused).status, 400);
    }
    let all = server.get("/v2/models/counted/stats").json();
    let stats = &all["model_stats"][0];
    let tasks = stats["execution_count"].as_u64().unwrap();
    assert_eq!((&stats["inference_count"], &stats["inference_stats"]["success"]["count"]), (&json!(1), &json!(1)));
    assert_eq!(stats["inference_stats"]["fail"]["count"], 2);
    let took = stats["inference_stats"]["success"]["ns"].as_u64().unwrap();
    assert!((1..=3).contains(&tasks) && took > 0, "{stats}");
    let batches = &stats["batch_stats"];
    assert_eq!((&batches[0]["batch_size"], &batches[0]["compute_infer"]["count"]), (&json!(1), &json!(tasks)));
    let names = |stats: &Value| stats["model_stats"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect::<Vec<_>>();
    let every = server.get("/v2/models/stats").json();
    assert_eq!((names(&every), &every["model_stats"][0]), (vec![json!("counted"), json!("sums")], stats));

    let metrics = server.get("/metrics").text();
    let labels = "{model=\"counted\",version=\"1\",tenant=\"default\"}";
    let is_in = |line: &str, metrics: &str| assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    for line in [
        format!("nv_inference_request_success{labels} 1"),
        format!("nv_inference_request_failure{labels} 2"),
        format!("nv_inference_count{labels} 1"),
        format!("nv_inference_exec_count{labels} {tasks}"),
        format!("nv_inference_request_duration_us{labels} {}", took / 1000),
        "cellwright_request_duration_seconds_bucket{model=\"counted\",version=\"1\",tenant=\"default\",le=\"+Inf\"} 1".to_owned(),
        "cellwright_worker_up{worker=\"0\"} 1".to_owned(),
    ] {
        is_in(&line, &metrics);
    }
    for begin in [
        "cellwright_batch_rows_bucket{model=\"counted\",version=\"1\",tenant=\"default\",cell=\"add\",type=\"",
        "cellwright_slots{domain=\"0\",name=\"",
        "cellwright_http_connections ",
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(begin)), "{begin} is not in\n{metrics}");
    }

    server.platform.set_tenant(&tenant(), &TenantSettings { in_flight_max: 1, ..TenantSettings::default() }).unwrap();
    server.gate.close();
    let mut held: Vec<_> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut held {
        stream.write_all(&request("POST", "/v2/models/counted/infer", &[], SUM.as_bytes())).unwrap();
    }
    wait_until("both have come", || (server.counts().in_flight, server.counts().queued) == (1, 1));
    let metrics = server.get("/metrics").text();
    for (name, value) in [("nv_inference_pending_request_count", 2), ("cellwright_in_flight", 1), ("cellwright_queued", 1)] {
        is_in(&format!("{name}{labels} {value}"), &metrics);
    }
    server.gate.open();
    held.iter_mut().for_each(|stream| assert_eq!(Answer::read(stream).status, 200));
}

#[test]
fn request_ids_come_back() {
    let server = Running::start();
    let answer = server.send("GET", "/v2/models/none", &[("x-request-id", "abc-7")], b"");
    assert_eq!(answer.header("x-request-id"), Some("abc-7"));
    answer.refused(404, "request `abc-7`");
    assert_eq!(server.get("/v2").header("x-request-id").map(str::len), Some(16));
}

#[test]
fn paths_and_methods_that_are_not_there_are_named() {
    let server = Running::start();
    server.get("/v3").refused(404, "there is nothing at `/v3`");
    let answer = server.get("/v2/models/sums/infer");
    answer.refused(405, "does not support that method");
    assert_eq!(answer.header("allow"), Some("POST"));
}

#[test]
fn options_are_what_is_allowed() {
    let server = Running::start();
    let allowed = [
        ("/v2/models/sums/infer", "POST"),
        ("/v2", "GET,HEAD"),
        ("/v1/models/m", "GET,HEAD,PUT,DELETE"),
        ("*", "GET,HEAD,POST,PUT,DELETE"),
    ];
    for (path, methods) in allowed {
        let answer = server.send("OPTIONS", path, &[], b"");
        assert_eq!((answer.status, answer.header("allow"), answer.body.len()), (204, Some(methods), 0), "{path}");
    }
    server.send("OPTIONS", "/v3", &[], b"").refused(404, "there is nothing at `/v3`");
}
