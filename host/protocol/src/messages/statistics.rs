//! The statistics extension: what a model's requests have cost since the server started.

use serde::{Deserialize, Serialize};

/// `GET /v2/models[/{m}[/versions/{v}]]/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// One entry for each version asked for.
    pub model_stats: Vec<ModelStatistics>,
}

/// The statistics of one version of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The version, as text.
    pub version: String,
    /// When the last request came, in milliseconds since 1970; 0: none came.
    pub last_inference: u64,
    /// Requests answered; a call whose rows are requests counts each row.
    pub inference_count: u64,
    /// Batches run.
    pub execution_count: u64,
    /// Where the time of requests went.
    pub inference_stats: InferenceStatistics,
    /// By batch size, where the time of batches went.
    #[serde(default)]
    pub batch_stats: Vec<BatchStatistics>,
}

/// Where the time of requests went, summed over them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InferenceStatistics {
    /// Requests that were answered, from arrival to answer.
    pub success: Duration,
    /// Requests that were not.
    pub fail: Duration,
    /// Waiting until the first cell ran.
    pub queue: Duration,
    /// Preparing inputs.
    pub compute_input: Duration,
    /// Running.
    pub compute_infer: Duration,
    /// Putting outputs together.
    pub compute_output: Duration,
    /// Answers from a cache; there is none, so 0.
    pub cache_hit: Duration,
    /// Answers looked for in a cache in vain; there is none, so 0.
    pub cache_miss: Duration,
}

/// Where the time of batches of one size went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStatistics {
    /// Rows in the batch.
    pub batch_size: u64,
    /// Preparing inputs.
    pub compute_input: Duration,
    /// Running.
    pub compute_infer: Duration,
    /// Putting outputs together.
    pub compute_output: Duration,
}

/// So many occasions, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duration {
    /// Occasions.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}
