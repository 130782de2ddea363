//! The parameters of `tree`.

use cellwright_guest::BundleWeights;
use cellwright_guest::prelude::*;
use layers::{Matrix, Prefix, embedding, linear};

use crate::expression::Vocabulary;

/// How an expression is bracketed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brackets {
    /// `[NAME` opens a list and `]` closes it; both are leaves, and lists branch to the left.
    Lists,
    /// `(` and `)` around exactly two children.
    Binary,
}

/// What a request brings.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    /// BYTES [1]: an expression.
    Text { input: String, brackets: Brackets, vocabulary: Vocabulary },
    /// `tokens` INT64 [n] and `children` INT64 [n − 1, 2].
    Arrays,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) embedding: u32,
    pub(crate) hidden: u32,
    pub(crate) classes: u32,
    pub(crate) max_leaves: u32,
    pub(crate) leaf_embedding: String,
    pub(crate) leaf: String,
    pub(crate) node: String,
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
        let mode = match parameters.choice_or_first("mode", &[("text", true), ("arrays", false)])? {
            true => text(parameters)?,
            false => Mode::Arrays,
        };
        Ok(Self {
            mode,
            embedding: parameters.positive("embedding")?,
            hidden: parameters.positive("hidden")?,
            classes: parameters.positive("classes")?,
            max_leaves: parameters.positive_or("max_leaves", 1024)?,
            leaf_embedding: parameters.text("leaf_embedding")?.into(),
            leaf: parameters.text("leaf")?.into(),
            node: parameters.text("node")?.into(),
            head: parameters.text("head")?.into(),
        })
    }

    fn check(&self, weights: &BundleWeights) -> Result<(), Refusal> {
        let named = |parameter, value| Prefix { parameter, value };
        let table = embedding(weights, named("leaf_embedding", &self.leaf_embedding), self.embedding)?;
        if let Mode::Text { vocabulary, .. } = &self.mode {
            table.check_list("vocabulary", vocabulary.tokens(), "tokens")?;
        }
        let [leaf, node, head] = [("leaf", &self.leaf), ("node", &self.node), ("head", &self.head)].map(|(name, value)| named(name, value));
        let (leaves, nodes, classes) = (linear(weights, leaf)?, linear(weights, node)?, linear(weights, head)?);
        check_gates(&leaves, self.hidden, 3)?;
        check_gates(&nodes, self.hidden, 5)?;
        leaves.check_inputs(leaf, self.embedding.into(), "`embedding`")?;
        nodes.check_inputs(node, u64::from(self.hidden) * 2, "`hidden`, of two children")?;
        classes.check_inputs(head, self.hidden.into(), "`hidden`")?;
        classes.check_rows("classes", self.classes)
    }
}

fn check_gates(matrix: &Matrix, hidden: u32, gates: u64) -> Result<(), Refusal> {
    let (name, have, want) = (matrix.name(), matrix.rows(), u64::from(hidden) * gates);
    if have == want {
        return Ok(());
    }
    Err(Parameters::refusal(
        "hidden",
        format!("is {hidden}, so that `{name}` must have {gates} · {hidden} = {want} rows, but it has {have}"),
    ))
}

fn text(parameters: &Parameters) -> Result<Mode, Refusal> {
    let vocabulary = Vocabulary::new(parameters.texts("vocabulary")?).map_err(|sentence| Parameters::refusal("vocabulary", sentence))?;
    let brackets = parameters.choice("brackets", &[("lists", Brackets::Lists), ("binary", Brackets::Binary)])?;
    Ok(Mode::Text { input: parameters.text("input")?.into(), brackets, vocabulary })
}
