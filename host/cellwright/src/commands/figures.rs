//! `figures`: the published figures, run again and written down.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use cellwright_simulator::figures::{self, Figure};

use crate::cli::FiguresArguments;
use crate::progress;

pub(crate) fn figures(arguments: &FiguresArguments) -> anyhow::Result<()> {
    let wanted: Vec<&str> = figures::names().filter(|name| asked(&arguments.only, name)).collect();
    if let Some(unknown) = arguments.only.iter().find(|only| !figures::names().any(|name| name.starts_with(only.as_str()))) {
        let known: Vec<_> = figures::names().collect();
        bail!("there is no figure `{unknown}`; there are {}", known.join(", "));
    }
    fs::create_dir_all(&arguments.output).with_context(|| format!("the folder {} cannot be made", arguments.output.display()))?;
    let mut made = Vec::new();
    let bar = progress::counter("runs", None);
    for name in wanted {
        if let Some(figure) = figures::make(name, &mut || bar.inc(1))? {
            write(&arguments.output, &figure)?;
            made.push(figure);
        }
    }
    bar.finish_and_clear();
    // A page of some figures would hide the others.
    if arguments.only.is_empty() {
        save(&arguments.output.join("README.md"), &figures::table(&made))?;
    }
    let off = report(&made)?;
    ensure!(off == 0, "{off} numbers are not where they must be");
    Ok(())
}

fn asked(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|only| name.starts_with(only.as_str()))
}

fn write(folder: &Path, figure: &Figure) -> anyhow::Result<()> {
    let numbers = serde_json::to_string_pretty(figure)? + "\n";
    save(&folder.join(format!("figure-{}.json", figure.name)), &numbers)?;
    for (ending, svg) in &figure.pictures {
        save(&folder.join(format!("figure-{}{ending}.svg", figure.name)), svg)?;
    }
    Ok(())
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
