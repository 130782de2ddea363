//! Models with layers of their own kind each, in which cellular batching alone finds little to batch (LazyBatching, HPCA'21, section III.B).

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Dependency, Retention, UnfoldedChain, UnfoldedStage};

use super::graphs::{growth, independent, recurrent, stage};

/// Convolutions, dense layers and the like: every layer is a cell of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// A line of 50 distinct cells, like ResNet-50's layers with weights.
    ResNet,
    /// Two convolutions, five recurrent layers over so many frames, two dense layers.
    DeepSpeech,
    /// Six encoder layers, each once for the whole input, and for each output six decoder layers and a projection.
    Transformer,
    /// Four recurrent layers over the input, and for each output four recurrent layers and a projection, like a small GNMT.
    Gnmt,
}

const RESNET: u32 = 50;
const CONVOLUTIONS: u32 = 2;
const RECURRENT: u32 = 5;
const DENSE: u32 = 2;
const BLOCKS: u32 = 6;
const GNMT: u32 = 4;

impl Layers {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ResNet => "resnet",
            Self::DeepSpeech => "deepspeech",
            Self::Transformer => "transformer",
            Self::Gnmt => "gnmt",
        }
    }

    /// The names of its cells, in the order in which they run.
    pub(super) fn cells(self) -> Vec<String> {
        let numbered = |name: &str, count: u32| (1..=count).map(move |number| format!("{name}{number}")).collect::<Vec<_>>();
        let decoding = |name: &str, count: u32| {
            let (encoder, decoder) = (numbered(&format!("{name}-encoder"), count), numbered(&format!("{name}-decoder"), count));
            [encoder, decoder, vec![format!("{name}-projection")]].concat()
        };
        match self {
            Self::ResNet => numbered("layer", RESNET),
            Self::DeepSpeech => {
                [numbered("convolution", CONVOLUTIONS), numbered("recurrent", RECURRENT), numbered("dense", DENSE)].concat()
            }
            Self::Transformer => decoding("transformer", BLOCKS),
            Self::Gnmt => decoding("gnmt", GNMT),
        }
    }

    /// The graph of a request with so many steps in and so many out, where it has any.
    pub(super) fn graph(self, source: u32, target: u32) -> Arc<UnfoldedGrowth> {
        growth(match self {
            Self::ResNet => vec![line(0, RESNET, Vec::new())],
            Self::DeepSpeech => {
                let mut chains = vec![line(0, CONVOLUTIONS, Vec::new())];
                stack(&mut chains, CONVOLUTIONS, RECURRENT, source, Some(Dependency::End { chain: 0 }));
                let end = vec![Dependency::End { chain: RECURRENT }];
                chains.push(line(CONVOLUTIONS + RECURRENT, DENSE, end));
                chains
            }
            Self::Transformer => vec![line(0, BLOCKS, Vec::new()), decoder(BLOCKS, BLOCKS, target, 0)],
            Self::Gnmt => {
                let mut chains = Vec::new();
                stack(&mut chains, 0, GNMT, source, None);
                chains.push(decoder(GNMT, GNMT, target, GNMT - 1));
                chains
            }
        })
    }
}

/// Cells `first`, `first + 1`, …, once each, one after the other.
fn line(first: u32, count: u32, before: Vec<Dependency>) -> UnfoldedChain {
    independent(1, siblings(first, count, before))
}

fn siblings(first: u32, count: u32, mut before: Vec<Dependency>) -> Vec<UnfoldedStage> {
    (0..count)
        .map(|position| {
            let depends = match position.checked_sub(1) {
                None => std::mem::take(&mut before),
                Some(stage) => vec![Dependency::Sibling { stage }],
            };
            stage(first + position, depends)
        })
        .collect()
}

/// Recurrent layers over the steps of the one below, each a chain.
fn stack(chains: &mut Vec<UnfoldedChain>, first: u32, count: u32, steps: u32, before: Option<Dependency>) {
    for layer in 0..count {
        let below = match layer {
            0 => before.clone(),
            _ => Some(Dependency::Step { chain: chains.len() as u32 - 1, stage: 0, at: Affine::EVERY }),
        };
        let mut chain = recurrent(steps, vec![stage(first + layer, below.into_iter().collect())]);
        if layer + 1 < count {
            // Every step is read by the layer above.
            chain.stages[0].retention = Retention::All;
        }
        chains.push(chain);
    }
}

/// For each output, `count` layers that read themselves one step before, and a projection, after the end of `encoder`.
fn decoder(first: u32, count: u32, steps: u32, encoder: u32) -> UnfoldedChain {
    let mut stages = siblings(first, count + 1, vec![Dependency::End { chain: encoder }]);
    // The projection has no state; the first layer reads what the projection of the step before chose.
    let projection = stages.pop();
    let mut chain = recurrent(steps, stages);
    chain.stages[0].depends.push(Dependency::Previous { stage: count });
    chain.stages.extend(projection);
    chain
}
