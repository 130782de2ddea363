//! A sequence's graph: for each layer a chain of one step per element, or two that run towards each other, and then what the response tells.

use cellwright_guest::ChainBuilder;
use cellwright_guest::prelude::*;

use crate::model::{Chain, Pool};
use crate::options::{Element, Told};

/// The new `h` of every step of a layer. The backward direction's step t is at element n − 1 − t.
#[derive(Clone, Copy)]
struct Layered {
    forward: OutputRef,
    backward: Option<OutputRef>,
}

/// Which element a step is at.
#[derive(Clone, Copy)]
enum Order {
    Forward,
    Backward,
}

pub(crate) fn unfold(chain: &Chain, request: &Request) -> Result<Growth, Refusal> {
    let options = &chain.options;
    let input = request.input(&options.input)?;
    let x = match options.element {
        Element::Row { features } => input.sequence(Datatype::Fp32, &[features], options.max_length)?,
        Element::Token { .. } => input.sequence(Datatype::Int64, &[], options.max_length)?,
    };
    let mut growth = GrowthBuilder::new();
    let top = layers(chain, &mut growth, x);
    tell(chain, &mut growth, top, x.count);
    Ok(growth.finish())
}

fn layers(chain: &Chain, growth: &mut GrowthBuilder, x: Sequence) -> Layered {
    let mut below = None;
    for layer in &chain.layers {
        let mut direction = |cell, order| {
            let steps = growth.chain(x.count).stage(cell);
            let steps = match (below, order) {
                (None, Order::Forward) => steps.input("x", x.forward()),
                (None, Order::Backward) => steps.input("x", x.backward()),
                (Some(below), order) => elements(steps, below, order, x.count),
            };
            steps.add().output("h")
        };
        let forward = direction(&layer.forward, Order::Forward);
        let backward = layer.backward.as_ref().map(|cell| direction(cell, Order::Backward));
        below = Some(Layered { forward, backward });
    }
    below.expect("a model has at least one layer")
}

/// Both directions' states at the element each step is at.
fn elements<'g, 'c>(steps: ChainBuilder<'g, 'c>, of: Layered, order: Order, count: u32) -> ChainBuilder<'g, 'c> {
    let reversed = Affine::backward(count);
    let (forward, backward) = match order {
        Order::Forward => (Affine::EVERY, reversed),
        Order::Backward => (reversed, Affine::EVERY),
    };
    let steps = steps.input("forward", of.forward.at(forward));
    match of.backward {
        Some(of) => steps.input("backward", of.at(backward)),
        None => steps,
    }
}

fn tell(chain: &Chain, growth: &mut GrowthBuilder, top: Layered, count: u32) {
    let pooled = chain.pool.as_ref().map(|cells| pool(cells, growth, top, count));
    let told = match &chain.head {
        Some(head) => {
            let made = match (pooled, chain.options.told) {
                (Some(mean), _) => growth.chain(1).stage(head).input("hidden", mean.last()),
                (None, Told::All) => elements(growth.chain(count).stage(head), top, Order::Forward, count),
                (None, _) => ends(growth.chain(1).stage(head), top),
            };
            let made = made.add();
            match &chain.options.head {
                Some(_) => vec![("logits", made.output("logits")), ("label", made.output("label"))],
                None => vec![("hidden", made.output("hidden"))],
            }
        }
        None => vec![("hidden", pooled.unwrap_or(top.forward))],
    };
    for (name, output) in told {
        match chain.options.told {
            Told::All => growth.output_streamed(name, output),
            Told::Last | Told::Pooled => growth.output_last(name, output),
        };
    }
}

/// Both directions' final states.
fn ends<'g, 'c>(step: ChainBuilder<'g, 'c>, of: Layered) -> ChainBuilder<'g, 'c> {
    let step = step.input("forward", of.forward.last());
    match of.backward {
        Some(of) => step.input("backward", of.last()),
        None => step,
    }
}

fn pool(cells: &Pool, growth: &mut GrowthBuilder, top: Layered, count: u32) -> OutputRef {
    let sum = elements(growth.chain(count).stage(&cells.sum), top, Order::Forward, count).add().output("sum");
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2²⁴ steps, and a mean of more is none the worse")]
    let count = Tensor::of_floats("", &[1], &[count as f32]);
    growth.chain(1).stage(&cells.mean).input("sum", sum.last()).input("count", Source::Literal(count)).add().output("hidden")
}
