//! The requests that a benchmark sends to a model: a bundle's samples, or a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use cellwright_bundle::Bundle;
use cellwright_protocol::InferRequest;

/// A model and the requests for it.
pub struct ModelRequests {
    /// The model's name.
    pub name: String,
    /// The requests, at least one if they came from a file.
    pub requests: Vec<InferRequest>,
}

impl ModelRequests {
    /// The requests in `file` (one JSON object a line), or the bundle's samples.
    ///
    /// # Errors
    /// If the file cannot be read, holds no request, or a line is not a request.
    pub fn of(bundle: &Bundle, file: Option<&Path>) -> anyhow::Result<Self> {
        let requests = match file {
            None => bundle.samples().all.iter().map(|sample| sample.request.clone()).collect(),
            Some(file) => {
                let cannot = || format!("the requests in {} cannot be used", file.display());
                let requests = read(file).with_context(cannot)?;
                ensure!(!requests.is_empty(), "{}: the file holds no requests", cannot());
                requests
            }
        };
        Ok(Self { name: bundle.name().to_owned(), requests })
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<InferRequest>> {
    let text = fs::read_to_string(file)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let requests = lines.map(|(number, line)| InferRequest::from_json(line.as_bytes()).with_context(|| format!("line {}", number + 1)));
    requests.collect()
}
