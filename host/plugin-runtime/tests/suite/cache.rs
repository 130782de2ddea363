//! The cache of compiled plugins: what is found is right, and what is damaged or foreign is compiled again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cellwright_plugin_runtime::{Compiler, Runtime, RuntimeOptions};

use crate::guest::Guest;
use crate::nothing;

fn open(folder: &Path) -> Runtime {
    let options = RuntimeOptions::new(Compiler::InProcess);
    Runtime::new(RuntimeOptions { cache_dir: Some(folder.to_owned()), instances_max: 4, ..options }).unwrap()
}

/// Compiles a guest that answers with two chains, and checks that it does.
fn compile(folder: &Path) {
    let guest =
        Guest::unfolding("(i32.store (i32.const 2052) (i32.const 4096)) (i32.store (i32.const 2056) (i32.const 2)) (i32.const 2048)");
    let plugin = open(folder).compile("acme", "testee", &guest.wasm()).unwrap();
    let limits = cellwright_plugin_runtime::Limits::default();
    let model = plugin.with_parameters(&[], std::sync::Arc::new(Vec::new()), &limits).unwrap();
    assert_eq!(model.unfold(&nothing()).unwrap().chains.len(), 2);
}

fn code_files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "code")).collect()
}

fn only_code_file(folder: &Path) -> PathBuf {
    let [file] = code_files(folder).try_into().unwrap();
    file
}

fn modified(file: &Path) -> SystemTime {
    fs::metadata(file).unwrap().modified().unwrap()
}

#[test]
fn what_was_compiled_once_is_found() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path());
    let file = only_code_file(folder.path());
    let before = modified(&file);
    compile(folder.path());
    assert_eq!(modified(&only_code_file(folder.path())), before, "it was found, so it was not written again");
}

/// How long a tenant waits for its plugin says nothing of what others have uploaded.
#[test]
fn what_one_tenant_has_compiled_no_other_finds() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = open(folder.path());
    for (tenant, files) in [("acme", 1), ("acme", 1), ("globex", 2), ("acme", 2)] {
        runtime.compile(tenant, "testee", &Guest::default().wasm()).unwrap();
        assert_eq!(code_files(folder.path()).len(), files, "{tenant}");
    }
}

#[test]
fn only_the_owner_can_read_the_key() {
    let folder = tempfile::tempdir().unwrap();
    compile(&folder.path().join("cache"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path().join("cache")), 0o700);
    assert_eq!(mode(&folder.path().join("cache/key")), 0o600);
    assert_eq!(fs::read(folder.path().join("cache/key")).unwrap().len(), 32);
}

/// Damages the one compiled file in a fresh cache, and expects the right answer and a mended file.
fn survives(damage: impl Fn(&Path, Vec<u8>)) {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path());
    let file = only_code_file(folder.path());
    let whole = fs::read(&file).unwrap();
    damage(&file, whole.clone());
    compile(folder.path());
    let mended = fs::read(&file).unwrap();
    assert_eq!(mended.len(), whole.len());
    let before = modified(&file);
    compile(folder.path());
    assert_eq!(modified(&file), before, "the mended file is good");
}

#[test]
fn a_truncated_file_is_compiled_again() {
    survives(|file, whole| fs::write(file, &whole[..whole.len() / 2]).unwrap());
    survives(|file, whole| fs::write(file, &whole[..10]).unwrap());
    survives(|file, _| fs::write(file, b"").unwrap());
}

#[test]
fn a_flipped_bit_anywhere_is_compiled_again() {
    for position in [0, 31, 32, 40, 5000] {
        survives(|file, mut whole| {
            whole[position] ^= 1;
            fs::write(file, whole).unwrap();
        });
    }
    survives(|file, whole| fs::write(file, [&whole[..], &[0]].concat()).unwrap());
}

#[test]
fn code_under_a_foreign_key_is_compiled_again() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    compile(ours.path());
    compile(theirs.path());
    let (file, foreign) = (only_code_file(ours.path()), fs::read(only_code_file(theirs.path())).unwrap());
    let own = fs::read(&file).unwrap();
    assert_ne!(own[..32], foreign[..32], "another key makes another MAC of the same code");
    fs::write(&file, &foreign).unwrap();
    compile(ours.path());
    assert_eq!(fs::read(&file).unwrap(), own);
}

#[test]
fn code_under_another_plugins_name_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).compile("acme", "other", &Guest::unfolding("(unreachable)").wasm()).unwrap();
    let other = fs::read(only_code_file(folder.path())).unwrap();
    fs::remove_file(only_code_file(folder.path())).unwrap();
    compile(folder.path());
    fs::write(only_code_file(folder.path()), other).unwrap();
    compile(folder.path());
}

#[test]
fn a_key_that_others_could_read_or_that_is_damaged_is_replaced() {
    for spoil in
        [|key: &Path| fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap(), |key: &Path| fs::write(key, b"short").unwrap()]
    {
        let folder = tempfile::tempdir().unwrap();
        compile(folder.path());
        let key = folder.path().join("key");
        let before = fs::read(&key).unwrap();
        spoil(&key);
        compile(folder.path());
        assert_ne!(fs::read(&key).unwrap(), before);
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// Compiles so many different plugins of a tenant, with a cache of so many bytes.
fn compile_different(folder: &Path, cache_bytes_max: u64, (tenant, count): (&str, u32)) {
    let options = RuntimeOptions {
        cache_dir: Some(folder.to_owned()),
        cache_bytes_max,
        instances_max: 4,
        ..RuntimeOptions::new(Compiler::InProcess)
    };
    let runtime = Runtime::new(options).unwrap();
    for number in 0..count {
        runtime.compile(tenant, "testee", &Guest::unfolding(format!("(i32.const {})", 1024 + number * 4)).wasm()).unwrap();
    }
}

#[test]
fn the_oldest_code_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path());
    let oldest = only_code_file(folder.path());
    let bytes = fs::metadata(&oldest).unwrap().len();
    compile_different(folder.path(), bytes * 2, ("acme", 3));
    assert!(!oldest.exists());
    assert!((1..=2).contains(&code_files(folder.path()).len()));
}

/// However much one tenant uploads, what another has compiled stays.
#[test]
fn the_tenant_that_has_most_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path());
    let oldest = only_code_file(folder.path());
    let bytes = fs::metadata(&oldest).unwrap().len();
    compile_different(folder.path(), bytes * 4, ("globex", 8));
    assert!(oldest.exists());
    assert!((2..=5).contains(&code_files(folder.path()).len()));
}

#[test]
fn runtimes_that_open_a_new_cache_at_once_share_its_key() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| compile(folder.path()));
        }
    });
    let before = modified(&only_code_file(folder.path()));
    compile(folder.path());
    assert_eq!(modified(&only_code_file(folder.path())), before);
}
