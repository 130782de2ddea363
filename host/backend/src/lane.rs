//! What a worker knows of a request: its checked graph, where its values lie, its tensors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cellwright_cell_graph::unfolded::{Retention, UnfoldedChain, UnfoldedStage};
use cellwright_cell_graph::{Tensor, UnfoldedGrowth};

use crate::task::{CellIndex, Slot};

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

/// A growth and its place in a domain.
#[derive(Debug)]
pub struct PlacedGrowth {
    /// The graph.
    pub growth: Arc<UnfoldedGrowth>,
    /// The model's cells, by position, as they are loaded.
    pub cells: Arc<[CellIndex]>,
    /// For each chain of it and each stage: the first slot.
    pub slots: Vec<Vec<Slot>>,
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
