//! Tasks that run in slices ([`crate::slices`]): each on a thread with a team and a frame of its own.
//!
//! Such a thread computes as this worker does, and only while this worker waits for it. It is given the lanes of its task's rows and the cells as they are
//! when the task begins. It keeps its memory while the task is paused. The scheduler has two such tasks of a worker at most.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cellwright_backend::{Completed, DeviceLost, Task};

use super::ahead::Ahead;
use super::{CpuWorker, denormals};
use crate::slices::{Slice, SlicedThread};

/// A thread for such tasks.
pub(super) struct Runner {
    thread: SlicedThread,
    desk: Arc<Mutex<Desk>>,
    /// The task that is paused.
    paused: Option<(u64, Duration)>,
}

/// What such a thread computes with, and what came of the task. It holds the lock while it has a task.
struct Desk {
    worker: CpuWorker,
    ran: Result<Completed, DeviceLost>,
}

impl Desk {
    fn run(&mut self, mut task: Task) {
        let Self { worker, ran } = self;
        let mut completed = Completed::default();
        // Room for as many as may ever come; who is there is said with each slice.
        worker.team.set_guests(usize::MAX);
        worker.begin(&mut task);
        let executed = denormals::as_zeros(|| worker.execute(&task, &mut completed));
        completed.rows = task.rows;
        *ran = executed.map(|()| completed);
        // Nothing of a request or a cell outlives the task here.
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
        let desk = Arc::new(Mutex::new(Desk { worker, ran: Ok(Completed::default()) }));
        let processors = of.processors.clone();
        let place = move || processors.iter().for_each(crate::topology::Processors::keep_thread);
        let domain = of.domain.clone();
        let thread = SlicedThread::start(place, move || domain.lending.are_wanted_back()).ok()?;
        Some(Self { thread, desk, paused: None })
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
        let Runner { thread, desk, .. } = &mut self.sliced[at];
        desk.lock().unwrap_or_else(PoisonError::into_inner).worker.cells.clone_from(&self.cells);
        let desk = desk.clone();
        self.domain.lending.settle(&mut self.team);
        let first = Slice { time: slice, guests: self.team.guests() };
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
        let is_done = runner.thread.resume(Slice { time: slice, guests: self.team.guests() });
        runner.after(is_done, seq, slice, completed)
    }
}
