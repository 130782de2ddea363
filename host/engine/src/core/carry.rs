//! What the scheduler commands becomes lanes, tasks and answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellIndex, FirstSlots, Lane, LaneIndex, PlacedGrowth, Row, Slot, Task};
use cellwright_scheduler::{Commands, Failure, LaneId, Launch, RequestId};

use super::{Core, ToWorker};
use crate::figures::RequestTimes;
use crate::lanes::LaneEntry;
use crate::requests::{RequestEntry, Requests};
use crate::sink::{RequestFailure, Sink};
use crate::trace::{TaskTrace, TraceRow};

/// A stage of a growth that is placed anew, whose chain gave its place back before.
const NO_LANE: LaneId = LaneId(u32::MAX);

impl Core {
    /// In the order that `cellwright_scheduler::command` lays down.
    pub(super) fn carry_out(&mut self) {
        let commands = std::mem::take(&mut self.state.commands);
        self.count_device_time(&commands);
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
        // Whoever hears of an end finds it in the figures.
        self.publish();
        for request in &commands.finished {
            self.counters.finished.fetch_add(1, Ordering::Relaxed);
            self.end(*request, |sink, _, times| sink.finished(times));
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
        let growths = entry.growths();
        entry.release_lane(lane.growth);
        self.counters.growths.fetch_sub((growths - entry.growths()) as u64, Ordering::Relaxed);
        self.counters.lanes.fetch_sub(1, Ordering::Relaxed);
        self.forget_if_over(lane.request);
    }

    /// A request's place is free once it has ended and nothing in flight names it.
    fn forget_if_over(&mut self, request: RequestId) {
        let over = self.state.requests.get(request).is_some_and(|entry| entry.sink.is_none() && entry.lanes == 0);
        if over && let Some(entry) = self.state.requests.remove(request) {
            // The place first: whoever sees that one request fewer is in flight may want it.
            self.handles.give_back(entry.handle);
            self.counters.in_flight.fetch_sub(1, Ordering::Release);
            self.counters.growths.fetch_sub(entry.growths() as u64, Ordering::Relaxed);
            self.state.models.leave(&entry.model);
        }
    }

    fn place(&mut self, commands: &Commands, index: usize) {
        let state = &mut self.state;
        let placement = &commands.placements[index];
        let Some(entry) = state.requests.get_mut(placement.request) else { return };
        let Some(growth) = entry.growth_mut(placement.growth).map(|growth| growth.growth.clone()) else { return };
        let places = &commands.places[placement.places.clone()];
        let slots = FirstSlots::new(&growth, places.iter().map(|(_, slot)| Slot(slot.0)));
        let Some(placed) = entry.place(placement.growth, slots) else { return };
        let model = entry.model.id;
        let stages =
            growth.chains.iter().enumerate().flat_map(|(chain, unfolded)| (0..unfolded.stages.len()).map(move |stage| (chain, stage)));
        let mut count = 0;
        for ((lane, _), (chain, stage)) in places.iter().zip(stages).filter(|((lane, _), _)| *lane != NO_LANE) {
            let lane_of = new_lane(&placed, chain, stage);
            state.lanes.place(*lane, LaneEntry::new(lane_of, placement.request, placement.growth, model, placement.scrub));
            count += 1;
        }
        entry.add_lanes(placement.growth, count);
        self.counters.lanes.fetch_add(u64::from(count), Ordering::Relaxed);
    }

    fn launch(&mut self, commands: &Commands, launch: &Launch) {
        let state = &mut self.state;
        let scheduled = &commands.rows[launch.rows.clone()];
        let mut task = Task {
            seq: launch.seq.0,
            cell: CellIndex(launch.cell_type.0),
            steps: launch.steps,
            rows: state.row_buffers.pop().unwrap_or_default(),
            joins: Vec::new(),
            leaves: state.lanes.take_leaves(launch.worker, launch.seq.0),
            scrub: Vec::new(),
        };
        task.rows.clear();
        let mut models = state.models.of_task((launch.step_rows(), launch.steps));
        for row in scheduled {
            task.rows.push(Row { lane: LaneIndex(row.lane.0), step: row.step });
            let Some((entry, is_new)) = state.lanes.introduce(row.lane, launch.worker) else { continue };
            models.have_row(entry.model);
            if entry.scrub {
                task.scrub.extend(entry.scrub(row.step, launch.steps, node_slots(&state.requests, entry)));
            }
            if is_new {
                task.joins.push((LaneIndex(row.lane.0), entry.lane.clone()));
                if let Some(request) = state.requests.get_mut(entry.request) {
                    request.times.join(state.now, scheduled.len());
                }
            }
        }
        self.count_launch(launch);
        self.traced(commands, launch);
        // A worker that is lost has hung up; the scheduler hears of it by `WorkerDown`.
        let worker = &mut self.workers[launch.worker.index()];
        let _ = worker.sender.send(ToWorker::Task(task, worker.spares.pop()));
    }

    fn traced(&mut self, commands: &Commands, launch: &Launch) {
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
        self.end(request, |sink, entry, times| {
            entry.mark_dead();
            let failure = if entry.worker_lost { Failure::WorkerLost } else { failure };
            sink.failed(RequestFailure::from_scheduler(failure, entry.row_error.take()), times);
        });
    }

    fn end(&mut self, request: RequestId, how: impl FnOnce(Box<dyn Sink>, &mut RequestEntry, RequestTimes)) {
        let now = self.state.now;
        if let Some(entry) = self.state.requests.get_mut(request)
            && let Some(sink) = entry.sink.take()
        {
            let times = entry.times.until(now);
            how(sink, entry, times);
        }
        self.forget_if_over(request);
    }
}

/// Slots of one node of a lane.
fn node_slots(requests: &Requests, entry: &LaneEntry) -> u32 {
    let model = requests.get(entry.request).map(|request| &request.model);
    model.and_then(|model| model.cells.get(entry.lane.stage().cell as usize)).map_or(1, |cell| cell.slots)
}

fn new_lane(placed: &Arc<PlacedGrowth>, chain: usize, stage: usize) -> Arc<Lane> {
    let position = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    Arc::new(Lane { growth: placed.clone(), chain: position(chain), stage: position(stage) })
}
