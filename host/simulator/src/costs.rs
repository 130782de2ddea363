//! What tasks cost a running host: the mean by cell type and batch size, because what holds a task up now and then is part of what it costs. Beyond
//! the sizes that were seen it is what was calibrated, brought to the same level.

use std::collections::BTreeMap;

use cellwright_scheduler::{CellTypeId, CostTable, Knot};

use crate::device::{Delays, Durations, Handover};

/// Delays of one kind that are kept: of more, each second, each fourth and so on.
const KEPT_MAX: usize = 1 << 16;
/// Parts of equal size, of whose means it is said how delays are spread: a part is two of a hundred, so that what is rare and long is not lost.
const PARTS: usize = 50;
/// Batch sizes of which fewer tasks were seen say nothing.
const TIMES_LEAST: u64 = 5;

/// Times of which only the mean is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    count: u64,
    sum_ns: u128,
}

impl Mean {
    pub(crate) fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += u128::from(ns);
    }

    fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, sum_ns: self.sum_ns + other.sum_ns }
    }

    /// How many there are.
    pub(crate) const fn count(self) -> u64 {
        self.count
    }

    /// Nothing, if there are none.
    pub(crate) fn mean(self) -> u64 {
        self.if_any().unwrap_or(0)
    }

    /// The mean, if there are any.
    pub(crate) fn if_any(self) -> Option<u64> {
        (self.count > 0).then(|| u64::try_from(self.sum_ns / u128::from(self.count)).unwrap_or(u64::MAX))
    }
}

/// Delays that were seen, of which it is asked how they are spread.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    kept: Vec<u64>,
    seen: u64,
    /// Which of them are kept: those whose number has so many zeros at its end.
    zeros: u32,
}

impl Sampled {
    pub(crate) fn add(&mut self, ns: u64) {
        let number = self.seen;
        self.seen += 1;
        if number.trailing_zeros() < self.zeros {
            return;
        }
        if self.kept.len() == KEPT_MAX {
            self.zeros += 1;
            let mut second = 0;
            self.kept.retain(|_| {
                second += 1;
                second % 2 == 1
            });
        }
        self.kept.push(ns);
    }

    /// Some that are equally likely, ascending, whose mean is that of all; none, if nothing was seen.
    pub(crate) fn durations(&self) -> Option<Durations> {
        let mut kept = self.kept.clone();
        kept.sort_unstable();
        let parts = PARTS.min(kept.len());
        let part = |number: usize| &kept[number * kept.len() / parts..(number + 1) * kept.len() / parts];
        let mean = |times: &[u64]| times.iter().sum::<u64>() / times.len() as u64;
        (parts > 0).then(|| Durations::new((0..parts).map(|number| mean(part(number))).collect()))
    }
}

/// What was seen to pass beside tasks.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Until ends were heard of, while a worker had nothing to do, and while none had.
    pub(crate) handovers: [Sampled; 2],
    /// Until a worker began that had had nothing to do.
    pub(crate) wakes: Sampled,
    /// Until one began that could have begun.
    pub(crate) between: Mean,
}

impl Passed {
    /// That in place of what it was, as far as any was seen.
    pub(crate) fn update(&self, delays: &mut Delays) {
        let Handover { idle, busy } = &mut delays.handover;
        let [seen_idle, seen_busy] = &self.handovers;
        for (of, seen) in [(idle, seen_idle), (busy, seen_busy), (&mut delays.wake, &self.wakes)] {
            if let Some(durations) = seen.durations() {
                *of = durations;
            }
        }
        delays.between_ns = self.between.if_any().unwrap_or(delays.between_ns);
    }
}

/// Tasks that were seen.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// By cell type and batch size: of tasks that began while others were at work, and while none was.
    times: Vec<BTreeMap<u32, [Mean; 2]>>,
}

impl Samples {
    /// A step of a task of so many rows took so long, which began while no other worker had a task (`quiet`), or not.
    pub(crate) fn add(&mut self, cell_type: CellTypeId, rows: u32, step_ns: u64, quiet: bool) {
        if cell_type.index() >= self.times.len() {
            self.times.resize_with(cell_type.index() + 1, BTreeMap::new);
        }
        self.times[cell_type.index()].entry(rows).or_default()[usize::from(quiet)].add(step_ns);
    }

    /// Means of a cell type by batch size, ascending: of tasks that began while no other worker had one, or while some had.
    pub(crate) fn seen_while(&self, cell_type: CellTypeId, quiet: bool) -> Vec<Knot> {
        self.means(cell_type, |times| times[usize::from(quiet)])
    }

    /// Those of tasks that began while others were at work, where there were such, else of all.
    pub(crate) fn usual(&self, cell_type: CellTypeId) -> Vec<Knot> {
        let busy = self.seen_while(cell_type, false);
        if busy.is_empty() { self.means(cell_type, |[busy, quiet]| busy.and(*quiet)) } else { busy }
    }

    /// Sizes of which a larger one took less time have their mean together: so none is faster than a smaller one, and what all of them took is as it was.
    fn means(&self, cell_type: CellTypeId, which: impl Fn(&[Mean; 2]) -> Mean) -> Vec<Knot> {
        let of_type = self.times.get(cell_type.index()).into_iter().flatten().map(|(rows, times)| (*rows, which(times)));
        let mut levels: Vec<(Vec<u32>, Mean)> = Vec::new();
        for (rows, times) in of_type.filter(|(_, times)| times.count >= TIMES_LEAST) {
            let mut level = (vec![rows], times);
            while let Some(before) = levels.pop_if(|(_, before)| before.mean() > level.1.mean()) {
                level = ([before.0, level.0].concat(), before.1.and(level.1));
            }
            levels.push(level);
        }
        let knots = |(rows, times): (Vec<u32>, Mean)| rows.into_iter().map(move |rows| Knot { rows, nanoseconds: times.mean() });
        levels.into_iter().flat_map(knots).collect()
    }

    /// The curve of a cell type that was calibrated so.
    pub(crate) fn table(&self, cell_type: CellTypeId, calibrated: &CostTable) -> CostTable {
        let seen = self.usual(cell_type);
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
        for (time, quiet) in [(300, true), (310, false), (290, true), (320, false), (305, false)] {
            samples.add(CellTypeId(2), 8, time, quiet);
        }
        samples.add(CellTypeId(2), 32, 1, false);
        let table = samples.table(CellTypeId(2), &calibrated);
        assert_eq!(table.knots(), [knot(1, 152), knot(8, 305), knot(64, 1220)]);
        assert_eq!(samples.table(CellTypeId(0), &calibrated), calibrated);
    }

    #[test]
    fn sizes_that_seemed_faster_than_smaller_ones_have_their_mean_together() {
        let mut samples = Samples::default();
        for (rows, count, step_ns) in [(1, 5, 40), (2, 10, 130), (3, 5, 60), (4, 15, 88), (8, 5, 200)] {
            (0..count).for_each(|_| samples.add(CellTypeId(0), rows, step_ns, false));
        }
        // Thirty tasks of two to four rows took 2,920 together.
        let times: Vec<(u32, u64)> = samples.usual(CellTypeId(0)).iter().map(|knot| (knot.rows, knot.nanoseconds)).collect();
        assert_eq!(times, [(1, 40), (2, 97), (3, 97), (4, 97), (8, 200)]);
    }

    #[test]
    fn however_many_delays_there_are_it_is_said_how_they_are_spread() {
        let mut sampled = Sampled::default();
        assert_eq!(sampled.durations(), None);
        [9, 8].into_iter().for_each(|ns| sampled.add(ns));
        assert_eq!(sampled.durations(), Some(Durations::new(vec![8, 9])));
        let mut sampled = Sampled::default();
        // Sixty-four in 640 take ten times as long.
        (0..5 * KEPT_MAX as u64).for_each(|number| sampled.add(if number / 64 % 10 == 7 { 50_000 } else { 5_000 }));
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&sampled.kept.len()));
        let durations = sampled.durations().unwrap();
        let times = durations.nanoseconds();
        assert_eq!(times.len(), PARTS);
        assert!(times[..44].iter().all(|ns| *ns == 5_000) && times[46..].iter().all(|ns| *ns == 50_000), "{times:?}");
    }
}
