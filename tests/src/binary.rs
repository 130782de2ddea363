//! The built programs `cellwright` and `cellwright-lab`, for tests of their command lines.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The most that any run of a test may take, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

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

/// What a run printed that did what it was asked for.
///
/// # Panics
/// If it did not.
#[track_caller]
pub fn done(ran: Ran) -> String {
    assert_eq!(ran.status, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    ran.stdout
}

/// What a run said that could not do what it was asked for.
///
/// # Panics
/// If it did.
#[track_caller]
pub fn refused(ran: Ran) -> String {
    assert_eq!(ran.status, Some(1), "{}\n{}", ran.stdout, ran.stderr);
    ran.stderr
}

/// Runs `cellwright` from the root of the repository.
///
/// # Panics
/// If the program cannot be built or started, or does not end in time.
pub fn cellwright(arguments: &[&str], stdin: &str) -> Ran {
    cellwright_in(&[], arguments, stdin)
}

/// Runs `cellwright` from the root of the repository, with these variables in its environment.
///
/// # Panics
/// If the program cannot be built or started, or does not end in time.
pub fn cellwright_in(environment: &[(&str, &str)], arguments: &[&str], stdin: &str) -> Ran {
    run(program(), environment, arguments, stdin)
}

/// Runs `cellwright-lab` from the root of the repository.
///
/// # Panics
/// If the program cannot be built or started, or does not end in time.
pub fn lab(arguments: &[&str], stdin: &str) -> Ran {
    run(&program().with_file_name("cellwright-lab"), &[], arguments, stdin)
}

fn run(program: &Path, environment: &[(&str, &str)], arguments: &[&str], stdin: &str) -> Ran {
    let mut command = Command::new(program);
    command.envs(environment.iter().copied());
    let mut child = start_by(command, arguments);
    let (mut input, mut output, mut errors) =
        (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let child = Mutex::new(child);
    let (ended, end) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A program that has read enough closes its end; that is no failure of the test.
            let _ = input.write_all(stdin.as_bytes());
            drop(input);
        });
        let errors = scope.spawn(move || read(&mut errors));
        let watched = &child;
        let late = scope.spawn(move || {
            let late = end.recv_timeout(DEADLINE).is_err();
            if late {
                watched.lock().expect("no thread panicked with it").kill().expect("a child can be killed");
            }
            late
        });
        let (stdout, stderr) = (read(&mut output), errors.join().expect("pipes are read to their end"));
        // Nobody hears it if the program was late.
        let _ = ended.send(());
        let late = late.join().expect("the watch ends");
        let status = child.lock().expect("no thread panicked with it").wait().expect("the program ends").code();
        assert!(!late, "`{} {}` did not end in {DEADLINE:?}; it said:\n{stdout}\n{stderr}", program.display(), arguments.join(" "));
        Ran { status, stdout, stderr }
    })
}

fn start(arguments: &[&str]) -> Child {
    start_by(Command::new(program()), arguments)
}

fn start_by(mut command: Command, arguments: &[&str]) -> Child {
    let program = program();
    command
        .args(arguments)
        .env("CELLWRIGHT_CACHE", program.with_file_name("cellwright-cache-of-tests"))
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// A `cellwright` that is running, for what must happen before its input ends.
#[derive(Debug)]
pub struct Running {
    child: Child,
    input: ChildStdin,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    /// Starts it from the root of the repository.
    ///
    /// # Panics
    /// If the program cannot be built or started.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::of(start(arguments))
    }

    /// Starts it by a shell script, which finds the program as `$0` and the arguments as `$@`.
    ///
    /// # Panics
    /// If the program cannot be built, or the shell cannot be started.
    #[must_use]
    pub fn start_by(script: &str, arguments: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(program());
        Self::of(start_by(shell, arguments))
    }

    fn of(mut child: Child) -> Self {
        let input = child.stdin.take().expect("a pipe");
        let (stdout, stderr) = (lines(child.stdout.take().expect("a pipe")), lines(child.stderr.take().expect("a pipe")));
        Self { child, input, stdout, stderr }
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends by itself; gives its exit status, none if a signal ended it.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end; it said {:?}", self.stderr.try_iter().collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has said beside its output and nobody has read.
    #[must_use]
    pub fn rest_of_stderr(&self) -> Vec<String> {
        self.stderr.try_iter().collect()
    }

    /// Writes to its input.
    ///
    /// # Panics
    /// If it reads no more.
    pub fn say(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).expect("the program reads");
    }

    /// The next line it prints.
    ///
    /// # Panics
    /// If there is none in time.
    #[must_use]
    pub fn line(&self) -> String {
        self.stdout.recv_timeout(DEADLINE).expect("it prints a line")
    }

    /// The next line of what it says beside that.
    ///
    /// # Panics
    /// If there is none in time.
    #[must_use]
    pub fn line_of_stderr(&self) -> String {
        self.stderr.recv_timeout(DEADLINE).expect("it says a line")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where it has ended by itself there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (line, heard) = sync_channel(1024);
    std::thread::spawn(move || BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|said| line.send(said)));
    heard
}

fn read(pipe: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `cellwright`, built with the profile and in the target folder of the tests; `cellwright-lab` is
/// beside it. Both are built now if they are not up to date.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        let profile_folder = test.ancestors().nth(2).expect("tests lie in deps of their profile's folder");
        let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        // What cargo says to tests of their own package. Build scripts look at it, and would run again here and then again
        // outside, with all that depends on them.
        let of_package = |name: &str| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.starts_with(prefix));
        let mut build = Command::new(env!("CARGO"));
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)).for_each(|(name, _)| _ = build.env_remove(name));
        let status = build
            .args(["build", "--quiet", "--offline", "--package", "cellwright", "--package", "cellwright-lab", "--profile", profile])
            .arg("--target-dir")
            .arg(profile_folder.parent().expect("a profile's folder lies in a target folder"))
            .current_dir(root())
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the programs do not build");
        profile_folder.join("cellwright")
    })
}
