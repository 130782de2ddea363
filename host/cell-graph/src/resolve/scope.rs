//! The values of a body while it is resolved: who has which name, of what type and shape.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{CellFault, ShapeText, short};
use super::{CellLimits, ResolveContext};
use crate::cell::Port;
use crate::datatype::Datatype;
use crate::tensor::Tensor;
use crate::typed::{Compute, JoinedSpan, Operation, Origin, Value, ValueId};

/// Type and shape of a result to be.
pub(super) type Typed = (Datatype, Vec<usize>);

/// The ragged axis of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first input or joined span that has as many rows.
    pub(super) of: u32,
    /// Which axis of the row it is, as ONNX sees the value. [`Value::shape`] leaves it out.
    pub(super) axis: usize,
}

impl Span {
    /// Where it stands once axes of the shape have gone, unless they are kept with an extent of 1.
    pub(super) fn without(self, axes: &[usize], keep: bool) -> Self {
        // Axes of the shape before it have the same numbers as ONNX gives them.
        let gone = if keep { 0 } else { axes.iter().filter(|axis| **axis < self.axis).count() };
        Self { axis: self.axis - gone, ..self }
    }
}

/// Names, values and operations so far.
pub(super) struct Scope<'a> {
    names: BTreeMap<&'a str, ValueId>,
    /// By input, and then by joined span: an earlier one that must have as many rows, or itself.
    spans: Vec<u32>,
    joined: Vec<JoinedSpan>,
    /// By value: which axis of its row is ragged, if one is.
    axes: Vec<usize>,
    context: ResolveContext<'a>,
    pub(super) limits: CellLimits,
    pub(super) values: Vec<Value>,
    pub(super) operations: Vec<Operation>,
    row_elements: u64,
    copied_bytes: u64,
}

impl<'a> Scope<'a> {
    pub(super) fn new(context: &ResolveContext<'a>) -> Self {
        Self {
            names: BTreeMap::new(),
            spans: Vec::new(),
            joined: Vec::new(),
            axes: Vec::new(),
            context: *context,
            limits: context.limits,
            values: Vec::new(),
            operations: Vec::new(),
            row_elements: 0,
            copied_bytes: 0,
        }
    }

    pub(super) fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The value of a name that an input or an operator's output has.
    pub(super) fn find(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied()
    }

    pub(super) fn add_input(&mut self, port: &'a Port) -> Result<(), CellFault> {
        let by = match self.context.weights.get(&port.name) {
            Some(_) => Some("a weight of the bundle"),
            None => self.find(&port.name).map(|_| "another input"),
        };
        if let Some(by) = by {
            return Err(CellFault::NameTaken { what: "input", name: short(&port.name), by });
        }
        let shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
        self.charge_row(&shape, 1)?;
        let id = self.next_id()?;
        let (span, origin) = (port.ragged.then_some(id.0), Origin::Input(id.0));
        self.push(Value { name: port.name.clone(), datatype: port.datatype, shape, batched: true, span, origin }, 0);
        self.spans.push(id.0);
        self.names.insert(&port.name, id);
        Ok(())
    }

    /// Gives a value the name of an operator's output; ONNX's empty name is none.
    pub(super) fn bind(&mut self, name: &'a str, id: ValueId) -> Result<(), CellFault> {
        if name.is_empty() {
            return Ok(());
        }
        let by = match self.context.weights.get(name) {
            Some(_) => Some("a weight of the bundle"),
            None => self.names.get(name).map(|_| "an input or an earlier output"),
        };
        if let Some(by) = by {
            return Err(CellFault::NameTaken { what: "output", name: short(name), by });
        }
        self.names.insert(name, id);
        Ok(())
    }

    /// The value an operator's input names: known already, or a weight that becomes a constant.
    pub(super) fn operand(&mut self, name: &'a str) -> Result<ValueId, CellFault> {
        if let Some(id) = self.find(name) {
            return Ok(id);
        }
        let weights = self.context.weights;
        let Some(tensor) = weights.get(name) else {
            return Err(CellFault::UnknownName { name: short(name), nearest: weights.nearest(name) });
        };
        if !matches!(tensor.datatype, Datatype::Fp32 | Datatype::Int32 | Datatype::Int64) {
            return Err(CellFault::WeightDatatype { name: short(name), datatype: tensor.datatype });
        }
        if !tensor.is_consistent() || tensor.data.is_empty() {
            return Err(CellFault::WeightShape { name: short(name) });
        }
        let limit = self.limits.rank_max + 1;
        if tensor.shape.len() > limit {
            return Err(CellFault::Limit { what: "dimensions in a weight", count: tensor.shape.len() as u64, limit: limit as u64 });
        }
        let id = self.add_constant(Arc::clone(tensor))?;
        self.names.insert(name, id);
        Ok(id)
    }

    /// A constant: consistent, and of a datatype of values.
    pub(super) fn add_constant(&mut self, tensor: Arc<Tensor>) -> Result<ValueId, CellFault> {
        let id = self.next_id()?;
        let (name, datatype, shape) = (tensor.name.clone(), tensor.datatype, tensor.shape.clone());
        self.push(Value { name, datatype, shape, batched: false, span: None, origin: Origin::Constant(tensor) }, 0);
        Ok(id)
    }

    /// The same constant in another shape of as many elements.
    pub(super) fn reshape_constant(&mut self, id: ValueId, shape: Vec<usize>) -> Result<ValueId, CellFault> {
        let Origin::Constant(tensor) = &self.value(id).origin else { return Ok(id) };
        if tensor.shape == shape {
            return Ok(id);
        }
        let (copied, limit) = (self.copied_bytes.saturating_add(tensor.data.len() as u64), self.limits.weight_bytes_max);
        if copied > limit {
            return Err(CellFault::Limit { what: "bytes of weights", count: copied, limit });
        }
        let bytes = tensor.data.len() as u64;
        if !(self.context.may_copy)(bytes) {
            return Err(CellFault::NoRoom { bytes });
        }
        let tensor = Tensor { shape, ..Tensor::clone(tensor) };
        self.copied_bytes = copied;
        self.add_constant(Arc::new(tensor))
    }

    fn push(&mut self, value: Value, axis: usize) {
        self.values.push(value);
        self.axes.push(axis);
    }

    /// The ragged axis of a value, if it has one.
    pub(super) fn span(&self, id: ValueId) -> Option<Span> {
        let of = self.value(id).span?;
        Some(Span { of: self.first_like(of), axis: self.axes[id.0 as usize] })
    }

    /// The first span that has as many rows as that one.
    fn first_like(&self, mut span: u32) -> u32 {
        while self.spans[span as usize] != span {
            span = self.spans[span as usize];
        }
        span
    }

    /// What a span is made of.
    fn parts(&self, span: u32) -> JoinedSpan {
        let inputs = self.spans.len() - self.joined.len();
        let JoinedSpan { inputs, rows } = match (span as usize).checked_sub(inputs) {
            Some(joined) => self.joined[joined].clone(),
            None => JoinedSpan { inputs: vec![span], rows: 0 },
        };
        JoinedSpan { inputs: inputs.into_iter().map(|input| self.first_like(input)).collect(), rows }
    }

    /// The span of the rows of several, and of so many rows more.
    pub(super) fn concat(&mut self, spans: &[Span], rows: usize) -> Result<Span, CellFault> {
        let inputs: Vec<u32> = spans.iter().flat_map(|span| self.parts(span.of).inputs).collect();
        let rows = spans.iter().map(|span| self.parts(span.of).rows).fold(rows, usize::saturating_add);
        super::check_limit("spans in a concatenation", inputs.len(), self.limits.ports_max)?;
        let of = self.spans.len() as u32;
        self.spans.push(of);
        self.joined.push(JoinedSpan { inputs, rows });
        Ok(Span { of, axis: spans.first().map_or(0, |span| span.axis) })
    }

    /// Makes two spans have as many rows as each other. Parts that both have cancel. Each other part
    /// of one must have as many rows as the part of the other that stands in its place.
    fn meet(&mut self, one: u32, other: u32) -> Result<u32, CellFault> {
        let (left, mut right) = (self.parts(one), self.parts(other));
        let mut own = left.inputs;
        own.retain(|input| right.inputs.iter().position(|of| of == input).map(|at| right.inputs.remove(at)).is_none());
        if (own.len(), left.rows) != (right.inputs.len(), right.rows) {
            return Err(CellFault::SpansDiffer);
        }
        for (left, right) in own.into_iter().zip(right.inputs) {
            self.unite(left, right);
        }
        Ok(self.unite(one, other))
    }

    fn unite(&mut self, one: u32, other: u32) -> u32 {
        let (one, other) = (self.first_like(one), self.first_like(other));
        self.spans[one.max(other) as usize] = one.min(other);
        one.min(other)
    }

    /// The ragged axis that values have in common, if one of them has one. They have as many rows from now on.
    pub(super) fn join(&mut self, ids: &[ValueId]) -> Result<Option<Span>, CellFault> {
        let mut joined: Option<Span> = None;
        for span in ids.iter().filter_map(|id| self.span(*id)).collect::<Vec<_>>() {
            let Some(before) = joined else {
                joined = Some(span);
                continue;
            };
            if before.axis != span.axis {
                return Err(CellFault::SpanAxes);
            }
            joined = Some(Span { of: self.meet(before.of, span.of)?, ..before });
        }
        Ok(joined)
    }

    /// Says of each value by which span its rows are counted. Gives the same for each input, and what
    /// joined spans are made of.
    pub(super) fn settle_spans(&mut self) -> (Vec<Option<u32>>, Vec<JoinedSpan>) {
        for id in 0..self.values.len() {
            self.values[id].span = self.values[id].span.map(|of| self.first_like(of));
        }
        let inputs = self.spans.len() - self.joined.len();
        let joined = (inputs as u32..).take(self.joined.len()).map(|span| self.parts(span)).collect();
        (self.values[..inputs].iter().map(|input| input.span).collect(), joined)
    }

    /// Adds an operation whose results are batched, and of the span that operands have, unless they leave it.
    pub(super) fn emit(&mut self, compute: Compute, operands: Vec<ValueId>, results: Vec<Typed>) -> Result<Vec<ValueId>, CellFault> {
        let joined = self.join(&operands)?;
        let span = joined.filter(|_| !compute.leaves_span());
        self.emit_in(span, compute, operands, results)
    }

    /// The same whose results have that ragged axis, or none.
    pub(super) fn emit_in(
        &mut self,
        span: Option<Span>,
        compute: Compute,
        operands: Vec<ValueId>,
        results: Vec<Typed>,
    ) -> Result<Vec<ValueId>, CellFault> {
        let operation = u32::try_from(self.operations.len()).unwrap_or(u32::MAX);
        // Rows that every node has are held like rows of nodes.
        let times = span.map_or(1, |span| self.parts(span.of).rows.max(1));
        let mut ids = Vec::with_capacity(results.len());
        for (datatype, shape) in results {
            if shape.contains(&0) {
                return Err(CellFault::EmptyResult);
            }
            self.charge_row(&shape, times)?;
            let id = self.next_id()?;
            let (axis, span) = (span.map_or(0, |span| span.axis), span.map(|span| span.of));
            self.push(Value { name: String::new(), datatype, shape, batched: true, span, origin: Origin::Operation(operation) }, axis);
            ids.push(id);
        }
        self.operations.push(Operation { compute, operands, results: ids.clone() });
        Ok(ids)
    }

    /// Names an operation's results for people.
    pub(super) fn label(&mut self, ids: &[ValueId], names: &[String]) {
        for (id, name) in ids.iter().zip(names) {
            let value = &mut self.values[id.0 as usize];
            if value.name.is_empty() {
                value.name.clone_from(name);
            }
        }
    }

    /// A value's shape as ONNX sees it, for sentences.
    pub(super) fn text(&self, id: ValueId) -> ShapeText {
        let value = self.value(id);
        let shape = value.shape.iter().copied();
        match self.span(id) {
            Some(span) => ShapeText::ragged(shape, span.axis),
            None if value.batched => ShapeText::batched(shape),
            None => ShapeText::row(shape),
        }
    }

    fn next_id(&self) -> Result<ValueId, CellFault> {
        let limit = self.limits.operators_max.saturating_add(1).saturating_mul(self.limits.ports_max.saturating_add(1));
        match u32::try_from(self.values.len()) {
            Ok(id) if self.values.len() < limit => Ok(ValueId(id)),
            _ => Err(CellFault::Limit { what: "values", count: self.values.len() as u64 + 1, limit: limit as u64 }),
        }
    }

    fn charge_row(&mut self, shape: &[usize], times: usize) -> Result<(), CellFault> {
        if shape.len() > self.limits.rank_max {
            return Err(CellFault::Limit { what: "dimensions in a row", count: shape.len() as u64, limit: self.limits.rank_max as u64 });
        }
        let elements = shape.iter().try_fold(times as u64, |product, extent| product.checked_mul(*extent as u64)).unwrap_or(u64::MAX);
        self.row_elements = self.row_elements.saturating_add(elements);
        let limit = self.limits.row_elements_max;
        if self.row_elements > limit {
            return Err(CellFault::Limit { what: "elements in the values of a row", count: self.row_elements, limit });
        }
        Ok(())
    }
}
