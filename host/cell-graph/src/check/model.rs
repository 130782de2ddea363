//! A model: its description, checked, and its cells, resolved.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cell::{Description, TensorSpec};
use crate::resolve::{CellError, ResolveContext, short};
use crate::typed::TypedCell;

/// Cells of a model, tensors of its interface, and their dimensions.
const CELLS_MAX: usize = 256;
const TENSORS_MAX: usize = 256;
const RANK_MAX: usize = 16;
/// Names of cells and tensors stand in tables, answers and metrics, there again and again.
const NAME_BYTES_MAX: usize = 256;

/// A checked description and its resolved cells.
#[derive(Clone, Debug)]
pub struct Model {
    /// As the plugin gave it.
    pub description: Arc<Description>,
    /// In the description's order.
    pub cells: Vec<Arc<TypedCell>>,
}

/// What is wrong with a description.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum ModelError {
    #[error(transparent)]
    Cell(#[from] CellError),
    #[error("the model describes {count} {what}, but must have 1 to {limit}")]
    Count { what: &'static str, count: usize, limit: usize },
    #[error("two {what} are called `{name}`")]
    NameTwice { what: &'static str, name: String },
    #[error("one of the {what} has no name")]
    NoName { what: &'static str },
    #[error("the name `{name}` of one of the {what} has {bytes} bytes, more than the limit of {limit}")]
    LongName { what: &'static str, name: String, bytes: usize, limit: usize },
    #[error("the name {name:?} of one of the {what} has a character that controls the text or its direction")]
    ControlCharacter { what: &'static str, name: String },
    #[error("tensor `{name}` has {rank} dimensions, more than the limit of {limit}")]
    Rank { name: String, rank: usize, limit: usize },
    #[error("tensor `{name}` has an extent of {extent}; an extent is -1 (any) or at least 0")]
    Extent { name: String, extent: i64 },
    #[error("input tensor `{name}` has no leading dimension, which `rows-are-requests` counts")]
    NoRows { name: String },
    #[error("cell `{cell}` has a `batch-max` of 0, so that it could never run")]
    NoBatch { cell: String },
    #[error("the optional input `{name}` is no input of the model")]
    NoInput { name: String },
    #[error("`live-max` is 0, so that no request could hold a value")]
    NothingLives,
}

impl Model {
    /// Checks a description and resolves its cells.
    ///
    /// # Errors
    /// One sentence for what is wrong with the description or one of its cells.
    pub fn resolve(description: impl Into<Arc<Description>>, context: &ResolveContext<'_>) -> Result<Self, ModelError> {
        let description = description.into();
        check_tensors("input tensors", &description.inputs)?;
        check_tensors("output tensors", &description.outputs)?;
        let is_input = |name: &&String| description.inputs.iter().any(|spec| spec.name == **name);
        if let Some(name) = description.optional_inputs.iter().find(|name| !is_input(name)) {
            return Err(ModelError::NoInput { name: short(name) });
        }
        check_count("cells", description.cells.len(), CELLS_MAX)?;
        check_names("cells", description.cells.iter().map(|cell| cell.name.as_str()))?;
        if description.rows_are_requests
            && let Some(spec) = description.inputs.iter().find(|spec| spec.shape.is_empty())
        {
            return Err(ModelError::NoRows { name: short(&spec.name) });
        }
        if description.live_max == Some(0) {
            return Err(ModelError::NothingLives);
        }
        if let Some(cell) = description.cells.iter().find(|cell| cell.batch_max == Some(0)) {
            return Err(ModelError::NoBatch { cell: short(&cell.name) });
        }
        let cells = description.cells.iter().map(|cell| TypedCell::resolve(cell, context).map(Arc::new));
        let cells = cells.collect::<Result<_, _>>()?;
        Ok(Self { description, cells })
    }
}

fn check_tensors(what: &'static str, specs: &[TensorSpec]) -> Result<(), ModelError> {
    check_count(what, specs.len(), TENSORS_MAX)?;
    check_names(what, specs.iter().map(|spec| spec.name.as_str()))?;
    for spec in specs {
        if spec.shape.len() > RANK_MAX {
            return Err(ModelError::Rank { name: short(&spec.name), rank: spec.shape.len(), limit: RANK_MAX });
        }
        if let Some(extent) = spec.shape.iter().find(|extent| **extent < -1) {
            return Err(ModelError::Extent { name: short(&spec.name), extent: *extent });
        }
    }
    Ok(())
}

fn check_count(what: &'static str, count: usize, limit: usize) -> Result<(), ModelError> {
    if (1..=limit).contains(&count) { Ok(()) } else { Err(ModelError::Count { what, count, limit }) }
}

/// Whether a character controls the text around it, or its direction: a name with one is not read as it is written.
#[must_use]
pub fn is_hidden(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') || character.is_control()
}

fn check_names<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), ModelError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(ModelError::NoName { what });
        }
        if name.contains(is_hidden) {
            return Err(ModelError::ControlCharacter { what, name: short(name) });
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(ModelError::LongName { what, name: short(name), bytes: name.len(), limit: NAME_BYTES_MAX });
        }
        if !seen.insert(name) {
            return Err(ModelError::NameTwice { what, name: short(name) });
        }
    }
    Ok(())
}
