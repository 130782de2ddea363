//! Sending a folder.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cellwright_client::{ClientError, Progress, PushOptions};
use cellwright_protocol::messages::admin::BUNDLE_FILES_MAX;

use crate::server::{Server, answer};

const UPLOADED: &str = r#"{"model":"m","version":1,"digest":"ab","samples":[],"existed":false,"activated":true}"#;

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// What an archive holds.
fn unpack(archive: &Bytes) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive.as_ref()).entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!((entry.header().mtime().unwrap(), entry.header().mode().unwrap()), (0, 0o644));
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        assert!(files.last_key_value().is_none_or(|(last, _)| *last < name), "names are not in order");
        files.insert(name, bytes);
    }
    files
}

#[tokio::test]
async fn a_folder_arrives_as_it_is_and_always_the_same() {
    let server = Server::start(|_| answer(200, UPLOADED)).await;
    let folder = tempfile::tempdir().unwrap();
    let weights: Vec<u8> = (0..3_000_001_u32).map(|position| (position.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let long = format!("{}/{}.txt", "a".repeat(90), "b".repeat(120));
    let files: Vec<(&str, &[u8])> =
        vec![("model.toml", b"name"), ("weights", &weights), ("cells/é.onnx", &weights[..512]), ("empty", b""), (&long, b"x")];
    for (name, bytes) in files.iter().rev() {
        write(folder.path(), name, bytes);
    }
    write(folder.path(), ".git/config", b"stays");
    let seen = Arc::new(Mutex::new(Vec::new()));
    for activate in [true, false] {
        let seen = Arc::clone(&seen);
        let progress = move |progress| seen.lock().unwrap().push(progress);
        let uploaded = server.client().push("m", folder.path(), PushOptions { activate }, progress).await.unwrap();
        assert_eq!((uploaded.version, uploaded.digest.as_str()), (1, "ab"));
    }
    let asked = server.asked();
    assert_eq!((asked[0].what.as_str(), asked[1].what.as_str()), ("PUT /v1/models/m?activate=true", "PUT /v1/models/m?activate=false"));
    assert!(asked[0].body == asked[1].body, "the same folder gave two archives");
    let expected: BTreeMap<String, Vec<u8>> = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
    assert!(unpack(asked[0].body.as_ref().unwrap()) == expected);
    let total = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let seen = seen.lock().unwrap();
    assert_eq!((seen.first(), seen.last()), (Some(&Progress { sent: 0, total }), Some(&Progress { sent: total, total })));
}

#[tokio::test]
async fn what_cannot_be_read_is_named_and_never_arrives_whole() {
    let server = Server::start(|_| answer(200, UPLOADED)).await;
    let nowhere = server.client().push("m", Path::new("/nowhere/at all"), PushOptions::default(), |_| {}).await.unwrap_err();
    assert!(matches!(&nowhere, ClientError::Folder { path, .. } if path == Path::new("/nowhere/at all")), "{nowhere}");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.toml", b"name");
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("vocabulary")).unwrap();
    let link = server.client().push("m", folder.path(), PushOptions::default(), |_| {}).await.unwrap_err();
    assert!(link.to_string().ends_with("vocabulary: it is a link; a bundle holds only files and folders"), "{link}");
    assert!(server.asked().iter().all(|asked| asked.body.is_none()), "the server took a broken archive for a whole one");
}

#[tokio::test]
async fn more_files_than_a_server_takes_are_not_sent() {
    let server = Server::start(|_| answer(200, UPLOADED)).await;
    let folder = tempfile::tempdir().unwrap();
    for number in 0..BUNDLE_FILES_MAX {
        write(folder.path(), &format!("{number}"), b"");
    }
    assert_eq!(server.client().push("m", folder.path(), PushOptions::default(), |_| {}).await.unwrap().version, 1);
    write(folder.path(), "more", b"");
    let sent = |_| panic!("it is on its way");
    let error = server.client().push("m", folder.path(), PushOptions::default(), sent).await.unwrap_err();
    assert!(error.to_string().ends_with(": a bundle has at most 1000 files") && !error.is_undecided(), "{error}");
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_sent_breaks_the_archive_off() {
    let server = Server::start(|_| answer(200, UPLOADED)).await;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a", &vec![1; 1 << 20]);
    write(folder.path(), "b", &[2; 100]);
    let b = folder.path().join("b");
    // The first file is on its way: the second is cut now.
    let cut = move |progress: Progress| {
        if progress.sent > 0 {
            std::fs::write(&b, [2; 99]).unwrap();
        }
    };
    let error = server.client().push("m", folder.path(), PushOptions::default(), cut).await.unwrap_err();
    assert!(error.to_string().contains("it became shorter while it was sent"), "{error}");
    assert!(server.asked().iter().all(|asked| asked.body.is_none()));
}

#[tokio::test]
async fn a_bundle_that_is_refused_has_the_servers_sentence() {
    let server = Server::start(|_| answer(422, r#"{"error":"sample `s1`: output `y` differs"}"#)).await;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.toml", b"name");
    let refused = server.client().push("m", folder.path(), PushOptions::default(), |_| {}).await.unwrap_err();
    assert_eq!(refused.to_string(), "sample `s1`: output `y` differs (status 422)");
}
