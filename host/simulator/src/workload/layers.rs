//! Models with layers of their own kind each, in which cellular batching alone finds little to batch (LazyBatching, HPCA'21, section III.B).

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Grouping, UnfoldedChain, UnfoldedStage};

use super::ReadsLengths;
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
    /// What a BERT takes for any input, and then for each of its words.
    Bert,
    /// Four layers at full resolution, eight at a low one, and four at full resolution, like a U-Net.
    UNet,
}

const RESNET: u32 = 50;
const CONVOLUTIONS: u32 = 2;
const RECURRENT: u32 = 5;
const DENSE: u32 = 2;
const BLOCKS: u32 = 6;
const GNMT: u32 = 4;
const WIDE: u32 = 4;
const DEEP: u32 = 8;
/// What a decoder's graph bounds it by (LazyBatching, section V): it stops when the device says so.
const DECODE_MAX: u32 = 80;

impl Layers {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ResNet => "resnet",
            Self::DeepSpeech => "deepspeech",
            Self::Transformer => "transformer",
            Self::Gnmt => "gnmt",
            Self::Bert => "bert",
            Self::UNet => "unet",
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
            Self::Bert => vec!["bert-input".to_owned(), "bert-word".to_owned()],
            Self::UNet => [numbered("unet-down", WIDE), numbered("unet-deep", DEEP), numbered("unet-up", WIDE)].concat(),
        }
    }

    /// The chain that decodes, if any, and what bounds it where it executes so many steps.
    pub(super) fn decodes(self, target: u32) -> Option<(u32, u32)> {
        match self {
            Self::ResNet | Self::DeepSpeech | Self::Bert | Self::UNet => None,
            Self::Transformer | Self::Gnmt => Some((1, target.max(DECODE_MAX))),
        }
    }

    /// Of which lengths it makes something.
    pub(super) const fn reads_lengths(self) -> ReadsLengths {
        match self {
            Self::ResNet | Self::UNet => ReadsLengths { source: false, target: false },
            Self::DeepSpeech | Self::Bert => ReadsLengths { source: true, target: false },
            Self::Transformer => ReadsLengths { source: false, target: true },
            Self::Gnmt => ReadsLengths { source: true, target: true },
        }
    }

    /// The graph of a request with so many steps in and at most so many out, where it has any.
    pub(super) fn graph(self, source: u32, target: u32) -> Arc<UnfoldedGrowth> {
        growth(match self {
            Self::ResNet => vec![line(0, RESNET, Vec::new())],
            Self::DeepSpeech => {
                let recurrent = stack(CONVOLUTIONS, RECURRENT, source, vec![Dependency::End { chain: 0 }]);
                let dense = line(CONVOLUTIONS + RECURRENT, DENSE, vec![Dependency::End { chain: 1 }]);
                vec![line(0, CONVOLUTIONS, Vec::new()), recurrent, dense]
            }
            Self::Bert => vec![line(0, 1, Vec::new()), recurrent(source, siblings(1, 1, vec![Dependency::End { chain: 0 }]))],
            Self::UNet => vec![line(0, WIDE + DEEP + WIDE, Vec::new())],
            Self::Transformer => vec![line(0, BLOCKS, Vec::new()), decoder(BLOCKS, BLOCKS, target, 0)],
            Self::Gnmt => vec![stack(0, GNMT, source, Vec::new()), decoder(GNMT, GNMT, target, 0)],
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

/// Recurrent layers one above the other, step by step.
fn stack(first: u32, count: u32, steps: u32, before: Vec<Dependency>) -> UnfoldedChain {
    recurrent(steps, siblings(first, count, before))
}

/// For each output, `count` layers that read themselves one step before, and a projection that says when to stop, after the end of `encoder`.
fn decoder(first: u32, count: u32, steps: u32, encoder: u32) -> UnfoldedChain {
    let mut stages = siblings(first, count + 1, vec![Dependency::End { chain: encoder }]);
    // The projection has no state; the first layer reads what the projection of the step before chose.
    let projection = stages.pop();
    let mut chain = recurrent(steps, stages);
    chain.stages[0].depends.push(Dependency::Previous { stage: count });
    chain.stages.extend(projection);
    // A layer's steps are no subgraph of their own: the projection comes between any two.
    chain.stages.iter_mut().for_each(|stage| stage.grouping = Grouping::Each);
    chain.stop = Some((count, 1));
    chain
}
