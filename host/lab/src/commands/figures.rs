//! `figures`: the published figures, run again and written down.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, ensure};
use cellwright_command::process::Usage;
use cellwright_command::progress;
use cellwright_simulator::figures::{self, Figure};

use crate::cli::FiguresArguments;

pub(crate) fn figures(arguments: &FiguresArguments) -> anyhow::Result<()> {
    let wanted: Vec<&str> = figures::names().filter(|name| asked(&arguments.only, name)).collect();
    if let Some(unknown) = arguments.only.iter().find(|only| !figures::names().any(|name| name.starts_with(only.as_str()))) {
        let known: Vec<_> = figures::names().collect();
        return Err(Usage(format!("there is no figure `{unknown}`; the figures are {}", known.join(", "))).into());
    }
    fs::create_dir_all(&arguments.output).with_context(|| format!("cannot create the folder {}", arguments.output.display()))?;
    let mut made = Vec::new();
    let bar = progress::counter("runs", None);
    for name in wanted {
        if let Some(figure) = figures::make(name, &mut || bar.inc(1))? {
            for (name, text) in figure.files() {
                save(&arguments.output.join(name), &text)?;
            }
            made.push(figure);
        }
    }
    bar.finish_and_clear();
    // A page of some figures would hide the others.
    if arguments.only.is_empty() {
        save(&arguments.output.join("README.md"), &figures::table(&made))?;
    }
    let off = report(&made)?;
    ensure!(off == 0, "{off} numbers are outside their bounds, marked by `!`");
    Ok(())
}

fn asked(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|only| name.starts_with(only.as_str()))
}

fn save(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}

/// Prints every comparison; how many do not hold.
fn report(made: &[Figure]) -> anyhow::Result<usize> {
    let mut off = 0;
    for figure in made {
        writeln!(stdout(), "{} ({})", figure.title, figure.source)?;
        for compared in &figure.compared {
            let holds = compared.holds();
            off += usize::from(!holds);
            let mark = if holds { ' ' } else { '!' };
            writeln!(
                stdout(),
                "{mark} {:64} published {:24} here {:.2} {}",
                compared.what,
                compared.published,
                compared.ours,
                compared.unit
            )?;
        }
    }
    Ok(off)
}
