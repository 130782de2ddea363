//! Which folders are opened, which are refused with which sentence, and who may read what is in one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cellwright_registry::{OpenError, Registry, TenantName};

use crate::{commit, model, store, temporary};

fn refused(folder: &Path) -> String {
    Registry::open(folder).unwrap_err().to_string()
}

/// A folder with a closed registry in it, which has one model.
fn closed() -> tempfile::TempDir {
    let folder = temporary();
    commit(&Registry::open(folder.path()).unwrap(), "m", &[7; 3000], true).unwrap();
    folder
}

#[test]
fn one_process_has_a_folder_until_all_it_took_is_given_back() {
    let folder = temporary();
    let path = folder.path().join("data");
    let registry = Registry::open(&path).unwrap();
    let sentence = format!("the registry in {} is in use by another process: stop that one first, or name another folder", path.display());
    assert_eq!(refused(&path), sentence);
    let blob = store(&registry, b"1");
    drop(registry);
    assert_eq!(refused(&path), sentence, "a blob is still held");
    drop(blob);
    Registry::open(&path).unwrap();
}

#[test]
fn nobody_else_may_look_into_a_new_folder() {
    let folder = temporary();
    let path = folder.path().join("data");
    let registry = Registry::open(&path).unwrap();
    commit(&registry, "m", b"1", true).unwrap();
    let writer = registry.new_blob().unwrap();
    let (mut folders, mut files) = (vec![path], 0);
    while let Some(folder) = folders.pop() {
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{}", folder.display());
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    assert_eq!(files, 7, "lock, reserve, the database's three, a blob, and one that arrives");
    drop(writer);
}

#[test]
fn what_was_arriving_is_gone_after_a_start_and_what_others_put_there_is_not() {
    let folder = closed();
    let incoming = folder.path().join("incoming");
    fs::write(incoming.join("0123456789abcdef0123456789abcdef"), b"half").unwrap();
    fs::write(incoming.join("notes.txt"), b"mine").unwrap();
    Registry::open(folder.path()).unwrap();
    let left: Vec<_> = fs::read_dir(&incoming).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
}

#[test]
fn a_database_of_something_else_is_refused_and_left_as_it_is() {
    let folder = temporary();
    let file = folder.path().join("registry.sqlite");
    let sentence = format!("{} is not a registry of Cellwright: name another folder, or move that file away", file.display());
    rusqlite::Connection::open(&file).unwrap().execute_batch("CREATE TABLE music (title TEXT)").unwrap();
    let before = fs::read(&file).unwrap();
    assert_eq!(refused(folder.path()), sentence);
    assert_eq!(fs::read(&file).unwrap(), before);
    fs::write(&file, "Dear diary, today I wrote no database. ".repeat(100)).unwrap();
    assert_eq!(refused(folder.path()), sentence);
}

#[test]
fn a_newer_registry_is_refused() {
    let folder = closed();
    rusqlite::Connection::open(folder.path().join("registry.sqlite")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let sentence = format!(
        "the registry in {} was written by a newer version of Cellwright (its format is 99, this one knows up to 3)",
        folder.path().display()
    );
    assert_eq!(refused(folder.path()), sentence);
}

#[test]
fn a_lost_database_is_not_replaced_while_there_are_blobs() {
    for lose in [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, b"").unwrap()] {
        let folder = closed();
        let file = folder.path().join("registry.sqlite");
        lose(&file);
        let sentence = refused(folder.path());
        assert!(sentence.contains("is damaged (it is missing or empty, although there are blobs)"), "{sentence}");
        // Asking again changes nothing.
        assert_eq!(refused(folder.path()), sentence);
    }
}

/// Wherever bytes of the database are overwritten, opening and reading yields an answer: never a panic.
#[test]
fn a_damaged_database_is_refused_or_read_but_never_panics() {
    let folder = closed();
    let file = folder.path().join("registry.sqlite");
    let sound = fs::read(&file).unwrap();
    let (mut damaged, mut others) = (0, 0);
    for place in (0..sound.len()).step_by(512) {
        let mut bytes = sound.clone();
        let end = (place + 200).min(bytes.len());
        bytes[place..end].fill(0xa5);
        fs::write(&file, bytes).unwrap();
        match Registry::open(folder.path()) {
            Err(OpenError::Damaged { .. }) => damaged += 1,
            Err(_) => others += 1,
            Ok(registry) => {
                let _ = (registry.models(None), registry.tenants(), registry.keys(None), registry.collect_garbage());
                let _ = registry.files(&TenantName::default_tenant(), &model("m"), 1);
                let _ = commit(&registry, "m", b"2", true);
            }
        }
        for leftover in ["registry.sqlite-wal", "registry.sqlite-shm"] {
            let _ = fs::remove_file(folder.path().join(leftover));
        }
    }
    assert!(damaged > 10 && others > 0, "{damaged} damaged, {others} others");
    fs::write(&file, sound).unwrap();
    Registry::open(folder.path()).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = temporary();
    let path = folder.path().join("file");
    fs::write(&path, b"").unwrap();
    assert_eq!(refused(&path.join("data")), format!("cannot create the folder {}", path.join("data").display()));
}
