//! What requests are: their lengths or shapes, and the graphs of cells that they unfold into.
//!
//! A workload makes the same [`UnfoldedGrowth`]s that the checker makes of a plugin's answer, without a plugin. It owns shapes and graphs; what a cell
//! costs is the device's business, when requests arrive the run's.

mod graphs;
mod layers;
mod lengths;
mod lists;
mod trees;

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::Random;
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{BatchSizes, CellInfo, CellTypeId, CostTable, ModelId, ModelInfo, NumericClass, TenantId};

pub use layers::Layers;
pub use lengths::{LENGTH_MAX, Lengths, Pairs};
pub use trees::{Tree, Trees};

/// Graphs that are kept to be used again, at most.
const KEPT_MAX: usize = 1 << 17;

/// A cell of a workload's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// By which devices know what it costs.
    pub name: String,
    /// Rank among the model's cells; higher first. Later ones in the graph go first, as BatchMaker advises (section 4.3).
    pub priority: i32,
    /// Whether a row goes on from where the row of the task before left its values.
    pub recurrent: bool,
}

/// What a request turned out to be.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Its graph.
    pub growth: Arc<UnfoldedGrowth>,
    /// The chain that stops, and the step in which it does: known to the device alone until then.
    pub stop: Option<(u32, u32)>,
}

impl Drawn {
    /// Cells that it executes.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        let chains = (0..).zip(&self.growth.chains);
        chains
            .map(|(number, chain)| {
                let steps = self.stop.filter(|(stops, _)| *stops == number).map_or(chain.length.bound, |(_, step)| step + 1);
                u64::from(steps) * chain.stages.len() as u64
            })
            .sum()
    }
}

/// What of a trace's lengths a workload has use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadsLengths {
    /// Those of inputs.
    pub source: bool,
    /// Those of outputs.
    pub target: bool,
}

/// The names a model goes by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids {
    /// The model.
    pub model: ModelId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The type of its first cell; the others follow.
    pub first_type: CellTypeId,
}

/// How a decoder's length is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// Its graph says it: whoever batches whole graphs has batches of equal lengths in and out.
    Known,
    /// It stops when the device says so, and nobody knows more before, as in BatchMaker's experiments (section 7.4); its graph bounds it by the source's
    /// length and so many steps more, where whatever is longer ends.
    Stops {
        /// Steps beyond the source's length.
        extra: u32,
    },
}

#[derive(Clone, Debug)]
enum Source {
    Lstm(Lengths),
    Trees(Vec<Arc<UnfoldedGrowth>>),
    Seq2seq { pairs: Pairs, decoding: Decoding },
    Layers { layers: Layers, pairs: Pairs },
}

/// A kind of requests, all for one model.
#[derive(Clone, Debug)]
pub struct Workload {
    name: &'static str,
    cells: Vec<Cell>,
    source: Source,
    kept: BTreeMap<(u32, u32), Arc<UnfoldedGrowth>>,
}

impl Workload {
    /// One LSTM layer over so many steps.
    #[must_use]
    pub fn lstm(lengths: Lengths) -> Self {
        Self::new("lstm", &["lstm"], Source::Lstm(lengths))
    }

    /// Binary TreeLSTMs: a leaf cell, and an internal one that goes first.
    #[must_use]
    pub fn trees(trees: &Trees) -> Self {
        let graphs = trees.shapes().iter().map(graphs::tree).collect();
        Self::new("trees", &["leaf", "internal"], Source::Trees(graphs))
    }

    /// An encoder, and a decoder that goes first.
    #[must_use]
    pub fn seq2seq(pairs: Pairs, decoding: Decoding) -> Self {
        Self::new("seq2seq", &["encoder", "decoder"], Source::Seq2seq { pairs, decoding })
    }

    /// A model with layers of its own kind each; lengths are of its input and its output.
    #[must_use]
    pub fn layers(layers: Layers, pairs: Pairs) -> Self {
        let names = layers.cells();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Self::new(layers.name(), &names, Source::Layers { layers, pairs })
    }

    fn new(name: &'static str, cells: &[&str], source: Source) -> Self {
        // A tree's nodes take their children's values from wherever those were left.
        let recurrent = !matches!(source, Source::Trees(_));
        let cells = (0..).zip(cells).map(|(priority, name)| Cell { name: (*name).to_owned(), priority, recurrent }).collect();
        Self { name, cells, source, kept: BTreeMap::new() }
    }

    /// What it is called.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The cells of its model, by position.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Its model, as the scheduler is told, but for what its cells cost: a slot for each node's outputs, and batches of up to so many rows; `batch_max` is by cell, its last entry
    /// for all further ones (64 if there is none).
    #[must_use]
    pub fn model(&self, ids: Ids, batch_max: &[u32]) -> ModelInfo {
        let cells = self.cells.iter().enumerate().map(|(position, cell)| CellInfo {
            cell_type: CellTypeId(ids.first_type.0 + position as u32),
            slots: 1,
            priority: cell.priority,
            cost: CostTable::unknown(),
            fill_first: false,
            steps_together: false,
            batch: BatchSizes { min: 1, quantum: 1, max: batch_max.get(position).or(batch_max.last()).copied().unwrap_or(64).max(1) },
            spans: None,
        });
        let cells = cells.collect();
        ModelInfo { model: ids.model, tenant: ids.tenant, weight: 1, class: NumericClass(0), policy: None, cells, growth_slots: None }
    }

    /// The next request.
    pub fn draw(&mut self, random: &mut Random) -> Drawn {
        let lengths = match &self.source {
            Source::Lstm(lengths) => (lengths.draw(random), 0),
            Source::Trees(graphs) => (random.below(graphs.len()) as u32, 0),
            Source::Seq2seq { pairs, .. } | Source::Layers { pairs, .. } => pairs.draw(random),
        };
        self.make(lengths)
    }

    /// A request of those lengths, as a trace has them; a tree is drawn as ever.
    pub fn of_lengths(&mut self, source: u32, target: u32, random: &mut Random) -> Drawn {
        match &self.source {
            Source::Trees(_) => self.draw(random),
            Source::Lstm(_) => self.make((source, 0)),
            Source::Seq2seq { .. } | Source::Layers { .. } => self.make((source, target)),
        }
    }

    /// What of lengths that are given with an arrival makes a difference to the request.
    #[must_use]
    pub const fn reads_lengths(&self) -> ReadsLengths {
        match &self.source {
            Source::Lstm(_) => ReadsLengths { source: true, target: false },
            Source::Trees(_) => ReadsLengths { source: false, target: false },
            Source::Seq2seq { .. } => ReadsLengths { source: true, target: true },
            Source::Layers { layers, .. } => layers.reads_lengths(),
        }
    }

    fn make(&mut self, (source, target): (u32, u32)) -> Drawn {
        let kept = &mut self.kept;
        match &self.source {
            Source::Lstm(_) => Drawn { growth: keep(kept, (source, 0), || graphs::lstm(source)), stop: None },
            Source::Trees(graphs) => Drawn { growth: Arc::clone(&graphs[source as usize]), stop: None },
            Source::Seq2seq { decoding: Decoding::Known, .. } => {
                Drawn { growth: keep(kept, (source, target), || graphs::seq2seq(source, target, false)), stop: None }
            }
            Source::Seq2seq { decoding: Decoding::Stops { extra }, .. } => {
                let bound = source.saturating_add(*extra).clamp(1, LENGTH_MAX);
                let growth = keep(kept, (source, bound), || graphs::seq2seq(source, bound, true));
                Drawn { growth, stop: (target < bound).then(|| (1, target - 1)) }
            }
            Source::Layers { layers, .. } => {
                let decodes = layers.decodes(target);
                let bound = decodes.map_or(target, |(_, bound)| bound);
                let stop = decodes.filter(|(_, bound)| target < *bound).map(|(chain, _)| (chain, target - 1));
                Drawn { growth: keep(kept, (source, bound), || layers.graph(source, bound)), stop }
            }
        }
    }
}

fn keep(
    kept: &mut BTreeMap<(u32, u32), Arc<UnfoldedGrowth>>,
    key: (u32, u32),
    make: impl FnOnce() -> Arc<UnfoldedGrowth>,
) -> Arc<UnfoldedGrowth> {
    if let Some(growth) = kept.get(&key) {
        return Arc::clone(growth);
    }
    let growth = make();
    if kept.len() < KEPT_MAX {
        kept.insert(key, Arc::clone(&growth));
    }
    growth
}

#[cfg(test)]
mod tests;
