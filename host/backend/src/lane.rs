//! What a worker knows of a request: its checked graph, where its values lie, its tensors.

use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cellwright_cell_graph::unfolded::{Retention, UnfoldedChain, UnfoldedStage};
use cellwright_cell_graph::{Tensor, UnfoldedGrowth};

use crate::task::{CellTypeId, Slot};

/// What is true of a whole request.
#[derive(Debug, Default)]
pub struct RequestFlags {
    /// Set when a kernel refused one of its rows or the request was cancelled: later rows of it are not worth computing.
    pub dead: AtomicBool,
}

/// A chain of an earlier growth that this one may refer to.
#[derive(Clone, Debug)]
pub struct EarlierChain {
    /// Its number in the request.
    pub chain: u32,
    /// For each stage, its first slot, what is held of it, and its cell (by position in the model).
    pub stages: Vec<(Slot, Retention, u32)>,
    /// Its growth's [`PlacedGrowth::executed`], and its position in it.
    pub executed: (Arc<[AtomicU32]>, u32),
}

impl EarlierChain {
    /// How many steps it executed. Final when something that refers to it runs, because that waits for its end.
    #[must_use]
    pub fn executed(&self) -> u32 {
        self.executed.0.get(self.executed.1 as usize).map_or(0, |executed| executed.load(Ordering::Acquire))
    }
}

/// For each chain of a growth and each stage of it: the first slot. Most growths have one stage, and need no memory elsewhere; of most others each chain has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstSlots(Slots);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Slots {
    /// There is one chain of one stage.
    One(Slot),
    /// Each chain has one.
    Each(Vec<Slot>),
    /// Those of all chains, one after the other; and where each chain's begin, and where they end.
    Several(Vec<Slot>, Box<[u32]>),
}

impl Default for FirstSlots {
    fn default() -> Self {
        Self(Slots::Each(Vec::new()))
    }
}

impl FirstSlots {
    /// That of a growth of one chain of one stage.
    #[must_use]
    pub const fn one(slot: Slot) -> Self {
        Self(Slots::One(slot))
    }

    /// The slot of the only stage, if there is but one.
    #[must_use]
    pub const fn sole(&self) -> Option<Slot> {
        match self.0 {
            Slots::One(slot) => Some(slot),
            Slots::Each(_) | Slots::Several(..) => None,
        }
    }

    /// Those of a growth's chains, one after the other.
    #[must_use]
    pub fn new(growth: &UnfoldedGrowth, slots: impl IntoIterator<Item = Slot>) -> Self {
        Self::of_stages(growth.chains.iter().map(|chain| chain.stages.len()), slots.into_iter())
    }

    fn of_stages(stages: impl ExactSizeIterator<Item = usize> + Clone, mut slots: impl Iterator<Item = Slot>) -> Self {
        if !stages.clone().all(|stages| stages == 1) {
            let ends = stages.scan(0, |end, stages| {
                *end += stages;
                Some(*end as u32)
            });
            return Self(Slots::Several(slots.collect(), std::iter::once(0).chain(ends).collect()));
        }
        match (stages.len(), slots.next()) {
            (1, Some(slot)) => Self(Slots::One(slot)),
            (_, first) => Self(Slots::Each(first.into_iter().chain(slots).collect())),
        }
    }

    /// Those of a chain's stages.
    #[must_use]
    #[inline]
    pub fn get(&self, chain: usize) -> Option<&[Slot]> {
        match &self.0 {
            Slots::One(slot) => (chain == 0).then_some(std::slice::from_ref(slot)),
            Slots::Each(slots) => slots.get(chain..)?.get(..1),
            Slots::Several(slots, starts) => {
                let (start, end) = (*starts.get(chain)?, *starts.get(chain.checked_add(1)?)?);
                slots.get(start as usize..end as usize)
            }
        }
    }
}

impl Index<usize> for FirstSlots {
    type Output = [Slot];

    fn index(&self, chain: usize) -> &[Slot] {
        self.get(chain).expect("the growth has that chain")
    }
}

impl<const CHAINS: usize> From<[Vec<Slot>; CHAINS]> for FirstSlots {
    fn from(chains: [Vec<Slot>; CHAINS]) -> Self {
        let stages = chains.each_ref().map(Vec::len);
        Self::of_stages(stages.into_iter(), chains.into_iter().flatten())
    }
}

/// A growth and its place in a domain.
///
/// Workers read it, and the engine counts who has it: in other cache lines, so that neither waits for the other.
#[derive(Debug)]
#[repr(align(64))]
pub struct PlacedGrowth {
    /// The graph.
    pub growth: Arc<UnfoldedGrowth>,
    /// The model's cells, by position, as they are loaded.
    pub cells: Arc<[CellTypeId]>,
    /// For each chain of it and each stage: the first slot.
    pub slots: FirstSlots,
    /// For each chain of it: how many steps it executes; the length's bound until a stop is known. Written by the worker that runs it.
    pub executed: Arc<[AtomicU32]>,
    /// Chains of earlier growths it refers to, ascending.
    pub earlier: Vec<EarlierChain>,
    /// The request's tensors from number `first_tensor` on.
    pub tensors: Vec<Arc<Tensor>>,
    /// Number of `tensors[0]`.
    pub first_tensor: u32,
    /// Shared by all growths of the request.
    pub flags: Arc<RequestFlags>,
}

impl PlacedGrowth {
    /// A chain of this growth by its number in the request.
    #[must_use]
    pub fn chain(&self, chain: u32) -> Option<&UnfoldedChain> {
        self.growth.chains.get(chain.checked_sub(self.growth.first_chain)? as usize)
    }

    /// A request tensor by its number.
    #[must_use]
    pub fn tensor(&self, tensor: u32) -> Option<&Arc<Tensor>> {
        self.tensors.get(tensor.checked_sub(self.first_tensor)? as usize)
    }

    /// How many steps a chain, by its number in the request, executes as far as is known: its own stop, or that of the chain it follows (and
    /// of the one that follows); none if there is no such chain.
    #[must_use]
    pub fn executed_steps(&self, chain: u32) -> Option<u32> {
        let (mut number, mut executed) = (chain, u32::MAX);
        // Following is acyclic (checked), so this ends; the bound says so to the reader.
        for _ in 0..=self.executed.len() {
            let Some(local) = number.checked_sub(self.growth.first_chain) else {
                return self.earlier(number).map(|earlier| executed.min(earlier.executed()));
            };
            executed = executed.min(self.executed.get(local as usize)?.load(Ordering::Acquire));
            match self.growth.chains.get(local as usize)?.length.like {
                Some(like) => number = like,
                None => break,
            }
        }
        Some(executed)
    }

    /// An earlier chain by its number.
    #[must_use]
    pub fn earlier(&self, chain: u32) -> Option<&EarlierChain> {
        self.earlier.binary_search_by_key(&chain, |earlier| earlier.chain).ok().map(|found| &self.earlier[found])
    }
}

/// One stage of one chain: what a row of a task names.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its growth.
    pub growth: Arc<PlacedGrowth>,
    /// The chain, by position in the growth.
    pub chain: u32,
    /// The stage.
    pub stage: u32,
}

impl Lane {
    /// Its chain.
    ///
    /// # Panics
    /// If the lane was made with positions its growth does not have.
    #[must_use]
    pub fn chain(&self) -> &UnfoldedChain {
        &self.growth.growth.chains[self.chain as usize]
    }

    /// Its stage.
    ///
    /// # Panics
    /// If the lane was made with positions its growth does not have.
    #[must_use]
    pub fn stage(&self) -> &UnfoldedStage {
        &self.chain().stages[self.stage as usize]
    }

    /// Its first slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.growth.slots[self.chain as usize][self.stage as usize]
    }

    /// How many steps its chain executes, as far as is known: its own stop, or that of the chain it follows.
    #[must_use]
    pub fn executed(&self) -> u32 {
        self.growth.executed_steps(self.growth.growth.first_chain + self.chain).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_its_first_slot() {
        let slots = |numbers: &[u32]| numbers.iter().copied().map(Slot).collect::<Vec<_>>();
        let some = FirstSlots::from([slots(&[7, 8]), slots(&[]), slots(&[9])]);
        assert_eq!([0, 1, 2].map(|chain| &some[chain]), [&slots(&[7, 8])[..], &[], &slots(&[9])]);
        let single = FirstSlots::from([slots(&[7]), slots(&[9])]);
        assert_eq!([0, 1].map(|chain| &single[chain]), [&slots(&[7])[..], &slots(&[9])]);
        let one = FirstSlots::from([slots(&[7])]);
        assert_eq!((&one[0], &one), (&slots(&[7])[..], &FirstSlots::one(Slot(7))));
        assert_eq!([&one, &single, &some].map(FirstSlots::sole), [Some(Slot(7)), None, None]);
        let none = FirstSlots::from([]);
        assert_eq!([some.get(3), some.get(usize::MAX), single.get(2), single.get(usize::MAX), none.get(0)], [None; 5]);
        assert_eq!([one.get(1), one.get(usize::MAX)], [None; 2]);
    }
}
