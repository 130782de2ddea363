//! The cells of the model, and the graph of a request's texts.

use cellwright_guest::prelude::*;
use cellwright_guest::types::{Parameter, Value as Given};
use cellwright_guest::{Cell, CellBuilder, Input, Value};

use crate::options::{Options, Pooling};

/// Texts of a request, at most.
const TEXTS_MAX: usize = 4096;

/// A served encoder.
pub struct Encoder {
    options: Options,
    embed: Cell,
    layers: Vec<Cell>,
    pool: Cell,
}

impl Encoder {
    pub(crate) fn new(options: Options) -> (Self, Description) {
        let mut model = ModelBuilder::new();
        model.optional_input("text", Datatype::Bytes, &[-1]).optional_input("input_ids", Datatype::Int64, &[-1, -1]);
        model.optional_input("attention_mask", Datatype::Int64, &[-1, -1]);
        model.output(&options.output, Datatype::Fp32, &[-1, options.width().into()]).output("tokens", Datatype::Int64, &[-1]);
        for name in ["embeddings.position_ids", "pooler.", "cls."] {
            model.ignore_weights(&format!("{}{name}", if name == "cls." { "" } else { options.prefix }));
        }
        let embed = model.cell("embed", |cell| embed(cell, &options));
        let layers = (0..options.config.num_hidden_layers)
            .map(|number| model.cell(&format!("layer {number}"), |cell| layer(cell, &options, number)));
        let layers = layers.collect();
        let pool = model.cell("pool", |cell| pool(cell, &options));
        (Self { options, embed, layers, pool }, model.finish())
    }

    pub(crate) fn graph(&self, request: &Request) -> Result<Growth, Refusal> {
        let truncate = truncate(request, self.options.truncate)?;
        let texts = self.texts(request, truncate)?;
        let mut growth = GrowthBuilder::new();
        let pooled: Vec<[OutputRef; 2]> = texts.iter().map(|tokens| self.text(&mut growth, tokens)).collect();
        let [embeddings, counts] = [0, 1].map(|output| pooled.iter().map(|outputs| outputs[output]).collect());
        growth.output_listed(&self.options.output, embeddings).output_listed("tokens", counts);
        Ok(growth.finish())
    }

    /// The tokens of each text.
    fn texts(&self, request: &Request, truncate: bool) -> Result<Vec<Vec<i64>>, Refusal> {
        match (request.optional("text"), request.optional("input_ids")) {
            (Some(text), None) => {
                if let Some(mask) = request.optional("attention_mask") {
                    return Err(mask.refusal("goes with `input_ids`, and the request has `text`"));
                }
                let texts = text.texts()?;
                check_count(texts.len()).map_err(|sentence| text.refusal(sentence))?;
                texts.iter().enumerate().map(|(row, one)| self.tokens_of(&text, (row, one), truncate)).collect()
            }
            (None, Some(ids)) => self.given(&ids, request.optional("attention_mask"), truncate),
            (Some(text), Some(_)) => Err(text.refusal("and `input_ids` are both given: the request has one of them")),
            (None, None) => Err(Refusal::InvalidInput("the request has neither `text` nor `input_ids`".into())),
        }
    }

    fn tokens_of(&self, input: &Input<'_>, (row, text): (usize, &str), truncate: bool) -> Result<Vec<i64>, Refusal> {
        let mut tokens = self.options.tokens.of(text)?;
        let (count, most) = (tokens.len(), self.options.length_max as usize);
        if count > most {
            if !truncate {
                return Err(input.refusal(format!("has {count} tokens in text {row}, and this model takes at most {most}")));
            }
            // The last token stands for the text's end.
            let end = tokens.pop();
            tokens.truncate(most - 1);
            tokens.extend(end);
        }
        Ok(tokens.into_iter().map(i64::from).collect())
    }

    /// Tokens that came as numbers, of which the mask says which count: those at the beginning.
    fn given(&self, ids: &Input<'_>, mask: Option<Input<'_>>, truncate: bool) -> Result<Vec<Vec<i64>>, Refusal> {
        let [rows, columns] = ids.spec.shape[..] else { return Err(ids.wrong(Datatype::Int64, &[-1, -1])) };
        let (rows, columns) = (usize::try_from(rows).unwrap_or(0), usize::try_from(columns).unwrap_or(0));
        check_count(rows).map_err(|sentence| ids.refusal(sentence))?;
        let numbers = ids.ints()?;
        let masks =
            mask.map(
                |mask| {
                    if mask.spec.shape == ids.spec.shape { mask.ints() } else { Err(mask.refusal("must have the shape of `input_ids`")) }
                },
            );
        let masks = masks.transpose()?;
        let (known, most) = (self.options.vocabulary.cast_signed(), self.options.length_max as usize);
        let row = |row: usize| {
            let own = row * columns..(row + 1) * columns;
            let count = masks.as_ref().map_or(columns, |mask| mask[own.clone()].iter().filter(|on| **on != 0).count());
            let is_front = masks.as_ref().is_none_or(|mask| mask[own.clone()][..count].iter().all(|on| *on != 0));
            let mut tokens = numbers[own].to_vec();
            tokens.truncate(count);
            if !is_front {
                return Err(ids.refusal(format!("has masked tokens before others in text {row}: padding stands behind a text")));
            }
            if count == 0 {
                return Err(ids.refusal(format!("has no tokens in text {row}")));
            }
            if let Some(token) = tokens.iter().find(|token| !(0..known).contains(*token)) {
                return Err(ids.refusal(format!("has the token {token} in text {row}, and the vocabulary has {known}")));
            }
            if count > most && !truncate {
                return Err(ids.refusal(format!("has {count} tokens in text {row}, and this model takes at most {most}")));
            }
            tokens.truncate(most);
            Ok(tokens)
        };
        (0..rows).map(row).collect()
    }

    /// The chains of one text, its embedding, and how many tokens it has.
    fn text(&self, growth: &mut GrowthBuilder, tokens: &[i64]) -> [OutputRef; 2] {
        let steps = tokens.len() as u32;
        let embed = growth.chain(steps).stage(&self.embed).input("token", Source::Ints(tokens.to_vec()));
        let zeros = Source::Index(Affine::always(0));
        let mut below = embed.input("position", Source::Index(Affine::EVERY)).input("type", zeros).add();
        for layer in &self.layers {
            let [x, query, keys, values] = ["x", "query", "keys", "values"].map(|name| below.output(name));
            let chain = growth.chain(steps).stage(layer).input("x", x.every()).input("query", query.every());
            below = chain.input("keys", keys.all()).input("values", values.all()).add();
        }
        let x = below.output("x");
        let mut pool = growth.chain(1).stage(&self.pool).input("count", Source::Ints(vec![steps.into()]));
        if self.options.pooling.iter().any(|pooling| *pooling != Pooling::First) {
            pool = pool.input("all", x.all());
        }
        if self.options.pooling.contains(&Pooling::First) {
            pool = pool.input("first", x.at(Affine::always(0)));
        }
        let pool = pool.add();
        ["embedding", "tokens"].map(|name| pool.output(name))
    }
}

fn check_count(texts: usize) -> Result<(), String> {
    match texts {
        0 => Err("has no texts".into()),
        1..=TEXTS_MAX => Ok(()),
        _ => Err(format!("has {texts} texts, and a request has at most {TEXTS_MAX}")),
    }
}

/// What the request says, or else the model.
fn truncate(request: &Request, model: bool) -> Result<bool, Refusal> {
    let mut truncate = model;
    for Parameter { name, value } in request.parameters() {
        if name == "truncate" {
            let Given::Truth(given) = value else { return Err(Parameters::refusal("truncate", "must be true or false")) };
            truncate = given;
        }
    }
    Ok(truncate)
}

/// A token's row: three embeddings, normalised.
fn embed(cell: &mut CellBuilder, options: &Options) {
    let prefix = format!("{}embeddings.", options.prefix);
    let mut looked_up = |input: &str, table: &str| {
        let number = cell.input(input, Datatype::Int64, &[]);
        cell.embedding(number, &format!("{prefix}{table}_embeddings."))
    };
    let [word, position, kind] =
        [("token", "word"), ("position", "position"), ("type", "token_type")].map(|(input, table)| looked_up(input, table));
    let sum = cell.add(word, kind);
    let sum = cell.add(sum, position);
    let x = cell.layer_normalization(sum, &format!("{prefix}LayerNorm."), options.config.layer_norm_eps);
    given(cell, options, x, 0);
}

/// What a layer gives to the next: its row, and what attention takes of it.
fn given(cell: &mut CellBuilder, options: &Options, x: Value, next: u32) {
    let hidden = options.config.hidden_size;
    cell.output("x", x, Datatype::Fp32, &[hidden]);
    if next < options.config.num_hidden_layers {
        for (name, part) in [("query", "query"), ("keys", "key"), ("values", "value")] {
            let y = cell.linear(x, &format!("{}encoder.layer.{next}.attention.self.{part}.", options.prefix));
            cell.output(name, y, Datatype::Fp32, &[hidden]);
        }
    }
}

/// Attention, and the products behind it.
fn layer(cell: &mut CellBuilder, options: &Options, number: u32) {
    let config = &options.config;
    let (hidden, epsilon) = (config.hidden_size, config.layer_norm_eps);
    let prefix = format!("{}encoder.layer.{number}.", options.prefix);
    let [x, query] = ["x", "query"].map(|name| cell.input(name, Datatype::Fp32, &[hidden]));
    let [keys, values] = ["keys", "values"].map(|name| cell.ragged(name, Datatype::Fp32, &[hidden]));
    let seen = cell.attention(query, keys, values, config.num_attention_heads);
    let seen = cell.linear(seen, &format!("{prefix}attention.output.dense."));
    let sum = cell.add(seen, x);
    let x = cell.layer_normalization(sum, &format!("{prefix}attention.output.LayerNorm."), epsilon);
    let wide = cell.linear(x, &format!("{prefix}intermediate.dense."));
    let wide = options.activation.apply(cell, wide);
    let narrow = cell.linear(wide, &format!("{prefix}output.dense."));
    let sum = cell.add(narrow, x);
    let x = cell.layer_normalization(sum, &format!("{prefix}output.LayerNorm."), epsilon);
    given(cell, options, x, number + 1);
}

/// All tokens' rows to one.
fn pool(cell: &mut CellBuilder, options: &Options) {
    let hidden = options.config.hidden_size;
    let is_of_all = options.pooling.iter().any(|pooling| *pooling != Pooling::First);
    let all = is_of_all.then(|| cell.ragged("all", Datatype::Fp32, &[hidden]));
    let first = options.pooling.contains(&Pooling::First).then(|| cell.input("first", Datatype::Fp32, &[hidden]));
    let pooled: Vec<Value> = options
        .pooling
        .iter()
        .filter_map(|pooling| match pooling {
            Pooling::Mean => all.map(|all| cell.mean_of_rows(all)),
            Pooling::Max => all.map(|all| cell.max_of_rows(all)),
            Pooling::First => first,
        })
        .collect();
    let mut y = if let [one] = pooled[..] { one } else { cell.concat(&pooled) };
    if options.normalize {
        let length = cell.euclidean_norm(y);
        // As `torch.nn.functional.normalize` does, nothing is divided by 0.
        let least = cell.constant_float(1e-12);
        let is_longer = cell.greater(length, least);
        let divisor = cell.select(is_longer, length, least);
        y = cell.div(y, divisor);
    }
    cell.output("embedding", y, Datatype::Fp32, &[options.width()]);
    let count = cell.input("count", Datatype::Int64, &[]);
    cell.output("tokens", count, Datatype::Int64, &[]);
}
