//! The `cellwright` command: reads the command line, wires the parts together, says what happened.
//!
//! This crate owns the verbs, the settings of the server and its traces. It holds no logic of serving:
//! any other front end can do the same through the same crates.

mod bound_lines;
mod cli;
mod commands;
mod local_server;
mod telemetry;
mod trace;

use std::process::ExitCode;

use cellwright_client::ClientError;
use cellwright_command::{logs, process};
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use cli::{Bench, Cli, Command};
use commands::serve::Settings;

/// One thread allocates the parts of a request and another frees them. The system's allocator spends
/// more time on that than a small request takes otherwise: with this one,
/// `cellwright-lab bench engine --hidden 16 --lengths fixed:1 --rate max` answers about twice as many.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    process::forget_empty_settings();
    process::survive_full_files();
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    process::exit_code(run(cli, &matches), hint)
}

fn run(cli: Cli, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let matches = matches.subcommand().map_or(matches, |(_, matches)| matches);
    // A server says by itself how it logs.
    if let Command::Serve(arguments) = &cli.command {
        return commands::serve::serve(&Settings::new(arguments, matches)?, arguments, &cli.log);
    }
    logs::start(&cli.log)?;
    match cli.command {
        Command::Serve(_) => unreachable!("it has returned"),
        Command::Demo(arguments) => commands::demo::demo(&arguments),
        Command::Push(arguments) => commands::push::push(&arguments),
        Command::Models(arguments) => commands::models::models(&arguments),
        Command::Logs(arguments) => commands::logs::logs(&arguments),
        Command::Infer(arguments) => commands::infer::infer(&arguments),
        Command::Keys(arguments) => commands::admin::keys(&arguments, matches),
        Command::Tenants(arguments) => commands::admin::tenants(&arguments, matches),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Check(arguments) => commands::check::check(&arguments),
        Command::Bench { bench: Bench::Serve(arguments) } => commands::bench::serve(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => process::completions(shell, "cellwright", &Cli::command()),
        Command::CompilePlugin => Ok(cellwright_plugin_runtime::compile_worker_main()),
    }
}

/// A remedy for an error that a key prevents.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let wants_key =
        |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<ClientError>().and_then(ClientError::status) == Some(401);
    error.chain().any(wants_key).then_some("pass one with `--key` or CELLWRIGHT_KEY")
}
