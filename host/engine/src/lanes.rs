//! Which lanes are placed, and which workers have been told of them. What crosses to a worker follows joins and leaves, not batches.

use std::collections::VecDeque;
use std::sync::Arc;

use cellwright_backend::{Lane, LaneIndex, Slot};
use cellwright_scheduler::{LaneId, ModelId, RequestId, WorkerId};

/// More workers than bits of the set of those that know a lane would need another structure.
pub(crate) const WORKERS_MAX: usize = 64;

/// A placed lane.
pub(crate) struct LaneEntry {
    pub(crate) lane: Arc<Lane>,
    pub(crate) request: RequestId,
    /// Which of the request's growths.
    pub(crate) growth: u32,
    /// Its request's.
    pub(crate) model: ModelId,
    /// What it held before was another tenant's.
    pub(crate) scrub: bool,
    /// Workers that have it in their table.
    known: u64,
}

impl LaneEntry {
    pub(crate) const fn new(lane: Arc<Lane>, request: RequestId, growth: u32, model: ModelId, scrub: bool) -> Self {
        Self { lane, request, growth, model, scrub, known: 0 }
    }

    /// The slots that `steps` steps from `step` on are the first of this request to write, to be zeroed before them: another tenant held them.
    ///
    /// A node is zeroed by the task that computes it and by no other, because other workers may compute other nodes of the lane meanwhile.
    pub(crate) fn scrub(&self, step: u32, steps: u32, node_slots: u32) -> Option<(Slot, u32)> {
        let retention = self.lane.stage().retention;
        let end = step.saturating_add(steps).min(retention.places(self.lane.chain().length.bound));
        let first = self.lane.slot().0.checked_add(step.checked_mul(node_slots)?)?;
        let count = end.checked_sub(step).filter(|places| *places > 0)?.checked_mul(node_slots)?;
        self.scrub.then_some((Slot(first), count))
    }
}

/// All placed lanes, by id.
#[derive(Default)]
pub(crate) struct Lanes {
    entries: Vec<Option<LaneEntry>>,
    /// For each worker; none if it is lost.
    left: Vec<Option<Left>>,
}

/// Lanes that were released and that a worker knows. A worker that has nothing to do keeps them until its next task, and with them what their growths refer to
/// (tensors of requests that have ended): at most the lanes that were placed when it got its last task, each once.
#[derive(Default)]
struct Left {
    /// Those that it must forget with its next task.
    next: Vec<LaneIndex>,
    /// The same, which are held until that task is complete, and so freed by the engine's thread, which allocated most of what they refer to, and not by the
    /// worker's, which would have to hand all of it back to another thread's heap.
    held: Vec<Arc<Lane>>,
    /// Those of tasks that are on their way, by their numbers.
    told: VecDeque<(u64, Vec<Arc<Lane>>)>,
}

impl Lanes {
    pub(crate) fn new(workers: usize) -> Self {
        Self { entries: Vec::new(), left: (0..workers).map(|_| Some(Left::default())).collect() }
    }

    pub(crate) fn place(&mut self, id: LaneId, entry: LaneEntry) {
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.entries[id.index()] = Some(entry);
    }

    pub(crate) fn get(&self, id: LaneId) -> Option<&LaneEntry> {
        self.entries.get(id.index())?.as_ref()
    }

    /// Forgets a lane; workers that know it are told with their next task.
    pub(crate) fn release(&mut self, id: LaneId) -> Option<LaneEntry> {
        let entry = self.entries.get_mut(id.index())?.take()?;
        for (worker, left) in self.left.iter_mut().enumerate() {
            if let Some(left) = left.as_mut().filter(|_| entry.known & (1 << worker) != 0) {
                left.next.push(LaneIndex(id.0));
                left.held.push(Arc::clone(&entry.lane));
            }
        }
        Some(entry)
    }

    /// The lane, which is about to run on a worker, and whether that is now to be told of it.
    pub(crate) fn introduce(&mut self, id: LaneId, worker: WorkerId) -> Option<(&LaneEntry, bool)> {
        let entry = self.entries.get_mut(id.index())?.as_mut()?;
        let bit = 1 << worker.0;
        let is_new = entry.known & bit == 0;
        entry.known |= bit;
        Some((entry, is_new))
    }

    /// What the worker must forget with that task, handed over once.
    pub(crate) fn take_leaves(&mut self, worker: WorkerId, task: u64) -> Vec<LaneIndex> {
        let Some(left) = &mut self.left[worker.index()] else { return Vec::new() };
        if !left.held.is_empty() {
            left.told.push_back((task, std::mem::take(&mut left.held)));
        }
        std::mem::take(&mut left.next)
    }

    /// A worker's tasks up to that one are complete.
    pub(crate) fn completed(&mut self, worker: WorkerId, task: u64) {
        let Some(left) = &mut self.left[worker.index()] else { return };
        while left.told.pop_front_if(|(number, _)| *number <= task).is_some() {}
    }

    /// A worker is lost: it is told of nothing any more.
    pub(crate) fn lost(&mut self, worker: WorkerId) {
        self.left[worker.index()] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_backend::{FirstSlots, PlacedGrowth};
    use cellwright_cell_graph::UnfoldedGrowth;

    fn lane() -> Arc<Lane> {
        let nothing = UnfoldedGrowth { first_chain: 0, chains: Vec::new(), outputs: Vec::new(), cancel: Vec::new(), next: None, nodes: 0 };
        let growth = PlacedGrowth {
            growth: Arc::new(nothing),
            cells: [].into(),
            slots: FirstSlots::default(),
            executed: [].into(),
            earlier: Vec::new(),
            tensors: Vec::new(),
            first_tensor: 0,
            flags: Arc::default(),
        };
        Arc::new(Lane { growth: Arc::new(growth), chain: 0, stage: 0 })
    }

    #[test]
    fn what_a_worker_knows_is_held_until_it_has_forgotten_it() {
        let workers = [WorkerId(0), WorkerId(1)];
        let (mut lanes, own) = (Lanes::new(2), [0; 4].map(|_| lane()));
        let users = || own.each_ref().map(Arc::strong_count);
        for (id, lane) in (0..).map(LaneId).zip(&own) {
            lanes.place(id, LaneEntry::new(Arc::clone(lane), RequestId(0), 0, ModelId(0), false));
        }
        // The first is known to both, the next two to one each, the last to none.
        for (id, worker) in [(0, 0), (0, 1), (1, 0), (2, 1)] {
            let new = |lanes: &mut Lanes| lanes.introduce(LaneId(id), workers[worker]).map(|(_, is_new)| is_new);
            assert_eq!([new(&mut lanes), new(&mut lanes)], [Some(true), Some(false)]);
        }
        (0..4).for_each(|id| drop(lanes.release(LaneId(id))));
        assert_eq!(users(), [3, 2, 2, 1]);
        assert_eq!(lanes.take_leaves(workers[0], 7), [LaneIndex(0), LaneIndex(1)]);
        assert_eq!(lanes.take_leaves(workers[0], 8), []);
        lanes.completed(workers[0], 6);
        assert_eq!(users(), [3, 2, 2, 1]);
        lanes.completed(workers[0], 8);
        assert_eq!(users(), [2, 1, 2, 1]);
        lanes.lost(workers[1]);
        assert_eq!((users(), lanes.take_leaves(workers[1], 9)), ([1; 4], Vec::new()));
    }
}
