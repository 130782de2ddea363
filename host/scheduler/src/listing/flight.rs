//! Nodes that go to a worker, and leave it: several of a lane at a time, because those that were listed together mostly run together.

use crate::id::{LaneId, WorkerId};
use crate::lane::Progress;
use crate::listing::scope;
use crate::queues::Scope;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Hands a ready node to a worker.
    pub(crate) fn queue_node(&mut self, lane: LaneId, step: u32, worker: WorkerId) {
        self.queue_nodes(lane, std::iter::once(step), worker);
    }

    /// Hands ready nodes of a lane to a worker, of a stage in order the next one alone. They stay listed until `tidy`.
    pub(crate) fn queue_nodes(&mut self, lane: LaneId, steps: impl ExactSizeIterator<Item = u32> + Clone, worker: WorkerId) {
        let count = steps.len() as u32;
        let place = &mut self.lanes[lane.index()];
        let (request, model, domain, pinned) = (place.request, place.model, place.domain, place.pinned());
        place.flying += count;
        match &mut place.progress {
            Progress::Front(front) => {
                assert!(steps.eq([front.queued]), "steps of an in-order stage are queued in order");
                (front.queued, front.worker) = (front.queued + 1, worker);
                if let Some(ready) = front.ready.take() {
                    self.count(lane, scope(domain, pinned, ready.only), -1);
                }
            }
            Progress::Each(nodes) => {
                nodes.fly(worker, count);
                let mut counted = (Scope::Nobody, 0);
                for step in steps {
                    let Some(ready) = self.lanes[lane.index()].nodes_mut().map(|nodes| nodes.queue(step, worker)) else { return };
                    counted = self.count_alike(lane, counted, scope(domain, None, ready.only));
                }
                self.count(lane, counted.0, counted.1);
            }
            Progress::Grouped(grouped) => {
                grouped.nodes.fly(worker, count);
                self.queue_grouped(lane, steps, worker);
            }
        }
        self.request_mut(request).flying += count;
        self.model_mut(model).flying += count;
    }

    /// The same for nodes of any subgraphs of a lane: these are pinned to the worker from their first node on.
    fn queue_grouped(&mut self, lane: LaneId, steps: impl Iterator<Item = u32>, worker: WorkerId) {
        let mut counted = (Scope::Nobody, 0);
        for step in steps {
            let place = &mut self.lanes[lane.index()];
            let domain = place.domain;
            let Progress::Grouped(grouped) = &mut place.progress else { return };
            let ready = grouped.nodes.queue(step, worker);
            let group = grouped.group(step);
            let subgraph = &mut grouped.split.subgraphs[group as usize];
            subgraph.forget_ready(step, ready);
            let pinned = subgraph.pinned();
            subgraph.flying += 1;
            subgraph.worker = worker;
            counted = self.count_alike(lane, counted, scope(domain, pinned, ready.only));
            if pinned != Some(worker) {
                self.repin(lane, group, pinned, Some(worker));
            }
        }
        self.count(lane, counted.0, counted.1);
    }

    /// One ready node less for those workers: counts those before it, unless they were for the same.
    fn count_alike(&mut self, lane: LaneId, (scope, by): (Scope, i32), next: Scope) -> (Scope, i32) {
        if scope == next {
            return (scope, by - 1);
        }
        self.count(lane, scope, by);
        (next, -1)
    }

    /// Takes nodes off their worker; how many of them were to be executed at all.
    pub(crate) fn land_nodes(&mut self, lane: LaneId, steps: impl Iterator<Item = u32> + Clone, worker: WorkerId) -> u32 {
        let count = steps.clone().count() as u32;
        let place = &mut self.lanes[lane.index()];
        let (domain, limit, before) = (place.domain, place.limit, place.pinned());
        place.flying -= count;
        let after = place.pinned();
        match &mut place.progress {
            Progress::Front(front) => {
                let done = front.done;
                for step in steps.filter(|step| *step < limit) {
                    assert!(front.done == step && step < front.queued, "steps of an in-order stage complete in order");
                    front.done = step + 1;
                }
                let live = front.done - done;
                if let Some(ready) = front.ready.filter(|_| before != after) {
                    self.count(lane, scope(domain, before, ready.only), -1);
                    self.count(lane, scope(domain, after, ready.only), 1);
                }
                live
            }
            Progress::Each(nodes) => {
                nodes.flying.end(worker, count);
                steps.filter(|step| nodes.complete(*step, limit)).count() as u32
            }
            Progress::Grouped(grouped) => {
                grouped.nodes.flying.end(worker, count);
                let live = steps.clone().filter(|step| grouped.nodes.complete(*step, limit)).count() as u32;
                self.unpin(lane, steps, worker);
                live
            }
        }
    }

    /// Nodes of subgraphs left their worker; whoever has none there any more is pinned to it no longer.
    fn unpin(&mut self, lane: LaneId, steps: impl Iterator<Item = u32>, worker: WorkerId) {
        for step in steps {
            let Progress::Grouped(grouped) = &mut self.lanes[lane.index()].progress else { return };
            let group = grouped.group(step);
            let subgraph = &mut grouped.split.subgraphs[group as usize];
            subgraph.flying -= 1;
            if subgraph.flying == 0 {
                self.repin(lane, group, Some(worker), None);
            }
        }
    }

    /// A subgraph is pinned elsewhere: its ready nodes are counted anew.
    fn repin(&mut self, lane: LaneId, group: u32, before: Option<WorkerId>, after: Option<WorkerId>) {
        for index in 0.. {
            let place = self.lane(lane);
            let Progress::Grouped(grouped) = &place.progress else { return };
            let Some((_, ready)) = grouped.split.subgraphs[group as usize].ready.get(index) else { return };
            let (before, after) = (scope(place.domain, before, ready.only), scope(place.domain, after, ready.only));
            if before != after {
                self.count(lane, before, -1);
                self.count(lane, after, 1);
            }
        }
    }
}
