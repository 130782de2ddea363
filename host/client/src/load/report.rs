//! What became of the load.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use cellwright_protocol::messages::ErrorBody;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::Plan;
use super::connection::Answer;
use super::worker::Seen;

/// Longer latencies count as this, in nanoseconds.
const LATENCY_MAX_NS: u64 = 600_000_000_000;
/// Latencies are kept to three digits.
const DIGITS: u8 = 3;

/// What one thread noted of one target.
#[derive(Debug)]
pub(crate) struct Tally {
    sent: u64,
    unsent: u64,
    ok: u64,
    /// Successes that came while it was measured, of requests sent before too.
    ok_in_time: u64,
    statuses: BTreeMap<u16, u64>,
    broken: u64,
    first_fault: Option<String>,
    latencies: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { sent: 0, unsent: 0, ok: 0, ok_in_time: 0, statuses: BTreeMap::new(), broken: 0, first_fault: None, latencies: latencies() }
    }

    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }

    /// A request that was meant to arrive while it was measured was not sent until the end.
    pub(crate) fn unsent(&mut self, waited: Duration) {
        self.unsent += 1;
        self.latency(waited);
    }

    /// So long a request took, or waited at least: without those that still wait at the end, the slower a server is the less would be seen of it.
    pub(crate) fn latency(&mut self, latency: Duration) {
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS));
    }

    /// A request has an answer, or never will. What it was, and its latency, is told of those that were meant to arrive while it is measured; how many
    /// are answered meanwhile includes those that arrived before, as those answered afterwards are not among them.
    pub(crate) fn ended(&mut self, answer: Result<&Answer, &io::Error>, latency: Duration, (counts, in_time): (bool, bool)) {
        let is_ok = answer.is_ok_and(|answer| (200..300).contains(&answer.status));
        self.ok_in_time += u64::from(is_ok && in_time);
        if !counts {
            return;
        }
        let fault = match answer {
            Ok(_) if is_ok => {
                self.ok += 1;
                self.latency(latency);
                return;
            }
            Ok(answer) => {
                *self.statuses.entry(answer.status).or_default() += 1;
                format!("status {}: {}", answer.status, sentence(&answer.said))
            }
            Err(cause) => {
                self.broken += 1;
                cause.to_string()
            }
        };
        self.first_fault.get_or_insert(fault);
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.ok += other.ok;
        self.ok_in_time += other.ok_in_time;
        self.broken += other.broken;
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        if self.first_fault.is_none() {
            self.first_fault.clone_from(&other.first_fault);
        }
        // Both have the same bounds, so nothing can fail to fit.
        let fits = self.latencies.add(&other.latencies);
        debug_assert!(fits.is_ok());
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn figures(self, name: &str, measured: Duration) -> Figures {
        let answered = self.ok + self.broken + self.statuses.values().sum::<u64>();
        Figures {
            name: name.to_owned(),
            sent: self.sent,
            ok: self.ok,
            throughput: self.ok_in_time as f64 / measured.as_secs_f64().max(1e-9),
            statuses: self.statuses,
            broken: self.broken,
            unanswered: self.sent.saturating_sub(answered),
            first_fault: self.first_fault,
            latency: Latency::of(&self.latencies),
        }
    }
}

fn latencies() -> Histogram<u64> {
    #[expect(clippy::expect_used, reason = "the bounds are constants")]
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS).expect("the bounds are in order")
}

/// The server's sentence, if the body begins with one.
fn sentence(said: &[u8]) -> String {
    serde_json::from_slice::<ErrorBody>(said).map_or_else(|_| String::from_utf8_lossy(said).into_owned(), |body| body.error)
}

/// What became of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// All targets together.
    pub total: Figures,
    /// Each target, in the order of the plan.
    pub targets: Vec<Figures>,
    /// Whether every request was sent about when it was meant to be: if not, the server or the connections were too few, and latency says mostly how long the run was.
    pub kept_up: bool,
    /// The latest a request was sent after it was meant to be, in microseconds.
    pub late_max_us: f64,
    /// Requests that were meant to be sent while it was measured and were not, because all connections were busy to the end.
    pub unsent: u64,
    /// CPU time that the generator used, in seconds, over the whole run: on a small machine the server lacked it.
    pub client_cpu_s: f64,
}

/// What became of the requests of one target. Counted is what was meant to arrive while it was measured; but for throughput, what was answered then.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The target.
    pub name: String,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered with success.
    pub ok: u64,
    /// Successes per second that came while it was measured, whenever their requests were sent.
    pub throughput: f64,
    /// Other answers, by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Connections that could not be opened, or broke before the answer.
    pub broken: u64,
    /// Requests whose answer had not come long after the end.
    pub unanswered: u64,
    /// What was first said of a failure.
    pub first_fault: Option<String>,
    /// From when a request was meant to arrive to the end of its answer. Of the others alone those count that still waited at the end, as long as they had.
    pub latency: Latency,
}

/// Latencies, in microseconds. Where no request was measured they are no numbers, in JSON null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl Latency {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn of(latencies: &Histogram<u64>) -> Self {
        if latencies.is_empty() {
            let none = f64::NAN;
            return Self { mean_us: none, p50_us: none, p90_us: none, p99_us: none, p999_us: none, max_us: none };
        }
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean_us: latencies.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: latencies.max() as f64 / 1e3,
        }
    }
}

impl Report {
    pub(crate) fn of(plan: &Plan, parts: Vec<Seen>) -> Self {
        let mut tallies: Vec<Tally> = plan.targets.iter().map(|_| Tally::new()).collect();
        for part in &parts {
            for (sum, tally) in tallies.iter_mut().zip(&part.tallies) {
                sum.add(tally);
            }
        }
        let mut total = Tally::new();
        tallies.iter().for_each(|tally| total.add(tally));
        let named = plan.targets.iter().zip(tallies);
        let late_max = parts.iter().map(|part| part.late_max).max().unwrap_or_default();
        let unsent = total.unsent;
        let kept_up = is_nearly_all(total.sent, unsent) && late_max < plan.measured.mul_f64(0.1);
        Self {
            total: total.figures("total", plan.measured),
            targets: named.map(|(target, tally)| tally.figures(&target.name, plan.measured)).collect(),
            kept_up,
            late_max_us: late_max.as_secs_f64() * 1e6,
            unsent,
            client_cpu_s: parts.iter().map(|part| part.cpu.as_secs_f64()).sum(),
        }
    }
}

/// Whether so few were not sent that they are those that came last: whenever it ends, one may have only just arrived, or half a percent of many.
const fn is_nearly_all(sent: u64, unsent: u64) -> bool {
    unsent == 0 || sent > 0 && unsent <= sent.saturating_add(unsent).div_ceil(200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_no_latency() {
        let figures = Tally::new().figures("x", Duration::from_secs(2));
        assert!(figures.latency.p50_us.is_nan());
        assert!(serde_json::to_value(&figures).unwrap()["latency"]["p50_us"].is_null());
    }

    #[test]
    fn those_that_arrive_last_need_not_be_sent() {
        assert!(is_nearly_all(8219, 2) && is_nearly_all(0, 0) && is_nearly_all(99, 1) && is_nearly_all(399, 2));
        assert!(!is_nearly_all(98, 2) && !is_nearly_all(0, 1) && !is_nearly_all(8000, 221));
    }

    /// In a closed loop as many answers come from before as are missing at the end: without them a rate would be too low by what is under way.
    #[test]
    fn throughput_is_what_came_while_it_was_measured() {
        let mut tally = Tally::new();
        let answer = |status| Answer { status, keep: true, said: Vec::new() };
        tally.ended(Ok(&answer(200)), Duration::from_millis(9), (false, true));
        for in_time in [true, true, false] {
            tally.sent();
            tally.ended(Ok(&answer(200)), Duration::from_millis(5), (true, in_time));
        }
        tally.ended(Ok(&answer(503)), Duration::from_millis(9), (false, true));
        let figures = tally.figures("x", Duration::from_secs(2));
        assert_eq!((figures.throughput, figures.sent, figures.ok, figures.unanswered), (1.5, 3, 3, 0));
        assert!(figures.statuses.is_empty() && figures.latency.max_us < 6000.0, "{figures:?}");
    }
}
