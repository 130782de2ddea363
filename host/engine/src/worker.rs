//! A thread that owns one device: takes tasks in order, gives completions in order, and answers the few questions asked at load.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cellwright_backend::{Backend, CellIndex, Completed, DeviceInfo, DeviceLost, LoadError, Progress, Slot, TableInfo, Task};
use cellwright_cell_graph::TypedCell;
use cellwright_scheduler::WorkerId;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

/// What a worker is told.
pub(crate) enum ToWorker {
    /// Run this, and take back what a completion before it no longer needs.
    Task(Task, Option<Completed>),
    /// Load a cell, and say by which table its results are looked up.
    Load { index: CellIndex, cell: Arc<TypedCell>, reply: Sender<Result<Option<TableInfo>, LoadError>> },
    /// Forget a cell.
    Unload { index: CellIndex, reply: Sender<()> },
    /// Measure a batch.
    Time { index: CellIndex, rows: u32, reply: Sender<Duration> },
    /// Read runs of slots and hand them to another worker, for the move of that number.
    Read { runs: Vec<(Slot, Slot, u32)>, to: Sender<ToWorker>, number: u64 },
    /// Write what another worker read.
    Write { runs: Vec<(Slot, Vec<u8>)>, number: u64 },
}

/// What a worker tells the engine.
pub(crate) enum FromWorker {
    /// A task is done.
    Completed(WorkerId, Completed),
    /// The state that a move is about has been written.
    Moved(u64),
    /// The device is gone.
    Lost(WorkerId, DeviceLost),
}

/// The engine's end of a worker.
pub(crate) struct WorkerLink {
    pub(crate) info: DeviceInfo,
    pub(crate) sender: Sender<ToWorker>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl WorkerLink {
    /// Starts the thread. `queue` bounds what may be sent to it without waiting.
    pub(crate) fn start(id: WorkerId, backend: Box<dyn Backend>, queue: usize, engine: Sender<FromWorker>) -> std::io::Result<Self> {
        let info = backend.info();
        let (sender, receiver) = bounded(queue);
        let device = info.name.clone();
        let thread = std::thread::Builder::new().name(format!("worker-{}", id.0)).spawn(move || {
            let unheard = receiver.clone();
            let run = AssertUnwindSafe(|| Worker { id, backend, receiver, engine: engine.clone(), outstanding: 0 }.run());
            let lost = match catch_unwind(run) {
                Ok(Ok(())) => return,
                Ok(Err(lost)) => lost,
                Err(_) => DeviceLost { device, cause: "its worker panicked".to_owned() },
            };
            // If the engine is gone too there is nobody left to tell.
            let _ = engine.send(FromWorker::Lost(id, lost));
            // A bounded channel keeps its messages when its receiver goes, and whoever asked in one of them would wait for ever: they are let go of, each
            // with its reply's end, until the engine hangs up.
            unheard.iter().for_each(drop);
        })?;
        Ok(Self { info, sender, thread: Some(thread) })
    }
}

struct Worker {
    id: WorkerId,
    backend: Box<dyn Backend>,
    receiver: Receiver<ToWorker>,
    engine: Sender<FromWorker>,
    outstanding: usize,
}

impl Worker {
    /// Until the engine hangs up.
    fn run(mut self) -> Result<(), DeviceLost> {
        loop {
            match self.next()? {
                Ok(ToWorker::Task(task, spare)) => {
                    if let Some(spare) = spare {
                        self.backend.recycle(spare);
                    }
                    self.backend.submit(task)?;
                    self.outstanding += 1;
                }
                Ok(control) => self.control(control)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// What there is to do, unless that is only to look again. Tasks that come are submitted first, those that are complete are handed on next.
    fn next(&mut self) -> Result<Result<ToWorker, RecvTimeoutError>, DeviceLost> {
        if self.outstanding == 0 {
            return Ok(self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected));
        }
        match self.receiver.try_recv() {
            Ok(message) => return Ok(Ok(message)),
            Err(TryRecvError::Disconnected) => return Ok(Err(RecvTimeoutError::Disconnected)),
            Err(TryRecvError::Empty) => {}
        }
        match self.backend.progress()? {
            Progress::Complete => self.complete()?,
            Progress::Soon => std::hint::spin_loop(),
            Progress::Later(pause) => return Ok(self.receiver.recv_timeout(pause)),
        }
        Ok(Err(RecvTimeoutError::Timeout))
    }

    fn complete(&mut self) -> Result<(), DeviceLost> {
        if let Some(completed) = self.backend.complete()? {
            self.outstanding -= 1;
            let _ = self.engine.send(FromWorker::Completed(self.id, completed));
            // Where there are no more processors than workers, the engine's thread may wait for this one: it may go first, since whoever could join the
            // next task, or has its answer now, would wait for all of that task.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Replies may find nobody waiting any more; that is theirs to decide.
    fn control(&mut self, control: ToWorker) -> Result<(), DeviceLost> {
        // State may be read or measured only when nothing runs that writes it.
        while self.outstanding > 0 && !matches!(control, ToWorker::Load { .. } | ToWorker::Unload { .. }) {
            self.complete()?;
        }
        match control {
            ToWorker::Task(..) => unreachable!("tasks are taken by `run`"),
            ToWorker::Load { index, cell, reply } => {
                let loaded = self.backend.load(index, &cell);
                let _ = reply.send(loaded.map(|()| self.backend.table(index)));
            }
            ToWorker::Unload { index, reply } => {
                self.backend.unload(index);
                let _ = reply.send(());
            }
            ToWorker::Time { index, rows, reply } => {
                // If the device is lost, whoever asked hears it by the reply that never comes.
                let _ = reply.send(self.backend.time_batch(index, rows)?);
            }
            ToWorker::Read { runs, to, number } => {
                let mut read = Vec::with_capacity(runs.len());
                for (from, target, count) in runs {
                    read.push((target, self.backend.read(from, count)?));
                }
                let _ = to.send(ToWorker::Write { runs: read, number });
            }
            ToWorker::Write { runs, number } => {
                for (first, bytes) in runs {
                    self.backend.write(first, &bytes)?;
                }
                let _ = self.engine.send(FromWorker::Moved(number));
            }
        }
        Ok(())
    }
}
