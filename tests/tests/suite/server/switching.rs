//! Changes of versions under load: no request fails, every answer is one version's alone, and so is every figure.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cellwright_tests::http2::Http2;
use cellwright_tests::neighbours::SetOnDrop;
use cellwright_tests::platform::summing;
use cellwright_tests::server::{Answer, Server, biased, sum};
use serde_json::json;

/// Answers of a version before it is replaced.
const ANSWERS: usize = 20;

/// Answers by version; a version's number is its bias.
#[derive(Default)]
struct Seen([AtomicUsize; 3]);

impl Seen {
    fn of(&self, version: usize) -> usize {
        self.0[version].load(Ordering::Acquire)
    }

    fn take(&self, answer: &Answer, seed: usize, rows: usize) {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        let version: u8 = answer["model_version"].as_str().and_then(|version| version.parse().ok()).expect("a version");
        assert_eq!(answer["outputs"][0]["data"], json!(biased(seed, rows, f32::from(version))), "version {version}");
        self.0[usize::from(version)].fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn switching_back_and_forth_drops_no_request_and_mixes_no_versions() {
    let server = Server::start(&[]);
    server.push("sums", &summing(1.0));
    let (over, seen) = (AtomicBool::new(false), Seen::default());
    let rows = |seed: usize| 1 + (seed * 37) % 211;
    let client = |number: usize, ask: &dyn Fn(&[u8]) -> Answer| {
        for seed in (number..).step_by(3).take_while(|_| !over.load(Ordering::Acquire)) {
            seen.take(&ask(sum(seed, rows(seed)).to_string().as_bytes()), seed, rows(seed));
        }
    };
    std::thread::scope(|scope| {
        let (client, server) = (&client, &server);
        let over = SetOnDrop(&over);
        for number in 0..2 {
            scope.spawn(move || client(number, &|body| server.send("POST", "/v2/models/sums/infer", &[], body)));
        }
        scope.spawn(move || {
            let connection = Http2::connect(server);
            client(2, &|body| connection.send("POST", "/v2/models/sums/infer", &[], body.to_vec()));
        });
        let answers = |version: usize| {
            let before = seen.of(version);
            server.until("the version answers that was activated", || seen.of(version) >= before + ANSWERS);
        };
        let change = |path: &str| {
            let answer = server.send("POST", &format!("/v1/models/sums/{path}"), &[], b"");
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        };
        answers(1);
        server.push("sums", &summing(2.0));
        answers(2);
        for _ in 0..4 {
            change("rollback");
            answers(1);
            change("versions/2/activate");
            answers(2);
            change("versions/1/activate");
            answers(1);
            change("rollback");
            answers(2);
        }
        drop(over);
    });
    for version in [1, 2] {
        let label = format!("version=\"{version}\"");
        assert_eq!(server.figure("nv_inference_request_success", &label) as usize, seen.of(version));
        assert_eq!(server.figure("nv_inference_request_failure", &label), 0.0);
        assert!(server.figure("nv_inference_exec_count", &label) > 0.0);
    }
    let stats = server.get("/v2/models/sums/versions/1/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_count"], seen.of(1), "{stats}");
    assert_eq!(server.send("DELETE", "/v1/models/sums/versions/1", &[], b"").status, 204);
    assert_eq!(server.get("/v2/models/sums/versions/1/stats").status, 404);
    assert_eq!(server.get("/v2/models/sums/stats").json()["model_stats"].as_array().map(Vec::len), Some(1));
}
