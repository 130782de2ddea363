//! The cells of a model, and its description.

use cellwright_guest::Value;
use cellwright_guest::prelude::*;
use cellwright_guest::types::Datatype::{Bool, Bytes, Fp32, Int64};

use crate::options::{Mode, Options};

/// A described model.
pub struct Seq2seq {
    pub(crate) options: Options,
    pub(crate) encoder: Cell,
    pub(crate) decoder: Decoder,
}

pub(crate) enum Decoder {
    /// One cell a step: it takes the token before and gives the next.
    Whole(Cell),
    /// Two, which batch at limits of their own: the recurrent cell, and the projection to a token.
    Split { step: Cell, project: Cell },
}

impl Seq2seq {
    pub(crate) fn new(options: Options) -> (Self, Description) {
        let mut model = ModelBuilder::new();
        match options.mode {
            Mode::Text { .. } => model.input(&options.input, Bytes, &[1]).output(&options.output, Bytes, &[1]),
            Mode::Ids { .. } => model.input(&options.input, Int64, &[-1]).output(&options.output, Int64, &[-1]),
        };
        let weights = &options.weights;
        let encoder = model.cell("encoder", |cell| {
            let token = cell.input("token", Int64, &[]);
            let x = cell.embedding(token, &weights.source_embedding);
            cell.recurrent(options.family, x, options.hidden, weights.encoder.as_str());
        });
        let decoder = if options.split_projection { split(&mut model, &options) } else { whole(&mut model, &options) };
        (Self { options, encoder, decoder }, model.finish())
    }
}

fn whole(model: &mut ModelBuilder, options: &Options) -> Decoder {
    Decoder::Whole(model.cell("decoder", |cell| {
        let fed = cell.state("token", Int64, &[]);
        let h = step(cell, options, fed);
        let (token, stop) = project(cell, options, h);
        cell.next(fed, token);
        cell.output("stop", stop, Bool, &[]);
    }))
}

fn split(model: &mut ModelBuilder, options: &Options) -> Decoder {
    let step = model.cell("decoder", |cell| {
        let fed = cell.state("token", Int64, &[]);
        step(cell, options, fed);
    });
    let project = model.cell("projection", |cell| {
        let h = cell.input("h", Fp32, &[options.hidden]);
        let (token, stop) = project(cell, options, h);
        cell.output("token", token, Int64, &[]);
        cell.output("stop", stop, Bool, &[]);
    });
    Decoder::Split { step, project }
}

/// The recurrent part of a decoder's step, from the token before it.
fn step(cell: &mut CellBuilder, options: &Options, fed: Value) -> Value {
    let x = cell.embedding(fed, &options.weights.target_embedding);
    cell.recurrent(options.family, x, options.hidden, options.weights.decoder.as_str())
}

/// The likeliest token, and whether it is end-of-sequence.
fn project(cell: &mut CellBuilder, options: &Options, h: Value) -> (Value, Value) {
    let (_, token) = cell.projection(h, &options.weights.head);
    let eos = cell.constant_int(options.eos.into());
    (token, cell.equal(token, eos))
}
