//! Recordings of small runs: whole, cut, damaged, and not recordings at all.

use std::path::PathBuf;

use cellwright_scheduler::Config;

use super::*;
use crate::error::Error;
use crate::replay::tests::record;

fn file(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

fn problem(of: Result<impl std::fmt::Debug, Error>) -> String {
    match of.unwrap_err() {
        Error::Recording { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

fn read_all(path: &std::path::Path) -> Result<(u64, bool), Error> {
    let mut recording = Recording::open(path)?;
    let mut calls = 0;
    while recording.next_call()?.is_some() {
        calls += 1;
    }
    Ok((calls, recording.was_cut()))
}

#[test]
fn a_recording_begins_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "a");
    drop(Recorder::create(&path, &Config::default()).unwrap());
    assert_eq!(read_all(&path).unwrap(), (0, false));
    assert!(problem(Recorder::create(&path, &Config::default())).contains("already"));
    assert!(problem(Recorder::create(&file(&folder, "no/such"), &Config::default())).contains("No such file"));
}

#[test]
fn what_is_no_recording_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "text");
    std::fs::write(&path, "cellwright, but nothing recorded").unwrap();
    assert!(problem(Recording::open(&path)).starts_with("this is no recording"));
    let mut other = MARK.to_vec();
    other.extend(7_u32.to_le_bytes());
    std::fs::write(&path, &other).unwrap();
    assert_eq!(problem(Recording::open(&path)), "it has format 7, and this program reads 4");
}

#[test]
fn a_recording_that_was_cut_is_good_up_to_there_and_a_damaged_one_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "whole");
    record(&path, Config::default(), 60, 2);
    let whole = std::fs::read(&path).unwrap();
    let (calls, cut) = read_all(&path).unwrap();
    assert!(calls > 60 && !cut);

    let path = file(&folder, "cut");
    for length in [whole.len() - 1, whole.len() / 2, whole.len() / 3 + 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let (some, _) = read_all(&path).unwrap();
        assert!(some < calls && some > calls / 5, "{some} of {calls} calls in {length} of {} bytes", whole.len());
    }

    let path = file(&folder, "damaged");
    // Past the header's frame.
    for at in (200..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        // A damaged length may also look like the end of the file.
        match read_all(&path) {
            Err(Error::Recording { problem, .. }) => {
                assert!(problem.starts_with("frame ") && problem.ends_with(" is damaged"), "{problem}")
            }
            Err(other) => panic!("{other}"),
            Ok((some, cut)) => assert!(cut && some < calls, "byte {at}"),
        }
    }
}

#[test]
fn nothing_of_what_requests_hold_is_written() {
    use cellwright_cell_graph::unfolded::Source;
    let mut growth = (*crate::replay::tests::growths()[0]).clone();
    growth.chains[0].stages[0].inputs = vec![
        Source::Ints(vec![0x0bad_cafe; 9]),
        Source::Literal(vec![0xab; 99].into()),
        Source::Index(cellwright_cell_graph::graph::Affine::EVERY),
    ]
    .into_iter()
    .map(|source| cellwright_cell_graph::unfolded::UnfoldedInput { source, feedback: None })
    .collect();
    let bare = entry::bare(&growth);
    let sources: Vec<&Source> = bare.chains[0].stages[0].inputs.iter().map(|input| &input.source).collect();
    assert!(matches!(&sources[..], [Source::Ints(ints), Source::Literal(bytes), Source::Index(_)] if ints.is_empty() && bytes.is_empty()));
}
