//! `check`: would a server take this bundle? Loads it with the production loader, runs its samples, says what was found.

mod report;

use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use cellwright_client::Extent;
use cellwright_command::host::{self, Setup};
use cellwright_command::progress;
use cellwright_plugin_runtime::Export;
use cellwright_serving::samples;

use crate::cli::CheckArguments;
use report::Report;

/// Notes that are printed.
const NOTES_MAX: usize = 1000;

/// What the plugin noted in calls that succeeded, each note once.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn hear(export: Export, note: &str) {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    let note = format!("{export}: {note}");
    if notes.len() < NOTES_MAX && !notes.contains(&note) {
        notes.push(note);
    }
}

pub(crate) fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let bundle = host::open(&arguments.bundle)?;
    could_be_sent(&arguments.bundle)?;
    let plugin_address_bytes = Some(host::PLUGIN_ADDRESS_BYTES);
    let on_note = arguments.notes.then_some(hear as fn(Export, &str));
    let serving = arguments.host.start(Setup { recalibrate: arguments.recalibrate, plugin_address_bytes, on_note, ..Setup::default() })?;
    let spinner = progress::spinner(format!("loading {} and measuring its cells", bundle.name()));
    let model = host::load_bundle(&serving, &bundle)?;
    spinner.set_message(format!("running {} samples", bundle.samples().all.len()));
    let samples = samples::run(&serving, &model, &bundle, &samples::SampleBounds::default());
    // Beside what a server would hold, its twins at other precisions need no room.
    serving.unload(&model);
    spinner.set_message("running them at every precision");
    let precisions = samples::precisions(&serving, &bundle, host::TENANT, &samples::SampleBounds::default());
    spinner.finish_and_clear();
    let notes = std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner));
    let report = Report { bundle: &bundle, model: &model, serving: &serving, samples, precisions, notes };
    let text = if arguments.json { report.to_json().to_string() + "\n" } else { report.to_text() };
    stdout().write_all(text.as_bytes())?;
    Ok(if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An upload is the whole folder, with files that the bundle does not need, so all of it must fit.
fn could_be_sent(folder: &Path) -> anyhow::Result<()> {
    Extent::of(folder).context("this bundle cannot be uploaded").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_printed_once_and_notes_are_bounded() {
        (0..4 * NOTES_MAX).for_each(|number| hear(Export::Unfold, &(number / 2).to_string()));
        let notes = NOTES.lock().unwrap();
        assert_eq!((notes.len(), notes[1].as_str()), (NOTES_MAX, "unfold: 1"));
    }
}
