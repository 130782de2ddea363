//! What can be counted of a version's calls, for statistics and metrics. A few relaxed atomics for
//! each call; read at any time.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cellwright_serving::{CallTimes, ErrorKind};

/// Upper bounds of the latency histogram's buckets, but for the last: 2^k times 125 µs.
pub const LATENCY_BUCKETS: usize = 18;
const FIRST_BUCKET_NS: u64 = 125_000;

/// How often something happened, and how long it took together.
#[derive(Debug, Default)]
pub struct Total {
    count: AtomicU64,
    ns: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TotalView {
    /// How often.
    pub count: u64,
    /// Nanoseconds together.
    pub ns: u64,
}

impl Total {
    fn add(&self, took: Duration) {
        self.add_all(1, took);
    }

    fn add_all(&self, count: u64, took: Duration) {
        self.count.fetch_add(count, Ordering::Relaxed);
        self.ns.fetch_add(nanoseconds(took), Ordering::Relaxed);
    }

    fn view(&self) -> TotalView {
        TotalView { count: self.count.load(Ordering::Relaxed), ns: self.ns.load(Ordering::Relaxed) }
    }
}

/// How long taking a call of a version keeps the thread that hands it over, answered or refused.
///
/// One slow call outweighs many quick ones: it moves this half of the way up, a quick one 1/1024 of
/// the way down. So a plugin cannot hide slow calls among quick ones. One that nobody knows yet
/// counts as slow until it has shown otherwise, for which some 20 quick calls are enough.
#[derive(Debug)]
pub(crate) struct UsualTime {
    ns: AtomicU64,
}

impl Default for UsualTime {
    fn default() -> Self {
        Self { ns: AtomicU64::new(UNKNOWN_NS) }
    }
}

const UNKNOWN_NS: u64 = 2_000_000;

impl UsualTime {
    pub(crate) fn record(&self, time: Duration) {
        let (usual, took) = (self.ns.load(Ordering::Relaxed), nanoseconds(time));
        let part = if usual > UNKNOWN_NS { 1024 } else { 32 };
        let moved = if took > usual { usual + (took - usual) / 2 } else { usual - (usual - took).div_ceil(part) };
        // Two updates at once may lose one: this is an estimate.
        self.ns.store(moved, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.ns.load(Ordering::Relaxed))
    }
}

/// What became of a version's calls since the host started.
#[derive(Debug, Default)]
pub(crate) struct CallFigures {
    success: Total,
    failure: Total,
    queue: Total,
    unfold: Total,
    compute: Total,
    requests: AtomicU64,
    replayed: AtomicU64,
    faults: AtomicU64,
    shed: AtomicU64,
    cancelled: AtomicU64,
    expired: AtomicU64,
    last_ms: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS + 1],
}

/// What became of a version's calls, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFiguresView {
    /// Calls that were answered, from look-up to the end of the answer.
    pub success: TotalView,
    /// Calls that were not.
    pub failure: TotalView,
    /// Requests that waited for their first task; the time that calls stood in line is in it.
    pub queue: TotalView,
    /// Calls that were unfolded, by the plugin and the host.
    pub unfold: TotalView,
    /// Requests that ran, from first task to end. A restarted request counts both runs and the wait
    /// between.
    pub compute: TotalView,
    /// Requests (rows of calls, where rows are requests) that were answered.
    pub requests: u64,
    /// Requests that restarted after a lost device, if a second one ran some of them.
    pub replayed: u64,
    /// Of the failures: the plugin's fault.
    pub faults: u64,
    /// Of the failures: refused for load.
    pub shed: u64,
    /// Of the failures: the client left.
    pub cancelled: u64,
    /// Of the failures: out of time.
    pub expired: u64,
    /// When the last call ended, milliseconds since 1970; 0: none has.
    pub last_ms: u64,
    /// Answered calls by latency: element k took at most [`latency_bound`] of k, the last one
    /// longer; each call is in one element.
    pub latency: [u64; LATENCY_BUCKETS + 1],
}

/// The longest latency that belongs in a bucket; none: the last has no bound.
#[must_use]
pub const fn latency_bound(bucket: usize) -> Option<Duration> {
    if bucket < LATENCY_BUCKETS { Some(Duration::from_nanos(FIRST_BUCKET_NS << bucket)) } else { None }
}

impl AddAssign<&Self> for CallFiguresView {
    fn add_assign(&mut self, other: &Self) {
        let totals = [
            (&mut self.success, other.success),
            (&mut self.failure, other.failure),
            (&mut self.queue, other.queue),
            (&mut self.unfold, other.unfold),
            (&mut self.compute, other.compute),
        ];
        for (total, more) in totals {
            total.count += more.count;
            total.ns += more.ns;
        }
        let counts = [
            (&mut self.requests, other.requests),
            (&mut self.replayed, other.replayed),
            (&mut self.faults, other.faults),
            (&mut self.shed, other.shed),
            (&mut self.cancelled, other.cancelled),
            (&mut self.expired, other.expired),
        ];
        counts.into_iter().chain(self.latency.iter_mut().zip(other.latency)).for_each(|(count, more)| *count += more);
        self.last_ms = self.last_ms.max(other.last_ms);
    }
}

impl CallFiguresView {
    /// Answered calls by latency: up to so long (none: longer than all before), so many calls; not
    /// added up.
    pub fn latencies(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        self.latency.iter().enumerate().map(|(bucket, count)| (latency_bound(bucket), *count))
    }
}

/// Batches by size, with the bounds of the sizes that each counts: up to so many rows (none: more
/// than all before), so many batches; not added up.
pub(crate) fn by_size(batches: impl ExactSizeIterator<Item = u64>) -> impl Iterator<Item = (Option<u64>, u64)> {
    let last = batches.len().saturating_sub(1);
    batches.enumerate().map(move |(exponent, count)| ((exponent < last).then(|| 1 << exponent), count))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl CallFigures {
    pub(crate) fn record_unfold(&self, took: Duration) {
        self.unfold.add(took);
    }

    /// A call had to wait in line before it was unfolded.
    pub(crate) fn record_wait(&self, waited: Duration) {
        self.queue.ns.fetch_add(nanoseconds(waited), Ordering::Relaxed);
    }

    /// The requests of a call have ended in the engine.
    pub(crate) fn record_requests(&self, times: &CallTimes) {
        self.queue.add_all(times.requests, times.waited);
        self.compute.add_all(times.started, times.ran);
        self.replayed.fetch_add(times.replays, Ordering::Relaxed);
    }

    pub(crate) fn record_answer(&self, took: Duration, requests: u64) {
        self.success.add(took);
        self.requests.fetch_add(requests, Ordering::Relaxed);
        let over = nanoseconds(took).div_ceil(FIRST_BUCKET_NS).max(1);
        let bucket = over.next_power_of_two().trailing_zeros() as usize;
        self.latency[bucket.min(LATENCY_BUCKETS)].fetch_add(1, Ordering::Relaxed);
        self.record_end();
    }

    pub(crate) fn record_failure(&self, kind: ErrorKind, took: Duration) {
        self.failure.add(took);
        let which = match kind {
            ErrorKind::PluginFault => Some(&self.faults),
            ErrorKind::Busy | ErrorKind::Draining => Some(&self.shed),
            ErrorKind::Cancelled => Some(&self.cancelled),
            ErrorKind::Deadline => Some(&self.expired),
            _ => None,
        };
        if let Some(which) = which {
            which.fetch_add(1, Ordering::Relaxed);
        }
        self.record_end();
    }

    fn record_end(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_ms.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn view(&self) -> CallFiguresView {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut latency = [0; LATENCY_BUCKETS + 1];
        latency.iter_mut().zip(&self.latency).for_each(|(view, bucket)| *view = load(bucket));
        CallFiguresView {
            success: self.success.view(),
            failure: self.failure.view(),
            queue: self.queue.view(),
            unfold: self.unfold.view(),
            compute: self.compute.view(),
            requests: load(&self.requests),
            replayed: load(&self.replayed),
            faults: load(&self.faults),
            shed: load(&self.shed),
            cancelled: load(&self.cancelled),
            expired: load(&self.expired),
            last_ms: load(&self.last_ms),
            latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_follows_what_happens_and_slow_calls_cannot_hide() {
        let (usual, quick, bound) = (UsualTime::default(), Duration::from_micros(8), Duration::from_millis(1));
        assert!(usual.get() > bound, "what nobody knows counts as slow");
        (0..32).for_each(|_| usual.record(quick));
        assert!(usual.get() < bound, "{:?}", usual.get());
        usual.record(Duration::from_millis(100));
        (0..3000).for_each(|_| usual.record(quick));
        assert!(usual.get() > bound, "one slow call in 3,000 is seen: {:?}", usual.get());
        (0..1000).for_each(|_| usual.record(quick));
        assert!(usual.get() < bound / 20, "{:?}", usual.get());
    }

    #[test]
    fn a_latency_is_in_the_first_bucket_that_holds_it() {
        let figures = CallFigures::default();
        let microseconds = [0, 125, 126, 250, 1000, u64::from(u32::MAX)];
        microseconds.into_iter().for_each(|us| figures.record_answer(Duration::from_micros(us), 1));
        let view = figures.view();
        assert_eq!((view.latency[0], view.latency[1], view.latency[3], view.latency[LATENCY_BUCKETS]), (2, 2, 1, 1));
        assert_eq!(view.latency.iter().sum::<u64>(), view.success.count);
        assert_eq!(latency_bound(3), Some(Duration::from_millis(1)));
        assert_eq!(latency_bound(LATENCY_BUCKETS), None);
    }
}
