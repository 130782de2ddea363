//! `run`: requests from a file through the real engine, answers in the order of the input.

mod answers;
mod session;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write, stderr, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use cellwright_protocol::{InferRequest, RequestFault};
use cellwright_serving::{Delivery, ServedModel, Serving};
use serde_json::json;

use crate::bound_lines::Lines;
use crate::cli::RunArguments;
use crate::host::{self, Setup};
use crate::progress;
use crate::trace::Recorder;

use answers::{Answers, Outcome};

pub(crate) fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let bundle = host::open(&arguments.bundle)?;
    let input = open(&arguments.input)?;
    let recorder = arguments.trace.then(Recorder::default);
    let setup = Setup {
        scheduler: host::scheduler(arguments.policy, arguments.release),
        in_flight_max: arguments.max_in_flight.saturating_mul(2).max(1 << 14),
        trace: recorder.as_ref().map(Recorder::hook),
    };
    let serving = arguments.host.start(setup)?;
    let loading = progress::spinner(format!("loading {}", bundle.name()));
    let model = host::load_bundle(&serving, &bundle)?;
    loading.finish_and_clear();
    let out = BufWriter::new(stdout().lock());
    let mut answers = Answers::new(out, model.name().to_owned());
    let ids = if arguments.session {
        session::run(&serving, &model, Lines::new(input), &mut answers)?
    } else {
        requests(arguments, &serving, &model, Lines::new(input), &mut answers)?
    };
    if let Some(recorder) = recorder {
        recorder.print(&mut BufWriter::new(stderr().lock()), &model, &ids, arguments.json)?;
    }
    summarize(arguments.json, answers.outcome())
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(stdin())));
    }
    let file = File::open(path).with_context(|| format!("the input {} cannot be read", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Every line a request, all in flight at once up to the bound. Gives the ids in the order in which the engine counts requests.
fn requests<R: BufRead, W: Write>(
    arguments: &RunArguments,
    serving: &Serving,
    model: &Arc<ServedModel>,
    mut lines: Lines<R>,
    answers: &mut Answers<W>,
) -> anyhow::Result<Vec<String>> {
    let delivery = if arguments.stream { Delivery::Parts } else { Delivery::Whole };
    let bar = progress::counter("answered", None);
    let mut ids = Vec::new();
    while let Some((number, line)) = lines.next()? {
        while answers.waiting() >= arguments.max_in_flight as usize {
            answers.settle_one()?;
            bar.inc(1);
        }
        let request = match InferRequest::from_json(&line) {
            Ok(request) => request,
            Err(bad) => {
                let hint = if matches!(bad.fault, RequestFault::Json(_)) { "; each line of the input is one request" } else { "" };
                answers.refused(bad.id.clone(), format!("line {number}: {bad}{hint}"));
                continue;
            }
        };
        let id = request.id.clone();
        let rows = rows_of(model, &request);
        match serving.infer(model, request, delivery) {
            Ok(reply) => {
                let shown = id.clone().unwrap_or_else(|| format!("line-{number}"));
                match rows {
                    None => ids.push(shown),
                    Some(rows) => ids.extend((0..rows).map(|row| format!("{shown}[{row}]"))),
                }
                answers.pending(id, reply);
            }
            Err(error) => answers.refused(id, error.to_string()),
        }
    }
    while answers.waiting() > 0 {
        answers.settle_one()?;
        bar.inc(1);
    }
    answers.flush()?;
    bar.finish_and_clear();
    Ok(ids)
}

/// How many requests of the engine's a call is, for models whose rows are requests.
fn rows_of(model: &ServedModel, request: &InferRequest) -> Option<usize> {
    model.description().rows_are_requests.then(|| request.inputs.first().and_then(|input| input.shape.first()).copied().unwrap_or(0))
}

fn summarize(json: bool, outcome: Outcome) -> anyhow::Result<ExitCode> {
    let Outcome { answered, failed } = outcome;
    let total = answered + failed;
    if json {
        writeln!(stderr(), "{}", json!({ "requests": total, "answered": answered, "failed": failed }))?;
    } else if failed > 0 {
        writeln!(stderr(), "error: {failed} of {total} requests failed; each one's line of output says why")?;
    } else if total == 0 {
        writeln!(stderr(), "the input holds no requests")?;
    }
    Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
