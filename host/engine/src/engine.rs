//! The engine as its users see it: start it with devices, load models, submit graphs.

mod loading;
mod measuring;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cellwright_backend::machine::memory_bytes;
use cellwright_backend::{Backend, DeviceInfo, Peer};
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{DomainId, Event, NumericClass, Scheduler, WorkerId};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use self::loading::Loads;
pub use self::loading::{ClosedModel, ModelError};
use crate::cancels::Cancels;
use crate::core::{Arrival, Core, CoreParts, CoreWorker, NewRequest, ToCore};
use crate::figures::{Counters, DomainGauge, Gauges, Snapshot, WorkerGauge};
use crate::lanes::WORKERS_MAX;
use crate::model::LoadedModel;
use crate::options::EngineOptions;
use crate::requests::Handles;
pub use crate::requests::{Handle, RequestTensors};
use crate::sink::Sink;
use crate::turns::{CoreTurns, Processors};
use crate::weight_room::{WeightGrant, WeightRoom};
use crate::worker::{FromWorker, ToEngine, WorkerLink};

/// Control messages that may wait at a worker beside its tasks. Loads ask one at a time; a request that moves takes two at most, and of one that moved before
/// it one may be left.
const CONTROL_QUEUE: usize = 128;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It has nothing to run on.
    #[error("an engine needs at least one worker")]
    NoWorkers,
    /// It has too many.
    #[error("an engine drives at most {WORKERS_MAX} workers, not {0}")]
    TooManyWorkers(usize),
    /// Its workers would not give the same results.
    #[error(
        "workers of one engine must give the same results bit for bit; those of `{first}` and `{other}` do not: start one engine for each"
    )]
    MixedClasses {
        /// The first worker's numeric class.
        first: String,
        /// Another worker's.
        other: String,
    },
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
    /// The engine is shutting down, or its core has panicked.
    #[error("the engine is shutting down")]
    Stopped,
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

/// How urgent a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgency {
    /// Requests of rank 0 go first, then those of 1, and so on, among requests that wait for memory or for their cell types; within a rank it is first
    /// come, first served. Ranks change nothing between models: whose turn it is follows device time.
    pub rank: u32,
    /// When its answer is worth nothing any more. What cannot be in time any more is given up at once by policies that mind deadlines.
    pub deadline: Option<Instant>,
    /// Whether [`EngineOptions::request_time_max`] does not bound it, because it waits for its client between parts.
    pub is_session: bool,
}

/// A scheduler, its workers, and a thread between them.
///
/// Dropping it ends every request with `RequestFailure::Stopped` and joins its threads.
pub struct Engine {
    inbox: Sender<ToCore>,
    workers: Vec<WorkerLink>,
    /// Of the machine's memory.
    weights: Arc<WeightRoom>,
    handles: Arc<Handles>,
    canceller: Canceller,
    counters: Arc<Counters>,
    gauges: Arc<Gauges>,
    loads: Loads,
    request_time_max: Option<Duration>,
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
    /// Without a device, with too many, with devices of different numeric classes, or without threads.
    pub fn start(options: EngineOptions, mut backends: Vec<Box<dyn Backend>>) -> Result<Self, StartError> {
        if backends.is_empty() {
            return Err(StartError::NoWorkers);
        }
        if backends.len() > WORKERS_MAX {
            return Err(StartError::TooManyWorkers(backends.len()));
        }
        let classes: Vec<String> = backends.iter().map(|backend| backend.info().numeric_class).collect();
        if let Some(other) = classes.iter().find(|class| **class != classes[0]) {
            return Err(StartError::MixedClasses { first: classes[0].clone(), other: other.clone() });
        }
        // Nobody ever waits to send to a worker or from one: both queues hold all that can be outstanding.
        let queue = (options.scheduler.low_water + options.scheduler.max_tasks_to_submit) as usize + CONTROL_QUEUE;
        let (to_engine, completions) = bounded(queue * backends.len());
        let reaches = acquaint(&mut backends);
        let (turns, rings) = CoreTurns::new(completions.clone(), Processors::left_by(&backends));
        let turns = Arc::new(turns);
        let workers = start_workers(backends, queue, &ToEngine { sender: to_engine.clone(), turns: turns.clone() })?;
        let (inbox, messages) = bounded(options.in_flight_max as usize + CONTROL_QUEUE);
        let weight_bytes_max = options.weight_bytes_max.unwrap_or_else(|| memory_bytes() / 2);
        let weights = WeightRoom::new(weight_bytes_max);
        let handles = Arc::new(Handles::new(options.in_flight_max));
        let shared = Shared { handles, gauges: Arc::new(gauges(&workers, weight_bytes_max)), ..Shared::default() };
        let (loads, request_time_max) = (Loads::new(&options), options.request_time_max);
        let core = core_parts(options, (&workers, &reaches), messages.clone(), (to_engine, completions), &shared);
        let Shared { handles, cancels, counters, gauges } = shared;
        let canceller = Canceller { inbox: inbox.clone(), cancels };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || turns.run(Core::new(core), &messages, &rings))?;
        let thread = Some(thread);
        Ok(Self { inbox, workers, weights, handles, canceller, counters, gauges, loads, request_time_max, thread })
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

    /// A tenant's weight relative to other tenants': of device time and requests as soon as one of its models is loaded, which says it too, of the memory for
    /// weights from now on. 0: the tenant is no more.
    pub fn set_tenant_weight(&self, tenant: u32, weight: u32) {
        let of_devices = self.workers.iter().filter_map(|worker| worker.weights.as_ref());
        of_devices.chain([&self.weights]).for_each(|room| room.set_weight(tenant, weight));
        self.handles.change_weight(tenant, weight);
        let _ = self.inbox.send(ToCore::TenantWeight { tenant, weight });
    }

    /// Room for weights of a tenant in the machine's memory, beside those of cells that are loaded: for those that are read to be loaded. It holds nothing yet.
    #[must_use]
    pub fn weight_grant(&self, tenant: u32) -> WeightGrant {
        self.weights.grant(tenant)
    }

    /// How it stands, as of the last turn of its thread, which is not kept waiting.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.gauges.snapshot()
    }

    /// Submits a request's first growth. Results go to `sink`, which is called on the engine's thread or on a worker's.
    ///
    /// # Errors
    /// If as many requests as allowed are in flight, or the engine is going or has panicked.
    pub fn submit(
        &self,
        model: &Arc<LoadedModel>,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
        sink: impl FnOnce(Handle) -> Box<dyn Sink>,
    ) -> Result<Handle, SubmitError> {
        self.submit_urgent(Urgency::default(), model, growth, tensors, sink)
    }

    /// As [`Engine::submit`], for a request of that urgency.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_urgent(
        &self,
        urgency: Urgency,
        model: &Arc<LoadedModel>,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
        sink: impl FnOnce(Handle) -> Box<dyn Sink>,
    ) -> Result<Handle, SubmitError> {
        let handle = self.handles.take(model.tenant)?;
        let submitted = Instant::now();
        // Counted here, where whoever submits has just counted one: the engine's thread would have to wait for that one's cache.
        let to_schedule = Arc::clone(&growth);
        let is_session = urgency.is_session;
        let request = NewRequest { handle, model: model.id, growth, tensors, sink: sink(handle), submitted, is_session };
        let arrival = Arrival { request, load: model.load, to_schedule, urgency };
        match self.inbox.try_send(ToCore::Submit(arrival)) {
            Ok(()) => Ok(handle),
            Err(refused) => {
                self.handles.give_back(handle);
                Err(if matches!(refused, TrySendError::Full(_)) { SubmitError::Full } else { SubmitError::Stopped })
            }
        }
    }

    /// As [`EngineOptions::request_time_max`].
    #[must_use]
    pub const fn request_time_max(&self) -> Option<Duration> {
        self.request_time_max
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

    /// The means to cancel requests without holding the engine: for callbacks on its own threads, where it must not be dropped.
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

/// Tells every device of the others: for each the workers out of whose memory it takes state by itself, a bit for each.
fn acquaint(backends: &mut [Box<dyn Backend>]) -> Vec<u64> {
    let peers: Vec<Option<Peer>> = backends.iter().map(|backend| backend.peer()).collect();
    let mut reaches = vec![0; backends.len()];
    for (own, (backend, reaches)) in backends.iter_mut().zip(&mut reaches).enumerate() {
        let others = (0_u32..).zip(&peers).filter(|(worker, _)| *worker as usize != own);
        for (worker, peer) in others.filter_map(|(worker, peer)| Some((worker, peer.as_ref()?))) {
            *reaches |= u64::from(backend.reach(worker, peer)) << worker;
        }
    }
    reaches
}

fn start_workers(backends: Vec<Box<dyn Backend>>, queue: usize, engine: &ToEngine) -> Result<Vec<WorkerLink>, StartError> {
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
    gauges: Arc<Gauges>,
}

/// As long as the engine's thread has said nothing.
fn gauges(workers: &[WorkerLink], weight_bytes_max: u64) -> Gauges {
    let mut names = Vec::new();
    let mut domains = Vec::new();
    for info in workers.iter().map(|worker| &worker.info) {
        let id = DomainId(number(&mut names, &info.domain));
        if id.index() == domains.len() {
            // As in the scheduler, a domain's first worker says how many slots there are.
            domains.push(DomainGauge { id, name: info.domain.clone(), slots: info.arena_slots, free: info.arena_slots.into() });
        }
    }
    let workers = workers.iter().map(|_| WorkerGauge { up: true.into(), outstanding: 0.into() }).collect();
    Gauges { waiting: 0.into(), weight_bytes: 0.into(), weight_bytes_max, domains, workers }
}

fn core_parts(
    options: EngineOptions,
    (workers, reaches): (&[WorkerLink], &[u64]),
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
        let reaches = reaches[position];
        core_workers.push(CoreWorker { sender: worker.sender.clone(), domain, up: true, reaches, spares: Vec::new() });
    }
    CoreParts {
        scheduler: Scheduler::new(options.scheduler),
        workers: core_workers,
        inbox,
        completions,
        handles: shared.handles.clone(),
        cancels: shared.cancels.clone(),
        counters: shared.counters.clone(),
        gauges: shared.gauges.clone(),
        trace: options.trace,
        observer: options.observer,
        slice: Duration::from_nanos(options.scheduler.slice_ns),
        request_time_max: options.request_time_max,
        first_events,
    }
}
