//! `bench serve`: requests over HTTP, arriving by the clock, and what becomes of them.

mod plot;

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cellwright_bundle::Bundle;
use cellwright_client::load::{self, Arrivals, Plan, Report, Target};
use cellwright_client::{Address, Client, ClientOptions, Form, PushOptions};
use cellwright_protocol::InferRequest;
use serde_json::json;

use crate::cli::{ServeBenchArguments, SweepRate};
use crate::commands::remote::{block_on, connect, table, trust};
use crate::local_server::LocalServer;
use crate::progress;

/// Steps of a sweep, as shares of what the server can take at most.
const SWEEP: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
const WARM_UP_SHARE: f64 = 0.2;

/// A model to be asked.
struct Asked {
    name: String,
    requests: Vec<InferRequest>,
}

/// One rate of a run and what became of it.
struct Point {
    /// Requests offered per second; none: as many as were answered.
    rate: Option<f64>,
    report: Report,
}

pub(crate) fn serve(arguments: &ServeBenchArguments) -> anyhow::Result<()> {
    let data = tempfile::tempdir().context("a temporary folder for the server's data")?;
    let local = match &arguments.server {
        Some(_) => None,
        None => Some(LocalServer::start(data.path(), &arguments.options())?),
    };
    let url = local.as_ref().map(|server| server.url().to_owned()).or_else(|| arguments.server.clone()).unwrap_or_default();
    let options = ClientOptions { key: arguments.key.clone(), trust: trust(arguments.ca.as_deref()), ..ClientOptions::default() };
    let client = connect(&url, &options)?;
    let mut asked = Vec::new();
    for folder in &arguments.bundles {
        asked.push(push(&client, folder, arguments.requests.as_deref())?);
    }
    if let Some(server) = &local {
        writeln!(stderr(), "a server on this machine, ready after {} ms; it and the load share the cores", server.ready_after.as_millis())?;
    }
    let bench = Bench { arguments, address: Address::parse(&url)?, asked: &asked };
    let points = bench.points()?;
    bench.print(&points)?;
    if let Some(file) = &arguments.plot {
        plot::draw(file, &points).with_context(|| format!("the plot {} cannot be drawn", file.display()))?;
    }
    match points.iter().find_map(|point| point.report.total.first_fault.as_ref()) {
        None => Ok(()),
        Some(fault) => bail!("some requests failed, the first because {fault}"),
    }
}

/// Uploads a bundle and gives what will be asked of it.
fn push(client: &Client, folder: &Path, requests: Option<&Path>) -> anyhow::Result<Asked> {
    let bundle = Bundle::open(folder).with_context(|| format!("the bundle {} cannot be used", folder.display()))?;
    let name = bundle.name().to_owned();
    let bar = progress::spinner(format!("uploading {name}"));
    block_on(async { Ok(client.push(&name, folder, PushOptions::default(), |_| {}).await?) })?;
    bar.finish_and_clear();
    let requests = match requests {
        None => bundle.samples().all.iter().map(|sample| sample.request.clone()).collect(),
        Some(file) => read(file).with_context(|| format!("the requests in {} cannot be used", file.display()))?,
    };
    Ok(Asked { name, requests })
}

fn read(file: &Path) -> anyhow::Result<Vec<InferRequest>> {
    let text = std::fs::read_to_string(file)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let requests = lines.map(|(number, line)| InferRequest::from_json(line.as_bytes()).with_context(|| format!("line {}", number + 1)));
    requests.collect()
}

struct Bench<'a> {
    arguments: &'a ServeBenchArguments,
    address: Address,
    asked: &'a [Asked],
}

impl Bench<'_> {
    fn points(&self) -> anyhow::Result<Vec<Point>> {
        let mut points = Vec::new();
        for rate in &self.arguments.rate {
            match rate {
                SweepRate::PerSecond(rate) => points.push(self.point(Some(*rate))?),
                SweepRate::Max => points.push(self.point(None)?),
                SweepRate::Sweep => {
                    let most = self.point(None)?.report.total.throughput;
                    for share in SWEEP {
                        points.push(self.point(Some(most * share))?);
                    }
                }
            }
        }
        Ok(points)
    }

    fn point(&self, rate: Option<f64>) -> anyhow::Result<Point> {
        let measured = Duration::from_secs_f64(self.arguments.duration);
        let form = if self.arguments.json_tensors { Form::Json } else { Form::Binary };
        let key = self.arguments.key.as_deref();
        let target = |asked: &Asked| Target::infer(&self.address, key, asked.name.as_str(), asked.requests.iter().cloned(), form);
        let plan = Plan {
            address: self.address.clone(),
            trust: trust(self.arguments.ca.as_deref()),
            targets: self.asked.iter().map(target).collect::<Result<_, _>>()?,
            arrivals: rate.map_or(Arrivals::Closed, Arrivals::Poisson),
            connections: self.arguments.connections,
            threads: self.arguments.threads,
            warm_up: measured.mul_f64(WARM_UP_SHARE),
            measured,
            seed: self.arguments.seed,
        };
        let bar = progress::clock("offering load", plan.warm_up + plan.measured);
        let started = Instant::now();
        let report = thread::scope(|scope| {
            let running = scope.spawn(|| load::run(&plan));
            while !running.is_finished() {
                bar.set_position(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
                thread::sleep(Duration::from_millis(50));
            }
            running.join()
        });
        bar.finish_and_clear();
        let report = report.map_err(|_| anyhow::anyhow!("the load generator failed"))??;
        Ok(Point { rate, report })
    }

    fn print(&self, points: &[Point]) -> anyhow::Result<()> {
        let mut out = stdout();
        if self.arguments.json {
            for point in points {
                writeln!(out, "{}", json!({ "rate": point.rate, "connections": self.arguments.connections, "report": point.report }))?;
            }
            return Ok(());
        }
        let rows: Vec<Vec<String>> = points.iter().flat_map(rows).collect();
        let head = ["offered/s", "model", "answered/s", "p50 us", "p90 us", "p99 us", "p99.9 us", ""];
        out.write_all(table(&head, &rows).as_bytes())?;
        Ok(())
    }
}

/// A row for each model, and one for all if there are several.
fn rows(point: &Point) -> Vec<Vec<String>> {
    let targets = &point.report.targets;
    let all = (targets.len() > 1).then_some(&point.report.total);
    let row = |figures: &load::Figures| {
        let offered = point.rate.map_or_else(|| "max".to_owned(), |rate| format!("{rate:.0}"));
        let latency = &figures.latency;
        let us = |value: f64| format!("{value:.0}");
        let mut notes = Vec::new();
        if figures.sent > figures.ok {
            notes.push(format!("{} failed", figures.sent - figures.ok));
        }
        if point.rate.is_some() && !point.report.kept_up {
            notes.push("did not keep up".to_owned());
        }
        let [p50, p90, p99, p999] = [latency.p50_us, latency.p90_us, latency.p99_us, latency.p999_us].map(us);
        vec![offered, figures.name.clone(), format!("{:.0}", figures.throughput), p50, p90, p99, p999, notes.join(", ")]
    };
    targets.iter().chain(all).map(row).collect()
}
