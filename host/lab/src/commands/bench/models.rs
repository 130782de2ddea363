//! Models made in memory: a stock plugin with random weights, and requests for it.

use anyhow::Context;
use cellwright_bundle::{Bundle, PluginBytes};
use cellwright_cell_graph::Random;
use cellwright_cell_graph::{Attribute, AttributeValue, Tensor, Weights};
use cellwright_protocol::InferRequest;
use cellwright_simulator::workload::{LENGTH_MAX, Tree};

use super::load::ModelKind;
use super::shapes::Shape;

/// Words of a tree's vocabulary, and classes of its answer: small, so that the cells are what is measured.
const VOCABULARY: usize = 16;
/// Words of sequences of tokens, drawn evenly.
const WORDS: usize = 10_000;
const CLASSES: usize = 2;
/// Spread of weights: gates stay off their flat ends.
const SPREAD: f64 = 0.1;

/// A model of that kind and hidden size.
pub(crate) fn bundle(kind: ModelKind, hidden: u32, random: &mut Random) -> anyhow::Result<Bundle> {
    match kind {
        ModelKind::Chain => chain(hidden, false, random),
        ModelKind::Tokens => chain(hidden, true, random),
        ModelKind::Tree => tree(hidden, random),
    }
}

fn chain(hidden: u32, of_tokens: bool, random: &mut Random) -> anyhow::Result<Bundle> {
    let h = hidden as usize;
    let mut weight = |name: &str, shape: &[usize]| gaussian(name, shape, random);
    let mut weights = vec![
        weight("lstm.weight_ih_l0", &[4 * h, h]),
        weight("lstm.weight_hh_l0", &[4 * h, h]),
        weight("lstm.bias_ih_l0", &[4 * h]),
        weight("lstm.bias_hh_l0", &[4 * h]),
    ];
    let mut parameters = vec![
        text("cell", "lstm"),
        int("hidden", hidden),
        text("input", "x"),
        int("max_length", LENGTH_MAX),
        text("output", "last"),
        text("weights", "lstm."),
    ];
    if of_tokens {
        weights.push(weight("emb.weight", &[WORDS, h]));
        parameters.extend([int("vocabulary", WORDS as u32), int("embedding", hidden), text("embedding_weights", "emb.")]);
    } else {
        parameters.push(int("features", hidden));
    }
    in_memory("chain", parameters, weights.into_iter().collect())
}

fn tree(hidden: u32, random: &mut Random) -> anyhow::Result<Bundle> {
    let h = hidden as usize;
    let mut weight = |name: &str, shape: &[usize]| gaussian(name, shape, random);
    let weights = [
        weight("emb.weight", &[VOCABULARY, h]),
        weight("leaf.weight", &[3 * h, h]),
        weight("leaf.bias", &[3 * h]),
        weight("node.weight", &[5 * h, 2 * h]),
        weight("node.bias", &[5 * h]),
        weight("out.weight", &[CLASSES, h]),
        weight("out.bias", &[CLASSES]),
    ];
    let parameters = vec![
        int("classes", CLASSES as u32),
        int("embedding", hidden),
        text("head", "out."),
        int("hidden", hidden),
        text("leaf", "leaf."),
        text("leaf_embedding", "emb."),
        int("max_leaves", LENGTH_MAX),
        text("mode", "arrays"),
        text("node", "node."),
    ];
    in_memory("tree", parameters, weights.into_iter().collect())
}

fn in_memory(plugin: &str, parameters: Vec<Attribute>, weights: Weights) -> anyhow::Result<Bundle> {
    let stock = PluginBytes::builtin(plugin).with_context(|| format!("this build has no stock plugin `{plugin}`"))?;
    Ok(Bundle::in_memory(&format!("bench-{plugin}"), stock, parameters, weights))
}

pub(super) fn text(name: &str, value: &str) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Text(value.to_owned()) }
}

pub(super) fn int(name: &str, value: u32) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Int(value.into()) }
}

#[expect(clippy::cast_possible_truncation, reason = "random weights need no more than single precision")]
fn gaussian(name: &str, shape: &[usize], random: &mut Random) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| (SPREAD * random.normal()) as f32).collect();
    Tensor::from_f32(name, shape, &values)
}

/// A request of that shape for a model of that kind and hidden size.
pub(crate) fn request(shape: &Shape, (kind, hidden): (ModelKind, u32), random: &mut Random) -> InferRequest {
    let inputs = match shape {
        Shape::Sequence(length) if kind == ModelKind::Tokens => {
            let tokens: Vec<i64> = (0..*length).map(|_| i64::try_from(random.below(WORDS)).unwrap_or(0)).collect();
            vec![Tensor::from_i64("x", &[tokens.len()], &tokens)]
        }
        Shape::Sequence(length) => vec![gaussian("x", &[*length as usize, hidden as usize], random)],
        Shape::Tree(Tree { leaves, children }) => {
            let tokens: Vec<i64> = (0..*leaves).map(|_| i64::try_from(random.below(VOCABULARY)).unwrap_or(0)).collect();
            let children: Vec<i64> = children.iter().flatten().map(|child| i64::from(*child)).collect();
            vec![Tensor::from_i64("tokens", &[tokens.len()], &tokens), Tensor::from_i64("children", &[children.len() / 2, 2], &children)]
        }
    };
    InferRequest { inputs, ..InferRequest::default() }
}
