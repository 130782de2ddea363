//! `bench serve`: requests over HTTP, arriving by the clock, and what becomes of them.

mod plot;

use std::fs;
use std::io::{Write, stderr, stdout};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cellwright_client::load::{self, Arrivals, Plan, Report, Target};
use cellwright_client::{Address, ClientOptions, Form, PushOptions};
use cellwright_command::policy::PolicySpec;
use cellwright_command::process::ensure_usage;
use cellwright_command::requests::ModelRequests;
use cellwright_command::table::table;
use cellwright_command::{host, progress};
use serde_json::json;

use crate::cli::{ServeBenchArguments, SweepRate};
use crate::commands::remote::{block_on, connect, trust};
use crate::local_server::LocalServer;

/// Steps of a sweep, as shares of the saturation throughput.
const SWEEP: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
const WARM_UP_SHARE: f64 = 0.2;

/// A server that the benchmark measures.
struct Contender {
    /// None for a server that the benchmark did not start.
    policy: Option<String>,
    url: String,
    address: Address,
    local: Option<LocalServer>,
}

/// One rate of a run and its result.
struct Point {
    policy: Option<String>,
    /// Requests offered per second; none for `max`.
    rate: Option<f64>,
    report: Report,
}

pub(crate) fn serve(arguments: &ServeBenchArguments) -> anyhow::Result<()> {
    let asked = arguments
        .bundles
        .iter()
        .map(|folder| ModelRequests::of(&host::open(folder)?, arguments.input.as_deref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let drawn = arguments.plot.is_none() || arguments.rate.iter().any(|rate| *rate != SweepRate::Max);
    ensure_usage(drawn, || "--plot cannot draw `--rate max` alone: give several rates, or `--rate sweep`".to_owned())?;
    let folder = tempfile::tempdir().context("cannot create a temporary folder for the servers' data")?;
    let contenders = contenders(arguments, folder.path())?;
    for contender in &contenders {
        contender.prepare(arguments, &asked)?;
    }
    let bench = Bench { arguments, contenders: &contenders, asked: &asked };
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

/// The server that was named, or one of each policy, with data in that folder.
fn contenders(arguments: &ServeBenchArguments, folder: &Path) -> anyhow::Result<Vec<Contender>> {
    if let Some(url) = &arguments.server {
        return Ok(vec![Contender { policy: None, url: url.clone(), address: Address::parse(url)?, local: None }]);
    }
    let start = |(number, policy): (usize, &PolicySpec)| {
        let data = folder.join(number.to_string());
        // What the first measures of its cells holds for all: a comparison of policies with different batch limits would be one of limits.
        let cache = folder.join("cache");
        fs::create_dir_all(&data)
            .and_then(|()| fs::create_dir_all(&cache))
            .and_then(|()| symlink(&cache, data.join("cache")))
            .context("cannot create the folders for the servers' data")?;
        let local = LocalServer::start((folder, &data), &arguments.options(*policy))?;
        let (policy, url) = (Some(policy.to_string()), local.url().to_owned());
        Ok(Contender { policy, address: Address::parse(&url)?, url, local: Some(local) })
    };
    arguments.policy.iter().enumerate().map(start).collect()
}

impl Contender {
    /// Uploads what it will be asked for.
    fn prepare(&self, arguments: &ServeBenchArguments, asked: &[ModelRequests]) -> anyhow::Result<()> {
        let options = ClientOptions { key: arguments.key.clone(), trust: trust(arguments.ca.as_deref()), ..ClientOptions::default() };
        let client = connect(&self.url, &options)?;
        for (folder, ModelRequests { name, .. }) in arguments.bundles.iter().zip(asked) {
            let bar = progress::spinner(format!("uploading {name}"));
            block_on(async { Ok(client.push(name, folder, PushOptions::default(), |_| {}).await?) })?;
            bar.finish_and_clear();
        }
        if let Some(server) = &self.local {
            let ready = server.ready_after.as_millis();
            writeln!(stderr(), "started a server on this machine, ready after {ready} ms; it shares the cores with the load")?;
        }
        Ok(())
    }
}

/// Offers a load, and shows how far that is.
pub(crate) fn offer(plan: &Plan, what: &'static str) -> anyhow::Result<Report> {
    let bar = progress::clock(what, plan.warm_up + plan.measured);
    let started = Instant::now();
    let report = thread::scope(|scope| {
        let running = scope.spawn(|| load::run(plan));
        while !running.is_finished() {
            bar.set_position(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
            thread::sleep(Duration::from_millis(50));
        }
        running.join()
    });
    bar.finish_and_clear();
    Ok(report.map_err(|_| anyhow::anyhow!("the load generator failed"))??)
}

struct Bench<'a> {
    arguments: &'a ServeBenchArguments,
    contenders: &'a [Contender],
    asked: &'a [ModelRequests],
}

impl Bench<'_> {
    /// Every rate, offered to one server after the other. Each has arrivals of its own: a rate that is measured twice would otherwise be measured twice
    /// in the same bursts, and what is seen be a matter of these.
    fn points(&self) -> anyhow::Result<Vec<Point>> {
        let mut points = Vec::new();
        let mut seeds = (0..).map(|number| self.arguments.seed.wrapping_add(number));
        let mut turn = |rate: &dyn Fn(usize) -> Option<f64>| self.turn(rate, seeds.next().unwrap_or_default());
        for rate in &self.arguments.rate {
            match rate {
                SweepRate::PerSecond(rate) => points.extend(turn(&|_| Some(*rate))?),
                SweepRate::Max => points.extend(turn(&|_| None)?),
                SweepRate::Sweep => {
                    let most: Vec<f64> = turn(&|_| None)?.iter().map(|point| point.report.total.throughput).collect();
                    for share in SWEEP {
                        points.extend(turn(&|number| Some(most[number] * share))?);
                    }
                }
            }
        }
        Ok(points)
    }

    /// Offers each server a rate, in the same arrivals.
    fn turn(&self, rate: &dyn Fn(usize) -> Option<f64>, seed: u64) -> anyhow::Result<Vec<Point>> {
        let turns = self.contenders.iter().enumerate();
        turns
            .map(|(number, contender)| {
                let point = self.point(contender, rate(number), seed)?;
                // Printed at once, so that an interrupted run keeps its results.
                if self.arguments.json {
                    self.print_line(&point)?;
                }
                Ok(point)
            })
            .collect()
    }

    fn point(&self, contender: &Contender, rate: Option<f64>, seed: u64) -> anyhow::Result<Point> {
        let measured = Duration::from_secs_f64(self.arguments.seconds);
        let form = if self.arguments.json_tensors { Form::Json } else { Form::Binary };
        let key = self.arguments.key.as_deref();
        let target =
            |asked: &ModelRequests| Target::infer(&contender.address, key, asked.name.as_str(), asked.requests.iter().cloned(), form);
        let plan = Plan {
            address: contender.address.clone(),
            trust: trust(self.arguments.ca.as_deref()),
            targets: self.asked.iter().map(target).collect::<Result<_, _>>()?,
            arrivals: rate.map_or(Arrivals::Closed, Arrivals::Poisson),
            connections: self.arguments.connections,
            threads: self.arguments.threads,
            warm_up: measured.mul_f64(WARM_UP_SHARE),
            measured,
            seed,
        };
        Ok(Point { policy: contender.policy.clone(), rate, report: offer(&plan, "offering load")? })
    }

    fn print_line(&self, Point { policy, rate, report }: &Point) -> std::io::Result<()> {
        let connections = self.arguments.connections;
        writeln!(stdout(), "{}", json!({ "policy": policy, "rate": rate, "connections": connections, "report": report }))
    }

    fn print(&self, points: &[Point]) -> anyhow::Result<()> {
        if self.arguments.json {
            return Ok(());
        }
        let head = ["policy", "offered/s", "model", "answered/s", "p50 us", "p90 us", "p99 us", "p99.9 us", ""];
        // Of one server it goes without saying.
        let first = usize::from(self.contenders.len() == 1);
        let rows: Vec<Vec<String>> = points.iter().flat_map(rows).map(|row| row[first..].to_vec()).collect();
        stdout().write_all(table(&head[first..], &rows).as_bytes())?;
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
        let us = |value: f64| if value.is_nan() { "-".to_owned() } else { format!("{value:.0}") };
        let mut notes = Vec::new();
        if figures.sent > figures.ok {
            notes.push(format!("{} failed", figures.sent - figures.ok));
        }
        // Of all models together: whose requests waited for a connection says nothing about a model.
        let is_last = all.or(targets.last()).is_some_and(|last| std::ptr::eq(last, figures));
        if is_last && point.rate.is_some() && !point.report.kept_up {
            notes.push("did not keep up".to_owned());
        }
        let [p50, p90, p99, p999] = [latency.p50_us, latency.p90_us, latency.p99_us, latency.p999_us].map(us);
        let policy = point.policy.clone().unwrap_or_default();
        vec![policy, offered, figures.name.clone(), format!("{:.0}", figures.throughput), p50, p90, p99, p999, notes.join(", ")]
    };
    targets.iter().chain(all).map(row).collect()
}
