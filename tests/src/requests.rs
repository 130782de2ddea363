//! Requests, and what honest ones must be answered.

use cellwright_cell_graph::{Attribute, AttributeValue, Tensor};
use cellwright_protocol::InferRequest;

/// A request with these inputs.
#[must_use]
pub fn of(inputs: Vec<Tensor>) -> InferRequest {
    InferRequest { inputs, ..InferRequest::default() }
}

/// A request of the summing model with so many rows, different for each seed.
#[must_use]
pub fn sum(seed: usize, rows: usize) -> InferRequest {
    of(vec![Tensor::from_f32("x", &[rows, 4], &values(seed, rows))])
}

/// The same as the first chunk of a session.
#[must_use]
pub fn session(seed: usize, rows: usize) -> InferRequest {
    behaving("session", sum(seed, rows))
}

/// A request that asks the plugin to misbehave.
#[must_use]
pub fn misbehaving(behaviour: &str) -> InferRequest {
    behaving(behaviour, sum(1, 3))
}

/// A request that asks the plugin to behave like that.
#[must_use]
pub fn behaving(behaviour: &str, mut request: InferRequest) -> InferRequest {
    request.parameters.push(Attribute { name: "behave".to_owned(), value: AttributeValue::Text(behaviour.to_owned()) });
    request
}

/// The answer to [`sum`]. Small integers, so that sums are exact in whatever order.
#[must_use]
pub fn sum_answer(seed: usize, rows: usize) -> Vec<f32> {
    let bias = [1.0, 2.0, 3.0, 4.0];
    let values = values(seed, rows);
    (0..4).map(|column| values.iter().skip(column).step_by(4).map(|value| value + bias[column]).sum()).collect()
}

fn values(seed: usize, rows: usize) -> Vec<f32> {
    (0..rows * 4).map(|n| ((n * 7 + seed * 13) % 101) as f32 - 50.0).collect()
}
