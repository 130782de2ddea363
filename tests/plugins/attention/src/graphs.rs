//! The graph of a request to each model. Each gives the output that has a row a step.

use cellwright_guest::prelude::*;
use cellwright_guest::{Cell, ChainBuilder, Sequence};

use crate::{NEAREST, READING_STEPS, WRITTEN_MAX};

/// The prompt's chain needs no more than keys and values. The chain that writes sees those, and its own.
pub fn decoder(growth: &mut GrowthBuilder, [embed, middle, last]: &[Cell; 3], prompt: &[i64], token: i64) -> OutputRef {
    let count = prompt.len() as u32;
    let read = (count > 0).then(|| {
        let chain = growth.chain(count).stage(embed).input("token", Source::Ints(prompt.to_vec()));
        let chain = chain.input("position", Source::Index(Affine::EVERY)).stage(middle);
        seeing(chain, 0, [None, None]).add()
    });
    let seen = |output: &str, stage| {
        let chain =
            read.as_ref().map(|chain| OutputRef { chain: chain.number, stage, output: [embed, middle][stage as usize].output(output) });
        chain.map(OutputRef::all)
    };
    let position = Source::Index(Affine { first: count.into(), stride: 1, from_end: false });
    let chain = growth.chain(WRITTEN_MAX).stage(embed).input("token", Source::Literal(Tensor::of_ints("", &[], &[token])));
    let chain = chain.input("position", position).stage(middle);
    let chain = seeing(chain, 0, ["keys", "values"].map(|name| seen(name, 0))).stage(last);
    let chain = seeing(chain, 1, ["keys", "values"].map(|name| seen(name, 1)));
    chain.feedback((2, "token"), (0, "token")).stop("stop").add().output("y")
}

/// What a stage takes of the one below it: rows that were there before, and the chain's own up to this step.
fn seeing<'g, 'c>(chain: ChainBuilder<'g, 'c>, below: u32, before: [impl IntoIterator<Item = Source>; 2]) -> ChainBuilder<'g, 'c> {
    let mut chain = chain.sibling("x", below, "x").sibling("query", below, "query");
    for (name, before) in ["keys", "values"].into_iter().zip(before) {
        let own = chain.own(below, name).so_far();
        chain = chain.input(name, Source::joined(before.into_iter().chain([own])));
    }
    chain
}

pub fn luong(growth: &mut GrowthBuilder, [reader, step, attend]: &[Cell; 3], ids: Sequence) -> OutputRef {
    let read = growth.chain(ids.count).stage(reader).input("token", ids.forward()).add();
    let h = read.output("h");
    let chain = growth.chain(READING_STEPS).stage(step).input("h", h.last());
    let chain = chain.stage(attend).sibling("h", 0, "h").input("source", h.all());
    chain.feedback((1, "y"), (0, "fed")).add().output("y")
}

pub fn bahdanau(growth: &mut GrowthBuilder, [reader, attend, step]: &[Cell; 3], ids: Sequence) -> OutputRef {
    let read = growth.chain(ids.count).stage(reader).input("token", ids.forward()).add();
    let h = read.output("h");
    let chain = growth.chain(READING_STEPS).stage(attend).input("before", h.last());
    let chain = chain.input("source", h.all()).input("known", read.output("known").all());
    let chain = chain.stage(step).input("h", h.last()).sibling("context", 0, "context");
    chain.feedback((1, "h"), (0, "before")).add().output("h")
}

pub fn transducer(growth: &mut GrowthBuilder, [reader, step]: &[Cell; 2], ids: Sequence, most: u32) -> OutputRef {
    let read = growth.chain(ids.count).stage(reader).input("token", ids.forward()).add();
    let frames = Source::Literal(Tensor::of_ints("", &[], &[ids.count.into()]));
    let chain = growth.chain(ids.count * most).stage(step).input("known", read.output("known").all());
    chain.input("frames", frames).stop("end").add().output("y")
}

pub fn local(growth: &mut GrowthBuilder, [embed, attend]: &[Cell; 2], ids: Sequence) -> OutputRef {
    let chain = growth.chain(ids.count).stage(embed).input("token", ids.forward()).stage(attend).sibling("query", 0, "query");
    let [keys, values] = ["keys", "values"].map(|name| chain.own(0, name).latest(NEAREST));
    chain.input("keys", keys).input("values", values).add().output("y")
}

pub fn pooling(growth: &mut GrowthBuilder, [reader, pool]: &[Cell; 2], ids: Sequence) -> OutputRef {
    let read = growth.chain(ids.count).stage(reader).input("token", ids.forward()).add();
    growth.chain(1).stage(pool).input("all", read.output("h").all()).add().output("y")
}
