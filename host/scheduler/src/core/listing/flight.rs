//! Queues nodes on a worker and lands them, several of a lane at a time: nodes that were listed
//! together mostly run together.

use crate::command::Row;
use crate::core::Core;
use crate::core::lane::{NodeState, Progress};
use crate::core::listing::scope;
use crate::id::{LaneId, WorkerId};

impl Core {
    /// Hands ready nodes of one run or one subgraph to a worker. They stay listed until `tidy`.
    pub(crate) fn queue_nodes(&mut self, lane: LaneId, nodes: &[Row], worker: WorkerId) {
        let count = nodes.len() as u32;
        let place = &mut self.lanes[lane.index()];
        let (request, model, domain, pinned) = (place.request, place.model, place.domain, place.pinned());
        let before = place.flying;
        place.flying += count;
        match &mut place.progress {
            Progress::Front(front) => {
                assert!(matches!(nodes, [node] if node.step == front.queued), "steps of an in-order stage are queued in order");
                (front.queued, front.worker) = (front.queued + 1, worker);
                if let Some(ready) = front.take_ready() {
                    self.count(lane, scope(domain, pinned, ready.only), -1);
                }
            }
            Progress::Each(all) => {
                all.fly(worker, count, before);
                let (only, gone) = all.states.queue(nodes, worker, &mut self.moments);
                self.count(lane, scope(domain, None, only), -(gone as i32));
                self.queue_others(lane, &nodes[gone..], None, worker);
            }
            Progress::Grouped(grouped) => {
                let group = nodes.first().map_or(0, |node| grouped.group(node.step));
                grouped.unlist_all_ready(group, nodes, &self.moments);
                let left = !grouped.ready(group).is_empty();
                let subgraph = &mut grouped.subgraphs[group as usize];
                let pinned = subgraph.pinned();
                subgraph.flying += count;
                subgraph.worker = worker;
                grouped.nodes.fly(worker, count, before);
                let (only, gone) = grouped.nodes.states.queue(nodes, worker, &mut self.moments);
                self.count(lane, scope(domain, pinned, only), -(gone as i32));
                self.queue_others(lane, &nodes[gone..], pinned, worker);
                if left && pinned != Some(worker) {
                    self.repin(lane, group, pinned, Some(worker));
                }
            }
        }
        self.request_mut(request).flying += count;
        self.model_mut(model).flying += count;
    }

    /// The same for nodes that became ready for other workers than the first ones. `pinned` is the
    /// worker of their subgraph.
    fn queue_others(&mut self, lane: LaneId, mut nodes: &[Row], pinned: Option<WorkerId>, worker: WorkerId) {
        let domain = self.lane(lane).domain;
        while !nodes.is_empty() {
            let Some(all) = self.lanes[lane.index()].progress.nodes_mut() else { return };
            let (only, gone) = all.states.queue(nodes, worker, &mut self.moments);
            self.count(lane, scope(domain, pinned, only), -(gone as i32));
            nodes = &nodes[gone..];
        }
    }

    /// Takes nodes off their worker. Returns how many of them count.
    pub(crate) fn land_nodes(&mut self, lane: LaneId, steps: impl ExactSizeIterator<Item = u32> + Clone, worker: WorkerId) -> u32 {
        let count = steps.len() as u32;
        let place = &mut self.lanes[lane.index()];
        let (domain, limit, before) = (place.domain, place.limit, place.pinned());
        place.flying -= count;
        let (after, left) = (place.pinned(), place.flying);
        match &mut place.progress {
            Progress::Front(front) => {
                let done = front.done;
                for step in steps.filter(|step| *step < limit) {
                    assert!(front.done == step && step < front.queued, "steps of an in-order stage complete in order");
                    front.done = step + 1;
                }
                let live = front.done - done;
                if let Some(ready) = front.ready().filter(|_| before != after) {
                    self.count(lane, scope(domain, before, ready.only), -1);
                    self.count(lane, scope(domain, after, ready.only), 1);
                }
                live
            }
            Progress::Each(nodes) => {
                nodes.land(worker, count, left);
                steps.filter(|step| nodes.complete(*step, limit)).count() as u32
            }
            Progress::Grouped(grouped) => {
                grouped.nodes.land(worker, count, left);
                let live = steps.clone().filter(|step| grouped.nodes.complete(*step, limit)).count() as u32;
                if grouped.subgraphs.len() == 1 {
                    self.unpin_group(lane, 0, count, worker);
                } else {
                    self.unpin(lane, steps, worker);
                }
                live
            }
        }
    }

    /// Nodes left their worker. A subgraph without any node there is no longer pinned.
    fn unpin(&mut self, lane: LaneId, steps: impl Iterator<Item = u32>, worker: WorkerId) {
        for step in steps {
            let Progress::Grouped(grouped) = &mut self.lanes[lane.index()].progress else { return };
            let group = grouped.group(step);
            self.unpin_group(lane, group, 1, worker);
        }
    }

    fn unpin_group(&mut self, lane: LaneId, group: u32, count: u32, worker: WorkerId) {
        let Progress::Grouped(grouped) = &mut self.lanes[lane.index()].progress else { return };
        let subgraph = &mut grouped.subgraphs[group as usize];
        subgraph.flying -= count;
        if subgraph.flying == 0 {
            self.repin(lane, group, Some(worker), None);
        }
    }

    /// A subgraph is pinned elsewhere: its ready nodes are counted anew.
    fn repin(&mut self, lane: LaneId, group: u32, before: Option<WorkerId>, after: Option<WorkerId>) {
        for index in 0.. {
            let place = self.lane(lane);
            let Progress::Grouped(grouped) = &place.progress else { return };
            let Some(step) = grouped.ready(group).get(index) else { return };
            let NodeState::Ready(ready) = grouped.nodes.states.at(*step, &self.moments) else { continue };
            let (before, after) = (scope(place.domain, before, ready.only), scope(place.domain, after, ready.only));
            if before != after {
                self.count(lane, before, -1);
                self.count(lane, after, 1);
            }
        }
    }
}
