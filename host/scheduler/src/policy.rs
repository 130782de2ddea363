//! What the policies share: whose turn it is, and how a batch becomes a task in flight.
//!
//! Policies choose; admission, dependencies, slots, completion and fairness are the same under all of them, so that a comparison isolates the
//! choice. Each model has one; models of different policies share workers, whose time is divided as under one.

pub(crate) mod adaptive;
pub(crate) mod cellular;
pub(crate) mod graph;
pub(crate) mod lazy;
pub(crate) mod merge;
pub(crate) mod shelf;

use crate::command::{Failure, Launch, Row};
use crate::config::PolicyKind;
use crate::fleet::Task;
use crate::id::{CellTypeId, DomainId, ModelId, TaskSeq, WorkerId};
use crate::queues::Key;
use crate::room;
use crate::scheduler::Scheduler;

/// Turns.
impl Scheduler {
    /// Every worker that asks for work gets some, as long as there is any; workers in order of their ids.
    pub(crate) fn run(&mut self) {
        self.note_activity();
        for index in 0..self.workers.len() {
            let worker = WorkerId(index as u32);
            while self.asks(worker) {
                self.settle_counts();
                let Some(model) = self.choose_model(worker) else { break };
                let served = match self.model(model).policy {
                    PolicyKind::Cellular | PolicyKind::Adaptive => self.schedule(worker, model),
                    PolicyKind::Graph { .. } | PolicyKind::Serial => self.run_graph(worker, model),
                    PolicyKind::Merge { .. } => self.run_merge(worker, model),
                    PolicyKind::Lazy { .. } => self.run_lazy(worker, model),
                };
                if !served {
                    break;
                }
            }
            self.wake_for_windows(worker);
        }
        self.move_to_idle_workers();
    }

    /// Whether a worker has few enough tasks in flight for any model's policy.
    fn asks(&self, worker: WorkerId) -> bool {
        let of_nodes = self.config.low_water.saturating_add(1);
        let most = if self.models_of_batches > 0 { of_nodes.max(self.config.max_tasks_to_submit) } else { of_nodes };
        self.worker(worker).is_some_and(|state| state.outstanding < most)
    }

    /// Whether a worker that asks for work would get any of a model's.
    pub(crate) fn has_work(&self, id: ModelId, worker: WorkerId, domain: DomainId) -> bool {
        let model = self.model(id);
        match model.policy {
            PolicyKind::Cellular | PolicyKind::Adaptive => {
                let asks = || self.worker(worker).is_some_and(|state| state.outstanding <= self.config.low_water);
                // Whatever is ready, one worker alone could run it.
                model.ready > 0
                    && asks()
                    && (self.alone
                        || (0..model.types.len()).any(|at| self.offered(&model.types, at, &model.types[at].tally, worker, domain) > 0))
            }
            PolicyKind::Graph { .. } | PolicyKind::Serial => self.oldest_whole(worker, id).is_some(),
            PolicyKind::Merge { .. } => self.oldest_merged(worker, id).is_some(),
            PolicyKind::Lazy { .. } => self.oldest_lazy(worker, id).is_some(),
        }
    }

    /// Since when a model has work that a worker could run.
    pub(crate) fn oldest_work(&self, id: ModelId, worker: WorkerId, domain: DomainId) -> Option<Key> {
        let model = self.model(id);
        match model.policy {
            PolicyKind::Cellular | PolicyKind::Adaptive => {
                let types = model.types.iter().filter(|known| known.tally.runnable(worker, domain) > 0);
                types.filter_map(|known| self.oldest(known.cell_type, worker, domain, Some(id))).min()
            }
            PolicyKind::Graph { .. } | PolicyKind::Serial => self.oldest_whole(worker, id),
            PolicyKind::Merge { .. } => self.oldest_merged(worker, id),
            PolicyKind::Lazy { .. } => self.oldest_lazy(worker, id),
        }
    }

    /// A task of a worker is complete; perhaps what it was part of is.
    pub(crate) fn task_done(&mut self, worker: WorkerId) {
        self.batch_task_done(worker);
        self.set_task_done(worker);
        self.lazy_task_done(worker);
    }

    /// A worker is lost, and what its batches were about with it.
    pub(crate) fn batches_lost(&mut self, worker: WorkerId) {
        let mut lost = self.graph_worker_lost(worker);
        lost.extend(self.merge_worker_lost(worker));
        lost.extend(self.lazy_worker_lost(worker));
        for member in lost {
            if self.in_batch(&member, worker) {
                self.doom(member.request, Failure::WorkerLost);
            }
        }
    }
}

/// What a model's policy means for its requests.
impl PolicyKind {
    /// Whether requests are taken into batches, not nodes.
    #[must_use]
    pub const fn takes_requests(self) -> bool {
        !matches!(self, Self::Cellular | Self::Adaptive)
    }

    /// Whether every stage of a request is executed step by step, in the order in which they stand in its graph.
    pub(crate) const fn in_order(self) -> bool {
        matches!(self, Self::Graph { .. } | Self::Serial | Self::Lazy { .. })
    }
}

/// Tasks.
impl Scheduler {
    /// Submits nodes of requests that were taken into a batch: their producers are complete, or ahead on this worker.
    pub(crate) fn hand_over(&mut self, worker: WorkerId, model: ModelId, cell_type: CellTypeId, rows: &[Row]) {
        let merge = self.config.merge_steps && self.continues_last(worker, cell_type, &self.out.rows, rows);
        self.launch(worker, cell_type, model, rows.iter().copied(), merge);
        for row in rows {
            self.queue_nodes(row.lane, std::slice::from_ref(row), worker);
        }
    }

    /// Records a task whose rows were queued, and launches it: on its own, or (`merge`) as one step more of the launch before.
    pub(crate) fn launch(
        &mut self,
        worker: WorkerId,
        cell_type: CellTypeId,
        model: ModelId,
        rows: impl ExactSizeIterator<Item = Row> + Clone,
        merge: bool,
    ) {
        if merge {
            let (count, charged_ns) = (rows.len(), self.charge_ahead(cell_type, rows));
            self.launch_step_more(worker, cell_type, (count, charged_ns));
        } else {
            let first = self.out.rows.len();
            room::in_table(&mut self.out.rows, rows.len());
            self.out.rows.extend(rows);
            self.launch_rows(worker, cell_type, model, first, None);
        }
    }

    /// Records a task whose rows are the last of `out.rows`, from `first` on; they are all of model `sole`, if there is one.
    pub(crate) fn launch_rows(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, first: usize, sole: Option<ModelId>) {
        let rows = std::mem::take(&mut self.out.rows);
        let launched = &rows[first..];
        let charged_ns = match sole {
            Some(sole) => self.charge_ahead_one(cell_type, sole, launched.len()),
            None => self.charge_ahead(cell_type, launched.iter().copied()),
        };
        self.types[cell_type.index()].running += 1;
        let state = self.workers[worker.index()].as_mut().expect("a worker that asks is up");
        state.outstanding += 1;
        let seq = TaskSeq(state.last_seq.0 + 1);
        state.last_seq = seq;
        let (tick, listed, walk) = (0, 0, false);
        state.tasks.push_back(Task { seq, cell_type, steps: 1, rows: launched.len(), tick, listed, walk, sole, charged_ns });
        room::in_ring(&mut state.rows, launched.len());
        state.rows.extend(launched);
        self.out.launches.push(Launch { worker, cell_type, model, sole, seq, steps: 1, ended: 0, rows: first..rows.len() });
        self.out.rows = rows;
    }

    /// The launch before runs a step more, with so many of its rows.
    pub(crate) fn launch_step_more(&mut self, worker: WorkerId, cell_type: CellTypeId, (rows, charged_ns): (usize, u64)) {
        self.types[cell_type.index()].running += 1;
        let state = self.workers[worker.index()].as_mut().expect("a worker that asks is up");
        state.outstanding += 1;
        if let (Some(task), Some(launch)) = (state.tasks.back_mut(), self.out.launches.last_mut()) {
            task.steps += 1;
            task.charged_ns += charged_ns;
            launch.steps += 1;
            launch.ended += (launch.rows.len() - rows) as u32;
        }
    }

    /// The launch before, if it may have a step more.
    fn last_launch(&self, worker: WorkerId, cell_type: CellTypeId) -> Option<&Launch> {
        let steps_max = self.config.launch_steps_max();
        self.out.launches.last().filter(|last| last.worker == worker && last.cell_type == cell_type && last.steps < steps_max)
    }

    /// Whether these rows are those of the launch before on this worker (which are among those `before`), each one step further, and may be one launch
    /// with it.
    pub(crate) fn continues_last(&self, worker: WorkerId, cell_type: CellTypeId, before: &[Row], rows: &[Row]) -> bool {
        let Some(last) = self.last_launch(worker, cell_type) else { return false };
        let before = &before[last.rows.clone()];
        let goes_on = |(before, row): (&Row, &Row)| {
            row.lane == before.lane && row.step == before.step + last.steps && self.lanes[row.lane.index()].merges
        };
        before.len() == rows.len() && before.iter().zip(rows).all(goes_on)
    }
}
