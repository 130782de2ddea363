//! `bench unfold`: from the call of a plugin to a checked graph.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use cellwright_bundle::Bundle;
use cellwright_cell_graph::Random;
use cellwright_cell_graph::graph::Growth;
use cellwright_cell_graph::{Tensor, UnfoldedGrowth};
use cellwright_command::host::{self, Setup};
use cellwright_plugin_runtime::{CallError, RequestView};
use cellwright_protocol::InferRequest;
use cellwright_scheduler::Config;
use cellwright_serving::{ServedModel, samples};
use cellwright_simulator::workload::Tree;
use serde_json::json;

use super::figures::Times;
use super::load::ModelKind;
use super::models;
use super::shapes::Shape;
use crate::cli::UnfoldArguments;

const HIDDEN: u32 = 16;

pub(crate) fn unfold(arguments: &UnfoldArguments) -> anyhow::Result<ExitCode> {
    let setup = Setup { scheduler: Config::default(), in_flight_max: 64, ..Setup::default() };
    let serving = arguments.host.start(setup)?;
    let cases = cases(arguments)?;
    if !arguments.json {
        writeln!(stdout(), "{:<24} {:>10} {:>10} {:>10} {:>10}", "", "warm p50", "warm p99", "fresh p50", "fresh p99")?;
    }
    for case in cases {
        let model = host::load_bundle(&serving, &case.bundle)?;
        measure(&model, &case, arguments).with_context(|| format!("{} cannot be unfolded", case.name))?;
    }
    if !arguments.json {
        writeln!(stdout(), "\nwarm: on an instance that has served before; fresh: on a new one, with the time to make and drop it")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A request of a model.
struct Case {
    name: String,
    bundle: Bundle,
    request: InferRequest,
}

fn cases(arguments: &UnfoldArguments) -> anyhow::Result<Vec<Case>> {
    if let Some(folder) = &arguments.bundle {
        let bundle = host::open(folder)?;
        let request = bundle.samples().all.first().context("the bundle has no sample")?.request.clone();
        let name = format!("{}, first sample", bundle.name());
        return Ok(vec![Case { name, bundle, request }]);
    }
    let mut random = Random::new(1);
    let stock = [
        ("chain of 24 steps", ModelKind::Chain, Shape::Sequence(24)),
        ("chain of 330 steps", ModelKind::Chain, Shape::Sequence(330)),
        ("tree of 20 leaves", ModelKind::Tree, Shape::Tree(Tree::balanced(20))),
    ];
    let case = |(name, kind, shape): (&str, ModelKind, Shape)| -> anyhow::Result<Case> {
        let bundle = models::bundle(kind, HIDDEN, &mut random)?;
        Ok(Case { name: name.to_owned(), bundle, request: models::request(&shape, (kind, HIDDEN), &mut random) })
    };
    stock.into_iter().map(case).collect()
}

fn measure(model: &ServedModel, case: &Case, arguments: &UnfoldArguments) -> anyhow::Result<()> {
    let view = Arc::new(samples::view_of_first(model, &case.request)?);
    let tensors: Vec<Arc<Tensor>> = view.tensors.iter().map(|tensor| Arc::clone(&tensor.contents)).collect();
    let timed = |call: &mut dyn FnMut(&Arc<RequestView>) -> Result<Growth, CallError>| -> anyhow::Result<Duration> {
        let start = Instant::now();
        let growth = call(&view)?;
        let graph: UnfoldedGrowth = model.unfolding().grow(growth, 0, &tensors)?;
        let took = start.elapsed();
        drop(std::hint::black_box(graph));
        Ok(took)
    };
    let mut warm = Times::new()?;
    let mut fresh = Times::new()?;
    let few = arguments.calls / 10;
    for call in 0..arguments.calls + few {
        let took = timed(&mut |view| model.plugin().unfold(view))?;
        // The first ones warm caches and the branch predictor up.
        if call >= few {
            warm.record(took);
        }
    }
    for call in 0..few + few / 10 {
        let took = timed(&mut |view| model.plugin().unfold_fresh(view))?;
        if call >= few / 10 {
            fresh.record(took);
        }
    }
    print(&case.name, &warm, &fresh, arguments.json)
}

fn print(name: &str, warm: &Times, fresh: &Times, json: bool) -> anyhow::Result<()> {
    let microseconds = |times: &Times, share: f64| times.quantile(share).as_secs_f64() * 1e6;
    let (w50, w99) = (microseconds(warm, 0.5), microseconds(warm, 0.99));
    let (f50, f99) = (microseconds(fresh, 0.5), microseconds(fresh, 0.99));
    if json {
        let figures = json!({ "case": name, "warm_p50_us": w50, "warm_p99_us": w99, "fresh_p50_us": f50, "fresh_p99_us": f99 });
        writeln!(stdout(), "{figures}")?;
    } else {
        writeln!(stdout(), "{name:<24} {w50:>7.2} µs {w99:>7.2} µs {f50:>7.2} µs {f99:>7.2} µs")?;
    }
    Ok(())
}
