//! A cell whose names, types and shapes are resolved: what backends compile and what a cell type's identity is made of.
//!
//! Every value is either *batched* (one row per node, the batch dimension left out of its shape) or a constant (a weight of the bundle or a
//! `Constant`). No operation mixes rows of a batch; resolution refuses a body in which one would.
//!
//! A batched value that goes along with a ragged input has a row for each row of the node's span. To
//! most operations these are rows like any other. [`Compute::Repeat`] leads from nodes to spans, and
//! few operations see a whole span.

use std::fmt;
use std::sync::Arc;

use crate::cell::Port;
use crate::datatype::Datatype;
use crate::tensor::Tensor;
use crate::unfolded::{SPAN_ELEMENTS_MAX, SPAN_ROWS_MAX};

/// The content hash that makes two cells the same type: canonical body, weights, input shapes, datatypes, precision and tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellTypeKey(pub [u8; 32]);

impl fmt::Display for CellTypeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CellTypeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellTypeKey({self})")
    }
}

/// How a cell's matrix products are computed. Everything else of a cell, and what it takes and gives, is 32-bit floats at every precision.
///
/// Denormal 32-bit floats are zeros: every operation takes those that it reads for zeros, and gives zero in place of one. What only moves numbers may keep
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// In 32-bit floats.
    #[default]
    F32,
    /// Both sides of a [`Compute::Linear`]'s product (of the weight, what alpha makes of it) are rounded to bf16, to nearest, ties to even; the
    /// products are summed in 32-bit floats. A device may take sums that come near denormal numbers for zero, too.
    Bf16,
    /// Both sides are rounded to integers from −127 to 127 times a scale of its own for each row of the left and each column of the right-hand
    /// side: a 127th of the largest magnitude in it. Their products are summed without rounding, and that sum is scaled in 32-bit floats, by the
    /// row's scale and then by the column's. A row with an infinity or a NaN gives NaN; one whose numbers are all so small that 127 divided by the
    /// largest overflows, or that a 127th of that is denormal, gives zeros.
    Int8,
    /// As [`Self::Bf16`] with the halves of IEEE 754 instead: 10 bits behind the point, to nearest, ties to even, numbers below 2⁻¹⁴ in whole steps of
    /// 2⁻²⁴ and never taken for zero. What rounds to more than [`F16_MOST`] is infinite: a cell whose weights hold such a number is refused when it
    /// is resolved, and a row with one has infinite or undefined sums.
    // The last, because identities count precisions in the order in which they came.
    F16,
}

/// The largest number of [`Precision::F16`].
pub const F16_MOST: f32 = 65504.0;

impl Precision {
    /// Every precision, the most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// As `model.toml` has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// How far an answer may be from the expected one where nothing else is said: `tolerance · (1 + |expected|)`.
    #[must_use]
    pub const fn tolerance(self) -> f64 {
        match self {
            Self::F32 => 1e-4,
            // Three bits more than bf16 has.
            Self::F16 => 2.5e-3,
            Self::Bf16 => 2e-2,
            Self::Int8 => 5e-2,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no [`Precision`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a precision; the precisions are `f32`, `f16`, `bf16` and `int8`")]
pub struct NoPrecision(String);

impl std::str::FromStr for Precision {
    type Err = NoPrecision;

    fn from_str(text: &str) -> Result<Self, NoPrecision> {
        Self::ALL.into_iter().find(|precision| precision.name() == text).ok_or_else(|| NoPrecision(text.to_owned()))
    }
}

/// A value of a body, by position in [`TypedCell::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ValueId(pub u32);

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The cell's input of that position.
    Input(u32),
    /// A weight of the bundle, or a `Constant`.
    Constant(Arc<Tensor>),
    /// An output of the operation of that position.
    Operation(u32),
}

/// A value of a body.
#[derive(Clone, Debug)]
pub struct Value {
    /// The name the plugin gave it.
    pub name: String,
    /// BOOL, INT32, INT64, UINT8 or FP32.
    pub datatype: Datatype,
    /// The shape of one row if batched, of the whole otherwise.
    pub shape: Vec<usize>,
    /// Whether there is a row of it per node.
    pub batched: bool,
    /// The span of which it has a row for each row, if it is not one per node: the number of the first
    /// input that must have as many rows, or beyond all inputs that of a [`JoinedSpan`].
    pub span: Option<u32>,
    /// Where it comes from.
    pub origin: Origin,
}

impl Value {
    /// Elements of one row (batched) or of the whole.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One operand: element-wise operators of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "the names are ONNX's own")]
pub enum UnaryKind {
    Neg,
    Sigmoid,
    Tanh,
    Relu,
    /// The exact form, x/2 · (1 + erf(x/√2)).
    Gelu,
    /// `approximate = "tanh"`.
    GeluTanh,
    /// x · sigmoid(x).
    Silu,
    Exp,
    Log,
    Sqrt,
    Not,
}

/// Element-wise operators of two arguments, with ONNX (numpy) broadcasting of the row shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "the names are ONNX's own")]
pub enum BinaryKind {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Equal,
    Greater,
    Less,
    And,
    Or,
}

/// Reductions over axes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "the names are ONNX's own")]
pub enum ReduceKind {
    Sum,
    Mean,
    Max,
}

/// What an operation computes. Axes count the dimensions of a row (ONNX's axis − 1); constants are resolved.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Compute {
    /// `y[.., n] = alpha · Σ_k x[.., k] · w[k, n] + beta · c[n]`: ONNX Gemm and MatMul with a constant right-hand side. Its sum is what a
    /// [`Precision`] is about. Of a concatenation of parts that are known at different times it is as many products as there are such parts, which are
    /// added up (`resolve` cuts it), each with its own rows of w.
    /// Operands: x (batched, rank 1 or more), w (constant, rank 2), and c if there is one (constant or batched, broadcast to y).
    Linear {
        /// Whether w is stored as `[N, K]` (Gemm's `transB`).
        transposed: bool,
        /// Factor of the product.
        alpha: f32,
        /// Factor of c.
        beta: f32,
    },
    /// One operand.
    Unary(UnaryKind),
    /// Two operands of one datatype, broadcast.
    Binary(BinaryKind),
    /// Operands: condition (BOOL), then, otherwise; broadcast.
    Where,
    /// One operand; the target is the result's datatype. Float to integer truncates and saturates, to BOOL is `≠ 0`.
    Cast,
    /// Any number of batched or constant operands along an axis (a constant is repeated for each row).
    Concat {
        /// Axis of the row.
        axis: u32,
    },
    /// One operand, as many results as sizes.
    Split {
        /// Axis of the row.
        axis: u32,
        /// Extent of each result.
        sizes: Vec<u32>,
    },
    /// One operand. `step` may be negative; `start` is already clamped as ONNX says and the result's shape gives the count.
    Slice {
        /// (axis of the row, start, step), each axis at most once.
        axes: Vec<(u32, u32, i32)>,
    },
    /// `y = table[index]`: operands table (constant, rank ≥ 1, axis 0) and index (batched INT32 or INT64, any row shape).
    /// An index outside −V..V fails its request.
    Gather,
    /// One operand, over one axis of the row.
    Softmax {
        /// Axis of the row.
        axis: u32,
    },
    /// One operand, over one axis of the row.
    LogSoftmax {
        /// Axis of the row.
        axis: u32,
    },
    /// One operand; INT64 result; ties go to the first (or last) position; NaN counts as the largest.
    ArgMax {
        /// Axis of the row.
        axis: u32,
        /// Whether ties go to the last position.
        select_last: bool,
    },
    /// One operand, two results: values and INT64 positions, sorted, ties to the smaller position.
    TopK {
        /// Axis of the row.
        axis: u32,
        /// How many.
        k: u32,
        /// Largest first, or smallest first.
        largest: bool,
    },
    /// One operand. Whether the axes stay as extent 1 is in the result's shape.
    Reduce {
        /// Which.
        kind: ReduceKind,
        /// Axes of the row, ascending.
        axes: Vec<u32>,
    },
    /// Operands x, scale and, if there is one, bias; over the axes from `axis` on.
    LayerNormalization {
        /// First normalised axis of the row.
        axis: u32,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Operands x and scale; over the axes from `axis` on.
    RmsNormalization {
        /// First normalised axis of the row.
        axis: u32,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// One operand; the shape is the result's. Also Squeeze, Unsqueeze, Flatten and Identity of a row.
    Reshape,
    /// One operand, of nodes: its row for each row of the result's span.
    Repeat,
    /// One operand, of a span; the result is of nodes: over all rows of the span, each element by itself. Of no rows the sum is 0, the largest −∞ and
    /// the mean NaN.
    SpanReduce(ReduceKind),
    /// One operand, of a span: over all its rows, each element by itself.
    SpanSoftmax {
        /// Whether its logarithm is meant.
        log: bool,
    },
    /// One operand, of a span; INT64 result, of nodes: the number of a row for each element. Ties and NaN as [`Compute::ArgMax`]. No rows fail the request.
    SpanArgMax {
        /// Whether ties go to the last row.
        select_last: bool,
    },
    /// One operand, of a span; two results of nodes, values and INT64 numbers of rows, with k in front of a row's shape. Sorted as [`Compute::TopK`].
    /// Fewer rows than k fail the request.
    SpanTopK {
        /// How many.
        k: u32,
        /// Largest first, or smallest first.
        largest: bool,
    },
    /// Operands: values of a span, and INT64 row numbers (of nodes, any shape). The result (of nodes)
    /// has the rows of those numbers, with the numbers' shape in front. A number below 0 counts from
    /// the span's end. In a span of n rows, a number outside −n..n fails the request.
    SpanGather,
    /// One operand, of a span: the sum of all rows up to each one.
    SpanCumSum {
        /// Whether a row's own numbers are left out.
        exclusive: bool,
        /// Whether sums begin with the last row.
        reverse: bool,
    },
    /// `y[n, m] = Σ_k a[n, k] · b[k, m]` in 32-bit floats: operands a (of a span, rank 1), b (of nodes, rank 2).
    SpanMatMul,
    /// `y[p, q] = Σ_n a[n, p] · b[n, q]` in 32-bit floats: operands a and b (of one span, rank 1); the result is of nodes. Of no rows it is 0.
    SpanMix,
    /// Attention (ONNX, opset 23) in 32-bit floats: operands q `[L, heads · d]` (of nodes), k `[key_heads · d]` and v `[key_heads · e]` (of one span), and, if
    /// there is one, a mask `[heads or 1, L or 1]` of that span, which is added to scores (FP32) or says which count (BOOL). The result is `[L, heads · e]`,
    /// of nodes. Head h reads key head `h · key_heads / heads`. Over no rows, or where none counts, it is 0.
    Attention {
        /// Heads of q.
        heads: u32,
        /// Heads of k and v, a divisor of those of q.
        key_heads: u32,
        /// Factor of scores.
        scale: f32,
        /// Scores s become `c · tanh(s / c)`; 0: they stay.
        softcap: f32,
    },
    /// Any number of batched operands one behind the other: the rows of spans, and of nodes as many as
    /// their first extent says. The result is of a [`JoinedSpan`].
    // The last, because identities count operations in the order in which they came.
    SpanConcat,
}

impl Compute {
    /// Whether it takes rows of spans, and gives rows of nodes.
    #[must_use]
    pub const fn leaves_span(&self) -> bool {
        matches!(
            self,
            Self::SpanReduce(_)
                | Self::SpanArgMax { .. }
                | Self::SpanTopK { .. }
                | Self::SpanGather
                | Self::SpanMix
                | Self::Attention { .. }
        )
    }

    /// Whether rows of nodes and rows of spans meet in it, or rows of one span.
    #[must_use]
    pub const fn sees_span(&self) -> bool {
        self.leaves_span()
            || matches!(self, Self::Repeat | Self::SpanSoftmax { .. } | Self::SpanCumSum { .. } | Self::SpanMatMul | Self::SpanConcat)
    }
}

/// An operation of a body; operands stand before it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What it computes.
    pub compute: Compute,
    /// What it takes.
    pub operands: Vec<ValueId>,
    /// What it gives.
    pub results: Vec<ValueId>,
}

/// An output of a cell.
#[derive(Clone, Debug)]
pub struct CellOutput {
    /// As the plugin declared it, checked against the value.
    pub port: Port,
    /// The (batched) value it carries; possibly an input passed through.
    pub value: ValueId,
}

/// A span that is made of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedSpan {
    /// Ragged inputs that it has the rows of, each as often as it stands here.
    pub inputs: Vec<u32>,
    /// Rows that it has at every node besides.
    pub rows: usize,
}

/// A cell, resolved.
#[derive(Clone, Debug)]
pub struct TypedCell {
    /// The plugin's name for it, for people.
    pub name: String,
    /// Its identity.
    pub key: CellTypeKey,
    /// Its inputs: `values[i]` is input i.
    pub inputs: Vec<Port>,
    /// Its outputs.
    pub outputs: Vec<CellOutput>,
    /// Every value, operands before results.
    pub values: Vec<Value>,
    /// In an order in which they can be computed; none is unused.
    pub operations: Vec<Operation>,
    /// How it is computed.
    pub precision: Precision,
    /// The plugin's own bound on the batch.
    pub batch_max: Option<u32>,
    /// The plugin's own priority.
    pub priority: Option<i32>,
    /// For each input, if it is ragged, the first input that has as many rows.
    pub spans: Vec<Option<u32>>,
    /// Spans that its operations make. Their numbers follow those of the inputs.
    pub joined: Vec<JoinedSpan>,
    /// Elements that are held while it is computed, if each ragged input has one row.
    pub span_elements: u64,
    /// Floating-point operations of one row, with one row of each span.
    pub flops: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
}

impl TypedCell {
    /// The value of that id.
    ///
    /// # Panics
    /// If the id is not of this cell.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The most rows that a node's spans of one input have.
    #[must_use]
    pub fn span_rows_most(&self) -> u64 {
        (SPAN_ELEMENTS_MAX / self.span_elements.max(1)).min(SPAN_ROWS_MAX.into())
    }

    /// The span of that number, unless it is an input's.
    #[must_use]
    pub fn joined(&self, span: u32) -> Option<&JoinedSpan> {
        self.joined.get((span as usize).checked_sub(self.inputs.len())?)
    }
}
