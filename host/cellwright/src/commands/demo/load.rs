//! A few seconds of mixed load on all models at once, under two policies.

use std::time::Duration;

use anyhow::Context;
use cellwright_client::load::{Arrivals, Figures, Plan, Report, Target};
use cellwright_client::{Address, Form, PushOptions, Trust};
use cellwright_command::table::table;
use serde_json::{Value, json};

use super::{Shown, say};
use crate::cli::DemoArguments;
use crate::commands::bench::offer;
use crate::commands::remote::block_on;
use crate::local_server::LocalServer;

const CONNECTIONS: usize = 64;
/// The load as a share of the saturation throughput.
const SHARE: f64 = 0.5;
const WARM_UP: Duration = Duration::from_millis(500);

/// Offers the same load to the server and to one that batches whole graphs, and prints a table.
pub(super) fn compare(server: &LocalServer, models: &[Shown], arguments: &DemoArguments) -> anyhow::Result<Value> {
    let seconds = Duration::from_secs_f64(arguments.seconds);
    say("\nload: requests for all three models, arriving at random (Poisson), at half of the saturation throughput")?;
    let most = run(server, models, Arrivals::Closed, seconds / 2, "finding the saturation throughput")?;
    let rate = most.total.throughput * SHARE;
    let cellular = run(server, models, Arrivals::Poisson(rate), seconds, "cellular batching")?;
    let graph = {
        let data = tempfile::tempdir().context("cannot create a temporary folder for the other server's data")?;
        let other = LocalServer::start((data.path(), data.path()), &arguments.options("graph:10"))?;
        let client = other.client()?;
        for model in models {
            block_on(async { Ok(client.push(model.name, &model.folder, PushOptions::default(), |_| {}).await?) })?;
        }
        run(&other, models, Arrivals::Poisson(rate), seconds, "whole-graph batching")?
    };
    let rows: Vec<Vec<String>> =
        models.iter().enumerate().flat_map(|(number, _)| [row(&cellular, number, "cellular"), row(&graph, number, "graph")]).collect();
    let head = ["model", "policy", "requests/s", "p50 ms", "p90 ms", "p99 ms", ""];
    for line in table(&head, &rows).lines() {
        say(&format!("  {line}"))?;
    }
    say(&format!(
        "  {rate:.0} requests/s were offered. `graph` batches whole requests: it pads sequences to buckets of 10 steps. It cannot pad trees, so it\n  \
         batches only equal shapes of listops. `cellular` pads nothing, and requests join a batch at every cell."
    ))?;
    Ok(json!({ "offered": rate, "cellular": cellular, "graph": graph }))
}

fn run(server: &LocalServer, models: &[Shown], arrivals: Arrivals, measured: Duration, what: &'static str) -> anyhow::Result<Report> {
    let address = Address::parse(server.url())?;
    let target = |model: &Shown| {
        let requests = model.samples.iter().map(|sample| sample.request.clone());
        Target::infer(&address, None, model.name, requests, Form::Binary)
    };
    let targets = models.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let trust = Trust::System;
    let plan = Plan {
        address: address.clone(),
        trust,
        targets,
        arrivals,
        connections: CONNECTIONS,
        threads: 1,
        warm_up: WARM_UP,
        measured,
        seed: 1,
    };
    offer(&plan, what)
}

fn row(report: &Report, number: usize, policy: &str) -> Vec<String> {
    let Some(figures) = report.targets.get(number) else { return Vec::new() };
    let Figures { name, throughput, latency, sent, ok, .. } = figures;
    let ms = |us: f64| if us.is_nan() { "-".to_owned() } else { format!("{:.2}", us / 1e3) };
    let note = match (sent - ok, report.kept_up) {
        (0, true) => String::new(),
        (0, false) => "did not keep up".to_owned(),
        (failed, _) => format!("{failed} failed"),
    };
    vec![name.clone(), policy.to_owned(), format!("{throughput:.0}"), ms(latency.p50_us), ms(latency.p90_us), ms(latency.p99_us), note]
}
