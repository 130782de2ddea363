//! Looking again at whoever waits for what has just happened: a node was submitted or completed, a chain ended.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, UnfoldedChain};

use crate::id::{LaneId, RequestId, WorkerId};
use crate::lane::{Lane, Progress, StageRef, Status};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// First look at every node of a growth.
    pub(crate) fn start_growth(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        for local in 0..graph.chains.len() as u32 {
            for stage in 0..graph.chains[local as usize].stages.len() as u32 {
                let Some(chain) = self.request(id).chain(graph.first_chain + local).filter(|chain| !chain.cancelled) else { continue };
                let free = chain.root.is_none() && graph.chains[local as usize].stages[stage as usize].depends.is_empty();
                let lane = chain.lane(stage);
                if self.lane(lane).named {
                    // Each waits for a node that has not been submitted, and will be told of it.
                    continue;
                }
                match &self.lane(lane).progress {
                    Progress::Each(_) if free => self.set_run_ready(lane, 0, self.lane(lane).limit, None),
                    Progress::Front(_) if free || self.lane(lane).plain => self.set_ready(lane, 0, None),
                    _ => self.look_at_all(lane),
                }
            }
        }
    }

    /// A node was submitted.
    pub(crate) fn after_queued(&mut self, lane: LaneId, step: u32, worker: WorkerId) {
        let place = self.lane(lane);
        if !place.plain {
            self.tell(lane, step, Some(worker));
        } else if step + 1 < place.limit {
            self.set_ready(lane, step + 1, Some(worker));
        }
        self.tell_end(lane);
    }

    /// A node is complete.
    pub(crate) fn after_done(&mut self, lane: LaneId, step: u32) {
        let place = self.lane(lane);
        if !place.plain {
            self.tell(lane, step, None);
        } else if place.flying == 0 && place.member.is_none() && step + 1 < place.limit {
            self.set_ready(lane, step + 1, None);
        }
        self.tell_end(lane);
    }

    /// Looks again at whoever waits for a node, which was just submitted to that worker, or is complete.
    pub(super) fn tell(&mut self, lane: LaneId, step: u32, queued: Option<WorkerId>) {
        let place = self.lane(lane);
        let (id, number, stage) = (place.request, place.chain, place.stage);
        let growth = place.growth;
        let Some(graph) = self.request(id).growth(growth).map(|growth| &growth.graph) else { return };
        let local = (number - graph.first_chain) as usize;
        let chain = &graph.chains[local];
        let bound = chain.length.bound;
        let successors = &chain.stages[stage as usize].successors;
        let named = successors.offsets.get(step as usize..step as usize + 2).map_or(0..0, |range| range[0] as usize..range[1] as usize);
        if chain.sequential || chain.stages.len() > 1 {
            let graph = Arc::clone(graph);
            self.tell_own_chain(id, number, (stage, step), &graph.chains[local]);
        }
        let places = self.lane_mut(lane).readers.as_mut().map(|readers| readers.about(step));
        for place in places.into_iter().flatten() {
            let readers = self.lane(lane).readers.as_ref();
            let Some((reader, by)) = readers.and_then(|readers| readers.reading(place, step, bound)) else { continue };
            let Some(reader) = self.held(id, reader) else { continue };
            match by {
                Some(by) => self.look_at(reader, by),
                None => self.look_at_all(reader),
            }
        }
        for at in named {
            let Some(graph) = self.request(id).growth(growth).map(|growth| &growth.graph) else { return };
            let (chain, stage, step) = graph.chains[local].stages[stage as usize].successors.targets[at];
            if let Some(other) = self.held(id, StageRef { chain, stage }) {
                self.tell_named(other, step, queued);
            }
        }
    }

    /// A node that this one names was submitted to that worker, or is complete.
    fn tell_named(&mut self, lane: LaneId, step: u32, queued: Option<WorkerId>) {
        let place = &mut self.lanes[lane.index()];
        let untold = queued.and_then(|_| place.nodes_mut()?.hear(step));
        match (untold, queued) {
            (Some(1..), _) => {}
            // All are with the only worker.
            (Some(0), Some(worker)) if place.named && self.alone && !self.subgraphs() => self.set_ready(lane, step, Some(worker)),
            _ => self.look_at(lane, step),
        }
    }

    /// Looks again at those of its own chain that wait for a node.
    fn tell_own_chain(&mut self, id: RequestId, number: u32, (stage, step): (u32, u32), chain: &UnfoldedChain) {
        for (index, sibling) in chain.stages.iter().enumerate() {
            for depends in &sibling.depends {
                let step = match depends {
                    Dependency::Previous { stage: named } if *named == stage => step + 1,
                    Dependency::Sibling { stage: named } if *named == stage => step,
                    _ => continue,
                };
                if let Some(other) = self.request(id).chain(number).map(|chain| chain.lane(index as u32)) {
                    self.look_at(other, step);
                }
            }
        }
    }

    /// Looks again at who waits for a chain's end, if something changed for them.
    pub(crate) fn tell_end(&mut self, lane: LaneId) {
        let (id, number) = (self.lane(lane).request, self.lane(lane).chain);
        let request = self.request(id);
        let Some(chain) = request.chain(number).filter(|chain| chain.is_waited_for() && !chain.ended) else { return };
        let Status::Queued(worker) = self.end_status(request, number) else { return };
        if chain.links.as_ref().is_some_and(|links| links.end_seen != Some(worker)) {
            if let Some(chain) = self.request_mut(id).chain_mut(number) {
                chain.links().end_seen = Some(worker);
            }
            self.tell_end_waiters(id, number);
        }
    }

    pub(crate) fn tell_end_waiters(&mut self, id: RequestId, number: u32) {
        for index in 0..self.request(id).chain(number).map_or(0, |chain| chain.end_waiters().len()) {
            let waiter = self.request(id).chain(number).map(|chain| chain.end_waiters()[index]);
            if let Some(waiter) = waiter.and_then(|waiter| self.held(id, waiter)) {
                self.make_plain(waiter);
                self.look_at_all(waiter);
            }
        }
    }

    /// Looks again at everybody who may name a step of this lane: its chain's end is known.
    pub(crate) fn tell_readers(&mut self, lane: LaneId) {
        let Lane { request: id, chain: number, stage, growth, .. } = *self.lane(lane);
        for index in 0..self.lane(lane).readers.as_ref().map_or(0, |readers| readers.len()) {
            let reader = self.lane(lane).readers.as_ref().and_then(|readers| readers.get(index));
            if let Some(reader) = reader.and_then(|reader| self.held(id, reader)) {
                self.look_at_all(reader);
            }
        }
        let Some(graph) = self.request(id).growth(growth).map(|growth| Arc::clone(&growth.graph)) else { return };
        let targets = &graph.chains[(number - graph.first_chain) as usize].stages[stage as usize].successors.targets;
        self.look_at_named(id, targets);
    }

    pub(super) fn look_at_named(&mut self, id: RequestId, targets: &[(u32, u32, u32)]) {
        for (chain, stage, step) in targets {
            if let Some(other) = self.held(id, StageRef { chain: *chain, stage: *stage }) {
                if let Some(nodes) = self.lane_mut(other).nodes_mut() {
                    nodes.lose_count(*step);
                }
                self.look_at(other, *step);
            }
        }
    }
}
