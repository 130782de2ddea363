//! Growths of the shapes that models have: chains, stacks, decoders, trees.

use std::sync::Arc;

use crate::check::Model;
use crate::generate::{CELLS, Rng};
use crate::graph::{Affine, Chain, Extent, Feedback, Gathered, Growth, Node, OutputRef, ResponseTensor, Source, Stage};
use crate::tensor::Tensor;

/// A shape of graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// One LSTM over the rows of `x`, forwards or backwards; sometimes a head on its last state.
    Lstm,
    /// Two or three LSTMs, each over the steps of the one below.
    Stacked,
    /// An LSTM over `x`, one over its reverse, their states joined, and an LSTM over those.
    Bidirectional,
    /// An encoder over `tokens`, and a decoder that feeds itself and stops.
    Seq2seq,
    /// The same with the decoder's projection as a stage of its own.
    TwoStage,
    /// A decoder that stops, and chains like it over its steps, forwards and backwards.
    Like,
    /// A binary tree over so many leaves.
    Tree,
    /// Several trees in one pair of chains.
    Forest,
    /// Nodes that have nothing to do with one another.
    Independent,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 9] = [
        Self::Lstm,
        Self::Stacked,
        Self::Bidirectional,
        Self::Seq2seq,
        Self::TwoStage,
        Self::Like,
        Self::Tree,
        Self::Forest,
        Self::Independent,
    ];
}

/// A valid first growth of that family with about so many steps (leaves, tokens), and its request's tensors: 0 is `x`, 1 is `tokens`.
#[must_use]
pub fn growth_of(model: &Model, family: Family, steps: u32, rng: &mut Rng) -> (Growth, Vec<Arc<Tensor>>) {
    let steps = steps.max(1);
    let tensors = tensors(model, steps, rng);
    let mut making = Making { growth: Growth::default(), steps, vocabulary: vocabulary(model), rng };
    match family {
        Family::Lstm => making.lstm(),
        Family::Stacked => making.stacked(),
        Family::Bidirectional => making.bidirectional(),
        Family::Seq2seq => making.seq2seq(),
        Family::TwoStage => making.two_stage(),
        Family::Like => making.like(),
        Family::Tree => making.tree(),
        Family::Forest => making.forest(),
        Family::Independent => making.independent(),
    }
    (making.growth, tensors)
}

/// So many rows of `x` and so many `tokens`, random.
pub(super) fn tensors(model: &Model, steps: u32, rng: &mut Rng) -> Vec<Arc<Tensor>> {
    let width = model.cells[CELLS.lstm as usize].inputs[0].shape[0] as usize;
    let rows = steps as usize;
    let x: Vec<f32> = (0..rows * width).map(|_| rng.float()).collect();
    let vocabulary = vocabulary(model);
    let tokens: Vec<i64> = (0..rows).map(|_| rng.below(vocabulary).cast_signed()).collect();
    vec![Arc::new(Tensor::from_f32("x", &[rows, width], &x)), Arc::new(Tensor::from_i64("tokens", &[rows], &tokens))]
}

fn vocabulary(model: &Model) -> u64 {
    u64::from(model.cells[CELLS.head as usize].outputs[0].port.shape[0])
}

pub(super) const fn output(chain: u32, stage: u32, output: u32) -> OutputRef {
    OutputRef { chain, stage, output }
}

/// Output `from` of stage 0 into its input `to`.
pub(super) const fn feed(from: u32, to: u32) -> Feedback {
    Feedback { stage: 0, output: from, to_stage: 0, input: to }
}

/// Both states of an LSTM.
pub(super) fn states() -> Vec<Feedback> {
    vec![feed(0, 1), feed(1, 2)]
}

struct Making<'a> {
    growth: Growth,
    steps: u32,
    vocabulary: u64,
    rng: &'a mut Rng,
}

impl Making<'_> {
    fn add(&mut self, cell: u32, length: Extent, inputs: Vec<Source>, feedback: Vec<Feedback>) -> u32 {
        self.growth.chains.push(Chain { stages: vec![Stage { cell, inputs }], length, feedback, stop: None, series: None });
        self.growth.chains.len() as u32 - 1
    }

    fn respond(&mut self, name: &str, from: Gathered, stream: bool) {
        self.growth.outputs.push(ResponseTensor { name: name.to_owned(), from, stream });
    }

    fn chain_over_rows(&mut self, at: Affine) -> u32 {
        let inputs = vec![Source::Rows { tensor: 0, at }, Source::Zeros, Source::Zeros];
        self.add(CELLS.lstm, Extent::Fixed(self.steps), inputs, states())
    }

    fn backwards(&mut self) -> Affine {
        if self.rng.one_in(2) {
            Affine { first: i64::from(self.steps) - 1, stride: -1, from_end: false }
        } else {
            Affine { first: 0, stride: 1, from_end: true }
        }
    }

    fn head_on(&mut self, source: Source) {
        let head = self.add(CELLS.head, Extent::Fixed(1), vec![source], vec![]);
        self.respond("logits", Gathered::Last(output(head, 0, 0)), false);
        self.respond("label", Gathered::Last(output(head, 0, 1)), false);
    }

    fn respond_states(&mut self, chain: u32) {
        match self.rng.below(4) {
            0 => self.respond("last", Gathered::Last(output(chain, 0, 0)), false),
            1 => {
                let stream = self.rng.one_in(2);
                self.respond("all", Gathered::All(output(chain, 0, 0)), stream);
            }
            2 => self.respond("listed", Gathered::Listed(vec![output(chain, 0, 0), output(chain, 0, 1)]), false),
            _ => self.head_on(Source::Last(output(chain, 0, 0))),
        }
    }

    fn lstm(&mut self) {
        let at = if self.rng.one_in(2) { Affine::EVERY } else { self.backwards() };
        let chain = self.chain_over_rows(at);
        self.respond_states(chain);
    }

    fn stacked(&mut self) {
        let mut below = self.chain_over_rows(Affine::EVERY);
        for _ in 0..self.rng.between(1, 2) {
            let inputs = vec![Source::Steps { of: output(below, 0, 0), at: Affine::EVERY }, Source::Zeros, Source::Zeros];
            below = self.add(CELLS.stacked, Extent::Fixed(self.steps), inputs, states());
        }
        self.respond_states(below);
    }

    fn bidirectional(&mut self) {
        let at = self.backwards();
        let forward = self.chain_over_rows(Affine::EVERY);
        let backward = self.chain_over_rows(at);
        let reversed = self.backwards();
        let inputs = vec![
            Source::Steps { of: output(forward, 0, 0), at: Affine::EVERY },
            Source::Steps { of: output(backward, 0, 0), at: reversed },
        ];
        let joined = self.add(CELLS.concat, Extent::Fixed(self.steps), inputs, vec![]);
        let inputs = vec![Source::Steps { of: output(joined, 0, 0), at: Affine::EVERY }, Source::Zeros, Source::Zeros];
        let top = self.add(CELLS.wide, Extent::Fixed(self.steps), inputs, states());
        self.respond_states(top);
    }

    fn encoder(&mut self) -> u32 {
        let tokens = if self.rng.one_in(2) {
            Source::Rows { tensor: 1, at: Affine::EVERY }
        } else {
            Source::Ints((0..self.steps).map(|_| self.rng.below(self.vocabulary).cast_signed()).collect())
        };
        self.add(CELLS.encoder, Extent::Fixed(self.steps), vec![tokens, Source::Zeros, Source::Zeros], states())
    }

    /// Sources of a decoder's token, h and c.
    fn decoder_inputs(&mut self, encoder: u32) -> Vec<Source> {
        let go = self.rng.below(self.vocabulary).cast_signed();
        vec![Source::Ints(vec![go]), Source::Last(output(encoder, 0, 0)), Source::Last(output(encoder, 0, 1))]
    }

    fn decoder(&mut self) -> u32 {
        let encoder = self.encoder();
        let inputs = self.decoder_inputs(encoder);
        let bound = self.rng.between(1, self.steps.saturating_mul(2));
        let decoder = self.add(CELLS.decoder, Extent::Fixed(bound), inputs, vec![feed(2, 0), feed(0, 1), feed(1, 2)]);
        self.growth.chains[decoder as usize].stop = Some((0, 3));
        decoder
    }

    fn seq2seq(&mut self) {
        let decoder = self.decoder();
        let stream = self.rng.one_in(2);
        self.respond("generated", Gathered::All(output(decoder, 0, 2)), stream);
        if self.rng.one_in(2) {
            self.head_on(Source::Last(output(decoder, 0, 0)));
        }
    }

    fn two_stage(&mut self) {
        let encoder = self.encoder();
        let inputs = self.decoder_inputs(encoder);
        let bound = self.rng.between(1, self.steps.saturating_mul(2));
        let chain = self.add(CELLS.decoder_state, Extent::Fixed(bound), inputs, states());
        let made = &mut self.growth.chains[chain as usize];
        made.stages.push(Stage { cell: CELLS.projection, inputs: vec![Source::Sibling { stage: 0, output: 0 }] });
        made.feedback.push(Feedback { stage: 1, output: 0, to_stage: 0, input: 0 });
        if !self.rng.one_in(4) {
            made.stop = Some((1, 1));
        }
        let stream = self.rng.one_in(2);
        self.respond("generated", Gathered::All(output(chain, 1, 0)), stream);
    }

    fn like(&mut self) {
        let decoder = self.decoder();
        let steps_of = |at| vec![Source::Steps { of: output(decoder, 0, 0), at }, Source::Zeros, Source::Zeros];
        let forward = self.add(CELLS.stacked, Extent::Like(decoder), steps_of(Affine::EVERY), states());
        let from_end = Affine { first: 0, stride: 1, from_end: true };
        let backward = self.add(CELLS.stacked, Extent::Like(forward), steps_of(from_end), states());
        self.respond("all", Gathered::All(output(forward, 0, 0)), false);
        self.respond("last", Gathered::Last(output(backward, 0, 0)), false);
        self.respond("generated", Gathered::All(output(decoder, 0, 2)), true);
        self.head_on(Source::Last(output(backward, 0, 1)));
    }

    /// `steps` leaves; gives their chain.
    fn leaves(&mut self) -> u32 {
        self.add(CELLS.leaf, Extent::Fixed(self.steps), vec![Source::Rows { tensor: 1, at: Affine::EVERY }], vec![])
    }

    /// Joins leaves at random until so many nodes are left; gives those. Each tree's children are adjacent, as in a sentence.
    fn join(&mut self, leaves: u32, trees: usize) -> Vec<Node> {
        let internal = leaves + 1;
        let mut open: Vec<Node> = (0..self.steps).map(|step| Node { chain: leaves, step }).collect();
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while open.len() > trees.max(1) {
            let at = self.rng.below(open.len() as u64 - 1) as usize;
            left.push(open[at]);
            right.push(open.remove(at + 1));
            open[at] = Node { chain: internal, step: left.len() as u32 - 1 };
        }
        if !left.is_empty() {
            let nodes = |output, of: &Vec<Node>| Source::Nodes { stage: 0, output, of: of.clone() };
            let inputs = vec![nodes(0, &left), nodes(1, &left), nodes(0, &right), nodes(1, &right)];
            self.add(CELLS.internal, Extent::Fixed(left.len() as u32), inputs, vec![]);
        }
        open
    }

    fn tree(&mut self) {
        let leaves = self.leaves();
        let roots = self.join(leaves, 1);
        let root = roots.first().map_or(leaves, |root| root.chain);
        self.head_on(Source::Last(output(root, 0, 0)));
    }

    fn forest(&mut self) {
        let leaves = self.leaves();
        let trees = self.rng.between(1, self.steps) as usize;
        let roots = self.join(leaves, trees);
        let count = roots.len() as u32;
        let inputs = vec![Source::Nodes { stage: 0, output: 0, of: roots }];
        let heads = self.add(CELLS.head, Extent::Fixed(count), inputs, vec![]);
        self.respond("scores", Gathered::All(output(heads, 0, 0)), false);
    }

    fn independent(&mut self) {
        let leaves = self.leaves();
        self.respond("all", Gathered::All(output(leaves, 0, 0)), self.steps.is_multiple_of(2));
    }
}
