//! Uploads, versions, tenants.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cellwright_gate::Bounds;
use cellwright_http_api::Limits;
use cellwright_registry::{NewVersion, TenantName, VersionFile};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{archive, model, other_tenant, summing, tenant};
use serde_json::json;

use super::harness::{Answer, Running, request};

/// The archive of a bundle that a server of these tests can load.
fn sound() -> Vec<u8> {
    archive(&BundleFolder::summing())
}

/// The archive of one whose cells no server of these tests has yet.
fn unknown() -> Vec<u8> {
    archive(&summing(7.0))
}

#[test]
fn an_upload_arrives_whole() {
    let server = Running::start();
    let (bundle, large) = (BundleFolder::summing(), vec![7; 3_000_000]);
    bundle.write("large.bin", &large);
    let answer = server.send("PUT", "/v1/models/m?activate=false", &[], &archive(&bundle));
    assert_eq!(answer.status, 201, "{}", answer.text());
    let files = server.platform.registry().files(&tenant(), &model("m"), 1).unwrap();
    let file = files.iter().find(|file| file.path == "large.bin").unwrap();
    assert_eq!(std::fs::read(server.platform.registry().blob_path(&file.blob.digest)).unwrap(), large);
    let uploaded = answer.json();
    assert_eq!((&uploaded["version"], &uploaded["activated"]), (&json!(1), &json!(false)));
    server.send("PUT", "/v1/models/m?activate=perhaps", &[], b"").refused(400, "true or false");
    server.send("PUT", "/v1/models/stats", &[], b"").refused(400, "`stats` cannot be the name of a model");
}

#[test]
fn an_upload_that_is_refused_early_is_told_why() {
    let server = Running::start();
    let archive = [b"bad".to_vec(), vec![7; 8_000_000]].concat();
    server.send("PUT", "/v1/models/m", &[], &archive).refused(400, "archive");
}

#[test]
fn an_upload_in_another_encoding_is_refused() {
    let server = Running::start();
    let send = |encoding: &str| server.send("PUT", "/v1/models/m", &[("Content-Encoding", encoding)], &sound());
    send("gzip").refused(415, "send the .tar or .tar.zst as it is");
    send("br").refused(415, "send the .tar or .tar.zst as it is");
    assert_eq!(send("identity").status, 201);
}

#[test]
fn an_upload_over_the_limit_is_refused() {
    let server = Running::with(Bounds { upload_bytes_max: 100_000, ..Bounds::default() }, None);
    let archive = sound();
    server.send("PUT", "/v1/models/m", &[], &archive).refused(413, "more than 100000 bytes");
    let mut chunked = b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in archive.chunks(0x8000) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    server.raw(&chunked).refused(413, "more than 100000 bytes");
    server.get("/v1/models/m").refused(404, "no model");
}

#[test]
fn an_upload_that_breaks_off_is_never_taken_for_a_whole_one() {
    let server = Running::with(Bounds { tenant_uploads_max: 1, ..Bounds::default() }, None);
    let archive = sound();
    let mut stream = server.connect();
    // All of the archive, and not all of the body.
    let head = format!("PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", archive.len() + 1);
    stream.write_all(&[head.as_bytes(), &archive].concat()).unwrap();
    drop(stream);
    // It has its turn when that one has ended.
    assert_eq!(server.send("PUT", "/v1/models/m", &[], &unknown()).json()["version"], 1);
}

/// Keeps the thread of a server that has only one for what may block, until this is dropped.
pub(super) fn block(server: &Running) -> std::sync::mpsc::SyncSender<()> {
    let (release, released) = std::sync::mpsc::sync_channel(1);
    drop(server.runtime.spawn_blocking(move || released.recv()));
    release
}

/// Waits until all that came to a server on one thread before this is under way.
fn all_have_come(server: &Running) {
    for _ in 0..3 {
        assert_eq!(server.get("/v2").status, 200);
    }
}

#[test]
fn refusals_that_no_version_sees_are_counted() {
    let limits = Bounds { tenant_uploads_max: 1, bodies_bytes_max: 20_000, ..Bounds::default() };
    let server = Running::on_one_thread_that_blocks(limits);
    // A page of metrics would wait for the thread that blocks.
    let counted = || {
        let counts = server.door.shed().counts(Some(&TenantName::default_tenant()));
        ["body", "list", "upload"].map(|kind| counts.iter().find(|(_, counted, _)| *counted == kind).map_or(0, |(.., count)| *count))
    };
    let fill = |method: &str, path: &str, count: usize| -> Vec<_> {
        let begin = |_| {
            let mut stream = server.connect();
            stream.write_all(&request(method, path, &[], b"archive")).unwrap();
            stream
        };
        (0..count).map(begin).collect()
    };
    server.send("POST", "/v2/models/sums/infer", &[], &vec![b' '; 30_000]).refused(503, "as many bytes of requests");
    assert_eq!(counted(), [1, 0, 0]);
    let release = block(&server);
    // Those at work and those that wait, and one more than may.
    let uploads = fill("PUT", "/v1/models/m", 66);
    let lists = fill("GET", "/v1/models", 259);
    wait_until("one of each is refused", || counted() == [1, 1, 1]);
    drop((uploads, lists, release));
}

/// A tenant may have a million versions, and nobody bounds how often it lists them.
#[test]
fn few_of_a_tenants_lists_are_made_at_once_and_others_do_not_wait_for_them() {
    let server = Running::on_one_thread_that_blocks(Limits::default());
    let ask = |path: &str| {
        let mut stream = server.connect();
        stream.write_all(&request("GET", path, &[], b"")).unwrap();
        stream
    };
    let before = block(&server);
    let mut streams: Vec<_> = ["/v1/models", "/v1/models", "/v1/models", "/v1/models/none"].map(ask).into();
    all_have_come(&server);
    let mut other = ask("/v1/models?tenant=operator");
    all_have_come(&server);
    // Behind it come those that have not begun.
    let behind = block(&server);
    drop(before);
    let answered = || {
        let has_come = |stream: &&TcpStream| stream.set_nonblocking(true).is_ok() && stream.peek(&mut [0]).is_ok();
        streams.iter().filter(has_come).count()
    };
    wait_until("those that have begun are answered", || answered() >= 2);
    assert_eq!(Answer::read(&mut other).status, 200, "another tenant does not wait for them");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(answered(), 2, "all of them were begun at once");
    drop(behind);
    let mut statuses: Vec<_> = streams
        .iter_mut()
        .map(|stream| {
            stream.set_nonblocking(false).unwrap();
            Answer::read(stream).status
        })
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 404]);
}

#[test]
fn an_upload_that_stands_still_is_given_up() {
    let server = Running::with(Limits { body_grace: Duration::from_millis(200), ..Limits::default() }, None);
    let mut stream = server.connect();
    stream.write_all(b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\nconnection: close\r\n\r\nsome").unwrap();
    Answer::read(&mut stream).refused(408, "too slowly");
    server.get("/v1/models/m").refused(404, "no model");
}

#[test]
fn an_upload_that_drips_is_given_up_though_a_call_could_come_so_slowly() {
    let server = Running::with(Limits { body_grace: Duration::from_millis(200), ..Limits::default() }, None);
    let mut stream = server.connect();
    stream.write_all(b"PUT /v1/models/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\nconnection: close\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (started, mut heard) = (Instant::now(), Vec::new());
    // A file that is never complete, at some 25 KiB a second.
    let mut header = tar::Header::new_gnu();
    header.set_path("large.bin").unwrap();
    header.set_size(10_000_000);
    header.set_cksum();
    let mut pieces = header.as_bytes().iter().copied().chain(std::iter::repeat(7));
    while heard.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(20), "it is still taken");
        let _ = stream.write_all(&pieces.by_ref().take(512).collect::<Vec<_>>());
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap_or(0);
        heard.extend_from_slice(&buffer[..read]);
    }
    assert!(heard.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&heard));
}

#[test]
fn an_upload_whose_client_leaves_is_given_up_and_keeps_its_room_until_it_ends() {
    let server = Running::with(Bounds { tenant_uploads_max: 1, ..Bounds::default() }, None);
    server.loading.close();
    let mut stream = server.connect();
    stream.write_all(&request("PUT", "/v1/models/left", &[], &unknown())).unwrap();
    wait_until("it is checked", || server.loading.holds_somebody());
    drop(stream);
    // It would be refused at once.
    let mut next = server.connect();
    next.write_all(&request("PUT", "/v1/models/m", &[], &[7; 1000])).unwrap();
    next.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(next.read(&mut [0; 1]).is_err(), "it had its turn while the one before it went on");
    let _other = other_tenant(&server.platform, "other");
    // Another tenant does not wait for it.
    server.send("PUT", "/v1/models/m?tenant=other", &[], &[7; 1000]).refused(400, "archive");
    server.loading.open();
    next.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Answer::read(&mut next).refused(400, "archive");
    server.get("/v1/models/left").refused(404, "no model");
}

#[test]
fn versions_are_switched_and_deleted() {
    let server = Running::start();
    for (version, bias) in [(1, 1.0), (2, 2.0)] {
        let uploaded = server.send("PUT", &format!("/v1/models/m?activate={}", version == 1), &[], &archive(&summing(bias)));
        assert_eq!((uploaded.status, &uploaded.json()["version"]), (201, &json!(version)));
    }
    server.post("/v1/models/m/rollback", "").refused(409, "no earlier active version");
    let activated = server.post("/v1/models/m/versions/2/activate", "");
    assert_eq!(activated.json(), json!({ "model": "m", "active": 2, "previous": 1 }));
    assert_eq!(server.send("DELETE", "/v1/models/m/versions/1", &[], b"").status, 204);
    assert_eq!(server.get("/v1/models/m").json()["versions"].as_array().map(Vec::len), Some(1));
    for name in ["m", "sums"] {
        assert_eq!(server.send("DELETE", &format!("/v1/models/{name}"), &[], b"").status, 204);
    }
    server.get("/v1/models/none").refused(404, "there is no model `none`");
    assert_eq!(server.get("/v1/models").json(), json!({ "models": [] }));
}

#[test]
fn changes_wait_in_a_line_of_their_tenant_which_has_an_end() {
    let server = Running::start();
    assert_eq!(server.send("PUT", "/v1/models/m?activate=false", &[], &unknown()).status, 201);
    server.loading.close();
    let mut waiting = Vec::new();
    let refused = loop {
        assert!(waiting.len() < 100, "none was refused");
        let mut stream = server.connect();
        stream.write_all(&request("POST", "/v1/models/m/versions/1/activate", &[], b"")).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut first = [0];
        if stream.read(&mut first).is_ok() {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            break Answer::read(&mut first.chain(stream));
        }
        waiting.push(stream);
    };
    refused.refused(429, "changes of this tenant wait");
    let shed =
        |path: &str, kind: &str| server.get(path).text().contains(&format!("cellwright_shed{{tenant=\"default\",kind=\"{kind}\"}} 1\n"));
    assert!(shed("/metrics", "change") && !shed("/metrics?tenant=operator", "change") && !shed("/metrics", "upload"));
    assert_eq!(waiting.len(), 4 + 64, "those at work, and those that may wait");
    server.post("/v1/models/m/versions/1/activate?tenant=operator", "").refused(404, "no model");
    server.loading.open();
    for mut stream in waiting {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(Answer::read(&mut stream).status, 200);
    }
}

#[test]
fn the_repository_lists_loads_and_unloads() {
    let server = Running::start();
    let index = server.post("/v2/repository/index", "").json();
    assert_eq!(index[0], json!({ "name": "sums", "version": "1", "state": "READY", "reason": "" }));
    assert_eq!(server.post("/v2/repository/index", r#"{"ready":true}"#).json(), index);
    assert_eq!(server.post("/v2/repository/index", r#"{"ready":null,"name":["a"]}"#).json(), index);
    server.post("/v2/repository/index", r#"{"ready":1}"#).refused(400, "expected a boolean");
    assert_eq!(server.post("/v2/repository/models/sums/load", "").status, 200);
    assert_eq!(server.post("/v2/repository/models/sums/unload", r#"{"parameters":{"unload_dependents":false}}"#).status, 200);
    server.post("/v2/repository/models/none/load", "{}").refused(404, "model `none`");
    server.post("/v2/repository/models/sums/load", r#"{"parameters":{"config":"{}"}}"#).refused(501, "as they were uploaded");
    assert_eq!(server.post("/v2/repository/models/sums/load", r#"{"parameters":{"config":null,"warm":[1]}}"#).status, 200);
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
    let registry = server.platform.registry();
    let mut blob = registry.new_blob().unwrap();
    blob.write_all(b"bytes").unwrap();
    let files = vec![VersionFile { path: "model.toml".to_owned(), blob: blob.finish().unwrap() }];
    let report = json!({ "samples": [{ "name": "one", "compared": true }], "more": 12 });
    let version = NewVersion { files, report, activate: true };
    registry.commit_version(&tenant(), &model("m"), version).unwrap();
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

#[test]
fn a_list_is_counted_before_it_is_made() {
    let bounds = |bodies_bytes_max| Bounds { bodies_bytes_max, ..Bounds::default() };
    for (room, status) in [(8 << 10, 503), (16 << 10, 200)] {
        let server = Running::with(bounds(room), None);
        (0..14_u8).for_each(|number| server.has("m", &summing(number.into())));
        let listed = server.get("/v1/models");
        assert_eq!(listed.status, status, "{}", listed.text());
        assert!(listed.body.len() < 4 << 10, "as it is sent it need not count");
    }
}
