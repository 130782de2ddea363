//! `check`: would a server take this bundle? Loads it with the production loader, runs its samples, says what was found.

mod report;

use std::io::{Write, stdout};
use std::process::ExitCode;

use cellwright_scheduler::Config;
use cellwright_serving::samples;

use crate::cli::CheckArguments;
use crate::host::{self, Setup};
use crate::progress;

use report::Report;

/// Requests a server would hold; a bundle has fewer samples.
const IN_FLIGHT_MAX: u32 = 1 << 14;

pub(crate) fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let bundle = host::open(&arguments.bundle)?;
    let setup = Setup {
        scheduler: Config::default(),
        in_flight_max: IN_FLIGHT_MAX,
        trace: None,
        observer: None,
        recalibrate: arguments.recalibrate,
    };
    let serving = arguments.host.start(setup)?;
    let spinner = progress::spinner(format!("loading {} and measuring its cells", bundle.name()));
    let model = host::load_bundle(&serving, &bundle)?;
    spinner.set_message(format!("running {} samples", bundle.samples().all.len()));
    let samples = samples::run(&serving, &model, &bundle, &samples::SampleBounds::default());
    // Beside what a server would hold, its twins at other precisions need no room.
    serving.unload(&model);
    spinner.set_message("running them at every precision");
    let precisions = samples::precisions(&serving, &bundle, host::TENANT, &samples::SampleBounds::default());
    spinner.finish_and_clear();
    let report = Report { bundle: &bundle, model: &model, serving: &serving, samples, precisions };
    let text = if arguments.json { report.to_json().to_string() + "\n" } else { report.to_text() };
    stdout().write_all(text.as_bytes())?;
    Ok(if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
