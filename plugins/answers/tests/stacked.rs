//! `chain` with two bidirectional layers, against `nn.LSTM`'s results for sequences of three lengths; and pooling, against the mean of these.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use answers::vectors;
use cellwright_chain::Chain;
use cellwright_guest::testing::{Array, Described, Evaluated, TestRequest, Weights, evaluate};

const TOLERANCE: f64 = 1e-6;

struct Sequence {
    element: usize,
    /// [T, features]
    x: Array,
}

fn sequences() -> Vec<Sequence> {
    let inputs = vectors("stacked_bilstm", "inputs");
    let lengths = inputs["lengths"].values.iter().enumerate();
    let rows = |element: usize, length: f64| {
        Array::stack(&(0..length as usize).map(|step| inputs["x"].row(step).row(element)).collect::<Vec<_>>())
    };
    lengths.map(|(element, length)| Sequence { element, x: rows(element, *length) }).collect()
}

fn run(output: &str, head: Option<(&str, &Weights)>, sequence: &Sequence) -> Evaluated {
    let mut weights = vectors("stacked_bilstm", "weights");
    let (features, hidden) = (sequence.x.shape[1] as i64, weights["weight_hh_l0"].shape[1] as i64);
    let mut parameters = vec![
        ("cell", "lstm".into()),
        ("input", "x".into()),
        ("features", features.into()),
        ("hidden", hidden.into()),
        ("layers", 2.into()),
        ("bidirectional", true.into()),
        ("output", output.into()),
    ];
    if let Some((prefix, tensors)) = head {
        weights.extend(tensors.clone());
        parameters.extend([("head", prefix.into()), ("classes", (tensors["head.bias"].values.len() as i64).into())]);
    }
    let described = Described::<Chain>::with_bundle(&parameters, &(&weights).into()).unwrap();
    let shape: Vec<i64> = sequence.x.shape.iter().map(|extent| *extent as i64).collect();
    let request = TestRequest::new().floats("x", &shape, &sequence.x.values.iter().map(|value| *value as f32).collect::<Vec<_>>());
    evaluate(&described.description, &described.unfold(&request).unwrap(), &request, &weights)
}

#[test]
fn every_step_of_the_last_layer_is_pytorchs() {
    let y = &vectors("stacked_bilstm", "outputs")["y"];
    for sequence in sequences() {
        let hidden = &run("all", None, &sequence).outputs["hidden"];
        for step in 0..sequence.x.shape[0] {
            let distance = hidden.row(step).distance(&y.row(step).row(sequence.element));
            assert!(distance < TOLERANCE, "step {step} of sequence {}: off by {distance}", sequence.element);
        }
    }
}

#[test]
fn the_final_states_of_both_directions_are_pytorchs() {
    // Layer 0 forward, layer 0 backward, layer 1 forward, layer 1 backward.
    let h = &vectors("stacked_bilstm", "outputs")["h_final"];
    for sequence in sequences() {
        let expected = [2, 3].map(|direction| h.row(direction).row(sequence.element).values).concat();
        let hidden = &run("last", None, &sequence).outputs["hidden"];
        assert!(hidden.distance(&Array::new(&[expected.len()], expected)) < TOLERANCE, "sequence {}", sequence.element);
    }
}

#[test]
fn pooling_is_the_mean_of_all_steps() {
    for sequence in sequences() {
        let all = &run("all", None, &sequence).outputs["hidden"];
        let steps = all.shape[0];
        let mean = (0..all.shape[1]).map(|unit| (0..steps).map(|step| all.row(step).values[unit]).sum::<f64>() / steps as f64);
        let pooled = &run("pooled", None, &sequence).outputs["hidden"];
        assert!(pooled.distance(&Array::new(&[all.shape[1]], mean.collect())) < 1e-12);
    }
}

#[test]
fn a_head_reads_what_would_be_told_without_it() {
    let head: Weights = [
        ("head.weight".to_owned(), Array::new(&[3, 14], (0..42).map(|n| f64::from(n % 5) - 2.0).collect())),
        ("head.bias".to_owned(), Array::new(&[3], vec![0.5, -0.25, 0.0])),
    ]
    .into();
    let logits = |features: &Array| {
        let row = |class: usize| head["head.weight"].row(class).values.iter().zip(&features.values).map(|(a, b)| a * b).sum::<f64>();
        Array::new(&[3], (0..3).map(|class| row(class) + head["head.bias"].values[class]).collect())
    };
    for sequence in sequences() {
        for output in ["last", "pooled"] {
            let (features, told) = (run(output, None, &sequence), run(output, Some(("head.", &head)), &sequence));
            let expected = logits(&features.outputs["hidden"]);
            assert!(told.outputs["logits"].distance(&expected) < 1e-12);
            let largest = (0..3).max_by(|a, b| expected.values[*a].total_cmp(&expected.values[*b])).unwrap();
            assert_eq!(told.outputs["label"], Array::new(&[1], vec![largest as f64]));
        }
        let (features, told) = (run("all", None, &sequence), run("all", Some(("head.", &head)), &sequence));
        let steps = sequence.x.shape[0];
        assert_eq!(told.outputs["label"].shape, [steps]);
        for step in 0..steps {
            assert!(told.outputs["logits"].row(step).distance(&logits(&features.outputs["hidden"].row(step))) < 1e-12);
        }
    }
}
