//! What reading and writing messages costs: requests of 16 and 1,024 floats, and a waveform of 16,000, as JSON and as binary tensors.
//!
//! `cargo bench -p cellwright-protocol` prints, for each form, the median of several rounds in nanoseconds per message.

#![expect(clippy::print_stdout, reason = "printing figures is what a benchmark is for")]

use std::hint::black_box;
use std::time::Instant;

use cellwright_cell_graph::Tensor;
use cellwright_protocol::{InferRequest, InferResponse, Wanted};

/// Rounds whose median counts.
const ROUNDS: usize = 31;

fn main() {
    println!("{:<40} {:>12}", "message", "ns");
    for floats in [16_usize, 1024, 16_000] {
        let request = request(floats);
        let response = response(floats);
        let json = request.to_json().expect("floats have a form in JSON");
        println!("a request of {floats} floats is {} bytes of JSON", json.len());
        time(&format!("read request, JSON, {floats} floats"), || InferRequest::from_json(black_box(json.as_bytes())).is_ok());
        time(&format!("write response, JSON, {floats} floats"), || black_box(&response).clone().into_body(&Wanted::default()).is_ok());
        let body = request.to_body(|_| true).expect("the tensors are consistent");
        let (length, bytes) = (body.json_length(), body.into_bytes());
        time(&format!("read request, binary, {floats} floats"), || InferRequest::from_body(black_box(&bytes), length).is_ok());
        let wanted = Wanted { binary: true, ..Wanted::default() };
        time(&format!("write response, binary, {floats} floats"), || black_box(&response).clone().into_body(&wanted).is_ok());
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn values(floats: usize) -> Vec<f32> {
    (0..floats).map(|position| (position as f32 * 0.731).sin()).collect()
}

fn request(floats: usize) -> InferRequest {
    let inputs = vec![Tensor::from_f32("input", &[1, floats], &values(floats))];
    InferRequest { id: Some("request-17".into()), inputs, ..InferRequest::default() }
}

fn response(floats: usize) -> InferResponse {
    InferResponse {
        model_name: "model".into(),
        model_version: Some("1".into()),
        id: Some("request-17".into()),
        outputs: vec![Tensor::from_f32("output", &[1, floats], &values(floats))],
        ..InferResponse::default()
    }
}

/// Prints the median time of one call.
fn time(name: &str, mut call: impl FnMut() -> bool) {
    let mut per_call: Vec<f64> = (0..ROUNDS).map(|_| round(&mut call)).collect();
    per_call.sort_by(f64::total_cmp);
    println!("{name:<40} {:>12.0}", per_call[ROUNDS / 2]);
}

fn round(call: &mut impl FnMut() -> bool) -> f64 {
    const CALLS: u32 = 2000;
    let begin = Instant::now();
    for _ in 0..CALLS {
        assert!(call(), "the message was refused");
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
