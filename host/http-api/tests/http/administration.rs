//! Uploads, versions, tenants.

use std::io::{Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_http_api::{Host, Limits};
use cellwright_registry::{ModelName, NewVersion, TenantName, VersionFile};
use serde_json::json;

use crate::harness::{Answer, Running, request};

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
    server.send("PUT", "/v1/models/stats", &[], b"").refused(400, "`stats` cannot be the name of a model");
}

#[test]
fn an_upload_that_is_refused_early_is_told_why() {
    let server = Running::start();
    let archive = [b"bad".to_vec(), vec![7; 8_000_000]].concat();
    server.send("PUT", "/v1/models/m", &[], &archive).refused(400, "this is no archive");
}

#[test]
fn an_upload_in_another_encoding_is_refused() {
    let server = Running::start();
    let send = |encoding: &str| server.send("PUT", "/v1/models/m", &[("Content-Encoding", encoding)], b"an archive");
    send("gzip").refused(415, "send .tar or .tar.zst as it is");
    send("br").refused(415, "send .tar or .tar.zst as it is");
    assert_eq!(send("identity").status, 201);
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

/// A tenant may have a million versions, and nobody bounds how often it lists them.
#[test]
fn few_of_a_tenants_lists_are_made_at_once_and_others_do_not_wait_for_them() {
    let server = Running::start();
    server.host.slow_index.store(true, Ordering::Release);
    let ask = |path: &str| {
        let mut stream = server.connect();
        stream.write_all(&request("GET", path, &[], b"")).unwrap();
        stream
    };
    let mut streams: Vec<_> = ["/v1/models", "/v1/models", "/v1/models", "/v1/models/echo"].map(ask).into();
    server.host.waiting.reaches(2);
    streams[3].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(streams[3].read(&mut [0; 1]).is_err());
    assert_eq!(server.host.waiting.now(), 2, "all of them were begun at once");
    assert_eq!(server.send("GET", "/v1/models?tenant=operator", &[], b"").status, 200, "another tenant does not wait for them");
    server.host.unblocked.add();
    streams[3].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let statuses: Vec<_> = streams.iter_mut().map(|stream| Answer::read(stream).status).collect();
    assert_eq!(statuses, [200, 200, 200, 404]);
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
fn an_upload_that_drips_is_given_up_though_a_call_could_come_so_slowly() {
    let server = Running::with(Limits { body_grace: Duration::from_millis(200), ..Limits::default() }, None);
    let mut stream = server.connect();
    stream.write_all(b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\nconnection: close\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (started, mut heard) = (Instant::now(), Vec::new());
    // Some 25 KiB a second.
    while heard.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(20), "it is still taken");
        let _ = stream.write_all(&[7; 512]);
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap_or(0);
        heard.extend_from_slice(&buffer[..read]);
    }
    assert!(heard.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&heard));
}

#[test]
fn an_upload_whose_client_leaves_is_given_up_and_keeps_its_room_until_it_ends() {
    let server = Running::with(Limits { tenant_uploads_max: 1, ..Limits::default() }, None);
    let mut stream = server.connect();
    stream.write_all(&request("PUT", "/v1/models/long", &[], b"archive")).unwrap();
    server.host.waiting.reaches(1);
    drop(stream);
    server.host.cancelled.reaches(1);
    let mut next = server.connect();
    next.write_all(&request("PUT", "/v1/models/m", &[], b"archive")).unwrap();
    next.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(next.read(&mut [0; 1]).is_err(), "it had its turn while the one before it went on");
    let other = server.send("PUT", "/v1/models/m?tenant=operator", &[], b"archive");
    assert_eq!(other.status, 201, "another tenant does not wait for it");
    server.host.unblocked.add();
    next.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(Answer::read(&mut next).status, 201);
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
fn changes_wait_in_a_line_of_their_tenant_which_has_an_end() {
    let server = Running::start();
    let mut waiting = Vec::new();
    let refused = loop {
        assert!(waiting.len() < 100, "none was refused");
        let mut stream = server.connect();
        stream.write_all(&request("POST", "/v1/models/long/versions/1/activate", &[], b"")).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut first = [0];
        if stream.read(&mut first).is_ok() {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            break Answer::read(&mut first.chain(stream));
        }
        waiting.push(stream);
    };
    refused.refused(429, "changes of this tenant's models");
    assert_eq!(server.host.waiting.now(), 4);
    assert_eq!(server.post("/v1/models/m/versions/1/activate?tenant=operator", "").status, 200);
    server.host.unblocked.add();
    for mut stream in waiting {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(Answer::read(&mut stream).status, 200);
    }
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
    let share = |settings: &[u8]| server.send("PUT", "/v1/tenants/acme", &[], settings).json()["settings"]["device_share"].clone();
    for none in [&b"{\"device_share\":null}"[..], b"{\"device_share\":0}"] {
        assert_eq!(share(br#"{"device_share":0.5}"#), json!(0.5));
        assert_eq!(share(br#"{"weight":2}"#), json!(0.5));
        assert_eq!(share(none), json!(null), "a share is taken back");
    }
    assert_eq!(server.send("DELETE", "/v1/tenants/acme", &[], b"").status, 204);
    server.get("/v1/tenants/acme").refused(404, "no tenant `acme`");
}

/// What is not given stays, also where somebody else is just giving it.
#[test]
fn changes_of_a_tenant_at_once_take_nothing_back() {
    let server = Running::start();
    let set = |body: String| assert_eq!(server.send("PUT", "/v1/tenants/default", &[], body.as_bytes()).status, 200);
    for round in 1..=100 {
        std::thread::scope(|scope| {
            scope.spawn(|| set(format!(r#"{{"weight":{round}}}"#)));
            scope.spawn(|| set(format!(r#"{{"models_max":{round}}}"#)));
        });
        let settings = server.get("/v1/tenants/default").json()["settings"].clone();
        assert_eq!((&settings["weight"], &settings["models_max"]), (&json!(round), &json!(round)));
    }
}

/// A report may hold fewer samples than there were; lists hold none.
#[test]
fn a_version_tells_of_its_samples_where_it_is_looked_at() {
    let server = Running::start();
    let registry = Host::registry(&*server.host);
    let mut blob = registry.new_blob().unwrap();
    blob.write_all(b"bytes").unwrap();
    let files = vec![VersionFile { path: "model.toml".to_owned(), blob: blob.finish().unwrap() }];
    let report = json!({ "samples": [{ "name": "one", "compared": true }], "more": 12 });
    let version = NewVersion { files, report, activate: true };
    registry.commit_version(&TenantName::default_tenant(), &ModelName::parse("m").unwrap(), version).unwrap();
    let samples = server.get("/v1/models/m").json()["versions"][0]["samples"].clone();
    assert_eq!(samples, json!([{ "name": "one", "ok": true, "compared": true }, { "name": "and 12 more", "ok": true }]));
    assert_eq!(server.get("/v1/models").json()["models"][0]["versions"][0]["samples"], json!([]));
}

#[test]
fn a_list_is_no_message() {
    let server = Running::start();
    for (path, body) in [
        ("/v1/tenants", r#"["t",{}]"#),
        ("/v1/tenants", r#"{"name":"t","settings":[]}"#),
        ("/v1/tenants", r#"{"name":"t","settings":[3]}"#),
        ("/v1/keys", r#"["default",["infer"],""]"#),
        ("/v2/repository/index", "[]"),
        ("/v2/repository/index", " [true]"),
    ] {
        server.post(path, body).refused(400, "object");
    }
    server.get("/v1/tenants/t").refused(404, "no tenant");
}
