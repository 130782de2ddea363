//! What the scheduler commands becomes lanes, tasks and answers.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{FirstSlots, Lane, PlacedGrowth, Slot, Task};
use cellwright_cell_graph::unfolded::UnfoldedChain;
use cellwright_scheduler::{Commands, Failure, LaneId, Launch, ModelId, Placement, Refusal, RequestId, Row, Slice, TaskSeq, WorkerId};

use super::{Core, CoreState, ToWorker};
use crate::figures::{RequestMemory, RequestTimes};
use crate::growths::GrowthEntry;
use crate::lanes::{LaneEntry, Lanes};
use crate::model::LoadedModel;
use crate::requests::{Handle, RequestEntry};
use crate::sink::{RequestFailure, Sink};
use crate::spares::Spares;
use crate::trace::{TaskTrace, TraceRow};

/// A stage of a growth that is placed anew, whose chain gave its place back before.
const NO_LANE: LaneId = LaneId(u32::MAX);

impl Core {
    /// In the order that `cellwright_scheduler::command` lays down.
    pub(super) fn carry_out(&mut self) {
        let commands = std::mem::take(&mut self.state.commands);
        self.count_device_time(&commands);
        self.release(&commands.released);
        self.place(&commands);
        for moved in &commands.moves {
            self.move_request(&commands, moved);
        }
        for launch in &commands.launches {
            self.launch(&commands, launch);
        }
        for Refusal { model, policy, worker, fault } in &commands.refused {
            tracing::error!(model = model.0, worker = worker.0, "the policy `{policy}` failed, and all requests of its model: {fault}");
        }
        // Whoever hears of an end finds it in the figures.
        self.publish();
        self.finish(&commands.finished);
        for (request, failure) in &commands.failed {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
            self.fail(*request, *failure);
        }
        self.state.wake_at = commands.wake_at;
        self.state.commands = commands;
    }

    fn release(&mut self, released: &[LaneId]) {
        let state = &mut self.state;
        state.lanes.read_ahead(released.iter().copied());
        state.requests.read_ahead(released.iter().filter_map(|lane| Some(state.lanes.get(*lane)?.request)));
        let (mut left, mut models) = (std::mem::take(&mut state.left), std::mem::take(&mut state.left_models));
        let (mut lanes, mut growths) = (0, 0);
        for id in released {
            let state = &mut self.state;
            let Some((request, growth)) = state.lanes.release(*id) else { continue };
            let Some(entry) = state.requests.get_mut(request) else { continue };
            lanes += 1;
            growths += entry.growths.len();
            entry.release_lane(growth);
            growths -= entry.growths.len();
            if let Some((handle, model)) = self.forget_if_over(request) {
                left.push(handle);
                models.push(model);
            }
        }
        self.counters.growths.fetch_sub(growths as u64, Ordering::Relaxed);
        self.counters.lanes.fetch_sub(lanes, Ordering::Relaxed);
        if !left.is_empty() {
            let gone = left.len() as u64;
            // The places first: whoever sees that fewer requests are in flight may want one.
            self.handles.give_back_all(left.drain(..));
            self.counters.in_flight.fetch_sub(gone, Ordering::Release);
        }
        self.state.left = left;
        self.left_models(models);
    }

    /// Requests of these models are over, and nothing of them is counted any more: whoever waits for a model's last one may look.
    fn left_models(&mut self, mut models: Vec<ModelId>) {
        models.drain(..).for_each(|model| self.state.models.leave(model));
        self.state.left_models = models;
    }

    /// A request's place is free once it has ended and nothing in flight names it; its handle is to be given back then, and its model told.
    fn forget_if_over(&mut self, request: RequestId) -> Option<(Handle, ModelId)> {
        let state = &mut self.state;
        let entry = state.requests.get(request).filter(|entry| entry.is_over())?;
        let (handle, model) = (entry.handle, entry.model);
        self.counters.growths.fetch_sub(entry.growths.len() as u64, Ordering::Relaxed);
        state.requests.remove(request);
        Some((handle, model))
    }

    fn place(&mut self, commands: &Commands) {
        let state = &mut self.state;
        state.lanes.read_ahead(commands.places.iter().map(|(lane, _)| *lane));
        let mut placed = 0;
        for placement in &commands.placements {
            let Some(entry) = state.requests.get_mut(placement.request) else { continue };
            let Some(model) = state.models.get(entry.model) else { continue };
            let places = &commands.places[placement.places.clone()];
            placed += place(placement, places, (entry, model), (&mut state.lanes, &mut state.spares));
        }
        self.counters.lanes.fetch_add(placed, Ordering::Relaxed);
    }

    fn launch(&mut self, commands: &Commands, launch: &Launch) {
        let slice = match launch.slice {
            Slice::Whole => None,
            Slice::First => Some(self.slice),
            Slice::Next(paused) => return self.resume(launch, paused),
        };
        let state = &mut self.state;
        let scheduled = &commands.rows[launch.rows.clone()];
        let mut rows = state.row_buffers.pop().unwrap_or_default();
        rows.clear();
        rows.extend_from_slice(scheduled);
        let leaves = state.lanes.take_leaves(launch.worker, launch.seq.0);
        state.count_models(launch, scheduled);
        let (joins, scrub) = (state.joins(launch.worker, scheduled), state.scrub(launch, scheduled));
        let task = Task { seq: launch.seq.0, cell: launch.cell_type, steps: launch.steps, rows, joins, leaves, scrub, slice };
        self.count_launch(launch);
        self.traced(commands, launch);
        // A worker that is lost has hung up; the scheduler hears of it by `WorkerDown`.
        let worker = &mut self.workers[launch.worker.index()];
        let _ = worker.sender.send(ToWorker::Task(task, worker.spares.pop()));
    }

    fn resume(&mut self, launch: &Launch, paused: TaskSeq) {
        self.state.tally.resumed(launch);
        let _ = self.workers[launch.worker.index()].sender.send(ToWorker::Resume(paused.0, launch.seq.0));
    }

    fn traced(&mut self, commands: &Commands, launch: &Launch) {
        let Some(trace) = self.trace.as_mut() else { return };
        let state = &mut self.state;
        state.trace_rows.clear();
        for row in &commands.rows[launch.rows.clone()] {
            let Some(entry) = state.lanes.get(row.lane) else { continue };
            state.trace_rows.push(TraceRow {
                request: state.requests.get(entry.request).map_or(u64::MAX, |request| request.number),
                chain: entry.chain,
                stage: entry.stage,
                step: row.step,
            });
        }
        trace(&TaskTrace {
            worker: launch.worker,
            cell_type: launch.cell_type,
            seq: launch.seq.0,
            steps: launch.steps,
            rows: &state.trace_rows,
        });
    }

    fn finish(&mut self, finished: &[RequestId]) {
        if finished.is_empty() {
            return;
        }
        let (mut left, mut models) = (std::mem::take(&mut self.state.left), std::mem::take(&mut self.state.left_models));
        let state = &mut self.state;
        state.requests.read_places_ahead(finished.iter().copied());
        self.counters.finished.fetch_add(finished.len() as u64, Ordering::Relaxed);
        // The places first: whoever hears of an end may want one. Who gets one does not come here before all of this is over.
        left.extend(finished.iter().filter_map(|id| state.requests.get(*id)).filter(|entry| entry.lanes == 0).map(|entry| entry.handle));
        if !left.is_empty() {
            self.handles.give_back_all(left.drain(..));
        }
        for request in finished {
            self.state.count_memory(*request);
            self.end(*request, |sink, _, times| sink.finished(times));
            models.extend(self.forget_if_over(*request).map(|(_, model)| model));
        }
        self.counters.in_flight.fetch_sub(models.len() as u64, Ordering::Release);
        self.state.left = left;
        self.left_models(models);
    }

    fn fail(&mut self, request: RequestId, failure: Failure) {
        let max = self.request_time_max;
        self.end(request, |sink, entry, times| {
            entry.growths.mark_dead();
            let failure = match failure {
                Failure::Cancelled if entry.overdue => RequestFailure::Overdue { max: max.unwrap_or_default() },
                _ if entry.worker_lost => RequestFailure::WorkerLost,
                failure => RequestFailure::from_scheduler(failure, entry.row_error.take().map(|error| *error)),
            };
            sink.failed(failure, times);
        });
        if let Some((handle, model)) = self.forget_if_over(request) {
            self.handles.give_back(handle);
            self.counters.in_flight.fetch_sub(1, Ordering::Release);
            self.state.models.leave(model);
        }
    }

    fn end(&mut self, request: RequestId, how: impl FnOnce(Box<dyn Sink>, &mut RequestEntry, RequestTimes)) {
        let now = self.state.now;
        if let Some(entry) = self.state.requests.get_mut(request)
            && let Some(sink) = entry.sink.take()
        {
            let times = entry.times.until(now);
            how(sink, entry, times);
        }
    }
}

impl CoreState {
    /// Counts the memory of a request with a chain that could stop.
    fn count_memory(&self, request: RequestId) {
        let Some(entry) = self.requests.get(request).filter(|entry| entry.counts_at_end) else { return };
        if let (Some(placed), Some(model)) = (entry.growths.only(), self.models.get(entry.model)) {
            count_memory(placed, model);
        }
    }

    /// The models that have rows in a task are told so.
    fn count_models(&mut self, launch: &Launch, scheduled: &[Row]) {
        let mut models = self.models.of_task((launch.step_rows(), launch.steps));
        match launch.sole {
            Some(sole) => models.have_row(sole),
            None => scheduled.iter().filter_map(|row| self.lanes.get(row.lane)).for_each(|entry| models.have_row(entry.model)),
        }
    }

    /// Lanes that a worker is to be told of with a task of those rows.
    fn joins(&mut self, worker: WorkerId, scheduled: &[Row]) -> Vec<(LaneId, Arc<Lane>)> {
        let mut new = std::mem::take(&mut self.new_lanes);
        self.lanes.introduce(scheduled, worker, &mut new);
        self.lanes.read_ahead(new.iter().copied());
        let entries = || new.iter().filter_map(|lane| self.lanes.get(*lane));
        self.requests.read_ahead(entries().map(|entry| entry.request));
        black_box(entries().fold(0, |read, entry| read ^ entry.lane.stage));
        let mut joins = Vec::with_capacity(new.len());
        for id in new.drain(..) {
            let Some(entry) = self.lanes.get(id) else { continue };
            joins.push((id, Arc::clone(&entry.lane)));
            if let Some(request) = self.requests.get_mut(entry.request) {
                request.times.join(self.now, scheduled.len());
            }
        }
        self.new_lanes = new;
        joins
    }

    /// Slots to be zeroed before a task: of its rows that had been another tenant's.
    fn scrub(&self, launch: &Launch, scheduled: &[Row]) -> Vec<(Slot, u32)> {
        if !self.lanes.any_to_scrub() {
            return Vec::new();
        }
        let node_slots = |entry: &LaneEntry| {
            let cell = self.models.get(entry.model).and_then(|model| model.cells.get(entry.lane.stage().cell as usize));
            cell.map_or(1, |cell| cell.slots)
        };
        let entries = scheduled.iter().filter_map(|row| Some((row.step, self.lanes.get(row.lane)?)));
        entries.filter(|(_, entry)| entry.scrub).filter_map(|(step, entry)| entry.scrub(step, launch.steps, node_slots(entry))).collect()
    }
}

/// A growth gets its place. So many lanes of it are placed.
fn place(
    placement: &Placement,
    places: &[(LaneId, Slot)],
    (entry, model): (&mut RequestEntry, &LoadedModel),
    (lanes, spares): (&mut Lanes, &mut Spares),
) -> u64 {
    let number = placement.growth;
    let Some(growth) = entry.growths.get(number).map(GrowthEntry::growth) else { return 0 };
    let slots = FirstSlots::new(growth, places.iter().map(|(_, slot)| *slot));
    let is_new = entry.growths.placed(number).is_none();
    let mut first = entry.growths.place(number, slots, &model.indices, spares);
    let Some(placed) = entry.growths.placed(number) else { return 0 };
    if is_new && number == 0 && placed.growth.next.is_none() {
        // A chain that may stop is counted at its end.
        entry.counts_at_end = placed.growth.chains.iter().any(UnfoldedChain::may_stop);
        if !entry.counts_at_end {
            count_memory(placed, model);
        }
    }
    let (request, model, scrub) = (placement.request, entry.model, placement.scrub);
    let stages =
        (0..).zip(&placed.growth.chains).flat_map(|(chain, unfolded)| (0..unfolded.stages.len()).map(move |stage| (chain, stage as u32)));
    let mut count = 0;
    for ((id, _), (chain, stage)) in places.iter().zip(stages).filter(|((lane, _), _)| *lane != NO_LANE) {
        let lane = first.take_if(|_| (chain, stage) == (0, 0)).unwrap_or_else(|| new_lane(placed, chain, stage));
        let chain = placed.growth.first_chain + chain;
        lanes.place(*id, LaneEntry { lane, request, growth: number, model, chain, stage, scrub });
        count += 1;
    }
    entry.add_lanes(number, count);
    if let Some(sink) = entry.sink.as_mut().filter(|_| is_new && number > 0) {
        sink.placed();
    }
    count.into()
}

/// Counts the memory of a request that does not grow.
fn count_memory(placed: &PlacedGrowth, model: &LoadedModel) {
    model.counters.held(RequestMemory::of(placed, |cell| model.cells[cell as usize].slots));
}

fn new_lane(growth: &Arc<PlacedGrowth>, chain: u32, stage: u32) -> Arc<Lane> {
    Arc::new(Lane { growth: Arc::clone(growth), chain, stage })
}
