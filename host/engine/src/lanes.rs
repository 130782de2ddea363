//! Which lanes are placed, and which workers have been told of them. What crosses to a worker follows joins and leaves, not batches.

use std::sync::Arc;

use cellwright_backend::{Lane, LaneIndex};
use cellwright_scheduler::{LaneId, RequestId, WorkerId};

/// More workers than bits of the set of those that know a lane would need another structure.
pub(crate) const WORKERS_MAX: usize = 64;

/// A placed lane.
pub(crate) struct LaneEntry {
    pub(crate) lane: Arc<Lane>,
    pub(crate) request: RequestId,
    /// Which of the request's growths.
    pub(crate) growth: u32,
    /// Workers that have it in their table.
    known: u64,
}

/// All placed lanes, by id.
#[derive(Default)]
pub(crate) struct Lanes {
    entries: Vec<Option<LaneEntry>>,
    /// For each worker, lanes it must forget with its next task.
    leaves: Vec<Vec<LaneIndex>>,
}

impl Lanes {
    pub(crate) fn new(workers: usize) -> Self {
        Self { entries: Vec::new(), leaves: vec![Vec::new(); workers] }
    }

    pub(crate) fn place(&mut self, id: LaneId, lane: Arc<Lane>, request: RequestId, growth: u32) {
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.entries[id.index()] = Some(LaneEntry { lane, request, growth, known: 0 });
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

    /// The lane, if the worker is now to be told of it.
    pub(crate) fn introduce(&mut self, id: LaneId, worker: WorkerId) -> Option<&LaneEntry> {
        let entry = self.entries.get_mut(id.index())?.as_mut()?;
        let bit = 1 << worker.0;
        if entry.known & bit != 0 {
            return None;
        }
        entry.known |= bit;
        Some(entry)
    }

    /// What the worker must forget, handed over once.
    pub(crate) fn take_leaves(&mut self, worker: WorkerId) -> Vec<LaneIndex> {
        std::mem::take(&mut self.leaves[worker.index()])
    }
}
