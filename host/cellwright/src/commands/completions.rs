//! `completions`: a script for the user's shell.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

pub(crate) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cellwright", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}
