//! How fast a host was as time went by. It is not equally fast all day, because others have its processors now and then, and what is slow for a second
//! makes a queue of which a mean over the day knows nothing.

use std::collections::BTreeMap;

use cellwright_scheduler::CellTypeId;

use crate::device::{CellCosts, Delays};
use crate::meter::{Ended, Meter};

/// A part of the time in which a host is taken to have been equally fast.
const PART_NS: u64 = 1_000_000_000;

/// A part of the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// How many times as long tasks took as their costs say.
    pub(super) longer: f64,
    /// What passed beside them.
    pub(super) delays: Delays,
}

/// What was seen in a part of the time.
#[derive(Clone, Debug, Default)]
struct Seen {
    number: u64,
    /// Steps of tasks, by what their costs depend on.
    steps: BTreeMap<(CellTypeId, u32, bool), u64>,
    /// How long all of them took.
    busy_ns: u64,
    delays: Delays,
}

/// How fast a host was.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    seen: Vec<Seen>,
    /// What passes beside tasks, as far as it was seen.
    delays: Delays,
    /// By the number of its first moment, ascending.
    parts: Vec<(u64, Part)>,
}

impl Pace {
    /// The scheduler is called then; what passes between tasks and after them is in the meter.
    pub(super) fn at(&mut self, now: u64, meter: &mut Meter) {
        let number = now / PART_NS;
        if self.seen.last().is_none_or(|last| last.number != number) {
            self.cut(meter);
            self.seen.push(Seen { number, ..Seen::default() });
        }
    }

    fn cut(&mut self, meter: &mut Meter) {
        if let Some(last) = self.seen.last_mut() {
            meter.cut().update(&mut self.delays);
            last.delays.clone_from(&self.delays);
        }
    }

    /// Tasks took so long together.
    pub(super) fn took(&mut self, tasks: &[Ended], busy_ns: u64) {
        let Some(last) = self.seen.last_mut() else { return };
        for &Ended { cell_type, rows, steps, quiet } in tasks {
            *last.steps.entry((cell_type, rows, quiet)).or_default() += u64::from(steps);
        }
        last.busy_ns += busy_ns;
    }

    /// All was seen, and tasks cost so much.
    pub(super) fn settle(&mut self, meter: &mut Meter, costs: &[CellCosts]) {
        self.cut(meter);
        let mut part = Part { longer: 1.0, ..Part::default() };
        for seen in self.seen.drain(..) {
            let cost = |((cell_type, rows, quiet), steps): (&(CellTypeId, u32, bool), &u64)| {
                Some(costs.get(cell_type.index())?.compute_ns(*rows, *quiet).saturating_mul(*steps))
            };
            let expected_ns: u64 = seen.steps.iter().filter_map(cost).sum();
            if expected_ns > 0 {
                part.longer = seen.busy_ns as f64 / expected_ns as f64;
            }
            part.delays = seen.delays;
            self.parts.push((seen.number, part.clone()));
        }
    }

    /// How fast it is then.
    pub(super) fn part(&self, now: u64) -> Option<&Part> {
        let number = now / PART_NS;
        let after = self.parts.partition_point(|(first, _)| *first <= number);
        self.parts.get(after.saturating_sub(1)).map(|(_, part)| part)
    }
}
