//! What a client asks.

use cellwright_cell_graph::{Attribute, Tensor, TensorSpec};
use serde::{Deserialize, Serialize};

use crate::binary::{self, Body, Tail};
use crate::fault::{BadRequest, BadResponse, RequestFault};
use crate::tensor::{self, PrintTensor, WireTensor};
use crate::value::{OF_MESSAGE, OF_TENSOR, Parameters, PrintParameters};

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
        Self::from_body(text, None)
    }

    /// Reads a request whose first `json_length` bytes are JSON and whose others are its binary tensors; without a length all is JSON.
    ///
    /// A length of 0 announces a raw request, which only [`Self::from_raw`] can read.
    ///
    /// # Errors
    /// As [`Self::from_json`], or if the sizes do not add up to the body.
    pub fn from_body(body: &[u8], json_length: Option<usize>) -> Result<Self, BadRequest> {
        binary::read(body, json_length, |wire: &WireRequest| wire.id.clone(), WireRequest::read)
    }

    /// Reads a raw request: the body is the only input of a model that says this of its inputs.
    ///
    /// Where rows are requests, it is one row. One dimension may be open, and follows from the size; a `BYTES` input is the body as one element.
    ///
    /// # Errors
    /// If the model has several inputs, or the body cannot be that one.
    pub fn from_raw(inputs: &[TensorSpec], rows_are_requests: bool, body: &[u8]) -> Result<Self, BadRequest> {
        let input = binary::raw(inputs, rows_are_requests, body).map_err(|fault| BadRequest { id: None, fault })?;
        Ok(Self { inputs: vec![input], ..Self::default() })
    }

    /// Writes the request as one line of JSON.
    ///
    /// # Errors
    /// If an input's data has no form in JSON.
    pub fn to_json(&self) -> Result<String, BadResponse> {
        let print = self.print(|_| false)?;
        serde_json::to_string(&print).map_err(|cause| BadResponse::Json(cause.to_string()))
    }

    /// Writes the request, with the inputs that `is_binary` picks as raw bytes behind the JSON.
    ///
    /// # Errors
    /// If an input's data is not what its shape and datatype ask for, or is to be JSON and has no form there.
    pub fn to_body(&self, is_binary: impl Fn(&Tensor) -> bool) -> Result<Body, BadResponse> {
        let json = serde_json::to_vec(&self.print(&is_binary)?).map_err(|cause| BadResponse::Json(cause.to_string()))?;
        let binary = self.inputs.iter().filter(|input| is_binary(input)).map(|input| input.data.clone()).collect();
        Ok(Body { json, binary })
    }

    fn print(&self, is_binary: impl Fn(&Tensor) -> bool) -> Result<PrintRequest<'_>, BadResponse> {
        Ok(PrintRequest {
            id: self.id.as_deref(),
            parameters: some(&self.parameters),
            inputs: self.inputs.iter().map(|input| PrintTensor::of(input, is_binary(input))).collect::<Result<_, _>>()?,
            outputs: self.outputs.iter().map(|output| PrintOutput { name: &output.name, parameters: some(&output.parameters) }).collect(),
        })
    }
}

#[derive(Deserialize)]
#[serde(expecting = "a request, which is an object")]
struct WireRequest {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Option<Parameters<OF_MESSAGE>>,
    inputs: Vec<WireTensor>,
    #[serde(default)]
    outputs: Option<Vec<WireOutput>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a requested output, which is an object")]
struct WireOutput {
    name: String,
    #[serde(default)]
    parameters: Option<Parameters<OF_TENSOR>>,
}

impl WireRequest {
    fn read(self, tail: Option<Tail<'_>>) -> Result<InferRequest, RequestFault> {
        let parameters = unique(self.parameters)?;
        if self.inputs.is_empty() {
            return Err(RequestFault::NoInputs);
        }
        let inputs = tensor::read_all(self.inputs, "input", tail)?;
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

pub(crate) fn unique<const MOST: usize>(parameters: Option<Parameters<MOST>>) -> Result<Vec<Attribute>, RequestFault> {
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
