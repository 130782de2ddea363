//! Bundles in temporary folders, made sound and then spoiled one thing at a time.

use std::path::Path;

use tempfile::TempDir;

/// The component built from `tests/plugins/hostile`.
pub const HOSTILE: &[u8] = include_bytes!("../plugins/prebuilt/hostile.wasm");

/// The component built from `tests/plugins/attention`.
pub const ATTENTION: &[u8] = include_bytes!("../plugins/prebuilt/attention.wasm");

/// The component built from `tests/plugins/convolution`.
pub const CONVOLUTION: &[u8] = include_bytes!("../plugins/prebuilt/convolution.wasm");

/// Hidden size of [`BundleFolder::recurrent`].
pub const HIDDEN: usize = 3;
/// Vocabulary of [`BundleFolder::recurrent`].
pub const VOCABULARY: usize = 5;

/// A bundle in a folder that is deleted with it.
#[derive(Debug)]
pub struct BundleFolder {
    folder: TempDir,
}

impl BundleFolder {
    /// The model of `tests/plugins/hostile`: `sum` is the column-wise sum of the rows of `x` [n, 4], and of `bias` once a row.
    /// Whoever wants it to misbehave says so in a request (`behave`) or with [`BundleFolder::parameter`] (`describe`).
    #[must_use]
    pub fn summing() -> Self {
        let bundle = Self { folder: TempDir::new().expect("a temporary folder") };
        bundle.write(
            "model.toml",
            b"name = \"sums\"\nplugin = \"plugin.wasm\"\nweights = \"weights.safetensors\"\n\n[parameters]\n\n[samples]\nrequests = \"samples.jsonl\"\n",
        );
        bundle.write("plugin.wasm", HOSTILE);
        bundle.weights(&[("bias", &[4], &[1.0, 2.0, 3.0, 4.0])]);
        bundle.write("samples.jsonl", br#"{"id":"one","inputs":[{"name":"x","datatype":"FP32","shape":[2,4],"data":[1,2,3,4,5,6,7,8]}]}"#);
        bundle
    }

    /// The same where the rows of an input are requests: `x` [calls, n, 4].
    #[must_use]
    pub fn summing_rows() -> Self {
        let bundle = Self::summing();
        bundle.parameter("describe", "\"rows\"");
        bundle
            .write("samples.jsonl", br#"{"id":"one","inputs":[{"name":"x","datatype":"FP32","shape":[1,2,4],"data":[1,2,3,4,5,6,7,8]}]}"#);
        bundle
    }

    /// An LSTM over token ids (`tokens` INT64 `[n]`, 1 ≤ n ≤ 16, each under [`VOCABULARY`]) with the stock plugin `chain`; its answer is `hidden`.
    #[must_use]
    pub fn recurrent() -> Self {
        let bundle = Self::chain("input = \"tokens\"\nvocabulary = 5\nembedding = 4\nembedding_weights = \"embedding.\"");
        bundle.write("samples.jsonl", br#"{"id":"one","inputs":[{"name":"tokens","datatype":"INT64","shape":[3],"data":[0,1,4]}]}"#);
        bundle
    }

    /// The same over dense rows (`x` FP32 [n, 4]).
    #[must_use]
    pub fn dense() -> Self {
        let bundle = Self::chain("input = \"x\"\nfeatures = 4");
        bundle.edit("model.toml", "[parameters]", "ignore = [\"embedding.\"]\n\n[parameters]");
        bundle.write("samples.jsonl", br#"{"id":"one","inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0,1,2,3]}]}"#);
        bundle
    }

    /// A model of that plugin, with those parameters and weights. `input` is the one of its sample, as JSON.
    #[must_use]
    pub fn own(plugin: &[u8], parameters: &str, weights: &[(&str, &[usize], &[f32])], input: &str) -> Self {
        let bundle = Self { folder: TempDir::new().expect("a temporary folder") };
        let manifest = format!(
            "name = \"own\"\nplugin = \"plugin.wasm\"\nweights = \"weights.safetensors\"\n\n[parameters]\n{parameters}\n\n[samples]\nrequests = \"samples.jsonl\"\n"
        );
        bundle.write("model.toml", manifest.as_bytes());
        bundle.write("plugin.wasm", plugin);
        bundle.write("samples.jsonl", format!(r#"{{"id":"one","inputs":[{input}]}}"#).as_bytes());
        bundle.weights(weights);
        bundle
    }

    fn chain(parameters: &str) -> Self {
        let bundle = Self { folder: TempDir::new().expect("a temporary folder") };
        let manifest = format!(
            "name = \"chain\"\nplugin = \"builtin:chain\"\nweights = \"weights.safetensors\"\n\n[parameters]\ncell = \"lstm\"\n{parameters}\nhidden = {HIDDEN}\n\
             max_length = 16\noutput = \"last\"\nweights = \"lstm.\"\n\n[samples]\nrequests = \"samples.jsonl\"\n"
        );
        bundle.write("model.toml", manifest.as_bytes());
        let spread = |count: usize| (0..count).map(|n| (n as f32 * 0.37).sin()).collect::<Vec<_>>();
        let (gates, inputs) = (4 * HIDDEN, 4);
        bundle.weights(&[
            ("embedding.weight", &[VOCABULARY, inputs], &spread(VOCABULARY * inputs)),
            ("lstm.weight_ih_l0", &[gates, inputs], &spread(gates * inputs)),
            ("lstm.weight_hh_l0", &[gates, HIDDEN], &spread(gates * HIDDEN)),
            ("lstm.bias_ih_l0", &[gates], &spread(gates)),
            ("lstm.bias_hh_l0", &[gates], &spread(gates)),
        ]);
        bundle
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes or replaces a file.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path().join(name), bytes).expect("a file in a temporary folder");
    }

    /// Deletes a file.
    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path().join(name)).expect("the file was there");
    }

    /// Replaces a piece of a text file.
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        let path = self.path().join(name);
        let text = std::fs::read_to_string(&path).expect("a text file of the bundle");
        assert!(text.contains(from), "`{from}` is not in {name}:\n{text}");
        std::fs::write(path, text.replace(from, to)).expect("a file in a temporary folder");
    }

    /// Sets a parameter of the model.
    pub fn parameter(&self, name: &str, value: &str) {
        self.edit("model.toml", "[parameters]\n", &format!("[parameters]\n{name} = {value}\n"));
    }

    /// Replaces the weights: name, shape, values.
    pub fn weights(&self, weights: &[(&str, &[usize], &[f32])]) {
        let bytes: Vec<(&str, &[usize], Vec<u8>)> = weights
            .iter()
            .map(|(name, shape, values)| (*name, *shape, values.iter().flat_map(|value| value.to_le_bytes()).collect()))
            .collect();
        let views: Vec<_> = bytes
            .iter()
            .map(|(name, shape, data)| {
                let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data);
                (*name, view.expect("values that fill the shape"))
            })
            .collect();
        self.write("weights.safetensors", &safetensors::serialize(views, None).expect("weights that can be written"));
    }
}
