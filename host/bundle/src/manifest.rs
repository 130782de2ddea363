//! `model.toml`: its keys, and what can be checked of their values alone.

use std::collections::BTreeMap;
use std::time::Duration;

use cellwright_cell_graph::typed::Precision;
use cellwright_plugin_runtime::Limits;
use cellwright_toml_faults as toml_faults;
use serde::Deserialize;

use crate::builtin;
use crate::error::ManifestFault;

/// The name of the file.
pub(crate) const FILE: &str = "model.toml";
/// Longer ones are refused unread.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
const NAME_LENGTH_MAX: usize = 128;

/// `model.toml` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) plugin: String,
    #[serde(default)]
    pub(crate) weights: Option<String>,
    /// Prefixes of weights that count as not there.
    #[serde(default)]
    pub(crate) ignore: Vec<String>,
    /// Prefixes of weights that may be NaN or infinite.
    #[serde(default)]
    pub(crate) allow_non_finite: Vec<String>,
    #[serde(default)]
    pub(crate) precision: Precision,
    #[serde(default)]
    pub(crate) latency_objective_ms: Option<u64>,
    #[serde(default)]
    pub(crate) policy: Option<String>,
    #[serde(default)]
    pub(crate) parameters: toml::Table,
    #[serde(default)]
    pub(crate) limits: LimitSettings,
    #[serde(default)]
    pub(crate) cells: BTreeMap<String, CellSettings>,
    #[serde(default)]
    pub(crate) samples: Option<SampleSettings>,
    #[serde(default)]
    pub(crate) embeddings: Option<EmbeddingSettings>,
}

/// That a model answers `/v1/embeddings`, and by which of its tensors. One that is not named has the name of the field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddingSettings {
    /// Texts: BYTES `[-1]`.
    pub text: String,
    /// Tokens instead of texts, if it is an input: INT64 `[-1, -1]`.
    pub input_ids: String,
    /// Which of the tokens count, if it is an input.
    pub attention_mask: String,
    /// A row for each text: FP32 `[-1, N]`.
    pub embedding: String,
    /// Tokens of each text, if it is an output: INT64 `[-1]`.
    pub tokens: String,
}

impl Default for EmbeddingSettings {
    fn default() -> Self {
        let [text, input_ids, attention_mask, embedding, tokens] =
            ["text", "input_ids", "attention_mask", "embedding", "tokens"].map(str::to_owned);
        Self { text, input_ids, attention_mask, embedding, tokens }
    }
}

/// Limits that a model sets for itself. Each can only lower the server's limit, which holds where none is set. Only memory has a lower default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Processor time of one call of the plugin, milliseconds.
    pub cpu_ms: Option<u64>,
    /// Processor time of all calls of the plugin for one request (for all rows of a call, where rows are requests), milliseconds.
    pub request_cpu_ms: Option<u64>,
    /// Linear memory of one instance of the plugin, MiB.
    pub memory_mb: Option<usize>,
    /// Expanded nodes of one growth of a request's graph.
    pub nodes_max: Option<u64>,
    /// Expanded edges of one growth of a request's graph.
    pub edges_max: Option<u64>,
    /// Chains of one growth, and a request's chains from the oldest one that it keeps on.
    pub chains_max: Option<usize>,
    /// State that a continuation leaves, bytes.
    pub state_bytes_max: Option<usize>,
    /// Calls of `resume` in one request.
    pub resumes_max: Option<u32>,
    /// What one answer may take of the host's memory, MiB.
    pub answer_mb: Option<u64>,
    /// Calls of the model that may be in flight at once; more wait.
    pub in_flight_max: Option<u32>,
    /// Calls of the model that may wait to begin; more are refused.
    pub queued_max: Option<u32>,
    /// Fraction of the devices' time that the model may use, its plugin's processor time included, more than 0 and at most 1.
    pub device_share: Option<f64>,
}

impl LimitSettings {
    /// The limits of one call of the plugin that are set here, and the default of memory. All others are as wide as possible, so that the
    /// server's hold.
    #[must_use]
    pub fn plugin(&self) -> Limits {
        Limits {
            call_time: self.cpu_ms.map_or(Duration::MAX, Duration::from_millis),
            describe_time: Duration::MAX,
            memory_bytes: self.memory_mb.map_or(Limits::default().memory_bytes, |mib| mib.saturating_mul(1 << 20)),
            table_elements: usize::MAX,
            answer_bytes: usize::MAX,
            chains: self.chains_max.unwrap_or(usize::MAX),
            list_elements: usize::MAX,
            state_bytes: self.state_bytes_max.unwrap_or(usize::MAX),
        }
    }
}

/// A model's settings of one of its cells, which win over those of its plugin and of calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellSettings {
    /// Bound on the batch.
    pub batch_max: Option<u32>,
    /// Higher runs first.
    pub priority: Option<i32>,
}

/// Where the samples are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SampleSettings {
    pub(crate) requests: String,
    #[serde(default)]
    pub(crate) expected: Option<String>,
    #[serde(default)]
    pub(crate) tolerance: Option<f64>,
}

impl Manifest {
    pub(crate) fn parse(text: &str) -> Result<Self, ManifestFault> {
        let manifest: Self = toml_faults::read(text)?;
        manifest.check(|key| toml_faults::line_of_key(text, key))?;
        Ok(manifest)
    }

    /// Where its samples are.
    ///
    /// # Errors
    /// It does not say.
    pub(crate) fn samples(&self) -> Result<&SampleSettings, ManifestFault> {
        self.samples.as_ref().ok_or(ManifestFault::NoSamples)
    }

    /// `line_of` knows where a key is.
    fn check(&self, line_of: impl Fn(&[&str]) -> usize) -> Result<(), ManifestFault> {
        if !is_name(&self.name) {
            return Err(ManifestFault::Name { line: line_of(&["name"]), name: self.name.clone() });
        }
        if self.plugin.strip_prefix(builtin::PREFIX).is_some_and(|stock| builtin::get(stock).is_none()) {
            return Err(ManifestFault::UnknownBuiltin { line: line_of(&["plugin"]), plugin: self.plugin.clone() });
        }
        let limits = &self.limits;
        let of_limits = [
            ("cpu_ms", limits.cpu_ms),
            ("request_cpu_ms", limits.request_cpu_ms),
            ("memory_mb", limits.memory_mb.map(|mib| mib as u64)),
            ("answer_mb", limits.answer_mb),
            ("nodes_max", limits.nodes_max),
            ("edges_max", limits.edges_max),
            ("chains_max", limits.chains_max.map(|chains| chains as u64)),
            ("in_flight_max", limits.in_flight_max.map(u64::from)),
        ];
        let of_limits = of_limits.map(|(key, value)| (vec!["limits", key], value));
        let of_cells = self.cells.iter().map(|(cell, settings)| (vec!["cells", cell, "batch_max"], settings.batch_max.map(u64::from)));
        let mut at_least_one = of_limits.into_iter().chain(of_cells).chain([(vec!["latency_objective_ms"], self.latency_objective_ms)]);
        if let Some((key, _)) = at_least_one.find(|(_, value)| *value == Some(0)) {
            return Err(ManifestFault::Zero { line: line_of(&key), key: key.join(".") });
        }
        if let Some(share) = limits.device_share.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return Err(ManifestFault::DeviceShare { line: line_of(&["limits", "device_share"]), share: share.to_string() });
        }
        match self.samples()?.tolerance {
            Some(tolerance) if !(0.0..=1.0).contains(&tolerance) => {
                Err(ManifestFault::Tolerance { line: line_of(&["samples", "tolerance"]), tolerance: tolerance.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// Names of models go into addresses and file names. The rule is the registry's, by whose names they are served.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=NAME_LENGTH_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed)
}
