//! The `cellwright` command: reads the command line, wires the parts together, says what happened.
//!
//! This crate owns arguments, output, progress and the load that benchmarks make. It holds no logic of serving: what it does with a model, any other
//! front end can do through the same crates.

mod bound_lines;
mod cli;
mod commands;
mod host;
mod policy;
mod progress;
mod random;
mod trace;
mod worker;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

/// What a request is made of is allocated on one thread and freed on another, which costs the system's allocator more than all else in a small
/// request: with this one `bench engine --hidden 16 --lengths fixed:1 --rate max` answers about twice as many.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = log_to_stderr(&cli.log) {
        return complain(&error);
    }
    match run(cli.command) {
        Ok(code) => code,
        // Whoever reads our output has had enough of it (`cellwright … | head`).
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Check(arguments) => commands::check::check(&arguments),
        Command::Bench { bench } => commands::bench::bench(&bench),
        Command::Completions { shell } => commands::completions::completions(shell),
        Command::CompilePlugin => Ok(cellwright_plugin_runtime::compile_worker_main()),
    }
}

fn log_to_stderr(filter: &str) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| anyhow::anyhow!("the log filter `{filter}` is not one: {error}; try `info`, or `cellwright_engine=debug`"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}

fn complain(error: &anyhow::Error) -> ExitCode {
    // If standard error is gone too, the exit code is all that is left to say it with.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == ErrorKind::BrokenPipe))
}
