//! What the policies share: how a batch becomes a task in flight.
//!
//! Policies choose; admission, dependencies, slots, completion and fairness are the same under all of them, so that a comparison isolates the
//! choice.

pub(crate) mod cellular;
pub(crate) mod graph;

use crate::command::{Launch, Row};
use crate::fleet::Task;
use crate::id::{CellTypeId, ModelId, TaskSeq, WorkerId};
use crate::scheduler::Scheduler;

impl Scheduler {
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
            let charged_ns = self.charge_ahead(cell_type, rows);
            self.launch_step_more(worker, cell_type, charged_ns);
        } else {
            let first = self.out.rows.len();
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
        state.rows.extend(launched);
        self.out.launches.push(Launch { worker, cell_type, model, seq, steps: 1, rows: first..rows.len() });
        self.out.rows = rows;
    }

    /// The launch before runs a step more.
    pub(crate) fn launch_step_more(&mut self, worker: WorkerId, cell_type: CellTypeId, charged_ns: u64) {
        self.types[cell_type.index()].running += 1;
        let state = self.workers[worker.index()].as_mut().expect("a worker that asks is up");
        state.outstanding += 1;
        if let (Some(task), Some(launch)) = (state.tasks.back_mut(), self.out.launches.last_mut()) {
            task.steps += 1;
            task.charged_ns += charged_ns;
            launch.steps += 1;
        }
    }

    /// Whether these rows are those of the launch before on this worker, each one step further, and may be one launch with it.
    pub(crate) fn continues_last(&self, worker: WorkerId, cell_type: CellTypeId, rows: impl ExactSizeIterator<Item = Row>) -> bool {
        let Some(last) = self.out.launches.last().filter(|last| last.worker == worker && last.cell_type == cell_type) else { return false };
        let before = &self.out.rows[last.rows.clone()];
        before.len() == rows.len()
            && before
                .iter()
                .zip(rows)
                .all(|(before, row)| row.lane == before.lane && row.step == before.step + last.steps && self.lanes[row.lane.index()].merges)
    }
}
