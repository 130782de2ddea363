//! How a program begins and ends: its environment, its errors, its exit status.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Exit status of a program that was called wrongly, as of the parser of its options.
const WRONG_USAGE: u8 = 2;

/// Options that cannot be used together, or name what does not exist: found after they were parsed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// [`anyhow::ensure`] for options: what is wrong is a [`Usage`].
///
/// # Errors
/// If `right` does not hold.
pub fn ensure_usage(right: bool, problem: impl FnOnce() -> String) -> Result<(), Usage> {
    if right { Ok(()) } else { Err(Usage(problem())) }
}

/// Removes empty variables of ours: `CELLWRIGHT_SERVER= cellwright …` is how a shell unsets one.
///
/// Call it first in `main`, before any thread starts.
pub fn forget_empty_settings() {
    let empty = std::env::vars_os().filter(|(name, value)| value.is_empty() && name.as_encoded_bytes().starts_with(b"CELLWRIGHT_"));
    for (name, _) in empty.collect::<Vec<_>>() {
        // SAFETY: the caller is on the only thread, so nothing else reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
}

/// Makes a write beyond `ulimit -f` fail like one to a full disk. Otherwise its signal ends the process, and with it all that a server is doing.
///
/// Of the other signals that a limit sends, `SIGPIPE` is ignored by every Rust program, and `SIGXCPU` is left to end a command; a server stops in
/// order on it.
pub fn survive_full_files() {
    // SAFETY: no handler is installed, so no code of ours runs inside a signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The exit status of a run: 0 for success, 1 for failure, 2 for wrong usage. An error goes to
/// standard error with its causes, and with a remedy if `hint` knows one.
pub fn exit_code(result: anyhow::Result<ExitCode>, hint: impl Fn(&anyhow::Error) -> Option<&'static str>) -> ExitCode {
    match result {
        Ok(code) => code,
        // The reader of our output closed it (`cellwright … | head`).
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = hint(&error).map_or_else(String::new, |hint| format!("; {hint}"));
            // If standard error is gone too, only the exit status is left.
            let _ = writeln!(std::io::stderr(), "error: {}{hint}", sentence(&error));
            if error.chain().any(|cause| cause.is::<Usage>()) { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// An error and its causes. A cause that the text already contains is not repeated.
#[must_use]
pub fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.contains(&cause) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&cause);
    }
    said
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == ErrorKind::BrokenPipe))
}

/// Prints a completion script for a program.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(shell: Shell, name: &'static str, program: &Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    // The generator offers hidden commands too, which the host alone calls.
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let (version, arguments) = (env!("CARGO_PKG_VERSION"), program.get_arguments().cloned());
    let mut program = Command::new(name).version(version).args(arguments).subcommands(shown);
    clap_complete::generate(shell, &mut program, name, &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
