//! Nodes of a stage whose steps may be executed in any order, one by one, and the subgraphs they form.

use std::collections::VecDeque;

use cellwright_cell_graph::unfolded::Grouping;

use crate::command::Row;
use crate::few::Few;
use crate::id::{LaneId, Time, WorkerId};
use crate::lane::{Ready, Status};

/// A node of a stage whose steps may be executed in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// Of the nodes that it names so many have not said that they were submitted; 0 if that is not counted (any more). Before all have, it need not
    /// be looked at.
    Waiting {
        untold: u32,
    },
    Ready(Ready),
    Queued(WorkerId),
    Done,
    Dropped,
}

/// How many nodes of a stage are where.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) states: Vec<NodeState>,
    /// Not submitted and not dropped.
    pub(crate) unsubmitted: u32,
    pub(crate) flying: Flights,
}

/// Nodes in flight, by worker. Mostly all are with one.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    one: (WorkerId, u32),
    /// With others, while there are any with that one; no zeros.
    others: Box<[(WorkerId, u32)]>,
}

impl Flights {
    fn begin(&mut self, worker: WorkerId, count: u32) {
        if self.one.1 == 0 {
            self.one.0 = worker;
        }
        match std::iter::once(&mut self.one).chain(&mut self.others).find(|(other, _)| *other == worker) {
            Some((_, flying)) => *flying += count,
            None => {
                let mut others = std::mem::take(&mut self.others).into_vec();
                others.push((worker, count));
                self.others = others.into();
            }
        }
    }

    pub(crate) fn end(&mut self, worker: WorkerId, count: u32) {
        if self.one.0 == worker {
            self.one.1 -= count;
        } else if let Some((_, flying)) = self.others.iter_mut().find(|(other, _)| *other == worker) {
            *flying -= count;
        }
        if !self.others.is_empty() {
            let left = std::iter::once(self.one).chain(self.others.iter().copied()).filter(|(_, flying)| *flying > 0);
            let mut left: Vec<_> = left.collect();
            self.one = left.pop().unwrap_or_default();
            self.others = left.into();
        }
    }

    /// All are complete, or queued on one worker; otherwise they wait for one another.
    pub(super) fn status(&self) -> Status {
        match (self.one, &*self.others) {
            ((_, 0), _) => Status::Done,
            ((worker, _), []) => Status::Queued(worker),
            _ => Status::Waiting,
        }
    }
}

impl Nodes {
    /// `named` is how many nodes each names, where any does.
    pub(super) fn new(bound: u32, named: &[u32]) -> Self {
        let mut states = vec![NodeState::Waiting { untold: 0 }; bound as usize];
        for (state, untold) in states.iter_mut().zip(named) {
            *state = NodeState::Waiting { untold: *untold };
        }
        Self { states, unsubmitted: bound, flying: Flights::default() }
    }

    /// A node that it names was submitted: how many have not said so yet, if that is counted.
    pub(crate) fn hear(&mut self, step: u32) -> Option<u32> {
        match &mut self.states[step as usize] {
            NodeState::Waiting { untold } if *untold > 0 => {
                *untold -= 1;
                Some(*untold)
            }
            _ => None,
        }
    }

    /// A node that it names may never be submitted.
    pub(crate) fn lose_count(&mut self, step: u32) {
        if let NodeState::Waiting { untold } = &mut self.states[step as usize] {
            *untold = 0;
        }
    }

    /// The first of these ready nodes go to a worker, where [`Nodes::fly`] counts them: those that the same workers may run. Which those were, and how
    /// many nodes have gone.
    pub(crate) fn queue(&mut self, nodes: &[Row], worker: WorkerId) -> (Option<WorkerId>, usize) {
        let mut first = None;
        for (gone, node) in nodes.iter().enumerate() {
            let state = &mut self.states[node.step as usize];
            let NodeState::Ready(ready) = *state else { panic!("a node that is not ready was picked") };
            if *first.get_or_insert(ready.only) != ready.only {
                return (first.flatten(), gone);
            }
            *state = NodeState::Queued(worker);
        }
        (first.flatten(), nodes.len())
    }

    /// So many nodes have gone to a worker.
    pub(crate) fn fly(&mut self, worker: WorkerId, count: u32) {
        self.unsubmitted -= count;
        self.flying.begin(worker, count);
    }

    /// The node has left its worker; whether it was to be executed, by a lane that executes so many steps.
    pub(crate) fn complete(&mut self, step: u32, limit: u32) -> bool {
        let state = &mut self.states[step as usize];
        let queued = matches!(state, NodeState::Queued(_));
        if queued {
            *state = NodeState::Done;
        }
        queued && step < limit
    }

    pub(crate) fn any_done(&self) -> bool {
        self.states.contains(&NodeState::Done)
    }

    pub(crate) fn drop(&mut self, step: u32) {
        let state = &mut self.states[step as usize];
        if matches!(state, NodeState::Waiting { .. } | NodeState::Ready(_)) {
            self.unsubmitted -= 1;
        }
        *state = NodeState::Dropped;
    }
}

/// A subgraph of several nodes whose order is not fixed.
#[derive(Debug, Default)]
pub(crate) struct Subgraph {
    /// Its smallest step.
    pub(crate) first: u32,
    /// Its nodes, by their places in [`Split`]'s order.
    pub(crate) members: (u32, u32),
    /// Its nodes in flight; it is pinned to `worker` while there are any.
    pub(crate) flying: u32,
    pub(crate) worker: WorkerId,
    pub(crate) entered: Option<Time>,
    pub(crate) listed: bool,
    /// Its ready nodes `(step, …)`, by time of readiness, then step.
    pub(crate) ready: VecDeque<(u32, Ready)>,
    /// Members before this one have all outside inputs complete (under `Release::Subgraph`).
    pub(crate) handed: u32,
}

impl Subgraph {
    /// A node became ready, or is for others than it was.
    pub(crate) fn note_ready(&mut self, step: u32, ready: Ready) {
        match self.ready.binary_search_by_key(&(ready.time, step), |(step, ready)| (ready.time, *step)) {
            Ok(at) => self.ready[at].1 = ready,
            Err(at) => self.ready.insert(at, (step, ready)),
        }
    }

    /// Nodes became ready, in the order of their steps.
    pub(crate) fn note_all_ready(&mut self, nodes: &[(LaneId, u32)], ready: Ready) {
        let last = self.ready.back().map(|(step, ready)| (ready.time, *step));
        if nodes.first().is_some_and(|(_, step)| last < Some((ready.time, *step))) {
            self.ready.extend(nodes.iter().map(|(_, step)| (*step, ready)));
        } else {
            nodes.iter().for_each(|(_, step)| self.note_ready(*step, ready));
        }
    }

    /// A ready node was dropped.
    pub(crate) fn forget_ready(&mut self, step: u32, ready: Ready) {
        if let Ok(at) = self.ready.binary_search_by_key(&(ready.time, step), |(step, ready)| (ready.time, *step)) {
            self.ready.remove(at);
        }
    }

    /// Ready nodes are about to be submitted. Mostly they are the first.
    pub(crate) fn forget_all_ready(&mut self, nodes: &[Row], states: &[NodeState]) {
        let last = nodes.len().checked_sub(1).and_then(|last| self.ready.get(last));
        if last.map(|(step, _)| *step) == nodes.last().map(|node| node.step) {
            self.ready.drain(..nodes.len());
            return;
        }
        for node in nodes {
            if let NodeState::Ready(ready) = states[node.step as usize] {
                self.forget_ready(node.step, ready);
            }
        }
    }

    pub(crate) const fn pinned(&self) -> Option<WorkerId> {
        if self.flying > 0 { Some(self.worker) } else { None }
    }
}

/// A stage whose steps form subgraphs of several nodes each, or one whose inner order is not that of the steps.
#[derive(Debug, Default)]
pub(crate) struct Grouped {
    pub(crate) nodes: Nodes,
    pub(crate) split: Box<Split>,
}

/// How a stage's steps form subgraphs.
#[derive(Debug, Default)]
pub(crate) struct Split {
    pub(crate) subgraphs: Few<Subgraph>,
    /// Steps, subgraph by subgraph, ascending in each; empty if there is but one.
    members: Vec<u32>,
    /// Each step's subgraph; empty if there is but one.
    pub(crate) group_of: Vec<u32>,
}

impl Grouped {
    pub(super) fn new(bound: u32, grouping: &Grouping, named: &[u32]) -> Self {
        let nodes = Nodes::new(bound, named);
        let group_of = match grouping {
            Grouping::Components(groups) => groups.clone(),
            Grouping::Whole | Grouping::Each => {
                let mut split = Split::default();
                split.subgraphs.push_back(Subgraph { members: (0, bound), ..Subgraph::default() });
                return Self { nodes, split: Box::new(split) };
            }
        };
        let count = group_of.iter().max().map_or(1, |last| last + 1);
        let mut subgraphs: Vec<Subgraph> = (0..count).map(|_| Subgraph { first: u32::MAX, ..Subgraph::default() }).collect();
        let group = |step: u32| group_of.get(step as usize).map_or(0, |group| *group as usize);
        for step in 0..bound {
            let subgraph = &mut subgraphs[group(step)];
            subgraph.first = subgraph.first.min(step);
            subgraph.members.1 += 1;
        }
        let mut end = 0;
        for subgraph in &mut subgraphs {
            let count = subgraph.members.1;
            subgraph.members = (end, end);
            end += count;
        }
        let mut members = vec![0; bound as usize];
        for step in 0..bound {
            let next = &mut subgraphs[group(step)].members.1;
            members[*next as usize] = step;
            *next += 1;
        }
        for subgraph in &mut subgraphs {
            subgraph.handed = subgraph.members.0;
        }
        let mut split = Split { members, group_of, ..Split::default() };
        subgraphs.into_iter().for_each(|subgraph| split.subgraphs.push_back(subgraph));
        Self { nodes, split: Box::new(split) }
    }

    /// The step of a member, by its place.
    pub(crate) fn member(&self, place: u32) -> u32 {
        self.split.members.get(place as usize).copied().unwrap_or(place)
    }

    pub(crate) fn group(&self, step: u32) -> u32 {
        self.split.group_of.get(step as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_components_are_listed_in_order() {
        let grouped = Grouped::new(6, &Grouping::Components(vec![0, 1, 0, 2, 1, 0]), &[]);
        let steps: Vec<_> =
            grouped.split.subgraphs.iter().map(|s| &grouped.split.members[s.members.0 as usize..s.members.1 as usize]).collect();
        assert_eq!(steps, [&[0, 2, 5][..], &[1, 4], &[3]]);
        assert_eq!(grouped.split.subgraphs.iter().map(|s| s.first).collect::<Vec<_>>(), [0, 1, 3]);
    }
}
