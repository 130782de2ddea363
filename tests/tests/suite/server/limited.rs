//! The program under limits of the shell (`ulimit`): it says what it cannot do, and does the rest.

use cellwright_tests::archives::Tar;
use cellwright_tests::binary::Running;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::neighbours::beside_clients;
use cellwright_tests::server::{Server, is_sum, sum};
use rustix::process::Signal;
use tempfile::TempDir;

fn under(limit: &str) -> String {
    format!("ulimit {limit} && exec \"$0\" \"$@\"")
}

#[test]
fn an_upload_beyond_the_size_of_files_is_refused_and_what_serves_goes_on() {
    let data = TempDir::new().expect("a temporary folder");
    // Units are 512 bytes to some shells and 1024 to others.
    let server = Server::start_by(&under("-f 20000"), data.path());
    let bundle = BundleFolder::summing();
    server.push("sums", &bundle);
    beside_clients(&server, "sums", || {
        let archive = Tar::of(bundle.path()).file(b"padding", &vec![7; 30 << 20]).finish();
        server.upload("sums", &archive).refuses("a large file", &[503], &["the file is larger than the server may write (`ulimit -f`)"]);
    });
    let models = server.get("/v1/models").json();
    assert_eq!((models["models"][0]["active"].as_u64(), models["models"][0]["versions"].as_array().map(Vec::len)), (Some(1), Some(1)));
    assert_eq!(std::fs::read_dir(data.path().join("incoming")).expect("a folder").count(), 0);
    server.push("again", &bundle);
}

#[test]
fn a_server_whose_processor_time_is_used_up_stops_in_order() {
    let server = Server::start(&[]);
    // The system sends it each second.
    server.signal(Signal::XCPU);
    server.signal(Signal::XCPU);
    let (status, said) = server.wait();
    assert_eq!(status, Some(0), "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("stopping because the processor time of `ulimit -t` is used up")), "{said:?}");
}

/// In KiB, as shells count it.
const ADDRESS_SPACES: [(&str, u64); 3] = [("16 GiB", 16 << 20), ("64 GiB", 64 << 20), ("1 TiB", 1 << 30)];

#[test]
fn the_program_works_in_little_address_space() {
    for (name, kib) in ADDRESS_SPACES {
        let data = TempDir::new().expect("a temporary folder");
        let server = Server::start_by(&under(&format!("-v {kib}")), data.path());
        server.push("sums", &BundleFolder::summing());
        assert!(is_sum(&server.infer("sums", &sum(1, 3)), 1, 3), "{name}");
        let said = server.said();
        assert!(said.iter().any(|line| line.contains("address space")), "{name}: {said:?}");
        for arguments in [&["check", "examples/digits"][..], &["run", "examples/digits", "--input", "examples/digits/samples.jsonl"]] {
            let mut command = Running::start_by(&under(&format!("-v {kib}")), arguments);
            let status = command.wait();
            let said = command.rest_of_stderr();
            assert_eq!(status, Some(0), "{name}: {arguments:?}: {said:?}");
        }
    }
}
