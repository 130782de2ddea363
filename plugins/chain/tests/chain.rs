//! The graphs of `chain`, and what it refuses.

use cellwright_chain::Chain;
use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Described, TestRequest};
use cellwright_guest::types::{Extent, Gathered, Rows, Steps, Value};

type Parameter<'a> = (&'a str, Value);

fn parameters<'a>(more: &[Parameter<'a>]) -> Vec<Parameter<'a>> {
    [&[("cell", "lstm".into()), ("input", "x".into()), ("hidden", 4.into())], more].concat()
}

fn with(more: &[Parameter]) -> Result<Described<Chain>, Refusal> {
    let parameters = parameters(more);
    Described::with_bundle(&parameters, &weights(&parameters))
}

/// The weights that such parameters need, as PyTorch has them.
fn weights(parameters: &[Parameter]) -> Bundle {
    let get = |name: &str| parameters.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    let size = |name: &str, default: u64| if let Some(Value::Int(size)) = get(name) { size as u64 } else { default };
    let (hidden, both) = (size("hidden", 0), get("bidirectional") == Some(Value::Truth(true)));
    let rows = hidden
        * match get("cell") {
            Some(Value::Text(cell)) if cell == "gru" => 3,
            Some(Value::Text(cell)) if cell == "rnn" => 1,
            _ => 4,
        };
    let width = if both { 2 * hidden } else { hidden };
    let mut bundle = Bundle::new();
    if get("vocabulary").is_some() {
        bundle = bundle.weight("emb.weight", &[size("vocabulary", 0), size("embedding", 0)]);
    }
    for layer in 0..size("layers", 1) {
        let input = if layer > 0 { width } else { size("features", size("embedding", 0)) };
        for suffix in if both { &["", "_reverse"][..] } else { &[""] } {
            let name = |rest: &str| format!("{rest}_l{layer}{suffix}");
            bundle = bundle.weight(&name("weight_ih"), &[rows, input]).weight(&name("weight_hh"), &[rows, hidden]);
            bundle = bundle.weight(&name("bias_ih"), &[rows]).weight(&name("bias_hh"), &[rows]);
        }
    }
    if get("head").is_some() {
        bundle.weight("head.weight", &[size("classes", 0), width]).weight("head.bias", &[size("classes", 0)])
    } else {
        bundle
    }
}

fn dense(more: &[Parameter]) -> Described<Chain> {
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
        let growth = Described::<Chain>::with_bundle(&parameters, &weights(&parameters)).unwrap().unfold(&rows(2)).unwrap();
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
    let cases: [(&[Parameter], &str); 9] = [
        (&[], neither),
        (&[features.clone(), ("vocabulary", 9.into())], neither),
        (&[features.clone(), ("layers", 65.into())], "parameter `layers` must be at most 64, it is 65"),
        (&[features.clone(), ("output", "first".into())], "parameter `output` must be \"last\" or \"all\" or \"pooled\", it is \"first\""),
        (&[features.clone(), ("head", "head.".into())], "parameter `classes` is missing; it must be a positive integer"),
        (&[features.clone(), ("nonlinearity", "relu".into())], "parameter `nonlinearity` is unknown or unused here"),
        (
            &[features.clone(), ("num_layers", 2.into())],
            "parameter `num_layers` is unknown or unused here; perhaps `layers` is meant; known",
        ),
        (
            &[features.clone(), ("head", "head.".into()), ("num_classes", 2.into())],
            "parameter `classes` is missing; it must be a positive integer; if `num_classes` is meant to be it, rename that",
        ),
        (
            &[features, ("output", "max".into())],
            "parameter `output` is \"max\", and this plugin has no maximum over the steps: take \"pooled\"",
        ),
    ];
    for (more, sentence) in cases {
        let refusal = with(more).err().unwrap();
        assert!(refusal.sentence().starts_with(sentence), "{refusal:?}");
    }
}

/// How a bundle's weights are changed.
type Change = fn(Bundle) -> Bundle;

#[test]
fn parameters_that_contradict_the_weights_are_named() {
    /// A sequential head has numbers in its names.
    fn sequential(bundle: Bundle) -> Bundle {
        bundle.without("head.weight").weight("head.0.weight", &[8, 4]).weight("head.3.weight", &[7, 8])
    }
    fn of_cell(bundle: Bundle) -> Bundle {
        ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
            .iter()
            .fold(bundle, |bundle, name| bundle.without(&format!("{name}_l0")).weight(name, &[16, 4]))
    }
    let features = || vec![("features", 3.into())];
    let with = |more: &[Parameter<'static>]| [features(), more.to_vec()].concat();
    let head = || with(&[("head", "head.".into()), ("classes", 7.into())]);
    let tokens = || vec![("vocabulary", 9.into()), ("embedding", 3.into()), ("embedding_weights", "emb.".into())];
    let cases: [(Vec<Parameter>, Change, &str); 22] = [
        (
            tokens(),
            |b| b.weight("emb.weight", &[10, 3]),
            "parameter `vocabulary` is 9, but `emb.weight` has 10 rows (its shape is [10, 3])",
        ),
        (tokens(), |b| b.weight("emb.weight", &[9, 4]), "parameter `embedding` is 3, but `emb.weight` has 4 columns (its shape is [9, 4])"),
        (tokens(), |b| b.weight("emb.weight", &[9]), "parameter `embedding_weights` is \"emb.\", but `emb.weight` has the shape [9], and"),
        (
            tokens(),
            |b| b.without("emb.weight").weight("module.emb.weight", &[9, 3]),
            "parameter `embedding_weights` is \"emb.\", but the bundle has no weight `emb.weight`; it has `module.emb.weight`: put `module.` before",
        ),
        (tokens(), |b| b.weight("weight_ih_l0", &[16, 5]), "parameter `embedding` is 3, but `weight_ih_l0` has 5 columns"),
        (features(), |b| b.weight("weight_ih_l0", &[16, 5]), "parameter `features` is 3, but `weight_ih_l0` has 5 columns"),
        (features(), |b| b.weight("weight_hh_l0", &[20, 5]), "parameter `hidden` is 4, but `weight_hh_l0` has 5 columns"),
        (
            features(),
            |b| b.weight("weight_ih_l0", &[12, 3]),
            "parameter `cell` is \"lstm\", whose weights have 4 · 4 = 16 rows, but `weight_ih_l0` has 12, as many as of \"gru\"",
        ),
        (features(), |b| b.weight("weight_ih_l1", &[16, 4]), "parameter `layers` is 1, but the bundle has `weight_ih_l1`"),
        (
            with(&[("layers", 3.into())]),
            |b| b.without("weight_ih_l1").without("weight_ih_l2"),
            "parameter `layers` is 3, but the bundle has no `weight_ih_l1`",
        ),
        (
            features(),
            |b| b.weight("weight_ih_l0_reverse", &[16, 3]),
            "parameter `bidirectional` is false, but the bundle has `weight_ih_l0_reverse`",
        ),
        (
            with(&[("bidirectional", true.into())]),
            |b| b.without("weight_ih_l0_reverse"),
            "parameter `bidirectional` is true, but the bundle has no `weight_ih_l0_reverse`",
        ),
        (
            with(&[("layers", 2.into())]),
            |b| b.weight("weight_ih_l1", &[16, 8]),
            "parameter `weights` is \"\", but `weight_ih_l1` takes 8 numbers",
        ),
        (with(&[("bias", false.into())]), |b| b, "parameter `bias` is false, but the bundle has `bias_ih_l0`"),
        (
            features(),
            |b| b.without("bias_ih_l0").without("bias_hh_l0"),
            "parameter `bias` is true, but the bundle has no `bias_ih_l0`: a layer without biases needs `bias = false`",
        ),
        (
            features(),
            |b| b.without("bias_hh_l0"),
            "parameter `weights` is \"\", a layer without `bias_hh_l0`, and this plugin needs it: add it with 16",
        ),
        (
            features(),
            of_cell,
            "parameter `weights` is \"\", whose weights have the names of an `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`: rename",
        ),
        (
            features(),
            |b| b.weight("weight_hr_l0", &[4, 8]),
            "parameter `weights` is \"\", an LSTM with projections (`proj_size`; it has `weight_hr_l0`)",
        ),
        (head(), |b| b.weight("head.weight", &[5, 4]), "parameter `classes` is 7, but `head.weight` has 5 rows (its shape is [5, 4])"),
        (
            head(),
            |b| b.weight("head.weight", &[7, 8]),
            "parameter `head` is \"head.\", but `head.weight` takes 8 numbers (its shape is [7, 8]), and it gets 4",
        ),
        (
            head(),
            |b| b.without("head.bias"),
            "parameter `head` is \"head.\", a layer without bias, and this plugin needs one: add `head.bias` of 7 zeros",
        ),
        (
            head(),
            sequential,
            "parameter `head` is \"head.\", which has several layers (`head.0.weight`, `head.3.weight`), and this plugin takes one",
        ),
    ];
    for (more, change, sentence) in cases {
        let parameters = parameters(&more);
        let refusal = Described::<Chain>::with_bundle(&parameters, &change(weights(&parameters))).err().unwrap();
        assert!(refusal.sentence().starts_with(sentence), "{refusal:?} is not: {sentence}");
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
