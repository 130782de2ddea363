//! The graphs of `chain`, and what it refuses.

use cellwright_chain::Chain;
use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Described, TestRequest};
use cellwright_guest::types::{Extent, Gathered, Rows, Steps, Value};

type Parameter<'a> = (&'a str, Value);

fn with<'a>(more: &[Parameter<'a>]) -> Result<Described<Chain>, Refusal> {
    let mut parameters: Vec<Parameter> = vec![("cell", "lstm".into()), ("input", "x".into()), ("hidden", 4.into())];
    parameters.extend_from_slice(more);
    Described::new(&parameters)
}

fn dense<'a>(more: &[Parameter<'a>]) -> Described<Chain> {
    with(&[&[("features", 3.into())], more].concat()).expect("these parameters are right")
}

fn rows(steps: i64) -> TestRequest {
    TestRequest::new().floats("x", &[steps, 3], &[])
}

/// Cell and length of each chain.
fn outline(growth: &Growth) -> Vec<(u32, Extent)> {
    growth.chains.iter().map(|chain| (chain.stages[0].cell, chain.length)).collect()
}

fn of(chain: u32) -> OutputRef {
    OutputRef { chain, stage: 0, output: 0 }
}

#[test]
fn one_layer_is_one_entry_however_long() {
    let chain = dense(&[]);
    for steps in [1, 24, 330] {
        let growth = chain.unfold(&rows(steps)).unwrap();
        assert_eq!(outline(&growth), [(0, Extent::Fixed(steps as u32))]);
        assert_eq!(growth.chains[0].stages[0].inputs[0], Source::Rows(Rows { tensor: 0, at: Affine::EVERY }));
        assert_eq!(growth.outputs[0].from, Gathered::Last(of(0)));
    }
}

#[test]
fn a_backward_chain_reads_from_the_end_and_layers_meet_at_the_same_element() {
    let growth = dense(&[("layers", 2.into()), ("bidirectional", true.into()), ("output", "all".into())]).unfold(&rows(5)).unwrap();
    let n = Extent::Fixed(5);
    assert_eq!(outline(&growth), [(0, n), (1, n), (2, n), (3, n), (4, n)]);
    let inputs = |chain: usize| &growth.chains[chain].stages[0].inputs[..2];
    let reversed = Affine { first: 4, stride: -1, from_end: false };
    let steps = |chain, at| Source::Steps(Steps { of: of(chain), at });
    assert_eq!(inputs(1)[0], Source::Rows(Rows { tensor: 0, at: reversed }));
    assert_eq!(inputs(2), [steps(0, Affine::EVERY), steps(1, reversed)]);
    assert_eq!(inputs(3), [steps(0, reversed), steps(1, Affine::EVERY)]);
    assert_eq!(inputs(4), [steps(2, Affine::EVERY), steps(3, reversed)]);
    assert!(growth.outputs[0].stream, "all steps are streamed");
}

#[test]
fn every_family_has_its_states() {
    for (cell, states) in [("lstm", 2), ("gru", 1), ("rnn", 1)] {
        let parameters = [("cell", cell.into()), ("input", "x".into()), ("hidden", 4.into()), ("features", 3.into())];
        let growth = Described::<Chain>::new(&parameters).unwrap().unfold(&rows(2)).unwrap();
        assert_eq!(growth.chains[0].feedback.len(), states, "{cell}");
    }
}

#[test]
fn tokens_are_rows_of_the_request_too() {
    let tokens = [("vocabulary", 9.into()), ("embedding", 3.into()), ("embedding_weights", "emb.".into())];
    let chain = with(&tokens).unwrap();
    let growth = chain.unfold(&TestRequest::new().ints("x", &[3], &[1, 2, 3])).unwrap();
    assert_eq!(growth.chains[0].stages[0].inputs[0], Source::Rows(Rows { tensor: 0, at: Affine::EVERY }));
    assert!(chain.description.cells[0].inputs[0].shape.is_empty());
}

#[test]
fn outputs_are_described_as_they_will_be() {
    let shapes = |more: &[Parameter]| -> Vec<(String, Vec<i64>)> {
        dense(more).description.outputs.into_iter().map(|spec| (spec.name, spec.shape)).collect()
    };
    let named = |name: &str, shape: &[i64]| (name.to_owned(), shape.to_vec());
    let head = [("head", "head.".into()), ("classes", 7.into())];
    assert_eq!(shapes(&[]), [named("hidden", &[4])]);
    assert_eq!(shapes(&[("bidirectional", true.into())]), [named("hidden", &[8])]);
    assert_eq!(shapes(&[("output", "all".into())]), [named("hidden", &[-1, 4])]);
    assert_eq!(shapes(&head), [named("logits", &[7]), named("label", &[1])]);
    assert_eq!(shapes(&[&head[..], &[("output", "all".into())]].concat()), [named("logits", &[-1, 7]), named("label", &[-1])]);
}

#[test]
fn wrong_parameters_are_refused_in_a_sentence() {
    let features = ("features", Value::Int(3));
    let neither =
        "give either `features` (the input is dense rows) or `vocabulary`, `embedding` and `embedding_weights` (the input is token ids)";
    let cases: [(&[Parameter], &str); 6] = [
        (&[], neither),
        (&[features.clone(), ("vocabulary", 9.into())], neither),
        (&[features.clone(), ("layers", 65.into())], "parameter `layers` must be at most 64, it is 65"),
        (&[features.clone(), ("output", "first".into())], "parameter `output` must be \"last\" or \"all\" or \"pooled\", it is \"first\""),
        (&[features.clone(), ("head", "head.".into())], "parameter `classes` is missing; it must be a positive integer"),
        (&[features, ("nonlinearity", "relu".into())], "parameter `nonlinearity` is unknown or unused here"),
    ];
    for (more, sentence) in cases {
        let refusal = with(more).err().unwrap();
        assert!(refusal.sentence().starts_with(sentence), "{refusal:?}");
    }
}

#[test]
fn wrong_requests_are_refused_in_a_sentence() {
    let cases = [
        (rows(0), "input `x` is empty: the sequence needs at least one element"),
        (rows(6), "input `x` has 6 elements, and this model takes at most 5"),
        (TestRequest::new().floats("x", &[2, 4], &[]), "input `x` must be FP32 [any, 3], it is FP32 [2, 4]"),
        (TestRequest::new().ints("x", &[1, 3], &[1, 2, 3]), "input `x` must be FP32 [any, 3], it is INT64 [1, 3]"),
    ];
    let chain = dense(&[("max_length", 5.into())]);
    for (request, sentence) in cases {
        assert_eq!(chain.unfold(&request).unwrap_err(), Refusal::InvalidInput(sentence.into()));
    }
}
