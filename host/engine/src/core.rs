//! What has happened becomes events, the scheduler's commands become tasks and answers.

mod carry;
mod completion;
mod figures;
mod models;
mod moves;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_backend::{Completed, Row};
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{Commands, DomainId, Event, LaneId, ModelId, ModelInfo, Scheduler, Submission, TenantId, Time};
use crossbeam_channel::{Receiver, Sender, TryRecvError};

use self::figures::Tally;
use self::models::Models;
use self::moves::Moves;
use crate::cancels::{Cancels, Verdict};
use crate::engine::Urgency;
use crate::figures::{Counters, Gauges, RequestTimes};
use crate::lanes::Lanes;
use crate::model::LoadedModel;
use crate::options::{Observer, TraceFn};
use crate::requests::{Handle, Handles, RequestEntry, RequestTensors, Requests};
use crate::sink::{RequestFailure, Sink};
use crate::spares::Spares;
use crate::trace::TraceRow;
use crate::worker::{FromWorker, ToWorker};

/// Messages taken before the scheduler is asked again: bounds how long a completion waits behind a flood of submissions.
const MESSAGES_MAX: usize = 256;

/// A request on its way to the engine's thread.
pub(crate) struct Arrival {
    pub(crate) request: NewRequest,
    /// Tells its model from others that have had the id.
    pub(crate) load: u64,
    /// Its growth, for the scheduler.
    pub(crate) to_schedule: Arc<UnfoldedGrowth>,
    pub(crate) urgency: Urgency,
}

/// What is kept of it there.
pub(crate) struct NewRequest {
    pub(crate) handle: Handle,
    pub(crate) model: ModelId,
    pub(crate) growth: Arc<UnfoldedGrowth>,
    pub(crate) tensors: RequestTensors,
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) submitted: Instant,
    /// As in [`Urgency`].
    pub(crate) is_session: bool,
}

/// What the engine's users ask of its thread.
pub(crate) enum ToCore {
    Submit(Arrival),
    Grow {
        handle: Handle,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
    },
    Close(Handle),
    /// There are cancellations to look at.
    Cancelled,
    ModelUp {
        info: Arc<ModelInfo>,
        model: Arc<LoadedModel>,
    },
    /// No more requests of it are taken. `gone` hears when the last one has left.
    ModelDown {
        model: ModelId,
        gone: Sender<()>,
    },
    TenantWeight {
        tenant: u32,
        weight: u32,
    },
    /// End every request and leave.
    Stop,
}

/// A worker, as the core needs it.
pub(crate) struct CoreWorker {
    pub(crate) sender: Sender<ToWorker>,
    pub(crate) domain: DomainId,
    pub(crate) up: bool,
    /// Workers out of whose memory its device takes state by itself: a bit for each.
    pub(crate) reaches: u64,
    /// Completions whose contents have been handed out.
    pub(crate) spares: Vec<Completed>,
}

pub(crate) struct Core {
    scheduler: Scheduler,
    workers: Vec<CoreWorker>,
    inbox: Receiver<ToCore>,
    completions: Receiver<FromWorker>,
    /// Keeps `completions` open: without workers there is nothing to receive, not something to wake up for.
    _completions_open: Sender<FromWorker>,
    handles: Arc<Handles>,
    cancels: Arc<Cancels>,
    counters: Arc<Counters>,
    gauges: Arc<Gauges>,
    trace: Option<TraceFn>,
    observer: Option<Box<dyn Observer>>,
    /// How long a task runs that may be paused.
    slice: Duration,
    request_time_max: Option<Duration>,
    state: CoreState,
}

/// What changes from turn to turn.
struct CoreState {
    started: Instant,
    /// When the scheduler was asked last.
    now: Instant,
    events: Vec<Event>,
    /// Of the tasks that events tell of, when they ended, if somebody looks at that.
    ended: Vec<Time>,
    commands: Commands,
    requests: Requests,
    models: Models,
    moves: Moves,
    lanes: Lanes,
    spares: Spares,
    tally: Tally,
    arrivals: u64,
    row_buffers: Vec<Vec<Row>>,
    /// Room for the lanes that a worker is told of with a task, and for the handles that are given back.
    new_lanes: Vec<LaneId>,
    left: Vec<Handle>,
    left_models: Vec<ModelId>,
    trace_rows: Vec<TraceRow>,
    wake_at: Option<Time>,
    /// When the engine's thread wakes up if nobody wakes it.
    alarm: Option<Time>,
    /// When requests were last looked through for those that take too long.
    reviewed: Instant,
    stopping: bool,
}

/// How the engine's thread leaves the core.
pub(crate) struct Rest {
    /// Everybody is to leave.
    pub(crate) stopping: bool,
    /// No worker has a task.
    pub(crate) idle: bool,
    /// When it has to look again.
    pub(crate) wake_at: Option<Instant>,
}

impl CoreState {
    fn new(workers: usize, events: Vec<Event>) -> Self {
        let started = Instant::now();
        Self {
            started,
            now: started,
            events,
            ended: Vec::new(),
            commands: Commands::default(),
            requests: Requests::default(),
            models: Models::default(),
            moves: Moves::default(),
            lanes: Lanes::new(workers),
            spares: Spares::default(),
            tally: Tally::new(workers),
            arrivals: 0,
            row_buffers: Vec::new(),
            new_lanes: Vec::new(),
            left: Vec::new(),
            left_models: Vec::new(),
            trace_rows: Vec::new(),
            wake_at: None,
            alarm: None,
            reviewed: started,
            stopping: false,
        }
    }
}

/// The parts a core is made of.
pub(crate) struct CoreParts {
    pub(crate) scheduler: Scheduler,
    pub(crate) workers: Vec<CoreWorker>,
    pub(crate) inbox: Receiver<ToCore>,
    pub(crate) completions: (Sender<FromWorker>, Receiver<FromWorker>),
    pub(crate) handles: Arc<Handles>,
    pub(crate) cancels: Arc<Cancels>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) trace: Option<TraceFn>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) slice: Duration,
    pub(crate) request_time_max: Option<Duration>,
    /// `WorkerUp` for each worker.
    pub(crate) first_events: Vec<Event>,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Self {
        let state = CoreState::new(parts.workers.len(), parts.first_events);
        Self {
            scheduler: parts.scheduler,
            workers: parts.workers,
            inbox: parts.inbox,
            completions: parts.completions.1,
            _completions_open: parts.completions.0,
            handles: parts.handles,
            cancels: parts.cancels,
            counters: parts.counters,
            gauges: parts.gauges,
            trace: parts.trace,
            observer: parts.observer,
            slice: parts.slice,
            request_time_max: parts.request_time_max,
            state,
        }
    }

    /// What has happened since the last turn becomes events, if anything has, and these become tasks and answers. Whether the engine's thread is wanted:
    /// there is more, or a time to wake up at that it does not know of.
    pub(crate) fn turn(&mut self) -> bool {
        self.collect();
        if self.state.stopping {
            return true;
        }
        if !self.state.events.is_empty() {
            self.decide();
        }
        let sooner = self.state.wake_at.is_some_and(|at| self.state.alarm.is_none_or(|alarm| at < alarm));
        sooner || !self.state.events.is_empty()
    }

    /// The turns of the engine's thread: until nothing happens.
    pub(crate) fn turns(&mut self) -> Rest {
        let next_review = self.cancel_overdue();
        loop {
            self.collect();
            if self.state.stopping || self.state.events.is_empty() {
                break;
            }
            self.decide();
        }
        let state = &mut self.state;
        state.alarm = state.wake_at;
        let wake_at = state.wake_at.map(|at| state.started + Duration::from_nanos(at.0));
        let has_requests = self.counters.in_flight.load(Ordering::Relaxed) > 0;
        let wake_at = wake_at.into_iter().chain(next_review.filter(|_| has_requests)).min();
        Rest { stopping: state.stopping, idle: state.tally.is_idle(), wake_at }
    }

    /// Cancels requests that took longer than they may. Returns when it is to look again: a request
    /// takes a sixteenth more than that at most.
    fn cancel_overdue(&mut self) -> Option<Instant> {
        let max = self.request_time_max?;
        let (now, period) = (Instant::now(), max / 16);
        let state = &mut self.state;
        if now.saturating_duration_since(state.reviewed) >= period {
            state.reviewed = now;
            for entry in state.requests.iter_mut().filter(|entry| entry.may_be_overdue()) {
                if now.saturating_duration_since(entry.times.submitted) > max {
                    entry.overdue = true;
                    state.events.push(Event::Cancel(entry.handle.id));
                }
            }
        }
        state.reviewed.checked_add(period)
    }

    fn decide(&mut self) {
        self.state.now = Instant::now();
        let now = self.time(self.state.now);
        if let Some(observer) = &mut self.observer {
            observer.told(now, &self.state.events, &self.state.ended);
            self.state.ended.clear();
        }
        self.scheduler.handle(now, &mut self.state.events, &mut self.state.commands);
        if let Some(observer) = &mut self.observer {
            observer.decided(&self.state.commands);
        }
        self.carry_out();
    }

    /// It has panicked: who comes now is refused.
    pub(crate) fn close(&self) {
        self.handles.close();
    }

    /// Ends what goes on, and what was on its way.
    pub(crate) fn stop(mut self) {
        let now = Instant::now();
        for entry in self.state.requests.iter_mut() {
            if let Some(sink) = entry.sink.take() {
                sink.failed(RequestFailure::Stopped, entry.times.until(now));
            }
        }
        while let Ok(message) = self.inbox.try_recv() {
            if let ToCore::Submit(Arrival { request: NewRequest { sink, submitted, .. }, .. }) = message {
                sink.failed(RequestFailure::Stopped, RequestTimes::new(submitted).until(now));
            }
        }
    }

    fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// As the scheduler counts it.
    fn time(&self, at: Instant) -> Time {
        Time(u64::try_from(at.saturating_duration_since(self.state.started).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Turns what is there into events, without waiting.
    fn collect(&mut self) {
        while let Ok(message) = self.completions.try_recv() {
            match message {
                FromWorker::Completed(worker, completed, ended) => self.completed(worker, completed, ended),
                FromWorker::Moved(number) => self.moved(number),
                FromWorker::NotMoved(number) => self.not_moved(number),
                FromWorker::Lost(worker, lost) => {
                    tracing::error!(worker = worker.0, "{lost}");
                    self.lost(worker);
                }
            }
        }
        let mut taken = 0;
        // Nothing after the last message, so that a panic cannot take it along.
        while taken < MESSAGES_MAX && !self.state.stopping {
            match self.inbox.try_recv() {
                Ok(message) => self.asked(message),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.state.stopping = true;
                    break;
                }
            }
            taken += 1;
        }
        self.cancelled(taken > 0);
        if self.state.wake_at.is_some_and(|wake_at| wake_at <= self.now()) {
            self.state.wake_at = None;
            self.state.events.push(Event::Wake);
        }
    }

    fn asked(&mut self, message: ToCore) {
        let state = &mut self.state;
        match message {
            ToCore::Submit(arrival) => self.submitted(arrival),
            ToCore::Grow { handle, growth, tensors } => {
                if let Some(entry) = state.requests.live(handle) {
                    entry.growths.grow(growth.clone(), tensors);
                    state.events.push(Event::Grow { request: handle.id, growth });
                    self.counters.growths.fetch_add(1, Ordering::Relaxed);
                }
            }
            ToCore::Close(handle) => {
                if state.requests.live(handle).is_some() {
                    state.events.push(Event::Close(handle.id));
                }
            }
            ToCore::Cancelled => {}
            ToCore::ModelUp { info, model } => {
                state.tally.know(&model);
                state.models.up(model);
                state.events.push(Event::ModelUp(info));
            }
            ToCore::ModelDown { model, gone } => {
                state.models.down(model, gone);
                state.events.push(Event::ModelDown(model));
            }
            ToCore::TenantWeight { tenant, weight } => state.events.push(Event::TenantWeight { tenant: TenantId(tenant), weight }),
            ToCore::Stop => state.stopping = true,
        }
    }

    fn submitted(&mut self, arrival: Arrival) {
        let Arrival { request, load, to_schedule: growth, urgency: Urgency { rank, deadline, .. } } = arrival;
        let deadline = deadline.map(|at| self.time(at));
        let state = &mut self.state;
        let NewRequest { handle, model, .. } = request;
        if !state.models.enter(model, load) {
            state.requests.arrived(handle);
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
            request.sink.failed(RequestFailure::NoWorker, RequestTimes::new(request.submitted).until(Instant::now()));
            self.handles.give_back(handle);
            return;
        }
        state.requests.insert(RequestEntry::new(request, state.arrivals));
        state.arrivals += 1;
        state.events.push(Event::Submit(Submission { request: handle.id, model, rank, deadline, growth }));
        self.counters.in_flight.fetch_add(1, Ordering::Relaxed);
        self.counters.growths.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks at who asked to be cancelled. `arrived`: messages were taken since the last look.
    fn cancelled(&mut self, arrived: bool) {
        let state = &mut self.state;
        self.cancels.settle(arrived, |handle| {
            if state.requests.live(handle).is_some() {
                state.events.push(Event::Cancel(handle.id));
            } else if state.requests.is_yet_to_come(handle) {
                return Verdict::Early;
            }
            Verdict::Settled
        });
    }
}
