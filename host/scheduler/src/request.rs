//! What is known of each request: its growths, its chains, where it is placed and how much of it is left.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::UnfoldedChain;

use crate::few::Few;
use crate::id::{DomainId, LaneId, ModelId, NumericClass, TenantId, Time, WorkerId};
use crate::lane::{StageRef, Status};
use crate::policy::shelf::BatchId;
use crate::readiness::Readers;
use crate::reservation::Reservation;

/// Where a request is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The id is not in use.
    #[default]
    Vacant,
    /// Admitted, no place yet.
    Waiting,
    /// Its lanes exist.
    Placed,
    /// Finished or failed; tasks in flight still name it.
    Leaving,
}

/// Slots of a domain's arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) start: u32,
    pub(crate) slots: u32,
    /// Which life of the domain they belong to.
    pub(crate) life: u32,
}

/// A growth that has lanes.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) graph: Arc<UnfoldedGrowth>,
    /// Chains of it whose lanes exist.
    pub(crate) chains_held: u32,
}

/// A chain of a placed growth.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Its first stage's lane.
    pub(crate) first_lane: LaneId,
    /// The other stages', if there are any.
    #[expect(clippy::box_collection, reason = "most have none")]
    pub(crate) other_lanes: Option<Box<Vec<LaneId>>>,
    pub(crate) bound: u32,
    /// Steps that are executed, as far as is known.
    pub(crate) end: u32,
    /// A stop of its own or of the chain it follows may end it early.
    pub(crate) stops: bool,
    /// Its own stop's stage.
    pub(crate) stop_stage: Option<u32>,
    /// The chain with a stop that it follows, directly or along others.
    pub(crate) root: Option<u32>,
    pub(crate) cancelled: bool,
    /// Nodes still to be executed, as far as is known.
    pub(crate) remaining: u64,
    pub(crate) ended: bool,
    /// Its lanes are released.
    pub(crate) gone: bool,
    /// Later growths may refer to it.
    pub(crate) kept: bool,
    /// What has to do with other chains, if anything does.
    pub(crate) links: Option<Box<Links>>,
    /// Growth it belongs to, from the request's first.
    pub(crate) growth: u32,
}

/// What a chain has to do with others.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) followers: Followers,
    /// Who waits for steps of its stages one by one, by stage.
    #[expect(clippy::box_collection, reason = "most have none")]
    readers: Option<Box<Vec<(u32, Readers)>>>,
    /// What is noted where chains are freed one by one.
    pub(crate) reading: Option<Box<Reading>>,
    /// Who waits for its end.
    pub(crate) end_waiters: Few<StageRef>,
    /// What they were told.
    pub(crate) end_seen: Option<WorkerId>,
}

/// Who reads whom, of the chains of a request that grows.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Chains it reads.
    pub(crate) reads: Vec<u32>,
    /// Chains that read it and have not ended.
    pub(crate) readers: u32,
}

/// Chains that follow another. Few do.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "most have none")]
pub(crate) struct Followers(Option<Box<Vec<u32>>>);

impl Followers {
    pub(crate) fn push(&mut self, chain: u32) {
        self.0.get_or_insert_default().push(chain);
    }

    fn all(&self) -> &[u32] {
        self.0.as_ref().map_or(&[], |chains| chains)
    }
}

impl Links {
    /// The readers of a stage, of which there are some from now on.
    pub(crate) fn readers_of(&mut self, stage: u32) -> &mut Readers {
        let all = self.readers.get_or_insert_default();
        let at = all.iter().position(|(other, _)| *other == stage).unwrap_or(all.len());
        if at == all.len() {
            all.push((stage, Readers::default()));
        }
        &mut all[at].1
    }

    /// Forgets everything, keeps what memory is small.
    pub(crate) fn clear(&mut self) {
        *self = Self { end_waiters: std::mem::take(&mut self.end_waiters), ..Self::default() };
        self.end_waiters.clear();
    }
}

impl Chain {
    /// A chain of a growth that is just placed: its first stage's lane, and the others'.
    pub(crate) fn new(graph: &UnfoldedChain, growth: u32, (first_lane, other_lanes): (LaneId, Vec<LaneId>)) -> Self {
        let bound = graph.length.bound;
        Self {
            first_lane,
            other_lanes: Some(other_lanes).filter(|lanes| !lanes.is_empty()).map(Box::new),
            bound,
            end: bound,
            stops: graph.stop.is_some(),
            stop_stage: graph.stop.map(|(stage, _)| stage),
            root: None,
            cancelled: false,
            remaining: u64::from(bound) * graph.stages.len() as u64,
            ended: false,
            gone: false,
            kept: false,
            links: None,
            growth,
        }
    }

    /// Who waits for a stage's steps one by one, if anybody does.
    pub(crate) fn readers(&self, stage: u32) -> Option<&Readers> {
        let all = self.links.as_ref()?.readers.as_ref()?;
        all.iter().find(|(other, _)| *other == stage).map(|(_, readers)| readers)
    }

    pub(crate) fn readers_mut(&mut self, stage: u32) -> Option<&mut Readers> {
        let all = self.links.as_mut()?.readers.as_mut()?;
        all.iter_mut().find(|(other, _)| *other == stage).map(|(_, readers)| readers)
    }

    pub(crate) fn followers(&self) -> &[u32] {
        self.links.as_ref().map_or(&[], |links| links.followers.all())
    }

    /// Who waits for its end, by number.
    pub(crate) fn end_waiter(&self, index: usize) -> Option<StageRef> {
        self.links.as_ref()?.end_waiters.get(index).copied()
    }

    pub(crate) fn is_read(&self) -> bool {
        self.links.as_ref().and_then(|links| links.reading.as_ref()).is_some_and(|reading| reading.readers > 0)
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.end_waiter(0).is_some()
    }

    pub(crate) fn stages(&self) -> u32 {
        1 + self.other_lanes.as_ref().map_or(0, |lanes| lanes.len() as u32)
    }

    pub(crate) fn lane(&self, stage: u32) -> LaneId {
        match &self.other_lanes {
            Some(others) if stage > 0 => others[stage as usize - 1],
            _ => self.first_lane,
        }
    }
}

/// A request in flight, in four cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Request {
    pub(crate) phase: Phase,
    pub(crate) model: ModelId,
    pub(crate) tenant: TenantId,
    pub(crate) class: NumericClass,
    /// 0 goes first.
    pub(crate) rank: u32,
    /// Its place in order of admission.
    pub(crate) order: u64,
    /// When it came.
    pub(crate) submitted: Time,
    /// When its answer is worth nothing any more.
    pub(crate) deadline: Option<Time>,
    /// When it has to be looked at because of that.
    pub(crate) latest: Time,
    pub(crate) domain: DomainId,
    pub(crate) block: Option<Block>,
    /// How its block is handed out, if it may grow.
    pub(crate) reservation: Option<Box<Reservation>>,
    pub(crate) scrub: bool,
    pub(crate) may_grow: bool,
    /// It may still be told to grow.
    pub(crate) open: bool,
    pub(crate) growths: Few<Growth>,
    /// Growths that are gone already.
    pub(crate) growths_before: u32,
    pub(crate) chains: Few<Chain>,
    /// Chains that are gone already, and no longer in `chains`.
    pub(crate) chains_before: u32,
    /// Growths that wait for a place, a move or a batch.
    pub(crate) pending: Few<Arc<UnfoldedGrowth>>,
    /// Chains that have not ended.
    pub(crate) live_chains: u32,
    /// Rows of tasks in flight that name it.
    pub(crate) flying: u32,
    /// Lanes and slots it leaves behind when its move is complete.
    pub(crate) moving: Option<Box<Moving>>,
    /// The growth that waits in a bucket.
    pub(crate) bucket: Option<u32>,
    /// The batch of requests that it is part of.
    pub(crate) batch: Option<BatchId>,
}

/// What a moving request leaves behind.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) from: DomainId,
    pub(crate) block: Option<Block>,
    pub(crate) lanes: Vec<LaneId>,
}

impl Request {
    /// Its state of a chain, by number; none once it is gone for good (or never was).
    pub(crate) fn chain(&self, chain: u32) -> Option<&Chain> {
        self.chains.get(chain.checked_sub(self.chains_before)? as usize)
    }

    pub(crate) fn chain_mut(&mut self, chain: u32) -> Option<&mut Chain> {
        self.chains.get_mut(chain.checked_sub(self.chains_before)? as usize)
    }

    pub(crate) fn growth(&self, growth: u32) -> Option<&Growth> {
        self.growths.get(growth.checked_sub(self.growths_before)? as usize)
    }

    /// The growth of a chain.
    pub(crate) fn growth_of(&self, chain: u32) -> Option<&Growth> {
        self.growth(self.chain(chain)?.growth)
    }

    /// Forgets everything, keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.phase = Phase::Vacant;
        self.block = None;
        self.reservation = None;
        self.scrub = false;
        self.open = false;
        self.growths.clear();
        self.growths_before = 0;
        self.chains.clear();
        self.chains_before = 0;
        self.pending.clear();
        self.live_chains = 0;
        self.flying = 0;
        self.moving = None;
        self.bucket = None;
        self.batch = None;
    }
}

/// What one status and another make together, for a node that needs both.
pub(crate) const fn both(one: Status, other: Status) -> Status {
    match (one, other) {
        (Status::Done, status) | (status, Status::Done) => status,
        (Status::Queued(one), Status::Queued(other)) if one.0 == other.0 => Status::Queued(one),
        _ => Status::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Lane;
    use crate::queues::{Item, Key};

    /// What is not common is kept apart, so that many may wait.
    #[test]
    fn a_request_of_one_chain_takes_440_bytes_at_most() {
        let held = size_of::<Request>() + size_of::<Lane>();
        assert_eq!((size_of::<Request>(), size_of::<Lane>()), (256, 96));
        assert!(held + size_of::<(Key, Item)>() <= 440, "{held} and its place in a queue");
    }
}
