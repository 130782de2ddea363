//! A process is killed at random instants while it changes a registry. Whatever it had acknowledged must be there, whole; of the one
//! operation it may have been at, all or nothing.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use cellwright_registry::{Digest, Registry};

use crate::operations::{Operation, apply, assert_same, assert_whole, bits, view};
use crate::oracle::Oracle;

const KILLS: u64 = 200;
const SEED: u64 = 0x5eed_0003;
/// Longest life of the child: from its start in one round, from when it has opened the registry in the next.
const LIFE_US_MAX: u64 = 100_000;
const OPERATIONS_MAX: u32 = 100_000;
const FOLDER: &str = "CELLWRIGHT_REGISTRY_KILLED_FOLDER";
const ROUND: &str = "CELLWRIGHT_REGISTRY_KILLED_ROUND";
const OPENED: &str = "opened";
const ACKNOWLEDGED: &str = "acknowledged ";

fn operation(round: u64, number: u32) -> Operation {
    Operation::drawn(bits(SEED ^ (round << 32), number.into()), number)
}

/// The process that is killed; does nothing if it is not started as one.
#[test]
#[ignore = "the child process of `every_acknowledged_change_survives_a_kill`"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let registry = Registry::open(Path::new(&folder)).unwrap();
    let mut out = std::io::stdout();
    // Ends the line that the test harness has begun.
    writeln!(out, "\n{OPENED}").unwrap();
    for number in 0..OPERATIONS_MAX {
        let answer = apply(&registry, &operation(round, number));
        // Standard output keeps nothing back beyond the end of a line.
        writeln!(out, "{ACKNOWLEDGED}{answer}").unwrap();
    }
}

fn start_child(folder: &Path, round: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["killed::child", "--exact", "--ignored", "--nocapture"]).env(FOLDER, folder).env(ROUND, round.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Answers that the child gave until it was killed.
fn answers_until_killed(folder: &Path, round: u64) -> Vec<String> {
    let mut child = start_child(folder, round);
    let out = BufReader::new(child.stdout.take().unwrap());
    let (has_opened, opened) = sync_channel(1);
    let reader = thread::spawn(move || {
        let mut answers = Vec::new();
        for line in out.lines().map_while(Result::ok) {
            if line == OPENED {
                has_opened.send(()).unwrap();
            }
            answers.extend(line.strip_prefix(ACKNOWLEDGED).map(str::to_owned));
        }
        answers
    });
    if round.is_multiple_of(2) {
        opened.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    // The instant of the kill is what this test is about; nothing waits for it.
    thread::sleep(Duration::from_micros(bits(SEED, round) % LIFE_US_MAX));
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the child of round {round} ended by itself: {status}");
    let answers = reader.join().unwrap();
    // Kept until now, so that the reader can always send.
    drop(opened);
    answers
}

/// Every file that is named like a blob has the contents of that name.
fn assert_blobs_are_whole(folder: &Path) {
    for shard in fs::read_dir(folder.join("blobs")).unwrap() {
        for blob in fs::read_dir(shard.unwrap().path()).unwrap() {
            let path = blob.unwrap().path();
            assert_eq!(path.file_name().unwrap().to_str().unwrap(), Digest::of(&fs::read(&path).unwrap()).to_string());
        }
    }
}

#[test]
fn every_acknowledged_change_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut oracle = Oracle::default();
    let (mut acknowledged, mut ahead, mut half_arrived) = (0, 0, 0);
    for round in 0..KILLS {
        let answers = answers_until_killed(folder.path(), round);
        let arriving = fs::read_dir(folder.path().join("incoming")).map(Iterator::count).unwrap_or_default();
        let registry = Registry::open(folder.path()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(fs::read_dir(folder.path().join("incoming")).unwrap().count(), 0, "round {round}");
        for (number, answer) in (0..).zip(&answers) {
            let operation = operation(round, number);
            assert_same(answer, &oracle.apply(&operation), &(round, number, operation));
        }
        let found = view(&registry);
        if found != oracle.view() {
            // Then it is exactly the operation that was not acknowledged any more.
            let next = operation(round, u32::try_from(answers.len()).unwrap());
            oracle.apply(&next);
            assert_same(&found, &oracle.view(), &(round, answers.len(), next));
            ahead += 1;
        }
        assert_whole(&registry);
        assert_blobs_are_whole(folder.path());
        acknowledged += answers.len();
        half_arrived += usize::from(arriving > 0);
    }
    println!(
        "{KILLS} kills: {acknowledged} operations acknowledged, {ahead} done but not acknowledged, {half_arrived} cut off while bytes arrived"
    );
    assert!(acknowledged > 200 && ahead > 0 && half_arrived > 10, "the kills missed what they were to hit");
}
