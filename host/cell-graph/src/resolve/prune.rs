//! Drops what no output needs, and renumbers what is left: inputs first, then constants and results in the order of use.

use std::collections::BTreeMap;

use crate::typed::{Operation, Origin, TypedCell, Value, ValueId};

/// Drops operations of which no result is needed, and constants that nothing uses. Inputs stay. Gives for each operation whether it stays.
pub(super) fn drop_dead(cell: &mut TypedCell) -> Vec<bool> {
    let mut needed = vec![false; cell.values.len()];
    for output in &cell.outputs {
        needed[output.value.0 as usize] = true;
    }
    let mut alive = vec![false; cell.operations.len()];
    for (position, operation) in cell.operations.iter().enumerate().rev() {
        if operation.results.iter().any(|result| needed[result.0 as usize]) {
            alive[position] = true;
            for operand in &operation.operands {
                needed[operand.0 as usize] = true;
            }
        }
    }
    let operations = std::mem::take(&mut cell.operations);
    let mut numbering = Numbering::new(std::mem::take(&mut cell.values));
    for index in 0..cell.inputs.len() {
        numbering.keep(ValueId(u32::try_from(index).unwrap_or(u32::MAX)), None);
    }
    for (operation, alive) in operations.into_iter().zip(&alive) {
        if *alive {
            let position = u32::try_from(cell.operations.len()).unwrap_or(u32::MAX);
            let operands = operation.operands.iter().map(|id| numbering.keep(*id, None)).collect();
            let results = operation.results.iter().map(|id| numbering.keep(*id, Some(position))).collect();
            cell.operations.push(Operation { compute: operation.compute, operands, results });
        }
    }
    for output in &mut cell.outputs {
        output.value = numbering.keep(output.value, None);
    }
    cell.values = numbering.kept;
    number_joined(cell);
    alive
}

/// Keeps the joined spans that values have, in the order of these.
fn number_joined(cell: &mut TypedCell) {
    let all = std::mem::take(&mut cell.joined);
    let first = cell.inputs.len();
    let mut numbers = BTreeMap::new();
    for span in cell.values.iter_mut().filter_map(|value| value.span.as_mut()) {
        let Some(joined) = (*span as usize).checked_sub(first).and_then(|at| all.get(at)) else { continue };
        let next = u32::try_from(first + numbers.len()).unwrap_or(u32::MAX);
        *span = *numbers.entry(*span).or_insert_with(|| {
            cell.joined.push(joined.clone());
            next
        });
    }
}

struct Numbering {
    all: Vec<Value>,
    new: Vec<Option<ValueId>>,
    kept: Vec<Value>,
}

impl Numbering {
    fn new(all: Vec<Value>) -> Self {
        let new = vec![None; all.len()];
        Self { all, new, kept: Vec::new() }
    }

    /// The new number of a value; a result's operation is numbered anew as well.
    fn keep(&mut self, id: ValueId, operation: Option<u32>) -> ValueId {
        let index = id.0 as usize;
        if let Some(new) = self.new[index] {
            return new;
        }
        let new = ValueId(u32::try_from(self.kept.len()).unwrap_or(u32::MAX));
        let mut value = self.all[index].clone();
        if let Some(operation) = operation {
            value.origin = Origin::Operation(operation);
        }
        self.kept.push(value);
        self.new[index] = Some(new);
        new
    }
}
