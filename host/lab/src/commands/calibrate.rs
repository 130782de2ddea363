//! `calibrate`: what tasks cost on this machine, as a device for `simulate`.

mod over_http;

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use cellwright_bundle::Bundle;
use cellwright_cell_graph::Random;
use cellwright_command::host::{self, Setup};
use cellwright_command::progress;
use cellwright_command::requests::ModelRequests;
use cellwright_engine::options::Observer;
use cellwright_scheduler::{Commands, Config, Event, Time};
use cellwright_serving::ServedModel;
use cellwright_simulator::Meter;
use cellwright_simulator::meter::{self, CellTimes};

use crate::cli::CalibrateArguments;
use crate::commands::bench::generator::{self, Arrivals, Prepared, Work};
use crate::commands::bench::{models, shapes};
use over_http::Service;

/// Requests that the engine may hold beyond those that are in flight.
const SLACK: u32 = 1024;
/// Requests in flight at once, at most.
const IN_FLIGHT_MAX: usize = 1 << 14;
/// Over HTTP each has a connection, whose two ends this process has open; and a tenant may have no more than twice as many in flight.
const CONNECTIONS_MAX: usize = 1 << 11;
/// Of what was answered at most, at which rates requests then come by themselves: while a batch is small, other workers have sometimes nothing to do.
const SHARES: [f64; 3] = [0.25, 0.5, 0.75];
/// Up to which of these no request waits for a connection, so that the rest of what it takes beside the engine is its way there and back.
const UNHINDERED: f64 = 0.5;

/// A meter that the engine shows everything to.
struct Watching(Arc<Mutex<Meter>>);

impl Watching {
    fn meter(&self) -> std::sync::MutexGuard<'_, Meter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Watching {
    fn told(&mut self, now: Time, events: &[Event], ended: &[Time]) {
        self.meter().told(now, events, ended);
    }

    fn decided(&mut self, commands: &Commands) {
        self.meter().decided(commands);
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// So many are in flight all the time.
    InFlight(usize),
    /// So many a second on average, at random, and so many in flight at most.
    Rate(f64, usize),
}

impl Load {
    /// Of a load that is counted for so long, how much longer before. Of requests that come by themselves all are counted, as the meter counts them.
    fn warm_up(self, measured: Duration) -> Duration {
        match self {
            Self::InFlight(_) => measured / 10,
            Self::Rate(..) => Duration::ZERO,
        }
    }
}

/// What came of a load.
#[derive(Clone, Copy, Debug)]
struct Answered {
    /// A second.
    throughput: f64,
    /// How many requests were counted, and what they took on average from when they were meant to come to their answers.
    count: u64,
    latency: Duration,
}

/// What was loaded, and on what.
struct Measured {
    bundle: String,
    model: Arc<ServedModel>,
    device: String,
    workers: usize,
    /// What requests and their answers took on their ways between client and scheduler.
    request: Option<Duration>,
}

pub(crate) fn calibrate(arguments: &CalibrateArguments) -> anyhow::Result<()> {
    let watching = Watching(Arc::default());
    let setup = Setup {
        scheduler: Config { policy: arguments.policy.0, ..Config::default() },
        in_flight_max: IN_FLIGHT_MAX as u32 + SLACK,
        observer: Some(Box::new(Watching(Arc::clone(&watching.0)))),
        ..Setup::default()
    };
    let Measured { bundle, model, device, workers, request } = match &arguments.bundle {
        Some(folder) if arguments.http => over_http(arguments, folder, setup, &watching)?,
        _ => in_process(arguments, setup, &watching)?,
    };
    let meter = watching.meter();
    let cells = cells(&model, &meter)?;
    let request_ns = request.map(|request| u64::try_from(request.as_nanos()).unwrap_or(u64::MAX));
    let how = if arguments.http { "with clients over HTTP on the same processors" } else { "with requests from this process" };
    let text = format!(
        "# Measured by `cellwright-lab calibrate`: {bundle} on {workers} x {device} under `{}`, {how}; `simulate --devices {workers}` simulates this machine.\n{}",
        arguments.policy,
        meter::table(&device, &meter.delays(), request_ns, &cells)
    );
    match &arguments.output {
        Some(file) => std::fs::write(file, text).with_context(|| format!("{} cannot be written", file.display())),
        None => Ok(stdout().write_all(text.as_bytes())?),
    }
}

fn in_process(arguments: &CalibrateArguments, setup: Setup, watching: &Watching) -> anyhow::Result<Measured> {
    let mut random = Random::new(arguments.seed);
    let (bundle, work) = load(arguments, &mut random)?;
    let serving = arguments.host.start(setup)?;
    let spinner = progress::spinner(format!("loading {}", bundle.name()));
    let model = host::load_bundle(&serving, &bundle)?;
    spinner.finish_and_clear();
    let workers = serving.engine().devices().count().max(1);
    let request = with_each_load(&levels(&model, workers, IN_FLIGHT_MAX), watching, |load| {
        let measured = Duration::from_secs_f64(arguments.seconds);
        let (rate, in_flight_max) = match load {
            Load::InFlight(in_flight) => (None, in_flight),
            Load::Rate(rate, in_flight_max) => (Some(rate), in_flight_max),
        };
        let arrivals = Arrivals { rate, in_flight_max, warm_up: load.warm_up(measured), measured };
        let seen = generator::run(&serving, &model, &work, arrivals, &mut random)?;
        Ok(Answered { throughput: seen.throughput, count: seen.latencies.count(), latency: seen.latencies.mean() })
    })?;
    let device = serving.engine().devices().next().map_or("cpu".to_owned(), |device| device.name.clone());
    Ok(Measured { bundle: bundle.name().to_owned(), model, device, workers, request })
}

fn over_http(arguments: &CalibrateArguments, folder: &Path, setup: Setup, watching: &Watching) -> anyhow::Result<Measured> {
    let asked = ModelRequests::of(&host::open(folder)?, arguments.input.as_deref())?;
    let service = Service::start(&arguments.host, setup)?;
    let spinner = progress::spinner(format!("loading {}", asked.name));
    let model = service.push(folder, &asked.name)?;
    spinner.finish_and_clear();
    let measured = Duration::from_secs_f64(arguments.seconds);
    let levels = levels(&model, service.workers, CONNECTIONS_MAX);
    let request = with_each_load(&levels, watching, |load| service.load(&asked, load, measured, arguments.seed))?;
    Ok(Measured { bundle: asked.name, model, device: service.device.clone(), workers: service.workers, request })
}

/// The model, and requests for it.
fn load(arguments: &CalibrateArguments, random: &mut Random) -> anyhow::Result<(Bundle, Work)> {
    if let Some(folder) = &arguments.bundle {
        let bundle = host::open(folder)?;
        let ModelRequests { requests, .. } = ModelRequests::of(&bundle, arguments.input.as_deref())?;
        let order = (0..requests.len() as u32).collect();
        return Ok((bundle, Work { requests: requests.into_iter().map(Prepared::Request).collect(), order }));
    }
    let drawn = shapes::draw(&arguments.lengths, arguments.model, random)?;
    let bundle = models::bundle(arguments.model, arguments.hidden, random)?;
    let requests =
        drawn.distinct.iter().map(|shape| Prepared::Request(models::request(shape, (arguments.model, arguments.hidden), random))).collect();
    Ok((bundle, Work { requests, order: drawn.order }))
}

/// Has each load made: so many in flight, and rates that are shares of what the last of these gave. What requests took, of all that passed until they were
/// answered, before the scheduler heard of them and after it had done with them.
fn with_each_load(
    levels: &[usize],
    watching: &Watching,
    mut make: impl FnMut(Load) -> anyhow::Result<Answered>,
) -> anyhow::Result<Option<Duration>> {
    let bar = progress::counter("loads", Some((levels.len() + SHARES.len()) as u64));
    let mut most = (0.0, 0);
    for level in levels {
        most = (make(Load::InFlight(*level))?.throughput, *level);
        bar.inc(1);
    }
    let (rate, in_flight) = most;
    let mut ways = Vec::new();
    for share in SHARES {
        // Where nothing was answered in so short a time, nothing is learnt from less.
        if rate > 0.0 {
            watching.meter().cut_requests();
            let answered = make(Load::Rate(rate * share, in_flight))?;
            let (count, in_engine_ns) = watching.meter().cut_requests();
            // Where a call is several requests to the engine, it is not known what each of them took beside it.
            if share <= UNHINDERED && count > 0 && count == answered.count {
                ways.push(answered.latency.saturating_sub(Duration::from_nanos(in_engine_ns)));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(ways.iter().sum::<Duration>().checked_div(ways.len() as u32))
}

/// Numbers of requests in flight: one alone, and those that fill batches of one row, two, four, up to the largest limit and three times as many that wait.
fn levels(model: &ServedModel, workers: usize, in_flight_max: usize) -> Vec<usize> {
    let limit = model.cells().iter().map(|cell| cell.batch_max as usize).max().unwrap_or(1);
    let most = (4 * limit * workers).min(in_flight_max);
    let powers = std::iter::successors(Some(workers), |level| level.checked_mul(2)).take_while(|level| *level < most);
    let alone = (workers > 1).then_some(1);
    alone.into_iter().chain(powers).chain([most]).collect()
}

/// Each cell's times; the cell that took most of the time comes last, and stands for those that a simulation knows besides.
fn cells(model: &ServedModel, meter: &Meter) -> anyhow::Result<Vec<CellTimes>> {
    let mut cells: Vec<CellTimes> = Vec::new();
    for loaded in &model.loaded().cells {
        let (name, busy) = (loaded.cell.name.clone(), meter.knots(loaded.cell_type));
        ensure!(!busy.is_empty(), "the cell `{name}` ran too rarely to be measured: give more --seconds, or samples that use it");
        let (quiet, fill_first) = (meter.quiet_knots(loaded.cell_type), loaded.calibration.fills_first());
        cells.push(CellTimes { name, busy, quiet, fill_first });
    }
    cells.sort_by_key(|cell| cell.busy.last().map(|knot| knot.nanoseconds));
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::UnfoldedGrowth;
    use cellwright_scheduler::{ModelId, RequestId, Submission};
    use cellwright_simulator::Workload;
    use cellwright_simulator::workload::Lengths;

    use super::*;

    /// The scheduler hears of so many requests, each of which takes a millisecond.
    fn requests(watching: &Watching, growth: &Arc<UnfoldedGrowth>, count: u32) {
        let mut watching = Watching(Arc::clone(&watching.0));
        for request in (0..count).map(RequestId) {
            let submission = Submission { request, model: ModelId(0), rank: 0, deadline: None, growth: Arc::clone(growth) };
            watching.told(Time(0), &[Event::Submit(submission)], &[]);
            watching.told(Time(1_000_000), &[], &[]);
            watching.decided(&Commands { finished: vec![request], ..Commands::default() });
        }
    }

    #[test]
    fn what_requests_take_beside_the_engine_is_their_way_where_nobody_waits_for_a_connection() {
        let growth = Workload::lstm(Lengths::Fixed(1)).draw(&mut Random::new(1)).growth;
        let request = |calls: u64| {
            let watching = Watching(Arc::default());
            let make = |load| {
                requests(&watching, &growth, 10);
                // The way takes a fifth of a millisecond at a quarter of the most, and two fifths at half; at three quarters connections are waited for.
                let way_us = match load {
                    Load::Rate(rate, _) if rate < 60.0 => 8 * rate as u64,
                    _ => 10_000,
                };
                Ok(Answered { throughput: 100.0, count: calls, latency: Duration::from_micros(1000 + way_us) })
            };
            with_each_load(&[2], &watching, make).unwrap()
        };
        assert_eq!(request(10), Some(Duration::from_micros(300)));
        assert_eq!(request(5), None, "two requests a call");
    }

    #[test]
    fn rates_are_shares_of_what_the_last_level_gave() {
        let loads = |answered: fn(usize) -> f64| {
            let mut made = Vec::new();
            let make = |load| {
                made.push(load);
                let throughput = if let Load::InFlight(level) = load { answered(level) } else { 1.0 };
                Ok(Answered { throughput, count: 1, latency: Duration::from_millis(1) })
            };
            assert_eq!(with_each_load(&[2, 64], &Watching(Arc::default()), make).unwrap(), None, "no request was seen");
            made
        };
        let levels = [Load::InFlight(2), Load::InFlight(64)];
        let rates = [25.0, 50.0, 75.0].map(|rate| Load::Rate(rate, 64));
        assert_eq!(loads(|level| if level == 64 { 100.0 } else { 1000.0 }), [&levels[..], &rates[..]].concat());
        assert_eq!(loads(|_| 0.0), levels, "nothing is learnt from a share of nothing");
    }
}
