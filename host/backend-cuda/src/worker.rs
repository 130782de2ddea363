//! One CUDA worker: turns tasks into work on a device's stream, and what comes back into completions.
//!
//! A task becomes one segment, or several if it is large: one upload (addresses, rows of the host), for each step of it a gathering, the cell's plan and a
//! finish, one signal, and a download of what is delivered if that is much; else the last kernel leaves it with the host. An LSTM's states may pass by the frame,
//! in which rows are gathered ([`recurrent`]). What a step needs of inputs that came with its request may have been
//! computed before, on a stream of its own ([`ahead`]). Where steps need only the states of those before, several are one batch
//! ([`together`]); all others are launched as graphs where that saves launches ([`graphs`]). Submitting only queues; completing only looks at the signal.
//! Steps that follow a stop in the same stream are kept from leaving anything by the device itself (`kernels/transfer.cu`).

mod ahead;
mod cost;
mod device;
mod flight;
mod frame;
mod gather;
mod given;
mod graphs;
mod inputs;
mod joined;
mod lanes;
mod options;
mod peers;
mod prepare;
mod queue;
mod recurrent;
mod resident;
mod retire;
mod ring;
mod room;
mod seat;
mod spans;
mod table;
mod together;
mod tree;
mod watch;
mod wide;
mod words;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellwright_backend::{
    Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, LaneId, LoadError, Peer, Prepare, Prepared, Progress, SLOT_BYTES, Slot,
    TableInfo, Taken, Task,
};
use cellwright_cell_graph::{CellTypeKey, TypedCell};

use crate::driver::{DeviceAddress, Done, Driver, Fault};
use crate::plan::Target;
use ahead::Ahead;
use device::Device;
use flight::InFlight;
use frame::FrameMemory;
use graphs::Graphs;
use joined::{Arena, Joined};
use lanes::Lanes;
pub use options::CudaOptions;
use options::Sizes;
use peers::Peers;
use prepare::{Preparer, ReadyCell};
use resident::Resident;
use ring::Ring;
use words::Words;

/// Completions kept to be used again: more than an engine has outstanding.
const SPARES: usize = 16;

/// Bytes of outputs that such a completion keeps room for.
const SPARE_BYTES: usize = 4 << 20;

/// A batch is timed so often at most,
const TIMED_RUNS: usize = 5;
/// and no further time once it took as long as this.
const TIMED_BUDGET: Duration = Duration::from_millis(20);

/// Workers that this process has made: each is a memory domain of its own.
static WORKERS: AtomicU32 = AtomicU32::new(0);

/// A worker on a CUDA device.
pub struct CudaWorker {
    number: u32,
    /// Goes before the rings do: its driver waits for kernels that write to them, or sees to it that they stay.
    device: Device,
    sizes: Sizes,
    arena: DeviceAddress,
    frame: FrameMemory,
    /// Where cells with ragged inputs have what is computed before their rest.
    spans: FrameMemory,
    up: Ring,
    down: Ring,
    words: Words,
    graphs: Graphs,
    ahead: Ahead,
    /// The words on the device, and how many it has room for.
    executed: (DeviceAddress, u32),
    cells: Vec<Option<Arc<Resident>>>,
    residents: Vec<(CellTypeKey, Arc<Resident>)>,
    /// What their weights leave to those of cells to come, for whoever makes these ready.
    weights_left: Arc<AtomicU64>,
    lanes: Lanes,
    /// In the order in which they were submitted.
    tasks: VecDeque<InFlight>,
    spares: Vec<Completed>,
    peers: Peers,
    /// When the device was last seen to finish something.
    last_done: Instant,
}

impl CudaWorker {
    /// A worker with an empty arena.
    ///
    /// # Errors
    /// If the device has no room for what it is to hold, or lacks a kernel.
    pub fn new(driver: Box<dyn Driver>, options: CudaOptions) -> Result<Self, Fault> {
        let mut device = Device::new(driver, &options)?;
        let sizes = options.sizes(&mut *device.driver)?;
        let arena_bytes = sizes.slots as usize * SLOT_BYTES;
        let arena = device.driver.allocate(arena_bytes)?;
        // A slot that was never written reads as zeros, as one that was scrubbed does.
        device.driver.zero(device.stream, arena, arena_bytes)?;
        let executed = device.driver.allocate(sizes.words as usize * size_of::<u32>())?;
        let up = Ring::new(&mut *device.driver, sizes.ring_bytes)?;
        let down = Ring::new(&mut *device.driver, sizes.ring_bytes)?;
        let graphs = Graphs::new(&mut *device.driver, options.graphs.then_some(sizes.graph_bytes))?;
        device.driver.synchronize()?;
        let own = [
            (arena, "the arena"),
            (executed, "the table of chains"),
            (up.device, "the ring of uploads"),
            (down.device, "the ring of downloads"),
        ];
        let desk = graphs.desk().map(|desk| (desk, "the desk"));
        own.into_iter().chain(desk).for_each(|(allocation, name)| device.call(allocation, name));
        Ok(Self {
            number: WORKERS.fetch_add(1, Ordering::Relaxed),
            executed: (executed, sizes.words),
            device,
            sizes,
            arena,
            frame: FrameMemory::default(),
            spans: FrameMemory::default(),
            up,
            down,
            words: Words::default(),
            graphs,
            ahead: Ahead::default(),
            cells: Vec::new(),
            residents: Vec::new(),
            weights_left: Arc::new(AtomicU64::new(sizes.weight_bytes)),
            lanes: Lanes::default(),
            tasks: VecDeque::new(),
            spares: Vec::new(),
            peers: Peers::default(),
            last_done: Instant::now(),
        })
    }

    fn resident(&mut self, cell: CellTypeId) -> Result<Arc<Resident>, DeviceLost> {
        match self.cells.get(cell.index()).and_then(Option::as_ref) {
            Some(resident) => Ok(Arc::clone(resident)),
            None => Err(self.device.lose(format!("a task names cell {}, which is not loaded", cell.0))),
        }
    }

    /// Applies what a task changes before its first step.
    fn begin(&mut self, task: &mut Task) -> Result<(), DeviceLost> {
        for lane in task.leaves.drain(..) {
            self.forget(lane, task.seq);
        }
        joined::read_ahead(&task.joins);
        for (index, lane) in task.joins.drain(..) {
            self.forget(index, task.seq);
            let words = self.words.join(&lane);
            let arena = Arena { address: self.arena, cells: &self.cells };
            self.lanes.join(index, Joined::new(lane, words, arena));
        }
        self.make_room_for_words()?;
        for (slot, count) in task.scrub.drain(..) {
            let zeroed = self.slots(slot, count as usize * SLOT_BYTES).and_then(|at| {
                let bytes = count as usize * SLOT_BYTES;
                self.device.driver.zero(self.device.stream, at, bytes)
            });
            self.device.held(zeroed)?;
        }
        Ok(())
    }

    /// A lane is nobody's from that task on.
    fn forget(&mut self, lane: LaneId, seq: u64) {
        self.ahead.kept.forget_lane(lane);
        if let Some(words) = self.lanes.leave(lane, seq).and_then(|whose| whose.words) {
            self.words.leave(&words);
        }
    }

    fn make_room_for_words(&mut self) -> Result<(), DeviceLost> {
        let (old, room) = self.executed;
        if self.words.count() <= room {
            return Ok(());
        }
        let more = self.words.count().next_power_of_two();
        let (driver, stream) = (&mut self.device.driver, self.device.stream);
        let grown = driver.allocate(more as usize * size_of::<u32>()).and_then(|new| {
            driver.copy(stream, old, new, room as usize * size_of::<u32>())?;
            // The old ones stay with the driver, for what is queued needs them and nobody waits here; together they take less than the new ones.
            Ok(new)
        });
        self.executed = (self.device.held(grown)?, more);
        self.device.call(self.executed.0, "the table of chains");
        Ok(())
    }

    /// Where bytes of the arena lie on the device.
    fn slots(&self, first: Slot, bytes: usize) -> Done<DeviceAddress> {
        let offset = first.index() * SLOT_BYTES;
        if offset + bytes > self.sizes.slots as usize * SLOT_BYTES {
            return Err(Fault::Refused(format!("slots from {} on lie beyond the arena", first.0)));
        }
        Ok(self.arena.plus(offset))
    }

    /// Forgets plans that nobody names any more.
    fn sweep(&mut self) {
        let (kept, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.residents).into_iter().partition(|(_, resident)| Arc::strong_count(resident) > 1);
        self.residents = kept;
        for (_, resident) in gone {
            self.ahead.kept.forget_cell(resident.memory);
            let forgotten = self.graphs.forget(Some(resident.memory), &mut *self.device.driver);
            let freed = resident.free(&mut self.device).and(forgotten);
            // A device that is lost says so to the next task.
            let _ = self.device.held(freed);
        }
        let taken = self.residents.iter().map(|(_, resident)| resident.bytes).sum();
        self.weights_left.store(self.sizes.weight_bytes.saturating_sub(taken), Ordering::Relaxed);
    }

    /// The cell's plan on the device: the one that another index has already, or a new one.
    fn resident_of(&mut self, cell: &TypedCell, ready: ReadyCell) -> Result<Arc<Resident>, LoadError> {
        if let Some((_, resident)) = self.residents.iter().find(|(key, _)| *key == cell.key) {
            return Ok(Arc::clone(resident));
        }
        let mut resident = Resident::new(cell, ready, &mut self.device, self.weights_left.load(Ordering::Relaxed))?;
        let made =
            self.make_room(&resident).and_then(|()| self.make_room_for_spans(&resident)).and_then(|()| self.make_room_ahead(&mut resident));
        match made {
            Ok(()) => {
                let resident = Arc::new(resident);
                self.residents.push((cell.key, Arc::clone(&resident)));
                Ok(resident)
            }
            Err(error) => {
                let freed = resident.free(&mut self.device);
                let _ = self.device.held(freed);
                Err(error)
            }
        }
    }
}

impl Backend for CudaWorker {
    fn info(&self) -> DeviceInfo {
        let facts = self.device.driver.facts();
        let (major, minor) = facts.capability;
        DeviceInfo {
            name: self.device.name.clone(),
            // With Hopper's own kernels its bits are others, and so they are in tf32.
            numeric_class: format!(
                "cuda-sm{major}{minor}{}{}",
                if self.device.kernels.lstm.is_some() { "a" } else { "" },
                if self.device.tf32 { "-tf32" } else { "" }
            ),
            domain: format!("cuda-{}", self.number),
            arena_slots: self.sizes.slots,
            hardware: format!("{}, {} multiprocessors", facts.name, facts.multiprocessors),
            threads: 1,
        }
    }

    fn preparer(&self) -> Arc<dyn Prepare> {
        Arc::new(Preparer {
            target: Target { is_hopper: self.device.kernels.wide.is_some(), tf32: self.device.tf32 },
            compiler: self.device.driver.compiler().ok(),
            weight_bytes: self.sizes.weight_bytes,
            weights_left: Arc::clone(&self.weights_left),
        })
    }

    fn install(&mut self, index: CellTypeId, cell: &Arc<TypedCell>, prepared: Prepared) -> Result<(), LoadError> {
        let Ok(ready) = prepared.cell.downcast::<ReadyCell>() else { unreachable!("a worker is given what its own preparer made") };
        let resident = self.resident_of(cell, *ready)?;
        if index.index() >= self.cells.len() {
            self.cells.resize_with(index.index() + 1, || None);
        }
        self.cells[index.index()] = Some(resident);
        self.sweep();
        Ok(())
    }

    fn table(&self, index: CellTypeId) -> Option<Arc<TableInfo>> {
        self.cells.get(index.index())?.as_ref()?.table_info()
    }

    fn steps_together(&self, index: CellTypeId) -> bool {
        let resident = self.cells.get(index.index()).and_then(Option::as_ref);
        resident.and_then(|resident| resident.plan.recurrence.as_ref()).is_some_and(|recurrence| recurrence.is_steady)
    }

    fn unload(&mut self, index: CellTypeId) {
        if let Some(entry) = self.cells.get_mut(index.index()) {
            *entry = None;
        }
        self.sweep();
    }

    fn submit(&mut self, mut task: Task) -> Result<(), DeviceLost> {
        self.device.is_there()?;
        self.begin(&mut task)?;
        let resident = self.resident(task.cell)?;
        let seats = self.lanes.seats();
        if let Some(row) = task.rows.iter().find(|row| !seats.has(row.lane)) {
            return Err(self.device.lose(format!("a task names lane {}, which never joined", row.lane.0)));
        }
        let completed = Completed { seq: task.seq, ..self.spares.pop().unwrap_or_default() };
        self.tasks.push_back(InFlight::new(task.rows, Arc::clone(&resident), completed));
        self.enqueue(&resident, task.steps)
    }

    fn progress(&mut self) -> Result<Progress, DeviceLost> {
        self.device.is_there()?;
        while let Some(number) = self.tasks.front().and_then(InFlight::oldest) {
            let progress = self.device.progress(number)?;
            if progress != Progress::Complete {
                return Ok(progress);
            }
            self.retire()?;
        }
        Ok(Progress::Complete)
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        self.device.is_there()?;
        while let Some(number) = self.tasks.front().and_then(InFlight::oldest) {
            self.device.wait_for(number)?;
            self.retire()?;
        }
        let Some(task) = self.tasks.pop_front() else { return Ok(None) };
        self.lanes.complete(task.completed.seq);
        let since = self.last_done.max(task.began);
        self.last_done = Instant::now();
        Ok(Some(task.completed(self.last_done.saturating_duration_since(since))))
    }

    fn read(&mut self, first: Slot, count: u32) -> Result<Vec<u8>, DeviceLost> {
        self.device.is_there()?;
        let mut bytes = vec![0; count as usize * SLOT_BYTES];
        let done = self.slots(first, bytes.len()).and_then(|at| self.device.driver.read(self.device.stream, at, &mut bytes));
        self.device.held(done)?;
        Ok(bytes)
    }

    fn write(&mut self, first: Slot, bytes: &[u8]) -> Result<(), DeviceLost> {
        self.device.is_there()?;
        let done = self.slots(first, bytes.len()).and_then(|at| self.device.driver.write(self.device.stream, at, bytes));
        self.device.held(done)
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer::new(self.neighbour()))
    }

    fn reach(&mut self, worker: u32, peer: &Peer) -> bool {
        match self.reach_worker(worker, peer) {
            Ok(reached) => reached,
            Err(fault) => {
                tracing::warn!("{}: state from worker {worker} passes through the host, because {fault}", self.device.name);
                false
            }
        }
    }

    fn take(&mut self, worker: u32, runs: &[(Slot, Slot, u32)]) -> Result<(), DeviceLost> {
        self.device.is_there()?;
        self.queue_taking(worker, runs)
    }

    fn taken(&mut self) -> Result<Taken, DeviceLost> {
        self.device.is_there()?;
        self.look_at_taken()
    }

    fn recycle(&mut self, mut completed: Completed) {
        if self.spares.len() < SPARES {
            completed.clear(SPARE_BYTES);
            self.spares.push(completed);
        }
    }

    fn time_batch(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        self.device.is_there()?;
        let resident = self.resident(index)?;
        self.drain()?;
        let behind = self.ahead.wait_for_all(&mut self.device);
        self.device.held(behind)?;
        let rows = rows.max(1) as usize;
        let most = resident.rows_in(self.frame).min(self.sizes.rows_most);
        let most = resident.spans.as_ref().map_or(most, |spans| self.timed_most(&resident, spans).min(most));
        let part = rows.div_ceil(rows.div_ceil(most));
        let zeroed = self.device.driver.zero(
            self.device.stream,
            self.frame.address,
            resident.frame_bytes(self.bucket(&resident, part as u32) as usize),
        );
        self.device.held(zeroed)?;
        // All have as many rows, but for the last.
        let last = (rows - 1) % part + 1;
        let timed = self.timed(&resident, &[part as u32, last as u32][..1 + usize::from(last < part)]);
        let timed = self.device.held(timed)?;
        // The last part takes as long as the others, if it is smaller.
        let phases = resident.spans.as_ref().map(|spans| (spans, self.timed_phases(&resident, spans, part)));
        let phases = phases.map(|(spans, phases)| Ok((spans, self.device.held(phases)?))).transpose()?;
        let ready = self.device.queue_signal();
        let ready = self.device.held(ready)?;
        self.device.wait_for(ready)?;
        let budget = Instant::now();
        let mut least = Duration::MAX;
        for run in 0..TIMED_RUNS {
            if run > 0 && budget.elapsed() >= TIMED_BUDGET {
                break;
            }
            let began = Instant::now();
            for first in (0..rows).step_by(part) {
                let batch = timed[usize::from(rows - first < part)];
                let before = phases.as_ref().map_or(Ok(()), |(spans, phases)| self.launch_phases(spans, phases));
                let queued = before.and_then(|()| self.queue_timed(&resident, &batch));
                self.device.held(queued)?;
            }
            let signal = self.device.queue_signal();
            let signal = self.device.held(signal)?;
            self.device.wait_for(signal)?;
            least = least.min(began.elapsed());
        }
        let released = timed.iter().filter_map(|(_, by)| *by).try_for_each(|(graph, _)| self.device.driver.release_graph(graph));
        self.device.held(released)?;
        Ok(least)
    }
}
