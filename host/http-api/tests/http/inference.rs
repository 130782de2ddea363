//! Requests and answers in every form.

use std::io::Write as _;

use cellwright_protocol::InferResponse;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::json;

use crate::harness::Running;

const ECHO: &str = r#"{"id":"mine","inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1.5,2]}]}"#;

#[test]
fn a_request_in_json_is_answered_in_json() {
    let server = Running::start();
    let answer = server.post("/v2/models/echo/infer", ECHO);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.json(),
        json!({ "model_name": "echo", "model_version": "3", "id": "mine",
                "outputs": [{ "name": "y", "shape": [2], "datatype": "FP32", "data": [1.5, 2.0] }] })
    );
    assert_eq!(server.post("/v2/models/echo/versions/3/infer", ECHO).status, 200);
    server.post("/v2/models/echo/versions/9/infer", ECHO).refused(404, "version 3 does");
    server.post("/v2/models/other/infer", ECHO).refused(404, "there is no model `other` (model `other`");
}

#[test]
fn tensors_travel_as_bytes_both_ways() {
    let server = Running::start();
    let json = r#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}"#;
    let body = [json.as_bytes(), &1.5_f32.to_le_bytes(), &2.0_f32.to_le_bytes()].concat();
    let length = json.len().to_string();
    let send =
        |length: &str, body: &[u8]| server.send("POST", "/v2/models/echo/infer", &[("Inference-Header-Content-Length", length)], body);
    let answer = send(&length, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let json_length = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    let response = InferResponse::from_body(&answer.body, Some(json_length)).unwrap();
    assert_eq!(response.outputs[0].to_f32(), Some(vec![1.5, 2.0]));

    send(&length, &body[..body.len() - 1]).refused(400, "only 7 bytes of the message are left");
    send(&length, &[&body[..], b"!"].concat()).refused(400, "bytes are left behind the last tensor");
    send("99999", &body).refused(400, "announces 99999 bytes of JSON");
    send("-1", &body).refused(400, "must be a number of bytes");
    let raw = send("0", &1.5_f32.to_le_bytes());
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert_eq!(&raw.body[raw.body.len() - 4..], 1.5_f32.to_le_bytes());
}

#[test]
fn half_floats_must_be_asked_for_as_bytes() {
    let server = Running::start();
    let json = r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2}}]}"#;
    let headers = [("inference-header-content-length", json.len().to_string())];
    let headers = [(headers[0].0, headers[0].1.as_str())];
    let answer = server.send("POST", "/v2/models/half/infer", &headers, &[json.as_bytes(), &[0, 60]].concat());
    answer.refused(400, "travels only as binary data");
}

#[test]
fn compressed_bodies_are_inflated() {
    let server = Running::start();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(ECHO.as_bytes()).unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(ECHO.as_bytes()).unwrap();
    let send = |encoding: &str, body: &[u8]| server.send("POST", "/v2/models/echo/infer", &[("Content-Encoding", encoding)], body);
    assert_eq!(send("gzip", &gzip.finish().unwrap()).status, 200);
    assert_eq!(send("deflate", &deflate.finish().unwrap()).status, 200);
    send("gzip", ECHO.as_bytes()).refused(400, "cannot be inflated");
    send("br", ECHO.as_bytes()).refused(415, "gzip and deflate are");
}

#[test]
fn parameters_reach_whoever_they_are_for() {
    let server = Running::start();
    let with = |parameters: &str| ECHO.replace("\"inputs\"", &format!("\"parameters\":{parameters},\"inputs\""));
    assert_eq!(server.post("/v2/models/echo/infer", &with(r#"{"timeout":5000000,"priority":2}"#)).status, 200);
    assert_eq!(*server.host.last_call.lock().unwrap(), Some((Some(std::time::Duration::from_secs(5)), 2)));
    server.post("/v2/models/echo/infer", &with(r#"{"sequence_id":7}"#)).refused(501, "sequences");
    let busy = server.post("/v2/models/echo/infer", &with(r#"{"refuse":true}"#));
    busy.refused(503, "request `mine`");
    assert!(busy.header("retry-after").is_some());
    server.post("/v2/models/late/infer", ECHO).refused(504, "model `late`, request `mine`");
}

#[test]
fn malformed_requests_get_a_sentence() {
    let server = Running::start();
    let infer = |body: &str| server.post("/v2/models/echo/infer", body);
    infer("").refused(400, "not the JSON");
    infer("[1").refused(400, "not the JSON");
    infer(&"[".repeat(10_000)).refused(400, "not the JSON");
    infer(r#"{"inputs":[]}"#).refused(400, "no inputs");
    infer(&ECHO.replace("FP32", "FP99")).refused(400, "`FP99` is no datatype");
    infer(&ECHO.replace("[2]", "[3]")).refused(400, "has 3 elements, the data has 2");
    let unknown = ECHO.replace("\"inputs\"", "\"outputs\":[{\"name\":\"z\"}],\"inputs\"");
    infer(&unknown).refused(400, "the model has no such output; it has y (model `echo`, request `mine`)");
    server.send("POST", "/v2/models/echo/infer", &[], b"\xff\xfe").refused(400, "not the JSON");
}

#[test]
fn a_model_says_what_it_is() {
    let server = Running::start();
    let tensor = json!({ "name": "x", "datatype": "FP32", "shape": [-1, 2] });
    let metadata = server.get("/v2/models/rows").json();
    assert_eq!((&metadata["versions"], &metadata["inputs"][0]), (&json!(["3"]), &tensor));
    let config = server.get("/v2/models/rows/config").json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(16), &json!([2])));
    assert_eq!(server.get("/v2/models/rows/versions/3/ready").status, 200);
    server.get("/v2/models/none/ready").refused(404, "none");
    assert_eq!(server.get("/v2").json()["name"], "cellwright");
    assert_eq!(server.get("/v2/").json(), server.get("/v2").json());
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(server.get("/v2/health/ready").status, 200);
}

#[test]
fn statistics_and_metrics_show_what_was_counted() {
    let server = Running::start();
    let stats = server.get("/v2/models/echo/stats").json();
    let stats = &stats["model_stats"][0];
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(5), &json!(3)));
    assert_eq!(stats["inference_stats"]["fail"], json!({ "count": 2, "ns": 2_000_000 }));
    assert_eq!(stats["batch_stats"][1]["compute_infer"], json!({ "count": 2, "ns": 2000 }));
    assert_eq!(server.get("/v2/models/stats").json()["model_stats"].as_array().map(Vec::len), Some(1));

    let metrics = server.get("/metrics").text();
    for line in [
        "nv_inference_request_success{model=\"echo\",version=\"3\",tenant=\"default\"} 4",
        "nv_inference_exec_count{model=\"echo\",version=\"3\",tenant=\"default\"} 3",
        "nv_inference_pending_request_count{model=\"echo\",version=\"3\",tenant=\"default\"} 3",
        "cellwright_in_flight{model=\"echo\",version=\"3\",tenant=\"default\"} 1",
        "cellwright_queued{model=\"echo\",version=\"3\",tenant=\"default\"} 2",
        "nv_inference_request_duration_us{model=\"echo\",version=\"3\",tenant=\"default\"} 4000",
        "cellwright_request_duration_seconds_bucket{model=\"echo\",version=\"3\",tenant=\"default\",le=\"0.00025\"} 4",
        "cellwright_batch_rows_bucket{model=\"echo\",version=\"3\",tenant=\"default\",cell=\"lstm\",type=\"k\",le=\"+Inf\"} 30",
        "cellwright_slots{domain=\"0\",name=\"host\"} 8",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.contains("\ncellwright_http_connections "), "{metrics}");
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
    let answer = server.get("/v2/models/echo/infer");
    answer.refused(405, "does not take that method");
    assert_eq!(answer.header("allow"), Some("POST"));
}
