//! Requests at random: what they are, and what may come of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::generate::{self, Chunk, Family, Rng};
use cellwright_cell_graph::graph::Growth;
use cellwright_cell_graph::{Datatype, Tensor, UnfoldedGrowth};
use cellwright_conformance::reference::Elements;
use cellwright_engine::{RequestFailure, RequestTensors};
use cellwright_tests::graphs::{Answer, Outcome};
use cellwright_tests::naive::{At, Compute, Naive};

/// A request, and what must come of it.
pub(crate) struct Request {
    pub(crate) growths: Vec<(Arc<UnfoldedGrowth>, RequestTensors)>,
    wanted: Naive,
    /// Whether it may be answered: it names nothing that is not there.
    sound: bool,
    /// How far these come is nobody's business.
    cancelled: BTreeSet<u32>,
}

/// What a request has to put up with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// Its client has left.
    pub(crate) left: bool,
    /// Few may wait for a place.
    pub(crate) crowded: bool,
    /// It has a deadline.
    pub(crate) hurries: bool,
    /// Its model goes.
    pub(crate) refused: bool,
    /// A worker is lost, now or later.
    pub(crate) lost: bool,
    /// Its model has no room for growths.
    pub(crate) may_not_grow: bool,
}

impl Request {
    /// One of any kind, that grows only where it may.
    pub(crate) fn new(model: &Arc<Model>, compute: &Compute, (grows, steps_most): (bool, u32), rng: &mut Rng) -> Self {
        loop {
            let growths = match rng.below(if grows { 8 } else { 5 }) {
                0..3 => {
                    let family = Family::ALL[rng.below(Family::ALL.len() as u64) as usize];
                    let most = if rng.one_in(4) { steps_most } else { steps_most.min(16) };
                    let steps = rng.between(1, most);
                    whole(generate::growth_of(model, family, steps, rng))
                }
                3..5 => whole(generate::wild(model, rng)),
                5..7 => {
                    let count = rng.between(2, 5);
                    let (growths, tensors) = generate::wild_growths(model, count, rng);
                    growths.into_iter().map(|growth| Chunk { growth, first_tensor: 0, tensors: tensors.clone() }).collect()
                }
                _ => {
                    let chunks = rng.between(2, 6);
                    generate::session(model, chunks, rng)
                }
            };
            if let Some(request) = Self::of(model, compute, growths) {
                return request;
            }
        }
    }

    /// As many growths as are valid.
    fn of(model: &Arc<Model>, compute: &Compute, chunks: Vec<Chunk>) -> Option<Self> {
        let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
        let mut request =
            Self { growths: Vec::new(), wanted: Naive::by(compute.clone(), model.clone()), sound: true, cancelled: BTreeSet::new() };
        for Chunk { growth, first_tensor, tensors } in chunks {
            let uncancelled = Growth { cancel: vec![], ..growth.clone() };
            let unfolded = unfolding.grow(growth, first_tensor, &tensors).or_else(|_| unfolding.grow(uncancelled, first_tensor, &tensors));
            let Ok(unfolded) = unfolded else { break };
            request.sound = request.sound && request.wanted.grow(&unfolded, first_tensor, &tensors).is_ok();
            request.cancelled.extend(&unfolded.cancel);
            request.growths.push((Arc::new(unfolded), RequestTensors { first: first_tensor, tensors }));
        }
        (!request.growths.is_empty()).then_some(request)
    }

    /// Whether that may come of it.
    pub(crate) fn check(&self, answer: &Answer, fate: Fate) -> Result<(), String> {
        match &answer.outcome {
            Outcome::Finished if self.sound || !self.cancelled.is_empty() => {}
            Outcome::Failed(RequestFailure::BeyondEnd { .. } | RequestFailure::Row(_)) if !self.sound => {}
            Outcome::Failed(RequestFailure::Cancelled) if fate.left => {}
            Outcome::Failed(RequestFailure::Late { .. }) if fate.hurries => {}
            Outcome::Failed(RequestFailure::Overloaded) if fate.crowded => {}
            Outcome::Failed(RequestFailure::NoWorker) if fate.refused || fate.lost => {}
            Outcome::Failed(RequestFailure::WorkerLost) if fate.lost => {}
            Outcome::Failed(RequestFailure::GrewTooLarge { .. }) if self.growths.len() > 1 => {}
            Outcome::Failed(RequestFailure::TooLarge { needed, available }) if needed > available => {}
            Outcome::Failed(RequestFailure::MayNotGrow) if fate.may_not_grow && self.growths.len() > 1 => {}
            outcome => return Err(format!("it ended with {outcome:?}; sound: {}, {fate:?}", self.sound)),
        }
        let finished = answer.outcome == Outcome::Finished && self.sound;
        self.values(answer, finished)?;
        self.ends(answer, finished)
    }

    fn values(&self, answer: &Answer, finished: bool) -> Result<(), String> {
        for (at, bytes) in &answer.values {
            match self.wanted.delivered.get(at) {
                Some((datatype, value)) if !same(*datatype, value, bytes) => {
                    let found = Elements::from_bytes(*datatype, bytes);
                    return Err(format!("{at:?} (chain, stage, output, step) is {found:?}, not {value:?}"));
                }
                None if self.sound && !self.cancelled.contains(&at.0) => return Err(format!("{at:?} was delivered to nobody")),
                _ => {}
            }
        }
        let missing = |at: &&At| !answer.values.contains_key(at) && !self.cancelled.contains(&at.0);
        match self.wanted.delivered.keys().find(missing) {
            Some(at) if finished => Err(format!("{at:?} was not delivered")),
            _ => Ok(()),
        }
    }

    fn ends(&self, answer: &Answer, finished: bool) -> Result<(), String> {
        let known = self.wanted.ended.iter().filter(|(chain, _)| !self.cancelled.contains(chain));
        for (chain, steps) in known {
            match answer.ended.get(chain) {
                Some(ended) if ended != steps => return Err(format!("chain {chain} ended after {ended}, not {steps} steps")),
                None if finished => return Err(format!("nobody said that chain {chain} ended after {steps} steps")),
                _ => {}
            }
        }
        Ok(())
    }
}

fn whole((growth, tensors): (Growth, Vec<Arc<Tensor>>)) -> Vec<Chunk> {
    vec![Chunk { growth, first_tensor: 0, tensors }]
}

/// Which bits stand for what is no number may depend on the instructions that it came out of.
fn same(datatype: Datatype, value: &Elements, bytes: &[u8]) -> bool {
    let are_same = |wanted: &f64, given: &f64| wanted.to_bits() == given.to_bits() || (wanted.is_nan() && given.is_nan());
    match (value, Elements::from_bytes(datatype, bytes)) {
        (Elements::Floats(wanted), Elements::Floats(given)) => {
            wanted.len() == given.len() && wanted.iter().zip(&given).all(|(wanted, given)| are_same(wanted, given))
        }
        _ => value.to_bytes(datatype) == bytes,
    }
}
