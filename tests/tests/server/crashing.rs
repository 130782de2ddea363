//! A server that is killed, and the next one over its data.

use std::io::Write as _;

use cellwright_tests::archives::Tar;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::{Server, is_sum, sum};
use rustix::process::Signal;
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
