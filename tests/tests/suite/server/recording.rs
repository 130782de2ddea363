//! A server that records, and what `replay` says of it.

use cellwright_tests::binary::{cellwright, lab};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::{Server, sum};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn what_a_server_decided_is_decided_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("day.recording");
    let name = file.to_str().expect("a path in UTF-8");
    let server = Server::start(&["--record", name, "--worker", "cpu", "--worker", "cpu"]);
    server.push("summing", &BundleFolder::summing());
    std::thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for request in 0..25 {
                    let answer = server.infer("summing", &sum(client * 100 + request, 1 + request % 9));
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
            });
        }
    });
    server.signal(Signal::TERM);
    assert_eq!(server.wait().0, Some(0));

    let ran = lab(&["replay", name, "--policy", "cellular,serial", "--json"], "");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout));
    let requests = report["requests"].as_u64().unwrap_or(0);
    // The samples of the bundle are among them.
    assert!(requests >= 100 && report["devices"] == 2 && report["cut"] == false, "{report}");
    assert_eq!(report["recorded"]["answered"], requests);
    // The server's own policy is shown too where it is asked for: a model may have had another.
    for (run, policy) in [Value::Null, Value::from("cellular"), Value::from("serial")].into_iter().enumerate() {
        let run = &report["simulated"][run];
        assert_eq!((&run["policy"], run["answered"].as_u64()), (&policy, Some(requests)));
    }
    let ratio = |of: &str, in_it: &str| {
        report["simulated"][0][in_it].as_f64().unwrap_or(0.0) / report["recorded"][in_it].as_f64().unwrap_or(0.0)
            - report["baseline"][of].as_f64().unwrap_or(9.0)
    };
    assert!(ratio("throughput", "throughput").abs() < 1e-9 && ratio("p90", "p90_ms").abs() < 1e-9, "{report}");

    let people = lab(&["replay", name], "").stdout;
    assert!(people.starts_with(&format!("{requests} requests on 2 devices, ")) && people.contains("all decided as recorded\n"), "{people}");
    assert!(people.contains("simulated  unchanged") && people.contains("\nerror of the unchanged simulation: answers/s "), "{people}");

    let data = folder.path().join("data");
    let data = data.to_str().expect("a path in UTF-8");
    let again = cellwright(&["serve", "--record", name, "--listen", "127.0.0.1:0", "--data", data], "");
    assert!(again.stderr.contains("the file exists already; a recording needs a new one"), "{}", again.stderr);
}

#[test]
fn what_is_no_recording_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("text");
    std::fs::write(&file, "not a recording at all, but long enough for one").expect("a file");
    let ran = lab(&["replay", file.to_str().expect("a path in UTF-8")], "");
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("text: this is not a recording; `cellwright serve --record FILE` writes one"), "{}", ran.stderr);
    let ran = lab(&["replay", folder.path().join("none").to_str().expect("a path in UTF-8")], "");
    assert!(ran.stderr.contains("No such file or directory"), "{}", ran.stderr);
}
