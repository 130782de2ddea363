//! What a client asks.

use cellwright_cell_graph::{Attribute, Tensor};
use serde::{Deserialize, Serialize};

use crate::element;
use crate::fault::{BadRequest, BadResponse, RequestFault};
use crate::tensor::{self, PrintTensor, WireTensor};
use crate::value::{Parameters, PrintParameters};

/// An inference request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// The client's name for it, echoed in the response.
    pub id: Option<String>,
    /// Request parameters.
    pub parameters: Vec<Attribute>,
    /// At least one, each name once.
    pub inputs: Vec<Tensor>,
    /// What the client wants back; empty: everything the model gives.
    pub outputs: Vec<RequestedOutput>,
}

/// An output that a client asks for by name.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedOutput {
    /// Its name.
    pub name: String,
    /// How the client wants it.
    pub parameters: Vec<Attribute>,
}

impl InferRequest {
    /// Reads a request from JSON.
    ///
    /// # Errors
    /// If it is not JSON, not of the protocol's form, or a tensor's data is not what its shape and datatype say.
    pub fn from_json(text: &[u8]) -> Result<Self, BadRequest> {
        let wire: WireRequest = serde_json::from_slice(text).map_err(|cause| BadRequest { id: None, fault: cause.into() })?;
        let id = wire.id.clone();
        wire.read().map_err(|fault| BadRequest { id, fault })
    }

    /// Writes the request as one line of JSON.
    ///
    /// # Errors
    /// If an input's data has no form in JSON.
    pub fn to_json(&self) -> Result<String, BadResponse> {
        self.inputs.iter().try_for_each(element::check_printable)?;
        let inputs = self.inputs.iter().map(PrintTensor::of).collect();
        let print = PrintRequest {
            id: self.id.as_deref(),
            parameters: some(&self.parameters),
            inputs,
            outputs: self.outputs.iter().map(|output| PrintOutput { name: &output.name, parameters: some(&output.parameters) }).collect(),
        };
        serde_json::to_string(&print).map_err(|cause| BadResponse::Json(cause.to_string()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRequest {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Option<Parameters>,
    inputs: Vec<WireTensor>,
    #[serde(default)]
    outputs: Option<Vec<WireOutput>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireOutput {
    name: String,
    #[serde(default)]
    parameters: Option<Parameters>,
}

impl WireRequest {
    fn read(self) -> Result<InferRequest, RequestFault> {
        let parameters = unique(self.parameters)?;
        if self.inputs.is_empty() {
            return Err(RequestFault::NoInputs);
        }
        let inputs = tensor::read_all(self.inputs, "input")?;
        let mut outputs: Vec<RequestedOutput> = Vec::new();
        for output in self.outputs.unwrap_or_default() {
            outputs.push(RequestedOutput { name: output.name, parameters: unique(output.parameters)? });
        }
        let mut names: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RequestFault::Duplicate { role: "requested output", name: pair[0].to_owned() });
        }
        Ok(InferRequest { id: self.id, parameters, inputs, outputs })
    }
}

pub(crate) fn unique(parameters: Option<Parameters>) -> Result<Vec<Attribute>, RequestFault> {
    let parameters = parameters.unwrap_or_default();
    match parameters.duplicate() {
        Some(name) => Err(RequestFault::DuplicateParameter { name: name.to_owned() }),
        None => Ok(parameters.0),
    }
}

/// Parameters to write, if there are any.
pub(crate) fn some(parameters: &[Attribute]) -> Option<PrintParameters<'_>> {
    (!parameters.is_empty()).then_some(PrintParameters(parameters))
}

#[derive(Serialize)]
struct PrintRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<PrintParameters<'a>>,
    inputs: Vec<PrintTensor<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<PrintOutput<'a>>,
}

#[derive(Serialize)]
struct PrintOutput<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<PrintParameters<'a>>,
}
