//! Cells of the stock plugins, with random weights: what their plugins describe, resolved.

use std::sync::Arc;

use anyhow::Context;
use cellwright_bundle::{Bundle, PluginBytes};
use cellwright_cell_graph::Random;
use cellwright_cell_graph::resolve::{CellLimits, ResolveContext};
use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor, TypedCell};
use cellwright_command::host::{self, Setup};
use cellwright_plugin_runtime::Runtime;

use crate::cli::{CellArguments, CellKind};
use crate::commands::bench::models::{int, text};

/// A cell of that kind.
pub(super) fn cell(arguments: &CellArguments) -> anyhow::Result<Arc<TypedCell>> {
    let mut random = Random::new(arguments.seed);
    let (h, vocabulary) = (arguments.hidden as usize, arguments.vocabulary as usize);
    let mut draw = |name: &str, shape: &[usize]| uniform(name, shape, &mut random);
    let (plugin, cell, parameters, weights) = match arguments.cell {
        CellKind::Lstm => ("chain", "layer0", chain("lstm", arguments.hidden), recurrent(4, h, &mut draw)),
        CellKind::Gru => ("chain", "layer0", chain("gru", arguments.hidden), recurrent(3, h, &mut draw)),
        CellKind::Rnn => ("chain", "layer0", chain("rnn", arguments.hidden), recurrent(1, h, &mut draw)),
        CellKind::Tree => ("tree", "node", tree(arguments.hidden), of_tree(&["node."], h, 1, &mut draw)),
        CellKind::Leaf => ("tree", "leaf", tree(arguments.hidden), of_tree(&["emb.", "leaf."], h, vocabulary, &mut draw)),
        CellKind::Projection => ("seq2seq", "projection", seq2seq(arguments), of_projection(h, vocabulary, &mut draw)),
    };
    let stock = PluginBytes::builtin(plugin).with_context(|| format!("this build has no stock plugin `{plugin}`"))?;
    resolve(&Bundle::in_memory(&format!("bench-{plugin}"), stock, parameters, weights.into_iter().collect()), cell, arguments)
}

fn resolve(bundle: &Bundle, name: &str, arguments: &CellArguments) -> anyhow::Result<Arc<TypedCell>> {
    let setup = Setup { in_flight_max: 1, ..Setup::default() };
    let runtime = Runtime::new(host::serving_options(setup, host::default_cache())?.runtime)?;
    let plugin = runtime.compile("bench", bundle.plugin_name(), bundle.plugin_bytes())?;
    let model = plugin.with_parameters(bundle.parameters(), bundle.view(), &bundle.limits().plugin())?;
    let described = model.description().cells.iter().find(|cell| cell.name == name);
    let described = described.with_context(|| format!("the plugin `{}` describes no cell `{name}`", bundle.plugin_name()))?;
    let weights = bundle.weights(model.description())?;
    let context = ResolveContext {
        weights: &weights,
        precision: arguments.precision,
        tenant: "bench",
        limits: CellLimits::default(),
        may_copy: &|_| true,
    };
    Ok(Arc::new(TypedCell::resolve(described, &context)?))
}

/// A layer's weights as PyTorch names them.
fn recurrent(gates: usize, h: usize, draw: &mut impl FnMut(&str, &[usize]) -> Tensor) -> Vec<Tensor> {
    let shapes: [(&str, &[usize]); 4] =
        [("weight_ih_l0", &[gates * h, h]), ("weight_hh_l0", &[gates * h, h]), ("bias_ih_l0", &[gates * h]), ("bias_hh_l0", &[gates * h])];
    shapes.into_iter().map(|(name, shape)| draw(name, shape)).collect()
}

/// All weights of a tree, because its plugin looks for them. Only those with these prefixes are computed with, so the others are zeros.
fn of_tree(drawn: &[&str], h: usize, vocabulary: usize, draw: &mut impl FnMut(&str, &[usize]) -> Tensor) -> Vec<Tensor> {
    let shapes: [(&str, &[usize]); 7] = [
        ("emb.weight", &[vocabulary, h]),
        ("leaf.weight", &[3 * h, h]),
        ("leaf.bias", &[3 * h]),
        ("node.weight", &[5 * h, 2 * h]),
        ("node.bias", &[5 * h]),
        ("head.weight", &[2, h]),
        ("head.bias", &[2]),
    ];
    let is_drawn = |name: &str| drawn.iter().any(|prefix| name.starts_with(prefix));
    shapes.into_iter().map(|(name, shape)| if is_drawn(name) { draw(name, shape) } else { zeros(name, shape) }).collect()
}

/// The same of a decoder's projection.
fn of_projection(h: usize, vocabulary: usize, draw: &mut impl FnMut(&str, &[usize]) -> Tensor) -> Vec<Tensor> {
    let mut weights = vec![draw("out.weight", &[vocabulary, h]), draw("out.bias", &[vocabulary])];
    weights.extend(["source.weight", "target.weight"].map(|name| zeros(name, &[vocabulary, h])));
    for side in ["encoder", "decoder"] {
        weights.extend(recurrent(4, h, &mut |name, shape| zeros(&format!("{side}.{name}"), shape)));
    }
    weights
}

fn zeros(name: &str, shape: &[usize]) -> Tensor {
    Tensor { name: name.to_owned(), datatype: Datatype::Fp32, shape: shape.to_vec(), data: vec![0; 4 * shape.iter().product::<usize>()] }
}

fn chain(family: &str, hidden: u32) -> Vec<Attribute> {
    vec![text("cell", family), int("features", hidden), int("hidden", hidden), text("input", "x"), text("output", "last")]
}

fn tree(hidden: u32) -> Vec<Attribute> {
    vec![
        int("classes", 2),
        int("embedding", hidden),
        text("head", "head."),
        int("hidden", hidden),
        text("leaf", "leaf."),
        text("leaf_embedding", "emb."),
        text("mode", "arrays"),
        text("node", "node."),
    ]
}

fn seq2seq(arguments: &CellArguments) -> Vec<Attribute> {
    let CellArguments { hidden, vocabulary, .. } = *arguments;
    vec![
        text("cell", "lstm"),
        text("decoder", "decoder."),
        int("embedding", hidden),
        text("encoder", "encoder."),
        int("eos", 0),
        int("go", 1),
        text("head", "out."),
        int("hidden", hidden),
        text("input", "source"),
        int("max_steps", 100),
        text("mode", "ids"),
        text("output", "target"),
        text("source_embedding", "source."),
        int("source_vocabulary", vocabulary),
        Attribute { name: "split_projection".to_owned(), value: AttributeValue::Truth(true) },
        text("target_embedding", "target."),
        int("target_vocabulary", vocabulary),
    ]
}

/// So wide that sums of a row stay where gates are not flat.
#[expect(clippy::cast_possible_truncation, reason = "random weights need no more than single precision")]
fn uniform(name: &str, shape: &[usize], random: &mut Random) -> Tensor {
    let spread = 2.0 / shape.last().map_or(1.0, |k| (*k as f64).sqrt());
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| ((random.unit() - 0.5) * spread) as f32).collect();
    Tensor::from_f32(name, shape, &values)
}
