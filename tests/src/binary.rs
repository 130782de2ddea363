//! The built `cellwright` program, for tests of the command line.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What a run of the program left.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status; none if a signal ended it.
    pub status: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said beside it.
    pub stderr: String,
}

/// The repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the repository")
}

/// Runs `cellwright` from the root of the repository.
///
/// # Panics
/// If the program cannot be built or started.
pub fn cellwright(arguments: &[&str], stdin: &str) -> Ran {
    let program = program();
    let mut child = Command::new(program)
        .args(arguments)
        .env("CELLWRIGHT_CACHE", program.with_file_name("cellwright-cache-of-tests"))
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that has read enough closes its end; that is no failure of the test.
    let _ = child.stdin.take().expect("a pipe").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("the program ends");
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The program of the profile and target folder that the tests themselves were built with; built now if it is not there or not up to date.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        let profile_folder = test.ancestors().nth(2).expect("tests lie in deps of their profile's folder");
        let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "--package", "cellwright", "--profile", profile])
            .arg("--target-dir")
            .arg(profile_folder.parent().expect("a profile's folder lies in a target folder"))
            .current_dir(root())
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the program `cellwright` does not build");
        profile_folder.join("cellwright")
    })
}
