//! The progress of each stage of each chain: which nodes are ready, queued or complete, and which
//! subgraphs they form.
//!
//! A stage that runs in order is two counters. A stage whose nodes run in any order has a record
//! per node. Lanes own this progress and nothing else. What a node waits for is read from the
//! graph. Policies decide where it runs.

mod nodes;
mod states;

use cellwright_cell_graph::unfolded::{Dependency, Grouping, UnfoldedChain};

use crate::core::group::Membership;
use crate::core::spares::Spares;
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, RequestId, Slot, Time, WorkerId};
pub(crate) use nodes::{Grouped, Nodes};
pub(crate) use states::{Moments, NodeState, States};

/// No slot: a stage that holds nothing.
pub(crate) const NO_SLOT: Slot = Slot(u32::MAX);

/// No lane: a stage whose chain gave its place back.
pub(crate) const NO_LANE: LaneId = LaneId(u32::MAX);

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// When.
    pub(crate) time: Time,
    /// The worker that has a producer of it in flight; only it may run the node now.
    pub(crate) only: Option<WorkerId>,
}

/// What is known of a stage's next step, or that it is a group's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NextStep {
    #[default]
    Nothing,
    /// It is ready.
    Ready,
    /// It is ready, for one worker.
    ReadyFor,
    /// It is a group's.
    Member,
}

/// A stage whose steps are executed in order and form one subgraph.
#[derive(Debug, Default)]
pub(crate) struct Front {
    /// When the subgraph entered its type's queue, if it `has_entered`.
    entered: Time,
    /// Since when step `queued` is ready, or the tick at which the lane joined its group.
    since: u64,
    /// The worker that step is ready for, or the steps that were launched with the group.
    worker_or_steps: u32,
    /// Steps submitted.
    pub(crate) queued: u32,
    /// Steps complete, never more than `queued`.
    pub(crate) done: u32,
    /// Where those between are.
    pub(crate) worker: WorkerId,
    /// Steps before this one have all outside inputs complete (under `Release::Subgraph`).
    pub(crate) handed: u32,
    next: NextStep,
    has_entered: bool,
    /// Whether it is in the queue's list of subgraphs with ready nodes.
    pub(crate) listed: bool,
}

impl Front {
    /// Step `queued`, if it is ready. What a member says of it is of before it joined: nothing.
    #[inline]
    pub(crate) fn ready(&self) -> Option<Ready> {
        match self.next {
            NextStep::Ready => Some(Ready { time: Time(self.since), only: None }),
            NextStep::ReadyFor => Some(Ready { time: Time(self.since), only: Some(WorkerId(self.worker_or_steps)) }),
            NextStep::Nothing | NextStep::Member => None,
        }
    }

    /// Step `queued` is ready; of a lane that is by itself.
    #[inline]
    pub(crate) fn set_ready(&mut self, ready: Ready) {
        debug_assert!(self.next != NextStep::Member, "a member's steps are its group's");
        (self.since, self.next) = (ready.time.0, if ready.only.is_some() { NextStep::ReadyFor } else { NextStep::Ready });
        self.worker_or_steps = ready.only.map_or(0, |only| only.0);
    }

    #[inline]
    pub(crate) fn take_ready(&mut self) -> Option<Ready> {
        let ready = self.ready();
        if ready.is_some() {
            self.next = NextStep::Nothing;
        }
        ready
    }

    /// Where it is in the time of its group, if it is in one.
    #[inline]
    pub(crate) fn member(&self) -> Option<Membership> {
        if self.next == NextStep::Member { Membership::of(self.since, self.worker_or_steps) } else { None }
    }

    #[inline]
    pub(crate) fn set_member(&mut self, member: Membership) {
        (self.since, self.worker_or_steps, self.next) = (member.joined, member.steps.get(), NextStep::Member);
    }

    #[inline]
    pub(crate) fn take_member(&mut self) -> Option<Membership> {
        let member = self.member();
        if member.is_some() {
            self.next = NextStep::Nothing;
        }
        member
    }

    /// When the subgraph entered its type's queue, if it has.
    #[inline]
    pub(crate) fn entered(&self) -> Option<Time> {
        self.has_entered.then_some(self.entered)
    }

    /// It enters the queue, if it has not; when it did.
    #[inline]
    pub(crate) fn enter(&mut self, now: Time) -> Time {
        if !std::mem::replace(&mut self.has_entered, true) {
            self.entered = now;
        }
        self.entered
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
    Grouped(Box<Grouped>),
}

impl Progress {
    /// The smallest record for a stage. `in_order`: the policy runs it step by step anyway.
    pub(crate) fn new(chain: &UnfoldedChain, stage: u32, in_order: bool, spares: &mut Spares) -> Self {
        let bound = chain.length.bound;
        let graph = &chain.stages[stage as usize];
        let linked = graph.depends.contains(&Dependency::Previous { stage });
        match &graph.grouping {
            _ if in_order || bound <= 1 => Self::Front(Front::default()),
            Grouping::Whole if linked => Self::Front(Front::default()),
            Grouping::Each => {
                let mut nodes = Nodes::default();
                nodes.begin(bound, &graph.named_producers, spares.words());
                Self::Each(nodes)
            }
            grouping => {
                let (mut grouped, words) = spares.grouped();
                grouped.begin(bound, grouping, &graph.named_producers, words);
                Self::Grouped(grouped)
            }
        }
    }

    /// Its nodes one by one, where it has them.
    pub(crate) const fn nodes(&self) -> Option<&Nodes> {
        match self {
            Self::Front(_) => None,
            Self::Each(nodes) => Some(nodes),
            Self::Grouped(grouped) => Some(&grouped.nodes),
        }
    }

    pub(crate) const fn nodes_mut(&mut self) -> Option<&mut Nodes> {
        match self {
            Self::Front(_) => None,
            Self::Each(nodes) => Some(nodes),
            Self::Grouped(grouped) => Some(&mut grouped.nodes),
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::Front(Front::default())
    }
}

/// How a lane goes with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    Never,
    /// It may join a group: it is plain, and its request does not grow.
    May,
    /// Never, and others wait until its nodes are complete, because a task with them may be paused (`slices`).
    Waits,
}

/// One stage of one chain of a placed request, in three halves of cache lines.
#[derive(Debug)]
#[repr(align(32))]
pub(crate) struct Lane {
    pub(crate) request: RequestId,
    pub(crate) model: ModelId,
    /// Its type's position among the model's distinct types.
    pub(crate) type_position: u16,
    pub(crate) stage: u16,
    pub(crate) cell_type: CellTypeId,
    pub(crate) domain: DomainId,
    /// The request's rank, and its place in order of admission.
    pub(crate) rank: u32,
    pub(crate) order: u64,
    pub(crate) chain: u32,
    pub(crate) slot: Slot,
    /// Steps that are executed, as far as is known.
    pub(crate) limit: u32,
    /// Rows of tasks in flight that name it, but for those that were launched with its group.
    pub(crate) flying: u32,
    /// Its nodes wait only for the step before, and no other lane waits for its steps: the common
    /// case.
    pub(crate) plain: bool,
    /// Several steps may be one launch.
    pub(crate) merges: bool,
    /// Its nodes wait only for nodes of their growth that they name, and all of those will run.
    pub(crate) named: bool,
    /// How it goes with others: one byte more would be a cache line more.
    pub(crate) joining: Joining,
    /// Its progress. In a group: where it is in the group's time, and its state before it joined.
    pub(crate) progress: Progress,
    /// The low bits of the turn in which it was handed out. If they wrap around to the same value,
    /// the lane is released one turn late.
    pub(crate) placed_in: u32,
}

impl Lane {
    /// A free lane.
    pub(crate) fn vacant() -> Self {
        Self {
            request: RequestId(0),
            model: ModelId(0),
            type_position: 0,
            cell_type: CellTypeId(0),
            domain: DomainId(0),
            rank: 0,
            order: 0,
            chain: 0,
            stage: 0,
            slot: NO_SLOT,
            limit: 0,
            flying: 0,
            plain: false,
            merges: false,
            named: false,
            joining: Joining::Never,
            progress: Progress::default(),
            placed_in: 0,
        }
    }

    pub(crate) const fn waits(&self) -> bool {
        matches!(self.joining, Joining::Waits)
    }

    /// It may join a group from now on, or not.
    pub(crate) const fn set_joins(&mut self, joins: bool) {
        if !self.waits() {
            self.joining = if joins { Joining::May } else { Joining::Never };
        }
    }

    /// Where it is in the time of its group, if it is in one.
    #[inline]
    pub(crate) fn member(&self) -> Option<Membership> {
        match &self.progress {
            Progress::Front(front) => front.member(),
            Progress::Each(_) | Progress::Grouped(_) => None,
        }
    }

    /// What is true of one of its nodes, for others.
    pub(crate) fn status(&self, step: u32) -> Status {
        if step >= self.limit {
            return Status::Never;
        }
        self.for_others(match &self.progress {
            Progress::Front(front) if step < front.done => Status::Done,
            Progress::Front(front) if step < front.queued => Status::Queued(front.worker),
            Progress::Front(_) => Status::Waiting,
            Progress::Each(nodes) => nodes.states.status(step),
            Progress::Grouped(grouped) => grouped.nodes.states.status(step),
        })
    }

    const fn for_others(&self, status: Status) -> Status {
        match status {
            Status::Queued(_) if self.waits() => Status::Waiting,
            status => status,
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
            Progress::Each(nodes) => nodes.states.live(self.limit),
            Progress::Grouped(grouped) => grouped.nodes.states.live(self.limit),
        }
    }

    /// The status of all its nodes, for lanes that wait for its end. `Waiting` if they differ.
    pub(crate) fn whole_status(&self) -> Status {
        self.for_others(match &self.progress {
            Progress::Front(front) if front.queued < self.limit => Status::Waiting,
            Progress::Front(front) if front.done < self.limit => Status::Queued(front.worker),
            Progress::Front(_) => Status::Done,
            Progress::Each(nodes) => nodes.whole_status(self.flying),
            Progress::Grouped(grouped) => grouped.nodes.whole_status(self.flying),
        })
    }
}
