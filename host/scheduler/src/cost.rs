//! What a task of so many rows costs: knots of a measured or assumed curve, and the time between
//! them.
//!
//! Policies that weigh waiting against running read it; the others never ask. A table that says
//! nothing is as good as one: who asks is told that the time is not known, and decides as if
//! waiting never paid.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Knots of one table, at most.
pub const KNOTS_MAX: usize = 4096;

/// Device time of a task by its number of rows.
///
/// Constant up to the first knot, linear between two, proportional beyond the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Knot>", into = "Vec<Knot>")]
pub struct CostTable(Option<Arc<[Knot]>>);

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Knot {
    pub rows: u32,
    pub nanoseconds: u64,
}

/// Why knots make no table. `at` counts them from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it all")]
pub enum CostError {
    #[error("a cost table needs a knot")]
    Empty,
    #[error("a cost table has at most {KNOTS_MAX} knots, not {0}")]
    TooMany(usize),
    #[error("a knot of a cost table is for at least one row")]
    NoRows { at: usize },
    #[error("a knot of a cost table takes at least a nanosecond")]
    NoTime { at: usize },
    #[error("the knots of a cost table ascend by rows, and {rows} comes after {before}")]
    Order { at: usize, rows: u32, before: u32 },
    #[error("a larger batch of a cost table takes no less time than a smaller one, and {rows} rows take less than {before}")]
    Falls { at: usize, rows: u32, before: u32 },
}

impl CostError {
    /// The knot that is at fault, if it is one.
    #[must_use]
    pub const fn knot(self) -> Option<usize> {
        match self {
            Self::Empty | Self::TooMany(_) => None,
            Self::NoRows { at } | Self::NoTime { at } | Self::Order { at, .. } | Self::Falls { at, .. } => Some(at),
        }
    }
}

impl CostTable {
    /// Nothing is known.
    #[must_use]
    pub const fn unknown() -> Self {
        Self(None)
    }

    /// A table of these knots, ascending by rows, none faster than one before it.
    ///
    /// # Errors
    /// If that is not so, or there is none.
    pub fn new(knots: impl IntoIterator<Item = Knot>) -> Result<Self, CostError> {
        let knots: Vec<Knot> = knots.into_iter().take(KNOTS_MAX + 1).collect();
        if knots.len() > KNOTS_MAX {
            return Err(CostError::TooMany(knots.len()));
        }
        for (at, knot) in knots.iter().enumerate() {
            if knot.rows == 0 {
                return Err(CostError::NoRows { at });
            }
            if knot.nanoseconds == 0 {
                return Err(CostError::NoTime { at });
            }
        }
        for (at, pair) in knots.windows(2).enumerate() {
            let (before, rows, at) = (pair[0].rows, pair[1].rows, at + 1);
            if rows <= before {
                return Err(CostError::Order { at, rows, before });
            }
            if pair[1].nanoseconds < pair[0].nanoseconds {
                return Err(CostError::Falls { at, rows, before });
            }
        }
        if knots.is_empty() { Err(CostError::Empty) } else { Ok(Self(Some(knots.into()))) }
    }

    /// The same of points that were measured one by one: where a larger batch seemed faster than a
    /// smaller one, it takes as long. Points that say nothing are left out.
    #[must_use]
    pub fn measured(points: impl IntoIterator<Item = Knot>) -> Self {
        let mut knots: Vec<Knot> = points.into_iter().filter(|knot| knot.rows > 0).take(KNOTS_MAX).collect();
        knots.sort_by_key(|knot| knot.rows);
        knots.dedup_by_key(|knot| knot.rows);
        let mut least = 1;
        for knot in &mut knots {
            knot.nanoseconds = knot.nanoseconds.max(least);
            least = knot.nanoseconds;
        }
        Self::new(knots).unwrap_or_default()
    }

    /// Its knots; none if nothing is known.
    #[must_use]
    pub fn knots(&self) -> &[Knot] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Nanoseconds that a task of so many rows takes, if that is known.
    #[must_use]
    pub fn nanoseconds(&self, rows: u32) -> Option<u64> {
        let knots = self.knots();
        let after = knots.partition_point(|knot| knot.rows < rows);
        let scaled = |of: u64, by: u32, parts: u32| u64::try_from(u128::from(of) * u128::from(by) / u128::from(parts)).unwrap_or(u64::MAX);
        match (after.checked_sub(1).map(|before| knots[before]), knots.get(after)) {
            (None, first) => first.map(|first| first.nanoseconds),
            (Some(last), None) => Some(scaled(last.nanoseconds, rows, last.rows)),
            (Some(low), Some(high)) => {
                let rise = scaled(high.nanoseconds - low.nanoseconds, rows - low.rows, high.rows - low.rows);
                Some(low.nanoseconds + rise)
            }
        }
    }
}

/// For who writes a table down and reads it back.
impl From<Vec<Knot>> for CostTable {
    fn from(knots: Vec<Knot>) -> Self {
        Self::new(knots).unwrap_or_default()
    }
}

impl From<CostTable> for Vec<Knot> {
    fn from(table: CostTable) -> Self {
        table.knots().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knots(of: &[(u32, u64)]) -> impl Iterator<Item = Knot> {
        of.iter().map(|(rows, nanoseconds)| Knot { rows: *rows, nanoseconds: *nanoseconds })
    }

    #[test]
    fn between_knots_time_grows_evenly() {
        let table = CostTable::new(knots(&[(64, 185), (512, 784)])).unwrap();
        for (rows, time) in [(1, 185), (64, 185), (288, 484), (512, 784), (1024, 1568)] {
            assert_eq!(table.nanoseconds(rows), Some(time), "{rows} rows");
        }
        assert_eq!(CostTable::unknown().nanoseconds(7), None);
    }

    #[test]
    fn what_makes_no_curve_is_refused_by_its_knot() {
        for (of, expected) in [
            (&[][..], CostError::Empty),
            (&[(0, 5)], CostError::NoRows { at: 0 }),
            (&[(1, 5), (2, 0)], CostError::NoTime { at: 1 }),
            (&[(2, 5), (2, 6)], CostError::Order { at: 1, rows: 2, before: 2 }),
            (&[(1, 5), (2, 6), (3, 4)], CostError::Falls { at: 2, rows: 3, before: 2 }),
        ] {
            assert_eq!(CostTable::new(knots(of)), Err(expected));
        }
        let endless = (1..).map(|rows| Knot { rows, nanoseconds: 1 });
        assert_eq!(CostTable::new(endless), Err(CostError::TooMany(KNOTS_MAX + 1)));
    }

    #[test]
    fn measurements_that_fall_are_levelled() {
        let table = CostTable::measured(knots(&[(4, 10), (1, 12), (0, 3), (8, 40)]));
        assert_eq!(table, CostTable::new(knots(&[(1, 12), (4, 12), (8, 40)])).unwrap());
        assert_eq!(CostTable::measured(knots(&[])), CostTable::unknown());
    }
}
