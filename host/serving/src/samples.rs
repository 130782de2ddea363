//! Runs a bundle's samples on the model made of it: the test that every version passes before it serves.

mod compare;
mod determinism;

use std::sync::Arc;

use cellwright_bundle::Bundle;
use cellwright_cell_graph::Tensor;
use cellwright_plugin_runtime::RequestView;
use cellwright_protocol::{InferRequest, InferResponse};

use crate::error::InferError;
use crate::model::ServedModel;
use crate::reply::Delivery;
use crate::serving::Serving;

/// Samples in flight at once.
const AT_ONCE: usize = 64;

/// What became of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleReport {
    /// Its id, or its position.
    pub name: String,
    /// Whether the bundle says what its answer must be.
    pub compared: bool,
    /// What is wrong with its answer; none: nothing.
    pub fault: Option<String>,
}

/// Runs all samples, in flight together as requests would be, and compares the graphs that used and fresh instances make of them.
#[must_use]
pub fn run(serving: &Serving, model: &Arc<ServedModel>, bundle: &Bundle) -> Vec<SampleReport> {
    let samples = &bundle.samples().all;
    let mut reports = Vec::with_capacity(samples.len());
    // As many at once as a host holds, whatever rows each may have.
    for group in samples.chunks(AT_ONCE) {
        let replies: Vec<_> = group.iter().map(|sample| serving.infer(model, sample.request.clone(), Delivery::Whole)).collect();
        for (sample, reply) in group.iter().zip(replies) {
            let answer = reply.and_then(|reply| reply.wait());
            let fault = judge(sample.expected.as_deref(), answer, bundle.samples().tolerance)
                .err()
                .or_else(|| determinism::check(model, &sample.request).err());
            let position = reports.len();
            let name = sample.request.id.clone().unwrap_or_else(|| format!("sample {}", position + 1));
            reports.push(SampleReport { name, compared: sample.expected.is_some(), fault });
        }
    }
    reports
}

/// What a plugin sees of a request that its model accepts: the inputs in the order of the description.
#[must_use]
pub fn view(model: &ServedModel, request: InferRequest) -> RequestView {
    let mut inputs = request.inputs;
    inputs.sort_by_key(|input| model.description().inputs.iter().position(|spec| spec.name == input.name));
    RequestView::new(inputs.into_iter().map(Arc::new), request.parameters)
}

fn judge(expected: Option<&[Tensor]>, answer: Result<InferResponse, InferError>, tolerance: f64) -> Result<(), String> {
    let answer = answer.map_err(|error| format!("it failed: {error}"))?;
    expected.map_or(Ok(()), |expected| compare::outputs(expected, &answer.outputs, tolerance).map_err(|difference| difference.to_string()))
}
