//! Runs a bundle's samples on the model made of it: the test that every version passes before it serves.

mod compare;
mod determinism;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_bundle::{Bundle, Sample};
use cellwright_cell_graph::Tensor;
use cellwright_engine::RequestFailure;
use cellwright_plugin_runtime::RequestView;
use cellwright_protocol::{InferRequest, InferResponse};

use crate::abandoned::Abandoned;
use crate::error::InferError;
use crate::model::ServedModel;
use crate::reply::Delivery;
use crate::serving::Serving;

/// Time that all samples of a bundle may take together.
pub const TIME_MAX: Duration = Duration::from_secs(600);
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

/// How long samples may run.
#[derive(Clone, Debug)]
pub struct SampleBounds {
    /// All of them together.
    pub time_max: Duration,
    /// Whether whoever brought them still waits.
    pub abandoned: Abandoned,
}

impl Default for SampleBounds {
    fn default() -> Self {
        Self { time_max: TIME_MAX, abandoned: Abandoned::default() }
    }
}

/// Runs all samples, in flight together as requests would be, and compares the graphs that used and fresh instances make of them.
/// Those that have not ended in time have failed, and go on no more than those that nobody waits for.
#[must_use]
pub fn run(serving: &Serving, model: &Arc<ServedModel>, bundle: &Bundle, bounds: &SampleBounds) -> Vec<SampleReport> {
    let until = Instant::now() + bounds.time_max.min(TIME_MAX);
    let over = || {
        if bounds.abandoned.is_so() {
            return Some(InferError::Engine(RequestFailure::Cancelled));
        }
        (Instant::now() >= until).then_some(InferError::Late)
    };
    let begin = |sample: &Sample| match over() {
        Some(error) => Err(error),
        None => serving.infer(model, sample.request.clone(), Delivery::Whole),
    };
    let samples = &bundle.samples().all;
    let mut reports = Vec::with_capacity(samples.len());
    // As many at once as a host holds, whatever rows each may have.
    for group in samples.chunks(AT_ONCE) {
        let replies: Vec<_> = group.iter().map(begin).collect();
        for (sample, reply) in group.iter().zip(replies) {
            let answer = reply.and_then(|reply| reply.wait_until(until, &bounds.abandoned));
            let fault = match (answer, over()) {
                (Err(InferError::Late), _) | (Ok(_), Some(InferError::Late)) => Some(late(bounds.time_max.min(TIME_MAX))),
                (Ok(_), Some(error)) => Some(error.to_string()),
                (answer, _) => judge(sample.expected.as_deref(), answer, bundle.samples().tolerance)
                    .err()
                    .or_else(|| determinism::check(model, &sample.request).err()),
            };
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

fn late(time_max: Duration) -> String {
    format!("the samples took more than {} ms, all of them together: bring fewer or shorter ones", time_max.as_millis())
}

fn judge(expected: Option<&[Tensor]>, answer: Result<InferResponse, InferError>, tolerance: f64) -> Result<(), String> {
    let answer = answer.map_err(|error| format!("it failed: {error}"))?;
    expected.map_or(Ok(()), |expected| compare::outputs(expected, &answer.outputs, tolerance).map_err(|difference| difference.to_string()))
}
