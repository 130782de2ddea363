//! Which of a cell's operations go to which half.

use std::collections::BTreeMap;

use super::half::Building;
use super::{DEPTH_LEAST, Dependence, Hoisted, Inputs};
use crate::sums::{self, Sum, Summed};
use crate::typed::{CellOutput, Compute, Operation, TypedCell, ValueId};

/// A cell that is being split.
pub(super) struct Splitting<'a> {
    cell: &'a TypedCell,
    /// For each value: whether `pre` can compute it.
    can: Vec<bool>,
    /// For each value: whether a product is behind it, so that it is not computed twice.
    costly: Vec<bool>,
    /// By operation.
    sums: BTreeMap<usize, Sum>,
    /// Operations that are nothing but parts of those.
    inside: Vec<bool>,
    pre: Building<'a>,
    step: Building<'a>,
    /// What `pre` gives.
    crossing: Vec<ValueId>,
}

impl<'a> Splitting<'a> {
    /// `pre` may depend on those inputs alone.
    pub(super) fn new(cell: &'a TypedCell, depends: &Dependence, within: Inputs) -> Self {
        let can = (0..cell.values.len()).map(|id| cell.values[id].batched && depends.of[id].is_within(within)).collect();
        let mut costly = vec![false; cell.values.len()];
        for operation in &cell.operations {
            let is = matches!(operation.compute, Compute::Linear { .. }) || operation.operands.iter().any(|id| costly[id.0 as usize]);
            operation.results.iter().for_each(|id| costly[id.0 as usize] = is);
        }
        let found = sums::find(cell);
        let inside = found.iter().map(|summed| matches!(summed, Summed::Inside)).collect();
        let sums = found.into_iter().enumerate().filter_map(|(index, summed)| match summed {
            Summed::Whole(sum) => Some((index, sum)),
            Summed::Inside | Summed::Apart => None,
        });
        let sums = sums.collect();
        let (pre, step) = (Building::new(cell), Building::new(cell));
        Self { cell, can, costly, sums, inside, pre, step, crossing: Vec::new() }
    }

    fn can(&self, id: ValueId) -> bool {
        self.can[id.0 as usize]
    }

    pub(super) fn split(mut self) -> Option<Hoisted> {
        let cell = self.cell;
        for (index, operation) in cell.operations.iter().enumerate().filter(|(index, _)| !self.inside[*index]).collect::<Vec<_>>() {
            match self.sums.remove(&index) {
                Some(sum) => self.sum(&sum, operation.results[0])?,
                None => self.operation(operation)?,
            }
        }
        let mut outputs = Vec::with_capacity(cell.outputs.len());
        for output in &cell.outputs {
            self.cross(output.value)?;
            outputs.push(CellOutput { port: output.port.clone(), value: self.step.find(output.value)? });
        }
        if self.crossing.is_empty() {
            return None;
        }
        let given = (0..).zip(&self.crossing).map(|(number, value)| CellOutput { port: self.pre.port(*value, number), value: *value });
        let given = given.collect();
        Some(Hoisted { pre: self.pre.finish(given), step: self.step.finish(outputs) })
    }

    /// What costs nothing is done in both halves, where it is needed.
    fn operation(&mut self, operation: &Operation) -> Option<()> {
        let result = operation.results[0];
        if self.can(result) {
            self.pre.copy(operation)?;
            if self.costly[result.0 as usize] {
                return Some(());
            }
        }
        operation.operands.iter().try_for_each(|id| self.cross(*id))?;
        self.step.copy(operation)
    }

    /// A sum goes to one half, or is cut in two: its first terms, and all its constants, go to `pre`.
    fn sum(&mut self, sum: &Sum, result: ValueId) -> Option<()> {
        if self.can(result) {
            let total = self.pre.sum(sum, &sum.linears, None, result)?;
            self.pre.know(result, total);
            return Some(());
        }
        let (first, rest) = sum.linears.split_at(self.cut(sum));
        let begin = if first.is_empty() {
            None
        } else {
            let total = self.pre.sum(sum, first, None, result)?;
            self.crossing.push(total);
            Some(self.step.begin(self.cell.value(result), self.crossing.len() - 1))
        };
        rest.iter().flat_map(|linear| &linear.operands[..2]).chain(&sum.begin).try_for_each(|id| self.cross(*id))?;
        let total = self.step.sum(sum, rest, begin, result)?;
        self.step.know(result, total);
        Some(())
    }

    /// How many terms of a sum go to `pre`.
    fn cut(&self, sum: &Sum) -> usize {
        let deep = |linear: &Operation| self.cell.value(linear.operands[0]).shape.last().is_some_and(|depth| *depth >= DEPTH_LEAST);
        if sum.begin.is_some() || !sum.linears.iter().all(deep) {
            return 0;
        }
        sum.linears.iter().take_while(|linear| self.can(linear.operands[0])).count()
    }

    /// What the step takes is brought over from `pre` where it is costly.
    fn cross(&mut self, id: ValueId) -> Option<()> {
        if self.can(id) && self.costly[id.0 as usize] && !self.step.knows(id) {
            self.crossing.push(self.pre.find(id)?);
            let new = self.step.begin(self.cell.value(id), self.crossing.len() - 1);
            self.step.know(id, new);
        }
        Some(())
    }
}
