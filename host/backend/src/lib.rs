//! What the engine asks of a device: take cells that were made ready, take tasks in order, report
//! what is done.
//!
//! A [`Backend`] is one worker's device. It owns the bytes (arenas, weights); the scheduler owns
//! the numbers (slots, lanes, tasks). No backend allocates a slot, and the scheduler never sees a
//! value.
//!
//! Tasks of one worker complete in the order in which they were handed over. The scheduler relies
//! on it: it may release a node before the node's inputs are computed, because the producer is
//! ahead in the same order.
//!
//! The suite in `host/conformance` is what every backend must pass.

pub mod lane;
pub mod machine;
pub mod peer;
pub mod prepare;
pub mod resolve;
pub mod task;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cellwright_cell_graph::TypedCell;

pub use cellwright_cell_graph::SLOT_BYTES;
pub use cellwright_cell_graph::layout::NodeLayout;
pub use lane::{EarlierChain, FirstSlots, Lane, PlacedGrowth, RequestFlags};
pub use peer::{Peer, Taken};
pub use prepare::{AsItIs, Prepare, Prepared, TIMED_SPAN_ROWS, WORKING_BYTES};
pub use resolve::{Frame, Giver, InputRef, Piece, Span, Window};
pub use task::{CellTypeId, Completed, Delivered, LaneId, Refused, Row, RowError, Slot, Stopped, Task};

/// A device and what it can hold, for people and for planning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Such as `cpu: 2 threads, AVX-512`.
    pub name: String,
    /// Workers of one numeric class give bit-identical results.
    pub numeric_class: String,
    /// Where its memory is; workers that say the same share an arena.
    pub domain: String,
    /// Slots of the domain's arena.
    pub arena_slots: u32,
    /// What it is made of, by its own name: measured times hold for this alone.
    pub hardware: String,
    /// Threads of this machine that it keeps at work while it has a task.
    pub threads: usize,
}

/// Tables of what a cell computes of each token, filled as tokens are seen or when the cell is loaded. They hold exactly what would be computed without them.
/// A cell that takes what other cells make of tokens may have some as soon as it has met such an input: one for each of those.
#[derive(Debug, Default)]
pub struct TableInfo {
    /// Bytes that they may come to take.
    pub bytes: AtomicU64,
    /// How many tokens there are, of all tables together.
    pub tokens: AtomicU64,
    /// How many of them are there.
    pub filled: AtomicU64,
}

/// Why a cell cannot be loaded on a device.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoadError {
    /// The device has no such operation.
    #[error("cell `{cell}`: {device} cannot run {what}")]
    Unsupported {
        /// Which cell.
        cell: String,
        /// Which device.
        device: String,
        /// What of it.
        what: String,
    },
    /// It does not fit.
    #[error("cell `{cell}` needs {needed} bytes of device memory, and so many are not free")]
    OutOfMemory {
        /// Which cell.
        cell: String,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are. The sentence does not say it: what is free tells what others hold.
        available: u64,
    },
}

/// A device is lost: its requests fail, the process goes on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{device} is lost: {cause}")]
pub struct DeviceLost {
    /// Which.
    pub device: String,
    /// In the driver's words.
    pub cause: String,
}

/// Whether a device has completed the oldest task that is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has, or there is none, or it is [`Backend::complete`] that does the work.
    Complete,
    /// It will have soon: it is worth a core to look again at once.
    Soon,
    /// It takes its time: it is looked at again after so long.
    Later(Duration),
}

/// A batch that is timed, one slice after the other.
#[derive(Clone, Copy, Debug)]
pub struct TimedBatch {
    /// Its rows.
    pub rows: u32,
    /// Whether workers of the same domain that have nothing to do lend what they have.
    pub lent: bool,
    /// Whether its tasks run in slices: what takes long is then cut as it is in those.
    pub is_long: bool,
    /// How long a slice is.
    pub slice: Duration,
    /// Whether it goes on where it stopped; else it begins, and what was begun before is forgotten.
    pub goes_on: bool,
}

/// One worker's device.
///
/// Tasks complete in the order in which they were submitted. A backend promises batch invariance: a row's results are bit-identical whatever
/// rows it runs with, at every batch size. It does not promise anything about rows of requests that were marked dead.
pub trait Backend: Send {
    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Who makes cells ready for it. Asked before the worker's own thread has it.
    fn preparer(&self) -> Arc<dyn Prepare> {
        Arc::new(AsItIs)
    }

    /// Takes a cell that its own [`Backend::preparer`] made ready, to run under that index. Nothing that takes long is left to do. An index that is taken again
    /// names the new one.
    ///
    /// # Errors
    /// If the device cannot run the cell or has no room for it.
    fn install(&mut self, index: CellTypeId, cell: &Arc<TypedCell>, prepared: Prepared) -> Result<(), LoadError>;

    /// Both, on the calling thread.
    ///
    /// # Errors
    /// As [`Prepare::prepare`] and [`Backend::install`].
    fn load(&mut self, index: CellTypeId, cell: &Arc<TypedCell>) -> Result<(), LoadError> {
        let prepared = self.preparer().prepare(cell, u64::MAX)?;
        self.install(index, cell, prepared)
    }

    /// The tables by which the device looks up what a loaded cell computes of a token, if it has some or may come to.
    fn table(&self, index: CellTypeId) -> Option<Arc<TableInfo>> {
        let _ = index;
        None
    }

    /// Whether several steps of a task of a loaded cell take hardly more than their own time: what comes with each task, and with each step that is launched by
    /// itself, is more than a step. Tasks then have several steps also where rows end meanwhile.
    fn steps_together(&self, index: CellTypeId) -> bool {
        let _ = index;
        false
    }

    /// Forgets a cell that no task in flight names.
    fn unload(&mut self, index: CellTypeId);

    /// Forgets such cells, and gives what has to be dropped if that may take long: it is dropped elsewhere.
    fn forget(&mut self, indices: &[CellTypeId]) -> Box<dyn Any + Send> {
        indices.iter().for_each(|index| self.unload(*index));
        Box::new(())
    }

    /// Takes a task; at most as many as the engine's configuration allows are outstanding. Returns at once: an asynchronous device is given
    /// the work, a synchronous one does it in [`Backend::complete`].
    ///
    /// # Errors
    /// If the device is lost.
    fn submit(&mut self, task: Task) -> Result<(), DeviceLost>;

    /// Whether [`Backend::complete`] would wait for a device that works by itself. Whoever asks until it would not can submit meanwhile what comes, so that
    /// the device has it before it needs it.
    ///
    /// # Errors
    /// If the device is lost.
    fn progress(&mut self) -> Result<Progress, DeviceLost> {
        Ok(Progress::Complete)
    }

    /// A paused task goes on behind those that were submitted before: the one that had the number `paused`, which has the number `seq` from now on.
    /// Whatever other tasks ran meanwhile, its results have the same bits.
    ///
    /// # Errors
    /// If the device is lost, or has no such task.
    fn resume(&mut self, paused: u64, seq: u64) -> Result<(), DeviceLost> {
        let _ = seq;
        Err(DeviceLost { device: self.info().name, cause: format!("it never paused the task {paused}") })
    }

    /// The oldest completed task, waiting for it if one is outstanding; none if nothing is. A task that was paused counts as completed.
    ///
    /// # Errors
    /// If the device is lost.
    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost>;

    /// The bytes of a run of slots, for a request that moves to another domain. Nothing that writes them is outstanding.
    ///
    /// # Errors
    /// If the device is lost.
    fn read(&mut self, first: Slot, count: u32) -> Result<Vec<u8>, DeviceLost>;

    /// Fills slots from `first` on with what another domain's [`Backend::read`] gave.
    ///
    /// # Errors
    /// If the device is lost.
    fn write(&mut self, first: Slot, bytes: &[u8]) -> Result<(), DeviceLost>;

    /// What other devices of this process need to take state out of its memory, if any may. Asked before the first task, as [`Backend::reach`] is.
    fn peer(&self) -> Option<Peer> {
        None
    }

    /// Whether it can take state out of that worker's memory by itself. It is made ready for that, which may take a while, and remembers the worker by
    /// that number.
    fn reach(&mut self, worker: u32, peer: &Peer) -> bool {
        let _ = (worker, peer);
        false
    }

    /// Begins to copy runs of slots out of the memory of a worker that it reaches: the first one there, the first one here, how many. Returns at once. Until
    /// [`Backend::taken`] says that it is over, nothing writes these slots, here or there, and nothing that wrote them is outstanding.
    ///
    /// # Errors
    /// If the device itself is lost.
    fn take(&mut self, worker: u32, runs: &[(Slot, Slot, u32)]) -> Result<(), DeviceLost> {
        let _ = (worker, runs);
        Ok(())
    }

    /// What became of the oldest [`Backend::take`], which is forgotten once it is over. Never waits. Asked only while there is one.
    ///
    /// # Errors
    /// If the device itself is lost.
    fn taken(&mut self) -> Result<Taken, DeviceLost> {
        Ok(Taken::NotMoved)
    }

    /// Takes a completion back whose contents are no longer needed, so that its buffers may be filled again. What it holds is ignored.
    fn recycle(&mut self, completed: Completed) {
        drop(completed);
    }

    /// Time of one step of that cell over a batch of so many rows of scratch data: the least of several runs if they are short, because what
    /// else the machine does can only add to it. What the cell refuses of that data concerns no task. Where a backend looks up what it computed
    /// before ([`Self::table`]), it is the time of a step that finds all it looks for, as most do: one that fills the table takes longer.
    ///
    /// # Errors
    /// If the device is lost.
    fn time_batch(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost>;

    /// The same with all that workers of its domain lend it which have nothing to do, if they do.
    ///
    /// # Errors
    /// If the device is lost.
    fn time_batch_lent(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        self.time_batch(index, rows)
    }

    /// One slice of such a measurement: its result, or nothing if it is to be asked to go on, after other tasks. A device that cannot stop in between does it at once.
    ///
    /// # Errors
    /// If the device is lost.
    fn time_slice(&mut self, index: CellTypeId, batch: TimedBatch) -> Result<Option<Duration>, DeviceLost> {
        if batch.lent { self.time_batch_lent(index, batch.rows) } else { self.time_batch(index, batch.rows) }.map(Some)
    }
}
