//! Moves requests between domains when a worker is idle and a request's own workers are busy.
//!
//! A request moves only to a worker that can run nothing, and each domain receives one request at a
//! time, so the copy delays no other work. It moves as a whole, between tasks, and runs nothing
//! until the copy is complete. Its ready nodes then become ready again. Its subgraphs keep their
//! places in the queues, except those of one node.

use std::cmp::Reverse;

use crate::command::{Move, Placement};
use crate::core::Core;
use crate::core::lane::{Lane, NO_LANE, NO_SLOT, Progress};
use crate::core::queues::Item;
use crate::core::request::{Block, Moving, Phase};
use crate::id::{DomainId, LaneId, NumericClass, RequestId, Slot, WorkerId};

/// Choosing.
impl Core {
    /// Whether a worker is idle, and its domain could take a request that waits elsewhere.
    pub(crate) fn may_get_request(&mut self, worker: WorkerId) -> bool {
        if self.domains.len() < 2 {
            return false;
        }
        self.settle_counts();
        let Some(state) = self.worker(worker).filter(|state| state.outstanding == 0) else { return false };
        let (to, class) = (state.domain, state.class);
        let expected = self.moving_to.iter().any(|(_, domain)| *domain == to);
        let waited_for = self.requests_waiting > 0 && !self.classes[class.index()].queues.is_empty();
        // A worker that leaves nodes for another worker's batch gets no request.
        let could_run = || self.types.iter().any(|queue| queue.tally.runnable(worker, to) > 0);
        !expected && !waited_for && !could_run()
    }

    /// Moves the oldest request of a domain whose workers are all busy to an idle worker's domain.
    pub(crate) fn move_request_to(&mut self, worker: WorkerId) {
        let Some((to, class)) = self.worker(worker).map(|state| (state.domain, state.class)) else { return };
        if let Some(id) = self.oldest_to_move(to, class) {
            self.move_request(id, to);
        }
    }

    /// The oldest request with a ready node and nothing in flight whose workers are all busy.
    fn oldest_to_move(&self, to: DomainId, class: NumericClass) -> Option<RequestId> {
        let mut oldest: Option<(u64, RequestId)> = None;
        for (index, domain) in self.domains.iter().enumerate() {
            let from = DomainId(index as u32);
            let busy = |worker: &&crate::core::fleet::Worker| worker.outstanding > self.config.low_water;
            let mut workers = self.workers.iter().flatten().filter(|worker| worker.domain == from);
            let fits = domain.as_ref().is_some_and(|domain| domain.class == class) && from != to;
            if !fits || !workers.all(|worker| busy(&worker)) {
                continue;
            }
            for (_, item) in self.types.iter().flat_map(|queue| queue.items(from)) {
                let (Item::Front(lane) | Item::Run(lane, ..) | Item::Subgraph(lane, _)) = *item;
                let lane = self.lane(lane);
                let request = self.request(lane.request);
                let stays = request.flying > 0 || request.is_with_policy();
                if !stays && oldest.is_none_or(|(order, _)| lane.order < order) {
                    oldest = Some((lane.order, lane.request));
                }
            }
        }
        oldest.map(|(_, id)| id)
    }
}

/// Moving.
impl Core {
    fn move_request(&mut self, id: RequestId, to: DomainId) {
        let (from, old) = (self.request(id).domain, self.request(id).block);
        let Some(block) = self.take_block(to, old.map_or(0, |block| block.slots.get())) else { return };
        self.park(id);
        self.settle_in(id, to, block);
        let mut renamed = self.rename_lanes(id, to, old, block);
        self.place_anew(id);
        let first = self.out.copies.len();
        // Stages of a series have the same slots, and others may share some. The longest copy goes
        // first: it covers those that begin where it begins.
        renamed.sort_by_key(|(_, after)| Reverse(self.slots_of(*after)));
        for (before, after) in &renamed {
            let (source, place, slots) = (self.lane(*before), self.lane(*after), self.slots_of(*after));
            let is_copied = || self.out.copies[first..].iter().any(|(slot, _, count)| *slot == source.slot && *count >= slots);
            if slots > 0 && (has_values(place) || self.goes_on_from(*after)) && !is_copied() {
                self.out.copies.push((source.slot, place.slot, slots));
            }
        }
        let copies = first..self.out.copies.len();
        self.out.moves.push(Move { request: id, from, to, copies });
        let lanes = renamed.into_iter().map(|(before, _)| before).collect();
        self.rare_mut(id).moving = Some(Box::new(Moving { from, block: old, lanes }));
        self.moving_to.push((id, to));
    }

    /// Whether rows of chains before a lane's own are held in its slots.
    fn goes_on_from(&self, lane: LaneId) -> bool {
        let place = self.lane(lane);
        let stage = Self::stage_of(self.request(place.request), place).map(|(_, _, stage)| stage);
        stage.is_some_and(|stage| stage.retention.before() > 0)
    }

    /// Takes every ready node off its queue.
    fn park(&mut self, id: RequestId) {
        for lane in self.lanes_of(id) {
            let steps = match &self.lane(lane).progress {
                Progress::Front(front) => front.queued..front.queued + 1,
                Progress::Each(_) | Progress::Grouped(_) => 0..self.lane(lane).limit,
            };
            for step in steps {
                self.take_back(lane, step);
            }
        }
    }

    /// Lanes of a request, chain by chain, stage by stage.
    pub(crate) fn lanes_of(&self, id: RequestId) -> Vec<LaneId> {
        let held = self.request(id).chains().filter(|chain| !chain.gone());
        held.flat_map(|chain| (0..chain.stages()).map(|stage| chain.lane(stage))).collect()
    }

    /// New lanes for old ones, in the new block: `(old, new)`.
    fn rename_lanes(&mut self, id: RequestId, to: DomainId, old: Option<Block>, new: Option<Block>) -> Vec<(LaneId, LaneId)> {
        let (old_start, new_start) = (old.map_or(0, |block| block.start), new.map_or(0, |block| block.start));
        let mut renamed = Vec::new();
        for before in self.lanes_of(id) {
            let after = self.take_lane();
            let mut place = std::mem::replace(self.lane_mut(before), Lane::vacant());
            (self.lane_mut(before).slot, self.lane_mut(before).request) = (place.slot, id);
            if place.slot != NO_SLOT {
                place.slot = Slot(place.slot.0 - old_start + new_start);
            }
            (place.domain, place.placed_in) = (to, self.tick as u32);
            *self.lane_mut(after) = place;
            renamed.push((before, after));
        }
        renamed.sort_unstable();
        let name = |lane: LaneId| renamed.binary_search_by_key(&lane, |(before, _)| *before).ok().map(|at| renamed[at].1);
        for chain in self.requests[id.index()].chains_mut().filter(|chain| !chain.gone()) {
            for lane in chain.lanes_mut() {
                *lane = name(*lane).unwrap_or(NO_LANE);
            }
        }
        renamed
    }

    /// Placements of all growths that still hold something.
    fn place_anew(&mut self, id: RequestId) {
        let request = &self.requests[id.index()];
        // One walk, however many growths a session has.
        let mut growths: Vec<u32> = request.chains().filter(|chain| !chain.gone()).map(|chain| chain.growth).collect();
        growths.sort_unstable();
        growths.dedup();
        for number in growths {
            let Some(growth) = request.growth(number) else { continue };
            let first = self.out.places.len();
            for (local, graph) in growth.chains.iter().enumerate() {
                let chain = request.chain(growth.first_chain + local as u32).filter(|chain| !chain.gone());
                for stage in 0..graph.stages.len() as u32 {
                    let lane = chain.map(|chain| chain.lane(stage));
                    self.out.places.push(lane.map_or((NO_LANE, NO_SLOT), |lane| (lane, self.lanes[lane.index()].slot)));
                }
            }
            let places = first..self.out.places.len();
            self.out.placements.push(Placement { request: id, growth: number, domain: request.domain, places, scrub: request.scrub });
        }
    }

    /// A request's state has arrived: it may run, and what it left behind is free.
    pub(crate) fn moved(&mut self, id: RequestId) {
        let Some(moving) = self.requests.get_mut(id.index()).and_then(|request| request.rare_if_any()?.moving.take()) else { return };
        self.moving_to.retain(|(other, _)| *other != id);
        for lane in &moving.lanes {
            self.release_lane(*lane);
        }
        self.free_block(moving.from, moving.block);
        if self.request(id).phase != Phase::Placed {
            self.over.push(id);
            return;
        }
        for lane in self.lanes_of(id) {
            self.check_lane(lane);
        }
        self.place_pending(id);
    }
}

/// Whether anything of a lane was executed, so that its slots hold values.
fn has_values(lane: &Lane) -> bool {
    match &lane.progress {
        Progress::Front(front) => front.done > 0,
        Progress::Each(nodes) => nodes.states.any_done(),
        Progress::Grouped(grouped) => grouped.nodes.states.any_done(),
    }
}
