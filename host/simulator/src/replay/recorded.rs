//! Recordings of small runs: whole, cut and damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Source, UnfoldedInput};
use cellwright_recording::{Recorder, Recording, RecordingError};
use cellwright_scheduler::{Commands, Config, Event, ModelId, RequestId, Submission, Time};

use super::tests::{growths, record};

fn file(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

fn read_all(path: &Path) -> Result<(u64, bool), RecordingError> {
    let mut recording = Recording::open(path)?;
    let mut calls = 0;
    while recording.next_call()?.is_some() {
        calls += 1;
    }
    Ok((calls, recording.was_cut()))
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
            Err(RecordingError { problem, .. }) => {
                assert!(problem.starts_with("frame ") && problem.ends_with(" is damaged"), "{problem}");
            }
            Ok((some, cut)) => assert!(cut && some < calls, "byte {at}"),
        }
    }
}

#[test]
fn a_recording_holds_no_contents_of_requests() {
    const TOKEN: i64 = 0x0bad_cafe;
    const BYTES: [u8; 8] = [0xab; 8];
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "contents");
    let mut growth = (*growths()[0]).clone();
    growth.chains[0].stages[0].inputs =
        vec![Source::Ints(vec![TOKEN; 9]), Source::Literal(BYTES.repeat(9).into()), Source::Index(Affine::EVERY)]
            .into_iter()
            .map(|source| UnfoldedInput { source, feedback: None })
            .collect();
    let submission = Submission { request: RequestId(1), model: ModelId(1), rank: 0, deadline: None, growth: Arc::new(growth) };
    let mut recorder = Recorder::create(&path, &Config::default()).unwrap();
    recorder.told(Time(1), &[Event::Submit(submission)], &[]);
    recorder.decided(&Commands::default());
    drop(recorder);
    let written = std::fs::read(&path).unwrap();
    assert_eq!(read_all(&path).unwrap(), (1, false));
    let holds = |bytes: &[u8]| written.windows(bytes.len()).any(|window| window == bytes);
    assert!(!holds(&BYTES) && !holds(&TOKEN.to_le_bytes()));
}
