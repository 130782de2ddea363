//! What can be counted of an engine, its cell types, its models and its requests.
//!
//! Everything here is written by the engine's thread, a few relaxed atomics for each task, and may be read by anybody at any time without
//! keeping that thread waiting. Figures that are read together may be of different moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellwright_backend::{PlacedGrowth, SLOT_BYTES};
use cellwright_scheduler::DomainId;

/// Batch sizes are counted by powers of two up to this exponent; larger ones are counted with the last.
const BATCH_EXPONENT_MAX: usize = 16;

/// What an engine has done since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Tasks handed over to workers, a task of several steps counted for each.
    pub tasks: AtomicU64,
    /// Their rows, those that are padding from the beginning included.
    pub rows: AtomicU64,
    /// Requests finished.
    pub finished: AtomicU64,
    /// Requests that ended otherwise.
    pub failed: AtomicU64,
    /// Device time, nanoseconds, over all workers.
    pub busy_ns: AtomicU64,
    /// Times that a request's state was to go from one memory domain to another.
    pub moves: AtomicU64,
    /// Requests that have a place in the engine now.
    pub in_flight: AtomicU64,
    /// Their growths that are remembered now.
    pub growths: AtomicU64,
    /// Their stages that have a place on a device now.
    pub lanes: AtomicU64,
}

/// What a loaded cell type has done since it was loaded, whichever models' nodes they were.
#[derive(Debug, Default)]
pub struct CellCounters {
    /// Tasks handed over, a task of several steps counted for each.
    pub tasks: AtomicU64,
    /// Their rows, counted as in [`Counters::rows`].
    pub rows: AtomicU64,
    /// Device time of those that are complete, nanoseconds.
    pub busy_ns: AtomicU64,
    /// Tasks by batch size: element `k` counts those of more than `2^(k-1)` and at most `2^k` nodes, the last one all that are larger too.
    pub batches: [AtomicU64; BATCH_EXPONENT_MAX + 1],
}

impl CellCounters {
    /// So many steps of a task of so many rows, of all of its steps so many nodes, were handed over.
    pub(crate) fn launched(&self, rows: usize, steps: u32, nodes: u64) {
        let steps = u64::from(steps);
        self.tasks.fetch_add(steps, Ordering::Relaxed);
        self.rows.fetch_add(nodes, Ordering::Relaxed);
        self.batches[exponent(rows)].fetch_add(steps, Ordering::Relaxed);
    }
}

/// The place of a batch size among [`CellCounters::batches`].
fn exponent(rows: usize) -> usize {
    (rows.next_power_of_two().trailing_zeros() as usize).min(BATCH_EXPONENT_MAX)
}

/// What a loaded model has had.
#[derive(Debug, Default)]
pub struct ModelCounters {
    /// Device time of complete tasks, nanoseconds: of a task that several models shared, each is charged for its rows.
    pub device_ns: AtomicU64,
    /// Tasks handed over that have rows of it, a task of several steps counted for each, by batch size as in [`CellCounters::batches`]. Rows of other
    /// models count to the size.
    pub batches: [AtomicU64; BATCH_EXPONENT_MAX + 1],
    /// Bytes of memory of requests that began, as in [`RequestMemory`].
    memory: [AtomicU64; 3],
    /// Counters of the caller's to which the device time is added too.
    pub(crate) charged: Vec<Arc<AtomicU64>>,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct ModelCounts {
    pub device_ns: u64,
    pub batches: [u64; BATCH_EXPONENT_MAX + 1],
    pub memory: RequestMemory,
}

/// Bytes of devices' memory of requests that have one growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMemory {
    /// Reserved for them.
    pub reserved: u64,
    /// The same if no stages shared memory.
    pub unshared: u64,
    /// Written by their nodes. Shared memory counts each time.
    pub used: u64,
}

impl RequestMemory {
    /// The memory of a placed growth, by the steps that its chains execute as far as is known.
    pub(crate) fn of(placed: &PlacedGrowth, node_slots: impl Fn(u32) -> u32) -> Self {
        let mut slots = [0_u64; 2];
        for (number, chain) in (placed.growth.first_chain..).zip(&placed.growth.chains) {
            let executed = placed.executed_steps(number).unwrap_or_default();
            for stage in &chain.stages {
                let places = stage.retention.places(chain.length.bound);
                for (slots, places) in slots.iter_mut().zip([places, places.min(executed)]) {
                    *slots += u64::from(places) * u64::from(node_slots(stage.cell));
                }
            }
        }
        let [unshared, used] = slots.map(|slots| slots * SLOT_BYTES as u64);
        let reserved = placed.growth.shared.as_ref().map_or(unshared, |shared| u64::from(shared.slots) * SLOT_BYTES as u64);
        Self { reserved, unshared, used }
    }

    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        let reserved = of(self.reserved, other.reserved);
        Self { reserved, unshared: of(self.unshared, other.unshared), used: of(self.used, other.used) }
    }
}

impl ModelCounters {
    pub(crate) fn new(charged: Vec<Arc<AtomicU64>>) -> Self {
        Self { charged, ..Self::default() }
    }

    /// Its tasks have had so much device time.
    pub(crate) fn used(&self, nanoseconds: u64) {
        for counter in self.charged.iter().map(AsRef::as_ref).chain([&self.device_ns]) {
            counter.fetch_add(nanoseconds, Ordering::Relaxed);
        }
    }

    /// A request has so much memory.
    pub(crate) fn held(&self, RequestMemory { reserved, unshared, used }: RequestMemory) {
        for (counter, bytes) in self.memory.iter().zip([reserved, unshared, used]) {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn launched(&self, rows: usize, steps: u32) {
        self.batches[exponent(rows)].fetch_add(u64::from(steps), Ordering::Relaxed);
    }

    /// What it has had so far.
    #[must_use]
    pub fn counts(&self) -> ModelCounts {
        let batches = std::array::from_fn(|exponent| self.batches[exponent].load(Ordering::Relaxed));
        let [reserved, unshared, used] = self.memory.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        ModelCounts { device_ns: self.device_ns.load(Ordering::Relaxed), batches, memory: RequestMemory { reserved, unshared, used } }
    }
}

impl ModelCounts {
    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        let batches = std::array::from_fn(|exponent| of(self.batches[exponent], other.batches[exponent]));
        Self { device_ns: of(self.device_ns, other.device_ns), batches, memory: self.memory.with(other.memory, of) }
    }

    /// What has come to it since then.
    #[must_use]
    pub fn since(self, then: Self) -> Self {
        self.with(then, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Tasks of all sizes.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.batches.iter().sum()
    }
}

/// How a request fared. Times are of the engine's thread, which looks at the clock once for all that happens together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimes {
    /// When it was submitted.
    pub submitted: Instant,
    /// When the first task that has a node of it was handed to a worker, if any was.
    pub first_task: Option<Instant>,
    /// When it ended.
    pub finished: Instant,
    /// Stages of it that joined a task for the first time.
    pub joins: u32,
    /// Rows of those tasks, added up.
    pub joined_rows: u64,
    /// Rows of the largest of them.
    pub batch_max: u32,
}

impl RequestTimes {
    pub(crate) const fn new(submitted: Instant) -> Self {
        Self { submitted, first_task: None, finished: submitted, joins: 0, joined_rows: 0, batch_max: 0 }
    }

    pub(crate) fn join(&mut self, now: Instant, rows: usize) {
        self.first_task.get_or_insert(now);
        self.joins = self.joins.saturating_add(1);
        self.joined_rows = self.joined_rows.saturating_add(rows as u64);
        self.batch_max = self.batch_max.max(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    pub(crate) fn until(self, finished: Instant) -> Self {
        // The submitting thread may have looked at the clock later than the engine's did.
        Self { finished: finished.max(self.submitted), ..self }
    }

    /// Of a request that began again after these `first` times, from its first submission to its last end: what it waited after its device was lost, and
    /// what it did twice, is in them. Stages that joined, and the rows of their tasks, are those of both runs.
    #[must_use]
    pub fn after(self, first: &Self) -> Self {
        Self {
            submitted: first.submitted,
            first_task: first.first_task.or(self.first_task),
            finished: self.finished.max(first.finished),
            joins: self.joins.saturating_add(first.joins),
            joined_rows: self.joined_rows.saturating_add(first.joined_rows),
            batch_max: self.batch_max.max(first.batch_max),
        }
    }

    /// How long it waited for its first task; all its life, if it had none.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.first_task.unwrap_or(self.finished).saturating_duration_since(self.submitted)
    }

    /// How long it ran, from its first task to its end.
    #[must_use]
    pub fn ran(&self) -> Duration {
        self.first_task.map_or(Duration::ZERO, |first| self.finished.saturating_duration_since(first))
    }

    /// The mean batch size at joining; 0 if it never did.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    pub fn batch_mean(&self) -> f64 {
        self.joined_rows as f64 / f64::from(self.joins.max(1))
    }
}

/// How an engine stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests that wait for memory.
    pub waiting: u32,
    /// Bytes of weights that are loaded, those that models share counted once.
    pub weight_bytes: u64,
    /// Bytes of weights that may be loaded.
    pub weight_bytes_max: u64,
    /// Memory domains, by id.
    pub domains: Vec<DomainSnapshot>,
    /// Workers, by id.
    pub workers: Vec<WorkerSnapshot>,
}

/// How a memory domain stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSnapshot {
    /// Its name, as its devices say it.
    pub name: String,
    /// Slots that requests hold.
    pub slots_used: u32,
    /// Slots there are.
    pub slots: u32,
}

/// How a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSnapshot {
    /// Whether it still takes tasks.
    pub up: bool,
    /// Tasks handed to it that are not complete.
    pub outstanding: u32,
}

/// Where the engine's thread publishes how it stands.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) waiting: AtomicU32,
    /// Written by whoever loads and unloads.
    pub(crate) weight_bytes: AtomicU64,
    pub(crate) weight_bytes_max: u64,
    pub(crate) domains: Vec<DomainGauge>,
    pub(crate) workers: Vec<WorkerGauge>,
}

#[derive(Debug)]
pub(crate) struct DomainGauge {
    pub(crate) id: DomainId,
    pub(crate) name: String,
    pub(crate) slots: u32,
    pub(crate) free: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct WorkerGauge {
    pub(crate) up: AtomicBool,
    pub(crate) outstanding: AtomicU32,
}

impl Gauges {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let domain = |gauge: &DomainGauge| DomainSnapshot {
            name: gauge.name.clone(),
            slots_used: gauge.slots.saturating_sub(gauge.free.load(Ordering::Relaxed)),
            slots: gauge.slots,
        };
        let worker = |gauge: &WorkerGauge| WorkerSnapshot {
            up: gauge.up.load(Ordering::Relaxed),
            outstanding: gauge.outstanding.load(Ordering::Relaxed),
        };
        Snapshot {
            waiting: self.waiting.load(Ordering::Relaxed),
            weight_bytes: self.weight_bytes.load(Ordering::Relaxed),
            weight_bytes_max: self.weight_bytes_max,
            domains: self.domains.iter().map(domain).collect(),
            workers: self.workers.iter().map(worker).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_are_counted_by_powers_of_two() {
        let counters = CellCounters::default();
        for (rows, steps) in [(1, 3), (2, 1), (3, 1), (4, 1), (5, 1), (64, 1), (65, 1), (1 << 20, 1)] {
            counters.launched(rows, steps, rows as u64 * u64::from(steps));
        }
        let counts: Vec<u64> = counters.batches.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [3, 1, 2, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(counts.iter().sum::<u64>(), counters.tasks.load(Ordering::Relaxed));
    }

    #[test]
    fn times_add_up() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut times = RequestTimes::new(at(0));
        assert_eq!((times.until(at(5)).waited(), times.until(at(5)).ran()), (Duration::from_millis(5), Duration::ZERO));
        times.join(at(2), 10);
        times.join(at(3), 20);
        let times = times.until(at(7));
        assert_eq!((times.waited(), times.ran()), (Duration::from_millis(2), Duration::from_millis(5)));
        assert_eq!((times.joins, times.batch_max), (2, 20));
        assert!((times.batch_mean() - 15.0).abs() < 1e-9);

        let mut again = RequestTimes::new(at(9));
        let refused = again.until(at(10)).after(&times);
        assert_eq!((refused.waited(), refused.ran()), (Duration::from_millis(2), Duration::from_millis(8)));
        again.join(at(11), 6);
        let both = again.until(at(15)).after(&times);
        assert_eq!((both.waited(), both.ran()), (Duration::from_millis(2), Duration::from_millis(13)));
        assert_eq!((both.joins, both.joined_rows, both.batch_max), (3, 36, 20));
        let never = RequestTimes::new(at(0)).until(at(1));
        assert_eq!(again.until(at(15)).after(&never).waited(), Duration::from_millis(11));
    }
}
