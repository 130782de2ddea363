//! What completed tasks leave behind: complete nodes, stopped chains, ended chains, and lost
//! workers.
//!
//! Stops are learned from completions. Steps that were queued beyond a stop run as dead rows and
//! are never seen. Their lanes are released when no task in flight names them.

use crate::command::{Failure, Row};
use crate::core::Core;
use crate::core::fleet::Task;
use crate::core::lane::Progress;
use crate::core::request::Phase;
use crate::id::{LaneId, ModelId, RequestId, TaskSeq, WorkerId};

impl Core {
    /// A worker completed every task up to `up_to`. They are to land one by one.
    pub(crate) fn report(&mut self, worker: WorkerId, up_to: TaskSeq, busy_ns: u64, (stopped, failed): (&[(LaneId, u32)], &[LaneId])) {
        if self.worker(worker).is_none() {
            return;
        }
        for lane in failed.iter().chain(stopped.iter().map(|(lane, _)| lane)) {
            self.leave_group(*lane);
        }
        for lane in failed {
            if self.lane(*lane).flying > 0 {
                self.doom(self.lane(*lane).request, Failure::Row);
            }
        }
        for (lane, step) in stopped {
            if self.lane(*lane).flying > 0 {
                let place = self.lane(*lane);
                self.end_at(place.request, place.chain, step + 1);
            }
        }
        self.settle();
        self.account(worker, up_to, busy_ns);
    }

    /// The next task of those lands; false if there is none.
    pub(crate) fn land_next(&mut self, worker: WorkerId, up_to: TaskSeq) -> bool {
        let Some(state) = self.workers.get_mut(worker.index()).and_then(Option::as_mut) else { return false };
        let Some(task) = state.tasks.pop_front_if(|task| task.seq <= up_to) else { return false };
        state.outstanding -= task.steps;
        self.types[task.cell_type.index()].running -= task.steps;
        self.land(worker, &task);
        if self.next_taker(worker, None).is_some() {
            self.settle_failures();
        }
        true
    }

    /// A task is complete.
    fn land(&mut self, worker: WorkerId, task: &Task) {
        let Some(state) = self.workers[worker.index()].as_mut() else { return };
        let all = task.walk || task.tick == 0;
        let rows = std::mem::take(if all { &mut state.rows } else { &mut state.landing });
        let (count, (one, other)) = (if all { task.rows } else { task.listed }, rows.as_slices());
        let first = one.len().min(count);
        let parts = [&one[..first], &other[..count - first]];
        if !all {
            // Lanes that left a group belong to different requests and are in no cache. Other rows
            // often share a lane.
            self.read_ahead(|| parts.into_iter().flat_map(lanes_of));
        }
        for part in parts {
            // Rows of one step are often several of a lane.
            for run in part.chunk_by(|row, next| row.lane == next.lane && task.steps == 1) {
                match run {
                    [row] => self.land_row(*row, task.steps, worker, task.tick),
                    run => self.complete(run[0].lane, run.iter().map(|row| row.step), worker),
                }
            }
        }
        if let Some(state) = self.workers[worker.index()].as_mut() {
            *if all { &mut state.rows } else { &mut state.landing } = rows;
        }
        if let Some(state) = self.workers[worker.index()].as_mut() {
            state.rows.drain(..task.rows);
            state.landing.drain(..task.listed);
        }
        if task.tick > 0 {
            self.land_group(task.cell_type, worker, task.tick);
        }
    }

    /// Subtracts rows from what a model has in flight.
    pub(crate) fn uncount_rows(&mut self, id: ModelId, rows: u32) {
        let model = self.model_mut(id);
        model.flying -= rows;
        if !model.is_busy() {
            self.touched.push(id);
        }
    }

    /// Nodes of a lane left their worker, executed or not.
    pub(crate) fn complete(&mut self, lane: LaneId, steps: impl ExactSizeIterator<Item = u32> + Clone, worker: WorkerId) {
        let count = steps.len() as u32;
        let live = self.land_nodes(lane, steps.clone(), worker);
        let (id, number, model) = (self.lane(lane).request, self.lane(lane).chain, self.lane(lane).model);
        self.uncount_rows(model, count);
        let request = self.request_mut(id);
        request.flying -= count;
        if request.phase != Phase::Placed {
            if request.flying == 0 {
                self.over.push(id);
            }
            return;
        }
        let Some(chain) = request.chain_mut(number) else { return };
        chain.remaining -= u64::from(live);
        let (stops, over) = (chain.stops, chain.remaining == 0);
        // A sole worker's queued nodes count as complete, so their readers were notified before. A
        // chain that may stop is the exception: its queued steps may not count.
        let told = self.sole_worker && !stops && !self.subgraphs() && !self.lane(lane).waits();
        if live > 0 && !self.in_order(model) && !told {
            self.after_done(lane, steps);
        }
        if live > 0 && over {
            self.end_chain_if_over(id, number);
        }
        if live < count {
            self.free_chain_if_unread(id, number);
            self.check_put_off(id);
        }
    }

    /// A chain executes no step from `end` on: it stopped, or the chain it follows did.
    pub(crate) fn end_at(&mut self, id: RequestId, number: u32, end: u32) {
        let Some(chain) = self.request_mut(id).chain_mut(number).filter(|chain| end < chain.end && !chain.ended()) else { return };
        chain.end = end;
        let followers = chain.followers().to_vec();
        for stage in 0..chain.stages() {
            let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(stage)) else { return };
            self.drop_from(lane, end);
        }
        self.recompute_remaining(id, number);
        for follower in followers {
            self.end_at(id, follower, end);
        }
        self.end_chain_if_over(id, number);
    }

    /// The chain is cancelled: what was not submitted is dropped.
    pub(crate) fn cancel_chain(&mut self, id: RequestId, number: u32) {
        let Some(chain) = self.request_mut(id).chain_mut(number).filter(|chain| !chain.ended()) else { return };
        chain.cancelled = true;
        let followers = chain.followers().to_vec();
        let mut executed = u32::MAX;
        for stage in 0..chain.stages() {
            let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(stage)) else { return };
            self.abandon(lane);
            executed = executed.min(self.lane(lane).limit);
        }
        self.recompute_remaining(id, number);
        if let Some(chain) = self.request_mut(id).chain_mut(number) {
            chain.end = chain.end.min(executed);
        }
        for follower in followers {
            self.end_at(id, follower, executed);
        }
        if let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(0)).filter(|_| !self.in_order(self.request(id).model)) {
            self.notify_end(lane);
        }
        self.end_chain_if_over(id, number);
    }

    fn recompute_remaining(&mut self, id: RequestId, number: u32) {
        let Some(chain) = self.request(id).chain(number) else { return };
        let lanes = (0..chain.stages()).map(|stage| self.lane(chain.lane(stage)));
        let remaining = lanes.map(|lane| u64::from(lane.remaining())).sum();
        let lanes: Vec<LaneId> = (0..chain.stages()).map(|stage| chain.lane(stage)).collect();
        if let Some(chain) = self.request_mut(id).chain_mut(number) {
            chain.remaining = remaining;
        }
        if !self.in_order(self.request(id).model) {
            for lane in lanes {
                // What no longer comes is no longer waited for, by whole subgraphs least of all.
                self.check_lane(lane);
                self.notify_readers(lane);
            }
        }
    }

    /// Nodes from `end` on will not be executed.
    fn drop_from(&mut self, lane: LaneId, end: u32) {
        self.leave_group(lane);
        let place = self.lane_mut(lane);
        let bound = place.limit;
        match &place.progress {
            Progress::Front(front) => {
                if front.queued >= end {
                    self.take_back(lane, end);
                }
            }
            Progress::Each(_) | Progress::Grouped(_) => {
                for step in end..bound {
                    self.drop_node(lane, step);
                }
            }
        }
        let place = self.lane_mut(lane);
        place.limit = place.limit.min(end);
    }

    /// Nodes that were not submitted will not be executed.
    pub(crate) fn abandon(&mut self, lane: LaneId) {
        self.leave_group(lane);
        let limit = self.lane(lane).limit;
        match &self.lane(lane).progress {
            Progress::Front(front) => {
                let queued = front.queued;
                self.take_back(lane, queued);
                let place = self.lane_mut(lane);
                place.limit = place.limit.min(queued);
            }
            Progress::Each(_) | Progress::Grouped(_) => {
                for step in 0..limit {
                    if self.lane(lane).progress.nodes().is_some_and(|nodes| nodes.states.is_unsubmitted(step)) {
                        self.drop_node(lane, step);
                    }
                }
            }
        }
    }

    fn drop_node(&mut self, lane: LaneId, step: u32) {
        self.take_back(lane, step);
        let Self { lanes, moments, .. } = self;
        if let Some(nodes) = lanes[lane.index()].progress.nodes_mut() {
            nodes.drop(step, moments);
        }
    }

    /// Ends a chain whose executed steps are all complete, and that follows none that goes on.
    pub(crate) fn end_chain_if_over(&mut self, id: RequestId, number: u32) {
        let request = self.request(id);
        let Some(chain) = request.chain(number).filter(|chain| chain.remaining == 0 && !chain.ended()) else { return };
        let root = chain.root().filter(|_| !chain.cancelled).and_then(|root| request.chain(root));
        if root.is_some_and(|root| !root.ended()) {
            return;
        }
        let request = self.request_mut(id);
        request.live_chains -= 1;
        if request.live_chains == 0 {
            self.over.push(id);
        }
        let Some(chain) = self.request_mut(id).chain_mut(number) else { return };
        chain.end_now();
        let (followers, waited) = (chain.followers().to_vec(), chain.is_waited_for());
        if waited && !self.in_order(self.request(id).model) {
            self.notify_end_waiters(id, number);
        }
        for follower in followers {
            self.end_chain_if_over(id, follower);
        }
        self.stop_reading(id, number);
    }

    pub(crate) fn worker_down(&mut self, worker: WorkerId) {
        self.dissolve_groups_of(worker);
        let Some(mut state) = self.workers.get_mut(worker.index()).and_then(Option::take) else { return };
        state.take_back_paused();
        let mut rows = state.rows;
        for task in &state.tasks {
            self.types[task.cell_type.index()].running -= task.steps;
            for row in rows.range(..task.rows) {
                self.doom(self.lane(row.lane).request, Failure::WorkerLost);
            }
            self.settle_failures();
            self.refund(task, rows.range(..task.rows).copied());
            for row in rows.drain(..task.rows) {
                self.complete(row.lane, self.steps_of(row, task.steps, task.tick), worker);
            }
        }
        self.note_sole_worker();
        self.give_up_where(Failure::WorkerLost, |_, request| request.phase == Phase::Placed && request.taken() == Some(worker));
        let workers = &mut self.class_mut(state.class).workers;
        *workers -= 1;
        let none_left = *workers == 0;
        let Some(home) = self.domains[state.domain.index()].as_mut() else { return };
        home.workers -= 1;
        if home.workers == 0 {
            let slots = home.arena.slots();
            self.domains[state.domain.index()] = None;
            let parts = self.class_mut(state.class).queues.parts_mut();
            parts.set_max(parts.max() - u64::from(slots));
            self.give_up_where(Failure::WorkerLost, |_, request| {
                let moving = request.rare().and_then(|rare| rare.moving.as_ref());
                let leaves = moving.is_some_and(|moving| moving.from == state.domain);
                request.phase == Phase::Placed && (request.domain == state.domain || leaves)
            });
        }
        if none_left {
            self.give_up_where(Failure::NoWorker, |this, request| {
                request.phase == Phase::Waiting && this.model(request.model).info.class == state.class
            });
        }
    }

    pub(super) fn give_up_where(&mut self, failure: Failure, concerned: impl Fn(&Self, &crate::core::request::Request) -> bool) {
        let mut lost: Vec<_> = (0..self.requests.len()).filter(|index| concerned(self, &self.requests[*index])).collect();
        lost.sort_unstable_by_key(|index| self.requests[*index].order);
        for index in lost {
            self.doom(RequestId(index as u32), failure);
        }
    }
}

/// The lanes of rows, of neighbours of one lane once.
fn lanes_of(rows: &[Row]) -> impl Iterator<Item = LaneId> {
    rows.chunk_by(|row, next| row.lane == next.lane).map(|run| run[0].lane)
}
