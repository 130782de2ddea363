//! A session: growths one after the other, each going on from the state that the one before kept.

use std::sync::Arc;

use crate::check::Model;
use crate::generate::families::{output, states, tensors};
use crate::generate::{CELLS, Rng};
use crate::graph::{Affine, Chain, Continuation, Extent, Gathered, Growth, Pace, ResponseTensor, Source, Stage};
use crate::tensor::Tensor;

/// A growth of a session, with the arguments of [`crate::Unfolding::grow`].
#[derive(Clone, Debug)]
pub struct Chunk {
    /// What the plugin answers.
    pub growth: Growth,
    /// Number of `tensors[0]`.
    pub first_tensor: u32,
    /// The tensors that are there: this chunk's.
    pub tensors: Vec<Arc<Tensor>>,
}

/// So many chunks (at least 1) of 1 to 8 steps of an LSTM over `x`; the last one ends the session. Each answers `all`, streamed.
#[must_use]
pub fn session(model: &Model, chunks: u32, rng: &mut Rng) -> Vec<Chunk> {
    (0..chunks.max(1)).map(|chunk| one(model, chunk, chunk + 1 >= chunks, rng)).collect()
}

fn one(model: &Model, chunk: u32, ends: bool, rng: &mut Rng) -> Chunk {
    let steps = rng.between(1, 8);
    let tensors = tensors(model, steps, rng);
    let first_tensor = 2 * chunk;
    let before = |of| chunk.checked_sub(1).map_or(Source::Zeros, |before| Source::Last(output(before, 0, of)));
    let inputs = vec![Source::Rows { tensor: first_tensor, at: Affine::EVERY }, before(0), before(1)];
    let chain = Chain { stages: vec![Stage { cell: CELLS.lstm, inputs }], length: Extent::Fixed(steps), feedback: states(), stop: None };
    let next = Continuation {
        watch: vec![],
        pace: Pace::All,
        keep: vec![output(chunk, 0, 0), output(chunk, 0, 1)],
        keep_tensors_from: first_tensor + 2,
        state: chunk.to_le_bytes().to_vec(),
    };
    let answer = ResponseTensor { name: "all".to_owned(), from: Gathered::All(output(chunk, 0, 0)), stream: true };
    let growth = Growth { chains: vec![chain], outputs: vec![answer], cancel: vec![], next: (!ends).then_some(next) };
    Chunk { growth, first_tensor, tensors }
}
