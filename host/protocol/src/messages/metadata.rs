//! What a server and a model say of themselves, and whether they are there.

use cellwright_cell_graph::TensorSpec;
use serde::{Deserialize, Serialize};

/// `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMetadata {
    /// What the server calls itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The protocol extensions it speaks, by the names the protocol gives them.
    pub extensions: Vec<String>,
}

/// `GET /v2/models/{m}[/versions/{v}]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// Versions that can be called, as text.
    pub versions: Vec<String>,
    /// The kind of model: what runs it and in which form it came.
    pub platform: String,
    /// The tensors a request brings.
    pub inputs: Vec<TensorMetadata>,
    /// The tensors an answer carries.
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor of a model's interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMetadata {
    /// Its name.
    pub name: String,
    /// Its datatype by the protocol's name, such as `FP32`.
    pub datatype: String,
    /// Its extents, outermost first; −1 is any.
    pub shape: Vec<i64>,
}

impl From<&TensorSpec> for TensorMetadata {
    fn from(spec: &TensorSpec) -> Self {
        Self { name: spec.name.clone(), datatype: spec.datatype.name().to_owned(), shape: spec.shape.clone() }
    }
}

/// `GET /v2/health/live`. The status is the answer; this is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLive {
    /// Whether the server runs.
    pub live: bool,
}

/// `GET /v2/health/ready`. The status is the answer; this is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerReady {
    /// Whether requests are taken.
    pub ready: bool,
}

/// `GET /v2/models/{m}[/versions/{v}]/ready`. The status is the answer; this is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReady {
    /// The model's name.
    pub name: String,
    /// Whether the model takes requests.
    pub ready: bool,
}
