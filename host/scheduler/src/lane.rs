//! How far each stage of each chain is: which of its nodes are ready, queued or complete, and which subgraphs they form.
//!
//! A stage whose nodes run one after the other is two counters; only a stage whose nodes may run in any order has a record for each. Lanes
//! own that progress and nothing else: what a node waits for is read from the graph, where it runs is the policies' business.

use std::collections::VecDeque;

use cellwright_cell_graph::unfolded::{Dependency, Grouping, UnfoldedChain};

use crate::group::Membership;
use crate::id::{CellTypeId, DomainId, ModelId, RequestId, Slot, Time, WorkerId};
use crate::readiness::Readers;

/// No slot: a stage that holds nothing.
pub(crate) const NO_SLOT: Slot = Slot(u32::MAX);

/// A stage of a request: true whatever lane it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageRef {
    pub(crate) chain: u32,
    pub(crate) stage: u32,
}

/// What is true of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not submitted.
    Waiting,
    /// Submitted to that worker.
    Queued(WorkerId),
    /// Complete.
    Done,
    /// It will never be executed: its chain ended before, or was cancelled.
    Never,
}

/// A node became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    /// When.
    pub(crate) time: Time,
    /// The worker that has a producer of it in flight; only it may run the node now.
    pub(crate) only: Option<WorkerId>,
}

/// A stage whose steps are executed in order and form one subgraph.
#[derive(Debug, Default)]
pub(crate) struct Front {
    /// Steps submitted.
    pub(crate) queued: u32,
    /// Steps complete, never more than `queued`.
    pub(crate) done: u32,
    /// Where those between are.
    pub(crate) worker: WorkerId,
    /// Step `queued`, if it is ready.
    pub(crate) ready: Option<Ready>,
    /// When the subgraph entered its type's queue.
    pub(crate) entered: Option<Time>,
    /// Whether it is in the queue's list of subgraphs with ready nodes.
    pub(crate) listed: bool,
    /// Steps before this one have all outside inputs complete (under `Release::Subgraph`).
    pub(crate) handed: u32,
}

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
    /// In flight, by worker; no zeros.
    pub(crate) flying: Vec<(WorkerId, u32)>,
}

impl Nodes {
    /// `named` is how many nodes each names, where any does.
    fn new(bound: u32, named: &[u32]) -> Self {
        let states = (0..bound as usize).map(|step| NodeState::Waiting { untold: named.get(step).copied().unwrap_or(0) }).collect();
        Self { states, unsubmitted: bound, flying: Vec::new() }
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

    pub(crate) fn queue(&mut self, step: u32, worker: WorkerId) {
        self.states[step as usize] = NodeState::Queued(worker);
        self.unsubmitted -= 1;
        match self.flying.iter_mut().find(|(other, _)| *other == worker) {
            Some((_, count)) => *count += 1,
            None => self.flying.push((worker, 1)),
        }
    }

    /// The node leaves its worker; whether it counts as executed is the caller's knowledge.
    pub(crate) fn land(&mut self, step: u32, worker: WorkerId) {
        if matches!(self.states[step as usize], NodeState::Queued(_)) {
            self.states[step as usize] = NodeState::Done;
        }
        if let Some(at) = self.flying.iter().position(|(other, _)| *other == worker) {
            self.flying[at].1 -= 1;
            if self.flying[at].1 == 0 {
                self.flying.swap_remove(at);
            }
        }
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
    /// Its nodes' range in [`Grouped::members`].
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
    /// A ready node was submitted or dropped. Mostly it is the first, which costs nothing.
    pub(crate) fn forget_ready(&mut self, step: u32, ready: Ready) {
        if let Ok(at) = self.ready.binary_search_by_key(&(ready.time, step), |(step, ready)| (ready.time, *step)) {
            self.ready.remove(at);
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
    pub(crate) subgraphs: Vec<Subgraph>,
    /// Steps, subgraph by subgraph, ascending in each.
    pub(crate) members: Vec<u32>,
    /// Each step's subgraph; empty if there is but one.
    pub(crate) group_of: Vec<u32>,
}

impl Grouped {
    fn new(bound: u32, grouping: &Grouping, named: &[u32]) -> Self {
        let group_of = match grouping {
            Grouping::Components(groups) => groups.clone(),
            Grouping::Whole | Grouping::Each => Vec::new(),
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
        Self { nodes: Nodes::new(bound, named), split: Box::new(Split { subgraphs, members, group_of }) }
    }

    pub(crate) fn group(&self, step: u32) -> u32 {
        self.split.group_of.get(step as usize).copied().unwrap_or(0)
    }
}

/// How far a stage is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// In order, one subgraph.
    Front(Front),
    /// Every node is a subgraph.
    Each(Nodes),
    /// Anything else.
    Grouped(Grouped),
}

impl Progress {
    /// The least that does for a stage; `in_order` where the policy executes it step by step whatever it is.
    pub(crate) fn new(chain: &UnfoldedChain, stage: u32, in_order: bool) -> Self {
        let bound = chain.length.bound;
        let graph = &chain.stages[stage as usize];
        let linked = graph.depends.contains(&Dependency::Previous { stage });
        match &graph.grouping {
            _ if in_order || bound <= 1 => Self::Front(Front::default()),
            Grouping::Whole if linked => Self::Front(Front::default()),
            Grouping::Each => Self::Each(Nodes::new(bound, &graph.named_producers)),
            grouping => Self::Grouped(Grouped::new(bound, grouping, &graph.named_producers)),
        }
    }
}

/// One stage of one chain of a placed request.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) request: RequestId,
    pub(crate) model: ModelId,
    /// Its type's position among the model's distinct types.
    pub(crate) type_position: u32,
    pub(crate) cell_type: CellTypeId,
    pub(crate) domain: DomainId,
    /// The request's rank, and its place in order of admission.
    pub(crate) rank: u32,
    pub(crate) order: u64,
    /// Its growth, from the request's first.
    pub(crate) growth: u32,
    pub(crate) chain: u32,
    pub(crate) stage: u32,
    pub(crate) slot: Slot,
    pub(crate) slots: u32,
    /// Steps that are executed, as far as is known.
    pub(crate) limit: u32,
    /// Rows of tasks in flight that name it, but for those that were launched with its group.
    pub(crate) flying: u32,
    /// Nodes wait for the step before alone, and nobody waits for them by step: the steady path.
    pub(crate) plain: bool,
    /// Several steps may be one launch.
    pub(crate) merges: bool,
    /// Its nodes wait for nodes of its growth that they name, for nothing else, and all of those will be executed.
    pub(crate) named: bool,
    /// It may join a group: it is plain, and its request does not grow.
    pub(crate) joins: bool,
    /// Where it is in the time of its group. While it has one, what it says of its progress is of before it joined.
    pub(crate) member: Option<Membership>,
    pub(crate) progress: Progress,
    /// Who waits for its steps one by one.
    pub(crate) readers: Option<Box<Readers>>,
    /// The `handle` in which it was handed out.
    pub(crate) placed_in: u64,
}

impl Lane {
    /// A lane that nobody holds.
    pub(crate) fn vacant() -> Self {
        Self {
            request: RequestId(0),
            model: ModelId(0),
            type_position: 0,
            cell_type: CellTypeId(0),
            domain: DomainId(0),
            rank: 0,
            order: 0,
            growth: 0,
            chain: 0,
            stage: 0,
            slot: NO_SLOT,
            slots: 0,
            limit: 0,
            flying: 0,
            plain: false,
            merges: false,
            named: false,
            joins: false,
            member: None,
            progress: Progress::Front(Front::default()),
            readers: None,
            placed_in: 0,
        }
    }

    /// What is true of one of its nodes.
    pub(crate) fn status(&self, step: u32) -> Status {
        if step >= self.limit {
            return Status::Never;
        }
        match &self.progress {
            Progress::Front(front) if step < front.done => Status::Done,
            Progress::Front(front) if step < front.queued => Status::Queued(front.worker),
            Progress::Front(_) => Status::Waiting,
            Progress::Each(nodes) | Progress::Grouped(Grouped { nodes, .. }) => match nodes.states[step as usize] {
                NodeState::Waiting { .. } | NodeState::Ready(_) => Status::Waiting,
                NodeState::Queued(worker) => Status::Queued(worker),
                NodeState::Done => Status::Done,
                NodeState::Dropped => Status::Never,
            },
        }
    }

    /// Its nodes one by one, where it has them.
    pub(crate) const fn nodes_mut(&mut self) -> Option<&mut Nodes> {
        match &mut self.progress {
            Progress::Each(nodes) | Progress::Grouped(Grouped { nodes, .. }) => Some(nodes),
            Progress::Front(_) => None,
        }
    }

    /// Whether both steps belong to one subgraph.
    pub(crate) fn together(&self, one: u32, other: u32) -> bool {
        match &self.progress {
            Progress::Front(_) => true,
            Progress::Each(_) => one == other,
            Progress::Grouped(grouped) => grouped.group(one) == grouped.group(other),
        }
    }

    /// Nodes still to be executed, as far as is known.
    pub(crate) fn remaining(&self) -> u32 {
        match &self.progress {
            Progress::Front(front) => self.limit.saturating_sub(front.done),
            Progress::Each(nodes) | Progress::Grouped(Grouped { nodes, .. }) => {
                let live = |state: &&NodeState| !matches!(state, NodeState::Done | NodeState::Dropped);
                u32::try_from(nodes.states.iter().take(self.limit as usize).filter(live).count()).unwrap_or(u32::MAX)
            }
        }
    }

    /// The one status that all its nodes have, for who waits for the end; `Waiting` if they differ.
    pub(crate) fn whole_status(&self) -> Status {
        match &self.progress {
            Progress::Front(front) if front.queued < self.limit => Status::Waiting,
            Progress::Front(front) if front.done < self.limit => Status::Queued(front.worker),
            Progress::Front(_) => Status::Done,
            Progress::Each(nodes) | Progress::Grouped(Grouped { nodes, .. }) => match nodes.flying.as_slice() {
                _ if nodes.unsubmitted > 0 => Status::Waiting,
                [] => Status::Done,
                [(worker, _)] => Status::Queued(*worker),
                _ => Status::Waiting,
            },
        }
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
