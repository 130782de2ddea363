//! What is counted in a run, and the numbers that come of it.

use cellwright_scheduler::Launch;
use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time that is told apart from longer ones: 292 years.
const LONGEST_NS: u64 = u64::MAX / 2;

/// The numbers of a run; times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests answered per second.
    pub throughput: f64,
    /// From arrival to answer.
    pub mean_ms: f64,
    /// Its median.
    pub p50_ms: f64,
    /// Nine of ten were faster.
    pub p90_ms: f64,
    /// All but one in a hundred were faster.
    pub p99_ms: f64,
    /// From arrival until a first cell began.
    pub queueing: Spread,
    /// From there to the answer.
    pub computation: Spread,
    /// Rows of a task, on average.
    pub mean_batch: f64,
    /// Part of the time for which devices were busy.
    pub utilisation: f64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were given up.
    pub failed: u64,
    /// Requests still to be answered at the end.
    pub unfinished: u64,
    /// Requests that were answered after the objective, given up, or were already late at the end; none without an objective.
    pub sla_violations: Option<u64>,
}

/// Milliseconds, and which share of requests took no longer.
pub type Shares = Vec<(f64, f64)>;

/// How a time is spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Spread {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
}

/// Counts what happens between two times.
#[derive(Debug)]
pub(crate) struct Recorder {
    from_ns: u64,
    to_ns: u64,
    objective_ns: Option<u64>,
    latency: Times,
    queueing: Times,
    computation: Times,
    busy_ns: u64,
    tasks: u64,
    rows: u64,
    arrived: u64,
    failed: u64,
    violations: u64,
    last_ns: u64,
}

impl Recorder {
    pub(crate) fn new(from_ns: u64, to_ns: u64, objective_ns: Option<u64>) -> Self {
        Self {
            from_ns,
            to_ns,
            objective_ns,
            latency: Times::default(),
            queueing: Times::default(),
            computation: Times::default(),
            busy_ns: 0,
            tasks: 0,
            rows: 0,
            arrived: 0,
            failed: 0,
            violations: 0,
            last_ns: 0,
        }
    }

    /// Counting began then: for whoever knows that only at the end.
    pub(crate) const fn from(&mut self, from_ns: u64) {
        self.from_ns = from_ns;
    }

    pub(crate) fn arrived(&mut self, now: u64) {
        self.arrived += u64::from(now >= self.from_ns);
    }

    /// A task begins.
    pub(crate) fn task(&mut self, start_ns: u64, launch: &Launch) {
        if start_ns >= self.from_ns {
            self.tasks += u64::from(launch.steps);
            self.rows += launch.nodes();
        }
    }

    /// A device was busy.
    pub(crate) fn busy(&mut self, from_ns: u64, to_ns: u64) {
        self.busy_ns = self.busy_ns.saturating_add(to_ns.saturating_sub(from_ns.max(self.from_ns)));
        self.last_ns = self.last_ns.max(to_ns);
    }

    pub(crate) fn finished(&mut self, arrived_ns: u64, started_ns: u64, now: u64) {
        if now >= self.from_ns {
            self.latency.add(now - arrived_ns);
            self.queueing.add(started_ns.saturating_sub(arrived_ns));
            self.computation.add(now.saturating_sub(started_ns));
            self.violations += u64::from(self.late(arrived_ns, now));
        }
        self.last_ns = self.last_ns.max(now);
    }

    pub(crate) fn failed(&mut self, _arrived_ns: u64, now: u64) {
        if now >= self.from_ns {
            self.failed += 1;
            self.violations += 1;
        }
    }

    /// How waiting and computing are spread: milliseconds, and which share of requests took no longer.
    pub(crate) fn shares(&self) -> (Shares, Shares) {
        (self.queueing.shares(), self.computation.shares())
    }

    fn late(&self, arrived_ns: u64, now: u64) -> bool {
        self.objective_ns.is_some_and(|objective| now.saturating_sub(arrived_ns) > objective)
    }

    /// The numbers, with so many devices; of the unfinished is known when they arrived.
    pub(crate) fn outcome(mut self, devices: u32, unfinished: &[u64]) -> Outcome {
        // A run that went on until everything had ended took until then.
        let to_ns = self.to_ns.max(self.last_ns);
        let span_s = to_ns.saturating_sub(self.from_ns).max(1) as f64 / 1e9;
        self.violations += unfinished.iter().filter(|arrived| self.late(**arrived, to_ns)).count() as u64;
        let latency = self.latency.spread();
        Outcome {
            throughput: self.latency.count() as f64 / span_s,
            mean_ms: latency.mean_ms,
            p50_ms: latency.p50_ms,
            p90_ms: latency.p90_ms,
            p99_ms: latency.p99_ms,
            queueing: self.queueing.spread(),
            computation: self.computation.spread(),
            mean_batch: self.rows as f64 / self.tasks.max(1) as f64,
            utilisation: self.busy_ns as f64 / 1e9 / span_s / f64::from(devices),
            answered: self.latency.count(),
            failed: self.failed,
            unfinished: unfinished.len() as u64,
            sla_violations: self.objective_ns.map(|_| self.violations),
        }
    }
}

/// Times, to three digits.
#[derive(Debug)]
struct Times(Option<Histogram<u64>>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).ok())
    }
}

impl Times {
    fn add(&mut self, ns: u64) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(ns);
        }
    }

    fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    fn shares(&self) -> Shares {
        let at = |percent: u32| {
            let share = f64::from(percent) / 100.0;
            self.0.as_ref().map(|histogram| (histogram.value_at_quantile(share) as f64 / 1e6, share)).filter(|(ms, _)| *ms > 0.0)
        };
        (1..=100).filter_map(at).collect()
    }

    fn spread(&self) -> Spread {
        let Some(histogram) = &self.0 else { return Spread::default() };
        let ms = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e6;
        Spread { mean_ms: histogram.mean() / 1e6, p50_ms: ms(0.5), p90_ms: ms(0.9), p99_ms: ms(0.99) }
    }
}
