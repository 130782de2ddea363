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
        let estimate_ns = self.charge_ahead(cell_type, rows.clone());
        self.types[cell_type.index()].running += 1;
        let state = self.workers[worker.index()].as_mut().expect("a worker that asks is up");
        state.outstanding += 1;
        if merge && let (Some(task), Some(launch)) = (state.tasks.back_mut(), self.out.launches.last_mut()) {
            task.steps += 1;
            task.charged_ns += estimate_ns;
            launch.steps += 1;
            return;
        }
        let seq = TaskSeq(state.last_seq.0 + 1);
        state.last_seq = seq;
        state.tasks.push_back(Task { seq, cell_type, steps: 1, rows: rows.len(), charged_ns: estimate_ns });
        state.rows.extend(rows.clone());
        let first = self.out.rows.len();
        self.out.rows.extend(rows);
        self.out.launches.push(Launch { worker, cell_type, model, seq, steps: 1, rows: first..self.out.rows.len() });
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
