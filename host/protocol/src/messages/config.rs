//! A model's configuration in the words of Triton's clients, as far as they read it.

use std::collections::BTreeMap;

use cellwright_cell_graph::{Datatype, TensorSpec};
use serde::{Deserialize, Serialize};

/// `GET /v2/models/{m}[/versions/{v}]/config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The model's name.
    pub name: String,
    /// The kind of model, as in its metadata.
    pub platform: String,
    /// What runs it.
    pub backend: String,
    /// How many requests one call may carry, counted by the leading dimension of every tensor; 0: one, and no such dimension.
    pub max_batch_size: u32,
    /// The tensors a request brings.
    pub input: Vec<ConfigTensor>,
    /// The tensors an answer carries.
    pub output: Vec<ConfigTensor>,
    /// How answers come.
    pub model_transaction_policy: TransactionPolicy,
    /// What else there is to say.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ConfigParameter>,
}

/// A tensor of a model's interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigTensor {
    /// Its name.
    pub name: String,
    /// Its datatype by the configuration's name, such as `TYPE_FP32`; `BYTES` is `TYPE_STRING`.
    pub data_type: String,
    /// Its extents without the dimension that counts requests; −1 is any.
    pub dims: Vec<i64>,
}

/// How a model answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionPolicy {
    /// Whether one request may have several answers: the model streams.
    pub decoupled: bool,
}

/// The value of a configuration's parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigParameter {
    /// It is always text.
    pub string_value: String,
}

impl ConfigTensor {
    /// A tensor as a configuration names it: where calls carry several requests, without its leading dimension.
    #[must_use]
    pub fn of(spec: &TensorSpec, max_batch_size: u32) -> Self {
        let counted = usize::from(max_batch_size > 0);
        let dims = spec.shape.get(counted..).unwrap_or_default().to_vec();
        let data_type = match spec.datatype {
            Datatype::Bytes => "TYPE_STRING".to_owned(),
            datatype => format!("TYPE_{datatype}"),
        };
        Self { name: spec.name.clone(), data_type, dims }
    }
}
