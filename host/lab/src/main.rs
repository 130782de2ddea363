//! The `cellwright-lab` command: the laboratory beside the server.
//!
//! It runs the scheduler in virtual time, repeats recordings of a server, runs the published figures
//! again, and measures single parts of the program. This crate owns arguments, output and the load of
//! its benchmarks. A server never needs it.

#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

mod allocations;
mod cli;
mod commands;

use std::process::ExitCode;

use cellwright_command::{logs, process};
use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command};

/// The allocator of the server, and a count of what each thread allocates: `bench scheduler` reports it.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    process::forget_empty_settings();
    process::survive_full_files();
    process::exit_code(run(Cli::parse()), |_| None)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    logs::start(&cli.log)?;
    match cli.command {
        Command::Simulate(arguments) => commands::simulate::simulate(&arguments)?,
        Command::Calibrate(arguments) => commands::calibrate::calibrate(&arguments)?,
        Command::Replay(arguments) => commands::replay::replay(&arguments)?,
        Command::Figures(arguments) => commands::figures::figures(&arguments)?,
        Command::Bench { bench } => return commands::bench::bench(&bench),
        Command::Completions { shell } => return process::completions(shell, "cellwright-lab", &Cli::command()),
        Command::CompilePlugin => return Ok(cellwright_plugin_runtime::compile_worker_main()),
    }
    Ok(ExitCode::SUCCESS)
}
