//! `completions`: a script for the user's shell.

use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

pub(crate) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut for_people(&Cli::command()), "cellwright", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// Without what the host alone calls: the generator offers hidden commands too.
fn for_people(whole: &Command) -> Command {
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("cellwright").version(env!("CARGO_PKG_VERSION")).args(whole.get_arguments().cloned()).subcommands(shown)
}
