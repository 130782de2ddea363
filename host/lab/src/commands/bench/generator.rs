//! The load: requests that arrive by the clock, not by the answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cellwright_cell_graph::Random;
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_engine::{RequestTensors, Urgency};
use cellwright_protocol::InferRequest;
use cellwright_serving::{Answer, Delivery, Patience, ServedModel, Serving};

use super::clients::{Called, Tally, Waiting};
use super::figures::Times;

/// Sleeping for less than this costs more than it saves.
const NAP: Duration = Duration::from_micros(50);
/// How long a run may take to answer what it has taken, once no more arrives.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// What requests are made of.
pub(crate) struct Work {
    /// One for each distinct shape.
    pub(crate) requests: Vec<Prepared>,
    /// Their order.
    pub(crate) order: Vec<u32>,
}

/// A request, as serving takes it or as the engine does.
pub(crate) enum Prepared {
    Request(InferRequest),
    Graph(Arc<UnfoldedGrowth>, RequestTensors),
}

/// How requests arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    /// Requests per second; none: whenever fewer than `in_flight_max` are in flight.
    pub(crate) rate: Option<f64>,
    pub(crate) in_flight_max: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// What was seen.
pub(crate) struct Seen {
    /// Answers per second while it was measured.
    pub(crate) throughput: f64,
    /// From the moment a request was meant to arrive to its answer.
    pub(crate) latencies: Times,
    pub(crate) batch_mean: f64,
    /// Share of the measured time that devices were busy, of all workers.
    pub(crate) busy: f64,
    /// Of each of the model's cells, steps of tasks a second of measured time, of all workers, and rows of a step on average.
    pub(crate) steps: Vec<(f64, f64)>,
    /// Whether requests were taken when they arrived: if not, more arrives than can be answered, and latency only tells for how long.
    pub(crate) kept_up: bool,
}

/// Offers the load and sees what becomes of it.
pub(crate) fn run(
    serving: &Serving,
    model: &Arc<ServedModel>,
    work: &Work,
    arrivals: Arrivals,
    random: &mut Random,
) -> anyhow::Result<Seen> {
    let tally = Tally::new()?;
    let start = Instant::now();
    let (from, to) = (start + arrivals.warm_up, start + arrivals.warm_up + arrivals.measured);
    let mut begin = None;
    let mut intended = start;
    let mut late = Duration::ZERO;
    for number in work.order.iter().cycle() {
        match arrivals.rate {
            Some(rate) => {
                intended += Duration::from_secs_f64(random.exponential() / rate);
                sleep_until(intended);
            }
            None => intended = Instant::now(),
        }
        if intended >= to {
            break;
        }
        tally.wait_for_room(arrivals.in_flight_max);
        let now = Instant::now();
        if now >= from && begin.is_none() {
            begin = Some(Counts::now(serving, model, &tally));
        }
        if arrivals.rate.is_some() && intended >= from {
            late = late.max(now.saturating_duration_since(intended));
        }
        // More arrives than is answered: nothing new is learnt from waiting for all of it.
        if now >= to {
            break;
        }
        submit(serving, model, work, *number, tally.expect(intended, intended >= from))?;
    }
    sleep_until(to);
    let end = Counts::now(serving, model, &tally);
    drain(&tally)?;
    if let Some(failure) = tally.first_failure() {
        bail!("{} requests failed, the first because {failure}", tally.answers.failed.load(Ordering::Relaxed));
    }
    let begin = begin.context("no request arrived during the measurement: give a higher --rate or more --seconds")?;
    let workers = serving.engine().devices().count().max(1);
    let latencies = tally.latencies();
    let kept_up = late < arrivals.measured.mul_f64(0.1);
    Ok(end.since(&begin, workers, latencies, kept_up))
}

/// Counters at one moment.
struct Counts {
    at: Instant,
    answered: u64,
    tasks: u64,
    rows: u64,
    busy_ns: u64,
    /// Steps of tasks of each of the model's cells, and their rows.
    cells: Vec<(u64, u64)>,
}

impl Counts {
    fn now(serving: &Serving, model: &ServedModel, tally: &Tally) -> Self {
        let counters = serving.engine().counters();
        let cells = model.loaded().cells.iter();
        Self {
            at: Instant::now(),
            answered: tally.answers.answered.load(Ordering::Relaxed),
            tasks: counters.tasks.load(Ordering::Relaxed),
            rows: counters.rows.load(Ordering::Relaxed),
            busy_ns: counters.busy_ns.load(Ordering::Relaxed),
            cells: cells.map(|cell| (cell.counters.tasks.load(Ordering::Relaxed), cell.counters.rows.load(Ordering::Relaxed))).collect(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn since(&self, begin: &Self, workers: usize, latencies: Times, kept_up: bool) -> Seen {
        let seconds = (self.at - begin.at).as_secs_f64();
        let of_cell = |(end, begin): (&(u64, u64), &(u64, u64))| {
            let (steps, rows) = (end.0.saturating_sub(begin.0) as f64, end.1.saturating_sub(begin.1) as f64);
            (steps / seconds, rows / steps.max(1.0))
        };
        let tasks = self.tasks.saturating_sub(begin.tasks).max(1);
        Seen {
            throughput: (self.answered - begin.answered) as f64 / seconds,
            latencies,
            batch_mean: self.rows.saturating_sub(begin.rows) as f64 / tasks as f64,
            busy: self.busy_ns.saturating_sub(begin.busy_ns) as f64 / 1e9 / seconds / workers as f64,
            steps: self.cells.iter().zip(&begin.cells).map(of_cell).collect(),
            kept_up,
        }
    }
}

fn submit(serving: &Serving, model: &Arc<ServedModel>, work: &Work, number: u32, waiting: Waiting) -> anyhow::Result<()> {
    match work.requests.get(number as usize) {
        Some(Prepared::Request(request)) => {
            let (answer, mut writer) = Answer::new(0, Patience::endless());
            let tally = Arc::clone(&waiting.tally);
            writer.observe(Box::new(Called { waiting, _answer: answer }));
            let taken = serving.begin(model, (request.clone(), Urgency::default()), Delivery::Whole, writer);
            ensure!(taken, tally.first_failure().unwrap_or_default());
        }
        Some(Prepared::Graph(growth, tensors)) => {
            serving.engine().submit(model.loaded(), Arc::clone(growth), tensors.clone(), |_| Box::new(waiting))?;
        }
        None => {}
    }
    Ok(())
}

fn sleep_until(instant: Instant) {
    let left = instant.saturating_duration_since(Instant::now());
    if left > NAP {
        thread::sleep(left);
    }
}

fn drain(tally: &Tally) -> anyhow::Result<()> {
    let since = Instant::now();
    while tally.in_flight.load(Ordering::Acquire) > 0 {
        if since.elapsed() > DRAIN_MAX {
            bail!("{} requests had no answer {} s after the last arrival", tally.in_flight.load(Ordering::Relaxed), DRAIN_MAX.as_secs());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
