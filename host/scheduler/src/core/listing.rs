//! Keeps lanes, queues and tallies in step. Only this code makes a node ready, takes that back, or
//! hands the node to a worker.
//!
//! Invariant: a subgraph is listed in its type's queue exactly if it has a ready node, except
//! between the submission of a batch and `tidy`. Every ready node is counted once, under the
//! workers that may run it.

mod flight;

use crate::core::Core;
use crate::core::lane::{Lane, NodeState, Progress, Ready};
use crate::core::queues::{Item, Key, Scope};
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, Time, WorkerId};

/// Which workers may run a ready node of a subgraph.
pub(crate) const fn scope(domain: DomainId, pinned: Option<WorkerId>, only: Option<WorkerId>) -> Scope {
    match (pinned, only) {
        (None, None) => Scope::Domain(domain),
        (Some(worker), None) | (None, Some(worker)) => Scope::Worker(worker),
        (Some(one), Some(other)) if one.0 == other.0 => Scope::Worker(one),
        _ => Scope::Nobody,
    }
}

/// Ready nodes of one model and type, more or fewer than its tallies say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uncounted {
    /// Whether anything was counted here. Even if the sum is 0, other nodes are ready than before.
    any: bool,
    model: ModelId,
    position: u32,
    cell_type: CellTypeId,
    domain: DomainId,
    by_domain: i32,
    worker: WorkerId,
    by_worker: i32,
}

impl Lane {
    pub(crate) fn key(&self, time: Time, step: u32) -> Key {
        Key { rank: self.rank, time, order: self.order, chain: self.chain, stage: self.stage.into(), step }
    }

    /// The place in its type's queue of a stage in order, if it has entered.
    pub(crate) fn queue_key(&self) -> Option<Key> {
        match &self.progress {
            Progress::Front(front) => front.entered().map(|entered| self.key(entered, 0)),
            _ => None,
        }
    }

    /// The worker that an in-order subgraph is pinned to.
    pub(crate) fn pinned(&self) -> Option<WorkerId> {
        match &self.progress {
            Progress::Front(front) if self.flying > 0 => Some(front.worker),
            _ => None,
        }
    }
}

impl Core {
    pub(crate) fn count(&mut self, lane: LaneId, scope: Scope, by: i32) {
        let place = &self.lanes[lane.index()];
        self.count_of((place.model, place.type_position.into()), place.cell_type, scope, by);
    }

    /// Counts ready nodes of one of a model's types. Consecutive calls mostly count alike and are
    /// summed first.
    #[inline]
    pub(crate) fn count_of(&mut self, (model, position): (ModelId, u32), cell_type: CellTypeId, scope: Scope, by: i32) {
        let known = &mut self.uncounted;
        let same = known.any && known.model == model && known.position == position && known.cell_type == cell_type;
        match scope {
            Scope::Worker(worker) if same && known.worker == worker => known.by_worker += by,
            Scope::Domain(domain) if same && known.domain == domain => known.by_domain += by,
            _ => {
                self.settle_counts();
                self.uncounted = Uncounted { any: true, model, position, cell_type, ..Uncounted::default() };
                match scope {
                    Scope::Worker(worker) => (self.uncounted.worker, self.uncounted.by_worker) = (worker, by),
                    Scope::Domain(domain) => (self.uncounted.domain, self.uncounted.by_domain) = (domain, by),
                    Scope::Nobody => {}
                }
            }
        }
    }

    /// Counts what has not been counted yet. Tallies are true afterwards.
    #[inline]
    pub(crate) fn settle_counts(&mut self) {
        if self.uncounted.any {
            self.count_uncounted();
        }
    }

    fn count_uncounted(&mut self) {
        let Uncounted { model: id, position, cell_type, domain, worker, by_domain, by_worker, .. } = std::mem::take(&mut self.uncounted);
        self.types[cell_type.index()].changed();
        for (scope, by) in [(Scope::Domain(domain), by_domain), (Scope::Worker(worker), by_worker)] {
            if by == 0 {
                continue;
            }
            self.types[cell_type.index()].tally.change(scope, by);
            let model = self.model_mut(id);
            model.types[position as usize].tally.change(scope, by);
            model.ready = model.ready.checked_add_signed(by).expect("fewer ready nodes than none");
            if model.active == (model.ready + model.flying == 0) {
                self.touched.push(id);
            }
        }
    }

    /// Makes a node ready: on the worker `only`, or anywhere. A ready node may change between
    /// these.
    pub(crate) fn set_ready(&mut self, lane: LaneId, step: u32, only: Option<WorkerId>) {
        let now = self.now;
        let place = &mut self.lanes[lane.index()];
        let (domain, cell_type, pinned) = (place.domain, place.cell_type, place.pinned());
        let (rank, order, chain, stage) = (place.rank, place.order, place.chain, place.stage.into());
        let key = |time, step| Key { rank, time, order, chain, stage, step };
        let (before, after, listing) = match &mut place.progress {
            Progress::Front(front) => {
                let before = front.ready().map(|ready| scope(domain, pinned, ready.only));
                front.set_ready(Ready { time: front.ready().map_or(now, |ready| ready.time), only });
                let entered = front.enter(now);
                let listing = (!front.listed).then(|| (key(entered, 0), Item::Front(lane)));
                front.listed = true;
                (before, scope(domain, pinned, only), listing)
            }
            Progress::Each(nodes) => {
                let (before, time) = match nodes.states.at(step, &self.moments) {
                    NodeState::Ready(ready) => (Some(scope(domain, None, ready.only)), ready.time),
                    _ => (None, now),
                };
                nodes.states.set_ready(std::iter::once(step), Ready { time, only }, &mut self.moments);
                let listing = before.is_none().then(|| (key(time, step), Item::Run(lane, step, step + 1)));
                (before, scope(domain, None, only), listing)
            }
            Progress::Grouped(grouped) => {
                let group = grouped.group(step);
                let pinned = grouped.subgraphs[group as usize].pinned();
                let (before, time) = match grouped.nodes.states.at(step, &self.moments) {
                    NodeState::Ready(ready) => (Some(scope(domain, pinned, ready.only)), ready.time),
                    _ => (None, now),
                };
                grouped.set_ready(group, step, Ready { time, only }, &mut self.moments);
                let first = grouped.first(group);
                let subgraph = &mut grouped.subgraphs[group as usize];
                let entered = subgraph.enter(now);
                let listing = (!subgraph.listed).then(|| (key(entered, first), Item::Subgraph(lane, group)));
                subgraph.listed = true;
                (before, scope(domain, pinned, only), listing)
            }
        };
        if before != Some(after) {
            if let Some(before) = before {
                self.count(lane, before, -1);
            }
            self.count(lane, after, 1);
        }
        if let Some((key, item)) = listing {
            self.types[cell_type.index()].list(domain, key, item);
        }
    }

    /// Single-node subgraphs `from..to` become ready together.
    pub(crate) fn set_run_ready(&mut self, lane: LaneId, from: u32, to: u32, only: Option<WorkerId>) {
        if from >= to {
            return;
        }
        let time = self.now;
        let place = &mut self.lanes[lane.index()];
        let (domain, cell_type, key) = (place.domain, place.cell_type, place.key(time, from));
        if let Progress::Each(nodes) = &mut place.progress {
            nodes.states.set_ready(from..to, Ready { time, only }, &mut self.moments);
        }
        self.types[cell_type.index()].list(domain, key, Item::Run(lane, from, to));
        self.count(lane, scope(domain, None, only), (to - from) as i32);
    }

    /// Makes waiting nodes of a lane ready, in ascending order: on the worker `only`, or anywhere.
    pub(crate) fn set_all_ready(&mut self, nodes: &[(LaneId, u32)], only: Option<WorkerId>) {
        let Some((lane, _)) = nodes.first().copied() else { return };
        let time = self.now;
        let place = &mut self.lanes[lane.index()];
        let (domain, cell_type) = (place.domain, place.cell_type);
        let (rank, order, chain, stage) = (place.rank, place.order, place.chain, place.stage.into());
        match &mut place.progress {
            Progress::Each(_) => {
                for run in nodes.chunk_by(|(_, one), (_, next)| one + 1 == *next) {
                    self.set_run_ready(lane, run[0].1, run[0].1 + run.len() as u32, only);
                }
            }
            Progress::Grouped(grouped) if grouped.subgraphs.len() == 1 => {
                grouped.set_all_ready(nodes, Ready { time, only }, &mut self.moments);
                let first = grouped.first(0);
                let subgraph = &mut grouped.subgraphs[0];
                let entered = subgraph.enter(time);
                let scope = scope(domain, subgraph.pinned(), only);
                if !std::mem::replace(&mut subgraph.listed, true) {
                    let key = Key { rank, time: entered, order, chain, stage, step: first };
                    self.types[cell_type.index()].list(domain, key, Item::Subgraph(lane, 0));
                }
                self.count(lane, scope, nodes.len() as i32);
            }
            Progress::Front(_) | Progress::Grouped(_) => nodes.iter().for_each(|(lane, step)| self.set_ready(*lane, *step, only)),
        }
    }

    /// A node is no longer ready: it was dropped, or its request moves.
    pub(crate) fn take_back(&mut self, lane: LaneId, step: u32) {
        let place = &mut self.lanes[lane.index()];
        let (domain, pinned) = (place.domain, place.pinned());
        let (scope, key) = match &mut place.progress {
            Progress::Front(front) => {
                let Some(ready) = front.take_ready() else { return };
                (scope(domain, pinned, ready.only), None)
            }
            Progress::Each(nodes) => {
                let NodeState::Ready(ready) = nodes.states.at(step, &self.moments) else { return };
                nodes.states.set_waiting(step, &mut self.moments);
                (scope(domain, None, ready.only), Some(ready.time))
            }
            Progress::Grouped(grouped) => {
                let NodeState::Ready(ready) = grouped.nodes.states.at(step, &self.moments) else { return };
                let group = grouped.group(step);
                grouped.set_waiting(group, step, &mut self.moments);
                (scope(domain, grouped.subgraphs[group as usize].pinned(), ready.only), None)
            }
        };
        self.count(lane, scope, -1);
        self.tidy(lane, step, key);
    }

    /// Removes a subgraph without ready nodes from its queue. `ready` is when the step of a run
    /// became ready.
    pub(crate) fn tidy(&mut self, lane: LaneId, step: u32, ready: Option<Time>) {
        let place = &mut self.lanes[lane.index()];
        let (domain, cell_type) = (place.domain, place.cell_type);
        let (rank, order, chain, stage) = (place.rank, place.order, place.chain, place.stage.into());
        let key = |time, step| Key { rank, time, order, chain, stage, step };
        let types = &mut self.types;
        match &mut place.progress {
            Progress::Front(front) => {
                if let (true, None, Some(entered)) = (front.listed, front.ready(), front.entered()) {
                    types[cell_type.index()].unlist(domain, &key(entered, 0));
                    front.listed = false;
                }
            }
            Progress::Each(nodes) => {
                let Some(time) = ready else { return };
                let queue = &mut types[cell_type.index()];
                let Some((found, Item::Run(held, from, to))) = queue.run_mut(domain, &key(time, step)) else { return };
                if *held != lane || *to <= step {
                    return;
                }
                while from < to && !nodes.states.is_ready(*from) {
                    *from += 1;
                }
                if from == to {
                    queue.unlist(domain, &found);
                }
            }
            Progress::Grouped(grouped) => {
                let group = grouped.group(step);
                let (over, first) = (grouped.ready(group).is_empty(), grouped.first(group));
                let subgraph = &mut grouped.subgraphs[group as usize];
                if let (true, true, Some(entered)) = (subgraph.listed, over, subgraph.entered()) {
                    types[cell_type.index()].unlist(domain, &key(entered, first));
                    subgraph.listed = false;
                }
            }
        }
    }
}
