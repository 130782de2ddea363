//! Sums of products: `x·W + h·U + b + …` is one product of several terms, always, so that it is summed in one order.
//!
//! The order is: what the sum begins with (its constants, or a row that an earlier part of the sum left), then the terms, those first that depend
//! on what is known earliest ([`crate::hoist`]). A sum may therefore be cut between any two terms, put down and taken up again: with fused
//! multiply-adds, or with any arithmetic that adds term by term, not a bit of it changes.

use crate::hoist::Dependence;
use crate::typed::{BinaryKind, Compute, Operation, Origin, TypedCell, ValueId};

/// Products of more terms are several products.
pub const TERMS: usize = 8;

/// Products and constants that are added up.
#[derive(Clone, Debug)]
pub struct Sum {
    /// `Compute::Linear` operations in the order in which they are summed; operands beyond the second are in `constants` or `begin`.
    pub linears: Vec<Operation>,
    /// Constants of one element or one for each column, and their factors.
    pub constants: Vec<(ValueId, f32)>,
    /// An input of the cell, of the result's shape and used for nothing else, with which each row begins.
    pub begin: Option<ValueId>,
}

/// What becomes of an operation.
#[derive(Clone, Debug)]
pub enum Summed {
    /// It is computed by itself.
    Apart,
    /// It is part of a later sum.
    Inside,
    /// Its result is this sum.
    Whole(Sum),
}

/// Finds the sums of a cell: for each operation what becomes of it.
#[must_use]
pub fn find(cell: &TypedCell) -> Vec<Summed> {
    let depends = Dependence::of(cell);
    let mut finder = Finder { cell, uses: uses(cell), found: vec![Summed::Apart; cell.operations.len()] };
    for index in (0..cell.operations.len()).rev() {
        if matches!(finder.found[index], Summed::Apart) {
            finder.try_sum(index);
        }
    }
    for summed in &mut finder.found {
        if let Summed::Whole(sum) = summed {
            sum.linears.sort_by_key(|linear| depends.rank(linear.operands[0]));
        }
    }
    finder.found
}

/// What a sum's rows begin with: all its constants added up, one value for each column of the result; none if there are none.
#[must_use]
pub fn bias(cell: &TypedCell, sum: &Sum, result: ValueId) -> Option<Vec<f32>> {
    if sum.constants.is_empty() {
        return None;
    }
    let mut bias = vec![0.0_f64; *cell.value(result).shape.last()?];
    for (id, factor) in &sum.constants {
        let Origin::Constant(tensor) = &cell.value(*id).origin else { return None };
        let values = tensor.to_f32()?;
        for (column, bias) in bias.iter_mut().enumerate() {
            *bias += f64::from(*factor) * f64::from(*values.get(if values.len() == 1 { 0 } else { column })?);
        }
    }
    Some(bias.into_iter().map(|bias| bias as f32).collect())
}

fn uses(cell: &TypedCell) -> Vec<u32> {
    let mut uses = vec![0; cell.values.len()];
    let operands = cell.operations.iter().flat_map(|operation| &operation.operands);
    for id in operands.chain(cell.outputs.iter().map(|output| &output.value)) {
        uses[id.0 as usize] += 1;
    }
    uses
}

struct Finder<'a> {
    cell: &'a TypedCell,
    uses: Vec<u32>,
    found: Vec<Summed>,
}

impl Finder<'_> {
    fn try_sum(&mut self, index: usize) {
        let result = self.cell.operations[index].results[0];
        let mut sum = Sum { linears: Vec::new(), constants: Vec::new(), begin: None };
        let mut inside = Vec::new();
        let is_sum = self.collect(index, result, &mut sum, &mut inside) && (sum.begin.is_none() || sum.constants.is_empty());
        if is_sum && (1..=TERMS).contains(&sum.linears.len()) {
            for index in inside {
                self.found[index] = Summed::Inside;
            }
            self.found[index] = Summed::Whole(sum);
        }
    }

    /// Adds what operation `index` sums up; whether it is nothing but products, constants and at most one row to begin with. A sum may be of thousands of
    /// summands in a row, so that what is left to look at is in a list: a thread has no stack for as many calls.
    fn collect(&self, index: usize, whole: ValueId, sum: &mut Sum, inside: &mut Vec<usize>) -> bool {
        let mut left = match self.cell.operations[index].compute {
            Compute::Binary(BinaryKind::Add) => self.cell.operations[index].operands.iter().rev().copied().collect(),
            _ => Vec::new(),
        };
        if left.is_empty() {
            return self.is_product(index, whole, sum);
        }
        while let Some(operand) = left.pop() {
            let value = self.cell.value(operand);
            match value.origin {
                Origin::Constant(_) if self.is_bias(operand, whole) => sum.constants.push((operand, 1.0)),
                Origin::Operation(producer) if self.uses[operand.0 as usize] == 1 && value.shape == self.cell.value(whole).shape => {
                    inside.push(producer as usize);
                    let operation = &self.cell.operations[producer as usize];
                    if operation.compute == Compute::Binary(BinaryKind::Add) {
                        left.extend(operation.operands.iter().rev());
                    } else if !self.is_product(producer as usize, whole, sum) {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        true
    }

    /// Adds a product; whether it is one, and what it begins with can be added too.
    fn is_product(&self, index: usize, whole: ValueId, sum: &mut Sum) -> bool {
        let operation = &self.cell.operations[index];
        let Compute::Linear { beta, .. } = operation.compute else { return false };
        match operation.operands.get(2).copied() {
            Some(bias) if self.is_bias(bias, whole) => sum.constants.push((bias, beta)),
            Some(row) if sum.begin.is_none() && beta.to_bits() == 1.0_f32.to_bits() && self.is_beginning(row, whole) => {
                sum.begin = Some(row);
            }
            Some(_) => return false,
            None => {}
        }
        sum.linears.push(operation.clone());
        true
    }

    /// Whether a constant is one number or one for each column.
    fn is_bias(&self, id: ValueId, whole: ValueId) -> bool {
        let value = self.cell.value(id);
        let columns = self.cell.value(whole).shape.last().copied().unwrap_or(1);
        matches!(value.origin, Origin::Constant(_))
            && (value.elements() == 1 || (value.elements() == columns && value.shape.last() == Some(&columns)))
    }

    /// Whether the sum may be added onto an input where that lies.
    fn is_beginning(&self, id: ValueId, whole: ValueId) -> bool {
        let value = self.cell.value(id);
        matches!(value.origin, Origin::Input(_)) && value.shape == self.cell.value(whole).shape && self.uses[id.0 as usize] == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Body, Cell, Operator, Port};
    use crate::resolve::{CellLimits, ResolveContext};
    use crate::typed::Precision;
    use crate::weights::Weights;
    use crate::{Datatype, Tensor};

    /// x·w + c + c + … of as many summands as a cell may have operations, on a small stack.
    #[test]
    fn a_sum_may_have_thousands_of_summands() {
        let port = |name: &str| Port { name: name.to_owned(), datatype: Datatype::Fp32, shape: vec![2], ragged: false, carried: false };
        let operator = |kind: &str, inputs: [&str; 2], output: &str| {
            let inputs = inputs.map(str::to_owned).to_vec();
            Operator { kind: kind.to_owned(), inputs, outputs: vec![output.to_owned()], attributes: Vec::new() }
        };
        let mut body = vec![operator("MatMul", ["x", "w"], "v0")];
        body.extend((1..4000).map(|at| operator("Add", [&format!("v{}", at - 1), "c"], &format!("v{at}"))));
        let outputs = vec![port("v3999")];
        let cell = Cell {
            name: "long".to_owned(),
            inputs: vec![port("x")],
            outputs,
            body: Body::Operators(body),
            batch_max: None,
            priority: None,
        };
        let weights: Weights = [Tensor::from_f32("w", &[2, 2], &[1.0; 4]), Tensor::from_f32("c", &[2], &[1.0; 2])].into_iter().collect();
        let context = ResolveContext {
            weights: &weights,
            precision: Precision::F32,
            tenant: "t",
            limits: CellLimits::default(),
            may_copy: &|_| true,
        };
        let cell = TypedCell::resolve(&cell, &context).expect("it resolves");
        let found =
            std::thread::Builder::new().stack_size(128 << 10).spawn(move || find(&cell)).expect("a thread").join().expect("it ends");
        let Some(Summed::Whole(sum)) = found.last() else { panic!("the last one is the sum") };
        assert_eq!((sum.linears.len(), sum.constants.len()), (1, 3999));
        assert!(found[..3999].iter().all(|summed| matches!(summed, Summed::Inside)));
    }
}
