//! A growth while it is checked: what stands so far, and how its references are looked up.

use std::sync::Arc;

use super::error::{GraphError, GraphFault, GraphPlace};
use super::named::NamedEdge;
use super::{GraphLimits, Model, Unfolding};
use crate::cell::Port;
use crate::graph::OutputRef;
use crate::resolve::short;
use crate::tensor::Tensor;
use crate::unfolded::{Dependency, Listing, Retention, UnfoldedChain, UnfoldedStage};

/// Blocks of steps under which a growth's readers are listed: the scheduler lists them on its own time. Reading slices of a chain one after the
/// other comes to one for 64 steps, so that as many edges as may be fit.
const BLOCKS_MAX: u64 = 1 << 17;

/// A chain of an earlier growth that later ones may refer to.
#[derive(Clone, Debug)]
pub(super) struct KeptChain {
    pub(super) chain: u32,
    pub(super) bound: u32,
    pub(super) may_stop: bool,
    /// The cell of each stage.
    pub(super) cells: Vec<u32>,
    /// `(stage, output)`, ascending.
    pub(super) kept: Vec<(u32, u32)>,
    /// `(stage, output)` sent whole, ascending.
    pub(super) sent: Vec<(u32, u32)>,
}

/// What later chains need to know of a chain of this growth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) bound: u32,
    pub(super) may_stop: bool,
    /// Bit s: two places are enough for readers that keep step with stage s.
    pub(super) double: u64,
}

/// A growth that is being checked.
pub(super) struct Draft<'a> {
    pub(super) model: &'a Model,
    pub(super) limits: GraphLimits,
    pub(super) first_chain: u32,
    pub(super) next_chain: u32,
    pub(super) chains: Vec<UnfoldedChain>,
    pub(super) facts: Vec<Facts>,
    pub(super) named: Vec<NamedEdge>,
    pub(super) nodes: u64,
    pub(super) edges: u64,
    /// Blocks of steps under which readers are listed.
    blocks: u64,
    /// Ascending, each once.
    pub(super) cancel: Vec<u32>,
    pub(super) kept: &'a [KeptChain],
    pub(super) tensors: &'a [Arc<Tensor>],
    pub(super) first_tensor: u32,
    pub(super) tensors_from: u32,
}

/// Where a referenced chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In this growth, at that position.
    Here(usize),
    /// Kept from an earlier one.
    Earlier,
}

/// An output that a reference named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) at: Whereabouts,
    pub(super) port: &'a Port,
    pub(super) bound: u32,
    pub(super) may_stop: bool,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        unfolding: &'a Unfolding,
        chains: usize,
        mut cancel: Vec<u32>,
        first_tensor: u32,
        tensors: &'a [Arc<Tensor>],
    ) -> Result<Self, GraphError> {
        let limits = unfolding.limits;
        let at = |fault| GraphError::new(GraphPlace::Growth, fault);
        limit("chains", chains, limits.chains_max).map_err(at)?;
        limit("cancelled chains", cancel.len(), limits.chains_max).map_err(at)?;
        let first_chain = unfolding.chains;
        let next_chain = u32::try_from(chains).ok().and_then(|chains| first_chain.checked_add(chains));
        let too_many = || GraphFault::Limit { what: "chains", count: u64::from(first_chain) + chains as u64, limit: u64::from(u32::MAX) };
        let next_chain = next_chain.ok_or_else(|| at(too_many()))?;
        if let Some(chain) = cancel.iter().copied().find(|chain| *chain >= first_chain) {
            return Err(at(GraphFault::NoChain { chain }));
        }
        cancel.sort_unstable();
        cancel.dedup();
        unfolding.cancelling.check(&cancel).map_err(at)?;
        Ok(Self {
            model: &unfolding.model,
            limits,
            first_chain,
            next_chain,
            chains: Vec::with_capacity(chains),
            facts: Vec::with_capacity(chains),
            named: Vec::new(),
            nodes: 0,
            edges: 0,
            blocks: 0,
            cancel,
            kept: &unfolding.kept,
            tensors,
            first_tensor,
            tensors_from: unfolding.tensors_from.max(first_tensor),
        })
    }

    /// Finds a chain of this growth that has been added already, or one that was kept.
    pub(super) fn find_chain(&self, chain: u32) -> Result<(Whereabouts, Option<&'a KeptChain>), GraphFault> {
        if let Some(local) = chain.checked_sub(self.first_chain) {
            let local = local as usize;
            return match self.chains.get(local) {
                Some(_) => Ok((Whereabouts::Here(local), None)),
                None if chain < self.next_chain => Err(GraphFault::NotEarlier { chain }),
                None => Err(GraphFault::NoChain { chain }),
            };
        }
        let position = self.kept.binary_search_by_key(&chain, |kept| kept.chain).map_err(|_| GraphFault::ChainNotKept { chain })?;
        if self.cancel.binary_search(&chain).is_ok() {
            return Err(GraphFault::Cancelled { chain });
        }
        Ok((Whereabouts::Earlier, self.kept.get(position)))
    }

    /// Finds an output of such a chain.
    pub(super) fn find(&self, of: OutputRef) -> Result<Found<'a>, GraphFault> {
        let OutputRef { chain, stage, output } = of;
        let (at, kept) = self.find_chain(chain)?;
        let (cell, bound, may_stop) = match (at, kept) {
            (Whereabouts::Here(local), _) => {
                let facts = self.facts[local];
                (self.chains[local].stages.get(stage as usize).map(|stage| stage.cell), facts.bound, facts.may_stop)
            }
            (Whereabouts::Earlier, Some(kept)) => (kept.cells.get(stage as usize).copied(), kept.bound, kept.may_stop),
            (Whereabouts::Earlier, None) => return Err(GraphFault::ChainNotKept { chain }),
        };
        let cell = cell.ok_or(GraphFault::NoStage { chain, stage })?;
        let port = self.output_port(chain, stage, cell, output)?;
        if let Some(kept) = kept
            && kept.kept.binary_search(&(stage, output)).is_err()
        {
            return Err(GraphFault::OutputNotKept { chain, stage, output });
        }
        Ok(Found { at, port, bound, may_stop })
    }

    /// Output `output` of a stage that runs that cell.
    pub(super) fn output_port(&self, chain: u32, stage: u32, cell: u32, output: u32) -> Result<&'a Port, GraphFault> {
        let outputs = self.model.cells.get(cell as usize).map(|cell| cell.outputs.as_slice()).unwrap_or_default();
        outputs.get(output as usize).map(|output| &output.port).ok_or(GraphFault::NoOutput { chain, stage, output })
    }

    /// Asks for at least so much to be held of a stage of a chain of this growth.
    pub(super) fn retain(&mut self, local: usize, stage: u32, retention: Retention) {
        let held = &mut self.chains[local].stages[stage as usize].retention;
        *held = stronger(*held, retention);
    }

    /// The request's tensor of that number.
    pub(super) fn tensor(&self, tensor: u32) -> Result<&'a Tensor, GraphFault> {
        if tensor < self.tensors_from {
            return Err(GraphFault::TensorGone { tensor, from: self.tensors_from });
        }
        let count = u64::from(self.first_tensor) + self.tensors.len() as u64;
        let found = tensor.checked_sub(self.first_tensor).and_then(|position| self.tensors.get(position as usize));
        let found = found.ok_or(GraphFault::NoTensor { tensor, count })?;
        if found.datatype == crate::Datatype::Bytes {
            return Err(GraphFault::BytesRow { name: short(&found.name) });
        }
        if !found.is_consistent() {
            return Err(GraphFault::Inconsistent { name: short(&found.name) });
        }
        Ok(found)
    }

    pub(super) fn charge_edges(&mut self, count: u32) -> Result<(), GraphFault> {
        self.edges = self.edges.saturating_add(u64::from(count));
        let limit = self.limits.edges_max;
        if self.edges > limit { Err(GraphFault::Sum { what: "edges", count: self.edges, limit }) } else { Ok(()) }
    }

    /// Counts what the scheduler lists of a chain's readings.
    pub(super) fn charge_blocks(&mut self, stages: &[UnfoldedStage], steps: u32) -> Result<(), GraphFault> {
        for depends in stages.iter().flat_map(|stage| &stage.depends) {
            let (Dependency::Step { chain, at, .. } | Dependency::Through { chain, at, .. }) = depends else { continue };
            let read = chain.checked_sub(self.first_chain).and_then(|local| self.facts.get(local as usize));
            if let Listing::Blocks(blocks) = at.listing(steps, read.map_or(0, |read| read.bound)) {
                self.blocks += u64::from(blocks);
            }
        }
        let (count, limit) = (self.blocks, BLOCKS_MAX);
        if count > limit { Err(GraphFault::Sum { what: "blocks of steps that are read here and there", count, limit }) } else { Ok(()) }
    }
}

/// The one that holds more.
pub(super) const fn stronger(left: Retention, right: Retention) -> Retention {
    match (left, right) {
        (Retention::All, _) | (_, Retention::All) => Retention::All,
        (Retention::Double, _) | (_, Retention::Double) => Retention::Double,
        _ => Retention::None,
    }
}

pub(super) const fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), GraphFault> {
    if count > limit { Err(GraphFault::Limit { what, count: count as u64, limit: limit as u64 }) } else { Ok(()) }
}
