//! A recording that begins, and files that are not recordings. Whole, cut and damaged ones are made in
//! `cellwright-simulator`, which has a scheduler to record.

use std::path::Path;

use cellwright_scheduler::Config;

use super::*;

fn calls(path: &Path) -> Result<u64, RecordingError> {
    let mut recording = Recording::open(path)?;
    let mut calls = 0;
    while recording.next_call()?.is_some() {
        calls += 1;
    }
    Ok(calls)
}

fn problem(of: Result<impl std::fmt::Debug, RecordingError>) -> String {
    of.unwrap_err().problem
}

#[test]
fn a_recording_begins_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    drop(Recorder::create(&path, &Config::default()).unwrap());
    assert_eq!(calls(&path).unwrap(), 0);
    assert!(problem(Recorder::create(&path, &Config::default())).contains("already"));
    assert!(problem(Recorder::create(&folder.path().join("no/such"), &Config::default())).contains("No such file"));
}

#[test]
fn what_is_no_recording_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "cellwright, but nothing recorded").unwrap();
    assert!(problem(Recording::open(&path)).starts_with("this is not a recording"));
    let mut other = MARK.to_vec();
    other.extend(8_u32.to_le_bytes());
    std::fs::write(&path, &other).unwrap();
    assert_eq!(problem(Recording::open(&path)), "it has format 8, and this program reads 7");
}
