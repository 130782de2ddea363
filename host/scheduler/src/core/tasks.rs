//! Records launches: a set of rows becomes a task in flight, or a further step of the last launch.

use crate::command::{Launch, Row, Slice};
use crate::core::fleet::Task;
use crate::core::{Core, reserve};
use crate::id::{CellTypeId, ModelId, TaskSeq, WorkerId};

/// Tasks.
impl Core {
    /// Records and launches a task of these rows. With `merge` it is a further step of the last
    /// launch.
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
            reserve::in_table(&mut self.out.rows, rows.len());
            self.out.rows.extend(rows);
            self.launch_rows(worker, cell_type, model, first, None);
        }
    }

    /// Records and launches a task of the rows in `out.rows` from `first` on. `sole` is their
    /// model, if they have only one.
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
        let sliced = self.models[model.index()].as_ref().is_some_and(|model| model.sliced);
        let slice = if sliced { Slice::First } else { Slice::Whole };
        state.tasks.push_back(Task { seq, cell_type, steps: 1, rows: launched.len(), tick, listed, walk, sole, charged_ns, sliced });
        reserve::in_ring(&mut state.rows, launched.len());
        state.rows.extend(launched);
        self.out.launches.push(Launch { worker, cell_type, model, sole, seq, steps: 1, ended: 0, rows: first..rows.len(), slice });
        self.out.rows = rows;
    }

    /// Adds a step to the last launch, with this many of its rows.
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

    /// The last launch, if another step may be added to it.
    pub(super) fn last_launch(&self, worker: WorkerId, cell_type: CellTypeId) -> Option<&Launch> {
        let steps_max = self.config.launch_steps_max();
        self.out.launches.last().filter(|last| last.worker == worker && last.cell_type == cell_type && last.steps < steps_max)
    }

    /// Whether `rows` may be a further step of the worker's last launch: the same lanes, each one
    /// step further. `before` holds the rows of that launch.
    pub(crate) fn continues_last(&self, worker: WorkerId, cell_type: CellTypeId, before: &[Row], rows: &[Row]) -> bool {
        let Some(last) = self.last_launch(worker, cell_type) else { return false };
        let before = &before[last.rows.clone()];
        let goes_on = |(before, row): (&Row, &Row)| {
            row.lane == before.lane && row.step == before.step + last.steps && self.lanes[row.lane.index()].merges
        };
        before.len() == rows.len() && before.iter().zip(rows).all(goes_on)
    }
}
