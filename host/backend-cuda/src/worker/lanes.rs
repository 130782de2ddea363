//! A worker's lanes: who has joined, and who has left while a task that names it is in flight.
//!
//! A task keeps the numbers of its lanes. The owner of a lane that has left is known until the
//! tasks before are complete.

use std::collections::VecDeque;
use std::sync::Arc;

use cellwright_backend::LaneId;

use super::joined::{Joined, Whose};
use super::seat::Seat;

/// Who has which lane now.
#[derive(Clone, Copy)]
pub(super) struct Seats<'a> {
    seats: &'a [Seat],
    whose: &'a [Option<Arc<Whose>>],
}

impl<'a> Seats<'a> {
    /// Of lanes of which nothing else is asked.
    #[cfg(test)]
    pub(super) const fn alone(seats: &'a [Seat]) -> Self {
        Self { seats, whose: &[] }
    }

    /// Whether anybody has that lane.
    #[inline]
    pub(super) fn has(self, lane: LaneId) -> bool {
        matches!(self.whose.get(lane.index()), Some(Some(_)))
    }

    /// What most steps need of a lane that the newest task names.
    #[inline]
    pub(super) fn of(self, lane: LaneId) -> &'a Seat {
        &self.seats[lane.index()]
    }

    /// The rest of it.
    pub(super) fn whose(self, lane: LaneId) -> &'a Arc<Whose> {
        self.whose[lane.index()].as_ref().expect("whom a task names was looked for when it came")
    }

    /// Whether a step of a lane that the newest task names is worth computing, as far as the host knows.
    #[inline]
    pub(super) fn runs(self, lane: LaneId, step: u32) -> bool {
        let seat = self.of(lane);
        step < seat.bound && (!seat.may_stop || step < self.whose(lane).executed())
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Empty are those of lanes that nobody has.
    seats: Vec<Seat>,
    whose: Vec<Option<Arc<Whose>>>,
    /// Who has left, in that order, and the first task that no longer names it.
    left: VecDeque<(u64, LaneId, Arc<Whose>)>,
}

impl Lanes {
    pub(super) fn join(&mut self, lane: LaneId, Joined { seat, whose }: Joined) {
        if lane.index() >= self.seats.len() {
            self.seats.resize_with(lane.index() + 1, || Seat::EMPTY);
            self.whose.resize(lane.index() + 1, None);
        }
        self.seats[lane.index()] = seat;
        self.whose[lane.index()] = Some(whose);
    }

    /// Who has that lane leaves it, if anybody has: no task from that one on names it.
    pub(super) fn leave(&mut self, lane: LaneId, seq: u64) -> Option<&Whose> {
        let whose = self.whose.get_mut(lane.index())?.take()?;
        self.seats[lane.index()] = Seat::EMPTY;
        self.left.push_back((seq, lane, whose));
        self.left.back().map(|(.., whose)| &**whose)
    }

    /// Who has which lane now.
    #[inline]
    pub(super) fn seats(&self) -> Seats<'_> {
        Seats { seats: &self.seats, whose: &self.whose }
    }

    /// What most steps need of a lane that the newest task names.
    #[inline]
    pub(super) fn of(&self, lane: LaneId) -> &Seat {
        self.seats().of(lane)
    }

    /// Who had a lane when that task was submitted.
    pub(super) fn of_task(&self, lane: LaneId, seq: u64) -> Option<&Whose> {
        let left = self.left.iter().find(|(since, left, _)| *since > seq && *left == lane).map(|(.., whose)| whose);
        left.or_else(|| self.whose.get(lane.index())?.as_ref()).map(|whose| &**whose)
    }

    /// Tasks up to that one are complete.
    pub(super) fn complete(&mut self, seq: u64) {
        while self.left.pop_front_if(|(since, ..)| *since <= seq + 1).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::joined::Arena;
    use cellwright_backend::{CellTypeId, Lane, PlacedGrowth, Slot};
    use cellwright_conformance::driver::{growth_of, independent};

    fn joined(slot: u32) -> Joined {
        let growth = PlacedGrowth {
            growth: Arc::new(growth_of(vec![independent(0, 1, Vec::new(), 3)])),
            cells: [CellTypeId(0)].into(),
            slots: [vec![Slot(slot)]].into(),
            executed: [std::sync::atomic::AtomicU32::new(3)].into(),
            earlier: Vec::new(),
            tensors: Vec::new(),
            first_tensor: 0,
            flags: Arc::default(),
        };
        let lane = Lane { growth: Arc::new(growth), chain: 0, stage: 0 };
        Joined::new(Arc::new(lane), None, Arena { address: crate::driver::DeviceAddress(0), cells: &[] })
    }

    #[test]
    fn who_had_a_lane_is_known_until_the_tasks_that_name_it_are_complete() {
        let (lane, mut lanes) = (LaneId(3), Lanes::default());
        assert!(!lanes.seats().has(lane) && lanes.leave(lane, 1).is_none());
        lanes.join(lane, joined(10));
        // Tasks 1 to 4 are on their way: the first one names who came first, the next two who came then.
        for (seq, slot) in [(2, 20), (4, 40)] {
            assert!(lanes.leave(lane, seq).is_some());
            lanes.join(lane, joined(slot));
        }
        let who = |lanes: &Lanes, seq: u64| lanes.of_task(lane, seq).map(|whose| whose.lane.slot().0);
        let all = |lanes: &Lanes| [1, 2, 3, 4].map(|seq| who(lanes, seq));
        assert_eq!(all(&lanes), [Some(10), Some(20), Some(20), Some(40)]);
        lanes.complete(1);
        assert_eq!(all(&lanes), [Some(20), Some(20), Some(20), Some(40)]);
        lanes.complete(2);
        assert_eq!(lanes.left.len(), 1);
        lanes.complete(3);
        assert_eq!((lanes.left.len(), lanes.of(lane).slot), (0, Slot(40)));
    }
}
