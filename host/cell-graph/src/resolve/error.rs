//! What can be wrong with a cell, one sentence each.

use std::fmt;

use crate::cell::Operator;
use crate::datatype::Datatype;
use crate::weights::Nearest;

/// Inputs of an operator that are named where it is at fault.
const NAMED_MOST: usize = 4;

/// What is wrong with a cell, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("cell `{cell}`{place}: {fault}")]
pub struct CellError {
    /// Which cell.
    pub cell: String,
    /// Where in it.
    pub place: CellPlace,
    /// What.
    #[source]
    pub fault: Box<CellFault>,
}

impl CellError {
    pub(super) fn in_cell(cell: &str, fault: CellFault) -> Self {
        Self { cell: short(cell), place: CellPlace::Cell, fault: Box::new(fault) }
    }

    pub(super) fn at_operator(cell: &str, position: usize, operator: &Operator, fault: CellFault) -> Self {
        let inputs = operator.inputs.iter().take(NAMED_MOST).map(|name| short(name)).collect();
        let place = CellPlace::Operator { position, kind: short(&operator.kind), inputs };
        Self { cell: short(cell), place, fault: Box::new(fault) }
    }
}

/// Where in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellPlace {
    /// The cell as a whole.
    Cell,
    /// One of its operators.
    Operator {
        /// Counted from 0.
        position: usize,
        /// Its kind, as the plugin wrote it.
        kind: String,
        /// The names of its first inputs: which weight is meant.
        inputs: Vec<String>,
    },
}

impl fmt::Display for CellPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cell => Ok(()),
            Self::Operator { position, kind, inputs } if inputs.is_empty() => write!(f, ", operator {position} ({kind})"),
            Self::Operator { position, kind, inputs } => write!(f, ", operator {position} ({kind} of `{}`)", inputs.join("`, `")),
        }
    }
}

/// A shape as ONNX writes it; `N` is the batch, and a ragged extent says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeText(String);

impl ShapeText {
    pub(crate) fn row(shape: impl IntoIterator<Item = usize>) -> Self {
        Self::of(None, None, shape)
    }

    pub(super) fn batched(shape: impl IntoIterator<Item = usize>) -> Self {
        Self::of(Some("N".to_owned()), None, shape)
    }

    /// Of a value of which that axis of the row is ragged.
    pub(super) fn ragged(shape: impl IntoIterator<Item = usize>, axis: usize) -> Self {
        Self::of(Some("N".to_owned()), Some(axis + 1), shape)
    }

    fn of(first: Option<String>, ragged: Option<usize>, shape: impl IntoIterator<Item = usize>) -> Self {
        const MOST: usize = 16;
        let mut shape = shape.into_iter();
        let mut extents: Vec<String> = first.into_iter().chain(shape.by_ref().take(MOST).map(|extent| extent.to_string())).collect();
        ragged.into_iter().for_each(|at| extents.insert(at.min(extents.len()), "ragged".to_owned()));
        if shape.next().is_some() {
            extents.push("…".to_owned());
        }
        Self(format!("[{}]", extents.join(", ")))
    }
}

impl fmt::Display for ShapeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A foreign name, cut to a length that fits a sentence.
pub(crate) fn short(name: &str) -> String {
    const MOST: usize = 80;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// `2 inputs`, `2 to 3 inputs`.
fn counted(least: usize, most: usize, what: &str) -> String {
    let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
    format!("{range} {what}{}", if most == 1 { "" } else { "s" })
}

/// What can be wrong with a cell.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum CellFault {
    #[error("its body is an ONNX file, and ONNX files are not supported yet")]
    OnnxBody,
    #[error("output `{name}` is ragged, but only inputs may be: reduce it over its ragged axis")]
    RaggedOutput { name: String },
    #[error("input `{name}` is ragged and carried, but state has one row")]
    RaggedState { name: String },
    #[error("input {input} is ragged, and this operator takes no ragged input there")]
    RaggedInput { input: usize },
    #[error("input {input} must be ragged")]
    NotRagged { input: usize },
    #[error("its inputs are ragged along different axes")]
    SpanAxes,
    #[error("its inputs join different spans, so that they need not have as many rows as one another")]
    SpansDiffer,
    #[error("axis {axis} is ragged, and {how}")]
    RaggedAxis { axis: i64, how: &'static str },
    #[error("it has {count} {what}, more than the limit of {limit}")]
    Limit { what: &'static str, count: u64, limit: u64 },
    #[error("there is no room to copy {bytes} bytes of its weights")]
    NoRoom { bytes: u64 },
    #[error("an {what} has no name")]
    NoName { what: &'static str },
    #[error("{what} `{name}` has the name of {by}")]
    NameTaken { what: &'static str, name: String, by: &'static str },
    #[error("`{name}` is neither an input, nor an output of an earlier operator, nor a weight of the bundle{nearest}")]
    UnknownName { name: String, nearest: Nearest },
    #[error("{what} `{name}` is {datatype}, but ports are BOOL, UINT8, INT32, INT64 or FP32")]
    PortDatatype { what: &'static str, name: String, datatype: Datatype },
    #[error("{what} `{name}` has an extent of 0")]
    EmptyPort { what: &'static str, name: String },
    #[error("weight `{name}` is {datatype}, but weights are FP32, INT32 or INT64 and are not converted silently")]
    WeightDatatype { name: String, datatype: Datatype },
    #[error("weight `{name}` does not hold what its shape says, or holds nothing")]
    WeightShape { name: String },
    #[error("weight `{name}` has {value} in a product, which is beyond the range of f16 (±65504)")]
    BeyondHalves { name: String, value: f32 },
    #[error("it has no outputs")]
    NoOutputs,
    #[error("output `{name}` is computed by no operator")]
    OutputMissing { name: String },
    #[error("output `{name}` is a constant, not a value of each row")]
    OutputConstant { name: String },
    #[error("output `{name}` is declared {declared}, but its operators give {computed}")]
    OutputDatatype { name: String, declared: Datatype, computed: Datatype },
    #[error("output `{name}` is declared with rows of shape {declared}, but its operators give {computed}")]
    OutputShape { name: String, declared: ShapeText, computed: ShapeText },
    #[error("this host has no such operator")]
    UnknownOperator,
    #[error("it has no attribute `{name}`")]
    UnknownAttribute { name: String },
    #[error("attribute `{name}` is given twice")]
    AttributeTwice { name: String },
    #[error("attribute `{name}` must be {wanted}")]
    AttributeType { name: &'static str, wanted: &'static str },
    #[error("it needs `{name}`")]
    AttributeMissing { name: &'static str },
    #[error("`{name}` is given both as an attribute and as an input")]
    ParameterTwice { name: &'static str },
    #[error("`{name}` must be a constant INT64 tensor of rank 0 or 1")]
    ParameterTensor { name: &'static str },
    #[error("it takes {}, not {given}", counted(*least, *most, "input"))]
    InputCount { given: usize, least: usize, most: usize },
    #[error("it has {}, not {given}", counted(1, *most, "output"))]
    OutputCount { given: usize, most: usize },
    #[error("input {input} is missing")]
    InputMissing { input: usize },
    #[error("input {input} is {given}, but must be {wanted}")]
    InputDatatype { input: usize, given: Datatype, wanted: &'static str },
    #[error("its inputs are {left} and {right}, but must be of one datatype (Cast converts)")]
    DatatypesDiffer { left: Datatype, right: Datatype },
    #[error("input {input} must be a constant: a weight of the bundle or an output of Constant")]
    NotConstant { input: usize },
    #[error("it works on constants alone; give its result as a weight")]
    ConstantsOnly,
    #[error("shapes {left} and {right} do not broadcast")]
    Broadcast { left: ShapeText, right: ShapeText },
    #[error("shapes {left} and {right} do not fit together")]
    ShapesDiffer { left: ShapeText, right: ShapeText },
    #[error("input {input} has the shape {given}, but {wanted}")]
    InputShape { input: usize, given: ShapeText, wanted: &'static str },
    #[error("axis {axis} is the batch dimension, and rows of a batch must stay independent")]
    BatchAxis { axis: i64 },
    #[error("{how}, and rows of a batch must stay independent")]
    CrossesBatch { how: &'static str },
    #[error("axis {axis} is out of range for {rank} dimensions (the batch is one of them)")]
    AxisRange { axis: i64, rank: usize },
    #[error("axis {axis} is named twice")]
    AxisTwice { axis: i64 },
    #[error("{what}")]
    Unusable { what: &'static str },
    #[error("the sizes {sizes} do not add up to the {extent} elements of the axis")]
    SplitSizes { sizes: ShapeText, extent: usize },
    #[error("k is {k}, but the axis has {extent} elements")]
    TopK { k: i64, extent: usize },
    #[error("its result would be empty")]
    EmptyResult,
    #[error("rows of shape {from} cannot be reshaped to {to:?}")]
    Reshape { from: ShapeText, to: Vec<i64> },
    #[error("it cannot cast to `{to}`: a datatype is BOOL, UINT8, INT32, INT64 or FP32, or their ONNX numbers 9, 2, 6, 7, 1")]
    CastTo { to: String },
}
