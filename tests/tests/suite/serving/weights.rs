//! Weights: when they are read, and what is left of them.

use std::sync::Arc;

use cellwright_bundle::{Bundle, PluginBytes};
use cellwright_cell_graph::{Attribute, AttributeValue, Tensor, Weights};
use cellwright_engine::{EngineOptions, ModelError};
use cellwright_serving::LoadError;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::host::Host;

use super::host;

#[test]
fn room_is_asked_for_before_weights_are_read() {
    let (folder, host) =
        (BundleFolder::recurrent(), Host::start(EngineOptions { weight_bytes_max: Some(100), ..EngineOptions::default() }));
    let bundle = Bundle::open(folder.path()).unwrap();
    // Of which the header was read.
    folder.remove("weights.safetensors");
    let refused = host.serving().load(&bundle, "tests").unwrap_err();
    let bytes = 4 * (5 * 4 + 12 * 4 + 12 * 3 + 12 + 12);
    assert!(matches!(refused, LoadError::Engine(ModelError::Weights { needed, held: 0 }) if needed == bytes), "{refused}");
    let refused = super::host().serving.load(&bundle, "tests").unwrap_err();
    assert!(matches!(refused, LoadError::Weights(_)), "{refused}");
}

#[test]
fn a_model_holds_its_weights_as_devices_read_them_and_no_longer_as_they_came() {
    let weight = |name: &str, shape: &[usize]| Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()]);
    let weights = [
        weight("lstm.weight_ih_l0", &[256, 8]),
        weight("lstm.weight_hh_l0", &[256, 64]),
        weight("lstm.bias_ih_l0", &[256]),
        weight("lstm.bias_hh_l0", &[256]),
    ];
    let weights: Weights = weights.into_iter().collect();
    let set = |name: &str, value| Attribute { name: name.to_owned(), value };
    let text = |name: &str, value: &str| set(name, AttributeValue::Text(value.to_owned()));
    let int = |name: &str, value| set(name, AttributeValue::Int(value));
    let parameters = vec![text("cell", "lstm"), int("features", 8), int("hidden", 64), text("input", "x"), text("weights", "lstm.")];
    let bundle = Bundle::in_memory("m", PluginBytes::builtin("chain").unwrap(), parameters, weights.clone());
    let host = host();
    let models = [0, 1].map(|_| host.serving.load(&bundle, "tests").unwrap());
    assert!(weights.iter().all(|weight| Arc::strong_count(weight) == 2), "the bundle and this test have them");
    let held = models[0].loaded().weight_bytes();
    // Both biases are one.
    assert!(held >= 4 * (256 * 8 + 256 * 64 + 256), "{held}");
    assert_eq!(host.serving.engine().snapshot().weight_bytes, held, "both have the same");
}
