//! A session: growths one after the other, each going on from the state that the one before kept, and with its rows.

use std::sync::Arc;

use crate::check::Model;
use crate::generate::families::{feed, output, states, tensors};
use crate::generate::{CELLS, Rng};
use crate::graph::{Affine, Chain, Continuation, Extent, Gathered, Growth, Pace, ResponseTensor, Series, Source, Span, SpanOf, Stage};
use crate::tensor::Tensor;

/// A growth of a session, with the arguments of [`crate::Unfolding::grow`].
#[derive(Clone, Debug)]
pub struct Chunk {
    /// What the plugin answers.
    pub growth: Growth,
    /// Number of `tensors[0]`.
    pub first_tensor: u32,
    /// The tensors that are there: those of the chunk before, and this chunk's two.
    pub tensors: Vec<Arc<Tensor>>,
}

/// Steps of a chunk, at most.
const STEPS_MAX: u32 = 8;
/// Rows of a state that a step sees.
const SEEN: u32 = 3;

/// So many chunks (at least 1) of 1 to 8 steps of an LSTM over `x`, and as many of a window over its states and `x`; the last one ends the session. Each answers
/// `all`, streamed.
#[must_use]
pub fn session(model: &Model, chunks: u32, rng: &mut Rng) -> Vec<Chunk> {
    let mut all: Vec<Chunk> = Vec::new();
    for chunk in 0..chunks.max(1) {
        let before = all.last().map_or_else(Vec::new, |before: &Chunk| before.tensors[before.tensors.len() - 2..].to_vec());
        all.push(one(model, chunk, chunk + 1 >= chunks, before, rng));
    }
    all
}

fn one(model: &Model, chunk: u32, ends: bool, mut tensors: Vec<Arc<Tensor>>, rng: &mut Rng) -> Chunk {
    let steps = rng.between(1, STEPS_MAX);
    let (x, first_tensor) = (2 * chunk, 2 * chunk - tensors.len() as u32);
    tensors.extend(self::tensors(model, steps, rng));
    let own = 2 * chunk;
    let before = own.checked_sub(2);
    let last = |chain: u32, of: u32| before.map_or(Source::Zeros, |before| Source::Last(output(before + chain, 0, of)));
    let chain = |cell: u32, inputs: Vec<Source>, feedback, series| Chain {
        stages: vec![Stage { cell, inputs }],
        length: Extent::Fixed(steps),
        feedback,
        stop: None,
        series,
    };
    let inputs = vec![Source::Rows { tensor: x, at: Affine::EVERY }, last(0, 0), last(0, 1)];
    let series = Some(before.map_or(Series::Begins(STEPS_MAX + SEEN), Series::Continues));
    let lstm = chain(CELLS.lstm, inputs, states(), series);
    let window = |of: SpanOf, count: u32| {
        let at = Affine { first: 1 - i64::from(count), stride: 1, from_end: false };
        Source::Many(vec![Span { of, at, every: 1, count: Some(count) }])
    };
    let inputs = vec![window(SpanOf::Chain(output(own, 0, 0)), SEEN), window(SpanOf::Tensor(x), 2), last(1, 0)];
    let window = chain(CELLS.window, inputs, vec![feed(0, 2)], None);
    let next = Continuation {
        watch: vec![],
        pace: Pace::All,
        keep: vec![output(own, 0, 0), output(own, 0, 1), output(own + 1, 0, 0)],
        keep_tensors_from: x,
        state: chunk.to_le_bytes().to_vec(),
    };
    let answer = ResponseTensor { name: "all".to_owned(), from: Gathered::All(output(own + 1, 0, 0)), stream: true };
    let growth = Growth { chains: vec![lstm, window], outputs: vec![answer], cancel: vec![], next: (!ends).then_some(next) };
    Chunk { growth, first_tensor, tensors }
}
