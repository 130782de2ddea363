//! The parameters of `seq2seq`.

use cellwright_guest::prelude::*;

use crate::text::Reader;

/// What requests and responses hold.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    /// BYTES [1] in and out: one text each.
    Text { reader: Reader, target: Vec<char> },
    /// INT64 [T] in, INT64 [−1] out, end-of-sequence included.
    Ids,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) family: Recurrence,
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) reverse: bool,
    pub(crate) hidden: u32,
    pub(crate) weights: Weights,
    pub(crate) eos: u32,
    pub(crate) go: u32,
    pub(crate) max_steps: u32,
    pub(crate) max_length: u32,
    pub(crate) split_projection: bool,
}

/// Prefixes of weights.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) source_embedding: String,
    pub(crate) encoder: String,
    pub(crate) target_embedding: String,
    pub(crate) decoder: String,
    pub(crate) head: String,
}

impl Options {
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, Refusal> {
        let family = family(parameters)?;
        let eos = parameters.index("eos")?;
        let mode = match parameters.choice_or_first("mode", &[("text", true), ("ids", false)])? {
            true => text(parameters, eos)?,
            false => ids(parameters, eos)?,
        };
        // A size the weights have anyway; asked for so that a model says what it is.
        parameters.positive("embedding")?;
        Ok(Self {
            mode,
            family,
            input: parameters.text("input")?.into(),
            output: parameters.text("output")?.into(),
            reverse: parameters.truth_or("reverse", false)?,
            hidden: parameters.positive("hidden")?,
            weights: Weights {
                source_embedding: parameters.text("source_embedding")?.into(),
                encoder: parameters.text("encoder")?.into(),
                target_embedding: parameters.text("target_embedding")?.into(),
                decoder: parameters.text("decoder")?.into(),
                head: parameters.text("head")?.into(),
            },
            eos,
            go: parameters.index("go")?,
            max_steps: parameters.positive("max_steps")?,
            max_length: parameters.positive_or("max_length", 4096)?,
            split_projection: parameters.truth_or("split_projection", false)?,
        })
    }
}

fn family(parameters: &Parameters) -> Result<Recurrence, Refusal> {
    let families = [("lstm", Recurrence::Lstm), ("gru", Recurrence::Gru), ("rnn", Recurrence::RnnTanh)];
    match parameters.choice("cell", &families)? {
        Recurrence::RnnTanh => parameters.choice_or_first("nonlinearity", &[("tanh", Recurrence::RnnTanh), ("relu", Recurrence::RnnRelu)]),
        other => Ok(other),
    }
}

fn text(parameters: &Parameters, eos: u32) -> Result<Mode, Refusal> {
    let reader = Reader::new(parameters.text("alphabet")?, parameters.truth_or("lowercase", false)?)?;
    let target: Vec<char> = parameters.text("target_alphabet")?.chars().collect();
    match target.get(eos as usize) {
        Some(character) => {
            let sentence = format!("must not be a character of `target_alphabet`, but {eos} is '{character}'");
            Err(Parameters::refusal("eos", sentence))
        }
        None => Ok(Mode::Text { reader, target }),
    }
}

fn ids(parameters: &Parameters, eos: u32) -> Result<Mode, Refusal> {
    parameters.positive("source_vocabulary")?;
    let target = parameters.positive("target_vocabulary")?;
    if eos >= target {
        return Err(Parameters::refusal("eos", format!("must be below `target_vocabulary` ({target}), it is {eos}")));
    }
    Ok(Mode::Ids)
}
