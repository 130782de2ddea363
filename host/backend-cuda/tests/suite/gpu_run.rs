//! What `tests/gpu/run` makes of its parts, on a machine that has next to nothing: a script stands in for the program that has them.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// All that it asks of a machine, beside bash.
const COMMANDS: &[&str] = &[
    "awk", "bash", "cat", "cmp", "date", "dirname", "head", "mkdir", "mktemp", "rm", "sed", "sh", "sleep", "tail", "tee", "timeout", "tr",
];

/// Two parts pass, but for one that dies as soon as it has said so.
const STANDS_IN: &str = r#"#!/bin/sh
passed() { echo "{\"figures\":{},\"part\":\"$1\",\"passed\":true,\"seconds\":0.1}"; }
case "$*" in
    *--facts) echo '{"name":"none"}' ;;
    *--list) echo good dies hangs ;;
    *hangs) trap '' TERM; sleep 20; passed hangs ;;
    *dies) passed dies; kill -SEGV $$ ;;
    *) passed good ;;
esac
"#;

struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    /// What it left in its file.
    left: Option<Value>,
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu_run").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    let places: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect();
    for command in COMMANDS {
        let found = places.iter().map(|place| place.join(command)).find(|path| path.exists());
        symlink(found.unwrap_or_else(|| panic!("there is no {command}")), folder.join("bin").join(command)).unwrap();
    }
    std::fs::write(folder.join("conformance"), STANDS_IN).unwrap();
    std::fs::set_permissions(folder.join("conformance"), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

fn run(folder: &Path, output: &str, variables: &[(&str, &str)], parts: &[&str]) -> Ran {
    let output = folder.join(output);
    let ran = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/run"))
        .env_clear()
        .env("PATH", folder.join("bin"))
        .env("CONFORMANCE", folder.join("conformance"))
        .env("CELLWRIGHT", folder.join("none"))
        .envs(variables.iter().copied())
        .arg("--output")
        .arg(&output)
        .args(parts)
        .output()
        .unwrap();
    let left = std::fs::read(&output).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap());
    let [stdout, stderr] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    Ran { status: ran.status.code(), stdout, stderr, left }
}

#[test]
fn a_machine_without_python_leaves_out_what_pytorch_takes() {
    let ran = run(&folder("python"), "gpu.json", &[], &["good", "figures-torch"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(ran.stdout.contains("left out: what PyTorch takes, because there is no python3"), "{}", ran.stdout);
}

#[test]
fn a_part_that_dies_or_does_not_end_has_not_passed() {
    let ran = run(&folder("parts"), "gpu.json", &[("PART_SECONDS", "1")], &[]);
    assert_eq!(ran.status, Some(1), "{}", ran.stdout);
    let left = ran.left.unwrap();
    let passed = |name: &str| left["parts"].as_array().unwrap().iter().find(|part| part["part"] == name).unwrap()["passed"].clone();
    assert_eq!(["good", "dies", "hangs"].map(passed), [true, false, false]);
}

#[test]
fn what_cannot_be_kept_is_not_begun() {
    let folder = folder("output");
    let ran = run(&folder, "conformance/gpu.json", &[], &[]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("conformance/gpu.json cannot be written"), "{}", ran.stderr);
}

/// Seconds are read off a clock that is written as the machine's language writes numbers.
#[test]
fn what_is_kept_is_json_in_every_language() {
    let folder = folder("language");
    let locale = folder.join("de_DE.UTF-8");
    let made = Command::new("localedef").args(["-i", "de_DE", "-f", "UTF-8"]).arg(&locale).output();
    if !made.is_ok_and(|_| locale.exists()) {
        println!("skipped: this machine cannot make another language's rules");
        return;
    }
    let language = [("LC_ALL", "de_DE.UTF-8"), ("LOCPATH", folder.to_str().unwrap())];
    let ran = run(&folder, "gpu.json", &language, &["dies"]);
    assert_eq!(ran.left.unwrap()["parts"][0]["part"], "dies");
}
