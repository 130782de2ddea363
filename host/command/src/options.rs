//! Options that both programs have, and how their values are read.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cellwright_scheduler::PolicyKind;
use clap::{Args, ValueEnum};

use crate::worker::WorkerSpec;

/// The display order of options that several verbs share: behind a verb's own, before `--help`.
pub const BEHIND_ITS_OWN: usize = 800;
/// The forms of a worker, for help texts.
pub const WORKER_FORMS: &str = "`cpu`, `cuda:N` (one GPU), `cuda:all` (every GPU) or `auto` (every GPU, or the CPU if there is none). Settings follow a colon or a comma: `cpu:threads=2,node=0`, `cuda:0,tf32=true`. `cpu` has `threads=N` (1 to 256), `node=N` (cores and memory of that NUMA node), `table_mib=N` (MiB of tables by token; 0: none) and `amx=true` (multiplies 32-bit floats by AMX). `cuda` has `tf32=true` (multiplies 32-bit floats in tf32) and `debug=true` (checks memory after every task; slow)";
/// The default workers, for help texts.
pub const WORKERS_DEFAULT: &str =
    "[default: for each core a worker of one thread, at most 8 per NUMA node; workers lend each other idle threads]";
/// The policies, for help texts.
#[must_use]
pub fn policies() -> String {
    format!("Batching policy: {}", PolicyKind::list("or"))
}

/// Options of every verb that runs models in its own process.
#[derive(Clone, Debug, Args)]
pub struct HostArguments {
    /// The workers; none: the default ones.
    #[arg(long = "worker", value_name = "SPEC", help = format!("A worker: {WORKER_FORMS}. May be given several times {WORKERS_DEFAULT}"))]
    pub workers: Vec<WorkerSpec>,
    /// Folder for compiled plugins and measured batch sizes; `none` stores nothing [default: the user's cache folder]
    #[arg(long, env = "CELLWRIGHT_CACHE", value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
}

/// When the scheduler may queue a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReleaseRule {
    /// When its inputs are complete, or queued ahead on the same worker
    Node,
    /// When all inputs from outside its subgraph are complete, as in BatchMaker
    Subgraph,
}

impl fmt::Display for ReleaseRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Subgraph => "subgraph",
        })
    }
}

impl FromStr for ReleaseRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("`{text}` is not a release rule; the rules are `node` and `subgraph`"))
    }
}

/// The name of a file that is written at the end of a run. It is checked at the start, so that a
/// long run does not end in vain.
///
/// # Errors
/// If it is a folder, or its folder does not exist.
pub fn file_to_write(text: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(text);
    if text.is_empty() || file.is_dir() {
        return Err("give the name of a file; this is a folder or empty".to_owned());
    }
    match file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(format!("there is no folder {}", folder.display())),
        None => Ok(file),
    }
}

/// A count from 1.
///
/// # Errors
/// If the text is not one.
pub fn one_or_more(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("`{text}` is not a whole number of at least 1")),
    }
}

/// Seconds from 0.1 to 3,600.
///
/// # Errors
/// If the text is not such a number.
pub fn a_tenth_to_an_hour(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// Seconds above 0, at most 604,800.
///
/// # Errors
/// If the text is not such a number.
pub fn at_most_a_week(text: &str) -> Result<f64, String> {
    seconds(text, 604_800.0)
}

/// Seconds above 0, at most 3,600.
///
/// # Errors
/// If the text is not such a number.
pub fn at_most_an_hour(text: &str) -> Result<f64, String> {
    seconds(text, 3600.0)
}

fn seconds(text: &str, most: f64) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("\"{text}\" is not a number of seconds"))?;
    if seconds > 0.0 && seconds <= most {
        Ok(seconds)
    } else {
        Err(format!("{text} is out of range: give seconds above 0, at most {most}"))
    }
}

/// For tests of the programs: help texts leave it to the terminal to break their paragraphs.
///
/// # Panics
/// If a help text has a paragraph of several lines.
#[doc(hidden)]
pub fn check_help(command: &clap::Command) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = help.lines().collect();
    for [line, next] in lines.array_windows() {
        let goes_on = !line.is_empty() && !line.starts_with(' ') && !next.is_empty() && !next.starts_with(' ');
        assert!(!goes_on, "`{}` has a paragraph of several lines, which terminals break again:\n{line}\n{next}", command.get_name());
    }
    command.get_subcommands().for_each(check_help);
}
