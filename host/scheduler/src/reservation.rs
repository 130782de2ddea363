//! The slots of a growing request: one block of the arena, handed out to its growths stage by stage.
//!
//! First fit over a short sorted list of gaps: a request has few live stages, and lowest-first keeps the gaps together.

/// A block and what of it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    slots: u32,
    /// `(start, slots)` relative to the block, ascending, never adjacent.
    gaps: Vec<(u32, u32)>,
}

impl Reservation {
    /// All free.
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots, gaps: vec![(0, slots)] }
    }

    /// Slots of the block.
    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    /// `need` slots in a row, relative to the block.
    pub(crate) fn allocate(&mut self, need: u32) -> Option<u32> {
        let at = self.gaps.iter().position(|(_, slots)| *slots >= need)?;
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

    #[test]
    fn gaps_join() {
        let mut reservation = Reservation::new(10);
        let starts: Vec<_> = [3, 3, 4].into_iter().map(|need| reservation.allocate(need)).collect();
        assert_eq!(starts, [Some(0), Some(3), Some(6)]);
        assert_eq!(reservation.allocate(1), None);
        reservation.free(0, 3);
        reservation.free(6, 4);
        assert_eq!(reservation.allocate(5), None, "seven are free, but not in a row");
        reservation.free(3, 3);
        assert_eq!(reservation, Reservation::new(10));
    }
}
