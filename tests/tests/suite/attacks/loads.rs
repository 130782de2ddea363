//! Models whose cells take long to measure.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::town::{Town, until};

use super::attacks;

type Form = (usize, f64);

attacks! {
    loads_of_others_wait_for_nobody = slow_loads;
}

/// Layers of [`deep`], and their width.
const LAYERS: usize = 64;
const HIDDEN: usize = 128;
/// Many cells whose weights nobody has seen.
fn deep(seed: u32) -> BundleFolder {
    let bundle = BundleFolder::dense();
    bundle.edit("model.toml", "hidden = 3", &format!("hidden = {HIDDEN}\nlayers = {LAYERS}"));
    bundle.edit("model.toml", "ignore = [\"embedding.\"]\n", "");
    let gates = 4 * HIDDEN;
    let values: Vec<f32> = (0..gates * HIDDEN).map(|n| ((n as u32).wrapping_mul(seed) % 97) as f32 / 1000.0).collect();
    let of_layer = |layer: usize| {
        let inputs = if layer == 0 { 4 } else { HIDDEN };
        let shapes =
            [("weight_ih", vec![gates, inputs]), ("weight_hh", vec![gates, HIDDEN]), ("bias_ih", vec![gates]), ("bias_hh", vec![gates])];
        shapes.map(|(name, shape)| (format!("lstm.{name}_l{layer}"), shape))
    };
    let named: Vec<_> = (0..LAYERS).flat_map(of_layer).collect();
    let weights: Vec<_> = named.iter().map(|(name, shape)| (name.as_str(), shape.as_slice(), &values[..shape.iter().product()])).collect();
    bundle.weights(&weights);
    bundle
}

fn slow_loads((requests, _): Form) {
    let town = Town::start(&[]);
    let seed = AtomicU32::new(1);
    // A batch that is measured keeps a worker for some time, so half of the requests alone are held to the bound.
    town.endures(requests, 0.5, |over| {
        thread::scope(|scope| {
            for name in ["one", "two"] {
                let attack = || {
                    let uploaded = town.upload(&town.attacker, name, &deep(seed.fetch_add(1, Ordering::Relaxed)));
                    assert_eq!(uploaded.status, 201, "{}", uploaded.text());
                };
                scope.spawn(move || until(over, attack));
            }
        });
    });
}
