//! What tasks cost a running host: the mean by cell type and batch size, because what holds a task up now and then is part of what it costs. Beyond
//! the sizes that were seen it is what was calibrated, brought to the same level.

use std::collections::BTreeMap;

use cellwright_scheduler::{CellTypeId, CostTable, Knot};

/// Times kept for a median.
const TIMES_MAX: usize = 1 << 10;
/// Batch sizes of which fewer tasks were seen say nothing.
const TIMES_LEAST: u64 = 5;

/// Times of which only the mean is asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    count: u64,
    sum_ns: u128,
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += u128::from(ns);
    }

    /// Nothing, if there are none.
    fn mean(self) -> u64 {
        u64::try_from(self.sum_ns / u128::from(self.count.max(1))).unwrap_or(u64::MAX)
    }
}

/// Tasks that were seen.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    times: Vec<BTreeMap<u32, Times>>,
    handovers: Times,
    /// The first of them.
    handovers_first: Vec<u64>,
    /// How many times between tasks were seen, and their sum.
    between: (i64, i64),
}

impl Samples {
    /// A step of a task of so many rows took so long.
    pub(crate) fn add(&mut self, cell_type: CellTypeId, rows: u32, step_ns: u64) {
        if cell_type.index() >= self.times.len() {
            self.times.resize_with(cell_type.index() + 1, BTreeMap::new);
        }
        self.times[cell_type.index()].entry(rows).or_default().add(step_ns);
    }

    /// The end of a task was heard of so long after it.
    pub(crate) fn add_handover(&mut self, ns: u64) {
        self.handovers.add(ns);
        if self.handovers_first.len() < TIMES_MAX {
            self.handovers_first.push(ns);
        }
    }

    /// The median of those times.
    pub(crate) fn handover_ns(&self) -> u64 {
        let mut handovers = self.handovers_first.clone();
        handovers.sort_unstable();
        handovers.get(handovers.len() / 2).copied().unwrap_or(0)
    }

    /// Their mean: what they cost together, those included that waited for a processor.
    pub(crate) fn mean_handover_ns(&self) -> u64 {
        self.handovers.mean()
    }

    /// So much passed between two tasks on a worker, by two clocks that do not quite agree: it may be less than nothing.
    pub(crate) fn add_between(&mut self, ns: i64) {
        let (count, sum) = &mut self.between;
        (*count, *sum) = (*count + 1, sum.saturating_add(ns));
    }

    /// The mean of those times.
    pub(crate) fn between_ns(&self) -> u64 {
        let (count, sum) = self.between;
        u64::try_from(sum / count.max(1)).unwrap_or(0)
    }

    /// Means of a cell type by batch size, ascending.
    pub(crate) fn seen(&self, cell_type: CellTypeId) -> Vec<Knot> {
        let of_type = self.times.get(cell_type.index()).into_iter().flatten().filter(|(_, times)| times.count >= TIMES_LEAST);
        of_type.map(|(rows, times)| Knot { rows: *rows, nanoseconds: times.mean() }).collect()
    }

    /// The curve of a cell type that was calibrated so.
    pub(crate) fn table(&self, cell_type: CellTypeId, calibrated: &CostTable) -> CostTable {
        let seen = self.seen(cell_type);
        let (Some(first), Some(last)) = (seen.first().copied(), seen.last().copied()) else { return calibrated.clone() };
        let level = |knot: Knot, edge: Knot| {
            let of = u128::from(calibrated.nanoseconds(edge.rows).unwrap_or(0).max(1));
            let nanoseconds = u128::from(knot.nanoseconds) * u128::from(edge.nanoseconds) / of;
            Knot { nanoseconds: u64::try_from(nanoseconds).unwrap_or(u64::MAX), ..knot }
        };
        let below = calibrated.knots().iter().filter(|knot| knot.rows < first.rows).map(|knot| level(*knot, first));
        let above = calibrated.knots().iter().filter(|knot| knot.rows > last.rows).map(|knot| level(*knot, last));
        CostTable::measured(below.chain(seen.iter().copied()).chain(above))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_goes_before_what_was_calibrated() {
        let knot = |rows, nanoseconds| Knot { rows, nanoseconds };
        let calibrated = CostTable::new([knot(1, 100), knot(8, 200), knot(64, 800)]).unwrap();
        let mut samples = Samples::default();
        for time in [300, 310, 290, 320, 305] {
            samples.add(CellTypeId(2), 8, time);
        }
        samples.add(CellTypeId(2), 32, 1);
        assert_eq!(samples.handover_ns(), 0);
        [9, 70, 8].into_iter().for_each(|ns| samples.add_handover(ns));
        assert_eq!((samples.handover_ns(), samples.mean_handover_ns()), (9, 29));
        let table = samples.table(CellTypeId(2), &calibrated);
        assert_eq!(table.knots(), [knot(1, 152), knot(8, 305), knot(64, 1220)]);
        assert_eq!(samples.table(CellTypeId(0), &calibrated), calibrated);
    }
}
