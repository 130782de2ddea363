//! The parameters of `tree`.

use cellwright_guest::prelude::*;

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
    pub(crate) hidden: u32,
    pub(crate) classes: u32,
    pub(crate) max_leaves: u32,
    pub(crate) leaf_embedding: String,
    pub(crate) leaf: String,
    pub(crate) node: String,
    pub(crate) head: String,
}

impl Options {
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, Refusal> {
        let mode = match parameters.choice_or_first("mode", &[("text", true), ("arrays", false)])? {
            true => text(parameters)?,
            false => Mode::Arrays,
        };
        // A size the weights have anyway; asked for so that a model says what it is.
        parameters.positive("embedding")?;
        Ok(Self {
            mode,
            hidden: parameters.positive("hidden")?,
            classes: parameters.positive("classes")?,
            max_leaves: parameters.positive_or("max_leaves", 1024)?,
            leaf_embedding: parameters.text("leaf_embedding")?.into(),
            leaf: parameters.text("leaf")?.into(),
            node: parameters.text("node")?.into(),
            head: parameters.text("head")?.into(),
        })
    }
}

fn text(parameters: &Parameters) -> Result<Mode, Refusal> {
    let vocabulary = Vocabulary::new(parameters.texts("vocabulary")?).map_err(|sentence| Parameters::refusal("vocabulary", sentence))?;
    let brackets = parameters.choice("brackets", &[("lists", Brackets::Lists), ("binary", Brackets::Binary)])?;
    Ok(Mode::Text { input: parameters.text("input")?.into(), brackets, vocabulary })
}
