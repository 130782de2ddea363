//! No room left while bytes arrive: a sentence, nothing left behind, and the registry goes on.
//!
//! A disk that is full is hard to come by in a test; a process that may write no file beyond some size meets the same paths. The child
//! starts under a shell that sets that limit and ignores the signal that would end it. (A full database is tested beside its code.)

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use cellwright_registry::{ErrorKind, Registry};

use crate::{commit, temporary};

const FOLDER: &str = "CELLWRIGHT_REGISTRY_FULL_FOLDER";
const SURVIVED: &str = "the registry went on";

/// The process that has little room; does nothing if it is not started as one.
#[test]
#[ignore = "the child process of `an_upload_that_finds_no_room_fails_alone`"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let registry = Registry::open(folder).unwrap();

    // Written through to the file at once.
    let mut writer = registry.new_blob().unwrap();
    let error = writer.write_all(&vec![1; 8 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    assert!(error.to_string().contains("`ulimit -f`"), "{error}");
    assert!(writer.write_all(b"more").and_then(|()| writer.flush()).is_err(), "a broken upload went on");
    assert!(writer.finish().is_err(), "a broken upload was finished");

    // Gathered first, and found to have no room only at the end.
    let mut writer = registry.new_blob().unwrap();
    for _ in 0..16 {
        writer.write_all(&[1; 256 << 10]).unwrap();
    }
    writer.write_all(b"one too many").unwrap();
    let error = writer.finish().unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Full, "the file is larger than the server may write (`ulimit -f`): cannot write a blob")
    );

    assert_eq!(fs::read_dir(folder.join("incoming")).unwrap().count(), 0, "something was left behind");
    commit(&registry, "m", b"small", true).unwrap();
    println!("\n{SURVIVED}");
}

#[test]
fn an_upload_that_finds_no_room_fails_alone() {
    let folder = temporary();
    let limited = "ulimit -f 4096 || exit 1; trap '' XFSZ; exec \"$0\" full::child --exact --ignored --nocapture";
    let mut shell = Command::new("bash");
    shell.args(["-c", limited]).arg(std::env::current_exe().unwrap()).env(FOLDER, folder.path());
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(SURVIVED), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let registry = Registry::open(folder.path()).unwrap();
    assert_eq!(registry.models(None).unwrap().len(), 1);
}
