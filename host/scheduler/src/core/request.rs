//! The state of each request: its growths, its chains, where it is placed, and what is left of it.

mod chain;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::UnfoldedChain;

use crate::core::lane::Status;
use crate::core::reservation::Reservation;
use crate::core::reserve;
use crate::core::spares::Spares;
use crate::id::{DomainId, LaneId, ModelId, Time, WorkerId};
pub(crate) use chain::{Chain, Links};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) start: u32,
    pub(crate) slots: NonZeroU32,
    /// Which life of the domain they belong to.
    pub(crate) life: u32,
}

/// Chains that are kept in a request itself.
const CHAINS_HERE: usize = 2;

/// A request in flight, in two cache lines. Rare parts are stored apart, so that many requests may
/// wait.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Request {
    pub(crate) phase: Phase,
    pub(crate) scrub: bool,
    pub(crate) may_grow: bool,
    /// It may still be told to grow.
    pub(crate) open: bool,
    pub(crate) model: ModelId,
    pub(crate) domain: DomainId,
    /// 0 goes first.
    pub(crate) rank: u32,
    /// Its place in order of admission.
    pub(crate) order: u64,
    /// Chains that have not ended.
    pub(crate) live_chains: u32,
    /// Rows of tasks in flight that name it.
    pub(crate) flying: u32,
    pub(crate) block: Option<Block>,
    growth: Option<Arc<UnfoldedGrowth>>,
    chains: [Option<Chain>; CHAINS_HERE],
    rare: Option<Box<Rare>>,
}

/// What few requests have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// When it came, where a policy asks.
    pub(crate) submitted: Time,
    /// When its answer is worth nothing any more.
    pub(crate) deadline: Option<Time>,
    /// When its policy is to review it. 0: not at all.
    pub(crate) review: Time,
    /// How its block is handed out, if it may grow.
    pub(crate) reservation: Option<Box<Reservation>>,
    /// Growths but for the first.
    growths: VecDeque<Arc<UnfoldedGrowth>>,
    /// Growths that are gone already.
    growths_before: u32,
    /// Chains but for those in the request.
    chains: VecDeque<Chain>,
    /// Chains that are gone already, and counted no longer.
    chains_before: u32,
    /// Growths that wait for a place, a move or a batch, or for room.
    pub(crate) pending: VecDeque<Arc<UnfoldedGrowth>>,
    /// Lanes and slots it leaves behind when its move is complete.
    pub(crate) moving: Option<Box<Moving>>,
    /// The growth that is offered to its policy.
    pub(crate) offered: Option<u32>,
    /// The worker that its policy has taken it for.
    pub(crate) taken: Option<WorkerId>,
}

impl Rare {
    /// Forgets everything, keeps what memory is small.
    pub(crate) fn clear(&mut self) {
        const KEPT: usize = 16;
        let Self { mut growths, mut chains, mut pending, .. } = std::mem::take(self);
        growths.clear();
        chains.clear();
        pending.clear();
        growths.shrink_to(KEPT);
        chains.shrink_to(KEPT);
        pending.shrink_to(KEPT);
        (self.growths, self.chains, self.pending) = (growths, chains, pending);
    }
}

/// What a moving request leaves behind.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) from: DomainId,
    pub(crate) block: Option<Block>,
    pub(crate) lanes: Vec<LaneId>,
}

/// Its chains and growths.
impl Request {
    /// Its state of a chain, by number; none once it is gone for good (or never was).
    #[inline]
    pub(crate) fn chain(&self, chain: u32) -> Option<&Chain> {
        match (chain.checked_sub(self.chains_before())? as usize, &self.rare) {
            (index @ ..CHAINS_HERE, _) => self.chains[index].as_ref(),
            (index, Some(rare)) => rare.chains.get(index - CHAINS_HERE),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn chain_mut(&mut self, chain: u32) -> Option<&mut Chain> {
        match (chain.checked_sub(self.chains_before())? as usize, &mut self.rare) {
            (index @ ..CHAINS_HERE, _) => self.chains[index].as_mut(),
            (index, Some(rare)) => rare.chains.get_mut(index - CHAINS_HERE),
            _ => None,
        }
    }

    /// Chains that are gone already, and counted no longer.
    #[inline]
    fn chains_before(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.chains_before)
    }

    /// Numbers of the chains that there are.
    pub(crate) fn chain_numbers(&self) -> Range<u32> {
        let (first, elsewhere) = self.rare.as_ref().map_or((0, 0), |rare| (rare.chains_before, rare.chains.len()));
        first..first + (self.chains.iter().flatten().count() + elsewhere) as u32
    }

    pub(crate) fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().flatten().chain(self.rare.iter().flat_map(|rare| &rare.chains))
    }

    pub(crate) fn chains_mut(&mut self) -> impl Iterator<Item = &mut Chain> {
        self.chains.iter_mut().flatten().chain(self.rare.iter_mut().flat_map(|rare| &mut rare.chains))
    }

    /// The first of its chains.
    #[inline]
    pub(crate) const fn chain_here(&self) -> Option<&Chain> {
        self.chains[0].as_ref()
    }

    /// Makes room for so many chains more.
    pub(crate) fn reserve_chains(&mut self, more: usize, spares: &mut Spares) {
        let elsewhere = (self.chain_numbers().len() + more).saturating_sub(CHAINS_HERE);
        if elsewhere > 0 {
            let chains = &mut self.rare_mut(spares).chains;
            reserve::in_ring(chains, elsewhere.saturating_sub(chains.len()));
        }
    }

    pub(crate) fn push_chain(&mut self, chain: Chain, spares: &mut Spares) {
        match self.chains.iter_mut().find(|here| here.is_none()) {
            Some(here) => *here = Some(chain),
            None => self.rare_mut(spares).chains.push_back(chain),
        }
    }

    /// Forgets the first chain if it is gone, and counts it no longer.
    pub(crate) fn pop_gone_chain(&mut self, spares: &mut Spares) -> Option<Chain> {
        let gone = self.chains[0].take_if(|chain| chain.gone())?;
        let rare = self.rare_mut(spares);
        rare.chains_before += 1;
        let next = rare.chains.pop_front();
        self.chains[0] = std::mem::replace(&mut self.chains[1], next);
        Some(gone)
    }

    pub(crate) fn growth(&self, growth: u32) -> Option<&Arc<UnfoldedGrowth>> {
        match (&self.rare, growth) {
            (None, 0) => self.growth.as_ref(),
            (None, _) => None,
            (Some(rare), _) => match growth.checked_sub(rare.growths_before)? {
                0 => self.growth.as_ref(),
                index => rare.growths.get(index as usize - 1),
            },
        }
    }

    /// The growth of a chain.
    pub(crate) fn growth_of(&self, chain: u32) -> Option<&Arc<UnfoldedGrowth>> {
        self.growth(self.chain(chain)?.growth)
    }

    /// What its graph says of a chain.
    pub(crate) fn graph_of(&self, chain: u32) -> Option<&UnfoldedChain> {
        let growth = self.growth_of(chain)?;
        growth.chains.get(chain.checked_sub(growth.first_chain)? as usize)
    }

    /// Steps of a chain, at most.
    pub(crate) fn bound_of(&self, chain: u32) -> Option<u32> {
        self.graph_of(chain).map(|graph| graph.length.bound)
    }

    /// The stage of a chain's own stop.
    pub(crate) fn stop_stage_of(&self, chain: u32) -> Option<u32> {
        self.graph_of(chain)?.stop.map(|(stage, _)| stage)
    }

    /// Numbers of the growths that there are.
    pub(crate) fn growth_numbers(&self) -> Range<u32> {
        let (first, elsewhere) = self.rare.as_ref().map_or((0, 0), |rare| (rare.growths_before, rare.growths.len()));
        first..first + u32::from(self.growth.is_some()) + elsewhere as u32
    }

    pub(crate) fn push_growth(&mut self, graph: Arc<UnfoldedGrowth>, spares: &mut Spares) {
        if self.growth.is_none() {
            self.growth = Some(graph);
        } else {
            self.rare_mut(spares).growths.push_back(graph);
        }
    }

    /// Forgets growths whose chains are all forgotten, but for the last.
    pub(crate) fn forget_gone_growths(&mut self) {
        let first_held = self.chains[0].as_ref().map(|chain| chain.growth);
        let Some(rare) = &mut self.rare else { return };
        while first_held.is_none_or(|held| held > rare.growths_before)
            && let Some(next) = rare.growths.pop_front()
        {
            self.growth = Some(next);
            rare.growths_before += 1;
        }
    }
}

/// What few have.
impl Request {
    pub(crate) fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// That, if it has any.
    pub(crate) fn rare_if_any(&mut self) -> Option<&mut Rare> {
        self.rare.as_deref_mut()
    }

    /// That, from now on if not before.
    pub(crate) fn rare_mut(&mut self, spares: &mut Spares) -> &mut Rare {
        self.rare.get_or_insert_with(|| spares.rare())
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rare()?.deadline
    }

    /// When it came, where a policy asks.
    pub(crate) fn submitted(&self) -> Time {
        self.rare().map_or(Time(0), |rare| rare.submitted)
    }

    /// Whether a node of it was ever given to a worker.
    pub(crate) fn has_begun(&self) -> bool {
        let untouched = |number: u32| {
            let of = self.chain(number).zip(self.graph_of(number));
            of.is_some_and(|(chain, graph)| chain.remaining == u64::from(graph.length.bound) * graph.stages.len() as u64)
        };
        let mut numbers = self.chain_numbers();
        self.phase != Phase::Waiting && (self.flying > 0 || numbers.start > 0 || !numbers.all(untouched))
    }

    pub(crate) fn grows(&self) -> bool {
        self.rare().is_some_and(|rare| rare.reservation.is_some())
    }

    pub(crate) fn moves(&self) -> bool {
        self.rare().is_some_and(|rare| rare.moving.is_some())
    }

    /// It is offered to its policy, or taken.
    pub(crate) fn is_with_policy(&self) -> bool {
        self.rare().is_some_and(|rare| rare.offered.is_some() || rare.taken.is_some())
    }

    pub(crate) fn offered(&self) -> Option<u32> {
        self.rare()?.offered
    }

    pub(crate) fn taken(&self) -> Option<WorkerId> {
        self.rare()?.taken
    }

    /// The first of the growths that wait, and how many do.
    pub(crate) fn pending(&self) -> (Option<&Arc<UnfoldedGrowth>>, usize) {
        self.rare().map_or((None, 0), |rare| (rare.pending.front(), rare.pending.len()))
    }

    /// Forgets everything; the memory is to be used again.
    pub(crate) fn clear(&mut self, spares: &mut Spares) {
        self.chains_mut().for_each(|chain| spares.take_links(chain));
        if let Some(rare) = self.rare.take() {
            spares.take_rare(rare);
        }
        (self.phase, self.scrub, self.open) = (Phase::Vacant, false, false);
        (self.block, self.growth) = (None, None);
        self.chains = Default::default();
        (self.live_chains, self.flying) = (0, 0);
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
    use crate::core::lane::Lane;
    use crate::core::queues::{Item, Key};

    #[test]
    fn a_request_of_one_chain_takes_272_bytes_at_most() {
        let held = size_of::<Request>() + size_of::<Lane>();
        assert_eq!((size_of::<Request>(), size_of::<Lane>()), (128, 96));
        assert_eq!((size_of::<Option<Chain>>(), size_of::<Links>(), size_of::<Rare>()), (32, 24, 168));
        assert!(held + size_of::<(Key, Item)>() <= 272, "{held} and its place in a queue");
    }
}
