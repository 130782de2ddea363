//! Which lanes are placed, and which workers have been told of them. What crosses to a worker follows joins and leaves, not batches.

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
    /// For each worker, lanes it must forget with its next task. A worker that has nothing to do keeps them until then, and with them what their
    /// growths refer to (tensors of requests that have ended): at most the lanes that were placed when it got its last task, each once.
    leaves: Vec<Vec<LaneIndex>>,
}

impl Lanes {
    pub(crate) fn new(workers: usize) -> Self {
        Self { entries: Vec::new(), leaves: vec![Vec::new(); workers] }
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
        for (worker, leaves) in self.leaves.iter_mut().enumerate() {
            if entry.known & (1 << worker) != 0 {
                leaves.push(LaneIndex(id.0));
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

    /// What the worker must forget, handed over once.
    pub(crate) fn take_leaves(&mut self, worker: WorkerId) -> Vec<LaneIndex> {
        std::mem::take(&mut self.leaves[worker.index()])
    }
}
