//! One CPU worker: takes tasks, gathers their rows, runs the cell's plan, scatters the outputs, and says what left.
//!
//! Tasks run in [`Backend::complete`], on the caller's thread and the worker's helpers. On the steady path nothing is allocated: frames, row lists
//! and completions are used again.

mod ahead;
mod epilogue;
mod prepare;
mod sliced;
mod timing;
mod transfer;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cellwright_backend::{
    Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, Lane, LoadError, NodeLayout, Prepare, Prepared, Row, SLOT_BYTES, Slot,
    TableInfo, Task, TimedBatch,
};
use cellwright_cell_graph::TypedCell;

use crate::compiled::Compiled;
use crate::denormals;
use crate::domain::{CpuDomain, DomainError};
use crate::level::Kernels;
use crate::plan::{Frame, RefusedRow};
use crate::team::Team;
use crate::topology::Processors;
use ahead::Nodes;
use prepare::Preparer;
use timing::Clock;

/// Completions kept to be used again: more than an engine has outstanding.
const SPARES: usize = 16;

/// Bytes of outputs that such a completion keeps room for.
const SPARE_BYTES: usize = 4 << 20;

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads, the worker's own included; at least one.
    pub threads: usize,
    /// How long a helper thread without work looks for more before it sleeps: what a step has to wait for it is less, what others get of its
    /// core is less too.
    pub spin: Duration,
    /// Where its threads run, those included that make its cells ready; none: wherever the system puts them.
    pub processors: Option<Processors>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: 1, spin: Duration::from_micros(40), processors: None }
    }
}

/// Where a worker's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Matrix products, those that run ahead or fill a table included.
    pub products: Duration,
    /// Everything else of the plans.
    pub others: Duration,
    /// Gathering inputs, rounding rows for products on the way, looking up in tables and scattering outputs.
    pub transfer: Duration,
}

/// What a cell's matrix products are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellWork {
    /// Floating-point operations of one row.
    pub row_flops: usize,
    /// Bytes of packed weights, which every step reads once at least, unless what they are for is looked up.
    pub packed_bytes: usize,
}

/// A cell as this worker runs it.
struct Loaded {
    name: String,
    plan: Arc<Compiled>,
    layout: NodeLayout,
    /// How long a row takes, among others, whose token its table has not, once that is timed.
    missing_row: OnceLock<Duration>,
    /// Whether its next step begins with the last of its columns. First halves do not turn: other weights are read between two of them. Only the worker's own thread
    /// changes it; it is atomic because others read the cells meanwhile.
    backwards: AtomicBool,
}

/// What is to be done next.
#[derive(Debug)]
enum Next {
    Task(Task),
    /// The task that was paused under the first number goes on under the second.
    Resume(u64, u64),
}

/// A row of the batch at hand.
#[derive(Clone, Copy, Debug)]
struct Active {
    row: Row,
    /// Beyond the chain's bound: zeros in, nothing out.
    is_padding: bool,
    is_refused: bool,
    /// Its row in what the cell's first half gave.
    given: usize,
}

/// A worker on the CPU.
pub struct CpuWorker {
    domain: Arc<CpuDomain>,
    team: Team,
    options: CpuOptions,
    processors: Option<Processors>,
    /// Whether its own thread keeps to them already.
    is_placed: bool,
    /// Whether it lends its threads and borrows others'.
    lends: bool,
    cells: Vec<Option<Arc<Loaded>>>,
    lanes: Vec<Option<Arc<Lane>>>,
    queue: VecDeque<Next>,
    /// Threads for tasks that run in slices.
    sliced: Vec<sliced::Runner>,
    /// The one for batches that are timed, as soon as one was.
    timing: Option<sliced::Runner>,
    frame: Frame,
    ahead: ahead::Ahead,
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
        let mut worker = Self::apart(domain, options)?;
        worker.domain.lending.join(&worker.team);
        worker.lends = true;
        Ok(worker)
    }

    /// One that lends no threads and borrows none.
    fn apart(domain: Arc<CpuDomain>, options: CpuOptions) -> Result<Self, DomainError> {
        let team = Team::new(options.threads.max(1), options.spin, options.processors.as_ref()).map_err(DomainError::Threads)?;
        Ok(Self {
            domain,
            team,
            options: options.clone(),
            processors: options.processors,
            is_placed: false,
            lends: false,
            cells: Vec::new(),
            lanes: Vec::new(),
            queue: VecDeque::new(),
            sliced: Vec::new(),
            timing: None,
            frame: Frame::default(),
            ahead: ahead::Ahead::default(),
            batch: Vec::new(),
            refused: Mutex::default(),
            spares: Vec::new(),
            account: None,
        })
    }

    /// The same worker, which adds up in `account` where its time goes.
    #[must_use]
    pub fn accounting(mut self, account: Arc<Mutex<Shares>>) -> Self {
        self.account = Some(account);
        self
    }

    /// What the products of a loaded cell are.
    #[must_use]
    pub fn work(&self, index: CellTypeId) -> Option<CellWork> {
        let loaded = self.cells.get(index.index())?.as_ref()?;
        let (row_flops, packed_bytes) = loaded.plan.products();
        Some(CellWork { row_flops, packed_bytes })
    }

    fn lost(&self, cause: String) -> DeviceLost {
        DeviceLost { device: self.info().name, cause }
    }

    fn not_there(&self, index: CellTypeId) -> DeviceLost {
        self.lost(format!("cell {} is to be timed, but is not loaded", index.0))
    }

    /// Applies what a task changes before its first step.
    fn begin(&mut self, task: &mut Task) {
        for lane in task.leaves.drain(..) {
            if let Some(entry) = self.lanes.get_mut(lane.index()) {
                *entry = None;
            }
            self.ahead.forget_lane(lane);
        }
        for (index, lane) in task.joins.drain(..) {
            if index.index() >= self.lanes.len() {
                self.lanes.resize(index.index() + 1, None);
            }
            self.lanes[index.index()] = Some(lane);
            self.ahead.forget_lane(index);
        }
        for (slot, count) in task.scrub.drain(..) {
            // SAFETY: the scheduler gave these slots to a request that runs on this worker from now on, and to nobody else.
            unsafe { self.domain.arena.zero(slot.index() * SLOT_BYTES, count as usize * SLOT_BYTES) };
        }
    }

    /// Runs a task to its end.
    fn run_task(&mut self, mut task: Task, completed: &mut Completed) -> Result<(), DeviceLost> {
        self.begin(&mut task);
        denormals::as_zeros(|| self.execute(&task, completed))?;
        completed.seq = task.seq;
        completed.rows = task.rows;
        Ok(())
    }

    fn execute(&mut self, task: &Task, completed: &mut Completed) -> Result<(), DeviceLost> {
        let mut step = 0;
        while step < task.steps {
            self.domain.lending.settle(&mut self.team);
            let ahead = self.run_ahead(task, step)?;
            let steps = ahead.unwrap_or(1);
            for at in 0..steps {
                self.domain.lending.settle(&mut self.team);
                self.select(&task.rows, (step, at, steps))?;
                if !self.batch.is_empty() {
                    self.step(task.cell, ahead.is_some(), completed)?;
                }
            }
            self.ahead.forget_steps(task, step, steps);
            step += steps;
        }
        Ok(())
    }

    /// Collects the rows that are worth computing: all but those of dead requests and ended chains. Of so many steps from the task's `first` on it is
    /// number `at`.
    fn select(&mut self, rows: &[Row], (first, at, of): (u32, u32, u32)) -> Result<(), DeviceLost> {
        self.batch.clear();
        for (position, row) in rows.iter().enumerate() {
            let Some(lane) = self.lanes.get(row.lane.index()).and_then(Option::as_ref) else {
                return Err(self.lost(format!("a task names lane {}, which never joined", row.lane.0)));
            };
            let step = row.step.saturating_add(first).saturating_add(at);
            let is_padding = step >= lane.chain().length.bound;
            if is_padding || (step < lane.executed() && !lane.growth.flags.dead.load(Ordering::Relaxed)) {
                let given = position * of as usize + at as usize;
                self.batch.push(Active { row: Row { lane: row.lane, step }, is_padding, is_refused: false, given });
            }
        }
        Ok(())
    }

    /// Runs the cell once over the batch: at once, or, if it is large, in parts of about equal size, which no row can tell. With what its first half gave
    /// `ahead`, the second alone.
    fn step(&mut self, cell: CellTypeId, ahead: bool, completed: &mut Completed) -> Result<(), DeviceLost> {
        let Some(loaded) = self.cells.get(cell.index()).and_then(Option::as_ref) else {
            return Err(self.lost(format!("a task names cell {}, which is not loaded", cell.0)));
        };
        let account = self.account.as_deref();
        let body = loaded.plan.ahead().filter(|_| ahead).map_or_else(|| loaded.plan.one_step(), |split| &split.step);
        let rows = self.batch.len();
        let part_rows = rows.div_ceil(body.plan.parts(rows, self.team.size()));
        let part_rows = loaded.plan.table().map_or(part_rows, |(pre, _)| part_rows.min(pre.rows_most())).max(1);
        let (parts, spans) = (loaded.plan.parts(), loaded.plan.spans());
        let ends = transfer::Ends { arena: &self.domain.arena, cells: &self.cells, lanes: &self.lanes, loaded };
        let mut left = &mut self.batch[..];
        while !left.is_empty() {
            let together = match (parts, spans) {
                (Some(parts), _) => parts.rows_most(),
                (None, Some(spans)) => spans.nodes_at_once(left, ends, self.team.size()),
                (None, None) => rows,
            };
            let (batch, rest) = left.split_at_mut(together.min(left.len()));
            left = rest;
            if let Some(parts) = parts {
                self.ahead.run_parts(parts, batch, ends, &mut self.team, &mut Clock::start(account));
            }
            if let Some(spans) = spans {
                self.ahead.run_spans(spans, &mut Nodes::Batch(batch, ends), &mut self.team, &mut Clock::start(account));
            }
            for batch in batch.chunks_mut(part_rows) {
                let memory = self.frame.prepare(&body.plan, batch.len(), self.team.size());
                let mut clock = Clock::start(account);
                let plain = transfer::Transfer { ends, body, memory, given: None };
                if let Some(table) = loaded.plan.table() {
                    self.ahead.look_up(table, batch, &plain, &mut self.team, &mut clock);
                }
                let transfer = transfer::Transfer { given: Some(self.ahead.given()), ..plain };
                transfer.gather(batch, true, &mut self.team);
                let memory = memory.running(loaded.backwards.fetch_not(Ordering::Relaxed));
                clock.run(&body.plan, (memory, batch.len()), &mut self.team, &self.refused);
                let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
                if ahead || spans.is_some() || loaded.plan.table().is_some() {
                    self.ahead.tell_refused(batch, refused);
                }
                epilogue::refuse(refused, batch, &self.lanes, &loaded.name, completed);
                transfer.scatter(batch, &mut self.team);
                epilogue::finish(&transfer, batch, completed);
                clock.transferred();
            }
        }
        Ok(())
    }
}

impl Drop for CpuWorker {
    fn drop(&mut self) {
        if self.lends {
            self.domain.lending.leave(&mut self.team);
        }
    }
}

impl Backend for CpuWorker {
    fn info(&self) -> DeviceInfo {
        let threads = self.team.own();
        let place = self.domain.node.map_or_else(String::new, |node| format!(" on node {node}"));
        DeviceInfo {
            name: format!(
                "cpu: {threads} {}{place}, {}{}",
                if threads == 1 { "thread" } else { "threads" },
                self.domain.level.name(),
                if self.domain.kernels == Kernels::Tiles { " for f32 too" } else { "" }
            ),
            numeric_class: self.domain.numeric_class(),
            domain: format!("cpu-{}", self.domain.number),
            arena_slots: self.domain.arena.slots(),
            hardware: self.domain.hardware.clone(),
            threads,
        }
    }

    fn preparer(&self) -> Arc<dyn Prepare> {
        Arc::new(Preparer { domain: Arc::clone(&self.domain), processors: self.processors.clone() })
    }

    fn install(&mut self, index: CellTypeId, cell: &Arc<TypedCell>, prepared: Prepared) -> Result<(), LoadError> {
        // The first thing that a worker is told, on the thread that it has for good: whatever memory it touches from now on is near to it.
        if let Some(processors) = self.processors.as_ref().filter(|_| !std::mem::replace(&mut self.is_placed, true)) {
            processors.keep_thread();
        }
        let plan = prepare::plan_of(prepared);
        if index.index() >= self.cells.len() {
            self.cells.resize_with(index.index() + 1, || None);
        }
        self.ahead.forget_cell(index);
        self.cells[index.index()] = Some(Arc::new(Loaded {
            name: cell.name.clone(),
            plan,
            layout: NodeLayout::of(cell),
            missing_row: OnceLock::new(),
            backwards: AtomicBool::default(),
        }));
        Ok(())
    }

    fn table(&self, index: CellTypeId) -> Option<Arc<TableInfo>> {
        self.cells.get(index.index())?.as_ref()?.plan.info().cloned()
    }

    fn unload(&mut self, index: CellTypeId) {
        drop(self.forget(&[index]));
    }

    fn forget(&mut self, indices: &[CellTypeId]) -> Box<dyn Any + Send> {
        let gone: Vec<_> = indices.iter().filter_map(|index| self.cells.get_mut(index.index())?.take()).collect();
        let kept: Vec<_> = indices.iter().filter_map(|index| self.ahead.forget_cell(*index)).collect();
        let givers: Vec<_> = gone.iter().map(|loaded| &loaded.plan).filter(|plan| plan.only_token.is_some()).cloned().collect();
        let parts = || self.cells.iter().flatten().filter_map(|loaded| loaded.plan.parts());
        let tables: Vec<_> = if givers.is_empty() { Vec::new() } else { parts().flat_map(|parts| parts.forget(&givers)).collect() };
        // The cell that is being timed may be among them, or one whose memory is counted for tasks in slices.
        let (timing, sliced) = (self.timing.take(), self.sliced.extract_if(.., |runner| !runner.is_paused()).collect::<Vec<_>>());
        Box::new((timing, sliced, gone, kept, tables, self.frame.shrink(), self.ahead.shrink()))
    }

    fn submit(&mut self, task: Task) -> Result<(), DeviceLost> {
        self.queue.push_back(Next::Task(task));
        Ok(())
    }

    fn resume(&mut self, paused: u64, seq: u64) -> Result<(), DeviceLost> {
        self.queue.push_back(Next::Resume(paused, seq));
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        let Some(next) = self.queue.pop_front() else { return Ok(None) };
        let mut completed = self.spares.pop().unwrap_or_default();
        self.domain.lending.begin(&mut self.team);
        let began = Instant::now();
        let ran = match next {
            Next::Task(task) => match task.slice {
                None => self.run_task(task, &mut completed),
                Some(slice) => self.begin_slices(task, slice, &mut completed),
            },
            Next::Resume(paused, seq) => self.resume_slices(paused, seq, &mut completed),
        };
        self.domain.lending.end(&mut self.team);
        ran?;
        completed.busy_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Some(completed))
    }

    fn read(&mut self, first: Slot, count: u32) -> Result<Vec<u8>, DeviceLost> {
        let mut bytes = vec![0; count as usize * SLOT_BYTES];
        // SAFETY: nothing that writes these slots is outstanding, and until they were read they are nobody else's, whichever worker is lost (the engine's promise).
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
            completed.clear(SPARE_BYTES);
            self.spares.push(completed);
        }
    }

    // Nobody is to borrow its threads meanwhile.
    fn time_batch(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        self.domain.lending.begin(&mut self.team);
        let timed = denormals::as_zeros(|| self.timed(index, rows));
        self.domain.lending.end(&mut self.team);
        timed
    }

    fn time_batch_lent(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        self.domain.lending.begin(&mut self.team);
        self.domain.lending.take_idle(&mut self.team);
        let timed = denormals::as_zeros(|| self.timed(index, rows));
        self.domain.lending.end(&mut self.team);
        timed
    }

    fn time_slice(&mut self, index: CellTypeId, batch: TimedBatch) -> Result<Option<Duration>, DeviceLost> {
        self.domain.lending.begin(&mut self.team);
        if batch.lent {
            self.domain.lending.take_idle(&mut self.team);
        }
        let timed = self.time_in_slices(index, batch);
        self.domain.lending.end(&mut self.team);
        timed
    }
}
