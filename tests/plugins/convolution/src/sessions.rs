//! The same network over a session. Each layer goes on where it ended. The last one sees two rows ahead, so it lags behind until the end.

use cellwright_guest::Frames;
use cellwright_guest::prelude::*;
use cellwright_guest::types::{Span, SpanOf};

use crate::{Convolution, FRAME, HOP};

/// Frames of a part, at most.
const STEPS_MAX: u32 = 256;
/// Rows that are held of each layer: a part's, and those that the layer above may still see.
const HELD: u32 = STEPS_MAX + 8;
/// The largest nodes that a session may hold at once.
pub const LIVE_MAX: u32 = 4 * HELD;

/// What the next part is told: elements, frames and rows of the answer so far, chains, where the last chain of layers began and ended, the first
/// kept tensor, and how many elements each kept tensor has.
#[derive(Clone, Default)]
struct State {
    elements: u32,
    frames: u32,
    answered: u32,
    chains: u32,
    /// The first of the chains of the last layers, and the frames before their first step.
    layers: Option<(u32, u32)>,
    first_tensor: u32,
    tensors: Vec<u32>,
}

impl State {
    fn read(bytes: &[u8]) -> Self {
        let mut numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or_default();
        let [elements, frames, answered, chains, layers, before, first_tensor] = std::array::from_fn(|_| next());
        let layers = layers.checked_sub(1).map(|first| (first, before));
        Self { elements, frames, answered, chains, layers, first_tensor, tensors: numbers.collect() }
    }

    fn written(&self) -> Vec<u8> {
        let Self { elements, frames, answered, chains, layers, first_tensor, tensors } = self;
        let (layers, before) = layers.map_or((0, 0), |(first, before)| (first + 1, before));
        let numbers = [*elements, *frames, *answered, *chains, layers, before, *first_tensor];
        numbers.into_iter().chain(tensors.iter().copied()).flat_map(u32::to_le_bytes).collect()
    }

    /// Lets go of tensors of which no later frame takes an element.
    fn let_go(&mut self) {
        let mut begin = self.elements - self.tensors.iter().sum::<u32>();
        while let Some(first) = self.tensors.first().filter(|first| begin + **first <= self.frames * HOP) {
            begin += first;
            self.tensors.remove(0);
            self.first_tensor += 1;
        }
    }
}

impl Convolution {
    pub fn first_part(&self, request: &Request) -> Result<Growth, Refusal> {
        self.part(request, State::default())
    }

    pub fn next(&self, state: &[u8], event: &Event, request: &Request) -> Result<Reaction, Refusal> {
        let state = State::read(state);
        Ok(Reaction::grow(match event {
            Event::Input(_) => self.part(request, state)?,
            Event::EndOfInput => {
                let mut growth = GrowthBuilder::after(state.chains);
                // Of the rows that are not there the last layer sees zeros.
                let rows = state.frames.checked_sub(2).map_or(0, |others| others / 2 + 1);
                self.answer(&mut growth, &state, rows);
                growth.finish()
            }
            Event::Values(_) => return Err(Refusal::Internal("nothing was watched".into())),
        }))
    }

    fn part(&self, request: &Request, mut state: State) -> Result<Growth, Refusal> {
        let audio = request.input("audio")?;
        let [elements] = audio.spec.shape[..] else { return Err(audio.wrong(Fp32, &[-1])) };
        let elements = u32::try_from(elements).map_err(|_| audio.refusal("is too long"))?;
        let before = state.elements;
        state.elements += elements;
        state.tensors.push(elements);
        let frames = state.elements.checked_sub(FRAME).map_or(0, |behind| behind / HOP + 1);
        let steps = frames - state.frames;
        let mut growth = GrowthBuilder::after(state.chains);
        if steps > STEPS_MAX {
            return Err(audio.refusal(format!("brings {steps} frames, and a part has at most {STEPS_MAX}")));
        }
        if steps > 0 {
            // The first new frame begins in this tensor, or in an earlier one.
            let new = Frames { tensor: audio.tensor, hop: HOP, count: steps };
            let source = new.before(before - state.frames * HOP);
            let last = state.layers.map(|(first, _)| first);
            let [x, ..] =
                self.layers(&mut growth, (steps, source), |chain, layer| chain.series(HELD, last.map(|first| first + layer as u32)));
            state.layers = Some((x.chain, state.frames));
            state.frames = frames;
        }
        // Row j of the answer sees rows 2j − 1 to 2j + 2 of the layer below.
        let rows = state.frames.checked_sub(3).map_or(0, |others| others / 2 + 1);
        self.answer(&mut growth, &state, rows);
        state.answered = state.answered.max(rows);
        for chain in state.layers.map_or(0..0, |(first, _)| first..first + 3) {
            growth.keep(OutputRef { chain, stage: 0, output: 0 });
        }
        state.let_go();
        state.chains = growth.chains();
        growth.await_input(state.first_tensor).state(state.written());
        Ok(growth.finish())
    }

    /// Answers so many rows, but for those that have left.
    fn answer(&self, growth: &mut GrowthBuilder, state: &State, rows: u32) {
        let (Some((layers, before)), Some(more @ 1..)) = (state.layers, rows.checked_sub(state.answered)) else { return };
        let of = SpanOf::Chain(OutputRef { chain: layers + 2, stage: 0, output: 0 });
        let at = Affine { first: 2 * i64::from(state.answered) - 1 - i64::from(before), stride: 2, from_end: false };
        let y = self.last_layer(growth, more, Source::Many(vec![Span { of, at, every: 1, count: Some(4) }]));
        growth.output_all("y", y);
    }
}
