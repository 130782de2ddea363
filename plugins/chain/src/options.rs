//! The parameters of `chain`.

use cellwright_guest::prelude::*;

/// What an element of the sequence is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// FP32 [features].
    Row { features: u32 },
    /// An INT64, looked up in the table `TABLEweight` [vocabulary, embedding].
    Token { table: String },
}

/// What the response tells of the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Its final state: of a backward direction, the state after the first element.
    Last,
    /// Every step, streamed.
    All,
    /// The mean over the steps.
    Pooled,
}

#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) weights: String,
    pub(crate) classes: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) family: Recurrence,
    pub(crate) input: String,
    pub(crate) element: Element,
    pub(crate) hidden: u32,
    pub(crate) layers: u32,
    pub(crate) bidirectional: bool,
    pub(crate) told: Told,
    pub(crate) weights: String,
    pub(crate) bias: bool,
    pub(crate) head: Option<Head>,
    pub(crate) max_length: u32,
}

/// More layers than any model has; each is a cell type with weights of its own.
const LAYERS_MAX: u32 = 64;

impl Options {
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, Refusal> {
        let layers = parameters.positive_or("layers", 1)?;
        if layers > LAYERS_MAX {
            return Err(Parameters::refusal("layers", format!("must be at most {LAYERS_MAX}, it is {layers}")));
        }
        Ok(Self {
            family: family(parameters)?,
            input: parameters.text("input")?.into(),
            element: element(parameters)?,
            hidden: parameters.positive("hidden")?,
            layers,
            bidirectional: parameters.truth_or("bidirectional", false)?,
            told: parameters.choice_or_first("output", &[("last", Told::Last), ("all", Told::All), ("pooled", Told::Pooled)])?,
            weights: parameters.text_or("weights", "")?.into(),
            bias: parameters.truth_or("bias", true)?,
            head: head(parameters)?,
            max_length: parameters.positive_or("max_length", 4096)?,
        })
    }

    /// One or two.
    pub(crate) fn directions(&self) -> u32 {
        1 + u32::from(self.bidirectional)
    }

    /// Features of the last layer's step.
    pub(crate) fn width(&self) -> u32 {
        self.hidden * self.directions()
    }
}

fn family(parameters: &Parameters) -> Result<Recurrence, Refusal> {
    let families = [("lstm", Recurrence::Lstm), ("gru", Recurrence::Gru), ("rnn", Recurrence::RnnTanh)];
    match parameters.choice("cell", &families)? {
        Recurrence::RnnTanh => parameters.choice_or_first("nonlinearity", &[("tanh", Recurrence::RnnTanh), ("relu", Recurrence::RnnRelu)]),
        other => Ok(other),
    }
}

fn element(parameters: &Parameters) -> Result<Element, Refusal> {
    match (parameters.has("features"), parameters.has("vocabulary")) {
        (true, false) => Ok(Element::Row { features: parameters.positive("features")? }),
        (false, true) => {
            // Sizes the weights have anyway; asked for so that a model says what it is.
            parameters.positive("vocabulary")?;
            parameters.positive("embedding")?;
            Ok(Element::Token { table: parameters.text("embedding_weights")?.into() })
        }
        _ => Err(Refusal::InvalidInput(
            "give either `features` (the input is dense rows) or `vocabulary`, `embedding` and `embedding_weights` (the input is token ids)".into(),
        )),
    }
}

fn head(parameters: &Parameters) -> Result<Option<Head>, Refusal> {
    Ok(match parameters.optional_text("head")? {
        Some(weights) => Some(Head { weights: weights.into(), classes: parameters.positive("classes")? }),
        None => None,
    })
}
