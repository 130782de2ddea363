//! Which model's turn it is: the one that is owed most device time, relative to its weight.
//!
//! A task is charged when it is submitted, at what its type took lately, and corrected when its time is known; rows of other models pay their
//! share. A model that was idle comes back no better off than the active one that is owed most: idleness is not saved up.

use std::collections::VecDeque;

use crate::command::Row;
use crate::fleet::Task;
use crate::id::{CellTypeId, ModelId, TaskSeq, WorkerId};
use crate::scheduler::Scheduler;

/// Fraction bits of virtual time.
const FRACTION: u32 = 16;

/// Each new measurement moves a type's estimate by an eighth of the difference.
const SMOOTHING: i128 = 8;

impl Scheduler {
    /// Brings the set of active models up to date with what they have ready and in flight.
    pub(crate) fn note_activity(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched.retain(|id| self.model(*id).active != (self.model(*id).ready + self.model(*id).flying > 0));
        self.active.retain(|id| !touched.contains(id));
        let least = self.active.iter().map(|other| self.model(*other).virtual_time).min();
        for id in touched.drain(..) {
            let model = self.model_mut(id);
            model.active = !model.active;
            if model.active {
                model.virtual_time = model.virtual_time.max(least.unwrap_or(model.virtual_time));
                let at = self.active.partition_point(|other| *other < id);
                self.active.insert(at, id);
            }
        }
        self.touched = touched;
    }

    /// The model that is owed most, of those with ready nodes that this worker may run; then the one with the oldest.
    pub(crate) fn choose_model(&self, worker: WorkerId) -> Option<ModelId> {
        let domain = self.worker(worker)?.domain;
        let has_work = |id: &&ModelId| self.model(**id).types.iter().any(|known| known.tally.runnable(worker, domain) > 0);
        let least = self.active.iter().filter(has_work).map(|id| self.model(*id).virtual_time).min()?;
        let mut owed = self.active.iter().filter(has_work).filter(|id| self.model(**id).virtual_time == least);
        let first = *owed.next()?;
        let Some(second) = owed.next() else { return Some(first) };
        let age = |id: ModelId| {
            let types = self.model(id).types.iter();
            let ages = types.filter_map(|known| self.oldest(known.cell_type, worker, domain, Some(id)));
            (ages.min(), id)
        };
        [first, *second].into_iter().chain(owed.copied()).min_by_key(|id| age(*id))
    }

    /// Charges a task of one step at its type's estimate, which is returned.
    pub(crate) fn charge_ahead(&mut self, cell_type: CellTypeId, rows: impl ExactSizeIterator<Item = Row>) -> u64 {
        let estimate = self.types[cell_type.index()].estimate_ns;
        self.charge(rows, i128::from(estimate), 0);
        estimate
    }

    /// Charges rows' models, each by its number of rows; `used` is what they are known to have had.
    fn charge(&mut self, rows: impl ExactSizeIterator<Item = Row>, nanoseconds: i128, used: u128) {
        let total = rows.len();
        let mut run: Option<(ModelId, usize)> = None;
        for row in rows {
            let model = self.lanes[row.lane.index()].model;
            run = match run {
                Some((same, count)) if same == model => Some((same, count + 1)),
                Some((other, count)) => {
                    self.charge_model(other, (nanoseconds, used), (count, total));
                    Some((model, 1))
                }
                None => Some((model, 1)),
            };
        }
        if let Some((model, count)) = run {
            self.charge_model(model, (nanoseconds, used), (count, total));
        }
    }

    /// Charges a model for `count` rows of `total`.
    fn charge_model(&mut self, id: ModelId, (nanoseconds, used): (i128, u128), (count, total): (usize, usize)) {
        let model = self.model_mut(id);
        model.virtual_time += ((nanoseconds * count as i128) << FRACTION) / total as i128 / i128::from(model.info.weight.max(1));
        if used > 0 {
            let part = u64::try_from(used * count as u128 / total as u128).unwrap_or(u64::MAX);
            match self.out.used.iter_mut().rev().find(|(other, _)| *other == id) {
                Some((_, sum)) => *sum = sum.saturating_add(part),
                None => self.out.used.push((id, part)),
            }
        }
    }

    /// Splits the measured time of completed tasks by their estimates, corrects what was charged, and learns.
    pub(crate) fn account(&mut self, worker: WorkerId, up_to: TaskSeq, busy_ns: u64) {
        let Some(state) = self.workers[worker.index()].as_mut() else { return };
        let tasks: VecDeque<Task> = std::mem::take(&mut state.tasks);
        let rows = std::mem::take(&mut state.rows);
        let done = tasks.partition_point(|task| task.seq <= up_to);
        let charged: u128 = tasks.range(..done).map(|task| u128::from(task.charged_ns)).sum();
        let steps: u128 = tasks.range(..done).map(|task| u128::from(task.steps)).sum();
        let mut first = 0;
        for task in tasks.range(..done) {
            let measured = match charged {
                0 => u128::from(busy_ns) * u128::from(task.steps) / steps.max(1),
                charged => u128::from(busy_ns) * u128::from(task.charged_ns) / charged,
            };
            let correction = measured as i128 - i128::from(task.charged_ns);
            self.charge(rows.range(first..first + task.rows).copied(), correction, measured);
            first += task.rows;
            let queue = &mut self.types[task.cell_type.index()];
            let each = (measured / u128::from(task.steps)) as i128;
            let before = i128::from(queue.estimate_ns);
            let estimate = if before == 0 { each } else { before + (each - before) / SMOOTHING };
            queue.estimate_ns = u64::try_from(estimate).unwrap_or(0);
        }
        if let Some(state) = self.workers[worker.index()].as_mut() {
            (state.tasks, state.rows) = (tasks, rows);
        }
    }
}
