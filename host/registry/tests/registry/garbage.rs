//! What is garbage and what is not, also while others upload, read and delete.

use std::fs;
use std::io::Write as _;
use std::thread;

use cellwright_registry::{Collected, Digest, Registry, RegistryError, TenantName};

use crate::operations::{Operation, apply, assert_whole, bits};
use crate::{commit, model, store, temporary};

#[test]
fn what_nobody_names_or_holds_is_collected() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let default = TenantName::default_tenant();
    commit(&registry, "m", b"named", true).unwrap();
    commit(&registry, "m", b"deleted", false).unwrap();
    assert_eq!(registry.delete_version(&default, &model("m"), 2).unwrap(), [Digest::of(b"deleted")]);
    let held = store(&registry, b"held");
    let foreign = folder.path().join("blobs/00/README");
    fs::write(&foreign, b"not a blob").unwrap();
    assert_eq!(registry.collect_garbage().unwrap(), Collected { blobs: 1, bytes: 7 });
    assert_eq!(registry.collect_garbage().unwrap(), Collected::default());
    let other_pin = held.pin.clone();
    let digest = held.digest;
    drop(held);
    assert_eq!(registry.collect_garbage().unwrap(), Collected::default());
    drop(other_pin);
    assert_eq!(registry.collect_garbage().unwrap(), Collected { blobs: 1, bytes: 4 });
    assert!(!registry.blob_path(&digest).exists() && foreign.exists());
    assert_eq!(fs::read(registry.blob_path(&Digest::of(b"named"))).unwrap(), b"named");
}

#[test]
fn an_open_upload_is_not_garbage_even_if_its_bytes_were() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    drop(store(&registry, b"the same"));
    let mut writer = registry.new_blob().unwrap();
    writer.write_all(b"the same").unwrap();
    // Collected while the upload is open: it has its own bytes.
    assert_eq!(registry.collect_garbage().unwrap().blobs, 1);
    drop(store(&registry, b"the same"));
    let blob = writer.finish().unwrap();
    assert_eq!(registry.collect_garbage().unwrap(), Collected::default());
    assert_eq!(fs::read(registry.blob_path(&blob.digest)).unwrap(), b"the same");
}

#[test]
fn an_upload_that_is_dropped_leaves_nothing() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let mut writer = registry.new_blob().unwrap();
    writer.write_all(&[1; 1 << 20]).unwrap();
    assert_eq!(writer.written(), 1 << 20);
    let incoming = folder.path().join("incoming");
    assert_eq!(fs::read_dir(&incoming).unwrap().count(), 1);
    drop(writer);
    assert_eq!(fs::read_dir(&incoming).unwrap().count(), 0);
    assert_eq!(registry.collect_garbage().unwrap(), Collected::default());
}

#[test]
fn files_that_are_being_read_outlive_their_version() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let default = TenantName::default_tenant();
    commit(&registry, "m", b"bytes", true).unwrap();
    let files = registry.files(&default, &model("m"), 1).unwrap();
    registry.delete_model(&default, &model("m")).unwrap();
    assert_eq!(registry.collect_garbage().unwrap(), Collected::default());
    assert_eq!(fs::read(registry.blob_path(&files[0].blob.digest)).unwrap(), b"bytes");
    drop(files);
    assert_eq!(registry.collect_garbage().unwrap().blobs, 1);
}

#[test]
fn a_blob_of_the_wrong_length_is_replaced_when_its_bytes_come_again() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let blob = store(&registry, b"bytes");
    fs::write(registry.blob_path(&blob.digest), b"byt").unwrap();
    store(&registry, b"bytes");
    assert_eq!(fs::read(registry.blob_path(&blob.digest)).unwrap(), b"bytes");
}

#[test]
fn collecting_beside_uploads_and_deletions_takes_nothing_that_is_named() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let worker = &|seed: u64| {
        for number in 0..400 {
            let operation = Operation::drawn(bits(seed, u64::from(number)), number);
            if matches!(operation, Operation::Upload { .. } | Operation::DeleteModel { .. } | Operation::RollBack { .. }) {
                apply(&registry, &operation);
            }
            drop(store(&registry, format!("nobody names {seed} {number}").as_bytes()));
            if number % 5 == 0 {
                let _ = registry.delete_model(&TenantName::default_tenant(), &model("digits"));
            }
        }
    };
    let mut collected = 0;
    thread::scope(|scope| {
        let workers = [1, 2].map(|seed| scope.spawn(move || worker(seed)));
        while !workers.iter().all(|worker| worker.is_finished()) {
            collected += registry.collect_garbage().unwrap().blobs;
        }
    });
    assert_whole(&registry);
    assert!(collected > 20, "only {collected} blobs became garbage");
}

/// A disk that forgets what it was given: nobody is told that this is what was uploaded, and who uploads it again puts it right.
#[test]
fn what_is_damaged_is_found_and_mended_by_the_same_bytes() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    commit(&registry, "m", b"as it was uploaded", true).unwrap();
    let files = registry.files(&TenantName::default_tenant(), &model("m"), 1).unwrap();
    registry.verify(&files).unwrap();
    let stored = registry.blob_path(&files[0].blob.digest);
    for damaged in [&b"as it was uplOaded"[..], b"as it was", b""] {
        fs::write(&stored, damaged).unwrap();
        let error = registry.verify(&files).unwrap_err();
        assert!(matches!(&error, RegistryError::Damaged { path } if path == "model.toml"), "{error}");
        store(&registry, b"as it was uploaded");
        registry.verify(&files).unwrap();
    }
    fs::remove_file(&stored).unwrap();
    assert!(matches!(registry.verify(&files).unwrap_err(), RegistryError::Damaged { .. }), "what is gone, too");
}
