//! Uploads, versions, tenants.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellwright_http_api::Limits;
use serde_json::json;

use crate::harness::{Answer, Running};

#[test]
fn an_upload_arrives_whole() {
    let server = Running::start();
    let archive = vec![7; 3_000_000];
    let answer = server.send("PUT", "/v1/models/m?activate=false", &[], &archive);
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(server.host.uploaded_bytes.load(Ordering::Acquire), archive.len());
    let uploaded = answer.json();
    assert_eq!((&uploaded["version"], &uploaded["activated"]), (&json!(4), &json!(false)));
    server.send("PUT", "/v1/models/m?activate=perhaps", &[], b"").refused(400, "true or false");
}

#[test]
fn an_upload_that_is_refused_early_is_told_why() {
    let server = Running::start();
    let archive = [b"bad".to_vec(), vec![7; 8_000_000]].concat();
    server.send("PUT", "/v1/models/m", &[], &archive).refused(400, "this is no archive");
}

#[test]
fn an_upload_over_the_limit_is_refused() {
    let server = Running::with(Limits { upload_bytes_max: 100_000, ..Limits::default() }, None);
    server.send("PUT", "/v1/models/m", &[], &vec![7; 100_001]).refused(413, "more than 100000 bytes");
    let mut chunked = b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..10 {
        chunked.extend_from_slice(b"8000\r\n");
        chunked.extend_from_slice(&[7; 0x8000]);
        chunked.extend_from_slice(b"\r\n");
    }
    server.raw(&chunked).refused(413, "more than 100000 bytes");
    assert!(server.host.upload_broke_off.load(Ordering::Acquire));
}

#[test]
fn an_upload_that_breaks_off_is_never_taken_for_a_whole_one() {
    let server = Running::start();
    let mut stream = server.connect();
    stream.write_all(b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\nsome of it").unwrap();
    drop(stream);
    server.host.cancelled.reaches(1);
    assert!(server.host.upload_broke_off.load(Ordering::Acquire));
}

#[test]
fn an_upload_that_stands_still_is_given_up() {
    let server = Running::with(Limits { body_grace: Duration::from_millis(200), ..Limits::default() }, None);
    let mut stream = server.connect();
    stream.write_all(b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\nconnection: close\r\n\r\nsome").unwrap();
    Answer::read(&mut stream).refused(408, "too slowly");
    server.host.cancelled.reaches(1);
}

#[test]
fn versions_are_switched_and_deleted() {
    let server = Running::start();
    let activated = server.post("/v1/models/m/versions/5/activate", "");
    assert_eq!(activated.json(), json!({ "model": "m", "active": 5, "previous": 3 }));
    server.post("/v1/models/m/rollback", "").refused(409, "no earlier version");
    assert_eq!(server.send("DELETE", "/v1/models/m/versions/5", &[], b"").status, 204);
    assert_eq!(server.send("DELETE", "/v1/models/echo", &[], b"").status, 204);
    server.get("/v1/models/none").refused(404, "there is no model `none`");
    assert_eq!(server.get("/v1/models").json(), json!({ "models": [] }));
}

#[test]
fn the_repository_lists_loads_and_unloads() {
    let server = Running::start();
    let index = server.post("/v2/repository/index", "").json();
    assert_eq!(index[0], json!({ "name": "echo", "version": "3", "state": "READY", "reason": "" }));
    assert_eq!(server.post("/v2/repository/index", r#"{"ready":true}"#).json(), index);
    server.post("/v2/repository/index", r#"{"redy":true}"#).refused(400, "redy");
    assert_eq!(server.post("/v2/repository/models/echo/load", "").status, 200);
    assert_eq!(server.post("/v2/repository/models/echo/unload", r#"{"parameters":{"unload_dependents":false}}"#).status, 200);
    server.post("/v2/repository/models/none/load", "{}").refused(404, "model `none`");
    server.post("/v2/repository/models/echo/load", r#"{"parameters":{"config":"{}"}}"#).refused(501, "as they were uploaded");
}

#[test]
fn tenants_are_made_changed_and_deleted() {
    let server = Running::start();
    let made = server.post("/v1/tenants", r#"{"name":"acme","settings":{"weight":3}}"#);
    assert_eq!((made.status, &made.json()["settings"]["weight"]), (201, &json!(3)));
    server.post("/v1/tenants", r#"{"name":"acme"}"#).refused(409, "already");
    server.post("/v1/tenants", r#"{"name":"../x"}"#).refused(400, "cannot be the name");
    server.post("/v1/tenants", r#"{"name":"b","settings":{"wait":1}}"#).refused(400, "wait");
    let changed = server.send("PUT", "/v1/tenants/acme", &[], br#"{"models_max":7}"#).json();
    assert_eq!((&changed["settings"]["models_max"], &changed["settings"]["weight"]), (&json!(7), &json!(3)));
    server.send("PUT", "/v1/tenants/acme", &[], br#"{"weight":0}"#).refused(400, "weight");
    assert_eq!(server.send("DELETE", "/v1/tenants/acme", &[], b"").status, 204);
    server.get("/v1/tenants/acme").refused(404, "no tenant `acme`");
}
