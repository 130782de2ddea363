//! `check`: would a server take this bundle? Loads it with the production loader, runs its samples, says what was found.

mod compare;
mod determinism;
mod report;

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;

use cellwright_bundle::Bundle;
use cellwright_protocol::InferResponse;
use cellwright_scheduler::Config;
use cellwright_serving::{Delivery, InferError, ServedModel, Serving};

use crate::cli::CheckArguments;
use crate::host::{self, Setup};
use crate::progress;

use report::{Report, SampleReport};

/// Requests a server would hold; a bundle has fewer samples.
const IN_FLIGHT_MAX: u32 = 1 << 14;

pub(crate) fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let bundle = host::open(&arguments.bundle)?;
    let setup = Setup { scheduler: Config::default(), in_flight_max: IN_FLIGHT_MAX, trace: None };
    let serving = arguments.host.start(setup)?;
    let spinner = progress::spinner(format!("loading {} and measuring its cells", bundle.name()));
    let model = host::load_bundle(&serving, &bundle)?;
    spinner.set_message(format!("running {} samples", bundle.samples().all.len()));
    let samples = run_samples(&serving, &model, &bundle);
    spinner.finish_and_clear();
    let report = Report { bundle: &bundle, model: &model, serving: &serving, samples };
    let text = if arguments.json { report.to_json().to_string() + "\n" } else { report.to_text() };
    stdout().write_all(text.as_bytes())?;
    Ok(if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All samples, in flight together as they would be.
fn run_samples(serving: &Serving, model: &Arc<ServedModel>, bundle: &Bundle) -> Vec<SampleReport> {
    let samples = &bundle.samples().all;
    let mut reports = Vec::with_capacity(samples.len());
    // As many at once as a host holds, whatever rows each may have.
    for group in samples.chunks(64) {
        let replies: Vec<_> = group.iter().map(|sample| serving.infer(model, sample.request.clone(), Delivery::Whole)).collect();
        for (sample, reply) in group.iter().zip(replies) {
            let answer = reply.and_then(|reply| reply.wait());
            let fault = judge(sample.expected.as_deref(), answer, bundle.samples().tolerance)
                .err()
                .or_else(|| determinism::check(model, &sample.request).err());
            let position = reports.len();
            let name = sample.request.id.clone().unwrap_or_else(|| format!("sample {}", position + 1));
            reports.push(SampleReport { name, compared: sample.expected.is_some(), fault });
        }
    }
    reports
}

fn judge(
    expected: Option<&[cellwright_cell_graph::Tensor]>,
    answer: Result<InferResponse, InferError>,
    tolerance: f64,
) -> Result<(), String> {
    let answer = answer.map_err(|error| format!("it failed: {error}"))?;
    expected.map_or(Ok(()), |expected| compare::outputs(expected, &answer.outputs, tolerance).map_err(|difference| difference.to_string()))
}
