//! The slots of a growing request: one block of the arena, given to its growths stage by stage.
//!
//! Allocation is first fit over a short sorted list of gaps. A request has few live stages, and the
//! lowest gap first keeps the gaps together.
//!
//! The slots of a stage are contiguous, and held values are never moved. So the block is twice as
//! large as the request may hold at once, where an arena has that much. A growth then finds room
//! under two conditions. Together with the held values it stays within the limit, and the held
//! values are contiguous: the larger of the two gaps beside them is large enough. That is the case
//! if one stage is kept from growth to growth, of any length, or stages that are neighbours.
//!
//! For stages that are kept far apart no fixed multiple is enough. The multiple would have to grow
//! with the logarithm of their lengths (Robson, "Bounds for some functions concerning dynamic
//! storage allocation", 1974). There a growth may, rarely, find only gaps that are all too small.

/// A block and what of it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// Slots that may still be held.
    left: u32,
    slots: u32,
    /// `(start, slots)` relative to the block, ascending, never adjacent.
    gaps: Vec<(u32, u32)>,
}

impl Reservation {
    /// The size of a block in which `slots` slots can be held at once, given the largest free block
    /// of each arena. Headroom never excludes an arena in which `slots` fit.
    pub(crate) fn room_for(slots: u32, largest: impl Iterator<Item = u32>) -> u32 {
        largest.filter(|largest| *largest >= slots).fold(slots.saturating_mul(2), u32::min)
    }

    /// All free, of a block of `room` slots of which so many may be held at once.
    pub(crate) fn new(slots: u32, room: u32) -> Self {
        Self { left: slots, slots, gaps: vec![(0, room)] }
    }

    /// Slots that may be held at once.
    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    /// `need` slots in a row, relative to the block.
    pub(crate) fn allocate(&mut self, need: u32) -> Option<u32> {
        let left = self.left.checked_sub(need)?;
        let at = self.gaps.iter().position(|(_, slots)| *slots >= need)?;
        self.left = left;
        let (start, slots) = self.gaps[at];
        if slots == need {
            self.gaps.remove(at);
        } else {
            self.gaps[at] = (start + need, slots - need);
        }
        Some(start)
    }

    /// Gives back what `allocate` gave.
    pub(crate) fn free(&mut self, start: u32, slots: u32) {
        self.left += slots;
        let at = self.gaps.partition_point(|(other, _)| *other < start);
        let joins_next = self.gaps.get(at).is_some_and(|(next, _)| start + slots == *next);
        let joins_last = at > 0 && self.gaps[at - 1].0 + self.gaps[at - 1].1 == start;
        match (joins_last, joins_next) {
            (true, true) => self.gaps[at - 1].1 += slots + self.gaps.remove(at).1,
            (true, false) => self.gaps[at - 1].1 += slots,
            (false, true) => self.gaps[at] = (start, slots + self.gaps[at].1),
            (false, false) => self.gaps.insert(at, (start, slots)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gaps_join() {
        let mut reservation = Reservation::new(10, 10);
        let starts: Vec<_> = [3, 3, 4].into_iter().map(|need| reservation.allocate(need)).collect();
        assert_eq!(starts, [Some(0), Some(3), Some(6)]);
        assert_eq!(reservation.allocate(1), None);
        reservation.free(0, 3);
        reservation.free(6, 4);
        assert_eq!(reservation.allocate(5), None, "seven are free, but not in a row");
        reservation.free(3, 3);
        assert_eq!(reservation, Reservation::new(10, 10));
    }

    #[test]
    fn headroom_leaves_no_arena_out() {
        let room = |slots, largest: &[u32]| Reservation::room_for(slots, largest.iter().copied());
        assert_eq!([room(10, &[64, 32]), room(10, &[64, 16]), room(10, &[64, 8]), room(40, &[64, 32])], [20, 16, 20, 64]);
        assert_eq!([room(40, &[8]), room(u32::MAX, &[8])], [80, u32::MAX], "it is not to be had anyway");
    }

    #[test]
    fn no_more_is_held_than_may_be() {
        let mut reservation = Reservation::new(10, 20);
        assert_eq!([7, 4, 3, 1].map(|need| reservation.allocate(need)), [Some(0), None, Some(7), None]);
        reservation.free(0, 7);
        assert_eq!([8, 7].map(|need| reservation.allocate(need)), [None, Some(0)]);
    }

    proptest! {
        /// Growths of several stages, one chain of each kept until the next is placed: within the
        /// limit there is always room.
        #[test]
        fn beside_what_lies_in_a_row_there_is_room(
            growths in prop::collection::vec((prop::collection::vec(1_u32..40, 1..5), any::<prop::sample::Index>()), 1..50)
        ) {
            const MAY_HOLD: u32 = 60;
            let mut reservation = Reservation::new(MAY_HOLD, 2 * MAY_HOLD);
            let mut kept = (0, 0);
            for (stages, keeps) in growths {
                if kept.1 + stages.iter().sum::<u32>() > MAY_HOLD {
                    continue;
                }
                let placed: Vec<_> = stages.iter().map(|need| (reservation.allocate(*need), *need)).collect();
                prop_assert!(placed.iter().all(|(start, _)| start.is_some()), "{placed:?} beside {kept:?}");
                let mut held: Vec<_> = placed.into_iter().filter_map(|(start, need)| Some((start?, need))).collect();
                if kept.1 > 0 {
                    reservation.free(kept.0, kept.1);
                }
                kept = held.swap_remove(keeps.index(held.len()));
                held.into_iter().for_each(|(start, need)| reservation.free(start, need));
            }
        }
    }
}
