//! The cells of each model.

use cellwright_guest::prelude::*;
use cellwright_guest::types::{Parameter, Value as Attribute};
use cellwright_guest::{Cell, CellBuilder, Value};

use crate::HEADS;

/// The layers of a transformer with normalisation in front: the embedding, layer 0, and layer 1 with the head.
pub fn decoder(model: &mut ModelBuilder, hidden: u32, outputs: u32) -> [Cell; 3] {
    let embed = model.cell("embed", |cell| {
        let (token, position) = (cell.state("token", Int64, &[]), cell.input("position", Int64, &[]));
        let (token, position) = (cell.embedding(token, "token."), cell.embedding(position, "position."));
        let x = cell.add(token, position);
        for_attention(cell, x, hidden, "0.");
    });
    let middle = model.cell("middle", |cell| {
        let x = transformed(cell, hidden, "0.");
        for_attention(cell, x, hidden, "1.");
    });
    let last = model.cell("last", |cell| {
        let x = transformed(cell, hidden, "1.");
        let x = cell.layer_normalization(x, "norm.", 1e-5);
        let (y, token) = cell.projection(x, "head.");
        cell.output("y", y, Fp32, &[outputs]);
        cell.output("token", token, Int64, &[]);
        let end = cell.constant_int(6);
        let stop = cell.equal(token, end);
        cell.output("stop", stop, Bool, &[]);
    });
    [embed, middle, last]
}

/// A row for the next layer, and what that layer's attention takes of it.
fn for_attention(cell: &mut CellBuilder, x: Value, hidden: u32, layer: &str) {
    cell.output("x", x, Fp32, &[hidden]);
    let normal = cell.layer_normalization(x, &format!("{layer}before."), 1e-5);
    for name in ["query", "keys", "values"] {
        let y = cell.linear(normal, &format!("{layer}{name}."));
        cell.output(name, y, Fp32, &[hidden]);
    }
}

/// Attention and the products behind it.
fn transformed(cell: &mut CellBuilder, hidden: u32, layer: &str) -> Value {
    let x = cell.input("x", Fp32, &[hidden]);
    let seen = seen(cell, hidden);
    let seen = cell.linear(seen, &format!("{layer}out."));
    let x = cell.add(x, seen);
    let normal = cell.layer_normalization(x, &format!("{layer}between."), 1e-5);
    let wide = cell.linear(normal, &format!("{layer}wide."));
    let wide = cell.gelu(wide);
    let narrow = cell.linear(wide, &format!("{layer}narrow."));
    cell.add(x, narrow)
}

fn seen(cell: &mut CellBuilder, hidden: u32) -> Value {
    let query = cell.input("query", Fp32, &[hidden]);
    let [keys, values] = ["keys", "values"].map(|name| cell.ragged(name, Fp32, &[hidden]));
    cell.attention(query, keys, values, HEADS)
}

/// A recurrent layer over tokens.
fn reader(model: &mut ModelBuilder, hidden: u32, more: impl FnOnce(&mut CellBuilder, Value)) -> Cell {
    model.cell("reader", |cell| {
        let token = cell.input("token", Int64, &[]);
        let x = cell.embedding(token, "token.");
        let h = cell.gru(x, hidden, "reader.");
        more(cell, h);
    })
}

/// Luong's attention with the score `general` and input feeding (EMNLP 2015, sections 3.1 and 3.3).
pub fn luong(model: &mut ModelBuilder, hidden: u32) -> [Cell; 3] {
    let reader = reader(model, hidden, |_, _| {});
    let step = model.cell("step", |cell| {
        let fed = cell.state("fed", Fp32, &[hidden]);
        cell.gru(fed, hidden, "step.");
    });
    let attend = model.cell("attend", |cell| {
        let h = cell.input("h", Fp32, &[hidden]);
        let source = cell.ragged("source", Fp32, &[hidden]);
        let weight = cell.weight("score.weight");
        let query = cell.gemm(h, weight, None);
        let query = cell.unsqueeze(query, 1);
        let transposed = operator(cell, "Transpose", &[source], "perm", vec![0, 2, 1]);
        let scores = cell.mat_mul(query, transposed);
        let shares = cell.softmax(scores);
        let context = cell.mat_mul(shares, source);
        let context = operator(cell, "Squeeze", &[context], "axes", vec![1]);
        let both = cell.concat(&[context, h]);
        let weight = cell.weight("combine.weight");
        let y = cell.gemm(both, weight, None);
        let y = cell.tanh(y);
        cell.output("y", y, Fp32, &[hidden]);
    });
    [reader, step, attend]
}

/// Bahdanau's attention (ICLR 2015, appendix A.1.2), without what a step wrote before.
pub fn bahdanau(model: &mut ModelBuilder, hidden: u32) -> [Cell; 3] {
    let reader = reader(model, hidden, |cell, h| {
        let weight = cell.weight("of_source.weight");
        let known = cell.gemm(h, weight, None);
        cell.output("known", known, Fp32, &[hidden]);
    });
    let attend = model.cell("attend", |cell| {
        let before = cell.state("before", Fp32, &[hidden]);
        let [source, known] = ["source", "known"].map(|name| cell.ragged(name, Fp32, &[hidden]));
        let weight = cell.weight("of_state.weight");
        let query = cell.gemm(before, weight, None);
        let query = cell.unsqueeze(query, 1);
        let sum = cell.add(query, known);
        let sum = cell.tanh(sum);
        let weight = cell.weight("score.weight");
        let scores = cell.mat_mul(sum, weight);
        let shares = cell.softmax_over_rows(scores);
        let weighed = cell.mul(shares, source);
        let context = cell.sum_of_rows(weighed);
        cell.output("context", context, Fp32, &[hidden]);
    });
    let step = model.cell("step", |cell| {
        let context = cell.input("context", Fp32, &[hidden]);
        cell.gru(context, hidden, "step.");
    });
    [reader, attend, step]
}

/// A transducer that takes the likeliest symbol (Graves 2012, section 2), and no more of them at a
/// frame than it may. A step reads one frame. Its symbol is a blank, or goes into the predictor.
pub fn transducer(model: &mut ModelBuilder, hidden: u32, outputs: u32, [blank, most]: [u32; 2]) -> [Cell; 2] {
    let reader = reader(model, hidden, |cell, h| {
        let weight = cell.weight("of_source.weight");
        let known = cell.gemm(h, weight, None);
        cell.output("known", known, Fp32, &[hidden]);
    });
    let step = model.cell("step", |cell| {
        let known = cell.ragged("known", Fp32, &[hidden]);
        let frames = cell.input("frames", Int64, &[]);
        let [frame, said] = ["frame", "said"].map(|name| cell.state(name, Int64, &[]));
        let before = cell.state("before", Fp32, &[hidden]);
        let row = cell.pick(known, frame);
        let weight = cell.weight("of_state.weight");
        let of_state = cell.gemm(before, weight, None);
        let sum = cell.add(row, of_state);
        let sum = cell.tanh(sum);
        let (y, symbol) = cell.projection(sum, "head.");
        cell.output("y", y, Fp32, &[outputs]);
        let [blank, most, none, one] = [blank.into(), most.into(), 0, 1].map(|number| cell.constant_int(number));
        let is_blank = cell.equal(symbol, blank);
        let x = cell.embedding(symbol, "symbol.");
        let of_symbol = cell.linear(x, "predictor.symbol.");
        let of_before = cell.linear(before, "predictor.before.");
        let after = cell.add(of_symbol, of_before);
        let after = cell.tanh(after);
        let is_blank_row = cell.unsqueeze(is_blank, 1);
        let after = cell.select(is_blank_row, before, after);
        cell.next(before, after);
        let more = cell.add(said, one);
        let is_full = cell.equal(more, most);
        let goes_on = cell.or(is_blank, is_full);
        let said_after = cell.select(goes_on, none, more);
        cell.next(said, said_after);
        let next = cell.add(frame, one);
        let frame_after = cell.select(goes_on, next, frame);
        cell.next(frame, frame_after);
        let end = cell.equal(frame_after, frames);
        cell.output("end", end, Bool, &[]);
    });
    [reader, step]
}

/// Attention to the nearest rows.
pub fn local(model: &mut ModelBuilder, hidden: u32, outputs: u32) -> [Cell; 2] {
    let embed = model.cell("embed", |cell| {
        let token = cell.input("token", Int64, &[]);
        let x = cell.embedding(token, "token.");
        for name in ["query", "keys", "values"] {
            let y = cell.linear(x, &format!("{name}."));
            cell.output(name, y, Fp32, &[hidden]);
        }
    });
    let attend = model.cell("attend", |cell| {
        let seen = seen(cell, hidden);
        let y = cell.linear(seen, "out.");
        cell.output("y", y, Fp32, &[outputs]);
    });
    [embed, attend]
}

/// The mean and the largest of all states.
pub fn pooling(model: &mut ModelBuilder, hidden: u32, outputs: u32) -> [Cell; 2] {
    let reader = reader(model, hidden, |_, _| {});
    let pool = model.cell("pool", |cell| {
        let all = cell.ragged("all", Fp32, &[hidden]);
        let (mean, largest) = (cell.mean_of_rows(all), cell.max_of_rows(all));
        let both = cell.concat(&[mean, largest]);
        let y = cell.linear(both, "out.");
        cell.output("y", y, Fp32, &[outputs]);
    });
    [reader, pool]
}

fn operator(cell: &mut CellBuilder, kind: &'static str, inputs: &[Value], name: &str, numbers: Vec<i64>) -> Value {
    cell.operator(kind, inputs, 1, vec![Parameter { name: name.into(), value: Attribute::Ints(numbers) }])[0]
}
