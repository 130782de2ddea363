//! Tasks that run in slices ([`crate::slices`]): each on a thread with a team and a frame of its own.
//!
//! Such a thread computes as this worker does, and only while this worker waits for it. It is given
//! the lanes of its task's rows and their cells as they are when the task begins. It keeps its memory
//! while the task is paused. The scheduler has at most two such tasks of a worker. A further thread
//! times batches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cellwright_backend::{CellTypeId, Completed, DeviceLost, Task, TimedBatch};

use super::ahead::Ahead;
use super::{CpuWorker, denormals};
use crate::slices::{self, Slice, SlicedThread};

/// A thread for such tasks.
pub(super) struct Runner {
    thread: SlicedThread,
    desk: Arc<Mutex<Desk>>,
    /// The task that is paused; the number of one that is timed says nothing.
    paused: Option<(u64, Duration)>,
}

/// What such a thread computes with, and what came of the task. It holds the lock while it has a task.
struct Desk {
    worker: CpuWorker,
    ran: Result<Completed, DeviceLost>,
    timed: Result<Duration, DeviceLost>,
}

impl Desk {
    fn run(&mut self, mut task: Task) {
        let Self { worker, ran, .. } = self;
        let mut completed = Completed::default();
        // Room for as many as may ever come; who is there is said with each slice.
        worker.team.set_guests(usize::MAX);
        worker.begin(&mut task);
        let executed = denormals::as_zeros(|| worker.execute(&task, &mut completed));
        completed.rows = task.rows;
        *ran = executed.map(|()| completed);
        self.clear();
    }

    fn time(&mut self, index: CellTypeId, rows: u32) {
        self.worker.team.set_guests(slices::guests());
        self.timed = denormals::as_zeros(|| self.worker.timed(index, rows));
        self.clear();
    }

    /// Nothing of a request or a cell outlives its task here.
    fn clear(&mut self) {
        let Self { worker, .. } = self;
        worker.lanes.clear();
        worker.cells.clear();
        worker.ahead = Ahead::default();
        worker.frame.shrink();
    }
}

impl Runner {
    fn new(of: &CpuWorker) -> Option<Self> {
        let mut worker = CpuWorker::apart(of.domain.clone(), of.options.clone()).ok()?;
        worker.account.clone_from(&of.account);
        let desk = Arc::new(Mutex::new(Desk { worker, ran: Ok(Completed::default()), timed: Ok(Duration::ZERO) }));
        let processors = of.processors.clone();
        let place = move || processors.iter().for_each(crate::topology::Processors::keep_thread);
        let domain = of.domain.clone();
        let thread = SlicedThread::start(place, move || domain.lending.are_wanted_back()).ok()?;
        Some(Self { thread, desk, paused: None })
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// After a slice: takes what came of the task, if it is done.
    fn after(&mut self, is_done: bool, seq: u64, slice: Duration, completed: &mut Completed) -> Result<(), DeviceLost> {
        if is_done {
            let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
            *completed = std::mem::replace(&mut desk.ran, Ok(Completed::default()))?;
        }
        self.paused = (!is_done).then_some((seq, slice));
        (completed.seq, completed.paused) = (seq, !is_done);
        Ok(())
    }
}

impl CpuWorker {
    /// Runs the first slice of a task; all of it, if there is no thread to be had.
    pub(super) fn begin_slices(&mut self, mut task: Task, slice: Duration, completed: &mut Completed) -> Result<(), DeviceLost> {
        if self.sliced.iter().all(|runner| runner.paused.is_some()) {
            let more = Runner::new(self);
            self.sliced.extend(more);
        }
        let Some(at) = self.sliced.iter().position(|runner| runner.paused.is_none()) else { return self.run_task(task, completed) };
        self.begin(&mut task);
        let lane = |lane: cellwright_backend::LaneId| Some((lane, self.lanes.get(lane.index())?.clone()?));
        let (seq, joins) = (task.seq, task.rows.iter().filter_map(|row| lane(row.lane)).collect());
        let task = Task { joins, ..task };
        let of_lanes = task.joins.iter().flat_map(|(_, lane)| lane.growth.cells.iter().copied());
        self.lay_out(&self.sliced[at], of_lanes.chain([task.cell]));
        let Runner { thread, desk, .. } = &mut self.sliced[at];
        let desk = desk.clone();
        self.domain.lending.settle(&mut self.team);
        let first = Slice { time: slice, guests: self.team.guests(), is_cut: true };
        let is_done = thread.begin(move || desk.lock().unwrap_or_else(PoisonError::into_inner).run(task), first);
        self.sliced[at].after(is_done, seq, slice, completed)
    }

    /// Runs the next slice of the task that was paused under a number, under another.
    pub(super) fn resume_slices(&mut self, paused: u64, seq: u64, completed: &mut Completed) -> Result<(), DeviceLost> {
        let found = self.sliced.iter_mut().find_map(|runner| match runner.paused {
            Some((number, slice)) if number == paused => Some((runner, slice)),
            _ => None,
        });
        let Some((runner, slice)) = found else { return Err(self.lost(format!("the task {paused} is to go on, but is not paused"))) };
        self.domain.lending.settle(&mut self.team);
        let is_done = runner.thread.resume(Slice { time: slice, guests: self.team.guests(), is_cut: true });
        runner.after(is_done, seq, slice, completed)
    }

    /// Runs a slice of a batch that is timed. Without a thread for slices it runs the whole batch.
    /// Returns the measured time once the batch is done.
    pub(super) fn time_in_slices(&mut self, index: CellTypeId, batch: TimedBatch) -> Result<Option<Duration>, DeviceLost> {
        if self.cells.get(index.index()).is_none_or(Option::is_none) {
            return Err(self.not_there(index));
        }
        let slice = Slice { time: batch.slice, guests: self.team.guests(), is_cut: batch.is_long };
        // A paused measurement that is not continued is abandoned.
        let there = self.timing.take().filter(|runner| batch.goes_on || runner.paused.is_none());
        let Some(mut runner) = there.or_else(|| Runner::new(self)) else {
            return denormals::as_zeros(|| self.timed(index, batch.rows)).map(Some);
        };
        let is_done = if runner.paused.is_some() {
            runner.thread.resume(slice)
        } else {
            self.lay_out(&runner, [index]);
            let (desk, rows) = (runner.desk.clone(), batch.rows);
            runner.thread.begin(move || desk.lock().unwrap_or_else(PoisonError::into_inner).time(index, rows), slice)
        };
        runner.paused = (!is_done).then_some((0, batch.slice));
        let took = is_done.then(|| {
            let mut desk = runner.desk.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut desk.timed, Ok(Duration::ZERO))
        });
        self.timing = Some(runner);
        took.transpose()
    }

    /// Gives such a thread the cells that it needs.
    fn lay_out(&self, runner: &Runner, needed: impl IntoIterator<Item = CellTypeId>) {
        let cells = &mut runner.desk.lock().unwrap_or_else(PoisonError::into_inner).worker.cells;
        cells.resize(self.cells.len(), None);
        for index in needed {
            if let (Some(place), Some(cell)) = (cells.get_mut(index.index()), self.cells.get(index.index())) {
                place.clone_from(cell);
            }
        }
    }
}
