//! The checks, against tables of refusals and a slow oracle.

use crate::generate;

#[test]
fn every_generated_growth_is_valid() {
    for seed in 0..500 {
        let model = generate::model(seed % 7);
        let mut rng = generate::Rng::new(seed);
        let (growth, tensors) = generate::growth(&model, &mut rng);
        let _ = generate::unfold(&model, growth, &tensors);
    }
}
