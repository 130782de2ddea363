//! Random models and random valid growths, seeded, for the tests of this and of other crates.
//!
//! Everything here is what a plugin might say: it goes through the same checks as a plugin's answer.

mod cells;
mod families;
mod random;
mod seeds;
mod session;
mod wild;

use std::sync::Arc;

use crate::check::{GraphLimits, Model, Unfolding};
use crate::graph::Growth;
use crate::resolve::{CellLimits, ResolveContext};
use crate::tensor::Tensor;
use crate::typed::Precision;
use crate::unfolded::UnfoldedGrowth;

pub use cells::{CELLS, ModelShape, description, weights};
pub use families::{Family, growth_of};
pub use random::Rng;
pub use seeds::{more_seeds, seeds, try_each};
pub use session::{Chunk, session};
pub use wild::{garble, wild, wild_growths, wild_pair};

/// A small model of all the generator's cells, with random widths and weights.
///
/// # Panics
/// If the generator's own cells do not resolve.
#[must_use]
pub fn model(seed: u64) -> Arc<Model> {
    model_of(shape_of(seed), seed)
}

/// The same with a cell that has ragged inputs.
///
/// # Panics
/// If the generator's own cells do not resolve.
#[must_use]
pub fn model_with_spans(seed: u64) -> Arc<Model> {
    model_of(ModelShape { spans: true, ..shape_of(seed) }, seed)
}

/// The widths of [`model`].
#[must_use]
pub fn shape_of(seed: u64) -> ModelShape {
    let mut rng = Rng::new(seed);
    ModelShape { width: rng.between(1, 6), hidden: rng.between(2, 8), vocabulary: rng.between(4, 12), spans: false }
}

/// The same cells with those widths.
///
/// # Panics
/// If the generator's own cells do not resolve.
#[must_use]
pub fn model_of(shape: ModelShape, seed: u64) -> Arc<Model> {
    model_at(shape, seed, Precision::F32)
}

/// The same computed at that precision.
///
/// # Panics
/// If the generator's own cells do not resolve.
#[must_use]
pub fn model_at(shape: ModelShape, seed: u64, precision: Precision) -> Arc<Model> {
    let mut rng = Rng::new(seed);
    let weights = weights(shape, &mut rng);
    let context = ResolveContext { weights: &weights, precision, tenant: "test", limits: CellLimits::default(), may_copy: &|_| true };
    match Model::resolve(description(shape), &context) {
        Ok(model) => Arc::new(model),
        Err(error) => panic!("{error}"),
    }
}

/// A valid first growth of a random family and length (1 to 24 steps), and its request's tensors.
#[must_use]
pub fn growth(model: &Model, rng: &mut Rng) -> (Growth, Vec<Arc<Tensor>>) {
    let family = Family::ALL[rng.below(Family::ALL.len() as u64) as usize];
    let steps = rng.between(1, 24);
    growth_of(model, family, steps, rng)
}

/// A first growth, checked.
///
/// # Panics
/// If the growth is not valid.
#[must_use]
pub fn unfold(model: &Arc<Model>, growth: Growth, tensors: &[Arc<Tensor>]) -> Arc<UnfoldedGrowth> {
    match Unfolding::new(Arc::clone(model), GraphLimits::default()).grow(growth, 0, tensors) {
        Ok(unfolded) => Arc::new(unfolded),
        Err(error) => panic!("{error}"),
    }
}
