//! What looks at whole rows, lowered: any axes become the last of a row.

use cellwright_cell_graph::typed::{BinaryKind, Operation};

use super::shape::{inverse, reordered};
use super::{LowOp, Lowering, Operand, Val, Why};
use crate::kernels::element::{Element, ElementOp};
use crate::kernels::rows::RowOp;
use crate::level::Level;

impl Lowering<'_> {
    /// A row operation over some axes, which are brought to the end first and, if they are kept, back afterwards.
    pub(super) fn along(&mut self, op: RowOp, operation: &Operation, axes: &[u32], k: usize) -> Result<(), Why> {
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
            self.pick(source, &reordered(&shape, &order), moved);
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
            let moved: Vec<usize> = order.iter().map(|axis| shape[*axis]).collect();
            self.pick(target, &reordered(&moved, &inverse(&order)), result);
        }
        Ok(())
    }

    /// Normalises, then scales and shifts element by element.
    pub(super) fn normalize(&mut self, op: RowOp, operation: &Operation, axis: usize, epsilon: f32) -> Result<(), Why> {
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
}
