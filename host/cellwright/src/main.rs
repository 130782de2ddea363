//! The `cellwright` command: reads the command line, wires the parts together, says what happened.
//!
//! This crate owns arguments, output, progress and the load that benchmarks make. It holds no logic of serving: what it does with a model, any other
//! front end can do through the same crates.

#![expect(unsafe_code, reason = "an allocator that counts is an allocator, and the environment is changed before there are threads")]

mod allocations;
mod bound_lines;
mod cli;
mod commands;
mod host;
mod local_server;
mod policy;
mod progress;
mod table;
mod telemetry;
mod trace;
mod worker;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use cellwright_client::ClientError;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use cli::{Cli, Command, LogFormat};
use commands::serve::Settings;

/// What a request is made of is allocated on one thread and freed on another, which costs the system's allocator more than all else in a small
/// request: with this one `bench engine --hidden 16 --lengths fixed:1 --rate max` answers about twice as many.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    forget_empty_settings();
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match run(cli, &matches) {
        Ok(code) => code,
        // Whoever reads our output has had enough of it (`cellwright … | head`).
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}

/// `CELLWRIGHT_SERVER= cellwright …` is how a shell takes a setting back: an empty one counts as none.
fn forget_empty_settings() {
    let empty = std::env::vars_os().filter(|(name, value)| value.is_empty() && name.as_encoded_bytes().starts_with(b"CELLWRIGHT_"));
    for (name, _) in empty.collect::<Vec<_>>() {
        // SAFETY: it is the first thing that the program does, on its only thread: nobody else reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
}

fn run(cli: Cli, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let matches = matches.subcommand().map_or(matches, |(_, matches)| matches);
    // A server says by itself how it logs.
    if let Command::Serve(arguments) = &cli.command {
        return commands::serve::serve(&Settings::new(arguments, matches)?, arguments, &cli.log);
    }
    telemetry::start(&cli.log, LogFormat::Human)?;
    match cli.command {
        Command::Serve(_) => unreachable!("it has returned"),
        Command::Demo(arguments) => commands::demo::demo(&arguments),
        Command::Push(arguments) => commands::push::push(&arguments),
        Command::Models(arguments) => commands::models::models(&arguments),
        Command::Infer(arguments) => commands::infer::infer(&arguments),
        Command::Keys(arguments) => commands::admin::keys(&arguments, matches),
        Command::Tenants(arguments) => commands::admin::tenants(&arguments, matches),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Check(arguments) => commands::check::check(&arguments),
        Command::Bench { bench } => commands::bench::bench(&bench),
        Command::Simulate(arguments) => commands::simulate::simulate(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Calibrate(arguments) => commands::calibrate::calibrate(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Replay(arguments) => commands::replay::replay(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Figures(arguments) => commands::figures::figures(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => commands::completions::completions(shell),
        Command::CompilePlugin => Ok(cellwright_plugin_runtime::compile_worker_main()),
    }
}

fn complain(error: &anyhow::Error) -> ExitCode {
    // If standard error is gone too, the exit code is all that is left to say it with.
    let wants_key =
        |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<ClientError>().and_then(ClientError::status) == Some(401);
    let hint = if error.chain().any(wants_key) { "; give this program one with `--key` or as CELLWRIGHT_KEY" } else { "" };
    let _ = writeln!(std::io::stderr(), "error: {}{hint}", sentence(error));
    ExitCode::FAILURE
}

/// An error and its causes, each of which is said once: many errors have their cause in their own words too.
fn sentence(error: &anyhow::Error) -> String {
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
