//! One operator: its inputs looked up, its kind dispatched, its attributes used up.

use super::attributes::Attributes;
use super::error::{CellFault, ShapeText};
use super::scope::{Scope, Span, Typed};
use super::{arithmetic, linear, normalize, reduce, reshape, select, spans};
use crate::cell::Operator;
use crate::datatype::Datatype;
use crate::typed::{BinaryKind, Compute, Origin, ReduceKind, UnaryKind, Value, ValueId};

/// An operator being resolved.
pub(super) struct Call<'s, 'a> {
    pub(super) scope: &'s mut Scope<'a>,
    pub(super) attributes: Attributes<'a>,
    /// How many outputs the plugin named.
    pub(super) outputs: usize,
    inputs: Vec<Option<ValueId>>,
}

/// Resolves an operator; gives its results in ONNX's order.
pub(super) fn resolve<'a>(scope: &mut Scope<'a>, operator: &'a Operator) -> Result<Vec<ValueId>, CellFault> {
    if !KINDS.contains(&operator.kind.as_str()) {
        return Err(CellFault::UnknownOperator);
    }
    let attributes = Attributes::new(&operator.attributes)?;
    let inputs = operator.inputs.iter().map(|name| if name.is_empty() { Ok(None) } else { scope.operand(name).map(Some) });
    let inputs = inputs.collect::<Result<_, _>>()?;
    let mut call = Call { scope, attributes, outputs: operator.outputs.len(), inputs };
    if !FOLDED.contains(&operator.kind.as_str()) && call.inputs.iter().flatten().all(|id| !call.scope.value(*id).batched) {
        return Err(CellFault::ConstantsOnly);
    }
    if NODES_ONLY.contains(&operator.kind.as_str()) {
        (0..call.inputs()).try_for_each(|input| call.no_span(input))?;
    }
    let results = dispatch(&mut call, &operator.kind)?;
    call.attributes.finish()?;
    scope.label(&results, &operator.outputs);
    Ok(results)
}

/// Operators that may work on constants alone, because nothing is computed.
const FOLDED: [&str; 5] = ["Constant", "Identity", "Reshape", "Squeeze", "Unsqueeze"];

/// Operators that take no ragged value anywhere.
const NODES_ONLY: [&str; 3] = ["Constant", "Flatten", "Gemm"];

/// Every operator of this host.
const KINDS: [&str; 49] = [
    "Add",
    "And",
    "ArgMax",
    "Attention",
    "Cast",
    "Concat",
    "Constant",
    "CumSum",
    "Div",
    "Equal",
    "Exp",
    "Flatten",
    "Gather",
    "GatherND",
    "Gelu",
    "Gemm",
    "Greater",
    "Identity",
    "LayerNormalization",
    "Less",
    "Log",
    "LogSoftmax",
    "MatMul",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Pow",
    "RMSNormalization",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "Reshape",
    "RotaryEmbedding",
    "Sigmoid",
    "Silu",
    "Slice",
    "Softmax",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tanh",
    "TopK",
    "Transpose",
    "Unsqueeze",
    "Where",
];

fn dispatch(call: &mut Call<'_, '_>, kind: &str) -> Result<Vec<ValueId>, CellFault> {
    use arithmetic::{binary, unary};
    match kind {
        "Add" => binary(call, BinaryKind::Add),
        "Sub" => binary(call, BinaryKind::Sub),
        "Mul" => binary(call, BinaryKind::Mul),
        "Div" => binary(call, BinaryKind::Div),
        "Pow" => binary(call, BinaryKind::Pow),
        "Equal" => binary(call, BinaryKind::Equal),
        "Greater" => binary(call, BinaryKind::Greater),
        "Less" => binary(call, BinaryKind::Less),
        "And" => binary(call, BinaryKind::And),
        "Or" => binary(call, BinaryKind::Or),
        "Neg" => unary(call, UnaryKind::Neg),
        "Sigmoid" => unary(call, UnaryKind::Sigmoid),
        "Tanh" => unary(call, UnaryKind::Tanh),
        "Relu" => unary(call, UnaryKind::Relu),
        "Gelu" => arithmetic::gelu(call),
        "Silu" => unary(call, UnaryKind::Silu),
        "Exp" => unary(call, UnaryKind::Exp),
        "Log" => unary(call, UnaryKind::Log),
        "Sqrt" => unary(call, UnaryKind::Sqrt),
        "Not" => unary(call, UnaryKind::Not),
        "Where" => arithmetic::choose(call),
        "Cast" => arithmetic::cast(call),
        "Gemm" => linear::gemm(call),
        "MatMul" => linear::matmul(call),
        "Gather" => linear::gather(call),
        "GatherND" => spans::gather(call),
        "Concat" => select::concat(call),
        "Split" => select::split(call),
        "Slice" => select::slice(call),
        "Softmax" => reduce::softmax(call, |axis| Compute::Softmax { axis }),
        "LogSoftmax" => reduce::softmax(call, |axis| Compute::LogSoftmax { axis }),
        "ArgMax" => reduce::arg_max(call),
        "TopK" => reduce::top_k(call),
        "ReduceSum" => reduce::reduce(call, ReduceKind::Sum),
        "ReduceMean" => reduce::reduce(call, ReduceKind::Mean),
        "ReduceMax" => reduce::reduce(call, ReduceKind::Max),
        "ReduceL2" => reduce::euclidean(call),
        "CumSum" => spans::cumulative_sum(call),
        "Transpose" => spans::transpose(call),
        "Attention" => spans::attention(call),
        "RotaryEmbedding" => spans::rotary(call),
        "LayerNormalization" => normalize::layer(call),
        "RMSNormalization" => normalize::rms(call),
        "Constant" => reshape::constant(call),
        "Identity" => reshape::identity(call),
        "Reshape" => reshape::reshape(call),
        "Flatten" => reshape::flatten(call),
        "Squeeze" => reshape::squeeze(call),
        "Unsqueeze" => reshape::unsqueeze(call),
        _ => Err(CellFault::UnknownOperator),
    }
}

impl Call<'_, '_> {
    pub(super) fn arity(&self, least: usize, most: usize) -> Result<(), CellFault> {
        let given = self.inputs.len();
        if given < least || given > most { Err(CellFault::InputCount { given, least, most }) } else { Ok(()) }
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs.len()
    }

    pub(super) fn input(&self, input: usize) -> Result<ValueId, CellFault> {
        self.optional(input).ok_or(CellFault::InputMissing { input })
    }

    pub(super) fn optional(&self, input: usize) -> Option<ValueId> {
        self.inputs.get(input).copied().flatten()
    }

    pub(super) fn value(&self, id: ValueId) -> &Value {
        self.scope.value(id)
    }

    pub(super) fn text(&self, id: ValueId) -> ShapeText {
        self.scope.text(id)
    }

    pub(super) fn one(&mut self, compute: Compute, operands: Vec<ValueId>, result: Typed) -> Result<Vec<ValueId>, CellFault> {
        self.scope.emit(compute, operands, vec![result])
    }

    /// The same whose result has that ragged axis, or none.
    pub(super) fn one_in(
        &mut self,
        span: Option<Span>,
        compute: Compute,
        operands: Vec<ValueId>,
        result: Typed,
    ) -> Result<Vec<ValueId>, CellFault> {
        self.scope.emit_in(span, compute, operands, vec![result])
    }

    /// The input, which must be batched and of one of those datatypes.
    pub(super) fn batched(&self, input: usize, datatypes: &[Datatype], wanted: &'static str) -> Result<ValueId, CellFault> {
        let id = self.input(input)?;
        let value = self.value(id);
        if !value.batched {
            return Err(CellFault::CrossesBatch { how: "its data input is a constant, which has no row for each node" });
        }
        self.datatype(input, datatypes, wanted)?;
        Ok(id)
    }

    /// A batched FP32 input.
    pub(super) fn floats(&self, input: usize) -> Result<ValueId, CellFault> {
        self.batched(input, &[Datatype::Fp32], "FP32")
    }

    /// A constant input.
    pub(super) fn constant(&self, input: usize) -> Result<ValueId, CellFault> {
        let id = self.input(input)?;
        if self.value(id).batched { Err(CellFault::NotConstant { input }) } else { Ok(id) }
    }

    pub(super) fn datatype(&self, input: usize, datatypes: &[Datatype], wanted: &'static str) -> Result<Datatype, CellFault> {
        let given = self.value(self.input(input)?).datatype;
        if datatypes.contains(&given) { Ok(given) } else { Err(CellFault::InputDatatype { input, given, wanted }) }
    }

    /// An input that is of nodes.
    pub(super) fn no_span(&self, input: usize) -> Result<(), CellFault> {
        let is_ragged = self.optional(input).is_some_and(|id| self.scope.span(id).is_some());
        if is_ragged { Err(CellFault::RaggedInput { input }) } else { Ok(()) }
    }

    /// The extents of a row as ONNX sees it; a ragged one is none.
    pub(super) fn extents(&self, id: ValueId) -> Vec<Option<usize>> {
        let mut extents: Vec<_> = self.value(id).shape.iter().copied().map(Some).collect();
        self.scope.span(id).into_iter().for_each(|span| extents.insert(span.axis, None));
        extents
    }

    /// ONNX's axis of a batched value: an axis of the row's shape, or none if it is the ragged one.
    pub(super) fn axis(&self, id: ValueId, axis: i64) -> Result<Option<usize>, CellFault> {
        let resolved = Self::row_axis(axis, self.extents(id).len())?;
        Ok(match self.scope.span(id) {
            Some(span) if span.axis == resolved => None,
            Some(span) if span.axis < resolved => Some(resolved - 1),
            _ => Some(resolved),
        })
    }

    /// The same of an axis that must not be the ragged one.
    pub(super) fn fixed_axis(&self, id: ValueId, axis: i64) -> Result<usize, CellFault> {
        self.axis(id, axis)?.ok_or(CellFault::RaggedAxis { axis, how: "this operator works along others only" })
    }

    /// What ONNX takes as a constant INT64 tensor: from the attribute of that name, or from the input.
    pub(super) fn parameter(&mut self, name: &'static str, input: usize) -> Result<Option<Vec<i64>>, CellFault> {
        let attribute = self.attributes.ints(name)?;
        let Some(id) = self.optional(input) else { return Ok(attribute) };
        if attribute.is_some() {
            return Err(CellFault::ParameterTwice { name });
        }
        let Origin::Constant(tensor) = &self.value(id).origin else { return Err(CellFault::ParameterTensor { name }) };
        if tensor.datatype != Datatype::Int64 || tensor.shape.len() > 1 || tensor.data.len() > 8 * MOST_INTS {
            return Err(CellFault::ParameterTensor { name });
        }
        tensor.to_i64().map(Some).ok_or(CellFault::ParameterTensor { name })
    }

    /// ONNX's axis of a batched value with a row of `rank` dimensions, as an axis of the row.
    pub(super) fn row_axis(axis: i64, rank: usize) -> Result<usize, CellFault> {
        let whole = rank + 1;
        let signed = i64::try_from(whole).unwrap_or(i64::MAX);
        let resolved = if axis < 0 { axis.checked_add(signed) } else { Some(axis) };
        match resolved.and_then(|axis| usize::try_from(axis).ok()) {
            Some(0) => Err(CellFault::BatchAxis { axis }),
            Some(resolved) if resolved < whole => Ok(resolved - 1),
            _ => Err(CellFault::AxisRange { axis, rank: whole }),
        }
    }

    /// Several axes of the row, each once, ascending.
    pub(super) fn row_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, CellFault> {
        let mut resolved = Vec::with_capacity(axes.len().min(rank));
        for axis in axes {
            let row_axis = Self::row_axis(*axis, rank)?;
            if resolved.contains(&row_axis) {
                return Err(CellFault::AxisTwice { axis: *axis });
            }
            resolved.push(row_axis);
        }
        resolved.sort_unstable();
        Ok(resolved)
    }
}

/// Elements of a parameter, such as `axes` or `split`: more than any of them may mean.
const MOST_INTS: usize = 4096;

/// An extent or axis as operations store it; rows are bounded far below its range.
pub(super) fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
