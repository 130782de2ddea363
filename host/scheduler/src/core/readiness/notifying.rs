//! Checks the nodes that wait for an event: a node was submitted or completed, or a chain ended.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Successors, UnfoldedChain};

use crate::command::Row;
use crate::core::Core;
use crate::core::lane::{Lane, NO_LANE, Progress, StageRef, Status};
use crate::core::request::Request;
use crate::id::{LaneId, RequestId, WorkerId};

/// Nodes whose named producers were submitted, and what is to be done with them. Empty except while
/// a task is submitted or completed.
#[derive(Debug, Default)]
pub(crate) struct Notified {
    /// They have heard of all.
    ready: Vec<(LaneId, u32)>,
    /// They have to be looked at.
    again: Vec<(LaneId, u32)>,
}

impl Notified {
    /// Tells the successors of nodes of a request; if those were `queued`, they count it.
    fn add(&mut self, nodes: &[Row], successors: &Successors, request: &Request, lanes: &mut [Lane], queued: bool) {
        let (mut known, mut lane) = (StageRef { chain: u32::MAX, stage: 0 }, NO_LANE);
        for node in nodes {
            let Some(&[from, to]) = successors.offsets.get(node.step as usize..node.step as usize + 2) else { continue };
            for &(chain, stage, step) in &successors.targets[from as usize..to as usize] {
                // Mostly all are of one stage.
                if known != (StageRef { chain, stage }) {
                    known = StageRef { chain, stage };
                    lane = request.chain(chain).filter(|chain| !chain.gone()).map_or(NO_LANE, |chain| chain.lane(stage));
                }
                let Some(place) = lanes.get_mut(lane.index()) else { continue };
                let heard = if queued { place.progress.nodes_mut().and_then(|all| all.states.count_submitted_input(step)) } else { None };
                match heard {
                    Some(1..) => {}
                    Some(0) if place.named => self.ready.push((lane, step)),
                    _ => self.again.push((lane, step)),
                }
            }
        }
    }
}

impl Core {
    /// First look at every node of a growth.
    pub(crate) fn start_growth(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        for local in 0..graph.chains.len() as u32 {
            for stage in 0..graph.chains[local as usize].stages.len() as u32 {
                let Some(chain) = self.request(id).chain(graph.first_chain + local).filter(|chain| !chain.cancelled) else { continue };
                let free = chain.root().is_none() && graph.chains[local as usize].stages[stage as usize].depends.is_empty();
                let lane = chain.lane(stage);
                if self.lane(lane).named {
                    // Each waits for a node that is not submitted yet, and is notified when it is.
                    continue;
                }
                match &self.lane(lane).progress {
                    Progress::Each(_) if free => self.set_run_ready(lane, 0, self.lane(lane).limit, None),
                    Progress::Front(_) if free || self.lane(lane).plain => self.set_ready(lane, 0, None),
                    _ => self.check_lane(lane),
                }
            }
        }
    }

    /// Nodes of a lane were submitted together. Notifies their readers, which `check_notified`
    /// checks.
    pub(crate) fn after_queued(&mut self, lane: LaneId, nodes: &[Row], worker: WorkerId) {
        let place = self.lane(lane);
        if !place.plain {
            self.notify(lane, nodes, Some(worker));
        } else if let Some(next) = nodes.last().map(|last| last.step + 1).filter(|next| *next < place.limit) {
            self.set_ready(lane, next, Some(worker));
        }
        self.notify_end(lane);
    }

    /// Nodes of a lane are complete.
    pub(crate) fn after_done(&mut self, lane: LaneId, steps: impl Iterator<Item = u32> + Clone) {
        let place = self.lane(lane);
        let limit = place.limit;
        let executed = steps.filter(move |step| *step < limit);
        if !place.plain {
            executed.for_each(|step| self.notify(lane, &[Row { lane, step }], None));
            self.check_notified(None);
        } else if place.flying == 0
            && place.member().is_none()
            && let Some(next) = executed.last().map(|last| last + 1).filter(|next| *next < limit)
        {
            self.set_ready(lane, next, None);
        }
        self.notify_end(lane);
    }

    /// Prefetches the readers of nodes, as [`Core::read_ahead`] does.
    pub(crate) fn read_successors_ahead(&self, nodes: impl Iterator<Item = Row>) {
        let read = |node: Row| {
            let place = self.lane(node.lane);
            let graph = self.request(place.request).growth_of(place.chain)?;
            let stage = graph.chains.get((place.chain - graph.first_chain) as usize)?.stages.get(place.stage as usize)?;
            let first = stage.successors.offsets.get(node.step as usize)?;
            stage.successors.targets.get(*first as usize).map(|(_, _, step)| *step)
        };
        std::hint::black_box(nodes.filter_map(read).fold(0, u32::wrapping_add));
    }

    /// Prefetches the lanes that wait for the ends of chains.
    pub(crate) fn read_waiters_ahead(&self, lanes: &[LaneId]) {
        let read = |lane: &LaneId| {
            let place = self.lane(*lane);
            let request = self.request(place.request);
            let waiter = request.chain(place.chain)?.end_waiter(0)?;
            let place = self.lane(self.held(place.request, waiter)?);
            let (_, _, stage) = Self::stage_of(request, place)?;
            Some(place.limit as usize + stage.depends.len())
        };
        std::hint::black_box(lanes.iter().filter_map(read).fold(0, usize::wrapping_add));
    }

    /// Notifies the readers of nodes that were just submitted to a worker, or are complete.
    fn notify(&mut self, lane: LaneId, nodes: &[Row], queued: Option<WorkerId>) {
        let Self { lanes, requests, notified, .. } = self;
        let Lane { request: id, chain: number, stage, .. } = lanes[lane.index()];
        let (request, stage) = (&requests[id.index()], u32::from(stage));
        let Some(own) = request.chain(number) else { return };
        let Some(graph) = request.growth(own.growth) else { return };
        let (is_read, is_followed) = (own.readers(stage).is_some(), own.through(stage).is_some());
        let local = (number - graph.first_chain) as usize;
        let chain = &graph.chains[local];
        let (bound, linked) = (chain.length.bound, chain.sequential || chain.stages.len() > 1);
        let successors = &chain.stages[stage as usize].successors;
        if !successors.targets.is_empty() {
            notified.add(nodes, successors, request, lanes, queued.is_some());
        }
        if linked {
            let graph = Arc::clone(graph);
            for node in nodes {
                self.notify_own_chain(id, number, (stage, node.step), &graph.chains[local]);
            }
        }
        if is_read {
            for node in nodes {
                self.notify_readers_of(lane, node.step, bound);
            }
        }
        if is_followed {
            self.notify_followers(lane, bound);
        }
    }

    /// Makes notified nodes ready if all their inputs are submitted to the only worker. Checks the
    /// others.
    pub(crate) fn check_notified(&mut self, queued: Option<WorkerId>) {
        let Notified { mut ready, mut again } = std::mem::take(&mut self.notified);
        if self.sole_worker && !self.subgraphs() {
            for nodes in ready.chunk_by_mut(|(one, _), (next, _)| one == next) {
                nodes.sort_unstable();
                self.set_all_ready(nodes, queued);
            }
            ready.clear();
        }
        for (lane, step) in ready.drain(..).chain(again.drain(..)) {
            self.check_node(lane, step);
        }
        self.notified = Notified { ready, again };
    }

    /// Checks the nodes that wait for a step of a lane of `bound` steps.
    fn notify_readers_of(&mut self, lane: LaneId, step: u32, bound: u32) {
        let Lane { request: id, chain: number, stage, .. } = *self.lane(lane);
        let stage = u32::from(stage);
        let readers = self.request_mut(id).chain_mut(number).and_then(|chain| chain.readers_mut(stage));
        for place in readers.map(|readers| readers.about(step)).into_iter().flatten() {
            let readers = self.request(id).chain(number).and_then(|chain| chain.readers(stage));
            let Some((reader, by)) = readers.and_then(|readers| readers.reading(place, step, bound)) else { continue };
            let Some(reader) = self.held(id, reader) else { continue };
            match by {
                Some(by) => self.check_node(reader, by),
                None => self.check_lane(reader),
            }
        }
    }

    /// Checks the nodes that wait for all steps of a lane of `bound` steps as far as one, if they are there now.
    fn notify_followers(&mut self, lane: LaneId, bound: u32) {
        let Self { lanes, requests, .. } = self;
        let place = &lanes[lane.index()];
        let (id, number, stage) = (place.request, place.chain, u32::from(place.stage));
        let Some((passed, ends)) =
            requests[id.index()].chain_mut(number).and_then(|chain| chain.through_mut(stage)).map(|all| all.passed(place))
        else {
            return;
        };
        for step in passed.into_iter().flatten() {
            let through = self.request_mut(id).chain_mut(number).and_then(|chain| chain.through_mut(stage));
            for (reader, by) in through.map(|through| through.waiting(step, bound)).into_iter().flatten() {
                let Some(reader) = self.held(id, reader) else { continue };
                match by {
                    Some(by) => self.check_node(reader, by),
                    None => self.check_lane(reader),
                }
            }
        }
        if ends && self.request(id).chain(number).is_some_and(|chain| chain.cancelled) {
            self.check_followers(lane);
        }
    }

    /// Checks all lanes that wait for all steps of this lane as far as one.
    fn check_followers(&mut self, lane: LaneId) {
        let Lane { request: id, chain: number, stage, .. } = *self.lane(lane);
        for index in 0.. {
            let through = self.request(id).chain(number).and_then(|chain| chain.through(stage.into()));
            let Some(reader) = through.and_then(|through| through.get(index)) else { return };
            if let Some(reader) = self.held(id, reader) {
                self.check_lane(reader);
            }
        }
    }

    /// Checks the nodes of the same chain that wait for a node.
    fn notify_own_chain(&mut self, id: RequestId, number: u32, (stage, step): (u32, u32), chain: &UnfoldedChain) {
        for (index, sibling) in chain.stages.iter().enumerate() {
            for depends in &sibling.depends {
                let step = match depends {
                    Dependency::Previous { stage: named } if *named == stage => step + 1,
                    Dependency::Sibling { stage: named } if *named == stage => step,
                    _ => continue,
                };
                if let Some(other) = self.request(id).chain(number).map(|chain| chain.lane(index as u32)) {
                    self.check_node(other, step);
                }
            }
        }
    }

    /// Checks the lanes that wait for a chain's end, if something changed for them.
    #[inline]
    pub(crate) fn notify_end(&mut self, lane: LaneId) {
        let (id, number) = (self.lane(lane).request, self.lane(lane).chain);
        if self.request(id).chain(number).is_some_and(|chain| chain.is_waited_for() && !chain.ended()) {
            self.notify_end_of(id, number);
        }
    }

    fn notify_end_of(&mut self, id: RequestId, number: u32) {
        let request = self.request(id);
        let Status::Queued(worker) = self.end_status(request, number) else { return };
        let links = self.request_mut(id).chain_mut(number).and_then(|chain| chain.links.as_mut());
        if links.is_some_and(|links| links.mark_end_seen(worker)) {
            self.notify_end_waiters(id, number);
        }
    }

    pub(crate) fn notify_end_waiters(&mut self, id: RequestId, number: u32) {
        for index in 0.. {
            let Some(waiter) = self.request(id).chain(number).and_then(|chain| chain.end_waiter(index)) else { return };
            if let Some(waiter) = self.held(id, waiter) {
                self.make_plain(waiter);
                self.check_lane(waiter);
            }
        }
    }

    /// Checks all lanes that may name a step of this lane: its chain's end is known.
    pub(crate) fn notify_readers(&mut self, lane: LaneId) {
        let Lane { request: id, chain: number, stage, .. } = *self.lane(lane);
        for index in 0.. {
            let readers = self.request(id).chain(number).and_then(|chain| chain.readers(stage.into()));
            let Some(reader) = readers.and_then(|readers| readers.get(index)) else { break };
            if let Some(reader) = Some(reader).and_then(|reader| self.held(id, reader)) {
                self.check_lane(reader);
            }
        }
        self.check_followers(lane);
        let Some(graph) = self.request(id).growth_of(number).map(Arc::clone) else { return };
        let targets = &graph.chains[(number - graph.first_chain) as usize].stages[stage as usize].successors.targets;
        self.check_named(id, targets);
    }

    pub(super) fn check_named(&mut self, id: RequestId, targets: &[(u32, u32, u32)]) {
        for (chain, stage, step) in targets {
            if let Some(other) = self.held(id, StageRef { chain: *chain, stage: *stage }) {
                if let Some(nodes) = self.lane_mut(other).progress.nodes_mut() {
                    nodes.states.lose_count(*step);
                }
                self.check_node(other, *step);
            }
        }
    }
}
