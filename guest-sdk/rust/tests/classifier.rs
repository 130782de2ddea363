//! The plugin that the documentation shows, tested as a plugin's author would: described, unfolded and computed without WebAssembly.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

include!("../examples/classifier.rs");

use cellwright_guest::testing::{Array, Described, TestRequest, Weights, evaluate};

fn described() -> Described<Classifier> {
    Described::new(&[("features", 2.into()), ("hidden", 3.into()), ("classes", 4.into())]).unwrap()
}

/// Weights that differ from one another, so that a mixed-up one shows.
fn weights() -> Weights {
    let shapes: [(&str, &[usize]); 6] = [
        ("lstm.weight_ih_l0", &[12, 2]),
        ("lstm.weight_hh_l0", &[12, 3]),
        ("lstm.bias_ih_l0", &[12]),
        ("lstm.bias_hh_l0", &[12]),
        ("head.weight", &[4, 3]),
        ("head.bias", &[4]),
    ];
    let array = |number: usize, shape: &[usize]| {
        let values = (0..shape.iter().product()).map(|element: usize| ((element * 7 + number * 3) % 11) as f64 / 11.0 - 0.5);
        Array::new(shape, values.collect())
    };
    shapes.iter().enumerate().map(|(number, (name, shape))| ((*name).to_owned(), array(number, shape))).collect()
}

#[test]
fn a_request_of_three_rows_is_a_chain_of_three_steps_and_a_head() {
    let growth = described().unfold(&TestRequest::new().floats("x", &[3, 2], &[])).unwrap();
    let lengths: Vec<_> = growth.chains.iter().map(|chain| (chain.stages[0].cell, chain.length)).collect();
    assert_eq!(lengths, [(0, cellwright_guest::types::Extent::Fixed(3)), (1, cellwright_guest::types::Extent::Fixed(1))]);
    assert_eq!(growth.chains[0].feedback.len(), 2, "h and c feed the next step");
}

#[test]
fn the_answer_is_the_models() {
    let described = described();
    let x = [0.5, -1.0, 2.0, 0.25];
    let request = TestRequest::new().floats("x", &[2, 2], &x);
    let evaluated = evaluate(&described.description, &described.unfold(&request).unwrap(), &request, &weights());

    // The same model, written down a second time.
    let weights = weights();
    let linear = |weight: &str, bias: &str, x: &[f64]| -> Vec<f64> {
        let (weight, bias) = (&weights[weight], &weights[bias]);
        (0..bias.values.len())
            .map(|row| bias.values[row] + x.iter().enumerate().map(|(i, x)| weight.row(row).values[i] * x).sum::<f64>())
            .collect()
    };
    let sigmoid = |a: f64| 1.0 / (1.0 + (-a).exp());
    let (mut h, mut c) = (vec![0.0; 3], vec![0.0; 3]);
    for row in x.chunks(2) {
        let row: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
        let (from_x, from_h) = (linear("lstm.weight_ih_l0", "lstm.bias_ih_l0", &row), linear("lstm.weight_hh_l0", "lstm.bias_hh_l0", &h));
        let gate = |gate: usize, unit: usize| from_x[gate * 3 + unit] + from_h[gate * 3 + unit];
        for unit in 0..3 {
            c[unit] = sigmoid(gate(1, unit)) * c[unit] + sigmoid(gate(0, unit)) * gate(2, unit).tanh();
            h[unit] = sigmoid(gate(3, unit)) * c[unit].tanh();
        }
    }
    let expected = Array::new(&[4], linear("head.weight", "head.bias", &h));
    assert!(evaluated.outputs["logits"].distance(&expected) < 1e-12);
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let parameters = Described::<Classifier>::new(&[("features", 2.into()), ("hidden", 0.into()), ("classes", 4.into())]);
    assert_eq!(parameters.err().unwrap().sentence(), "parameter `hidden` must be a positive integer, it is 0");
    let parameters = [("features", 2.into()), ("hidden", 3.into()), ("classes", 4.into()), ("layers", 2.into())];
    let unknown = Described::<Classifier>::new(&parameters).err().unwrap();
    assert_eq!(unknown.sentence(), "parameter `layers` is unknown or unused here; known are `features`, `hidden`, `classes`");

    let cases = [
        (TestRequest::new().floats("y", &[3, 2], &[]), "input `x` is missing; the request brings `y`"),
        (TestRequest::new(), "input `x` is missing; the request brings none"),
        (TestRequest::new().floats("x", &[3, 3], &[]), "input `x` must be FP32 [any, 2], it is FP32 [3, 3]"),
        (TestRequest::new().floats("x", &[6], &[]), "input `x` must be FP32 [any, 2], it is FP32 [6]"),
        (TestRequest::new().ints("x", &[1, 2], &[1, 2]), "input `x` must be FP32 [any, 2], it is INT64 [1, 2]"),
        (TestRequest::new().floats("x", &[0, 2], &[]), "input `x` is empty: the sequence needs at least one element"),
        (TestRequest::new().floats("x", &[4097, 2], &[]), "input `x` has 4097 elements, and this model takes at most 4096"),
    ];
    for (request, sentence) in cases {
        assert_eq!(described().unfold(&request).unwrap_err(), Refusal::InvalidInput(sentence.into()));
    }
}

#[test]
fn the_readme_shows_this_plugin() {
    assert!(include_str!("../README.md").contains(include_str!("../examples/classifier.rs")));
}
