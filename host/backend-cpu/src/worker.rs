//! One CPU worker: takes tasks, gathers their rows, runs the cell's plan, scatters the outputs, and says what left.
//!
//! Tasks run in [`Backend::complete`], on the caller's thread and the worker's helpers. On the steady path nothing is allocated: frames, row lists
//! and completions are used again.

mod epilogue;
mod transfer;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, CellIndex, Completed, DeviceInfo, DeviceLost, Lane, LoadError, NodeLayout, Row, SLOT_BYTES, Slot, Task};
use cellwright_cell_graph::TypedCell;

use crate::domain::{CpuDomain, DomainError};
use crate::plan::{Frame, RefusedRow, SharedPlan};
use crate::team::Team;

/// Completions kept to be used again: more than an engine has outstanding.
const SPARES: usize = 16;

/// Bytes of outputs that such a completion keeps room for.
const SPARE_BYTES: usize = 4 << 20;

/// Bytes that the rows of a plan may take at once, if there is more than one.
const FRAME_BYTES: usize = 256 << 20;

/// How a worker runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads, the worker's own included; at least one.
    pub threads: usize,
    /// How long a helper thread without work looks for more before it sleeps: what a step has to wait for it is less, what others get of its
    /// core is less too.
    pub spin: Duration,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: 1, spin: Duration::from_micros(40) }
    }
}

/// Where a worker's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Matrix products.
    pub products: Duration,
    /// Everything else of the plans.
    pub others: Duration,
    /// Gathering inputs and scattering outputs.
    pub transfer: Duration,
}

/// A cell as this worker runs it.
struct Loaded {
    name: String,
    plan: SharedPlan,
    layout: NodeLayout,
}

/// A row of the batch at hand.
#[derive(Clone, Copy, Debug)]
struct Active {
    row: Row,
    /// Beyond the chain's bound: zeros in, nothing out.
    is_padding: bool,
    is_refused: bool,
}

/// A worker on the CPU.
pub struct CpuWorker {
    domain: Arc<CpuDomain>,
    team: Team,
    cells: Vec<Option<Loaded>>,
    lanes: Vec<Option<Arc<Lane>>>,
    queue: VecDeque<Task>,
    frame: Frame,
    batch: Vec<Active>,
    refused: Mutex<Vec<RefusedRow>>,
    spares: Vec<Completed>,
    account: Option<Arc<Mutex<Shares>>>,
}

impl CpuWorker {
    /// A worker of a domain.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn new(domain: Arc<CpuDomain>, options: CpuOptions) -> Result<Self, DomainError> {
        let team = Team::new(options.threads.max(1), options.spin).map_err(DomainError::Threads)?;
        Ok(Self {
            domain,
            team,
            cells: Vec::new(),
            lanes: Vec::new(),
            queue: VecDeque::new(),
            frame: Frame::default(),
            batch: Vec::new(),
            refused: Mutex::default(),
            spares: Vec::new(),
            account: None,
        })
    }

    /// The same worker, which adds up in `account` where its time goes.
    #[must_use]
    pub fn accounting(self, account: Arc<Mutex<Shares>>) -> Self {
        Self { account: Some(account), ..self }
    }

    fn lost(&self, cause: String) -> DeviceLost {
        DeviceLost { device: self.info().name, cause }
    }

    /// Applies what a task changes before its first step.
    fn begin(&mut self, task: &mut Task) {
        for lane in task.leaves.drain(..) {
            if let Some(entry) = self.lanes.get_mut(lane.index()) {
                *entry = None;
            }
        }
        for (index, lane) in task.joins.drain(..) {
            if index.index() >= self.lanes.len() {
                self.lanes.resize(index.index() + 1, None);
            }
            self.lanes[index.index()] = Some(lane);
        }
        for (slot, count) in task.scrub.drain(..) {
            // SAFETY: the scheduler gave these slots to a request that runs on this worker from now on, and to nobody else.
            unsafe { self.domain.arena.zero(slot.index() * SLOT_BYTES, count as usize * SLOT_BYTES) };
        }
    }

    fn execute(&mut self, task: &mut Task, completed: &mut Completed) -> Result<(), DeviceLost> {
        self.begin(task);
        for step in 0..task.steps {
            self.select(&task.rows, step)?;
            if !self.batch.is_empty() {
                self.step(task.cell, completed)?;
            }
        }
        Ok(())
    }

    /// Collects the rows that are worth computing: all but those of dead requests and ended chains.
    fn select(&mut self, rows: &[Row], ahead: u32) -> Result<(), DeviceLost> {
        self.batch.clear();
        for row in rows {
            let Some(lane) = self.lanes.get(row.lane.index()).and_then(Option::as_ref) else {
                return Err(self.lost(format!("a task names lane {}, which never joined", row.lane.0)));
            };
            let step = row.step.saturating_add(ahead);
            let is_padding = step >= lane.chain().length.bound;
            if is_padding || (step < lane.executed() && !lane.growth.flags.dead.load(std::sync::atomic::Ordering::Relaxed)) {
                self.batch.push(Active { row: Row { lane: row.lane, step }, is_padding, is_refused: false });
            }
        }
        Ok(())
    }

    /// Runs the cell once over the batch: at once, or, if its rows are so long that they would take too much memory, in parts, which no row can tell.
    fn step(&mut self, cell: CellIndex, completed: &mut Completed) -> Result<(), DeviceLost> {
        let Some(loaded) = self.cells.get(cell.index()).and_then(Option::as_ref) else {
            return Err(self.lost(format!("a task names cell {}, which is not loaded", cell.0)));
        };
        let account = self.account.as_deref();
        let rows_most = loaded.plan.rows_within(FRAME_BYTES);
        for batch in self.batch.chunks_mut(rows_most) {
            let memory = self.frame.prepare(&loaded.plan, batch.len(), self.team.size());
            let transfer = transfer::Transfer { arena: &self.domain.arena, cells: &self.cells, lanes: &self.lanes, loaded, memory };
            let mut clock = Clock::start(account);
            transfer.gather(batch, &mut self.team);
            clock.lap(|shares, time| shares.transfer += time);
            if account.is_none() {
                loaded.plan.run(memory, batch.len(), &mut self.team, &self.refused);
            } else {
                let (products, others) = loaded.plan.run_timed(memory, batch.len(), &mut self.team, &self.refused);
                clock.lap(|shares, _| {
                    shares.products += products;
                    shares.others += others;
                });
            }
            let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
            epilogue::refuse(refused, batch, &self.lanes, &loaded.name, completed);
            transfer.scatter(batch, &mut self.team);
            epilogue::finish(&transfer, batch, completed);
            clock.lap(|shares, time| shares.transfer += time);
        }
        Ok(())
    }
}

impl Backend for CpuWorker {
    fn info(&self) -> DeviceInfo {
        let threads = self.team.size();
        DeviceInfo {
            name: format!("cpu: {threads} {}, {}", if threads == 1 { "thread" } else { "threads" }, self.domain.level.name()),
            numeric_class: self.domain.numeric_class(),
            domain: format!("cpu-{}", self.domain.number),
            arena_slots: self.domain.arena.slots(),
            hardware: self.domain.hardware.clone(),
        }
    }

    fn load(&mut self, index: CellIndex, cell: &Arc<TypedCell>) -> Result<(), LoadError> {
        let plan = self.domain.plan(cell)?;
        if index.index() >= self.cells.len() {
            self.cells.resize_with(index.index() + 1, || None);
        }
        self.cells[index.index()] = Some(Loaded { name: cell.name.clone(), plan, layout: NodeLayout::of(cell) });
        Ok(())
    }

    fn unload(&mut self, index: CellIndex) {
        if let Some(entry) = self.cells.get_mut(index.index()) {
            *entry = None;
        }
    }

    fn submit(&mut self, task: Task) -> Result<(), DeviceLost> {
        self.queue.push_back(task);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        let Some(mut task) = self.queue.pop_front() else { return Ok(None) };
        let mut completed = self.spares.pop().unwrap_or_default();
        let began = Instant::now();
        self.execute(&mut task, &mut completed)?;
        completed.seq = task.seq;
        completed.busy_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        completed.rows = task.rows;
        Ok(Some(completed))
    }

    fn read(&mut self, first: Slot, count: u32) -> Result<Vec<u8>, DeviceLost> {
        let mut bytes = vec![0; count as usize * SLOT_BYTES];
        // SAFETY: nothing that writes these slots is outstanding (the engine's promise).
        unsafe { self.domain.arena.read(first.index() * SLOT_BYTES, bytes.as_mut_ptr(), bytes.len()) };
        Ok(bytes)
    }

    fn write(&mut self, first: Slot, bytes: &[u8]) -> Result<(), DeviceLost> {
        // SAFETY: the slots were given to the request that moves here, and nothing of it runs yet.
        unsafe { self.domain.arena.write(first.index() * SLOT_BYTES, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn recycle(&mut self, mut completed: Completed) {
        if self.spares.len() < SPARES {
            completed.stopped.clear();
            completed.refused.clear();
            completed.delivered.clear();
            completed.bytes.clear();
            completed.bytes.shrink_to(SPARE_BYTES);
            completed.rows = Vec::new();
            self.spares.push(completed);
        }
    }

    fn time_batch(&mut self, index: CellIndex, rows: u32) -> Result<Duration, DeviceLost> {
        let Some(loaded) = self.cells.get(index.index()).and_then(Option::as_ref) else {
            return Err(self.lost(format!("cell {} is to be timed, but is not loaded", index.0)));
        };
        let rows = rows.max(1) as usize;
        let rows_most = loaded.plan.rows_within(FRAME_BYTES);
        let memory = self.frame.prepare(&loaded.plan, rows.min(rows_most), self.team.size());
        transfer::zero_inputs(loaded, memory, rows.min(rows_most));
        let budget = Instant::now();
        let mut least = Duration::MAX;
        for run in 0..TIMED_RUNS {
            if run > 0 && budget.elapsed() >= TIMED_BUDGET {
                break;
            }
            let began = Instant::now();
            for part in (0..rows).step_by(rows_most) {
                loaded.plan.run(memory, rows_most.min(rows - part), &mut self.team, &self.refused);
                // A cell may refuse zeros. They are nobody's, and must not meet the rows of the task that comes next.
                self.refused.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            }
            least = least.min(began.elapsed());
        }
        Ok(least)
    }
}

/// Adds times to an account, if there is one.
struct Clock<'a> {
    account: Option<(&'a Mutex<Shares>, Instant)>,
}

impl<'a> Clock<'a> {
    fn start(account: Option<&'a Mutex<Shares>>) -> Self {
        Self { account: account.map(|account| (account, Instant::now())) }
    }

    fn lap(&mut self, add: impl FnOnce(&mut Shares, Duration)) {
        if let Some((account, began)) = &mut self.account {
            add(&mut account.lock().unwrap_or_else(PoisonError::into_inner), began.elapsed());
            *began = Instant::now();
        }
    }
}

/// Repetitions of a timed step, and how long they may take once there is one.
const TIMED_RUNS: usize = 15;
const TIMED_BUDGET: Duration = Duration::from_millis(30);
