//! Sums of products: `x·W + h·U + b + …` is one product of several terms, always, so that it is summed in one order.

use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::typed::{BinaryKind, Compute, Operation, Origin, ValueId};

/// Products of more terms are several products.
pub(super) const TERMS: usize = 8;

/// Products and constants that are added up.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// `Compute::Linear` operations, of which operands beyond the second are in `constants`.
    pub(super) linears: Vec<Operation>,
    /// Constants of one element or one for each column, and their factors.
    pub(super) constants: Vec<(ValueId, f32)>,
}

/// What becomes of an operation.
#[derive(Clone, Debug)]
pub(super) enum Summed {
    /// It is lowered by itself.
    Apart,
    /// It is part of a later sum.
    Inside,
    /// Its result is this sum.
    Whole(Sum),
}

/// Finds the sums of a cell: for each operation what becomes of it.
pub(super) fn find(cell: &TypedCell) -> Vec<Summed> {
    let mut finder = Finder { cell, uses: uses(cell), found: vec![Summed::Apart; cell.operations.len()] };
    for index in (0..cell.operations.len()).rev() {
        if matches!(finder.found[index], Summed::Apart) {
            finder.try_sum(index);
        }
    }
    finder.found
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
        let mut sum = Sum { linears: Vec::new(), constants: Vec::new() };
        let mut inside = Vec::new();
        if self.collect(index, result, &mut sum, &mut inside) && (1..=TERMS).contains(&sum.linears.len()) {
            for index in inside {
                self.found[index] = Summed::Inside;
            }
            self.found[index] = Summed::Whole(sum);
        }
    }

    /// Adds what operation `index` sums up; whether it is nothing but products and constants.
    fn collect(&self, index: usize, whole: ValueId, sum: &mut Sum, inside: &mut Vec<usize>) -> bool {
        let operation = &self.cell.operations[index];
        match operation.compute {
            Compute::Linear { beta, .. } => {
                let bias = operation.operands.get(2);
                if bias.is_some_and(|bias| !self.is_bias(*bias, whole)) {
                    return false;
                }
                sum.linears.push(operation.clone());
                sum.constants.extend(bias.map(|bias| (*bias, beta)));
                true
            }
            Compute::Binary(BinaryKind::Add) => operation.operands.iter().all(|operand| {
                let value = self.cell.value(*operand);
                match value.origin {
                    Origin::Constant(_) if self.is_bias(*operand, whole) => {
                        sum.constants.push((*operand, 1.0));
                        true
                    }
                    Origin::Operation(producer) if self.uses[operand.0 as usize] == 1 && value.shape == self.cell.value(whole).shape => {
                        inside.push(producer as usize);
                        self.collect(producer as usize, whole, sum, inside)
                    }
                    _ => false,
                }
            }),
            _ => false,
        }
    }

    /// Whether a constant is one number or one for each column.
    fn is_bias(&self, id: ValueId, whole: ValueId) -> bool {
        let value = self.cell.value(id);
        let columns = self.cell.value(whole).shape.last().copied().unwrap_or(1);
        matches!(value.origin, Origin::Constant(_))
            && (value.elements() == 1 || (value.elements() == columns && value.shape.last() == Some(&columns)))
    }
}
