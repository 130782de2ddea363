//! A convolution over time, through windows of frames of a signal: what PyTorch computes, whatever runs beside it.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use cellwright_cell_graph::Tensor;
use cellwright_engine::EngineOptions;
use cellwright_scheduler::Config;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::host::Host;
use cellwright_tests::requests;
use serde_json::Value;

/// What PyTorch computed (`tests/vectors/make.py`).
struct Vectors(Value);

impl Vectors {
    fn load() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/convolution.json");
        Self(serde_json::from_str(&std::fs::read_to_string(path).expect("vectors")).expect("JSON"))
    }

    fn tensors(&self, part: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let numbers = |value: &Value| value.as_array().expect("a list").clone();
        let tensor = |(name, entry): (&String, &Value)| {
            let shape = numbers(&entry["shape"]).iter().map(|extent| extent.as_u64().expect("an extent") as usize).collect();
            let data = numbers(&entry["data"]).iter().map(|value| value.as_f64().expect("a number") as f32).collect();
            (name.clone(), shape, data)
        };
        self.0[part].as_object().expect("tensors").iter().map(tensor).collect()
    }

    fn bundle(&self) -> BundleFolder {
        let weights = self.tensors("weights");
        let weights: Vec<_> = weights.iter().map(|(name, shape, data)| (name.as_str(), shape.as_slice(), data.as_slice())).collect();
        BundleFolder::convolution("features = 5\nhidden = 7\noutputs = 4", &weights)
    }
}

#[test]
fn a_convolution_network_answers_as_pytorch_does_under_every_policy() {
    let vectors = Vectors::load();
    let (inputs, outputs) = (vectors.tensors("inputs"), vectors.tensors("outputs"));
    let policies = ["cellular", "adaptive", "graph", "serial", "merge", "lazy", "length-aware", "stages"];
    let mut first: Vec<Vec<f32>> = Vec::new();
    for policy in policies {
        let scheduler = Config { policy: policy.parse().expect("a policy"), ..Config::default() };
        let host = Host::start(EngineOptions { scheduler, ..EngineOptions::default() });
        let model = host.load(&vectors.bundle()).expect("it loads");
        // 50 requests at once, of several lengths.
        let answers: Vec<Vec<f32>> = thread::scope(|scope| {
            let calls = (0..50).map(|call| {
                let (host, model, (_, shape, data)) = (&host, Arc::clone(&model), &inputs[call % inputs.len()]);
                scope.spawn(move || host.infer(&model, requests::of(vec![Tensor::from_f32("audio", shape, data)])).expect("an answer"))
            });
            let calls: Vec<_> = calls.collect();
            calls.into_iter().map(|call| call.join().expect("no panic").outputs[0].to_f32().expect("floats")).collect()
        });
        for (call, answer) in answers.iter().enumerate() {
            let (input, (output, _, wanted)) = (&inputs[call % inputs.len()].0, &outputs[call % outputs.len()]);
            assert_eq!(input.trim_start_matches("audio"), output.trim_start_matches('y'));
            assert_eq!(answer.len(), wanted.len(), "{policy}, {output}");
            for (at, (given, wanted)) in answer.iter().zip(wanted).enumerate() {
                assert!(
                    (given - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()),
                    "{policy}, {output}, element {at}: {given} instead of {wanted}"
                );
            }
        }
        first = if first.is_empty() {
            answers
        } else {
            assert_eq!(answers, first, "{policy}: other bits");
            first
        };
    }
}

#[test]
fn a_signal_without_enough_frames_is_refused() {
    let host = Host::shared();
    let model = host.load(&Vectors::load().bundle()).expect("it loads");
    let refusal = |elements: usize| {
        host.infer(&model, requests::of(vec![Tensor::from_f32("audio", &[elements], &vec![0.5; elements])])).unwrap_err().to_string()
    };
    assert_eq!(refusal(7), "input `audio` has 7 elements, and a frame takes 16");
    assert_eq!(refusal(16), "input `audio` has one frame, and the last layer takes two");
    assert_eq!(refusal(16 + 8 * 4096), "input `audio` has 4097 frames, and this model takes at most 4096");
}
