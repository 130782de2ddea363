//! CPU workers that can be held up, lost, or made to panic at a chosen moment.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use cellwright_backend::{
    Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, LoadError, Prepare, Prepared, Progress, Slot, Task, TimedBatch,
};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::TypedCell;

/// A domain whose arena has so many MiB.
///
/// # Panics
/// If there is no memory for it.
#[must_use]
pub fn domain(mebibytes: u64) -> Arc<CpuDomain> {
    CpuDomain::new(DomainOptions { arena_bytes: Some(mebibytes << 20), ..DomainOptions::default() }).expect("memory for an arena")
}

/// A worker of a domain, with one thread.
///
/// # Panics
/// If it does not start.
#[must_use]
pub fn worker(domain: &Arc<CpuDomain>) -> Box<dyn Backend> {
    Box::new(CpuWorker::new(domain.clone(), CpuOptions { threads: 1, ..CpuOptions::default() }).expect("a worker starts"))
}

/// A gate through which workers pass with every task. It opens when it is dropped, so that nobody waits behind it for ever.
#[derive(Debug, Default)]
pub struct Gate(Arc<Barrier>);

#[derive(Debug)]
struct Barrier {
    queue: Mutex<Queue>,
    opened: Condvar,
    /// Slots that its workers were asked for.
    read: AtomicU64,
    /// Slots that its workers were told to zero.
    zeroed: AtomicU64,
}

/// Who may pass a gate and who waits there.
#[derive(Debug)]
struct Queue {
    /// Tasks that may still pass.
    left: u64,
    /// Workers that stand before it.
    waiting: usize,
}

impl Default for Barrier {
    fn default() -> Self {
        Self {
            queue: Mutex::new(Queue { left: u64::MAX, waiting: 0 }),
            opened: Condvar::new(),
            read: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
        }
    }
}

impl Barrier {
    fn pass(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting += 1;
        queue = self.opened.wait_while(queue, |queue| queue.left == 0).unwrap_or_else(PoisonError::into_inner);
        queue.waiting -= 1;
        if queue.left < u64::MAX {
            queue.left -= 1;
        }
    }
}

impl Gate {
    /// No task is completed from now on, once those that were let through are.
    pub fn close(&self) {
        self.close_after(0);
    }

    /// So many tasks are completed from now on, and no more.
    pub fn close_after(&self, tasks: u64) {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).left = tasks;
        self.0.opened.notify_all();
    }

    /// Tasks go on.
    pub fn open(&self) {
        self.close_after(u64::MAX);
    }

    /// Whether a worker stands before it: all tasks that were to be let through have been, the worker has more, and does nothing else until it may go on.
    #[must_use]
    pub fn holds_somebody(&self) -> bool {
        let queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.left == 0 && queue.waiting > 0
    }

    /// How many slots its workers have read for somebody else.
    #[must_use]
    pub fn slots_read(&self) -> u64 {
        self.0.read.load(Ordering::Acquire)
    }

    /// How many slots its workers were told to zero before they use them.
    #[must_use]
    pub fn slots_zeroed(&self) -> u64 {
        self.0.zeroed.load(Ordering::Acquire)
    }

    /// A worker that must pass.
    #[must_use]
    pub fn before(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(Wrapped { inner, trouble: Trouble::Gate(self.0.clone()) })
    }

    /// A worker of whose cells these must pass before they are made ready; its tasks need not.
    #[must_use]
    pub fn before_cells(&self, which: impl Fn(&TypedCell) -> bool + Send + Sync + 'static, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(Wrapped { inner, trouble: Trouble::Cells(self.0.clone(), Arc::new(which)) })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// What a device is doing when it is held up or goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Completing a task.
    Tasks,
    /// Reading state that is to go elsewhere.
    Reading,
    /// Writing state that came from elsewhere.
    Writing,
    /// Having cells made ready, on other threads than its own: it cannot be lost meanwhile, but a panic there is one.
    Preparing,
}

/// When and how a device goes away.
#[derive(Clone, Debug)]
pub struct Fuse {
    left: Arc<AtomicU32>,
    at: Doing,
    panics: bool,
}

impl Fuse {
    /// It holds until [`Fuse::light`].
    #[must_use]
    pub fn new(panics: bool) -> Self {
        Self::at(Doing::Tasks, panics)
    }

    /// The same for a device that goes while it does something else.
    #[must_use]
    pub fn at(at: Doing, panics: bool) -> Self {
        Self { left: Arc::new(AtomicU32::new(u32::MAX)), at, panics }
    }

    /// The device goes with the task (or what else it is to do) after so many more.
    pub fn light(&self, tasks: u32) {
        self.left.store(tasks, Ordering::Release);
    }

    /// A worker that has it.
    #[must_use]
    pub fn on(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(Wrapped { inner, trouble: Trouble::Fuse(self.clone()) })
    }
}

/// A device that works by itself and completes nothing before it was given so many tasks; it is lost if somebody waits for it before that.
#[derive(Clone, Debug)]
pub struct Crew {
    wanted: u32,
    given: Arc<AtomicU32>,
}

impl Crew {
    /// One that nobody has given a task yet.
    #[must_use]
    pub fn of(tasks: u32) -> Self {
        Self { wanted: tasks, given: Arc::default() }
    }

    /// How many tasks it was given.
    #[must_use]
    pub fn given(&self) -> u32 {
        self.given.load(Ordering::Acquire)
    }

    fn is_whole(&self) -> bool {
        self.given() >= self.wanted
    }

    /// A worker that is one.
    #[must_use]
    pub fn on(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(Wrapped { inner, trouble: Trouble::Crew(self.clone()) })
    }
}

/// A device that says of every batch that it takes so long a row.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    row: Duration,
    pause: Duration,
    asked: Arc<AtomicU32>,
    lent: Arc<AtomicU32>,
    never_ends: Arc<AtomicBool>,
}

impl Stopwatch {
    /// One that nobody has asked yet.
    #[must_use]
    pub fn saying(row: Duration) -> Self {
        Self { row, pause: Duration::ZERO, asked: Arc::default(), lent: Arc::default(), never_ends: Arc::default() }
    }

    /// The same that takes so long to say it.
    #[must_use]
    pub fn after(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// From now on it is done with no batch, however often it is asked to go on.
    pub fn never_end(&self) {
        self.never_ends.store(true, Ordering::Release);
    }

    /// How often it was asked for a batch of its own.
    #[must_use]
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// How often it was asked for a batch with what others lend.
    #[must_use]
    pub fn asked_lent(&self) -> u32 {
        self.lent.load(Ordering::Acquire)
    }

    /// A worker that is one.
    #[must_use]
    pub fn on(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(Wrapped { inner, trouble: Trouble::Stopwatch(self.clone()) })
    }
}

/// More threads than any machine has.
pub const ALL_THREADS: usize = 1 << 20;

/// A worker that says it keeps so many of the machine's threads at work.
#[must_use]
pub fn keeping(threads: usize, inner: Box<dyn Backend>) -> Box<dyn Backend> {
    Box::new(Wrapped { inner, trouble: Trouble::Threads(threads) })
}

/// A worker that says so of the batches of every cell: whether they take less time with what others lend, and whether steps are best run together.
#[must_use]
pub fn preferring(lent: bool, together: bool, inner: Box<dyn Backend>) -> Box<dyn Backend> {
    Box::new(Wrapped { inner, trouble: Trouble::Preferences { lent, together } })
}

#[derive(Clone)]
enum Trouble {
    Preferences { lent: bool, together: bool },
    Gate(Arc<Barrier>),
    Cells(Arc<Barrier>, Arc<dyn Fn(&TypedCell) -> bool + Send + Sync>),
    Fuse(Fuse),
    Crew(Crew),
    Stopwatch(Stopwatch),
    Threads(usize),
}

struct Wrapped {
    inner: Box<dyn Backend>,
    trouble: Trouble,
}

/// Makes cells ready for such a device.
struct Preparer {
    inner: Arc<dyn Prepare>,
    trouble: Trouble,
}

impl Prepare for Preparer {
    fn prepare(&self, cell: &Arc<TypedCell>, weight_bytes_max: u64) -> Result<Prepared, LoadError> {
        match &self.trouble {
            Trouble::Cells(barrier, which) if which(cell) => barrier.pass(),
            trouble => drop(trouble.pass(Doing::Preparing)),
        }
        self.inner.prepare(cell, weight_bytes_max)
    }
}

impl Trouble {
    fn pass(&self, doing: Doing) -> Result<(), DeviceLost> {
        match self {
            Self::Gate(barrier) if doing == Doing::Tasks => {
                barrier.pass();
                Ok(())
            }
            Self::Fuse(fuse) if doing == fuse.at => {
                let burnt = |left: u32| (left < u32::MAX).then(|| left.saturating_sub(1));
                match fuse.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, burnt) {
                    Ok(0) if fuse.panics => panic!("the device is made to panic"),
                    Ok(0) => Err(DeviceLost { device: "a test's device".to_owned(), cause: "its fuse is burnt".to_owned() }),
                    _ => Ok(()),
                }
            }
            Self::Crew(crew) if doing == Doing::Tasks && !crew.is_whole() => {
                Err(DeviceLost { device: "a test's device".to_owned(), cause: "it was waited for".to_owned() })
            }
            Self::Gate(_)
            | Self::Cells(..)
            | Self::Fuse(_)
            | Self::Crew(_)
            | Self::Stopwatch(_)
            | Self::Threads(_)
            | Self::Preferences { .. } => Ok(()),
        }
    }
}

impl Backend for Wrapped {
    fn info(&self) -> DeviceInfo {
        let info = self.inner.info();
        match self.trouble {
            Trouble::Threads(threads) => DeviceInfo { threads, ..info },
            _ => info,
        }
    }

    fn preparer(&self) -> Arc<dyn Prepare> {
        Arc::new(Preparer { inner: self.inner.preparer(), trouble: self.trouble.clone() })
    }

    fn install(&mut self, index: CellTypeId, cell: &Arc<TypedCell>, prepared: Prepared) -> Result<(), LoadError> {
        self.inner.install(index, cell, prepared)
    }

    fn steps_together(&self, index: CellTypeId) -> bool {
        match self.trouble {
            Trouble::Preferences { together, .. } => together,
            _ => self.inner.steps_together(index),
        }
    }

    fn unload(&mut self, index: CellTypeId) {
        self.inner.unload(index);
    }

    fn submit(&mut self, task: Task) -> Result<(), DeviceLost> {
        if let Trouble::Gate(barrier) = &self.trouble {
            barrier.zeroed.fetch_add(task.scrub.iter().map(|(_, count)| u64::from(*count)).sum(), Ordering::AcqRel);
        }
        self.inner.submit(task)?;
        if let Trouble::Crew(crew) = &self.trouble {
            crew.given.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<Progress, DeviceLost> {
        match &self.trouble {
            // Now one and now the other: a worker takes tasks meanwhile in both cases.
            Trouble::Crew(crew) if !crew.is_whole() && crew.given().is_multiple_of(2) => Ok(Progress::Soon),
            Trouble::Crew(crew) if !crew.is_whole() => Ok(Progress::Later(Duration::from_micros(20))),
            _ => self.inner.progress(),
        }
    }

    fn resume(&mut self, paused: u64, seq: u64) -> Result<(), DeviceLost> {
        self.inner.resume(paused, seq)
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        self.trouble.pass(Doing::Tasks)?;
        self.inner.complete()
    }

    fn read(&mut self, first: Slot, count: u32) -> Result<Vec<u8>, DeviceLost> {
        self.trouble.pass(Doing::Reading)?;
        if let Trouble::Gate(barrier) = &self.trouble {
            barrier.read.fetch_add(u64::from(count), Ordering::AcqRel);
        }
        self.inner.read(first, count)
    }

    fn write(&mut self, first: Slot, bytes: &[u8]) -> Result<(), DeviceLost> {
        self.trouble.pass(Doing::Writing)?;
        self.inner.write(first, bytes)
    }

    fn recycle(&mut self, completed: Completed) {
        self.inner.recycle(completed);
    }

    fn time_batch(&mut self, _index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        if let Trouble::Stopwatch(stopwatch) = &self.trouble {
            stopwatch.asked.fetch_add(1, Ordering::AcqRel);
            std::thread::sleep(stopwatch.pause);
            return Ok(stopwatch.row * rows);
        }
        // Tests choose their batch sizes themselves.
        Ok(Duration::from_micros(1))
    }

    fn time_batch_lent(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        match &self.trouble {
            Trouble::Stopwatch(stopwatch) => {
                stopwatch.lent.fetch_add(1, Ordering::AcqRel);
                Ok(stopwatch.row * rows)
            }
            Trouble::Preferences { lent: true, .. } => Ok(Duration::from_nanos(500)),
            _ => self.time_batch(index, rows),
        }
    }

    fn time_slice(&mut self, index: CellTypeId, batch: TimedBatch) -> Result<Option<Duration>, DeviceLost> {
        let took = if batch.lent { self.time_batch_lent(index, batch.rows) } else { self.time_batch(index, batch.rows) }?;
        let never_ends = matches!(&self.trouble, Trouble::Stopwatch(stopwatch) if stopwatch.never_ends.load(Ordering::Acquire));
        Ok((!never_ends).then_some(took))
    }
}
