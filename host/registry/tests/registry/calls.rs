//! What each call promises, one by one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cellwright_registry::{
    Digest, ErrorKind, KeyId, NewVersion, Registry, RegistryError, Scope, Scopes, TenantName, TenantSettings, Version, VersionFile,
};

use crate::{commit, model, store, temporary, tenant};

fn infer() -> Scopes {
    [Scope::Infer].into_iter().collect()
}

fn kind<T: std::fmt::Debug>(answer: Result<T, RegistryError>) -> ErrorKind {
    answer.unwrap_err().kind()
}

#[test]
fn two_tenants_are_always_there() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let names: Vec<_> = registry.tenants().unwrap().into_iter().map(|tenant| tenant.name.to_string()).collect();
    assert_eq!(names, ["default", "operator"]);
    let error = registry.delete_tenant(&TenantName::default_tenant()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Conflict, "tenant `default` is built in and cannot be deleted"));
    assert!(!registry.has_keys().unwrap());
}

#[test]
fn tenants_are_made_changed_and_removed() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let (acme, settings) = (tenant("acme"), TenantSettings { weight: 3, device_share: Some(0.1), ..TenantSettings::default() });
    assert_eq!(registry.create_tenant(&acme, &settings).unwrap().settings, settings);
    assert_eq!(kind(registry.create_tenant(&acme, &settings)), ErrorKind::Conflict);
    assert_eq!(kind(registry.set_tenant(&acme, &TenantSettings { weight: 0, ..settings.clone() })), ErrorKind::Invalid);
    assert_eq!(kind(registry.set_tenant(&tenant("nobody"), &settings)), ErrorKind::NotFound);
    let other = TenantSettings { weight: 4, ..settings };
    assert_eq!(registry.set_tenant(&acme, &other).unwrap().settings, other);

    registry.create_key(&TenantName::operator(), Scopes::all(), "first").unwrap();
    let key = registry.create_key(&acme, infer(), "").unwrap();
    assert!(registry.authenticate(&key.secret).is_some());
    let files = vec![VersionFile { path: "model.toml".to_owned(), blob: store(&registry, b"1") }];
    registry.commit_version(&acme, &model("m"), NewVersion { files, report: serde_json::Value::Null, activate: true }).unwrap();
    let error = registry.delete_tenant(&acme).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Conflict, "tenant `acme` still has 1 models: delete them first"));

    registry.delete_model(&acme, &model("m")).unwrap();
    registry.delete_tenant(&acme).unwrap();
    assert_eq!(registry.tenant(&acme).unwrap(), None);
    assert_eq!(registry.authenticate(&key.secret), None, "a key outlived its tenant");
}

#[test]
fn a_tenant_sees_its_own_models_only() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    registry.create_tenant(&tenant("acme"), &TenantSettings::default()).unwrap();
    commit(&registry, "m", b"1", true).unwrap();
    assert_eq!(registry.models(Some(&tenant("acme"))).unwrap(), []);
    assert_eq!(registry.model(&tenant("acme"), &model("m")).unwrap(), None);
    assert_eq!(kind(registry.activate(&tenant("acme"), &model("m"), 1)), ErrorKind::NotFound);
    assert_eq!(registry.models(None).unwrap().len(), 1);
}

#[test]
fn a_key_is_recognised_until_it_is_revoked() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let new = registry.create_key(&TenantName::operator(), Scopes::all(), "first").unwrap();
    let identity = registry.authenticate(&new.secret).unwrap();
    assert!(identity.is_operator() && identity.scopes == Scopes::all() && identity.key == new.key.id);
    let last = new.secret.pop_last();
    let other = if last.1 == 'A' { 'B' } else { 'A' };
    let forged = format!("{}{other}", last.0);
    // Once from memory and once from the database.
    assert_eq!(registry.authenticate(&forged), None);
    drop(registry);

    let registry = Registry::open(folder.path()).unwrap();
    assert_eq!(registry.authenticate(&forged), None);
    assert_eq!(registry.authenticate(&new.secret), Some(identity));
    assert_eq!(registry.keys(Some(&TenantName::operator())).unwrap(), std::slice::from_ref(&new.key));
    assert!(registry.has_keys().unwrap());
    registry.revoke_key(&new.key.id).unwrap();
    assert_eq!(registry.authenticate(&new.secret), None);
    assert_eq!(kind(registry.revoke_key(&new.key.id)), ErrorKind::NotFound);
    assert_eq!(kind(registry.revoke_key(&KeyId::new("a\0b"))), ErrorKind::NotFound);
}

trait PopLast {
    fn pop_last(&self) -> (&str, char);
}

impl PopLast for String {
    fn pop_last(&self) -> (&str, char) {
        let last = self.chars().last().unwrap();
        (self.strip_suffix(last).unwrap(), last)
    }
}

#[test]
fn secrets_are_not_on_the_disk() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let secret = registry.create_key(&TenantName::operator(), Scopes::all(), "").unwrap().secret;
    // The random part may itself have the character that divides the parts.
    let random = secret.splitn(3, '_').last().unwrap().as_bytes();
    assert!(random.len() > 20, "{secret}");
    for file in ["registry.sqlite", "registry.sqlite-wal"] {
        let bytes = std::fs::read(folder.path().join(file)).unwrap();
        assert!(!bytes.windows(random.len()).any(|window| window == random), "{file}");
    }
}

/// Others ask for the key all the while, and the memory of keys is emptied again and again, so that some of them are just looking it up
/// when it is revoked.
#[test]
fn a_revoked_key_is_never_recognised_again_however_many_ask() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    for _ in 0..100 {
        let new = registry.create_key(&TenantName::operator(), Scopes::all(), "").unwrap();
        let is_over = AtomicBool::new(false);
        let until_over = |ask: &dyn Fn()| (0..1_000_000).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(|_| ask());
        let found = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| until_over(&|| drop(registry.authenticate(&new.secret))));
            }
            scope.spawn(|| until_over(&|| drop(registry.revoke_key(&KeyId::new("none")).unwrap_err())));
            registry.revoke_key(&new.key.id).unwrap();
            let found: Vec<_> = (0..1000).filter_map(|_| registry.authenticate(&new.secret)).collect();
            is_over.store(true, Ordering::Relaxed);
            found
        });
        assert_eq!(found, []);
        assert_eq!(registry.authenticate(&new.secret), None);
    }
}

/// A folder whose keys were all ended is not one that nobody ever locked.
#[test]
fn that_there_was_a_key_is_never_forgotten() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let acme = tenant("acme");
    registry.create_tenant(&acme, &TenantSettings::default()).unwrap();
    assert_eq!(kind(registry.create_key(&tenant("nobody"), infer(), "")), ErrorKind::NotFound);
    assert!(!registry.has_keys().unwrap(), "a key that was refused is none");
    let first = registry.create_key(&TenantName::operator(), Scopes::all(), "").unwrap().key;
    registry.create_key(&acme, infer(), "").unwrap();
    registry.revoke_key(&first.id).unwrap();
    assert!(registry.has_keys().unwrap());
    registry.delete_tenant(&acme).unwrap();
    drop(registry);
    let registry = Registry::open(folder.path()).unwrap();
    assert_eq!(registry.keys(None).unwrap(), []);
    assert!(registry.has_keys().unwrap());
}

/// Whoever makes another closes the server to everybody who could make more.
#[test]
fn the_first_key_is_an_operators_with_the_scope_admin() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let (operator, default) = (TenantName::operator(), TenantName::default_tenant());
    for (tenant, scopes) in [(&operator, infer()), (&default, infer()), (&default, Scopes::all())] {
        let error = registry.create_key(tenant, scopes, "").unwrap_err();
        assert!(matches!(error, RegistryError::FirstKey) && error.kind() == ErrorKind::Conflict, "{error}");
    }
    assert!(!registry.has_keys().unwrap());
    let first = registry.create_key(&operator, [Scope::Admin].into_iter().collect(), "").unwrap().key;
    registry.create_key(&default, infer(), "").unwrap();
    // Others are no first ones, whatever has become of it.
    registry.revoke_key(&first.id).unwrap();
    registry.create_key(&default, infer(), "").unwrap();
}

#[test]
fn keys_that_make_no_sense_are_refused() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let of_default = |scopes, label: &str| registry.create_key(&TenantName::default_tenant(), scopes, label);
    assert_eq!(kind(of_default(Scopes::default(), "")), ErrorKind::Invalid);
    assert_eq!(kind(of_default(infer(), "a\nb")), ErrorKind::Invalid);
    assert_eq!(kind(of_default(infer(), &"x".repeat(201))), ErrorKind::Invalid);
    assert_eq!(kind(registry.create_key(&tenant("nobody"), infer(), "")), ErrorKind::NotFound);
}

#[test]
fn rolling_back_goes_to_what_was_active_before_and_on_from_there() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let (default, m) = (TenantName::default_tenant(), model("m"));
    for (number, bytes) in [(1, b"1"), (2, b"2"), (3, b"3")] {
        assert_eq!(commit(&registry, "m", bytes, true).unwrap().version.number, number);
    }
    assert_eq!(registry.activate(&default, &m, 1).unwrap().previous, Some(3));
    let mut seen = Vec::new();
    while let Ok(model) = registry.roll_back(&default, &m) {
        seen.push((model.active.unwrap(), model.previous));
    }
    assert_eq!(seen, [(3, Some(2)), (2, Some(1)), (1, None)]);
    let error = registry.roll_back(&default, &m).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Conflict, "model `m` has no earlier active version to roll back to")
    );
}

#[test]
fn a_version_that_is_not_activated_waits() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let (default, m) = (TenantName::default_tenant(), model("m"));
    commit(&registry, "m", b"1", false).unwrap();
    let found = registry.model(&default, &m).unwrap().unwrap();
    assert_eq!((found.active, found.previous, found.loaded, found.versions.len()), (None, None, true, 1));
    assert_eq!(kind(registry.roll_back(&default, &m)), ErrorKind::Conflict);
    // The same files again are the same version, this time activated.
    let again = commit(&registry, "m", b"1", true).unwrap();
    assert!(again.existed && again.version.number == 1);
    assert_eq!(registry.model(&default, &m).unwrap().unwrap().active_version(), Some(&again.version));
    let digest = Digest::of_version(&[("model.toml", Digest::of(b"1"))]);
    assert_eq!(registry.find_digest(&default, &m, &digest).unwrap(), Some(again.version));
    assert_eq!(registry.find_digest(&default, &model("other"), &digest).unwrap(), None);
}

#[test]
fn the_active_version_cannot_be_deleted_and_numbers_are_not_given_again() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let (default, m) = (TenantName::default_tenant(), model("m"));
    commit(&registry, "m", b"1", true).unwrap();
    let error = registry.delete_version(&default, &m, 1).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Conflict, "version 1 of model `m` is active: activate another version first, or delete the model")
    );
    commit(&registry, "m", b"2", false).unwrap();
    registry.delete_version(&default, &m, 2).unwrap();
    assert_eq!(kind(registry.delete_version(&default, &m, 2)), ErrorKind::NotFound);
    assert_eq!(commit(&registry, "m", b"2", false).unwrap().version.number, 3);
    registry.delete_model(&default, &m).unwrap();
    assert_eq!(registry.model(&default, &m).unwrap(), None);
    assert_eq!(commit(&registry, "m", b"1", false).unwrap().version.number, 4);
}

#[test]
fn numbers_are_not_given_again_even_when_so_many_names_were_deleted_that_some_are_forgotten() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let default = TenantName::default_tenant();
    for bytes in [b"1", b"2", b"3"] {
        commit(&registry, "first", bytes, false).unwrap();
    }
    registry.delete_model(&default, &model("first")).unwrap();
    commit(&registry, "kept", b"1", false).unwrap();
    for name in 0..1000 {
        commit(&registry, &format!("m{name}"), b"1", false).unwrap();
        registry.delete_model(&default, &model(&format!("m{name}"))).unwrap();
    }
    assert_eq!(commit(&registry, "first", b"1", false).unwrap().version.number, 4);
    assert_eq!(commit(&registry, "new", b"1", false).unwrap().version.number, 4, "new names count on from what was forgotten");
    assert_eq!(commit(&registry, "kept", b"2", false).unwrap().version.number, 2);
    assert_eq!(commit(&registry, "m999", b"1", false).unwrap().version.number, 2);
}

#[test]
fn whether_a_model_is_to_be_loaded_survives_a_restart() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    commit(&registry, "m", b"1", true).unwrap();
    assert!(!registry.set_loaded(&TenantName::default_tenant(), &model("m"), false).unwrap().loaded);
    drop(registry);
    let registry = Registry::open(folder.path()).unwrap();
    let found = registry.models(None).unwrap();
    assert!(!found[0].loaded && found[0].active == Some(1));
}

/// Gives the version that it puts in service.
type Put = fn(&Registry) -> u64;

#[test]
fn what_is_put_in_service_is_meant_to_be_loaded() {
    let folder = temporary();
    let mut registry = Registry::open(folder.path()).unwrap();
    let (default, m) = (TenantName::default_tenant(), model("m"));
    commit(&registry, "m", b"1", true).unwrap();
    let cases: [(Put, u64); 4] = [
        (|registry| commit(registry, "m", b"2", true).unwrap().version.number, 2),
        (|registry| commit(registry, "m", b"1", true).unwrap().version.number, 1),
        (|registry| registry.activate(&TenantName::default_tenant(), &model("m"), 2).unwrap().active.unwrap(), 2),
        (|registry| registry.roll_back(&TenantName::default_tenant(), &model("m")).unwrap().active.unwrap(), 1),
    ];
    for (put, version) in cases {
        registry.set_loaded(&default, &m, false).unwrap();
        assert_eq!(put(&registry), version);
        drop(registry);
        registry = Registry::open(folder.path()).unwrap();
        let found = registry.model(&default, &m).unwrap().unwrap();
        assert_eq!((found.active, found.loaded), (Some(version), true));
    }
    registry.set_loaded(&default, &m, false).unwrap();
    commit(&registry, "m", b"3", false).unwrap();
    assert!(!registry.model(&default, &m).unwrap().unwrap().loaded, "a version that waits loads nothing");
}

/// A list may be of a thousand models with a thousand versions each.
#[test]
fn reports_are_read_where_one_model_is_looked_at() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let committed = commit(&registry, "m", b"1", true).unwrap().version;
    let listed = registry.models(None).unwrap().remove(0).versions.remove(0);
    assert_eq!(listed.report, serde_json::Value::Null);
    assert_eq!(Version { report: committed.report.clone(), ..listed }, committed);
    let looked_at = registry.model(&TenantName::default_tenant(), &model("m")).unwrap().unwrap();
    assert_eq!(looked_at.versions, [committed]);
}

#[test]
fn a_tenant_has_no_more_than_it_may() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let settings = TenantSettings { models_max: 2, versions_max: 2, bytes_max: 11_303, ..TenantSettings::default() };
    registry.set_tenant(&TenantName::default_tenant(), &settings).unwrap();
    // A block of 4096 bytes, 1024 for its entry, 13 of a report.
    commit(&registry, "a", b"12345", false).unwrap();
    // The block is shared, and counts once.
    commit(&registry, "b", b"12345", false).unwrap();
    let error = commit(&registry, "c", b"1", false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quota);
    assert_eq!(error.to_string(), "tenant `default` may have at most 2 models: delete some first, or ask the operator to raise the limit");
    let error = commit(&registry, "a", &[1; 4097], false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tenant `default` may have at most 11303 bytes: delete some first, or ask the operator to raise the limit"
    );
    assert_eq!(commit(&registry, "a", b"54321", false).unwrap().version.number, 2, "a refused version took a number");
    let error = commit(&registry, "a", b"", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tenant `default` may have at most 2 versions of one model: delete some first, or ask the operator to raise the limit"
    );
    assert_eq!(registry.models(None).unwrap().len(), 2);
}

/// A file of a byte takes a block of the disk, and a name.
#[test]
fn many_tiny_files_count_what_the_disk_takes_for_them() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let (tenant, settings) = (TenantName::default_tenant(), TenantSettings { bytes_max: 1_000_000, ..TenantSettings::default() });
    registry.set_tenant(&tenant, &settings).unwrap();
    let tiny = |count: u16| {
        let files = (0..count).map(|number| VersionFile { path: number.to_string(), blob: store(&registry, &number.to_le_bytes()) });
        let version = NewVersion { files: files.collect(), report: serde_json::Value::Null, activate: false };
        registry.commit_version(&tenant, &model("m"), version)
    };
    assert_eq!(kind(tiny(990)), ErrorKind::Quota);
    tiny(100).unwrap();
    assert_eq!(registry.room(&tenant, &model("m")).unwrap().new_bytes_max, 1_000_000 - 100 * (4096 + 1024) - 4);
    // The same files again are other entries.
    tiny(99).unwrap();
    assert_eq!(registry.room(&tenant, &model("m")).unwrap().new_bytes_max, 1_000_000 - 100 * 4096 - 199 * 1024 - 2 * 4);
}

#[test]
fn files_that_cannot_be_a_version_are_refused() {
    let folder = temporary();
    let registry = Registry::open(folder.path()).unwrap();
    let blob = store(&registry, b"1");
    let commit = |paths: &[&str]| {
        let files = paths.iter().map(|path| VersionFile { path: (*path).to_owned(), blob: blob.clone() }).collect();
        let version = NewVersion { files, report: serde_json::Value::Null, activate: true };
        registry.commit_version(&TenantName::default_tenant(), &model("m"), version)
    };
    for (paths, sentence) in [
        (vec![], "a version has at least one file"),
        (vec!["a", "b", "a"], "file `a` is there twice"),
        (
            vec!["../a"],
            "`../a` cannot be the path of a file: it must be relative, without `.`, `..`, empty parts, `\\` or control characters, and have at most 512 bytes",
        ),
        (vec!["a"; 4097], "a version has at most 4096 files, not 4097"),
    ] {
        let error = commit(&paths).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, sentence));
    }
    assert_eq!(registry.models(None).unwrap(), []);

    // Of another registry, or with a digest that is not its own.
    let elsewhere = temporary();
    let mut foreign = store(&Registry::open(elsewhere.path()).unwrap(), b"1");
    let of = |blob| NewVersion { files: vec![VersionFile { path: "a".to_owned(), blob }], report: serde_json::Value::Null, activate: true };
    let commit = |blob| registry.commit_version(&TenantName::default_tenant(), &model("m"), of(blob));
    assert_eq!(kind(commit(foreign.clone())), ErrorKind::Invalid);
    foreign = blob.clone();
    foreign.digest = Digest::of(b"2");
    assert_eq!(kind(commit(foreign)), ErrorKind::Invalid);
    let report = serde_json::Value::String("x".repeat(64 << 10));
    let version = NewVersion { report, ..of(blob) };
    assert_eq!(kind(registry.commit_version(&TenantName::default_tenant(), &model("m"), version)), ErrorKind::Invalid);
}
