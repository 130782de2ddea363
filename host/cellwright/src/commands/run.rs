//! `run`: requests from a file through the real engine.

mod answers;
mod requests;
mod session;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use cellwright_command::host::{self, Setup};
use cellwright_command::progress;
use cellwright_serving::{Delivery, ServedModel, Serving};
use indicatif::ProgressBar;

use crate::bound_lines::Lines;
use crate::cli::RunArguments;
use crate::commands::outcome::Outcome;
use crate::trace::{Roll, Tracer};
use answers::Answers;
use requests::Desk;

pub(crate) fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let bundle = host::open(&arguments.bundle)?;
    let precision = arguments.precision.unwrap_or(bundle.precision());
    let bundle = bundle.with_precision(precision);
    let input = open(&arguments.input)?;
    let tracer = arguments.trace.then(Tracer::default);
    let setup = Setup {
        scheduler: host::scheduler(arguments.policy, arguments.release),
        in_flight_max: arguments.in_flight_max.saturating_mul(2).max(Setup::default().in_flight_max),
        trace: tracer.as_ref().map(Tracer::hook),
        plugin_address_bytes: Some(host::PLUGIN_ADDRESS_BYTES),
        ..Setup::default()
    };
    let serving = arguments.host.start(setup)?;
    let loading = progress::spinner(format!("loading {}", bundle.name()));
    let model = host::load_bundle(&serving, &bundle)?;
    loading.finish_and_clear();
    let outcome = match &tracer {
        Some(tracer) => tracer.beside(&model, arguments.json, |roll| answer(arguments, serving, &model, input, Some(roll)))?,
        None => answer(arguments, serving, &model, input, None)?,
    };
    Ok(outcome.tell(arguments.json)?)
}

fn answer(
    arguments: &RunArguments,
    serving: Serving,
    model: &Arc<ServedModel>,
    input: Box<dyn BufRead + Send>,
    roll: Option<&Roll>,
) -> anyhow::Result<Outcome> {
    let mut answers = Answers::new(BufWriter::new(stdout().lock()), model.name().to_owned());
    let lines = Lines::new(input);
    if arguments.session {
        session::run(serving, model, lines, &mut answers, arguments.stream, roll)?;
    } else {
        let delivery = if arguments.stream { Delivery::Parts } else { Delivery::Whole };
        // Answers and traces show by themselves how far it has come, and a bar would stand between their lines.
        let lines_are_seen = arguments.trace || stdout().is_terminal();
        let bar = if lines_are_seen { ProgressBar::hidden() } else { progress::counter("answered", None) };
        Desk { serving: &serving, model, delivery, in_flight_max: arguments.in_flight_max as usize, roll }.run(
            lines,
            &mut answers,
            &bar,
        )?;
        bar.finish_and_clear();
    }
    Ok(answers.outcome())
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(stdin())));
    }
    let file = File::open(path).with_context(|| format!("the input {} cannot be read", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}
