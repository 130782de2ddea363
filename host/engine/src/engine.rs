//! The engine as its users see it: start it with devices, load models, submit graphs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use cellwright_backend::{Backend, CellIndex, DeviceInfo, LoadError, NodeLayout};
use cellwright_cell_graph::{TypedCell, UnfoldedGrowth};
use cellwright_scheduler::{CellInfo, CellTypeId, DomainId, Event, ModelId, ModelInfo, NumericClass, Scheduler, TenantId, WorkerId};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::calibration::{BatchLimits, Calibration, calibrate};
use crate::calibration_store::{CalibrationStore, Subject};
use crate::core::{Core, CoreParts, CoreWorker, ToCore};
use crate::lanes::WORKERS_MAX;
use crate::model::{CellOverride, CellTypes, LoadedCell, LoadedModel, ModelSpec};
use crate::options::EngineOptions;
use crate::requests::Handles;
pub use crate::requests::{Handle, RequestTensors};
use crate::sink::Sink;
use crate::worker::{FromWorker, ToWorker, WorkerLink};

/// Control messages that may wait at a worker beside its tasks. Loads are one at a time, and a request that moves takes one at each end.
const CONTROL_QUEUE: usize = 64;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It has nothing to run on.
    #[error("an engine needs at least one worker")]
    NoWorkers,
    /// It has too many.
    #[error("an engine drives at most {WORKERS_MAX} workers, not {0}")]
    TooManyWorkers(usize),
    /// The system gave no thread.
    #[error("a thread could not be started")]
    Thread(#[from] std::io::Error),
}

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A device cannot run one of its cells.
    #[error(transparent)]
    Cell(#[from] LoadError),
    /// A worker is gone.
    #[error("worker {0} is lost and cannot load a cell")]
    WorkerLost(u32),
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopped,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests as allowed are in flight.
    #[error("as many requests as allowed are in flight")]
    Full,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopped,
}

/// What an engine has done since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Tasks run, a task of several steps counted for each.
    pub tasks: AtomicU64,
    /// Nodes run.
    pub rows: AtomicU64,
    /// Requests finished.
    pub finished: AtomicU64,
    /// Requests that ended otherwise.
    pub failed: AtomicU64,
    /// Device time, nanoseconds, over all workers.
    pub busy_ns: AtomicU64,
}

/// Models loaded and their cell types.
#[derive(Default)]
struct Registry {
    types: CellTypes,
    models: Vec<bool>,
}

/// A scheduler, its workers, and the thread between them.
///
/// Dropping it ends every request with `RequestFailure::Stopped` and joins its threads.
pub struct Engine {
    inbox: Sender<ToCore>,
    workers: Vec<WorkerLink>,
    handles: Arc<Handles>,
    counters: Arc<Counters>,
    registry: Mutex<Registry>,
    batch_max: u32,
    task_time_max: Duration,
    calibrations: Option<CalibrationStore>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("workers", &self.devices().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts a thread for each device and one for the scheduler.
    ///
    /// # Errors
    /// Without a device, with too many, or without threads.
    pub fn start(options: EngineOptions, backends: Vec<Box<dyn Backend>>) -> Result<Self, StartError> {
        if backends.is_empty() {
            return Err(StartError::NoWorkers);
        }
        if backends.len() > WORKERS_MAX {
            return Err(StartError::TooManyWorkers(backends.len()));
        }
        // Nobody ever waits to send to a worker or from one: both queues hold all that can be outstanding.
        let queue = (options.scheduler.low_water + options.scheduler.max_tasks_to_submit) as usize + CONTROL_QUEUE;
        let (to_engine, completions) = bounded(queue * backends.len());
        let workers = start_workers(backends, queue, &to_engine)?;
        let (inbox, messages) = bounded(options.in_flight_max as usize + CONTROL_QUEUE);
        let handles = Arc::new(Handles::new(options.in_flight_max));
        let counters = Arc::new(Counters::default());
        let (batch_max, task_time_max) = (options.batch_max.max(1), options.task_time_max);
        let calibrations = options.calibration_folder.clone().map(CalibrationStore::new);
        let core = core_parts(options, &workers, (messages, completions), handles.clone(), counters.clone());
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || Core::new(core).run())?;
        let registry = Mutex::default();
        Ok(Self { inbox, workers, handles, counters, registry, batch_max, task_time_max, calibrations, thread: Some(thread) })
    }

    /// The devices, in the order of worker ids.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.workers.iter().map(|worker| &worker.info)
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Loads a model's cells on every worker, measures those that are new, and opens the model for requests.
    ///
    /// # Errors
    /// If a device cannot run one of its cells; nothing of the model is left then.
    pub fn load(&self, spec: &ModelSpec) -> Result<Arc<LoadedModel>, ModelError> {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cells = Vec::with_capacity(spec.cells.len());
        for (position, cell) in spec.cells.iter().enumerate() {
            let loaded = self.load_cell(&mut registry.types, cell).map(|(cell_type, calibration)| {
                registry.types.retain(cell_type);
                let overrides = spec.overrides.get(position).copied().unwrap_or_default();
                loaded_cell(cell, cell_type, calibration, overrides, position)
            });
            match loaded {
                Ok(loaded) => cells.push(loaded),
                Err(error) => {
                    self.release(&mut registry.types, &cells);
                    return Err(error);
                }
            }
        }
        let id = registry.models.iter().position(|used| !used).unwrap_or(registry.models.len());
        if id == registry.models.len() {
            registry.models.push(false);
        }
        registry.models[id] = true;
        let id = ModelId(u32::try_from(id).unwrap_or(u32::MAX));
        let indices = cells.iter().map(|cell| CellIndex(cell.cell_type.0)).collect();
        let model = Arc::new(LoadedModel { id, name: spec.name.clone(), cells, indices });
        self.inbox.send(ToCore::ModelUp(Arc::new(model_info(spec, &model)))).map_err(|_| ModelError::Stopped)?;
        Ok(model)
    }

    /// Closes a model. No request of it may be in flight or submitted any more.
    pub fn unload(&self, model: &LoadedModel) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.inbox.send(ToCore::ModelDown(model.id));
        if let Some(used) = registry.models.get_mut(model.id.index()) {
            *used = false;
        }
        self.release(&mut registry.types, &model.cells);
    }

    /// Submits a request's first growth. Results go to `sink`, which is called on the engine's thread.
    ///
    /// # Errors
    /// If as many requests as allowed are in flight, or the engine is going.
    pub fn submit(
        &self,
        model: &Arc<LoadedModel>,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
        sink: impl FnOnce(Handle) -> Box<dyn Sink>,
    ) -> Result<Handle, SubmitError> {
        let handle = self.handles.take().ok_or(SubmitError::Full)?;
        let message = ToCore::Submit { handle, model: model.clone(), growth, tensors, sink: sink(handle) };
        match self.inbox.try_send(message) {
            Ok(()) => Ok(handle),
            Err(refused) => {
                self.handles.give_back(handle);
                Err(if matches!(refused, TrySendError::Full(_)) { SubmitError::Full } else { SubmitError::Stopped })
            }
        }
    }

    /// The request's graph goes on. Nothing happens if it has ended.
    pub fn grow(&self, handle: Handle, growth: Arc<UnfoldedGrowth>, tensors: RequestTensors) {
        let _ = self.inbox.send(ToCore::Grow { handle, growth, tensors });
    }

    /// The request's graph will not grow any more. Nothing happens if it has ended.
    pub fn close(&self, handle: Handle) {
        let _ = self.inbox.send(ToCore::Close(handle));
    }

    /// Nobody wants the answer any more. Nothing happens if it has ended.
    pub fn cancel(&self, handle: Handle) {
        let _ = self.inbox.send(ToCore::Cancel(handle));
    }

    /// The type of a cell, loaded on all workers and measured on the first if it is new.
    fn load_cell(&self, types: &mut CellTypes, cell: &Arc<TypedCell>) -> Result<(CellTypeId, Arc<Calibration>), ModelError> {
        if let Some((id, entry)) = types.find(&cell.key) {
            return Ok((id, entry.calibration.clone()));
        }
        let id = types.vacant();
        let index = CellIndex(id.0);
        for (number, worker) in self.workers.iter().enumerate() {
            ask(worker, number, |reply| ToWorker::Load { index, cell: cell.clone(), reply })??;
        }
        let batch_max = cell.batch_max.map_or(self.batch_max, |own| own.clamp(1, self.batch_max));
        let subject = Subject { cell: cell.key, device: &self.workers[0].info, batch_max, task_time_max: self.task_time_max };
        let calibration = match self.calibrations.as_ref().and_then(|store| store.find(&subject)) {
            Some(known) => known,
            None => {
                let measured = calibrate(batch_max, self.task_time_max, |rows| {
                    ask(&self.workers[0], 0, |reply| ToWorker::Time { index, rows, reply })?.map_err(|_| ModelError::WorkerLost(0))
                })?;
                if let Some(store) = &self.calibrations {
                    store.keep(&subject, &measured);
                }
                measured
            }
        };
        let calibration = Arc::new(calibration);
        types.insert(id, cell.key, calibration.clone());
        Ok((id, calibration))
    }

    fn release(&self, types: &mut CellTypes, cells: &[LoadedCell]) {
        for cell in cells {
            if types.release(cell.cell_type) {
                for worker in &self.workers {
                    let _ = worker.sender.send(ToWorker::Unload(CellIndex(cell.cell_type.0)));
                }
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.inbox.send(ToCore::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for worker in self.workers.drain(..) {
            drop(worker.sender);
            if let Some(thread) = worker.thread {
                let _ = thread.join();
            }
        }
    }
}

fn start_workers(backends: Vec<Box<dyn Backend>>, queue: usize, engine: &Sender<FromWorker>) -> Result<Vec<WorkerLink>, StartError> {
    let start = |(number, backend)| {
        let id = WorkerId(u32::try_from(number).unwrap_or(u32::MAX));
        WorkerLink::start(id, backend, queue, engine.clone()).map_err(StartError::Thread)
    };
    backends.into_iter().enumerate().map(start).collect()
}

/// Equal names get equal numbers, in order of first appearance.
fn number<'a>(names: &mut Vec<&'a str>, name: &'a str) -> u32 {
    let position = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn core_parts(
    options: EngineOptions,
    workers: &[WorkerLink],
    (inbox, completions): (Receiver<ToCore>, Receiver<FromWorker>),
    handles: Arc<Handles>,
    counters: Arc<Counters>,
) -> CoreParts {
    let (mut domains, mut classes) = (Vec::new(), Vec::new());
    let mut first_events = Vec::new();
    let mut core_workers = Vec::new();
    for (position, worker) in workers.iter().enumerate() {
        let domain = DomainId(number(&mut domains, &worker.info.domain));
        let class = NumericClass(number(&mut classes, &worker.info.numeric_class));
        let id = WorkerId(u32::try_from(position).unwrap_or(u32::MAX));
        first_events.push(Event::WorkerUp { worker: id, domain, class, arena_slots: worker.info.arena_slots });
        core_workers.push(CoreWorker { sender: worker.sender.clone(), domain, up: true });
    }
    CoreParts {
        scheduler: Scheduler::new(options.scheduler),
        workers: core_workers,
        inbox,
        completions,
        handles,
        counters,
        trace: options.trace,
        first_events,
    }
}

/// Asks a worker and waits for its reply.
fn ask<T>(worker: &WorkerLink, number: usize, message: impl FnOnce(Sender<T>) -> ToWorker) -> Result<T, ModelError> {
    let lost = || ModelError::WorkerLost(u32::try_from(number).unwrap_or(u32::MAX));
    let (reply, answer) = bounded(1);
    worker.sender.send(message(reply)).map_err(|_| lost())?;
    answer.recv().map_err(|_| lost())
}

fn loaded_cell(
    cell: &Arc<TypedCell>,
    cell_type: CellTypeId,
    calibration: Arc<Calibration>,
    overrides: CellOverride,
    position: usize,
) -> LoadedCell {
    let own = overrides.batch_max.into_iter().chain(cell.batch_max).min().unwrap_or(u32::MAX);
    let limits = BatchLimits { max: overrides.batch_max.unwrap_or(calibration.knee).min(own).max(1) };
    // Later cells of a description lie deeper in the model, and run first (paper, section 4.3).
    let depth = i32::try_from(position).unwrap_or(i32::MAX);
    let priority = overrides.priority.or(cell.priority).unwrap_or(depth);
    LoadedCell { cell: cell.clone(), cell_type, slots: NodeLayout::of(cell).slots, priority, calibration, limits }
}

fn model_info(spec: &ModelSpec, model: &LoadedModel) -> ModelInfo {
    let cells = model.cells.iter().map(|cell| CellInfo {
        cell_type: cell.cell_type,
        slots: cell.slots,
        priority: cell.priority,
        batch: cell.limits.sizes(),
    });
    let largest = model.cells.iter().map(|cell| cell.slots).max().unwrap_or(1);
    ModelInfo {
        model: model.id,
        tenant: TenantId(spec.tenant),
        weight: spec.weight.max(1),
        class: NumericClass(0),
        cells: cells.collect(),
        growth_slots: spec.live_max.map(|live| live.saturating_mul(largest)),
    }
}

impl Counters {
    /// Nodes per task so far.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    pub fn batch_size_mean(&self) -> f64 {
        self.rows.load(Ordering::Relaxed) as f64 / (self.tasks.load(Ordering::Relaxed) as f64).max(1.0)
    }
}
