//! The parameters of `chain`.

use cellwright_guest::BundleWeights;
use cellwright_guest::prelude::*;
use cellwright_guest::types::Value;
use layers::{Prefix, Recurrent, Stack, embedding, family, linear};

/// What an element of the sequence is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// FP32 [features].
    Row { features: u32 },
    /// An INT64, looked up in the table `TABLEweight` [vocabulary, embedding].
    Token { table: String, vocabulary: u32, embedding: u32 },
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
    /// Reads the parameters, and compares them with the weights.
    pub(crate) fn read(parameters: &Parameters, bundle: &Bundle) -> Result<Self, Refusal> {
        let options = Self::parse(parameters)?;
        parameters.refuse_unknown()?;
        options.check(&bundle.weights())?;
        Ok(options)
    }

    fn parse(parameters: &Parameters) -> Result<Self, Refusal> {
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
            told: told(parameters)?,
            weights: parameters.text_or("weights", "")?.into(),
            bias: parameters.truth_or("bias", true)?,
            head: head(parameters)?,
            max_length: parameters.positive_or("max_length", 4096)?,
        })
    }

    fn check(&self, weights: &BundleWeights) -> Result<(), Refusal> {
        let input = match &self.element {
            Element::Row { features } => ("features", *features),
            Element::Token { table, vocabulary, embedding: columns } => {
                let prefix = Prefix { parameter: "embedding_weights", value: table };
                embedding(weights, prefix, *columns)?.check_rows("vocabulary", *vocabulary)?;
                ("embedding", *columns)
            }
        };
        let prefix = Prefix { parameter: "weights", value: &self.weights };
        let stack = Stack { layers: self.layers, bidirectional: self.bidirectional, bias: self.bias };
        Recurrent { prefix, family: self.family, hidden: self.hidden, input, stack: Some(stack) }.check(weights)?;
        let Some(head) = &self.head else { return Ok(()) };
        let prefix = Prefix { parameter: "head", value: &head.weights };
        let matrix = linear(weights, prefix)?;
        matrix.check_inputs(prefix, self.width().into(), "`hidden` and `bidirectional`")?;
        matrix.check_rows("classes", head.classes)
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

fn told(parameters: &Parameters) -> Result<Told, Refusal> {
    // PyTorch has it in one line, so it is asked for.
    if let Some(Value::Text(word)) = parameters.get("output")
        && word.starts_with("max")
    {
        let sentence = format!(
            "is \"{word}\", and this plugin has no maximum over the steps: take \"pooled\" for their mean, or write a plugin of your own"
        );
        return Err(Parameters::refusal("output", sentence));
    }
    parameters.choice_or_first("output", &[("last", Told::Last), ("all", Told::All), ("pooled", Told::Pooled)])
}

fn element(parameters: &Parameters) -> Result<Element, Refusal> {
    match (parameters.has("features"), parameters.has("vocabulary")) {
        (true, false) => Ok(Element::Row { features: parameters.positive("features")? }),
        (false, true) => {
            // The text first: where `embedding` is missing, `embedding_weights` is no misspelt one.
            let table = parameters.text("embedding_weights")?.into();
            Ok(Element::Token { table, vocabulary: parameters.positive("vocabulary")?, embedding: parameters.positive("embedding")? })
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
