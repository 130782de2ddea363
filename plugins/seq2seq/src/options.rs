//! The parameters of `seq2seq`.

use cellwright_guest::BundleWeights;
use cellwright_guest::prelude::*;
use layers::{Prefix, Recurrent, embedding, family, linear};

use crate::text::{Form, Reader};

/// What requests and responses hold.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    /// BYTES [1] in and out: one text each.
    Text { reader: Reader, target: Vec<char> },
    /// INT64 [T] in, INT64 [−1] out, end-of-sequence included.
    Ids { source_vocabulary: u32, target_vocabulary: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) family: Recurrence,
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) reverse: bool,
    pub(crate) embedding: u32,
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
    /// Reads the parameters, and compares them with the weights.
    pub(crate) fn read(parameters: &Parameters, bundle: &Bundle) -> Result<Self, Refusal> {
        let options = Self::parse(parameters)?;
        parameters.refuse_unknown()?;
        options.check(&bundle.weights())?;
        Ok(options)
    }

    fn parse(parameters: &Parameters) -> Result<Self, Refusal> {
        let family = family(parameters)?;
        let eos = parameters.index("eos")?;
        let mode = match parameters.choice_or_first("mode", &[("text", true), ("ids", false)])? {
            true => text(parameters, eos)?,
            false => ids(parameters, eos)?,
        };
        Ok(Self {
            mode,
            family,
            input: parameters.text("input")?.into(),
            output: parameters.text("output")?.into(),
            reverse: parameters.truth_or("reverse", false)?,
            embedding: parameters.positive("embedding")?,
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

    fn check(&self, weights: &BundleWeights) -> Result<(), Refusal> {
        let named = |parameter, value| Prefix { parameter, value };
        let source = embedding(weights, named("source_embedding", &self.weights.source_embedding), self.embedding)?;
        let target = embedding(weights, named("target_embedding", &self.weights.target_embedding), self.embedding)?;
        for prefix in [named("encoder", &self.weights.encoder), named("decoder", &self.weights.decoder)] {
            let input = ("embedding", self.embedding);
            Recurrent { prefix, family: self.family, hidden: self.hidden, input, stack: None }.check(weights)?;
        }
        let prefix = named("head", &self.weights.head);
        let head = linear(weights, prefix)?;
        head.check_inputs(prefix, self.hidden.into(), "`hidden`")?;
        match &self.mode {
            Mode::Text { reader, target } => {
                source.check_list("alphabet", reader.characters(), "characters")?;
                head.check_list("target_alphabet", target.len(), "characters")?;
            }
            Mode::Ids { source_vocabulary, target_vocabulary } => {
                source.check_rows("source_vocabulary", *source_vocabulary)?;
                head.check_rows("target_vocabulary", *target_vocabulary)?;
            }
        }
        head.check_token("eos", self.eos)?;
        target.check_token("go", self.go)?;
        // Every token that is written is read next, but for the one that ends the target.
        let ends = u64::from(self.eos) + 1 == head.rows();
        let read = head.rows() - u64::from(ends);
        if target.rows() >= read {
            return Ok(());
        }
        let (rows, last) = (target.rows(), read - 1);
        let prefix = named("target_embedding", &self.weights.target_embedding);
        Err(prefix.refusal(format!(
            "but `{}` has {rows} rows, and `{}` scores token {last} too, which the decoder would read next",
            target.name(),
            head.name()
        )))
    }
}

fn text(parameters: &Parameters, eos: u32) -> Result<Mode, Refusal> {
    let forms = [("nfc", Form::Nfc), ("nfd", Form::Nfd), ("nfkc", Form::Nfkc), ("none", Form::None)];
    let form = parameters.choice_or_first("normal_form", &forms)?;
    let reader = Reader::new(parameters.text("alphabet")?, form, parameters.truth_or("lowercase", false)?)?;
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
    let [source_vocabulary, target_vocabulary] = parameters.sizes(["source_vocabulary", "target_vocabulary"])?;
    if eos >= target_vocabulary {
        return Err(Parameters::refusal("eos", format!("must be below `target_vocabulary` ({target_vocabulary}), it is {eos}")));
    }
    Ok(Mode::Ids { source_vocabulary, target_vocabulary })
}
