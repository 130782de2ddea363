//! The memory of a request's graph, which its plugin made as large as it liked, within limits.

use std::sync::{Arc, Weak};

use cellwright_cell_graph::UnfoldedGrowth;

use crate::answer_room::{AnswerRoom, NoRoom};

/// A request's growths are not counted while they take less together: those of all requests that may be in flight take little.
const COUNTED_MIN: u64 = 16 << 10;
/// What a growth takes while it runs, beside what it takes itself: of each of its stages and nodes the engine and the scheduler keep something too.
const RUNNING: u64 = 3;
/// So many growths are looked through whenever one more comes; of more, when they are twice as many as there were left.
const FEW: usize = 64;

/// Growths that somebody may hold, and what is taken for them.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    held: Vec<(Weak<UnfoldedGrowth>, u64)>,
    /// Whether there was one before: most requests have a single small one, which needs no list.
    has_begun: bool,
    /// How many there were when they were last looked through.
    left: usize,
    /// What all of them take.
    bytes: u64,
    taken: u64,
}

impl Graphs {
    pub(super) fn hold(&mut self, growth: &Arc<UnfoldedGrowth>, room: &AnswerRoom) -> Result<(), NoRoom> {
        if self.held.len() < FEW || self.held.len() >= 2 * self.left {
            self.held.retain(|(growth, _)| growth.strong_count() > 0);
            self.left = self.held.len();
            self.bytes = self.held.iter().fold(0, |sum, (_, bytes)| bytes.saturating_add(sum));
        }
        let bytes = growth.bytes().saturating_mul(RUNNING);
        let all = self.bytes.saturating_add(bytes);
        let taken = if all < COUNTED_MIN { 0 } else { all };
        if taken != self.taken {
            room.change_graphs(self.taken, taken)?;
            self.taken = taken;
        }
        if std::mem::replace(&mut self.has_begun, true) || taken > 0 {
            self.held.push((Arc::downgrade(growth), bytes));
            self.bytes = all;
        }
        Ok(())
    }

    /// Nobody holds any of them.
    pub(super) fn give_back(&mut self, room: &AnswerRoom) {
        // To take less always succeeds.
        let _ = room.change_graphs(self.taken, 0);
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_room::HostRoom;

    fn growth(kib: usize) -> Arc<UnfoldedGrowth> {
        let cancel = vec![0; kib << 8];
        Arc::new(UnfoldedGrowth { first_chain: 0, chains: Vec::new(), outputs: Vec::new(), cancel, next: None, nodes: 0, shared: None })
    }

    #[test]
    fn growths_have_room_while_somebody_holds_them() {
        let tenant = Arc::new(HostRoom::new(300 << 10).tenant(0, 1));
        let room = Arc::new(AnswerRoom::new(&tenant, 1));
        let mut graphs = Graphs::default();
        let (first, second) = (growth(49), growth(49));
        graphs.hold(&first, &room).unwrap();
        assert!(graphs.hold(&growth(53), &room).is_err(), "three times as much is taken");
        graphs.hold(&second, &room).unwrap();
        for _ in 0..100 {
            graphs.hold(&growth(1), &room).unwrap();
        }
        let (mut others, other_room) = (Graphs::default(), AnswerRoom::new(&tenant, 1));
        assert!(others.hold(&growth(50), &other_room).is_err());
        drop(first);
        graphs.hold(&growth(1), &room).unwrap();
        others.hold(&growth(50), &other_room).unwrap();
        graphs.give_back(&room);
        others.hold(&growth(50), &other_room).unwrap();
        others.give_back(&other_room);
        // However small each of them is.
        let small: Vec<_> = (0..1000).map(|_| growth(1)).collect();
        let fits = small.iter().take_while(|growth| others.hold(growth, &other_room).is_ok()).count();
        assert!((90..=101).contains(&fits), "{fits} of 3 KiB in 300, beside the first");
        drop(small);
        others.give_back(&other_room);
        drop((room, other_room));
        assert!(AnswerRoom::new(&tenant, u64::MAX).change(0, 300 << 10).is_ok(), "all of it was given back");
    }
}
