//! From a cell's operations to few kinds that know nothing of axes and broadcasting: every shape question is answered here, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::typed::{BinaryKind, Compute, Operation, Origin, Value, ValueId};
use cellwright_cell_graph::{Tensor, TypedCell};

use super::sums::{self, Summed};
use super::{Run, element_of};
use crate::kernels::element::{Element, ElementOp};
use crate::kernels::rows::RowOp;
use crate::level::{Kernels, Level};
use crate::matrix::{Form, Product};

/// A batched value, by position in [`Lowered::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Val(pub(super) usize);

/// A batched value or a constant, by position in [`Lowered::constants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Value(Val),
    Constant(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LowValue {
    pub(super) element: Element,
    pub(super) count: usize,
}

impl LowValue {
    pub(super) const fn bytes(self) -> usize {
        self.element.size() * self.count
    }
}

#[derive(Debug)]
pub(super) enum LowOp {
    Linear {
        product: Product,
        lefts: Vec<(Val, usize)>,
        lead: usize,
        n: usize,
        result: Val,
    },
    /// Operands have the result's count of elements.
    Element {
        op: ElementOp,
        /// Of the operands (for a choice, of its branches).
        element: Element,
        operands: Vec<Operand>,
        result: Val,
    },
    /// A stretch of another value.
    View {
        source: Val,
        offset: usize,
        result: Val,
    },
    Assemble {
        parts: Vec<(Operand, Vec<Run>)>,
        result: Val,
    },
    Lookup {
        table: Arc<Tensor>,
        table_rows: usize,
        row_bytes: usize,
        index: Val,
        result: Val,
    },
    Whole {
        op: RowOp,
        outer: usize,
        n: usize,
        k: usize,
        epsilon: f32,
        source: Val,
        result: Val,
        second: Option<Val>,
    },
}

impl LowOp {
    pub(super) fn operands(&self) -> Vec<Operand> {
        match self {
            Self::Linear { lefts, .. } => lefts.iter().map(|(left, _)| Operand::Value(*left)).collect(),
            Self::Element { operands, .. } => operands.clone(),
            Self::View { source, .. } | Self::Whole { source, .. } => vec![Operand::Value(*source)],
            Self::Assemble { parts, .. } => parts.iter().map(|(operand, _)| *operand).collect(),
            Self::Lookup { index, .. } => vec![Operand::Value(*index)],
        }
    }

    pub(super) fn results(&self) -> impl Iterator<Item = Val> {
        let (result, second) = match self {
            Self::Whole { result, second, .. } => (*result, *second),
            Self::Linear { result, .. }
            | Self::Element { result, .. }
            | Self::View { result, .. }
            | Self::Assemble { result, .. }
            | Self::Lookup { result, .. } => (*result, None),
        };
        std::iter::once(result).chain(second)
    }
}

/// A cell in few kinds of operations, in an order in which they can be computed.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    pub(super) values: Vec<LowValue>,
    pub(super) constants: Vec<Vec<u8>>,
    pub(super) ops: Vec<LowOp>,
    pub(super) inputs: Vec<Val>,
    pub(super) outputs: Vec<Val>,
}

/// Why a cell cannot be lowered: what of it cannot run.
type Why = String;

/// Lowers a cell.
pub(super) fn lower(cell: &TypedCell, level: Level, kernels: Kernels) -> Result<Lowered, Why> {
    let mut lowering = Lowering { cell, level, kernels, lowered: Lowered::default(), known: BTreeMap::new() };
    for index in 0..cell.inputs.len() {
        let value = lowering.define(ValueId(index as u32))?;
        lowering.lowered.inputs.push(value);
    }
    let summed = sums::find(cell);
    for (index, operation) in cell.operations.iter().enumerate() {
        match &summed[index] {
            Summed::Apart => lowering.operation(operation)?,
            Summed::Inside => {}
            Summed::Whole(sum) => lowering.sum(sum, operation.results[0])?,
        }
    }
    for output in &cell.outputs {
        let value = lowering.batched(output.value)?;
        lowering.lowered.outputs.push(value);
    }
    Ok(lowering.lowered)
}

struct Lowering<'a> {
    cell: &'a TypedCell,
    level: Level,
    kernels: Kernels,
    lowered: Lowered,
    known: BTreeMap<ValueId, Val>,
}

impl Lowering<'_> {
    fn value(&self, id: ValueId) -> &Value {
        self.cell.value(id)
    }

    fn element(&self, id: ValueId) -> Result<Element, Why> {
        let datatype = self.value(id).datatype;
        element_of(datatype).ok_or_else(|| format!("values of datatype {datatype}"))
    }

    fn new_value(&mut self, element: Element, count: usize) -> Val {
        self.lowered.values.push(LowValue { element, count });
        Val(self.lowered.values.len() - 1)
    }

    /// Makes the batched value of that id.
    fn define(&mut self, id: ValueId) -> Result<Val, Why> {
        let (element, count) = (self.element(id)?, self.value(id).elements());
        if !self.value(id).batched {
            return Err(format!("`{}`, which does not depend on the input", self.value(id).name));
        }
        if count == 0 {
            return Err(format!("`{}`, which has no elements", self.value(id).name));
        }
        let value = self.new_value(element, count);
        self.known.insert(id, value);
        Ok(value)
    }

    fn batched(&self, id: ValueId) -> Result<Val, Why> {
        self.known.get(&id).copied().ok_or_else(|| format!("the constant `{}` in this place", self.value(id).name))
    }

    fn tensor(&self, id: ValueId) -> Result<&Arc<Tensor>, Why> {
        match &self.value(id).origin {
            Origin::Constant(tensor) => Ok(tensor),
            _ => Err(format!("`{}` in this place, which is not constant", self.value(id).name)),
        }
    }

    fn constant(&mut self, bytes: Vec<u8>) -> usize {
        self.lowered.constants.push(bytes);
        self.lowered.constants.len() - 1
    }

    /// A value as if it had that row shape.
    fn broadcast(&mut self, id: ValueId, shape: &[usize]) -> Result<Operand, Why> {
        let element = self.element(id)?;
        let offsets = broadcast_offsets(&self.value(id).shape, shape)
            .ok_or_else(|| format!("`{}` of shape {:?} spread to {shape:?}", self.value(id).name, self.value(id).shape))?;
        if !self.value(id).batched {
            let size = element.size();
            let data = &self.tensor(id)?.data;
            let bytes = offsets.iter().flat_map(|offset| data[offset * size..][..size].iter().copied()).collect();
            return Ok(Operand::Constant(self.constant(bytes)));
        }
        let source = self.batched(id)?;
        if offsets.len() == self.lowered.values[source.0].count {
            return Ok(Operand::Value(source));
        }
        let result = self.new_value(element, offsets.len());
        self.pick(source, &offsets, result);
        Ok(Operand::Value(result))
    }

    /// `result[i] = source[offsets[i]]`: a view where that is one stretch, a copy otherwise.
    fn pick(&mut self, source: Val, offsets: &[usize], result: Val) {
        let size = self.lowered.values[source.0].element.size();
        let runs = runs(offsets, size);
        self.lowered.ops.push(match runs.as_slice() {
            [run] => LowOp::View { source, offset: run.source, result },
            _ => LowOp::Assemble { parts: vec![(Operand::Value(source), runs)], result },
        });
    }

    fn element_op(&mut self, op: ElementOp, element: Element, operands: Vec<Operand>, result: Val) {
        self.lowered.ops.push(LowOp::Element { op, element, operands, result });
    }

    fn operation(&mut self, operation: &Operation) -> Result<(), Why> {
        let result_id = operation.results[0];
        let shape = self.value(result_id).shape.clone();
        let first = operation.operands[0];
        match &operation.compute {
            Compute::Linear { .. } => self.linear(operation),
            Compute::Unary(kind) => self.map(ElementOp::Unary(*kind), operation, first),
            Compute::Binary(kind) => self.map(ElementOp::Binary(*kind), operation, first),
            Compute::Where => self.map(ElementOp::Where, operation, operation.operands[1]),
            Compute::Cast => self.map(ElementOp::Cast(self.element(result_id)?), operation, first),
            Compute::Concat { axis } => self.concat(operation, *axis as usize),
            Compute::Split { axis, sizes } => self.split(operation, *axis as usize, sizes),
            Compute::Slice { axes } => {
                let offsets = slice_offsets(&self.value(first).shape, &shape, axes);
                let (source, result) = (self.batched(first)?, self.define(result_id)?);
                self.pick(source, &offsets, result);
                Ok(())
            }
            Compute::Gather => self.gather(operation),
            Compute::Softmax { axis } => self.along(RowOp::Softmax, operation, &[*axis], 1),
            Compute::LogSoftmax { axis } => self.along(RowOp::LogSoftmax, operation, &[*axis], 1),
            Compute::ArgMax { axis, select_last } => self.along(RowOp::ArgMax { last: *select_last }, operation, &[*axis], 1),
            Compute::TopK { axis, k, largest } => self.along(RowOp::TopK { largest: *largest }, operation, &[*axis], *k as usize),
            Compute::Reduce { kind, axes } => self.along(RowOp::Reduce(*kind), operation, axes, 1),
            Compute::LayerNormalization { axis, epsilon } => self.normalize(RowOp::Standardize, operation, *axis as usize, *epsilon),
            Compute::RmsNormalization { axis, epsilon } => self.normalize(RowOp::RootMeanSquare, operation, *axis as usize, *epsilon),
            Compute::Reshape => {
                let (source, result) = (self.batched(first)?, self.define(result_id)?);
                self.lowered.ops.push(LowOp::View { source, offset: 0, result });
                Ok(())
            }
        }
    }

    fn map(&mut self, op: ElementOp, operation: &Operation, typed_by: ValueId) -> Result<(), Why> {
        let shape = self.value(operation.results[0]).shape.clone();
        let element = self.element(typed_by)?;
        if op.kernel(element, Level::Portable).is_none() {
            return Err(format!("{:?} of {}", operation.compute, self.value(typed_by).datatype));
        }
        let operands = operation.operands.iter().map(|id| self.broadcast(*id, &shape)).collect::<Result<_, _>>()?;
        let result = self.define(operation.results[0])?;
        self.element_op(op, element, operands, result);
        Ok(())
    }

    fn concat(&mut self, operation: &Operation, axis: usize) -> Result<(), Why> {
        let shape = self.value(operation.results[0]).shape.clone();
        let size = self.element(operation.results[0])?.size();
        let outer: usize = shape[..axis].iter().product();
        let row: usize = shape[axis..].iter().product();
        let mut begin = 0;
        let mut parts = Vec::new();
        for id in &operation.operands {
            let inner = self.value(*id).elements() / outer.max(1);
            let runs =
                (0..outer).map(|at| Run { source: at * inner * size, result: (at * row + begin) * size, bytes: inner * size }).collect();
            let operand = if self.value(*id).batched {
                Operand::Value(self.batched(*id)?)
            } else {
                let data = self.tensor(*id)?.data.clone();
                Operand::Constant(self.constant(data))
            };
            parts.push((operand, runs));
            begin += inner;
        }
        let result = self.define(operation.results[0])?;
        self.lowered.ops.push(LowOp::Assemble { parts, result });
        Ok(())
    }

    fn split(&mut self, operation: &Operation, axis: usize, sizes: &[u32]) -> Result<(), Why> {
        let shape = self.value(operation.operands[0]).shape.clone();
        let source = self.batched(operation.operands[0])?;
        let mut start = 0;
        for (id, size) in operation.results.iter().zip(sizes) {
            let result_shape = self.value(*id).shape.clone();
            let offsets = slice_offsets(&shape, &result_shape, &[(axis as u32, start, 1)]);
            let result = self.define(*id)?;
            self.pick(source, &offsets, result);
            start += size;
        }
        Ok(())
    }

    fn gather(&mut self, operation: &Operation) -> Result<(), Why> {
        let (table, index) = (operation.operands[0], operation.operands[1]);
        if !matches!(self.element(index)?, Element::I64 | Element::I32) {
            return Err(format!("Gather by {}", self.value(index).datatype));
        }
        let element = self.element(table)?;
        let tensor = self.tensor(table)?.clone();
        let (table_rows, rest) = match self.value(table).shape.split_first() {
            Some((rows, rest)) if *rows > 0 => (*rows, rest.iter().product::<usize>()),
            _ => return Err("Gather from a table without rows".to_owned()),
        };
        let index = self.batched(index)?;
        let result = self.define(operation.results[0])?;
        self.lowered.ops.push(LowOp::Lookup { table: tensor, table_rows, row_bytes: rest * element.size(), index, result });
        Ok(())
    }

    /// A row operation over some axes, which are brought to the end first and, if they are kept, back afterwards.
    fn along(&mut self, op: RowOp, operation: &Operation, axes: &[u32], k: usize) -> Result<(), Why> {
        let id = operation.operands[0];
        let (shape, element) = (self.value(id).shape.clone(), self.element(id)?);
        if op.kernel(element, Level::Portable).is_none() {
            return Err(format!("{:?} of {}", operation.compute, self.value(id).datatype));
        }
        let order: Vec<usize> =
            (0..shape.len()).filter(|axis| !axes.contains(&(*axis as u32))).chain(axes.iter().map(|axis| *axis as usize)).collect();
        let n: usize = axes.iter().map(|axis| shape[*axis as usize]).product();
        let outer = shape.iter().product::<usize>() / n.max(1);
        let in_place = order.is_sorted();
        let mut source = self.batched(id)?;
        if !in_place {
            let moved = self.new_value(element, outer * n);
            self.pick(source, &permutation(&shape, &order), moved);
            source = moved;
        }
        // An axis that stays (softmax, top-k) has to go back to its place; one that is reduced leaves the others in order.
        let stays = matches!(op, RowOp::Softmax | RowOp::LogSoftmax | RowOp::TopK { .. });
        let results: Vec<Val> = operation.results.iter().map(|id| self.define(*id)).collect::<Result<_, _>>()?;
        let targets: Vec<Val> = if in_place || !stays {
            results.clone()
        } else {
            results
                .iter()
                .map(|result| self.lowered.values[result.0])
                .map(|value| (value.element, value.count))
                .collect::<Vec<_>>()
                .into_iter()
                .map(|(element, count)| self.new_value(element, count))
                .collect()
        };
        self.lowered.ops.push(LowOp::Whole { op, outer, n, k, epsilon: 0.0, source, result: targets[0], second: targets.get(1).copied() });
        if in_place || !stays {
            return Ok(());
        }
        for ((id, target), result) in operation.results.iter().zip(targets).zip(results) {
            let shape = self.value(*id).shape.clone();
            let back = inverse(&permutation(&shape, &order));
            self.pick(target, &back, result);
        }
        Ok(())
    }

    /// Normalises, then scales and shifts element by element.
    fn normalize(&mut self, op: RowOp, operation: &Operation, axis: usize, epsilon: f32) -> Result<(), Why> {
        let id = operation.operands[0];
        let (shape, element) = (self.value(id).shape.clone(), self.element(id)?);
        if element != Element::F32 {
            return Err(format!("normalisation of {}", self.value(id).datatype));
        }
        let n: usize = shape[axis..].iter().product();
        let count: usize = shape.iter().product();
        let outer = count / n.max(1);
        let source = self.batched(id)?;
        let mut current = self.new_value(element, count);
        self.lowered.ops.push(LowOp::Whole { op, outer, n, k: 1, epsilon, source, result: current, second: None });
        let factors = [BinaryKind::Mul, BinaryKind::Add];
        let more = &operation.operands[1..];
        for (at, (kind, id)) in factors.into_iter().zip(more).enumerate() {
            let operand = self.broadcast(*id, &shape)?;
            let result = if at + 1 == more.len() { self.define(operation.results[0])? } else { self.new_value(element, count) };
            self.element_op(ElementOp::Binary(kind), element, vec![Operand::Value(current), operand], result);
            current = result;
        }
        Ok(())
    }

    /// A product by itself.
    fn linear(&mut self, operation: &Operation) -> Result<(), Why> {
        let Compute::Linear { beta, .. } = operation.compute else { return Ok(()) };
        let result_id = operation.results[0];
        let Some(c) = operation.operands.get(2).copied() else {
            return self.sum(&sums::Sum { linears: vec![operation.clone()], constants: Vec::new() }, result_id);
        };
        // A summand that is not one bias for all rows is added element by element.
        let shape = self.value(result_id).shape.clone();
        let mut summand = self.broadcast(c, &shape)?;
        let count = self.value(result_id).elements();
        if beta.to_bits() != 1.0_f32.to_bits() {
            let scale = self.constant(beta.to_le_bytes().repeat(count));
            let scaled = self.new_value(Element::F32, count);
            self.element_op(ElementOp::Binary(BinaryKind::Mul), Element::F32, vec![summand, Operand::Constant(scale)], scaled);
            summand = Operand::Value(scaled);
        }
        let product = self.new_value(Element::F32, count);
        let without = Operation { operands: operation.operands[..2].to_vec(), ..operation.clone() };
        self.product(&sums::Sum { linears: vec![without], constants: Vec::new() }, result_id, product)?;
        let result = self.define(result_id)?;
        self.element_op(ElementOp::Binary(BinaryKind::Add), Element::F32, vec![Operand::Value(product), summand], result);
        Ok(())
    }

    fn sum(&mut self, sum: &sums::Sum, result: ValueId) -> Result<(), Why> {
        let value = self.define(result)?;
        self.product(sum, result, value)
    }

    /// One product of several terms, with all its constant summands as its bias.
    fn product(&mut self, sum: &sums::Sum, like: ValueId, result: Val) -> Result<(), Why> {
        let shape = &self.value(like).shape;
        let n = *shape.last().ok_or("a product without columns")?;
        let lead = shape.iter().product::<usize>() / n.max(1);
        let mut weights = Vec::new();
        let mut lefts = Vec::new();
        for linear in &sum.linears {
            let Compute::Linear { transposed, alpha, .. } = linear.compute else { continue };
            let w = self.tensor(linear.operands[1])?;
            let values = w.to_f32().ok_or_else(|| format!("a product with a weight of datatype {}", w.datatype))?;
            let k = if transposed { w.shape[1] } else { w.shape[0] };
            if k == 0 {
                return Err("a product over no elements".to_owned());
            }
            lefts.push((self.batched(linear.operands[0])?, k));
            weights.push((k, transposed, alpha, values));
        }
        let thinnest = weights.iter().map(|(k, ..)| *k).min().unwrap_or(1);
        let mut product = Product::new(Form::choose(self.level, self.kernels, thinnest, n), n);
        for (k, transposed, alpha, values) in weights {
            product.push(k, &|row, column| alpha * values[if transposed { column * k + row } else { row * n + column }]);
        }
        let mut bias = vec![0.0_f64; n];
        for (constant, factor) in &sum.constants {
            let tensor = self.tensor(*constant)?;
            let values = tensor.to_f32().ok_or_else(|| format!("a bias of datatype {}", tensor.datatype))?;
            for (column, bias) in bias.iter_mut().enumerate() {
                *bias += f64::from(*factor) * f64::from(values[if values.len() == 1 { 0 } else { column }]);
            }
        }
        if !sum.constants.is_empty() {
            product.set_bias(&bias.iter().map(|bias| *bias as f32).collect::<Vec<_>>());
        }
        self.lowered.ops.push(LowOp::Linear { product, lefts, lead, n, result });
        Ok(())
    }
}

/// For each element of `shape`, which element of `from` it is when that is spread over it; none if it does not fit. Leading extents of 1 that
/// `shape` does not have (a batch dimension written out) do not count.
fn broadcast_offsets(from: &[usize], shape: &[usize]) -> Option<Vec<usize>> {
    let extra = from.len().saturating_sub(shape.len());
    if from[..extra].iter().any(|extent| *extent != 1) {
        return None;
    }
    let from = &from[extra..];
    let missing = shape.len() - from.len();
    let mut strides = vec![0; shape.len()];
    let mut stride = 1;
    for axis in (0..from.len()).rev() {
        if from[axis] == shape[missing + axis] {
            strides[missing + axis] = stride;
        } else if from[axis] != 1 {
            return None;
        }
        stride *= from[axis];
    }
    Some(offsets(shape, 0, &strides))
}

/// Row-major walk over `shape`: the offset of each element, for strides that may be negative or zero.
fn walk(shape: &[usize], base: i64, strides: &[i64]) -> Vec<usize> {
    let count: usize = shape.iter().product();
    let mut at = vec![0_usize; shape.len()];
    let mut offset = base;
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        found.push(offset as usize);
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            offset += strides[axis];
            if at[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * shape[axis] as i64;
            at[axis] = 0;
        }
    }
    found
}

fn offsets(shape: &[usize], base: usize, strides: &[usize]) -> Vec<usize> {
    walk(shape, base as i64, &strides.iter().map(|stride| *stride as i64).collect::<Vec<_>>())
}

fn row_major(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    strides
}

fn slice_offsets(from: &[usize], shape: &[usize], axes: &[(u32, u32, i32)]) -> Vec<usize> {
    let mut strides = row_major(from);
    let mut base = 0;
    for (axis, start, step) in axes {
        let stride = &mut strides[*axis as usize];
        base += *stride * i64::from(*start);
        *stride *= i64::from(*step);
    }
    walk(shape, base, &strides)
}

/// Element i of the value with its axes in `order` is element `permutation[i]` of the value of `shape`.
fn permutation(shape: &[usize], order: &[usize]) -> Vec<usize> {
    let strides = row_major(shape);
    let (shape, strides): (Vec<usize>, Vec<i64>) = order.iter().map(|axis| (shape[*axis], strides[*axis])).unzip();
    walk(&shape, 0, &strides)
}

fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (at, offset) in permutation.iter().enumerate() {
        inverse[*offset] = at;
    }
    inverse
}

/// Offsets of elements as stretches of bytes.
fn runs(offsets: &[usize], size: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, offset) in offsets.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.source + run.bytes == offset * size => run.bytes += size,
            _ => runs.push(Run { source: offset * size, result: at * size, bytes: size }),
        }
    }
    runs
}
