//! Time against batch size.

use cellwright_scheduler::{CostTable, Knot};

/// Knots of a curve, at most.
const KNOTS_MAX: usize = 4096;
/// The longest a batch may take, nanoseconds: an hour.
const LONGEST_NS: f64 = 3.6e12;
/// Nanoseconds of a microsecond.
const US: f64 = 1e3;

/// Time against batch size: constant up to the first knot, linear between knots, proportional to the batch above the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// (batch, nanoseconds), ascending in both. Empty: nothing.
    knots: Vec<(u32, f64)>,
    /// Whether batches above the last knot take no longer.
    constant: bool,
}

impl Curve {
    /// A curve through knots of (batch, microseconds), none below `least_ns`.
    ///
    /// # Errors
    /// What is wrong with which knot, counted from 1.
    pub(super) fn new(knots: &[(u32, f64)], least_ns: f64) -> Result<Self, String> {
        if knots.is_empty() {
            return Err("it has no knots".to_owned());
        }
        if knots.len() > KNOTS_MAX {
            return Err(format!("it has {} knots, at most {KNOTS_MAX} are read", knots.len()));
        }
        let mut before = (0, 0.0);
        for (number, (batch, time)) in (1..).zip(knots) {
            if *batch == 0 {
                return Err(format!("knot {number} is for a batch of 0"));
            }
            if *batch <= before.0 {
                return Err(format!("knot {number} is for a batch of {batch}, which is not above {}", before.0));
            }
            if !(least_ns..=LONGEST_NS).contains(&(time * US)) {
                let (least, most) = (least_ns / US, LONGEST_NS / US);
                return Err(format!("knot {number} has a time of {time}, which is none from {least} to {most} microseconds"));
            }
            if *time < before.1 {
                return Err(format!("knot {number} takes less time than the smaller batch before it"));
            }
            before = (*batch, *time);
        }
        Ok(Self { knots: knots.iter().map(|(batch, time)| (*batch, time * US)).collect(), constant: false })
    }

    /// What a scheduler is told, as a curve.
    pub(crate) fn of_table(table: &CostTable) -> Self {
        Self { knots: table.knots().iter().map(|knot| (knot.rows, knot.nanoseconds as f64)).collect(), constant: false }
    }

    /// The same time for every batch.
    #[must_use]
    pub fn constant(ns: u64) -> Self {
        Self { knots: vec![(1, ns as f64)], constant: true }
    }

    /// The largest batch that is named.
    pub(super) fn largest(&self) -> Option<u32> {
        self.knots.last().map(|(batch, _)| *batch)
    }

    /// Nanoseconds for a batch of so many rows.
    #[must_use]
    pub fn at(&self, batch: u32) -> u64 {
        let above = self.knots.partition_point(|(knot, _)| *knot < batch);
        let ns = match (above.checked_sub(1).and_then(|below| self.knots.get(below)), self.knots.get(above)) {
            (None, None) => 0.0,
            (None, Some((_, ns))) => *ns,
            (Some((_, ns)), None) if self.constant => *ns,
            (Some((last, ns)), None) => ns * f64::from(batch) / f64::from(*last),
            (Some((low, from)), Some((high, to))) => from + (to - from) * f64::from(batch - low) / f64::from(high - low),
        };
        ns.round() as u64
    }

    /// The same curve, as a scheduler is told.
    #[must_use]
    pub fn table(&self) -> CostTable {
        CostTable::measured(self.knots.iter().map(|(rows, ns)| Knot { rows: *rows, nanoseconds: ns.round() as u64 }))
    }

    /// Both curves together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut batches: Vec<u32> = self.knots.iter().chain(&other.knots).map(|(batch, _)| *batch).collect();
        batches.sort_unstable();
        batches.dedup();
        let knots = batches.into_iter().map(|batch| (batch, self.at(batch).saturating_add(other.at(batch)) as f64)).collect();
        Self { knots, constant: self.constant && other.constant }
    }
}
