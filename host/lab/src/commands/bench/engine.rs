//! `bench engine`: throughput and latency of the engine in this process, under load that does not wait for it, and how much of the workers' time the same
//! batches take by themselves.

mod alone;

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cellwright_bundle::Bundle;
use cellwright_cell_graph::{CellLimits, Model, Random, ResolveContext, Tensor};
use cellwright_command::host::{self, Setup};
use cellwright_command::policy::PolicySpec;
use cellwright_command::progress;
use cellwright_engine::RequestTensors;
use cellwright_protocol::InferRequest;
use cellwright_serving::{ServedModel, Serving, samples};
use serde_json::json;

use super::generator::{self, Arrivals, Prepared, Seen, Work};
use super::load::Rate;
use super::models;
use super::shapes::{self, Drawn};
use crate::cli::{EngineArguments, UnfoldMode};

/// The engine holds a request a moment longer than its client does.
const SLACK: u32 = 1024;

pub(crate) fn engine(arguments: &EngineArguments) -> anyhow::Result<ExitCode> {
    let mut random = Random::new(arguments.seed);
    let drawn = shapes::draw(&arguments.lengths, arguments.model, &mut random)?;
    let bundle = models::bundle(arguments.model, arguments.hidden, &mut random)?.with_precision(arguments.precision);
    let kind = (arguments.model, arguments.hidden);
    let requests: Vec<InferRequest> = drawn.distinct.iter().map(|shape| models::request(shape, kind, &mut random)).collect();
    let bench = Bench { arguments, bundle, drawn, requests };
    let mut rate = match arguments.rate {
        Rate::PerSecond(rate) => Some(rate),
        Rate::Max | Rate::Half => None,
    };
    for (number, policy) in arguments.policy.iter().enumerate() {
        let host = bench.start(*policy)?;
        if number == 0 {
            bench.print_head()?;
        }
        if rate.is_none() {
            let seen = bench.run(&host, None)?;
            bench.print(*policy, None, &seen)?;
            if arguments.rate == Rate::Max {
                continue;
            }
            rate = Some(seen.0.throughput / 2.0);
        }
        let seen = bench.run(&host, rate)?;
        bench.print(*policy, rate, &seen)?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench<'a> {
    arguments: &'a EngineArguments,
    bundle: Bundle,
    drawn: Drawn,
    requests: Vec<InferRequest>,
}

/// An engine under one policy, and the requests ready for it.
struct Host {
    serving: Serving,
    model: Arc<ServedModel>,
    work: Work,
}

impl Bench<'_> {
    fn start(&self, policy: PolicySpec) -> anyhow::Result<Host> {
        let in_flight_max = self.arguments.in_flight_max + SLACK;
        let scheduler = host::scheduler(policy, self.arguments.release);
        let serving = self.arguments.host.start(Setup { scheduler, in_flight_max, ..Setup::default() })?;
        let spinner = progress::spinner(format!("loading the model under {policy}"));
        let model = host::load_bundle(&serving, &self.bundle)?;
        spinner.finish_and_clear();
        let prepare = |request: &InferRequest| match self.arguments.unfold {
            UnfoldMode::PerRequest => Ok(Prepared::Request(request.clone())),
            UnfoldMode::Prepared => prepare(&model, request),
        };
        let requests = self.requests.iter().map(prepare).collect::<anyhow::Result<Vec<_>>>()?;
        let work = Work { requests, order: self.drawn.order.clone() };
        Ok(Host { serving, model, work })
    }

    /// What was seen, and which share of all workers' time the same batches take by themselves, if that can be measured.
    fn run(&self, host: &Host, rate: Option<f64>) -> anyhow::Result<(Seen, Option<f64>)> {
        let measured = Duration::from_secs_f64(self.arguments.seconds);
        let in_flight_max = self.arguments.in_flight_max as usize;
        let arrivals = Arrivals { rate, in_flight_max, warm_up: measured / 5, measured };
        let spinner =
            progress::spinner(rate.map_or("finding the saturation throughput".to_owned(), |rate| format!("offering {rate:.0} requests/s")));
        let seen = generator::run(&host.serving, &host.model, &host.work, arrivals, &mut Random::new(self.arguments.seed))?;
        spinner.set_message("running the same batches by themselves");
        // The engine keeps no bodies of cells.
        let description = host.model.description();
        let (weights, precision, limits) = (self.bundle.weights(description)?, self.arguments.precision, CellLimits::default());
        let context = ResolveContext { weights: &weights, precision, tenant: "bench", limits, may_copy: &|_| true };
        let model = Model::resolve(description.clone(), &context)?;
        let of_cells = alone::share(&self.arguments.host.workers, model.cells.iter().zip(&seen.steps), self.arguments.seed)?;
        spinner.finish_and_clear();
        Ok((seen, of_cells))
    }

    fn print_head(&self) -> anyhow::Result<()> {
        if !self.arguments.json {
            let columns = ["policy", "offered/s", "answered/s", "p50 ms", "p90 ms", "p99 ms", "batch", "busy", "of cells"];
            let [policy, offered, answered, p50, p90, p99, batch, busy, of_cells] = columns;
            writeln!(
                stdout(),
                "{policy:<10} {offered:>12} {answered:>12} {p50:>10} {p90:>10} {p99:>10} {batch:>8} {busy:>6} {of_cells:>9}"
            )?;
        }
        Ok(())
    }

    fn print(&self, policy: PolicySpec, rate: Option<f64>, (seen, of_cells): &(Seen, Option<f64>)) -> anyhow::Result<()> {
        let milliseconds = |share: f64| seen.latencies.quantile(share).as_secs_f64() * 1e3;
        let (p50, p90, p99) = (milliseconds(0.5), milliseconds(0.9), milliseconds(0.99));
        let Seen { throughput, batch_mean, busy, kept_up, .. } = seen;
        if self.arguments.json {
            let figures = json!({
                "policy": policy.to_string(), "offered_per_s": rate, "answered_per_s": throughput, "p50_ms": p50, "p90_ms": p90, "p99_ms": p99,
                "requests": seen.latencies.count(), "batch_mean": batch_mean, "busy": busy, "of_cells": of_cells, "kept_up": kept_up,
            });
            writeln!(stdout(), "{figures}")?;
            return Ok(());
        }
        let offered = rate.map_or("max".to_owned(), |rate| format!("{rate:.1}"));
        let policy = policy.to_string();
        let of_cells = of_cells.map_or("-".to_owned(), |share| format!("{share:.2}"));
        write!(
            stdout(),
            "{policy:<10} {offered:>12} {throughput:>12.1} {p50:>10.3} {p90:>10.3} {p99:>10.3} {batch_mean:>8.1} {busy:>6.2} {of_cells:>9}"
        )?;
        writeln!(stdout(), "{}", if *kept_up { "" } else { "  did not keep up" })?;
        Ok(())
    }
}

/// Unfolds a request once, for all that will be like it.
fn prepare(model: &ServedModel, request: &InferRequest) -> anyhow::Result<Prepared> {
    let view = Arc::new(samples::view(model, request.clone()));
    let tensors: Vec<Arc<Tensor>> = view.tensors.iter().map(|tensor| Arc::clone(&tensor.contents)).collect();
    let growth = model.plugin().unfold(&view).context("cannot unfold a request of this benchmark")?;
    let growth = model.unfolding().grow(growth, 0, &tensors)?;
    Ok(Prepared::Graph(Arc::new(growth), RequestTensors { first: 0, tensors }))
}
