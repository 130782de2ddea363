//! What a model answers.

use cellwright_cell_graph::{Attribute, Tensor};
use serde::{Deserialize, Serialize};

use crate::binary::{self, Body, Tail};
use crate::fault::{BadRequest, BadResponse, RequestFault};
use crate::options::Wanted;
use crate::request::{some, unique};
use crate::tensor::{self, PrintTensor, WireTensor};
use crate::value::{OF_MESSAGE, Parameters, PrintParameters};

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
        Self::from_body(text, None)
    }

    /// Reads a response whose first `json_length` bytes are JSON and whose others are its binary tensors; without a length all is JSON.
    ///
    /// # Errors
    /// As [`crate::InferRequest::from_body`].
    pub fn from_body(body: &[u8], json_length: Option<usize>) -> Result<Self, BadRequest> {
        binary::read(body, json_length, |wire: &WireResponse| wire.id.clone(), WireResponse::read)
    }

    /// Writes the response as one line of JSON: data flat, floats with the fewest digits that read back to the same bits.
    ///
    /// # Errors
    /// If an output has no form in JSON.
    pub fn to_json(&self) -> Result<String, BadResponse> {
        let print = self.print(|_| false)?;
        serde_json::to_string(&print).map_err(|cause| BadResponse::Json(cause.to_string()))
    }

    /// The same with those outputs alone that the client wants, in its order.
    ///
    /// # Errors
    /// If there is no such output.
    pub fn only(mut self, wanted: &Wanted) -> Result<Self, BadResponse> {
        if !wanted.outputs.is_empty() {
            self.outputs = select(self.outputs, wanted)?;
        }
        Ok(self)
    }

    /// Writes the outputs that the client wants, in its order and in the forms it asked for.
    ///
    /// # Errors
    /// If there is no such output, or it is to be JSON and has no form there (see [`BadResponse::is_clients_fault`]).
    pub fn into_body(self, wanted: &Wanted) -> Result<Body, BadResponse> {
        let answer = self.only(wanted)?;
        let print = answer.print(|output| wanted.is_binary(&output.name))?;
        // Most answers are short, and a long one is mostly numbers of up to 13 bytes for 4.
        let expected = answer.outputs.iter().map(|output| output.data.len().saturating_mul(3).min(JSON_EXPECTED_MAX)).sum::<usize>();
        let mut json = Vec::with_capacity(expected + 256);
        serde_json::to_writer(&mut json, &print).map_err(|cause| BadResponse::Json(cause.to_string()))?;
        let is_binary = |output: &Tensor| wanted.is_binary(&output.name);
        let binary = answer.outputs.into_iter().filter(is_binary).map(|output| output.data).collect();
        Ok(Body { json, binary })
    }

    fn print(&self, is_binary: impl Fn(&Tensor) -> bool) -> Result<PrintResponse<'_>, BadResponse> {
        Ok(PrintResponse {
            model_name: &self.model_name,
            model_version: self.model_version.as_deref(),
            id: self.id.as_deref(),
            parameters: some(&self.parameters),
            outputs: self.outputs.iter().map(|output| PrintTensor::of(output, is_binary(output))).collect::<Result<_, _>>()?,
        })
    }
}

/// Memory set aside for the JSON of one output before it is written.
const JSON_EXPECTED_MAX: usize = 1 << 20;

/// The outputs that were asked for, in that order.
fn select(outputs: Vec<Tensor>, wanted: &Wanted) -> Result<Vec<Tensor>, BadResponse> {
    let mut left: Vec<Option<Tensor>> = outputs.into_iter().map(Some).collect();
    let mut selected = Vec::with_capacity(wanted.outputs.len());
    for (name, _) in &wanted.outputs {
        let found = left.iter_mut().find(|output| output.as_ref().is_some_and(|output| output.name == *name)).and_then(Option::take);
        selected.push(found.ok_or_else(|| {
            let has = left.iter().flatten().map(|output| output.name.as_str()).collect::<Vec<_>>().join(", ");
            BadResponse::UnknownOutput { output: name.clone(), has }
        })?);
    }
    Ok(selected)
}

#[derive(Deserialize)]
#[serde(expecting = "a response, which is an object")]
struct WireResponse {
    #[serde(default)]
    model_name: String,
    #[serde(default)]
    model_version: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Option<Parameters<OF_MESSAGE>>,
    outputs: Vec<WireTensor>,
}

impl WireResponse {
    fn read(self, tail: Option<Tail<'_>>) -> Result<InferResponse, RequestFault> {
        Ok(InferResponse {
            model_name: self.model_name,
            model_version: self.model_version,
            id: self.id,
            parameters: unique(self.parameters)?,
            outputs: tensor::read_all(self.outputs, "output", tail)?,
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
