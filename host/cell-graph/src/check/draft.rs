//! A growth while it is checked: what stands so far, and how its references are looked up.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::{GraphError, GraphFault, GraphPlace};
use super::named::NamedEdge;
use super::{GraphLimits, Model, Unfolding};
use crate::cell::Port;
use crate::graph::{self, OutputRef};
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
    pub(super) series: Option<KeptSeries>,
}

/// The part of a kept chain that a later chain of its series needs.
#[derive(Clone, Debug)]
pub(super) struct KeptSeries {
    /// Places in the ring of each stage that goes on.
    pub(super) places: u32,
    /// For each stage that goes on, the number of rows before its step 0.
    pub(super) before: Vec<Option<u32>>,
    /// For each such stage, where a chain that continues this one starts.
    pub(super) next: Vec<Option<Start>>,
    /// Chains that may read rows of it when the next growth comes.
    pub(super) readers: Vec<u32>,
}

/// Where a stage goes on in its series.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    /// The place of step 0.
    pub(super) first: u32,
    /// Rows before it that are held.
    pub(super) before: u32,
}

/// A chain of this growth in a series.
#[derive(Clone, Debug)]
pub(super) struct DraftSeries {
    pub(super) places: u32,
    /// One for each stage. None: the chain that it continues holds no row of that stage.
    pub(super) starts: Vec<Option<Start>>,
}

impl DraftSeries {
    /// The held rows of a stage, in a chain of `bound` steps.
    pub(super) fn rows(series: Option<&Self>, stage: u32, bound: u32) -> HeldRows {
        let Some(series) = series else { return HeldRows::default() };
        let before = series.starts.get(stage as usize).copied().flatten().map(|start| start.before);
        HeldRows::new(series.places, before, bound)
    }
}

/// Which rows of a stage are held while a growth runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldRows {
    /// Rows before step 0.
    pub(super) before: u32,
    /// The first row that is not overwritten.
    pub(super) from: i64,
    /// Rows that are held up to the newest.
    pub(super) places: u32,
    /// There were rows before step 0, and none of them is held.
    is_cut: bool,
}

impl Default for HeldRows {
    fn default() -> Self {
        Self { before: 0, from: 0, places: u32::MAX, is_cut: false }
    }
}

impl HeldRows {
    /// The rows in a ring whose newest row has the number `end` − 1.
    pub(super) fn new(places: u32, before: Option<u32>, end: u32) -> Self {
        match before {
            Some(before) => Self { before, from: i64::from(end) - i64::from(places), places, is_cut: false },
            None => Self { is_cut: true, ..Self::default() },
        }
    }

    /// Whether the row existed and is no longer held.
    pub(super) fn is_gone(self, number: i64) -> bool {
        let there = if self.is_cut { number } else { number.max(-i64::from(self.before)) };
        there < self.from
    }
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
    /// Names of tensors that were let go.
    gone: &'a BTreeSet<String>,
    /// For each tensor, the rows before it under its name. Computed at the first use.
    reaches: OnceCell<Vec<Reach>>,
    /// The chains of this growth that are in a series, by position.
    pub(super) series: BTreeMap<usize, DraftSeries>,
    /// The chains of this growth that read a chain in a series. Filled after the last chain.
    pub(super) read_by: BTreeMap<u32, Vec<u32>>,
    /// Kept chains that this growth continues, ascending, and by how many steps.
    pub(super) continued: Vec<(u32, u32)>,
}

/// Rows and elements of the earlier tensors that have the same name, datatype and row shape.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    pub(super) rows: u64,
    pub(super) elements: u64,
    /// There were more tensors of the name, and they differ or are not held.
    pub(super) is_cut: bool,
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
    pub(super) rows: HeldRows,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        unfolding: &'a Unfolding,
        given: &[graph::Chain],
        mut cancel: Vec<u32>,
        first_tensor: u32,
        tensors: &'a [Arc<Tensor>],
    ) -> Result<Self, GraphError> {
        let (limits, chains) = (unfolding.limits, given.len());
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
        let tensors_from = unfolding.tensors_from.max(first_tensor);
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
            tensors_from,
            gone: &unfolding.gone,
            reaches: OnceCell::new(),
            series: BTreeMap::new(),
            read_by: BTreeMap::new(),
            continued: continued(given),
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
        Ok(Found { at, port, bound, may_stop, rows: self.held_rows((at, kept), stage) })
    }

    /// The rows of a chain's stage that stay readable while this growth runs. A chain that continues
    /// it overwrites the oldest.
    pub(super) fn held_rows(&self, (at, kept): (Whereabouts, Option<&KeptChain>), stage: u32) -> HeldRows {
        let kept = match (at, kept) {
            (Whereabouts::Here(local), _) => return DraftSeries::rows(self.series.get(&local), stage, self.facts[local].bound),
            (Whereabouts::Earlier, Some(kept)) => kept,
            (Whereabouts::Earlier, None) => return HeldRows::default(),
        };
        // Of a stage without places in the ring all steps are held, and none before.
        let ring = kept.series.as_ref().and_then(|series| Some((series.places, series.before.get(stage as usize).copied()??)));
        let Some((places, before)) = ring else { return HeldRows::default() };
        let more = self.continued.binary_search_by_key(&kept.chain, |(chain, _)| *chain).map_or(0, |at| self.continued[at].1);
        HeldRows::new(places, Some(before), kept.bound.saturating_add(more))
    }

    /// The rows before a tensor under its name.
    pub(super) fn reach(&self, tensor: u32) -> Reach {
        let reaches = self.reaches.get_or_init(|| reaches(self.tensors, self.tensors_from - self.first_tensor, self.gone));
        tensor.checked_sub(self.first_tensor).and_then(|at| reaches.get(at as usize)).copied().unwrap_or_default()
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

/// Chains that this growth continues, and by how many steps. Whether they may be is checked later.
fn continued(given: &[graph::Chain]) -> Vec<(u32, u32)> {
    let continued = given.iter().filter_map(|chain| match (chain.series, chain.length) {
        (Some(graph::Series::Continues(of)), graph::Extent::Fixed(steps)) => Some((of, steps)),
        _ => None,
    });
    let mut continued: Vec<(u32, u32)> = continued.collect();
    continued.sort_unstable();
    continued
}

/// For each tensor, the rows before it. Tensors before position `from` are no longer held.
fn reaches(tensors: &[Arc<Tensor>], from: u32, gone: &BTreeSet<String>) -> Vec<Reach> {
    let mut latest: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reaches: Vec<Reach> = Vec::with_capacity(tensors.len());
    for (at, tensor) in tensors.iter().enumerate() {
        let before = latest.insert(&tensor.name, at).filter(|_| at > from as usize);
        reaches.push(match before.filter(|before| *before >= from as usize) {
            Some(before) if tensor.follows(&tensors[before]) => {
                let (Reach { rows, elements, is_cut }, before) = (reaches[before], &tensors[before]);
                let own = before.shape.iter().map(|extent| *extent as u64).product::<u64>();
                let first = before.shape.first().map_or(0, |rows| *rows as u64);
                Reach { rows: rows.saturating_add(first), elements: elements.saturating_add(own), is_cut }
            }
            Some(_) => Reach { is_cut: true, ..Reach::default() },
            None => Reach { is_cut: gone.contains(&tensor.name), ..Reach::default() },
        });
    }
    reaches
}

/// The one that holds more.
pub(super) const fn stronger(left: Retention, right: Retention) -> Retention {
    match (left, right) {
        (Retention::All | Retention::Ring { .. }, _) | (_, Retention::All | Retention::Ring { .. }) => Retention::All,
        (Retention::Double, _) | (_, Retention::Double) => Retention::Double,
        _ => Retention::None,
    }
}

pub(super) const fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), GraphFault> {
    if count > limit { Err(GraphFault::Limit { what, count: count as u64, limit: limit as u64 }) } else { Ok(()) }
}
