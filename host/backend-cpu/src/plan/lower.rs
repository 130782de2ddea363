//! From a cell's operations to few kinds that know nothing of axes and broadcasting: every shape question is answered here, once.

mod linear;
mod shape;
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::sums::Summed;
use cellwright_cell_graph::typed::{Compute, Operation, Origin, Value, ValueId};
use cellwright_cell_graph::{Tensor, TypedCell};

use super::copies::{Axis, Copies};
use super::element_of;
use crate::kernels::element::{Element, ElementOp};
use crate::kernels::rows::RowOp;
use crate::level::{Kernels, Level};
use crate::matrix::{Packs, Product};

use shape::{Strided, broadcast, slice};

/// A batched value, by position in [`Lowered::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Val(pub(super) usize);

/// A batched value or a constant, by position in [`Lowered::constants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Value(Val),
    Constant(usize),
}

impl Operand {
    pub(super) const fn value(self) -> Option<Val> {
        match self {
            Self::Value(value) => Some(value),
            Self::Constant(_) => None,
        }
    }
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
        /// What it is added onto, where that lies: nothing else reads it.
        begin: Option<Val>,
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
        parts: Vec<(Operand, Copies)>,
        /// What is made where it stands in the result, and need not be copied: it has to be there before the result is read.
        placed: Vec<Val>,
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
    /// A product that one row operation alone reads, or one of its softmax (`project`).
    Project {
        product: Product,
        lefts: Vec<(Val, usize)>,
        op: RowOp,
        k: usize,
        /// The softmax between them.
        of: Option<RowOp>,
        n: usize,
        result: Val,
        second: Option<Val>,
    },
}

impl LowOp {
    pub(super) fn operands(&self) -> Vec<Operand> {
        match self {
            Self::Linear { lefts, begin, .. } => lefts.iter().map(|(left, _)| *left).chain(*begin).map(Operand::Value).collect(),
            Self::Project { lefts, .. } => lefts.iter().map(|(left, _)| Operand::Value(*left)).collect(),
            Self::Element { operands, .. } => operands.clone(),
            Self::View { source, .. } | Self::Whole { source, .. } => vec![Operand::Value(*source)],
            Self::Assemble { parts, placed, .. } => {
                parts.iter().map(|(operand, _)| *operand).chain(placed.iter().copied().map(Operand::Value)).collect()
            }
            Self::Lookup { index, .. } => vec![Operand::Value(*index)],
        }
    }

    pub(super) fn results(&self) -> impl Iterator<Item = Val> {
        let (result, second) = match self {
            Self::Whole { result, second, .. } | Self::Project { result, second, .. } => (*result, *second),
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

/// Lowers a cell with those sums.
pub(super) fn lower(
    (cell, all_summed): (&TypedCell, &[Summed]),
    (level, kernels): (Level, Kernels),
    packs: &mut Packs,
) -> Result<Lowered, Why> {
    let mut lowering = Lowering { cell, level, kernels, packs, lowered: Lowered::default(), known: BTreeMap::new() };
    for index in 0..cell.inputs.len() {
        let value = lowering.define(ValueId(index as u32))?;
        lowering.lowered.inputs.push(value);
    }
    for (operation, summed) in cell.operations.iter().zip(all_summed) {
        match summed {
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
    packs: &'a mut Packs,
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
        let spread = broadcast(&self.value(id).shape, shape)
            .ok_or_else(|| format!("`{}` of shape {:?} spread to {shape:?}", self.value(id).name, self.value(id).shape))?;
        if !self.value(id).batched {
            let bytes = spread.copies(element.size()).copied(&self.tensor(id)?.data, spread.count() * element.size());
            return Ok(Operand::Constant(self.constant(bytes)));
        }
        let source = self.batched(id)?;
        if spread.count() == self.lowered.values[source.0].count {
            return Ok(Operand::Value(source));
        }
        let result = self.new_value(element, spread.count());
        self.pick(source, &spread, result);
        Ok(Operand::Value(result))
    }

    /// The elements of another value: a view where that is one stretch, a copy otherwise.
    fn pick(&mut self, source: Val, elements: &Strided, result: Val) {
        let copies = elements.copies(self.lowered.values[source.0].element.size());
        self.lowered.ops.push(if copies.axes.is_empty() {
            LowOp::View { source, offset: copies.source, result }
        } else {
            LowOp::Assemble { parts: vec![(Operand::Value(source), copies)], placed: Vec::new(), result }
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
                let elements = slice(&self.value(first).shape, &shape, axes);
                let (source, result) = (self.batched(first)?, self.define(result_id)?);
                self.pick(source, &elements, result);
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
            // A plan is made of rows alone: `by_span` leaves these to others.
            whole => Err(format!("{whole:?} among rows")),
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
            let mut copies = Copies::stretch(0, begin * size, inner * size);
            if outer > 1 {
                copies.axes.push(Axis { count: outer, source: (inner * size) as isize, result: row * size });
            }
            let operand = if self.value(*id).batched {
                Operand::Value(self.batched(*id)?)
            } else {
                let data = self.tensor(*id)?.data.clone();
                Operand::Constant(self.constant(data))
            };
            parts.push((operand, copies));
            begin += inner;
        }
        let result = self.define(operation.results[0])?;
        self.lowered.ops.push(LowOp::Assemble { parts, placed: Vec::new(), result });
        Ok(())
    }

    fn split(&mut self, operation: &Operation, axis: usize, sizes: &[u32]) -> Result<(), Why> {
        let shape = self.value(operation.operands[0]).shape.clone();
        let source = self.batched(operation.operands[0])?;
        let mut start = 0;
        for (id, size) in operation.results.iter().zip(sizes) {
            let result_shape = self.value(*id).shape.clone();
            let elements = slice(&shape, &result_shape, &[(axis as u32, start, 1)]);
            let result = self.define(*id)?;
            self.pick(source, &elements, result);
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
}
