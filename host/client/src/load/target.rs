//! What is asked: requests as the bytes that go over the connection.

use bytes::Bytes;
use cellwright_protocol::{InferRequest, JSON_LENGTH_HEADER};

use crate::address::Address;
use crate::client::{ModelRef, authorization};
use crate::error::ClientError;
use crate::infer::{Form, encode};

/// A kind of request, and how often it is sent.
#[derive(Clone, Debug)]
pub struct Target {
    /// What it is called in the report.
    pub name: String,
    /// Its share of the arrivals, relative to the other targets'.
    pub weight: f64,
    /// The requests: whole HTTP/1.1 messages, sent one after the other, again and again.
    pub requests: Vec<Bytes>,
}

impl Target {
    /// Inference requests to a model, encoded once.
    ///
    /// # Errors
    /// If a request has no form on the wire.
    pub fn infer<'a>(
        address: &Address,
        key: Option<&str>,
        model: impl Into<ModelRef<'a>>,
        requests: impl IntoIterator<Item = InferRequest>,
        form: Form,
    ) -> Result<Self, ClientError> {
        let model = model.into();
        let head = head(address, key, &model.path("/infer")?)?;
        let mut encoded = Vec::new();
        for request in requests {
            let body = encode(request, form)?;
            let content_type = if body.json_length().is_some() { "application/octet-stream" } else { "application/json" };
            let mut bytes = format!("{head}content-type: {content_type}\r\ncontent-length: {}\r\n", body.len()).into_bytes();
            if let Some(length) = body.json_length() {
                bytes.extend_from_slice(format!("{JSON_LENGTH_HEADER}: {length}\r\n").as_bytes());
            }
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(&body.into_bytes());
            encoded.push(bytes.into());
        }
        Ok(Self { name: model.name.to_owned(), weight: 1.0, requests: encoded })
    }
}

/// The beginning of a request, up to where its own headers follow.
fn head(address: &Address, key: Option<&str>, path: &str) -> Result<String, ClientError> {
    let mut head = format!("POST {} HTTP/1.1\r\nhost: {}\r\n", address.path_of(path), address.authority());
    if let Some(key) = key {
        let value = authorization(key)?;
        head.push_str(&format!("authorization: {}\r\n", value.to_str().map_err(|_| ClientError::Key)?));
    }
    Ok(head)
}
