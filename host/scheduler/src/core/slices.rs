//! Tasks that run in slices, with other tasks in between.
//!
//! A task of a cell of which one row takes long would hold up everybody else. Its worker pauses it after [`Config::slice_ns`](crate::Config::slice_ns) and
//! says so ([`Event::Paused`](crate::Event::Paused)). It then leaves the worker's order, but its rows stay in flight. It goes on as a new task at the end of
//! that order when it is the turn of its model again. Device time is charged slice by slice, so weights hold between slices.
//!
//! Tasks of a worker complete in order all the same. But what is queued behind a paused task runs before it is complete. So in models with such cells no
//! queued node is as good as complete (`Lane::waits`), and nothing goes on in groups.
//!
//! A worker has one slice in flight. It begins no third such task while two are paused, because their memory is held.

use crate::command::{Launch, Row, Slice};
use crate::core::Core;
use crate::core::fleet::Task;
use crate::event::ModelInfo;
use crate::id::{ModelId, TaskSeq, WorkerId};

/// Tasks of a worker that are paused at once.
pub const PAUSED_MAX: usize = 2;

/// A task between two slices.
#[derive(Debug)]
pub(crate) struct Paused {
    model: ModelId,
    task: Task,
    rows: Vec<Row>,
}

impl Core {
    /// Whether tasks of a model run in slices: one row of a cell of it takes longer than a slice.
    pub(crate) fn runs_in_slices(&self, model: &ModelInfo) -> bool {
        let is_long = |ns: u64| self.config.slice_ns > 0 && ns > self.config.slice_ns;
        model.cells.iter().any(|cell| cell.cost.nanoseconds(1).is_some_and(is_long))
    }

    /// Whether a model may have a new task on a worker.
    pub(crate) fn may_start(&self, worker: WorkerId, model: ModelId) -> bool {
        let is_free = |state: &crate::core::Worker| state.paused.len() < PAUSED_MAX && !has_slice(state);
        !self.model(model).sliced || self.worker(worker).is_some_and(is_free)
    }

    /// Whether a paused task of a model may go on.
    pub(crate) fn may_resume(&self, worker: WorkerId, model: ModelId) -> bool {
        let is_waiting = |state: &crate::core::Worker| state.paused.iter().any(|paused| paused.model == model) && !has_slice(state);
        self.model(model).sliced && self.worker(worker).is_some_and(is_waiting)
    }

    /// A worker paused its oldest task.
    pub(crate) fn pause(&mut self, worker: WorkerId, seq: TaskSeq, busy_ns: u64) {
        let is_oldest = |state: &crate::core::Worker| state.tasks.front().is_some_and(|task| task.seq == seq && task.sliced);
        if !self.worker(worker).is_some_and(is_oldest) {
            return;
        }
        self.account(worker, seq, busy_ns);
        let Some(state) = self.workers[worker.index()].as_mut() else { return };
        let Some(task) = state.tasks.pop_front() else { return };
        state.outstanding -= task.steps;
        let rows: Vec<Row> = state.rows.drain(..task.rows).collect();
        let Some(model) = rows.first().map(|row| self.lanes[row.lane.index()].model) else { return };
        state.paused.push_back(Paused { model, task, rows });
    }

    /// A model's oldest paused task goes on; whether there was one.
    pub(crate) fn resume(&mut self, worker: WorkerId, model: ModelId) -> bool {
        if !self.may_resume(worker, model) {
            return false;
        }
        let Some(state) = self.workers[worker.index()].as_mut() else { return false };
        let Some(at) = state.paused.iter().position(|paused| paused.model == model) else { return false };
        let Some(Paused { mut task, rows, .. }) = state.paused.remove(at) else { return false };
        task.charged_ns = self.charge_ahead(task.cell_type, rows.iter().copied());
        let Some(state) = self.workers[worker.index()].as_mut() else { return false };
        state.outstanding += task.steps;
        let (before, seq) = (task.seq, TaskSeq(state.last_seq.0 + 1));
        (state.last_seq, task.seq) = (seq, seq);
        state.tasks.push_back(task);
        state.rows.extend(&rows);
        let first = self.out.rows.len();
        self.out.rows.extend(rows);
        let (rows, slice) = (first..self.out.rows.len(), Slice::Next(before));
        let Task { cell_type, sole, steps, .. } = task;
        self.out.launches.push(Launch { worker, cell_type, model, sole, seq, steps, ended: 0, rows, slice });
        true
    }
}

/// Whether a worker has a slice in flight.
fn has_slice(state: &crate::core::Worker) -> bool {
    state.tasks.iter().any(|task| task.sliced)
}

impl crate::core::Worker {
    /// A worker is lost: its paused tasks are lost as those in flight are.
    pub(crate) fn take_back_paused(&mut self) {
        for Paused { task, rows, .. } in self.paused.drain(..) {
            self.tasks.push_back(Task { charged_ns: 0, ..task });
            self.rows.extend(rows);
        }
    }
}
