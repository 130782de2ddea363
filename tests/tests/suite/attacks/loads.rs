//! Models whose cells take long to measure.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::platform::summing;
use cellwright_tests::town::{Town, until};

use super::attacks;

type Form = (usize, f64);

attacks! {
    loads_of_others_wait_for_nobody = slow_loads;
}

/// Layers of [`deep`], and their width.
const LAYERS: usize = 64;
const HIDDEN: usize = 128;
/// By which a change may take longer beside an attack.
const LONGER_MAX: Duration = Duration::from_secs(2);

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

/// How long the neighbour's changes of a model take, each by itself.
pub(super) fn changes(town: &Town, bias: f32) -> Vec<(&'static str, Duration)> {
    let change = |method: &str, path: &str| {
        let answer = town.send(&town.neighbour, method, path, b"");
        assert!(matches!(answer.status, 200 | 204), "{path}: {}", answer.text());
    };
    let upload = || {
        let answer = town.upload(&town.neighbour, "mine", &summing(bias));
        assert_eq!(answer.status, 201, "{}", answer.text());
    };
    let steps: [(&str, &dyn Fn()); 5] = [
        ("upload", &upload),
        ("activation", &|| change("POST", "/v1/models/mine/versions/1/activate")),
        ("rollback", &|| change("POST", "/v1/models/mine/rollback")),
        ("unload", &|| change("POST", "/v2/repository/models/mine/unload")),
        ("load", &|| change("POST", "/v2/repository/models/mine/load")),
    ];
    let timed = |(name, step): (&'static str, &dyn Fn())| {
        let began = Instant::now();
        step();
        (name, began.elapsed())
    };
    steps.map(timed).to_vec()
}

/// Changes of the neighbour's model take not much longer than alone.
pub(super) fn goes_on(town: &Town, bias: f32, alone: &[(&'static str, Duration)]) {
    for ((name, beside), (_, alone)) in changes(town, bias).iter().zip(alone) {
        assert!(*beside <= *alone + LONGER_MAX, "{name} takes {beside:?}, and alone {alone:?}");
    }
}

fn slow_loads((requests, _): Form) {
    let town = Town::start(&[]);
    let first = town.upload(&town.neighbour, "mine", &summing(0.5));
    assert_eq!(first.status, 201, "{}", first.text());
    let alone = changes(&town, 1.5);
    let (seed, bias) = (AtomicU32::new(1), AtomicU32::new(2));
    // A batch that is measured keeps a worker for 30 ms and more, so half of the requests alone are held to the bound.
    town.endures(requests, 0.5, |over| {
        thread::scope(|scope| {
            for name in ["one", "two"] {
                let attack = || {
                    let uploaded = town.upload(&town.attacker, name, &deep(seed.fetch_add(1, Ordering::Relaxed)));
                    assert_eq!(uploaded.status, 201, "{}", uploaded.text());
                };
                scope.spawn(move || until(over, attack));
            }
            until(over, || goes_on(&town, bias.fetch_add(1, Ordering::Relaxed) as f32, &alone));
        });
    });
}
