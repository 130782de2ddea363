//! Bundles that the tests serve, and requests for them.

use cellwright_tests::bundle_folder::BundleFolder;
use serde_json::{Value, json};

/// Elements of a row of [`wide`].
pub(super) const WIDTH: usize = 1 << 16;

/// One row for the summing model, whose answer is [2, 4, 6, 8].
pub(super) const INFER: &str = r#"{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}"#;
/// The same for `generate`.
pub(super) const GENERATE: &str = r#"{"x":[[1,2,3,4]]}"#;

/// The summing model with a second output: `sums` holds the sum after each step. A request that [`streamed`] made streams it.
pub(super) fn parts() -> BundleFolder {
    let bundle = BundleFolder::summing();
    bundle.parameter("describe", "\"sums\"");
    let sample = r#"{"parameters":{"behave":"stream-all"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
    bundle.write("samples.jsonl", sample.as_bytes());
    bundle
}

/// A request of [`parts`] for `generate_stream`, of so many rows of ones.
pub(super) fn streamed(rows: usize) -> Value {
    json!({ "id": "mine", "parameters": { "behave": "stream-all" }, "x": vec![[1, 1, 1, 1]; rows] })
}

/// Streams a row of [`WIDTH`] numbers, which are 0, 1, 2 and so on, for each row of its input `x` [n, 1].
pub(super) fn wide() -> BundleFolder {
    let bundle = BundleFolder::dense();
    let counted: Vec<f32> = (0_u16..=u16::MAX).map(f32::from).collect();
    bundle.write(
        "model.toml",
        b"name = \"wide\"\nplugin = \"builtin:chain\"\nweights = \"weights.safetensors\"\n\n[parameters]\ncell = \"rnn\"\ninput = \"x\"\n\
          features = 1\nhidden = 1\noutput = \"all\"\nhead = \"head.\"\nclasses = 65536\n\n[samples]\nrequests = \"samples.jsonl\"\n",
    );
    bundle.write("samples.jsonl", br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[0]}]}"#);
    bundle.weights(&[
        ("weight_ih_l0", &[1, 1], &[0.0]),
        ("weight_hh_l0", &[1, 1], &[0.0]),
        ("bias_ih_l0", &[1], &[0.0]),
        ("bias_hh_l0", &[1], &[0.0]),
        ("head.weight", &[WIDTH, 1], &[0.0; WIDTH]),
        ("head.bias", &[WIDTH], &counted),
    ]);
    bundle
}

/// A request of [`wide`] with so many rows.
pub(super) fn wide_rows(rows: usize) -> Value {
    json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [rows, 1], "data": vec![0; rows] }] })
}

/// Streams the state of each step of a chain over tokens below 5, and fails at a token beyond.
pub(super) fn tokens() -> BundleFolder {
    let bundle = BundleFolder::recurrent();
    bundle.edit("model.toml", "max_length = 16", "max_length = 4096");
    bundle.edit("model.toml", "output = \"last\"", "output = \"all\"");
    bundle
}

/// A model whose calls that ask for `loop` use up that little time of the processor and fail.
pub(super) fn looping() -> BundleFolder {
    let bundle = BundleFolder::summing();
    bundle.edit("model.toml", "[samples]", "[limits]\ncpu_ms = 50\n\n[samples]");
    bundle
}

/// A request that loops in its plugin.
pub(super) const LOOP: &str =
    r#"{"parameters":{"behave":"loop"},"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}"#;
