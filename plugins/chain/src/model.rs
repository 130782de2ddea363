//! The cells of a model, and its description.

use cellwright_guest::prelude::*;
use cellwright_guest::types::Datatype::{Fp32, Int64};

use crate::options::{Element, Options, Told};

/// A described model.
pub struct Chain {
    pub(crate) options: Options,
    pub(crate) layers: Vec<Layer>,
    pub(crate) pool: Option<Pool>,
    /// What makes the response of one step (or of the pooled one): a head, or the two directions side by side. None: the state itself.
    pub(crate) head: Option<Cell>,
}

pub(crate) struct Layer {
    pub(crate) forward: Cell,
    pub(crate) backward: Option<Cell>,
}

/// Mean pooling: a running sum over the steps, divided by their number.
pub(crate) struct Pool {
    pub(crate) sum: Cell,
    pub(crate) mean: Cell,
}

impl Chain {
    pub(crate) fn new(options: Options) -> (Self, Description) {
        let mut model = ModelBuilder::new();
        tensors(&mut model, &options);
        let layers = (0..options.layers).map(|number| Layer {
            forward: layer(&mut model, &options, number, false),
            backward: options.bidirectional.then(|| layer(&mut model, &options, number, true)),
        });
        let layers = layers.collect();
        let pool = (options.told == Told::Pooled).then(|| pool(&mut model, &options));
        let head = head(&mut model, &options);
        (Self { options, layers, pool, head }, model.finish())
    }
}

fn tensors(model: &mut ModelBuilder, options: &Options) {
    match options.element {
        Element::Row { features } => model.input(&options.input, Fp32, &[-1, features.into()]),
        Element::Token { .. } => model.input(&options.input, Int64, &[-1]),
    };
    let all = options.told == Told::All;
    let steps: &[i64] = if all { &[-1] } else { &[] };
    match &options.head {
        Some(head) => {
            model.output("logits", Fp32, &[steps, &[head.classes.into()]].concat()).output("label", Int64, &[if all { -1 } else { 1 }])
        }
        None => model.output("hidden", Fp32, &[steps, &[options.width().into()]].concat()),
    };
}

fn layer(model: &mut ModelBuilder, options: &Options, number: u32, reverse: bool) -> Cell {
    let name = format!("layer{number}{}", if reverse { "_reverse" } else { "" });
    model.cell(&name, |cell| {
        let x = match &options.element {
            _ if number > 0 => directions(cell, options),
            Element::Row { features } => cell.input("x", Fp32, &[*features]),
            Element::Token { table, .. } => {
                let token = cell.input("x", Int64, &[]);
                cell.embedding(token, table)
            }
        };
        let weights = RecurrentWeights::layer(&options.weights, number, reverse);
        let weights = if options.bias { weights } else { weights.without_bias() };
        cell.recurrent(options.family, x, options.hidden, weights);
    })
}

/// Inputs for the state of each direction, side by side as PyTorch has them.
fn directions(cell: &mut CellBuilder, options: &Options) -> cellwright_guest::Value {
    let forward = cell.input("forward", Fp32, &[options.hidden]);
    if !options.bidirectional {
        return forward;
    }
    let backward = cell.input("backward", Fp32, &[options.hidden]);
    cell.concat(&[forward, backward])
}

fn pool(model: &mut ModelBuilder, options: &Options) -> Pool {
    let width = options.width();
    let sum = model.cell("sum", |cell| {
        let step = directions(cell, options);
        let so_far = cell.state("sum", Fp32, &[width]);
        let sum = cell.add(so_far, step);
        cell.next(so_far, sum);
    });
    let mean = model.cell("mean", |cell| {
        let (sum, count) = (cell.input("sum", Fp32, &[width]), cell.input("count", Fp32, &[1]));
        let mean = cell.div(sum, count);
        cell.output("hidden", mean, Fp32, &[width]);
    });
    Pool { sum, mean }
}

fn head(model: &mut ModelBuilder, options: &Options) -> Option<Cell> {
    let pooled = options.told == Told::Pooled;
    let features = |cell: &mut CellBuilder| if pooled { cell.input("hidden", Fp32, &[options.width()]) } else { directions(cell, options) };
    match &options.head {
        Some(head) => Some(model.cell("head", |cell| {
            let features = features(cell);
            let logits = cell.linear(features, &head.weights);
            // One label is a tensor of one element; of many, each is a scalar of a step.
            let single = options.told != Told::All;
            let label = cell.arg_max(logits, single);
            cell.output("logits", logits, Fp32, &[head.classes]);
            cell.output("label", label, Int64, if single { &[1] } else { &[] });
        })),
        None if options.bidirectional && !pooled => Some(model.cell("join", |cell| {
            let joined = features(cell);
            cell.output("hidden", joined, Fp32, &[options.width()]);
        })),
        None => None,
    }
}
