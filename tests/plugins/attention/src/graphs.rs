//! The graph of a request to each model, or of a part of it. Each gives the output that has a row a step.

use std::ops::Range;

use cellwright_guest::prelude::*;
use cellwright_guest::{Cell, ChainBuilder, ChainHandle, Sequence};

use crate::{NEAREST, READ_MAX, READING_STEPS, WRITTEN_MAX};

/// What a chain that reads goes on with.
#[derive(Clone, Copy)]
pub enum Reading {
    /// The request is read at once.
    Whole,
    /// A part of it, after the chain that read the part before.
    Part(Option<u32>),
}

impl Reading {
    /// The chain that read the part before.
    fn before(self) -> Option<u32> {
        if let Self::Part(before) = self { before } else { None }
    }

    fn of<'g, 'c>(self, chain: ChainBuilder<'g, 'c>, rows: u32) -> ChainBuilder<'g, 'c> {
        match self {
            Self::Whole => chain,
            Self::Part(before) => chain.series(rows, before),
        }
    }
}

/// An output of a chain's stage, which runs that cell.
pub fn of(chain: u32, stage: u32, cell: &Cell, output: &str) -> OutputRef {
    OutputRef { chain, stage, output: cell.output(output) }
}

/// Reads tokens one after the other. Gives the chain.
pub fn read(growth: &mut GrowthBuilder, reader: &Cell, ids: Sequence, reading: Reading) -> u32 {
    let chain = growth.chain(ids.count).stage(reader).input("token", ids.forward());
    let before = reading.before().map(|chain| of(chain, 0, reader, "h").last());
    let chain = before.into_iter().fold(chain, |chain, before| chain.input("h", before));
    reading.of(chain, READ_MAX).add().number
}

/// The prompt's chain needs no more than keys and values. Gives its number. Tokens so far say where it begins.
pub fn prompt(growth: &mut GrowthBuilder, [embed, middle]: [&Cell; 2], (prompt, rows): (&[i64], u32), reading: Reading) -> u32 {
    let position = Source::Index(Affine { first: rows.into(), stride: 1, from_end: false });
    let chain = growth.chain(prompt.len() as u32).stage(embed).input("token", Source::Ints(prompt.to_vec()));
    let chain = chain.input("position", position).stage(middle);
    reading.of(seeing(chain, 0, [None, None]), READ_MAX).add().number
}

/// The chain that writes after so many tokens of a prompt, which sees theirs and its own keys and values.
pub fn written(growth: &mut GrowthBuilder, [embed, middle, last]: &[Cell; 3], prompt: Option<u32>, (token, rows): (i64, u32)) -> OutputRef {
    let seen = |output: &str, stage: u32| prompt.map(|chain| of(chain, stage, [embed, middle][stage as usize], output).all());
    let position = Source::Index(Affine { first: rows.into(), stride: 1, from_end: false });
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

pub fn luong(growth: &mut GrowthBuilder, step: &Cell, attend: &Cell, h: OutputRef) -> OutputRef {
    let chain = growth.chain(READING_STEPS).stage(step).input("h", h.last());
    let chain = chain.stage(attend).sibling("h", 0, "h").input("source", h.all());
    chain.feedback((1, "y"), (0, "fed")).add().output("y")
}

pub fn bahdanau(growth: &mut GrowthBuilder, attend: &Cell, step: &Cell, [h, known]: [OutputRef; 2]) -> OutputRef {
    let chain = growth.chain(READING_STEPS).stage(attend).input("before", h.last());
    let chain = chain.input("source", h.all()).input("known", known.all());
    let chain = chain.stage(step).input("h", h.last()).sibling("context", 0, "context");
    chain.feedback((1, "h"), (0, "before")).add().output("h")
}

/// Goes over those frames, of all that `known` has.
pub fn transduced<'c>(
    growth: &mut GrowthBuilder,
    step: &'c Cell,
    (known, frames): (OutputRef, Range<u32>),
    most: u32,
    before: Option<OutputRef>,
) -> ChainHandle<'c> {
    let number = |number: u32| Source::Literal(Tensor::of_ints("", &[], &[number.into()]));
    let chain = growth.chain((frames.end - frames.start) * most).stage(step).input("known", known.all());
    let chain = chain.input("frame", number(frames.start)).input("frames", number(frames.end));
    let chain = before.into_iter().fold(chain, |chain, before| chain.input("before", before.last()));
    chain.stop("end").add()
}

pub fn local(growth: &mut GrowthBuilder, [embed, attend]: &[Cell; 2], ids: Sequence, reading: Reading) -> OutputRef {
    let chain = growth.chain(ids.count).stage(embed).input("token", ids.forward()).stage(attend).sibling("query", 0, "query");
    let [keys, values] = ["keys", "values"].map(|name| chain.own(0, name).latest(NEAREST));
    reading.of(chain.input("keys", keys).input("values", values), NEAREST + READ_MAX / 16).add().output("y")
}

pub fn pooling(growth: &mut GrowthBuilder, pool: &Cell, h: OutputRef) -> OutputRef {
    growth.chain(1).stage(pool).input("all", h.all()).add().output("y")
}
