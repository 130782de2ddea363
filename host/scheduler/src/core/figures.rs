//! What callers may read of a scheduler, for metrics and tests.

use crate::core::lane::Progress;
use crate::id::{CellTypeId, DomainId, WorkerId};
use crate::scheduler::Scheduler;

/// Figures for metrics and tests.
impl Scheduler {
    /// Requests admitted that neither finished nor failed.
    #[must_use]
    pub const fn requests_in_flight(&self) -> u32 {
        self.core.requests_alive
    }

    /// Requests that have no place yet.
    #[must_use]
    pub const fn requests_waiting(&self) -> u32 {
        self.core.requests_waiting
    }

    /// Entries in the admission queues, also of requests that have left.
    #[must_use]
    pub fn requests_queued(&self) -> usize {
        self.core.classes.iter().map(|class| class.queues.len()).sum()
    }

    /// Tenants with requests that hold memory or wait for some, as the admission queues count them.
    #[must_use]
    pub fn tenants_served_or_queued(&self) -> usize {
        self.core.classes.iter().map(|class| class.queues.tenants()).sum()
    }

    /// Free slots of a domain's arena, which there is as long as it has a worker.
    #[must_use]
    pub fn free_slots(&self, domain: DomainId) -> Option<u32> {
        Some(self.core.domains.get(domain.index())?.as_ref()?.arena.free_slots())
    }

    /// Ready nodes of a type that a worker could run now.
    #[must_use]
    pub fn ready(&self, cell_type: CellTypeId, worker: WorkerId) -> u32 {
        let (Some(queue), Some(worker_state)) = (self.core.types.get(cell_type.index()), self.core.worker(worker)) else { return 0 };
        queue.tally.runnable(worker, worker_state.domain)
    }

    /// Tasks that a worker has in flight, each step of a longer launch counted.
    #[must_use]
    pub fn outstanding(&self, worker: WorkerId) -> u32 {
        self.core.worker(worker).map_or(0, |worker| worker.outstanding)
    }

    /// Models that are known: open ones, and closed ones with requests in flight.
    #[must_use]
    pub fn models_known(&self) -> usize {
        self.core.models.iter().flatten().count()
    }

    /// Tenants that have such models.
    #[must_use]
    pub fn tenants_known(&self) -> usize {
        self.core.tenants.iter().flatten().count()
    }

    /// Whether every model that became active or idle is known as such, or will be checked in the
    /// next turn. Otherwise its tenant would save up device time while idle.
    #[must_use]
    pub fn activity_is_noted(&self) -> bool {
        let models = self.core.models.iter().flatten();
        models.filter(|model| model.active != model.is_busy()).all(|model| self.core.touched.contains(&model.info.model))
    }

    /// Bytes of per-node state of the requests in flight: proportional to the sizes of their
    /// graphs.
    #[must_use]
    pub fn bytes_of_nodes(&self) -> usize {
        let bytes = self.core.lanes.iter().map(|lane| match &lane.progress {
            Progress::Front(_) => 0,
            Progress::Each(nodes) => nodes.states.bytes(),
            Progress::Grouped(grouped) => grouped.bytes(),
        });
        bytes.sum()
    }

    /// Lanes that are handed out.
    #[must_use]
    pub fn lanes_held(&self) -> usize {
        self.core.lanes.len() - self.core.free_lanes.len() - self.core.late_lanes.len()
    }
}
