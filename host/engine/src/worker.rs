//! A thread that owns one device: takes tasks in order, gives completions in order, and answers the few questions asked at load.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cellwright_backend::{
    Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, LoadError, Prepare, Prepared, Progress, Slot, Taken, Task, TimedBatch,
};
use cellwright_cell_graph::TypedCell;
use cellwright_scheduler::WorkerId;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use crate::model::Running;
use crate::turns::{CoreTurns, look_out};
use crate::weight_room::WeightRoom;

/// Runs of slots of a request that moves: the first one there, the first one here, how many.
pub(crate) type Runs = Vec<(Slot, Slot, u32)>;

/// What a worker is told.
#[expect(clippy::large_enum_variant, reason = "nearly all that is sent are tasks")]
pub(crate) enum ToWorker {
    /// Run this, and take back what a completion before it no longer needs.
    Task(Task, Option<Completed>),
    /// Go on with the task that was paused under the first number, under the second.
    Resume(u64, u64),
    /// Take a cell that was made ready for it, and say how it runs.
    Install { index: CellTypeId, cell: Arc<TypedCell>, prepared: Prepared, reply: Sender<Result<Running, LoadError>> },
    /// Forget cells, and give what has to be dropped.
    Unload { indices: Vec<CellTypeId>, reply: Sender<Box<dyn Any + Send>> },
    /// Measure a batch for a slice, and say what it took, if it is done, and how long that kept the device.
    Time { index: CellTypeId, batch: TimedBatch, reply: Sender<(Option<Duration>, Duration)> },
    /// Read runs of slots and hand them to another worker, for the move of that number.
    Read { runs: Runs, to: Sender<ToWorker>, number: u64 },
    /// Write what another worker read.
    Write { runs: Vec<(Slot, Vec<u8>)>, number: u64 },
    /// Take runs of slots out of the memory of a worker that it reaches, for the move of that number.
    Take { from: WorkerId, runs: Runs, number: u64 },
}

/// What a worker tells the engine.
pub(crate) enum FromWorker {
    /// A task is done, since then.
    Completed(WorkerId, Completed, Instant),
    /// The state that a move is about is where it should be.
    Moved(u64),
    /// It could not be taken, and nothing writes where it should have come.
    NotMoved(u64),
    /// The device is gone.
    Lost(WorkerId, DeviceLost),
}

/// A worker's end of the engine.
#[derive(Clone)]
pub(crate) struct ToEngine {
    pub(crate) sender: Sender<FromWorker>,
    pub(crate) turns: Arc<CoreTurns>,
}

impl ToEngine {
    fn say(&self, news: FromWorker) {
        // If the engine is gone there is nobody left to tell.
        let _ = self.sender.send(news);
        self.turns.note_completion();
    }
}

/// The engine's end of a worker.
pub(crate) struct WorkerLink {
    pub(crate) info: DeviceInfo,
    /// Makes cells ready for it.
    pub(crate) preparer: Arc<dyn Prepare>,
    /// Of its own memory, if it has some.
    pub(crate) weights: Option<Arc<WeightRoom>>,
    pub(crate) sender: Sender<ToWorker>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl WorkerLink {
    /// Starts the thread. `queue` bounds what may be sent to it without waiting.
    pub(crate) fn start(id: WorkerId, backend: Box<dyn Backend>, queue: usize, engine: ToEngine) -> std::io::Result<Self> {
        let (info, preparer) = (backend.info(), backend.preparer());
        let weights = preparer.own_memory().map(WeightRoom::new);
        let (sender, receiver) = bounded(queue);
        let device = info.name.clone();
        let thread = std::thread::Builder::new().name(format!("worker-{}", id.0)).spawn(move || {
            let unheard = receiver.clone();
            let mut worker = Worker { id, backend, receiver, engine: engine.clone(), outstanding: 0, taking: VecDeque::new() };
            let lost = match catch_unwind(AssertUnwindSafe(|| worker.run())) {
                Ok(Ok(())) => return,
                Ok(Err(lost)) => lost,
                Err(_) => DeviceLost { device, cause: "its worker panicked".to_owned() },
            };
            // Before the device goes: that may take long of one that is lost, and whoever waits for what it had can begin again elsewhere. The turn that it may
            // have may panic, as may whatever goes with the device; that must not keep the rest from being done.
            let _ = catch_unwind(AssertUnwindSafe(|| engine.say(FromWorker::Lost(id, lost))));
            std::thread::scope(|scope| {
                // A bounded channel keeps its messages when its receiver goes, and whoever asked in one of them would wait for ever: they are let go of, each
                // with its reply's end, until the engine hangs up. Nor does any of them wait for the device; without another thread, all do.
                let let_go = || unheard.iter().for_each(drop);
                let beside = std::thread::Builder::new().name(format!("lost-worker-{}", id.0)).spawn_scoped(scope, let_go);
                let _ = catch_unwind(AssertUnwindSafe(move || drop(worker)));
                if beside.is_err() {
                    let_go();
                }
            });
        })?;
        Ok(Self { info, preparer, weights, sender, thread: Some(thread) })
    }
}

struct Worker {
    id: WorkerId,
    backend: Box<dyn Backend>,
    receiver: Receiver<ToWorker>,
    engine: ToEngine,
    outstanding: usize,
    /// Moves whose state the device takes from others, in order.
    taking: VecDeque<u64>,
}

impl Worker {
    /// Until the engine hangs up.
    fn run(&mut self) -> Result<(), DeviceLost> {
        loop {
            match self.next()? {
                Ok(ToWorker::Task(task, spare)) => {
                    if let Some(spare) = spare {
                        self.backend.recycle(spare);
                    }
                    self.backend.submit(task)?;
                    self.outstanding += 1;
                }
                Ok(ToWorker::Resume(paused, seq)) => {
                    self.backend.resume(paused, seq)?;
                    self.outstanding += 1;
                }
                Ok(ToWorker::Take { from, runs, number }) => {
                    self.backend.take(from.0, &runs)?;
                    self.taking.push_back(number);
                }
                Ok(control) => self.control(control)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// What there is to do, unless that is only to look again. Tasks that come are submitted first, what is complete is handed on next.
    fn next(&mut self) -> Result<Result<ToWorker, RecvTimeoutError>, DeviceLost> {
        if self.outstanding == 0 && self.taking.is_empty() {
            if self.engine.turns.has_plenty() {
                look_out(None, || !self.receiver.is_empty());
            }
            return Ok(self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected));
        }
        match self.receiver.try_recv() {
            Ok(message) => return Ok(Ok(message)),
            Err(TryRecvError::Disconnected) => return Ok(Err(RecvTimeoutError::Disconnected)),
            Err(TryRecvError::Empty) => {}
        }
        let taken = self.look_at_taken()?;
        let ran = if self.outstanding > 0 { self.backend.progress()? } else { taken };
        match (ran, taken) {
            (Progress::Complete, _) if self.outstanding > 0 => self.complete()?,
            (Progress::Later(pause), Progress::Later(other)) => return Ok(self.receiver.recv_timeout(pause.min(other))),
            (Progress::Later(pause), Progress::Complete) => return Ok(self.receiver.recv_timeout(pause)),
            _ => std::hint::spin_loop(),
        }
        Ok(Err(RecvTimeoutError::Timeout))
    }

    /// Says what became of the oldest move whose state is taken, if it is over; else how soon to look again.
    fn look_at_taken(&mut self) -> Result<Progress, DeviceLost> {
        let Some(number) = self.taking.front().copied() else { return Ok(Progress::Complete) };
        let told = match self.backend.taken()? {
            Taken::Soon => return Ok(Progress::Soon),
            Taken::Later(pause) => return Ok(Progress::Later(pause)),
            Taken::Moved => FromWorker::Moved(number),
            Taken::NotMoved => FromWorker::NotMoved(number),
        };
        self.taking.pop_front();
        self.engine.say(told);
        Ok(Progress::Complete)
    }

    fn complete(&mut self) -> Result<(), DeviceLost> {
        if let Some(completed) = self.backend.complete()? {
            self.outstanding -= 1;
            self.engine.say(FromWorker::Completed(self.id, completed, Instant::now()));
        }
        Ok(())
    }

    /// Replies may find nobody waiting any more; that is theirs to decide.
    fn control(&mut self, control: ToWorker) -> Result<(), DeviceLost> {
        // State may be read or measured only when nothing runs that writes it.
        while self.outstanding > 0 && !matches!(control, ToWorker::Install { .. } | ToWorker::Unload { .. }) {
            self.complete()?;
        }
        match control {
            ToWorker::Task(..) | ToWorker::Resume(..) | ToWorker::Take { .. } => unreachable!("`run` takes these"),
            ToWorker::Install { index, cell, prepared, reply } => {
                let loaded = self.backend.install(index, &cell, prepared);
                let running = |()| Running { table: self.backend.table(index), steps_together: self.backend.steps_together(index) };
                let _ = reply.send(loaded.map(running));
            }
            ToWorker::Unload { indices, reply } => {
                let _ = reply.send(self.backend.forget(&indices));
            }
            ToWorker::Time { index, batch, reply } => {
                // If the device is lost, whoever asked hears it by the reply that never comes.
                let began = Instant::now();
                let took = self.backend.time_slice(index, batch)?;
                let _ = reply.send((took, began.elapsed()));
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
                self.engine.say(FromWorker::Moved(number));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::Processors;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A device that is lost with its first task, and goes when it is let.
    struct Stubborn {
        panics: bool,
        goes: Receiver<()>,
        gone: Sender<()>,
    }

    impl Drop for Stubborn {
        fn drop(&mut self) {
            let _ = self.goes.recv();
            let _ = self.gone.send(());
        }
    }

    impl Backend for Stubborn {
        fn info(&self) -> DeviceInfo {
            let [name, numeric_class, domain, hardware] = ["stubborn", "none", "own", "none"].map(str::to_owned);
            DeviceInfo { name, numeric_class, domain, arena_slots: 1, hardware, threads: 0 }
        }

        fn install(&mut self, _: CellTypeId, _: &Arc<TypedCell>, _: Prepared) -> Result<(), LoadError> {
            Ok(())
        }

        fn unload(&mut self, _: CellTypeId) {}

        fn submit(&mut self, _: Task) -> Result<(), DeviceLost> {
            assert!(!self.panics, "the device is made to panic");
            Err(DeviceLost { device: "stubborn".to_owned(), cause: "it was asked to do something".to_owned() })
        }

        fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
            Ok(None)
        }

        fn read(&mut self, _: Slot, _: u32) -> Result<Vec<u8>, DeviceLost> {
            Ok(Vec::new())
        }

        fn write(&mut self, _: Slot, _: &[u8]) -> Result<(), DeviceLost> {
            Ok(())
        }

        fn time_batch(&mut self, _: CellTypeId, _: u32) -> Result<Duration, DeviceLost> {
            Ok(Duration::ZERO)
        }
    }

    /// A device that is wedged may never go, and whoever has a request there is to hear of it all the same.
    #[test]
    fn who_is_lost_says_so_before_its_device_goes() {
        for panics in [false, true] {
            let (sender, told) = bounded(4);
            let (turns, _rings) = CoreTurns::new(told.clone(), Processors::Few);
            let (go, goes) = bounded(1);
            let (gone, went) = bounded(1);
            let engine = ToEngine { sender, turns: Arc::new(turns) };
            let device = Box::new(Stubborn { panics, goes, gone });
            let link = WorkerLink::start(WorkerId(7), device, 4, engine).expect("a thread");
            let task =
                Task { seq: 0, cell: CellTypeId(0), steps: 1, rows: vec![], joins: vec![], leaves: vec![], scrub: vec![], slice: None };
            link.sender.send(ToWorker::Task(task, None)).expect("it listens");
            match told.recv_timeout(PATIENCE).expect("the engine hears of it while the device is still there") {
                FromWorker::Lost(WorkerId(7), lost) => assert_eq!(lost.cause == "its worker panicked", panics, "{lost}"),
                _ => panic!("something else is said"),
            }
            // Whoever asks it for something is let go of, now and later.
            let is_let_go = || {
                let (reply, replies) = bounded(1);
                link.sender.send(ToWorker::Unload { indices: vec![CellTypeId(0)], reply }).expect("there is room");
                assert_eq!(replies.recv_timeout(PATIENCE).err(), Some(RecvTimeoutError::Disconnected));
            };
            is_let_go();
            assert!(went.is_empty(), "nobody let it go yet");
            go.send(()).expect("it waits for that");
            went.recv_timeout(PATIENCE).expect("the device goes");
            is_let_go();
            let WorkerLink { sender, thread, .. } = link;
            drop(sender);
            thread.into_iter().for_each(|thread| thread.join().expect("it ends"));
        }
    }
}
