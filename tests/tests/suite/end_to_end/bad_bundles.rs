//! Bundles that are refused, each with a sentence that names what is wrong with it.

use cellwright_tests::bundle_folder::{BundleFolder, HOSTILE};
use cellwright_tests::host::Host;
use cellwright_tests::neighbours::beside;

/// What is done to a sound bundle, and what its owner must read (all of these pieces, in this order).
type Case = (&'static str, fn(&BundleFolder), &'static [&'static str]);

const FILES: &[Case] = &[
    ("no model.toml", |bundle| bundle.remove("model.toml"), &["`model.toml`", "missing"]),
    ("no plugin", |bundle| bundle.remove("plugin.wasm"), &["`plugin.wasm`", "missing"]),
    ("no weights", |bundle| bundle.remove("weights.safetensors"), &["`weights.safetensors`", "missing"]),
    ("no samples", |bundle| bundle.remove("samples.jsonl"), &["`samples.jsonl`", "missing"]),
    ("empty samples", |bundle| bundle.write("samples.jsonl", b"\n"), &["`samples.jsonl`", "no samples"]),
    ("an outside file", |bundle| bundle.edit("model.toml", "\"plugin.wasm\"", "\"../plugin.wasm\""), &["../plugin.wasm", "inside"]),
    ("an unknown stock plugin", |bundle| bundle.edit("model.toml", "plugin.wasm", "builtin:oracle"), &["builtin:oracle", "chain"]),
];

const MANIFEST: &[Case] = &[
    ("an unknown key", |bundle| bundle.edit("model.toml", "[samples]", "[samples]\ncolour = 1"), &["model.toml", "colour", "requests"]),
    ("an unknown table", |bundle| bundle.edit("model.toml", "[samples]", "[extras]\na = 1\n[samples]"), &["model.toml", "extras"]),
    ("a value of another type", |bundle| bundle.edit("model.toml", "\"sums\"", "7"), &["model.toml", "line 1", "string"]),
    ("no TOML", |bundle| bundle.write("model.toml", b"name = "), &["model.toml", "line 1"]),
    ("a bad name", |bundle| bundle.edit("model.toml", "\"sums\"", "\"../sums\""), &["model.toml", "../sums"]),
    (
        "an unknown precision",
        |bundle| bundle.edit("model.toml", "[parameters]", "precision = \"f8\"\n[parameters]"),
        &["model.toml", "line 5", "f8", "f32"],
    ),
    (
        "a limit of nothing",
        |bundle| bundle.edit("model.toml", "[samples]", "[limits]\nnodes_max = 0\n[samples]"),
        &["limits.nodes_max", "0"],
    ),
    (
        "no calls at all",
        |bundle| bundle.edit("model.toml", "[samples]", "[limits]\nin_flight_max = 0\n[samples]"),
        &["limits.in_flight_max", "0"],
    ),
    (
        "a share beyond the whole",
        |bundle| bundle.edit("model.toml", "[samples]", "[limits]\ndevice_share = 1.5\n[samples]"),
        &["limits.device_share", "1.5", "at most 1"],
    ),
    (
        "a cell that is not there",
        |bundle| bundle.edit("model.toml", "[samples]", "[cells.mul]\nbatch_max = 8\n[samples]"),
        &["cells.mul", "`add`"],
    ),
];

const WEIGHTS: &[Case] = &[
    ("a missing weight", |bundle| bundle.weights(&[("other", &[4], &[0.0; 4])]), &["`add`", "bias"]),
    ("a weight of another shape", |bundle| bundle.weights(&[("bias", &[3], &[0.0; 3])]), &["`add`", "4", "3"]),
    ("no safetensors", |bundle| bundle.write("weights.safetensors", b"nothing of the kind"), &["`weights.safetensors`", "safetensors"]),
    ("a truncated file", truncate_weights, &["`weights.safetensors`", "safetensors"]),
    ("small integers", |bundle| bundle.write("weights.safetensors", &small_integers()), &["`weights.safetensors`", "`bias`", "U8"]),
    ("a prefix", |bundle| bundle.weights(&[("module.bias", &[4], &[0.0; 4])]), &["`add`", "bias", "`module.bias`", "begin with `module.`"]),
    (
        "a weight that nothing reads",
        |bundle| bundle.weights(&[("bias", &[4], &[0.0; 4]), ("stale", &[1], &[0.0])]),
        &["`weights.safetensors`", "`stale`", "ignore = [\"stale\"]"],
    ),
    (
        "a weight that is no number",
        |bundle| bundle.weights(&[("bias", &[4], &[0.0, f32::NAN, 0.0, 0.0])]),
        &["`weights.safetensors`", "`bias`", "NaN at element 1", "allow_non_finite = [\"bias\"]"],
    ),
];

const PLUGINS: &[Case] = &[
    ("no WebAssembly", |bundle| bundle.write("plugin.wasm", b"#!/bin/sh"), &["plugin.wasm", "not valid WebAssembly"]),
    (
        "a truncated component",
        |bundle| bundle.write("plugin.wasm", &HOSTILE[..HOSTILE.len() / 2]),
        &["plugin.wasm", "not valid WebAssembly"],
    ),
    ("another version of the ABI", |bundle| bundle.write("plugin.wasm", &of_version(b"9.1.0")), &["9.1.0", "0.1.0"]),
    ("a module that is no plugin", |bundle| bundle.write("plugin.wasm", b"\0asm\x01\0\0\0"), &["plugin.wasm", "plugin"]),
];

const SAMPLES: &[Case] = &[
    ("no JSON", |bundle| bundle.write("samples.jsonl", b"{"), &["`samples.jsonl`", "line 1"]),
    (
        "too few elements",
        |bundle| bundle.write("samples.jsonl", br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,4],"data":[1]}]}"#),
        &["`samples.jsonl`", "line 1", "x", "8"],
    ),
];

#[test]
fn missing_and_stray_files_are_named() {
    all_refused(FILES);
}

#[test]
fn wrong_manifests_are_refused_by_key() {
    all_refused(MANIFEST);
}

#[test]
fn wrong_weights_are_refused_by_name() {
    all_refused(WEIGHTS);
}

#[test]
fn what_is_no_plugin_is_refused() {
    all_refused(PLUGINS);
}

#[test]
fn unreadable_samples_are_refused_by_line() {
    all_refused(SAMPLES);
}

fn all_refused(cases: &[Case]) {
    let host = Host::shared();
    let wrong: Vec<String> = beside(host, host.summing(), || {
        cases
            .iter()
            .filter_map(|(what, spoil, wanted)| {
                let bundle = BundleFolder::summing();
                spoil(&bundle);
                super::sentence::complaint(what, host.load(&bundle).map(|_| ()), wanted)
            })
            .collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn truncate_weights(bundle: &BundleFolder) {
    let path = bundle.path().join("weights.safetensors");
    let bytes = std::fs::read(path).expect("weights of a sound bundle");
    bundle.write("weights.safetensors", &bytes[..bytes.len() - 1]);
}

fn small_integers() -> Vec<u8> {
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![4], &[0; 4]).expect("four bytes");
    safetensors::serialize([("bias", view)], None).expect("weights that can be written")
}

/// The hostile plugin, speaking of itself as written against another version of the ABI (of as many characters).
fn of_version(version: &[u8; 5]) -> Vec<u8> {
    let mut bytes = HOSTILE.to_vec();
    let mut found = 0;
    for start in 0..bytes.len() - 6 {
        if &bytes[start..start + 6] == b"@0.1.0" {
            bytes[start + 1..start + 6].copy_from_slice(version);
            found += 1;
        }
    }
    assert!(found > 0, "the plugin names its version");
    bytes
}
