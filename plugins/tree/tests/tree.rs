//! The graphs of `tree`, and what it refuses.

use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Described, TestRequest};
use cellwright_guest::types::{Extent, Nodes, Value};
use cellwright_tree::Tree;

type Parameter<'a> = (&'a str, Value);

fn described(mode: &[Parameter]) -> Described<Tree> {
    with(mode, &weights()).expect("these parameters are right")
}

fn weights() -> Bundle {
    let linear = |bundle: Bundle, name: &str, rows, columns| {
        bundle.weight(&format!("{name}weight"), &[rows, columns]).weight(&format!("{name}bias"), &[rows])
    };
    let bundle = linear(Bundle::new().weight("leaf_embeddingweight", &[6, 3]), "leaf", 12, 3);
    linear(linear(bundle, "node", 20, 8), "head", 5, 4)
}

fn with(mode: &[Parameter], bundle: &Bundle) -> Result<Described<Tree>, Refusal> {
    let texts = ["leaf_embedding", "leaf", "node", "head"].map(|name| (name, Value::from(name)));
    let sizes = [("embedding", 3), ("hidden", 4), ("classes", 5), ("max_leaves", 6)].map(|(name, size)| (name, Value::Int(size)));
    let parameters: Vec<Parameter> = texts.into_iter().chain(sizes).chain(mode.iter().cloned()).collect();
    Described::with_bundle(&parameters, bundle)
}

fn text() -> Described<Tree> {
    let vocabulary: &[&str] = &["1", "2", "[MAX", "]"];
    described(&[("input", "text".into()), ("brackets", "lists".into()), ("vocabulary", vocabulary.into())])
}

fn arrays() -> Described<Tree> {
    described(&[("mode", "arrays".into())])
}

fn lengths(growth: &Growth) -> Vec<(u32, Extent)> {
    growth.chains.iter().map(|chain| (chain.stages[0].cell, chain.length)).collect()
}

#[test]
fn a_tree_is_its_leaves_its_internal_nodes_and_a_head_on_the_last() {
    let growth = text().unfold(&TestRequest::new().text("text", "[MAX 1 2 ]")).unwrap();
    assert_eq!(lengths(&growth), [(0, Extent::Fixed(4)), (1, Extent::Fixed(3)), (2, Extent::Fixed(1))]);
    assert_eq!(growth.chains[0].stages[0].inputs, [Source::Ints(vec![2, 0, 1, 3])]);
    let [leaf, node] = [0, 1].map(|chain| move |step| Node { chain, step });
    let (left, right) = (vec![leaf(0), node(0), node(1)], vec![leaf(1), leaf(2), leaf(3)]);
    let nodes = |output, of: &Vec<Node>| Source::Nodes(Nodes { stage: 0, output, of: of.clone() });
    assert_eq!(growth.chains[1].stages[0].inputs, [nodes(0, &left), nodes(1, &left), nodes(0, &right), nodes(1, &right)]);
    assert_eq!(growth.chains[2].stages[0].inputs, [OutputRef { chain: 1, stage: 0, output: 0 }.last()]);
}

#[test]
fn index_arrays_say_the_same_tree() {
    let request = TestRequest::new().ints("tokens", &[4], &[2, 0, 1, 3]).ints("children", &[3, 2], &[0, 1, 4, 2, 5, 3]);
    let from_text = text().unfold(&TestRequest::new().text("text", "[MAX 1 2 ]")).unwrap();
    assert_eq!(arrays().unfold(&request).unwrap(), from_text);
}

#[test]
fn a_single_leaf_has_no_internal_nodes() {
    let from_text = text().unfold(&TestRequest::new().text("text", "2")).unwrap();
    assert_eq!(lengths(&from_text), [(0, Extent::Fixed(1)), (2, Extent::Fixed(1))]);
    let request = TestRequest::new().ints("tokens", &[1], &[1]).ints("children", &[0, 2], &[]);
    assert_eq!(arrays().unfold(&request).unwrap(), from_text);
}

#[test]
fn parameters_that_contradict_the_weights_are_named() {
    type Change = fn(Bundle) -> Bundle;
    let long: &[&str] = &["1", "2", "3", "4", "5", "6", "7"];
    let text = [("input", "text".into()), ("brackets", "lists".into()), ("vocabulary", long.into())];
    let cases: [(&[Parameter], Change, &str); 7] = [
        (&text, |b| b, "parameter `vocabulary` holds 7 tokens, but `leaf_embeddingweight` has 6 rows (its shape is [6, 3])"),
        (&[], |b| b.weight("leaf_embeddingweight", &[6, 4]), "parameter `embedding` is 3, but `leaf_embeddingweight` has 4 columns"),
        (
            &[],
            |b| b.weight("leafweight", &[15, 3]),
            "parameter `hidden` is 4, so that `leafweight` must have 3 · 4 = 12 rows, but it has 15",
        ),
        (
            &[],
            |b| b.weight("nodeweight", &[16, 8]),
            "parameter `hidden` is 4, so that `nodeweight` must have 5 · 4 = 20 rows, but it has 16",
        ),
        (&[], |b| b.weight("headweight", &[6, 4]), "parameter `classes` is 5, but `headweight` has 6 rows"),
        (&[], |b| b.weight("headweight", &[5, 5]), "parameter `head` is \"head\", but `headweight` takes 5 numbers"),
        (
            &[],
            |b| b.without("nodebias"),
            "parameter `node` is \"node\", a layer without bias, and this plugin needs one: add `nodebias` of 20",
        ),
    ];
    for (mode, change, sentence) in cases {
        let mode = if mode.is_empty() { &[("mode", "arrays".into())] } else { mode };
        let refusal = with(mode, &change(weights())).err().unwrap();
        assert!(refusal.sentence().starts_with(sentence), "{refusal:?} is not: {sentence}");
    }
}

#[test]
fn wrong_requests_are_refused_in_a_sentence() {
    let tokens = |count: i64| TestRequest::new().ints("tokens", &[count], &vec![0; count as usize]);
    let cases = [
        (
            text(),
            TestRequest::new().text("text", "[MAX 1 3 ]"),
            "input `text` is no expression: token 3 (`3`) is not in this model's vocabulary",
        ),
        (text(), TestRequest::new().text("text", " "), "input `text` is no expression: the expression is empty"),
        (text(), TestRequest::new().ints("text", &[1], &[1]), "input `text` must be BYTES [1], it is INT64 [1]"),
        (arrays(), tokens(7).ints("children", &[6, 2], &[0; 12]), "input `tokens` has 7 elements, and this model takes at most 6"),
        (arrays(), tokens(3).ints("children", &[1, 2], &[0; 2]), "input `children` must be INT64 [2, 2], it is INT64 [1, 2]"),
        (
            arrays(),
            tokens(2).ints("children", &[1, 2], &[0, 2]),
            "input `children` names child 2 for internal node 0, where only 0 to 1 exist",
        ),
        (arrays(), tokens(2), "input `children` is missing; the request brings `tokens`"),
    ];
    for (tree, request, sentence) in cases {
        assert_eq!(tree.unfold(&request).unwrap_err(), Refusal::InvalidInput(sentence.into()));
    }
}
