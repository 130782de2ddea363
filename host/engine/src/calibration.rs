//! Calibration: how large a cell type's batches are on this machine.
//!
//! The limit is the knee of measured throughput against batch size (BatchMaker, section 7.2). Sizes
//! are timed in turns, and the least time of each counts, because a busy machine can only add to a
//! time. The time that a task costs outside its device is added.
//!
//! Idle workers of one domain time the same batch at the same time, because at work they share the
//! last cache and the memory. Few rows are also timed as one batch with all threads that the other
//! workers lend. If that takes a tenth less than separate batches, batches of the type are filled
//! first (`CellInfo::fill_first`).
//!
//! No limit of a bundle or a plugin goes beyond the largest batch that was measured to stay within
//! a task's time. A cell whose single row takes longer may still run, one row at a time, up to a
//! bound of its own (`EngineOptions::row_time_max`).

use std::time::Duration;

use cellwright_scheduler::{BatchSizes, CostTable, Knot};
use serde::{Deserialize, Serialize};

/// Limits in force for a cell type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Rows of a task, at most.
    pub max: u32,
}

impl BatchLimits {
    /// As the scheduler wants them.
    #[must_use]
    pub const fn sizes(self) -> BatchSizes {
        BatchSizes { min: 1, quantum: 1, max: self.max }
    }
}

/// One measured batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Point {
    pub rows: u32,
    pub time: Duration,
}

/// What was measured for a cell type on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Batch sizes tried, ascending: one row, and more as long as they took no longer than a task may.
    pub points: Vec<Point>,
    /// Workers of the same memory that ran the same at the same time, this one included.
    pub workers: u32,
    /// What as many rows as one of these batches has on all workers together take as one batch of this worker, to which the others lend their threads, up to
    /// the knee; none if there are no others.
    pub lent: Vec<Point>,
}

/// What a task costs outside its device: forming it, handing it over, hearing of its end. Without it a cell of a few hundred operations, whose
/// time per row is the same in every batch, would be run in tasks so small that the engine is busier than the device.
const TASK_OVERHEAD: Duration = Duration::from_micros(5);

/// Share of the best throughput that the knee must reach.
const KNEE_SHARE: f64 = 0.97;

/// Where workers share memory, the knee takes so many times as long as the shortest batch at least. While batches are timed, all workers read the same weights at
/// the same time, most of them out of the last cache; at work they are out of step, and a batch that takes little longer than its weights take to read
/// waits for them.
const SHARED_FACTOR: u32 = 2;

/// How much less time few rows take as one batch where batches are filled first.
const FILL_GAIN: f64 = 1.1;

/// How often each size is measured. Sizes take turns, so that a moment in which the machine is busy does not fall on one of them alone.
const ROUNDS: usize = 5;

/// How often a time beyond the bound is measured before it is believed, unless it is far beyond.
const DOUBTS: usize = 3;

/// Measures powers of two up to `batch_max`, no task longer than `task_time_max`. A single row is always among them, whatever it takes.
///
/// # Errors
/// What `time` fails with.
pub fn calibrate<E>(batch_max: u32, task_time_max: Duration, mut time: impl FnMut(u32) -> Result<Duration, E>) -> Result<Calibration, E> {
    let mut points = climb(batch_max, task_time_max, &mut time)?;
    if points.iter().any(|point| point.time <= task_time_max) {
        for _ in 1..ROUNDS {
            for point in &mut points {
                point.time = point.time.min(time(point.rows)?);
            }
        }
    }
    Ok(Calibration { points, workers: 1, lent: Vec::new() })
}

/// Measures batches beside other workers of the same memory: the rows of `workers` batches as one, with the threads that the others lend.
///
/// # Errors
/// What `time` fails with.
pub fn calibrate_lent<E>(apart: Calibration, workers: u32, mut time: impl FnMut(u32) -> Result<Duration, E>) -> Result<Calibration, E> {
    let mut beside = Calibration { workers, ..apart };
    if workers > 1 {
        let knee = beside.knee();
        let rows = beside.points.iter().filter_map(|point| point.rows.checked_mul(workers)).filter(|rows| *rows <= knee);
        let mut lent: Vec<Point> = rows.map(|rows| Point { rows, time: Duration::MAX }).collect();
        for _ in 0..ROUNDS {
            for point in &mut lent {
                point.time = point.time.min(time(point.rows)?);
            }
        }
        beside.lent = lent;
    }
    Ok(beside)
}

/// The sizes that are allowed, each measured once, or more often where the first time would forbid it.
fn climb<E>(batch_max: u32, task_time_max: Duration, time: &mut impl FnMut(u32) -> Result<Duration, E>) -> Result<Vec<Point>, E> {
    let mut points: Vec<Point> = Vec::new();
    let mut rows = 1_u32;
    loop {
        let mut least = time(rows)?;
        for _ in 1..DOUBTS {
            if least <= task_time_max || least > task_time_max.saturating_mul(4) {
                break;
            }
            least = least.min(time(rows)?);
        }
        if least <= task_time_max || points.is_empty() {
            points.push(Point { rows, time: least });
        }
        if rows >= batch_max || least > task_time_max {
            return Ok(points);
        }
        rows = rows.saturating_mul(2).min(batch_max);
    }
}

impl Calibration {
    /// The largest batch that was measured and allowed: what lies beyond may take longer than a task may.
    #[must_use]
    pub fn rows_max(&self) -> u32 {
        self.points.last().map_or(1, |point| point.rows)
    }

    /// What tasks cost, for the scheduler's policies.
    #[must_use]
    pub fn cost(&self) -> CostTable {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        CostTable::measured(self.points.iter().map(|point| Knot { rows: point.rows, nanoseconds: nanoseconds(point.time) }))
    }

    /// The smallest measured size whose throughput is within 3 % of the best and, where memory is shared, for which reading weights is not most of the
    /// work; if there is none, the largest of those. Not kept with the points, so that a better rule holds for what was measured before it.
    #[must_use]
    pub fn knee(&self) -> u32 {
        let throughput = |point: &Point| f64::from(point.rows) / (point.time + TASK_OVERHEAD).as_secs_f64();
        let best = self.points.iter().map(throughput).fold(0.0, f64::max);
        let shortest = self.points.iter().map(|point| point.time).min().unwrap_or_default();
        let least = if self.workers > 1 { shortest * SHARED_FACTOR } else { Duration::ZERO };
        let good = || self.points.iter().filter(|point| throughput(point) >= KNEE_SHARE * best);
        good().find(|point| point.time >= least).or(good().next_back()).map_or(1, |point| point.rows)
    }

    /// Whether one worker's batch had better be full before another of the same memory begins one: where few rows take a tenth less time on average
    /// (geometric) as one batch with the threads of all than shared out among the workers, because weights are then read once.
    #[must_use]
    pub fn fills_first(&self) -> bool {
        let gain = |lent: &Point| {
            let apart = self.points.iter().find(|point| point.rows.checked_mul(self.workers) == Some(lent.rows))?;
            Some((apart.time.as_secs_f64() / lent.time.as_secs_f64().max(f64::MIN_POSITIVE)).ln())
        };
        let gains: Vec<f64> = self.lent.iter().filter_map(gain).collect();
        !gains.is_empty() && gains.iter().sum::<f64>() / gains.len() as f64 >= FILL_GAIN.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(batch_max: u32, limit: Duration, time: impl Fn(u32) -> Duration) -> Calibration {
        calibrate(batch_max, limit, |rows| Ok::<_, ()>(time(rows))).unwrap()
    }

    #[test]
    fn the_knee_is_where_throughput_stops_growing() {
        let flat_then_linear = |rows: u32| Duration::from_millis(u64::from(rows.max(64)));
        let calibration = measured(512, Duration::from_secs(1), flat_then_linear);
        assert_eq!(calibration.knee(), 64);
        assert_eq!(calibration.points.last().map(|point| point.rows), Some(512));
    }

    #[test]
    fn where_memory_is_shared_a_batch_outlasts_its_weights() {
        // A millisecond to read the weights, 180 us to multiply a row by them.
        let roof = |rows: u32| Duration::from_micros(1000_u64.max(u64::from(rows) * 180));
        let calibration = measured(512, Duration::from_secs(1), roof);
        assert_eq!(calibration.knee(), 8);
        let shared = Calibration { workers: 2, ..calibration };
        assert_eq!(shared.knee(), 16);
        // Where reading is all there is, the more rows the better.
        let flat = Calibration { workers: 2, ..measured(512, Duration::from_secs(1), |_| Duration::from_millis(1)) };
        assert_eq!(flat.knee(), 512);
    }

    #[test]
    fn batches_are_filled_first_where_few_rows_are_done_sooner_as_one() {
        let roof = |weights_us: u64, row_us: u64| move |rows: u32| Duration::from_micros(weights_us.max(u64::from(rows) * row_us));
        let calibrated = |lent: &dyn Fn(u32) -> Duration, workers| {
            let apart = measured(512, Duration::from_secs(1), roof(1000, 100));
            calibrate_lent(apart, workers, |rows| Ok::<_, ()>(lent(rows))).unwrap()
        };
        // Two workers read all of the weights each, or one with the threads of both reads them once, and multiplies twice as fast.
        let once = calibrated(&roof(500, 50), 2);
        assert_eq!(once.lent.iter().map(|point| point.rows).collect::<Vec<_>>(), [2, 4, 8, 16, 32]);
        assert!(once.fills_first());
        // Threads that do not help.
        assert!(!calibrated(&roof(1000, 100), 2).fills_first());
        let alone = calibrated(&roof(500, 50), 1);
        assert!(alone.lent.is_empty() && !alone.fills_first());
    }

    #[test]
    fn a_task_is_worth_its_overhead() {
        let per_row = |rows: u32| Duration::from_nanos(u64::from(rows) * 100);
        assert!(measured(512, Duration::from_secs(1), per_row).knee() >= 256);
    }

    #[test]
    fn disturbed_measurements_do_not_count() {
        // Ten calls on end, every thirty: all sizes of one round and more.
        let mut calls = 0;
        let disturbed = |rows: u32| {
            calls += 1;
            Ok::<_, ()>(Duration::from_millis(if calls % 30 < 10 { 700 } else { u64::from(rows.max(64)) }))
        };
        let calibration = calibrate(512, Duration::from_secs(1), disturbed).unwrap();
        assert_eq!(calibration.points.iter().map(|point| point.time.as_millis()).max(), Some(512));
        assert_eq!(calibration.knee(), 64);
    }

    #[test]
    fn one_bad_moment_does_not_end_the_climb() {
        let mut calls = 0;
        let moment = |rows: u32| {
            calls += 1;
            Ok::<_, ()>(if calls == 3 { Duration::from_millis(90) } else { Duration::from_micros(u64::from(rows)) })
        };
        assert_eq!(calibrate(512, Duration::from_millis(50), moment).unwrap().rows_max(), 512);
    }

    #[test]
    fn a_task_that_would_take_too_long_lowers_the_limit() {
        let calibration = measured(512, Duration::from_millis(50), |rows| Duration::from_millis(10 + u64::from(rows)));
        assert_eq!((calibration.knee(), calibration.rows_max()), (32, 32));
    }

    #[test]
    fn one_row_is_always_allowed() {
        let calibration = measured(512, Duration::from_millis(1), |_| Duration::from_secs(2));
        assert_eq!((calibration.knee(), calibration.points.len()), (1, 1));
    }

    #[test]
    fn the_largest_batch_need_not_be_a_power_of_two() {
        let calibration = measured(100, Duration::from_secs(1), |_| Duration::from_micros(10));
        assert_eq!(calibration.knee(), 100);
    }
}
