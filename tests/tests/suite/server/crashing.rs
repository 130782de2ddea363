//! A server that is killed, and the next one over its data.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellwright_tests::archives::Tar;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::platform::summing;
use cellwright_tests::server::{Server, biased, is_sum, request, sum};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

#[test]
fn what_was_acknowledged_is_there_after_a_kill_and_what_was_not_is_absent() {
    let data = TempDir::new().expect("a temporary folder");
    let archive = Tar::of(BundleFolder::recurrent().path()).finish();
    for half in [0, archive.len() / 2, archive.len() - 1] {
        let server = Server::over(data.path(), &[]);
        server.push("sums", &BundleFolder::summing());
        let mut upload = server.connect();
        let head = format!("PUT /v1/models/chain HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", archive.len());
        upload.write_all(&[head.as_bytes(), &archive[..half]].concat()).expect("it is taken");
        server.signal(Signal::KILL);
        assert_eq!(server.wait().0, None);

        let server = Server::over(data.path(), &[]);
        server.until("its model serves", || server.get("/v2/models/sums/ready").status == 200);
        assert!(is_sum(&server.infer("sums", &sum(3, 9)), 3, 9));
        assert_eq!(server.get("/v1/models/sums").json()["versions"].as_array().map(Vec::len), Some(1));
        assert_eq!(server.get("/v1/models/chain").status, 404);
        let left = std::fs::read_dir(data.path().join("incoming")).expect("a folder").count();
        assert_eq!(left, 0, "pieces of an upload are left");
    }
}

/// What is known of the model for sure.
struct Known {
    /// Versions, and the bias that tells each of them from the others.
    biases: BTreeMap<u64, u16>,
    active: u64,
    previous: Option<u64>,
}

/// What was asked for and not acknowledged.
#[derive(Clone, Copy, Debug)]
enum Change {
    Upload(u16),
    Activate(u64),
    RollBack,
}

impl Known {
    /// Changes the model until nobody answers any more; gives the change that may have happened or not.
    fn change_until_gone(&mut self, server: &Server, random: &mut u64, begun: &AtomicBool) -> Change {
        loop {
            let change = match next(random) % 4 {
                0 => Change::Upload(u16::try_from(self.biases.len() + 1).expect("few versions")),
                1 if self.previous.is_some() => Change::RollBack,
                _ => Change::Activate(1 + next(random) % self.biases.len() as u64),
            };
            let (method, path, body) = match change {
                Change::Upload(bias) => ("PUT", String::new(), Tar::of(summing(f32::from(bias)).path()).finish()),
                Change::Activate(version) => ("POST", format!("/versions/{version}/activate"), Vec::new()),
                Change::RollBack => ("POST", "/rollback".to_owned(), Vec::new()),
            };
            let Ok(Some(answer)) = server.try_raw(&request(method, &format!("/v1/models/sums{path}"), &[], &body)) else { return change };
            assert!(matches!(answer.status, 200 | 201), "{change:?}: {}", answer.text());
            let acknowledged = answer.json();
            let number = |field: &str| acknowledged[field].as_u64();
            match change {
                Change::Upload(bias) => {
                    let version = number("version").expect("a version");
                    assert_eq!(self.biases.insert(version, bias), None, "version {version} was given twice");
                    (self.previous, self.active) = (Some(self.active), version);
                }
                _ => (self.previous, self.active) = (number("previous"), number("active").expect("a version")),
            }
            begun.store(true, Ordering::Release);
        }
    }

    /// After a kill: everything that was acknowledged holds, the pending change happened or not, and what is active answers as one version.
    fn check(&mut self, server: &Server, pending: Option<Change>) {
        let model = server.get("/v1/models/sums").json();
        let found: Vec<u64> =
            model["versions"].as_array().into_iter().flatten().filter_map(|version| version["version"].as_u64()).collect();
        let new: Vec<u64> = found.iter().copied().filter(|version| !self.biases.contains_key(version)).collect();
        assert_eq!(found.len(), self.biases.len() + new.len(), "a version that was acknowledged is gone: {model}");
        let may_be_active = match (pending, &new[..]) {
            (Some(Change::Upload(bias)), [version]) => {
                self.biases.insert(*version, bias);
                vec![*version]
            }
            (_, []) => match pending {
                Some(Change::Activate(version)) => vec![self.active, version],
                Some(Change::RollBack) => vec![self.active, self.previous.unwrap_or(self.active)],
                Some(Change::Upload(_)) | None => vec![self.active],
            },
            _ => panic!("versions {new:?} came of {pending:?}: {model}"),
        };
        self.active = model["active"].as_u64().expect("a version is active");
        self.previous = model["previous"].as_u64();
        assert!(may_be_active.contains(&self.active), "not one of {may_be_active:?} is active after {pending:?}: {model}");
        let answer = server.infer("sums", &sum(3, 9)).json();
        assert_eq!(answer["model_version"], self.active.to_string(), "{answer}");
        assert_eq!(answer["outputs"][0]["data"], json!(biased(3, 9, f32::from(self.biases[&self.active]))), "{answer}");
    }
}

/// The next of a row of numbers that looks like no row.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

#[test]
fn a_kill_amid_changes_of_versions_leaves_one_whole_version() {
    const KILLS: u64 = 12;
    /// When a kill comes, in microseconds after the first change was acknowledged: three changes or so.
    const WITHIN_US: u64 = 100_000;
    let (data, mut random) = (TempDir::new().expect("a temporary folder"), 2026);
    let server = Server::over(data.path(), &[]);
    server.push("sums", &summing(1.0));
    drop(server);
    let mut known = Known { biases: BTreeMap::from([(1, 1)]), active: 1, previous: None };
    let mut pending = None;
    for kill in 0..=KILLS {
        let server = Server::over(data.path(), &[]);
        known.check(&server, pending);
        let left = std::fs::read_dir(data.path().join("incoming")).expect("a folder").count();
        assert_eq!(left, 0, "pieces of an upload are left after kill {kill}, amid {pending:?}");
        if kill == KILLS {
            break;
        }
        let (instant, begun) = (Duration::from_micros(next(&mut random) % WITHIN_US), AtomicBool::new(false));
        pending = std::thread::scope(|scope| {
            let changes = scope.spawn(|| known.change_until_gone(&server, &mut random, &begun));
            server.until("a change is acknowledged", || begun.load(Ordering::Acquire));
            std::thread::sleep(instant);
            server.signal(Signal::KILL);
            Some(changes.join().expect("what was acknowledged was right"))
        });
        assert_eq!(server.wait().0, None);
    }
}
