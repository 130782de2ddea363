//! A half of a cell while it is put together.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Feed, Half};
use crate::cell::Port;
use crate::resolve;
use crate::sums::{self, Sum, Summed};
use crate::tensor::Tensor;
use crate::typed::{BinaryKind, CellOutput, Compute, Operation, Origin, TypedCell, Value, ValueId};

/// What an operation of a half is to the sums of the whole.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// It is part of none.
    Apart,
    /// It is part of one that a later operation ends.
    Inside,
    /// It ends one.
    Whole,
}

/// Values are numbered in the order in which they are made; [`Building::finish`] brings the inputs to the front.
pub(super) struct Building<'a> {
    from: &'a TypedCell,
    values: Vec<Value>,
    operations: Vec<Operation>,
    /// By operation.
    roles: Vec<Role>,
    /// Values of the whole that this half has.
    known: BTreeMap<ValueId, ValueId>,
    /// Inputs by value.
    feeds: BTreeMap<ValueId, Feed>,
}

impl<'a> Building<'a> {
    pub(super) fn new(from: &'a TypedCell) -> Self {
        Self { from, values: Vec::new(), operations: Vec::new(), roles: Vec::new(), known: BTreeMap::new(), feeds: BTreeMap::new() }
    }

    fn push(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(u32::try_from(self.values.len() - 1).unwrap_or(u32::MAX))
    }

    /// An input that `pre` gives.
    pub(super) fn begin(&mut self, like: &Value, number: usize) -> ValueId {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let id = self.push(Value { name: format!("pre {number}"), origin: Origin::Input(0), ..like.clone() });
        self.feeds.insert(id, Feed::Pre(number));
        id
    }

    pub(super) fn knows(&self, id: ValueId) -> bool {
        self.known.contains_key(&id)
    }

    /// A value of the whole is that one here.
    pub(super) fn know(&mut self, id: ValueId, new: ValueId) {
        self.known.insert(id, new);
    }

    /// A value of the whole, if this half has it: inputs and constants are taken over when they are asked for.
    pub(super) fn find(&mut self, id: ValueId) -> Option<ValueId> {
        if let Some(known) = self.known.get(&id) {
            return Some(*known);
        }
        let value = self.from.value(id);
        let new = self.push(value.clone());
        match value.origin {
            Origin::Operation(_) => return None,
            Origin::Constant(_) => {}
            Origin::Input(input) => {
                self.feeds.insert(new, Feed::Own(input));
            }
        }
        self.know(id, new);
        Some(new)
    }

    fn add(&mut self, compute: Compute, operands: Vec<ValueId>, like: &[ValueId]) -> Vec<ValueId> {
        let position = u32::try_from(self.operations.len()).unwrap_or(u32::MAX);
        let from = self.from;
        let result = |id: &ValueId| self.push(Value { origin: Origin::Operation(position), ..from.value(*id).clone() });
        let results: Vec<ValueId> = like.iter().map(result).collect();
        self.operations.push(Operation { compute, operands, results: results.clone() });
        self.roles.push(Role::Apart);
        results
    }

    pub(super) fn copy(&mut self, operation: &Operation) -> Option<()> {
        let operands = operation.operands.iter().map(|id| self.find(*id)).collect::<Option<Vec<_>>>()?;
        let results = self.add(operation.compute.clone(), operands, &operation.results);
        self.known.extend(operation.results.iter().copied().zip(results));
        Some(())
    }

    /// Some terms of a sum, onto a row or onto what the sum begins with.
    pub(super) fn sum(&mut self, sum: &Sum, linears: &[Operation], row: Option<ValueId>, like: ValueId) -> Option<ValueId> {
        let mut begin = match (row, sum.begin) {
            (Some(row), _) => Some(row),
            (None, Some(own)) => Some(self.find(own)?),
            (None, None) => self.bias(sum, like),
        };
        let from = self.roles.len();
        let mut total = None;
        for linear in linears {
            let Compute::Linear { transposed, alpha, .. } = linear.compute else { return None };
            let mut operands = vec![self.find(linear.operands[0])?, self.find(linear.operands[1])?];
            operands.extend(begin.take());
            let product = self.add(Compute::Linear { transposed, alpha, beta: 1.0 }, operands, &[like])[0];
            total = Some(match total {
                None => product,
                Some(total) => self.plus(total, product, like),
            });
        }
        self.roles[from..].fill(Role::Inside);
        *self.roles[from..].last_mut()? = Role::Whole;
        total
    }

    /// One more addition.
    pub(super) fn plus(&mut self, one: ValueId, other: ValueId, like: ValueId) -> ValueId {
        self.add(Compute::Binary(BinaryKind::Add), vec![one, other], &[like])[0]
    }

    /// The constants of a sum as one bias, added up as the whole cell adds them up.
    fn bias(&mut self, sum: &Sum, like: ValueId) -> Option<ValueId> {
        let bias = sums::bias(self.from, sum, like)?;
        let tensor = Arc::new(Tensor::from_f32("bias", &[bias.len()], &bias));
        let (datatype, shape) = (tensor.datatype, tensor.shape.clone());
        Some(self.push(Value { name: "bias".to_owned(), datatype, shape, batched: false, span: None, origin: Origin::Constant(tensor) }))
    }

    pub(super) fn port(&self, id: ValueId, number: u32) -> Port {
        port_of(&self.values[id.0 as usize], number)
    }

    /// The half, with the inputs that it needs in front and nothing that it does not.
    pub(super) fn finish(self, outputs: Vec<CellOutput>) -> Half {
        let inputs = self.inputs(&outputs);
        let port = |(id, feed): &(ValueId, Feed)| match feed {
            Feed::Own(input) => self.from.inputs[*input as usize].clone(),
            Feed::Pre(number) => self.port(*id, *number),
        };
        let ports = inputs.iter().map(port).collect();
        let front = inputs.iter().map(|(id, _)| *id);
        let behind = (0..).map(ValueId).take(self.values.len()).filter(|id| !self.feeds.contains_key(id));
        let order: Vec<ValueId> = front.chain(behind).collect();
        let mut new = vec![ValueId(u32::MAX); self.values.len()];
        (0..).zip(&order).for_each(|(number, id)| new[id.0 as usize] = ValueId(number));
        let renumbered = |ids: &[ValueId]| ids.iter().map(|id| new[id.0 as usize]).collect::<Vec<_>>();
        let mut values: Vec<Value> = order.iter().map(|id| self.values[id.0 as usize].clone()).collect();
        (0..).zip(&mut values[..inputs.len()]).for_each(|(input, value)| value.origin = Origin::Input(input));
        let operations = self.operations.iter().map(|of| Operation {
            compute: of.compute.clone(),
            operands: renumbered(&of.operands),
            results: renumbered(&of.results),
        });
        let mut cell = TypedCell {
            name: self.from.name.clone(),
            key: self.from.key,
            inputs: ports,
            outputs: outputs.into_iter().map(|output| CellOutput { value: new[output.value.0 as usize], ..output }).collect(),
            values,
            operations: operations.collect(),
            precision: self.from.precision,
            batch_max: None,
            priority: None,
            spans: Vec::new(),
            joined: Vec::new(),
            span_elements: 0,
            flops: 0,
            weight_bytes: 0,
        };
        let alive = resolve::tidy(&mut cell);
        let roles = self.roles.iter().zip(alive).filter(|(_, alive)| *alive).map(|(role, _)| *role);
        let sums = roles.enumerate().map(|(index, role)| summed(&cell, index, role)).collect();
        Half { cell, sums, feeds: inputs.into_iter().map(|(_, feed)| feed).collect() }
    }

    /// The inputs that something needs: the cell's own first, each in order.
    fn inputs(&self, outputs: &[CellOutput]) -> Vec<(ValueId, Feed)> {
        let mut needed = vec![false; self.values.len()];
        outputs.iter().for_each(|output| needed[output.value.0 as usize] = true);
        for operation in self.operations.iter().rev() {
            if operation.results.iter().any(|id| needed[id.0 as usize]) {
                operation.operands.iter().for_each(|id| needed[id.0 as usize] = true);
            }
        }
        let feeds = self.feeds.iter().map(|(id, feed)| (*id, *feed));
        let mut inputs: Vec<(ValueId, Feed)> = feeds.filter(|(id, _)| needed[id.0 as usize]).collect();
        inputs.sort_by_key(|(_, feed)| match feed {
            Feed::Own(input) => (0, *input),
            Feed::Pre(number) => (1, *number),
        });
        inputs
    }
}

/// What becomes of an operation of a half.
fn summed(cell: &TypedCell, index: usize, role: Role) -> Summed {
    match role {
        Role::Apart => Summed::Apart,
        Role::Inside => Summed::Inside,
        Role::Whole => {
            let mut sum = Sum { linears: Vec::new(), constants: Vec::new(), begin: None };
            collect(cell, index, &mut sum);
            Summed::Whole(sum)
        }
    }
}

/// Reads back what [`Building::sum`] wrote: products in their order, of which the first has a third operand if the sum begins with something.
fn collect(cell: &TypedCell, index: usize, sum: &mut Sum) {
    let operation = &cell.operations[index];
    let Compute::Linear { beta, .. } = operation.compute else {
        for id in &operation.operands {
            if let Origin::Operation(part) = cell.value(*id).origin {
                collect(cell, part as usize, sum);
            }
        }
        return;
    };
    match operation.operands.get(2) {
        Some(row) if cell.value(*row).batched => sum.begin = Some(*row),
        Some(bias) => sum.constants.push((*bias, beta)),
        None => {}
    }
    sum.linears.push(operation.clone());
}

/// A port for a value that another part of the cell gives.
pub(super) fn port_of(value: &Value, number: u32) -> Port {
    let shape = value.shape.iter().map(|extent| u32::try_from(*extent).unwrap_or(u32::MAX)).collect();
    Port { name: format!("pre {number}"), datatype: value.datatype, shape, ragged: false, carried: false }
}
