//! Looking again at whoever waits for what has just happened: a node was submitted or completed, a chain ended.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Successors, UnfoldedChain};

use crate::command::Row;
use crate::id::{LaneId, RequestId, WorkerId};
use crate::lane::{Lane, Progress, StageRef, Status};
use crate::scheduler::Scheduler;

/// What follows for nodes of a task's nodes that they name. Empty but for that moment.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// They have heard of all.
    ready: Vec<(LaneId, u32)>,
    /// They have to be looked at.
    again: Vec<(LaneId, u32)>,
}

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

    /// Nodes of a lane were submitted together.
    pub(crate) fn after_queued(&mut self, lane: LaneId, nodes: &[Row], worker: WorkerId) {
        let place = self.lane(lane);
        if !place.plain {
            self.tell(lane, nodes, Some(worker));
        } else if let Some(next) = nodes.last().map(|last| last.step + 1).filter(|next| *next < place.limit) {
            self.set_ready(lane, next, Some(worker));
        }
        self.tell_end(lane);
    }

    /// Nodes of a lane are complete, those of them that were to be executed.
    pub(crate) fn after_done(&mut self, lane: LaneId, steps: impl Iterator<Item = u32> + Clone) {
        let place = self.lane(lane);
        let limit = place.limit;
        let executed = steps.filter(move |step| *step < limit);
        if !place.plain {
            executed.for_each(|step| self.tell(lane, &[Row { lane, step }], None));
        } else if place.flying == 0
            && place.member.is_none()
            && let Some(next) = executed.last().map(|last| last + 1).filter(|next| *next < limit)
        {
            self.set_ready(lane, next, None);
        }
        self.tell_end(lane);
    }

    /// Looks again at whoever waits for nodes of a lane, which were just submitted to that worker, or are complete.
    fn tell(&mut self, lane: LaneId, nodes: &[Row], queued: Option<WorkerId>) {
        let Lane { request: id, chain: number, stage, growth, .. } = *self.lane(lane);
        let Some(graph) = self.request(id).growth(growth).map(|growth| &growth.graph) else { return };
        let local = (number - graph.first_chain) as usize;
        let chain = &graph.chains[local];
        let bound = chain.length.bound;
        let names = !chain.stages[stage as usize].successors.targets.is_empty();
        if chain.sequential || chain.stages.len() > 1 {
            let graph = Arc::clone(graph);
            for node in nodes {
                self.tell_own_chain(id, number, (stage, node.step), &graph.chains[local]);
            }
        }
        if self.lane(lane).readers.is_some() {
            for node in nodes {
                self.tell_readers_of(lane, node.step, bound);
            }
        }
        if names {
            self.tell_named(lane, nodes, queued);
        }
    }

    /// Looks again at who waits for a step of a lane of `bound` steps.
    fn tell_readers_of(&mut self, lane: LaneId, step: u32, bound: u32) {
        let id = self.lane(lane).request;
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
    }

    /// Tells nodes which name these that they were submitted to that worker, or are complete. Who has heard of all that it names, and knows that all are
    /// with the only worker, is ready; others are looked at.
    fn tell_named(&mut self, lane: LaneId, nodes: &[Row], queued: Option<WorkerId>) {
        let Told { mut ready, mut again } = std::mem::take(&mut self.told);
        let counts = self.alone && !self.subgraphs();
        let Lane { request: id, chain, stage, growth, .. } = self.lanes[lane.index()];
        let request = &self.requests[id.index()];
        let Some(graph) = request.growth(growth).map(|growth| &growth.graph) else { return };
        let Successors { offsets, targets } = &graph.chains[(chain - graph.first_chain) as usize].stages[stage as usize].successors;
        for run in nodes.chunk_by(|one, next| one.step + 1 == next.step) {
            let (first, last) = (run[0].step as usize, run[0].step as usize + run.len());
            let Some((from, to)) = offsets.get(first).zip(offsets.get(last)) else { continue };
            for alike in targets[*from as usize..*to as usize].chunk_by(|one, next| (one.0, one.1) == (next.0, next.1)) {
                let (chain, stage, _) = alike[0];
                let Some(chain) = request.chain(chain).filter(|chain| !chain.gone) else { continue };
                let lane = chain.lane(stage);
                let place = &mut self.lanes[lane.index()];
                let knows = place.named && counts;
                let mut all = place.nodes_mut().filter(|_| queued.is_some());
                for (_, _, step) in alike {
                    match all.as_mut().and_then(|all| all.hear(*step)) {
                        Some(1..) => {}
                        Some(0) if knows => ready.push((lane, *step)),
                        _ => again.push((lane, *step)),
                    }
                }
            }
        }
        ready.sort_unstable();
        for nodes in ready.chunk_by(|(one, _), (next, _)| one == next) {
            self.set_all_ready(nodes, queued);
        }
        for (lane, step) in again.drain(..) {
            self.look_at(lane, step);
        }
        ready.clear();
        self.told = Told { ready, again };
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
