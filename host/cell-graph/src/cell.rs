//! What a plugin's `describe` says: the model's tensors, and its cells as named operators over named values.
//!
//! These types are as the plugin spoke them, unchecked. [`crate::typed::TypedCell`] is what is left once names, types and shapes are resolved.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::datatype::Datatype;

/// A tensor of the model's interface; −1 is any extent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct TensorSpec {
    pub name: String,
    pub datatype: Datatype,
    pub shape: Vec<i64>,
}

/// An input or output of a cell, without the batch dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Port {
    /// The name operators use.
    pub name: String,
    /// Logical datatype; how it is stored is the backend's business.
    pub datatype: Datatype,
    /// The shape of one row.
    pub shape: Vec<u32>,
    /// Whether it takes any number of rows per node.
    pub ragged: bool,
    /// Whether it is the cell's state: only a carried input may be the target of a feedback.
    pub carried: bool,
}

/// An attribute of an operator, or a parameter of a model or a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Attribute {
    pub name: String,
    pub value: AttributeValue,
}

/// The value of an [`Attribute`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the variants are their types")]
pub enum AttributeValue {
    Int(i64),
    Float(f64),
    Text(String),
    Truth(bool),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
}

/// One ONNX operator. Names refer to the cell's inputs, to weights of the bundle, or to outputs of earlier operators.
///
/// What ONNX takes as a constant tensor (`axes`, `starts`, `ends`, `steps`, `split`, `shape`, `k`) may be given as an attribute of that name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Operator {
    pub kind: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: Vec<Attribute>,
}

/// A cell's dataflow graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// Operators in an order in which each uses only what stands before it.
    Operators(Vec<Operator>),
    /// The name of an ONNX file in the bundle.
    Onnx(String),
}

/// A cell as the plugin describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Unique within the model.
    pub name: String,
    /// What a node takes.
    pub inputs: Vec<Port>,
    /// What a node gives; names of values the body computes (or of inputs, passed through).
    pub outputs: Vec<Port>,
    /// How the one becomes the other.
    pub body: Body,
    /// The plugin's own bound on the batch.
    pub batch_max: Option<u32>,
    /// Higher runs first; defaults to the cell's depth in the model.
    pub priority: Option<i32>,
}

/// What a plugin says of its model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Tensors a request brings.
    pub inputs: Vec<TensorSpec>,
    /// Tensors a response carries.
    pub outputs: Vec<TensorSpec>,
    /// The model's cells; chains name them by position.
    pub cells: Vec<Cell>,
    /// Inputs that a request may leave out.
    pub optional_inputs: Vec<String>,
    /// Whether the leading dimension of every input counts independent requests.
    pub rows_are_requests: bool,
    /// The most values (slots) a request may hold at once, for models that grow.
    pub live_max: Option<u32>,
    /// Weights whose names begin with one of these may be in the bundle though no cell reads them.
    pub ignored_weights: Vec<String>,
}

impl Description {
    /// Bytes of memory that it takes, about, and not less.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let specs = self.inputs.iter().chain(&self.outputs).map(|spec| size_of_val(spec) + text(&spec.name) + 8 * spec.shape.len());
        let bytes = specs.sum::<usize>()
            + texts(&self.optional_inputs)
            + texts(&self.ignored_weights)
            + self.cells.iter().map(Cell::bytes).sum::<usize>();
        bytes as u64
    }

    /// The names of the weights that cells read: what their operators take that is neither an input of the cell nor another operator's output.
    #[must_use]
    pub fn weights_read(&self) -> BTreeSet<&str> {
        let mut weights = BTreeSet::new();
        for cell in &self.cells {
            let Body::Operators(operators) = &cell.body else { continue };
            let outputs = operators.iter().flat_map(|operator| &operator.outputs);
            let values: BTreeSet<&String> = cell.inputs.iter().map(|port| &port.name).chain(outputs).collect();
            let inputs = operators.iter().flat_map(|operator| &operator.inputs);
            // ONNX's empty name is an input that is left out.
            weights.extend(inputs.filter(|name| !name.is_empty() && !values.contains(name)).map(String::as_str));
        }
        weights
    }
}

/// What the allocator adds to each piece, at most.
const PIECE: usize = 32;

const fn text(text: &str) -> usize {
    PIECE + text.len()
}

fn texts(texts: &[String]) -> usize {
    PIECE + texts.iter().map(|one| size_of_val(one) + text(one)).sum::<usize>()
}

impl Cell {
    fn bytes(&self) -> usize {
        let ports = self.inputs.iter().chain(&self.outputs).map(|port| size_of_val(port) + text(&port.name) + PIECE + 4 * port.shape.len());
        let body = match &self.body {
            Body::Operators(operators) => operators.iter().map(Operator::bytes).sum(),
            Body::Onnx(name) => text(name),
        };
        size_of_val(self) + text(&self.name) + ports.sum::<usize>() + body
    }
}

impl Operator {
    fn bytes(&self) -> usize {
        let value = |value: &AttributeValue| match value {
            AttributeValue::Int(_) | AttributeValue::Float(_) | AttributeValue::Truth(_) => 0,
            AttributeValue::Text(one) => text(one),
            AttributeValue::Ints(numbers) => PIECE + size_of_val(&**numbers),
            AttributeValue::Floats(numbers) => PIECE + size_of_val(&**numbers),
            AttributeValue::Texts(all) => texts(all),
        };
        let attributes = self.attributes.iter().map(|of| size_of_val(of) + text(&of.name) + value(&of.value));
        size_of_val(self) + text(&self.kind) + texts(&self.inputs) + texts(&self.outputs) + attributes.sum::<usize>()
    }
}
