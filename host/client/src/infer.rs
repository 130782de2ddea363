//! Inference: requests and answers as tensors, and `generate` with plain JSON values.

use bytes::Bytes;
use cellwright_cell_graph::{Attribute, AttributeValue};
use cellwright_protocol::{BadResponse, Body, InferRequest, InferResponse, JSON_LENGTH_HEADER};
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::client::{Call, Client, ModelRef, whole};
use crate::error::ClientError;
use crate::events::EventStream;

/// How tensors travel, there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Form {
    /// As JSON.
    #[default]
    Json,
    /// As raw bytes behind the JSON; so do all outputs that say nothing else.
    Binary,
}

/// An answer of `generate`: outputs by name, and what the server says of them.
pub type Generated = Map<String, Value>;

const JSON_LENGTH: HeaderName = HeaderName::from_static(JSON_LENGTH_HEADER);

/// A request as it travels.
pub(crate) fn encode(mut request: InferRequest, form: Form) -> Result<Body, BadResponse> {
    const BINARY_OUTPUT: &str = "binary_data_output";
    let binary = form == Form::Binary;
    if binary && !request.parameters.iter().any(|parameter| parameter.name == BINARY_OUTPUT) {
        request.parameters.push(Attribute { name: BINARY_OUTPUT.to_owned(), value: AttributeValue::Truth(true) });
    }
    request.to_body(|_| binary)
}

impl Client {
    /// Asks a model.
    ///
    /// # Errors
    /// If the request has no form on the wire, or there is no answer.
    pub async fn infer(&self, model: impl Into<ModelRef<'_>>, request: InferRequest, form: Form) -> Result<InferResponse, ClientError> {
        let body = encode(request, form)?;
        let mut call = Call::new(Method::POST, model.into().path("/infer")?);
        let content_type = if body.json_length().is_some() { "application/octet-stream" } else { "application/json" };
        call.headers.push((CONTENT_TYPE, HeaderValue::from_static(content_type)));
        call.headers.extend(body.json_length().map(|length| (JSON_LENGTH, HeaderValue::from(length))));
        call.body = whole(Bytes::from(body.into_bytes()));
        let answer = self.success(call).await?;
        let announced = answer.headers().get(JSON_LENGTH).map(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
        let length =
            announced.map(|length: Option<usize>| length.ok_or_else(|| ClientError::Answer(format!("{JSON_LENGTH} is no number"))));
        let length = length.transpose()?;
        let bytes = self.read(answer).await?;
        InferResponse::from_body(&bytes, length).map_err(|bad| ClientError::Answer(bad.to_string()))
    }

    /// Asks a model in plain JSON values: inputs by name, and parameters.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn generate(&self, model: impl Into<ModelRef<'_>>, request: &Generated) -> Result<Generated, ClientError> {
        self.answer(Call::new(Method::POST, model.into().path("/generate")?).json(request)?).await
    }

    /// Asks a model as [`Self::generate`] does, and hears the answer as it comes. Dropping the stream cancels the request.
    ///
    /// # Errors
    /// If the request is refused before anything was answered.
    pub async fn generate_stream(&self, model: impl Into<ModelRef<'_>>, request: &Generated) -> Result<EventStream, ClientError> {
        let call = Call::new(Method::POST, model.into().path("/generate_stream")?).json(request)?;
        let answer = self.success(call).await?;
        Ok(EventStream::new(self.clone(), answer.into_body()))
    }
}
