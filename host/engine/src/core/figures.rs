//! Keeps the figures that others read: of cell types and models as tasks come and go, of the whole once for each turn of the engine's loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_scheduler::{CellTypeId, Commands, Launch, WorkerId};

use super::Core;
use crate::figures::CellCounters;
use crate::model::LoadedModel;

/// What figures are kept by.
#[derive(Default)]
pub(super) struct Tally {
    /// Counters of each cell type that is loaded.
    cells: Vec<Arc<CellCounters>>,
    /// For each worker, the types of its outstanding tasks, in order.
    outstanding: Vec<VecDeque<CellTypeId>>,
}

impl Tally {
    pub(super) fn new(workers: usize) -> Self {
        Self { cells: Vec::new(), outstanding: vec![VecDeque::new(); workers] }
    }

    /// Whether no worker has a task.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.iter().all(VecDeque::is_empty)
    }

    /// A model's cell types are counted from now on.
    pub(super) fn know(&mut self, model: &LoadedModel) {
        for cell in &model.cells {
            let index = cell.cell_type.index();
            if self.cells.len() <= index {
                self.cells.resize_with(index + 1, Arc::default);
            }
            self.cells[index] = cell.counters.clone();
        }
    }

    /// A task that was counted before goes on.
    pub(super) fn resumed(&mut self, launch: &Launch) {
        self.outstanding[launch.worker.index()].push_back(launch.cell_type);
    }

    /// A lost worker completes nothing any more.
    pub(super) fn lost(&mut self, worker: WorkerId) {
        self.outstanding[worker.index()].clear();
    }
}

impl Core {
    pub(super) fn count_launch(&mut self, launch: &Launch) {
        self.counters.tasks.fetch_add(u64::from(launch.steps), Ordering::Relaxed);
        self.counters.rows.fetch_add(launch.nodes(), Ordering::Relaxed);
        let tally = &mut self.state.tally;
        if let Some(cell) = tally.cells.get(launch.cell_type.index()) {
            cell.launched(launch.step_rows(), launch.steps, launch.nodes());
        }
        tally.outstanding[launch.worker.index()].push_back(launch.cell_type);
    }

    pub(super) fn count_completion(&mut self, worker: WorkerId, busy_ns: u64) {
        self.counters.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
        let tally = &mut self.state.tally;
        let cell = tally.outstanding[worker.index()].pop_front().and_then(|cell_type| tally.cells.get(cell_type.index()));
        if let Some(cell) = cell {
            cell.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
        }
    }

    /// Must come before requests leave, for a model goes with its last.
    pub(super) fn count_device_time(&mut self, commands: &Commands) {
        for (model, nanoseconds) in &commands.used {
            if let Some(model) = self.state.models.get(*model) {
                model.counters.used(*nanoseconds);
            }
        }
    }

    /// Says how the engine stands.
    pub(super) fn publish(&self) {
        let gauges = &self.gauges;
        gauges.waiting.store(self.scheduler.requests_waiting(), Ordering::Relaxed);
        for domain in &gauges.domains {
            // Of a lost one nobody holds anything.
            domain.free.store(self.scheduler.free_slots(domain.id).unwrap_or(domain.slots), Ordering::Relaxed);
        }
        for (index, gauge) in gauges.workers.iter().enumerate() {
            gauge.up.store(self.workers[index].up, Ordering::Relaxed);
            let outstanding = u32::try_from(self.state.tally.outstanding[index].len()).unwrap_or(u32::MAX);
            gauge.outstanding.store(outstanding, Ordering::Relaxed);
        }
    }
}
