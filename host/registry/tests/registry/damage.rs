//! Bits that flip in the database: a row that is not as it was written is named when it is read, and is the only one that is missed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cellwright_registry::{ErrorKind, Registry, Scopes, TenantName, TenantSettings};
use rusqlite::Connection;

use crate::operations::bits;
use crate::{commit, model, temporary, tenant};

/// Everything that can be read of a registry, each as a text of its own, and the sentences about what cannot.
fn read(registry: &Registry) -> (BTreeSet<String>, Vec<String>) {
    let (mut read, mut refused) = (BTreeSet::new(), Vec::new());
    let mut refuse = |error: &dyn std::error::Error| refused.push(error.to_string());
    read.extend(registry.tenants().map_err(|error| refuse(&error)).into_iter().flatten().map(|tenant| format!("{tenant:?}")));
    read.extend(registry.keys(None).map_err(|error| refuse(&error)).into_iter().flatten().map(|key| format!("{key:?}")));
    for listed in registry.models(None).map_err(|error| refuse(&error)).into_iter().flatten() {
        let cellwright_registry::Model { tenant, name, active, previous, loaded, .. } = &listed;
        read.insert(format!("{tenant} {name} {active:?} {loaded}"));
        read.extend(previous.map(|previous| format!("{tenant} {name} previous {previous}")));
        match registry.model(tenant, name) {
            Ok(found) => read.extend(found.unwrap().versions.iter().map(|version| format!("{tenant} {name} {version:?}"))),
            Err(error) => refuse(&error),
        }
        for version in &listed.versions {
            match registry.files(tenant, name, version.number) {
                Ok(files) => {
                    let files: Vec<_> = files.iter().map(|file| (&file.path, file.blob.digest, file.blob.len)).collect();
                    read.insert(format!("{tenant} {name} {} {files:?}", version.number));
                }
                Err(error) => refuse(&error),
            }
        }
    }
    (read, refused)
}

/// A folder with a closed registry that has something of everything, and the secret of a key.
fn closed() -> (tempfile::TempDir, String) {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    registry.create_tenant(&tenant("acme"), &TenantSettings::default()).unwrap();
    let secret = registry.create_key(&TenantName::operator(), Scopes::all(), "the operator").unwrap().secret;
    registry.create_key(&tenant("acme"), Scopes::all(), "the web shop").unwrap();
    for (name, bytes) in [("digits", b"1"), ("digits", b"2"), ("dates", b"1"), ("dates", b"3")] {
        commit(&registry, name, bytes, true).unwrap();
    }
    (folder, secret)
}

fn database(folder: &Path) -> PathBuf {
    folder.join("registry.sqlite")
}

/// As a disk that forgets would: nothing that the registry does on its way is done.
fn change(folder: &Path, sql: &str) {
    Connection::open(database(folder)).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn a_flipped_bit_changes_nothing_that_is_read() {
    let (folder, _) = closed();
    let (all, refused) = read(&Registry::open(folder.path()).unwrap());
    assert!(refused.is_empty() && all.len() == 17, "{all:#?}");
    let sound = fs::read(database(folder.path())).unwrap();
    // Where something stands: pages are mostly empty.
    let places: Vec<usize> = (0..sound.len()).filter(|place| sound[*place] != 0).collect();
    let (mut not_opened, mut missed, mut whole) = (0, 0, 0);
    for (number, place) in places.iter().enumerate().step_by(23) {
        let mut bytes = sound.clone();
        bytes[*place] ^= 1 << (bits(7, number as u64) % 8);
        fs::write(database(folder.path()), bytes).unwrap();
        match Registry::open(folder.path()) {
            Err(_) => not_opened += 1,
            Ok(registry) => {
                let (found, _) = read(&registry);
                let other: Vec<_> = found.difference(&all).collect();
                assert!(other.is_empty(), "byte {place}: {other:#?}");
                if found.len() < all.len() {
                    missed += 1
                } else {
                    whole += 1
                }
                registry.collect_garbage().unwrap();
                let blobs = (0..=255).flat_map(|shard| fs::read_dir(folder.path().join(format!("blobs/{shard:02x}"))).unwrap());
                assert_eq!(blobs.count(), 3, "byte {place}: a file was taken for garbage");
            }
        }
        for leftover in ["registry.sqlite-wal", "registry.sqlite-shm"] {
            let _ = fs::remove_file(folder.path().join(leftover));
        }
    }
    assert!(missed > 10 && whole > 10 && not_opened > 10, "{not_opened} not opened, {missed} missed, {whole} whole");
}

/// Which rows are missed when a value is another, and what is said of it.
#[test]
fn a_damaged_row_is_named_and_missed_alone() {
    let (folder, secret) = closed();
    let (all, _) = read(&Registry::open(folder.path()).unwrap());
    let sound = fs::read(database(folder.path())).unwrap();
    for (sql, missed, row) in [
        (
            "UPDATE tenant SET settings = replace(settings, '\"weight\":1', '\"weight\":3') WHERE name = 'acme'",
            2,
            "row 3 of table `tenant`",
        ),
        ("UPDATE key SET scopes = 5 WHERE number = 1", 1, "row 1 of table `key`"),
        ("UPDATE key SET secret_hash = zeroblob(32) WHERE number = 1", 1, "row 1 of table `key`"),
        ("UPDATE model SET active = 3 WHERE id = 2", 6, "row 2 of table `model`"),
        ("UPDATE model SET name = 'digit3' WHERE id = 1", 6, "row 1 of table `model`"),
        ("UPDATE version SET digest = zeroblob(32) WHERE id = 2", 2, "row 2 of table `version`"),
        ("UPDATE version SET report = '{\"samples\":3}' WHERE id = 2", 2, "row 2 of table `version`"),
        ("UPDATE file SET blob = zeroblob(32) WHERE version = 2", 1, "row 2 model.toml of table `file`"),
        ("UPDATE earlier SET version = 3 WHERE id = 1", 1, "row 1 of table `earlier`"),
    ] {
        change(folder.path(), sql);
        let registry = Registry::open(folder.path()).unwrap();
        let (found, _) = read(&registry);
        let lost: Vec<_> = all.difference(&found).collect();
        assert!(found.is_subset(&all) && lost.len() == missed, "{sql}: {lost:#?}");
        let is_of_key = row.contains("`key`");
        assert_eq!(registry.authenticate(&secret).is_none(), is_of_key, "{sql}");
        assert!(registry.has_keys().unwrap(), "{sql}");
        let (default, of) = (TenantName::default_tenant(), model);
        let error = match row.rsplit(' ').next().unwrap() {
            "`tenant`" => Some(registry.tenant(&tenant("acme")).unwrap_err()),
            // Its index was changed with it.
            "`model`" if sql.contains("digit3") => None,
            "`model`" => Some(registry.activate(&default, &of("dates"), 1).unwrap_err()),
            "`version`" => Some(registry.activate(&default, &of("digits"), 2).unwrap_err()),
            "`file`" => Some(registry.files(&default, &of("digits"), 2).unwrap_err()),
            "`earlier`" => Some(registry.roll_back(&default, &of("digits")).unwrap_err()),
            _ => None,
        };
        if let Some(error) = error {
            let sentence =
                format!("the registry's database is damaged: {row} is not as it was written; restore the data folder from a backup");
            assert_eq!((error.to_string(), error.kind()), (sentence, ErrorKind::Conflict), "{sql}");
        }
        // Writing to a damaged row does not make it sound.
        let _ = registry.set_loaded(&default, &of("digits"), false).and_then(|_| registry.set_loaded(&default, &of("digits"), true));
        assert_eq!(read(&registry).0, found, "{sql}");
        drop(registry);
        fs::write(database(folder.path()), &sound).unwrap();
    }
    assert_eq!(read(&Registry::open(folder.path()).unwrap()).0, all);
}

#[test]
fn a_registry_of_the_first_format_gets_checksums_and_sums() {
    let folder = temporary();
    drop(Registry::open(folder.path()).unwrap());
    fs::remove_file(database(folder.path())).unwrap();
    change(folder.path(), include_str!("../../src/database/1.sql"));
    change(folder.path(), "PRAGMA application_id = 0x43777267; PRAGMA user_version = 1;");
    change(folder.path(), "INSERT INTO tenant (name, settings, created_ms) VALUES ('default', '{}', 1), ('operator', '{}', 1);");
    change(folder.path(), "INSERT INTO model (tenant, name, created_ms) VALUES (1, 'digits', 1);");
    change(
        folder.path(),
        "INSERT INTO version (model, number, digest, bytes, report, created_ms) VALUES (1, 7, zeroblob(32), 5000, '{}', 1); \
         INSERT INTO file VALUES (1, 'a', zeroblob(32), 5000), (1, 'b', zeroblob(32), 5000);",
    );
    let registry = Registry::open(folder.path()).unwrap();
    let room = registry.room(&TenantName::default_tenant(), &model("digits")).unwrap();
    assert_eq!(room.new_bytes_max, TenantSettings::default().bytes_max - (8192 + 2 * 1024 + 2), "what is there counts");
    commit(&registry, "digits", b"1", true).unwrap();
    assert_eq!(registry.models(None).unwrap().len(), 1);
    drop(registry);
    change(folder.path(), "UPDATE model SET created_ms = 3");
    assert_eq!(Registry::open(folder.path()).unwrap().models(None).unwrap().len(), 0);
}

#[test]
fn a_registry_of_the_second_format_gets_sums_and_keeps_its_damage() {
    let (folder, _) = closed();
    let (default, digits) = (TenantName::default_tenant(), model("digits"));
    let room = |registry: &Registry| registry.room(&default, &digits).unwrap().new_bytes_max;
    let before = room(&Registry::open(folder.path()).unwrap());
    assert!(before < TenantSettings::default().bytes_max);
    change(folder.path(), "DROP TABLE held; DROP TABLE used; UPDATE version SET created_ms = 3 WHERE id = 2; PRAGMA user_version = 2;");
    let registry = Registry::open(folder.path()).unwrap();
    assert_eq!(room(&registry), before);
    assert_eq!(registry.activate(&default, &digits, 2).unwrap_err().kind(), ErrorKind::Conflict, "it is damaged still");
}
