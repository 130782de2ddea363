//! The engine's thread: what has happened becomes events, the scheduler's commands become tasks and answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_backend::{Completed, Lane, LaneIndex, PlacedGrowth, Row, Slot, Task};
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{
    Commands, DomainId, Event, Failure, LaneId, ModelInfo, RequestId, Scheduler, Submission, TaskSeq, Time, WorkerId,
};
use crossbeam_channel::{Receiver, Select, Sender};

use crate::engine::Counters;
use crate::lanes::Lanes;
use crate::model::LoadedModel;
use crate::options::TraceFn;
use crate::requests::{GrowthEntry, Handle, Handles, RequestEntry, RequestTensors, Requests, scrub_runs};
use crate::sink::{RequestFailure, Sink, Value};
use crate::trace::{TaskTrace, TraceRow};
use crate::worker::{FromWorker, ToWorker};

/// Messages taken before the scheduler is asked again: bounds how long a completion waits behind a flood of submissions.
const MESSAGES_MAX: usize = 256;

/// Row buffers kept for tasks to come.
const ROW_BUFFERS_MAX: usize = 64;

/// What the engine's users ask of its thread.
pub(crate) enum ToCore {
    Submit {
        handle: Handle,
        model: Arc<LoadedModel>,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
        sink: Box<dyn Sink>,
    },
    Grow {
        handle: Handle,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
    },
    Close(Handle),
    Cancel(Handle),
    ModelUp(Arc<ModelInfo>),
    ModelDown(cellwright_scheduler::ModelId),
    /// End every request and leave.
    Stop,
}

/// A worker, as the core needs it.
pub(crate) struct CoreWorker {
    pub(crate) sender: Sender<ToWorker>,
    pub(crate) domain: DomainId,
    pub(crate) up: bool,
}

pub(crate) struct Core {
    pub(crate) scheduler: Scheduler,
    pub(crate) workers: Vec<CoreWorker>,
    pub(crate) inbox: Receiver<ToCore>,
    pub(crate) completions: Receiver<FromWorker>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) trace: Option<TraceFn>,
    state: State,
}

/// What only the core's own thread touches.
struct State {
    started: Instant,
    events: Vec<Event>,
    commands: Commands,
    requests: Requests,
    lanes: Lanes,
    arrivals: u64,
    row_buffers: Vec<Vec<Row>>,
    trace_rows: Vec<TraceRow>,
    wake_at: Option<Time>,
    stopping: bool,
}

impl State {
    fn new(workers: usize, events: Vec<Event>) -> Self {
        Self {
            started: Instant::now(),
            events,
            commands: Commands::default(),
            requests: Requests::default(),
            lanes: Lanes::new(workers),
            arrivals: 0,
            row_buffers: Vec::new(),
            trace_rows: Vec::new(),
            wake_at: None,
            stopping: false,
        }
    }
}

/// The parts a core is made of.
pub(crate) struct CoreParts {
    pub(crate) scheduler: Scheduler,
    pub(crate) workers: Vec<CoreWorker>,
    pub(crate) inbox: Receiver<ToCore>,
    pub(crate) completions: Receiver<FromWorker>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) trace: Option<TraceFn>,
    /// `WorkerUp` for each worker.
    pub(crate) first_events: Vec<Event>,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Self {
        let state = State::new(parts.workers.len(), parts.first_events);
        Self {
            scheduler: parts.scheduler,
            workers: parts.workers,
            inbox: parts.inbox,
            completions: parts.completions,
            handles: parts.handles,
            counters: parts.counters,
            trace: parts.trace,
            state,
        }
    }

    /// Until `ToCore::Stop`, or until every user of the engine is gone.
    pub(crate) fn run(mut self) {
        loop {
            self.collect();
            if self.state.stopping {
                break;
            }
            if self.state.events.is_empty() {
                self.wait();
                continue;
            }
            let now = self.now();
            self.scheduler.handle(now, &mut self.state.events, &mut self.state.commands);
            self.carry_out();
        }
        for entry in self.state.requests.iter_mut() {
            if let Some(sink) = entry.sink.take() {
                sink.failed(RequestFailure::Stopped);
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.state.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Turns what is there into events, without waiting.
    fn collect(&mut self) {
        while let Ok(message) = self.completions.try_recv() {
            match message {
                FromWorker::Completed(worker, completed) => self.completed(worker, completed),
                FromWorker::Moved(request) => self.state.events.push(Event::Moved(RequestId(request))),
                FromWorker::Lost(worker, lost) => {
                    tracing::error!(worker = worker.0, "{lost}");
                    self.workers[worker.index()].up = false;
                    self.state.events.push(Event::WorkerDown(worker));
                }
            }
        }
        for _ in 0..MESSAGES_MAX {
            let Ok(message) = self.inbox.try_recv() else { break };
            self.asked(message);
        }
        if self.state.wake_at.is_some_and(|wake_at| wake_at <= self.now()) {
            self.state.wake_at = None;
            self.state.events.push(Event::Wake);
        }
    }

    fn wait(&mut self) {
        let mut select = Select::new();
        let inbox = select.recv(&self.inbox);
        select.recv(&self.completions);
        let ready = match self.state.wake_at {
            None => Ok(select.ready()),
            Some(wake_at) => select.ready_timeout(Duration::from_nanos(wake_at.0.saturating_sub(self.now().0))),
        };
        // A ready inbox without a message is one that everybody has hung up on.
        if ready == Ok(inbox) && self.inbox.is_empty() {
            match self.inbox.try_recv() {
                Ok(message) => self.asked(message),
                Err(crossbeam_channel::TryRecvError::Disconnected) => self.state.stopping = true,
                Err(crossbeam_channel::TryRecvError::Empty) => {}
            }
        }
    }

    fn asked(&mut self, message: ToCore) {
        let state = &mut self.state;
        match message {
            ToCore::Submit { handle, model, growth, tensors, sink } => {
                let submission = Submission { request: handle.id, model: model.id, growth: growth.clone() };
                let entry = RequestEntry::new(handle, state.arrivals, sink, model, GrowthEntry::new(growth, tensors));
                state.arrivals += 1;
                state.requests.insert(entry);
                state.events.push(Event::Submit(submission));
            }
            ToCore::Grow { handle, growth, tensors } => {
                if let Some(entry) = state.requests.live(handle) {
                    entry.grow(GrowthEntry::new(growth.clone(), tensors));
                    state.events.push(Event::Grow { request: handle.id, growth });
                }
            }
            ToCore::Close(handle) => {
                if state.requests.live(handle).is_some() {
                    state.events.push(Event::Close(handle.id));
                }
            }
            ToCore::Cancel(handle) => {
                if state.requests.live(handle).is_some() {
                    state.events.push(Event::Cancel(handle.id));
                }
            }
            ToCore::ModelUp(info) => state.events.push(Event::ModelUp(info)),
            ToCore::ModelDown(model) => state.events.push(Event::ModelDown(model)),
            ToCore::Stop => state.stopping = true,
        }
    }

    /// Hands out what a task computed, then tells the scheduler.
    fn completed(&mut self, worker: WorkerId, mut completed: Completed) {
        let state = &mut self.state;
        let ends = completed.delivered.iter().skip(1).map(|next| next.offset as usize).chain([completed.bytes.len()]);
        for (delivered, end) in completed.delivered.iter().zip(ends) {
            let Some(entry) = state.lanes.get(LaneId(delivered.lane.0)) else { continue };
            let (chain, stage) = (entry.lane.growth.growth.first_chain + entry.lane.chain, entry.lane.stage);
            let Some(bytes) = completed.bytes.get(delivered.offset as usize..end) else { continue };
            if let Some(sink) = state.requests.get_mut(entry.request).and_then(|request| request.sink.as_mut()) {
                sink.value(Value { chain, stage, output: delivered.output, step: delivered.step, bytes });
            }
        }
        let mut stopped = Vec::with_capacity(completed.stopped.len());
        for stop in &completed.stopped {
            stopped.push((LaneId(stop.lane.0), stop.step));
            let Some(entry) = state.lanes.get(LaneId(stop.lane.0)) else { continue };
            let chain = entry.lane.growth.growth.first_chain + entry.lane.chain;
            if let Some(sink) = state.requests.get_mut(entry.request).and_then(|request| request.sink.as_mut()) {
                sink.ended(chain, stop.step.saturating_add(1));
            }
        }
        let mut failed = Vec::with_capacity(completed.refused.len());
        for refused in completed.refused.drain(..) {
            failed.push(LaneId(refused.lane.0));
            let Some(request) = state.lanes.get(LaneId(refused.lane.0)).map(|entry| entry.request) else { continue };
            if let Some(entry) = state.requests.get_mut(request) {
                entry.row_error.get_or_insert(refused.error);
            }
        }
        if state.row_buffers.len() < ROW_BUFFERS_MAX {
            state.row_buffers.push(std::mem::take(&mut completed.rows));
        }
        self.counters.busy_ns.fetch_add(completed.busy_ns, Ordering::Relaxed);
        state.events.push(Event::Done { worker, up_to: TaskSeq(completed.seq), busy_ns: completed.busy_ns, stopped, failed });
    }

    /// In the order that `cellwright_scheduler::command` lays down.
    fn carry_out(&mut self) {
        let commands = std::mem::take(&mut self.state.commands);
        for lane in &commands.released {
            self.release(*lane);
        }
        for index in 0..commands.placements.len() {
            self.place(&commands, index);
        }
        for moved in &commands.moves {
            self.move_request(&commands, moved);
        }
        for launch in &commands.launches {
            self.launch(&commands, launch);
        }
        for request in &commands.finished {
            self.counters.finished.fetch_add(1, Ordering::Relaxed);
            self.end(*request, |sink, _| sink.finished());
        }
        for (request, failure) in &commands.failed {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
            self.fail(*request, *failure);
        }
        self.state.wake_at = commands.wake_at;
        self.state.commands = commands;
    }

    fn release(&mut self, id: LaneId) {
        let state = &mut self.state;
        let Some(lane) = state.lanes.release(id) else { return };
        let Some(entry) = state.requests.get_mut(lane.request) else { return };
        entry.release_lane(lane.growth);
        self.forget_if_over(lane.request);
    }

    /// A request's place is free once it has ended and nothing in flight names it.
    fn forget_if_over(&mut self, request: RequestId) {
        let over = self.state.requests.get(request).is_some_and(|entry| entry.sink.is_none() && entry.lanes == 0);
        if over && let Some(entry) = self.state.requests.remove(request) {
            self.handles.give_back(entry.handle);
        }
    }

    fn place(&mut self, commands: &Commands, index: usize) {
        let state = &mut self.state;
        let placement = &commands.placements[index];
        let Some(entry) = state.requests.get_mut(placement.request) else { return };
        let Some(growth) = entry.growth_mut(placement.growth).map(|growth| growth.growth.clone()) else { return };
        let places = &commands.places[placement.places.clone()];
        let mut rest = places.iter();
        let slots: Vec<Vec<Slot>> =
            growth.chains.iter().map(|chain| rest.by_ref().take(chain.stages.len()).map(|(_, slot)| Slot(slot.0)).collect()).collect();
        let scrub = if placement.scrub {
            let model = entry.model.clone();
            scrub_runs(&growth, &slots, |cell| model.cells.get(cell as usize).map_or(0, |cell| cell.slots))
        } else {
            Vec::new()
        };
        let Some(placed) = entry.place(placement.growth, slots) else { return };
        let count = u32::try_from(places.len()).unwrap_or(u32::MAX);
        entry.lanes += count;
        if let Some(growth) = entry.growth_mut(placement.growth) {
            growth.lanes += count;
            growth.scrub = scrub;
        }
        let stages =
            growth.chains.iter().enumerate().flat_map(|(chain, unfolded)| (0..unfolded.stages.len()).map(move |stage| (chain, stage)));
        for ((lane, _), (chain, stage)) in places.iter().zip(stages) {
            let lane_of = new_lane(&placed, chain, stage);
            state.lanes.place(*lane, lane_of, placement.request, placement.growth);
        }
    }

    /// The source's worker reads, hands over to the target's, which writes; then the engine hears `Moved`.
    fn move_request(&mut self, commands: &Commands, moved: &cellwright_scheduler::Move) {
        let runs = commands.copies[moved.copies.clone()].iter().map(|(from, to, count)| (Slot(from.0), Slot(to.0), *count)).collect();
        let worker_of = |domain: DomainId| self.workers.iter().find(|worker| worker.up && worker.domain == domain);
        let (Some(source), Some(target)) = (worker_of(moved.from), worker_of(moved.to)) else { return };
        let _ = source.sender.send(ToWorker::Read { runs, to: target.sender.clone(), request: moved.request.0 });
    }

    fn launch(&mut self, commands: &Commands, launch: &cellwright_scheduler::Launch) {
        let state = &mut self.state;
        let scheduled = &commands.rows[launch.rows.clone()];
        let mut task = Task {
            seq: launch.seq.0,
            cell: cellwright_backend::CellIndex(launch.cell_type.0),
            steps: launch.steps,
            rows: state.row_buffers.pop().unwrap_or_default(),
            joins: Vec::new(),
            leaves: state.lanes.take_leaves(launch.worker),
            scrub: Vec::new(),
        };
        task.rows.clear();
        for row in scheduled {
            task.rows.push(Row { lane: LaneIndex(row.lane.0), step: row.step });
            let Some(entry) = state.lanes.introduce(row.lane, launch.worker) else { continue };
            task.joins.push((LaneIndex(row.lane.0), entry.lane.clone()));
            if let Some(growth) = state.requests.get_mut(entry.request).and_then(|request| request.growth_mut(entry.growth)) {
                task.scrub.append(&mut growth.scrub);
            }
        }
        self.counters.tasks.fetch_add(u64::from(launch.steps), Ordering::Relaxed);
        self.counters.rows.fetch_add(scheduled.len() as u64 * u64::from(launch.steps), Ordering::Relaxed);
        self.traced(commands, launch);
        // A worker that is lost has hung up; the scheduler hears of it by `WorkerDown`.
        let _ = self.workers[launch.worker.index()].sender.send(ToWorker::Task(task));
    }

    fn traced(&mut self, commands: &Commands, launch: &cellwright_scheduler::Launch) {
        let Some(trace) = self.trace.as_mut() else { return };
        let state = &mut self.state;
        state.trace_rows.clear();
        for row in &commands.rows[launch.rows.clone()] {
            let Some(entry) = state.lanes.get(row.lane) else { continue };
            state.trace_rows.push(TraceRow {
                request: state.requests.get(entry.request).map_or(u64::MAX, |request| request.number),
                chain: entry.lane.growth.growth.first_chain + entry.lane.chain,
                stage: entry.lane.stage,
                step: row.step,
            });
        }
        trace(&TaskTrace {
            worker: launch.worker,
            cell_type: launch.cell_type,
            model: launch.model,
            seq: launch.seq.0,
            steps: launch.steps,
            rows: &state.trace_rows,
        });
    }

    fn fail(&mut self, request: RequestId, failure: Failure) {
        self.end(request, |sink, entry| {
            entry.mark_dead();
            sink.failed(RequestFailure::from_scheduler(failure, entry.row_error.take()));
        });
    }

    fn end(&mut self, request: RequestId, how: impl FnOnce(Box<dyn Sink>, &mut RequestEntry)) {
        if let Some(entry) = self.state.requests.get_mut(request)
            && let Some(sink) = entry.sink.take()
        {
            how(sink, entry);
        }
        self.forget_if_over(request);
    }
}

fn new_lane(placed: &Arc<PlacedGrowth>, chain: usize, stage: usize) -> Arc<Lane> {
    let position = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    Arc::new(Lane { growth: placed.clone(), chain: position(chain), stage: position(stage) })
}
