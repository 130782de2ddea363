//! What a model answers.

use cellwright_cell_graph::{Attribute, Tensor};
use serde::{Deserialize, Serialize};

use crate::element;
use crate::fault::{BadRequest, BadResponse, RequestFault};
use crate::request::{some, unique};
use crate::tensor::{self, PrintTensor, WireTensor};
use crate::value::{Parameters, PrintParameters};

/// An inference response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    /// The model that answered.
    pub model_name: String,
    /// Its version.
    pub model_version: Option<String>,
    /// The request's id.
    pub id: Option<String>,
    /// Response parameters.
    pub parameters: Vec<Attribute>,
    /// The outputs.
    pub outputs: Vec<Tensor>,
}

impl InferResponse {
    /// Reads a response from JSON, as a client or a file of expected answers has it (the model's name may be absent there).
    ///
    /// # Errors
    /// As [`crate::InferRequest::from_json`].
    pub fn from_json(text: &[u8]) -> Result<Self, BadRequest> {
        let wire: WireResponse = serde_json::from_slice(text).map_err(|cause| BadRequest { id: None, fault: cause.into() })?;
        let id = wire.id.clone();
        wire.read().map_err(|fault| BadRequest { id, fault })
    }

    /// Writes the response as one line of JSON: data flat, floats with the fewest digits that read back to the same bits.
    ///
    /// # Errors
    /// If an output has no form in JSON.
    pub fn to_json(&self) -> Result<String, BadResponse> {
        self.outputs.iter().try_for_each(element::check_printable)?;
        let print = PrintResponse {
            model_name: &self.model_name,
            model_version: self.model_version.as_deref(),
            id: self.id.as_deref(),
            parameters: some(&self.parameters),
            outputs: self.outputs.iter().map(PrintTensor::of).collect(),
        };
        serde_json::to_string(&print).map_err(|cause| BadResponse::Json(cause.to_string()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireResponse {
    #[serde(default)]
    model_name: String,
    #[serde(default)]
    model_version: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Option<Parameters>,
    outputs: Vec<WireTensor>,
}

impl WireResponse {
    fn read(self) -> Result<InferResponse, RequestFault> {
        Ok(InferResponse {
            model_name: self.model_name,
            model_version: self.model_version,
            id: self.id,
            parameters: unique(self.parameters)?,
            outputs: tensor::read_all(self.outputs, "output")?,
        })
    }
}

#[derive(Serialize)]
struct PrintResponse<'a> {
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<PrintParameters<'a>>,
    outputs: Vec<PrintTensor<'a>>,
}
