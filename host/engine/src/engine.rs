//! The engine as its users see it: start it with devices, load models, submit graphs.

mod loading;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cellwright_backend::{Backend, DeviceInfo};
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{DomainId, Event, NumericClass, Scheduler, WorkerId};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

pub use self::loading::ModelError;
use self::loading::Registry;
use crate::calibration_store::CalibrationStore;
use crate::cancels::Cancels;
use crate::core::{Core, CoreParts, CoreWorker, ToCore};
use crate::lanes::WORKERS_MAX;
use crate::model::LoadedModel;
use crate::options::EngineOptions;
use crate::requests::Handles;
pub use crate::requests::{Handle, RequestTensors};
use crate::sink::Sink;
use crate::worker::{FromWorker, WorkerLink};

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
    /// Requests that have a place in the engine now.
    pub in_flight: AtomicU64,
    /// Their growths that are remembered now.
    pub growths: AtomicU64,
    /// Their stages that have a place on a device now.
    pub lanes: AtomicU64,
}

/// Cancels requests of an engine, and does nothing once that is gone.
#[derive(Clone)]
pub struct Canceller {
    inbox: Sender<ToCore>,
    cancels: Arc<Cancels>,
}

impl Canceller {
    /// As [`Engine::cancel`].
    pub fn cancel(&self, handle: Handle) {
        if self.cancels.ask(handle) {
            // A full inbox keeps the engine's thread awake by itself.
            let _ = self.inbox.try_send(ToCore::Cancelled);
        }
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}

/// A scheduler, its workers, and the thread between them.
///
/// Dropping it ends every request with `RequestFailure::Stopped` and joins its threads.
pub struct Engine {
    inbox: Sender<ToCore>,
    workers: Vec<WorkerLink>,
    handles: Arc<Handles>,
    canceller: Canceller,
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
        let shared = Shared { handles: Arc::new(Handles::new(options.in_flight_max)), ..Shared::default() };
        let (batch_max, task_time_max) = (options.batch_max.max(1), options.task_time_max);
        let calibrations = options.calibration_folder.clone().map(CalibrationStore::new);
        let core = core_parts(options, &workers, messages, (to_engine, completions), &shared);
        let Shared { handles, cancels, counters } = shared;
        let canceller = Canceller { inbox: inbox.clone(), cancels };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || Core::new(core).run())?;
        let registry = Mutex::default();
        Ok(Self { inbox, workers, handles, canceller, counters, registry, batch_max, task_time_max, calibrations, thread: Some(thread) })
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

    /// Nobody wants the answer any more. Nothing happens if it has ended. Never waits, so that a [`Sink`] may call it too.
    pub fn cancel(&self, handle: Handle) {
        self.canceller.cancel(handle);
    }

    /// The means to cancel requests without holding the engine: for callbacks on its own thread, where it must not be dropped.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.inbox.send(ToCore::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // All of them hang up before any is waited for: workers hold each other's ends too.
        let threads: Vec<_> = self.workers.drain(..).filter_map(|worker| worker.thread).collect();
        for thread in threads {
            let _ = thread.join();
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

/// What the engine's users and its thread share.
#[derive(Default)]
struct Shared {
    handles: Arc<Handles>,
    cancels: Arc<Cancels>,
    counters: Arc<Counters>,
}

fn core_parts(
    options: EngineOptions,
    workers: &[WorkerLink],
    inbox: Receiver<ToCore>,
    completions: (Sender<FromWorker>, Receiver<FromWorker>),
    shared: &Shared,
) -> CoreParts {
    let (mut domains, mut classes) = (Vec::new(), Vec::new());
    let mut first_events = Vec::new();
    let mut core_workers = Vec::new();
    for (position, worker) in workers.iter().enumerate() {
        let domain = DomainId(number(&mut domains, &worker.info.domain));
        let class = NumericClass(number(&mut classes, &worker.info.numeric_class));
        let id = WorkerId(u32::try_from(position).unwrap_or(u32::MAX));
        first_events.push(Event::WorkerUp { worker: id, domain, class, arena_slots: worker.info.arena_slots });
        core_workers.push(CoreWorker { sender: worker.sender.clone(), domain, up: true, spares: Vec::new() });
    }
    CoreParts {
        scheduler: Scheduler::new(options.scheduler),
        workers: core_workers,
        inbox,
        completions,
        handles: shared.handles.clone(),
        cancels: shared.cancels.clone(),
        counters: shared.counters.clone(),
        trace: options.trace,
        first_events,
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
