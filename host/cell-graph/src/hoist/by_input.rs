//! Sums computed input by input: what each input adds is a half of its own.
//!
//! A cell is split this way under three conditions. No input is known before another, and no input
//! is a token. Some sum runs over several inputs, and its terms are at least 128 elements deep: for
//! shorter ones the additions cost what the lookups save.
//!
//! The split changes the last bits of a sum. So the choice depends on the cell alone, never on the
//! moment, and without lookups the cell is a little slower than as a whole.

use std::collections::BTreeMap;

use super::half::Building;
use super::{ByInput, OfInput};
use crate::resolve;
use crate::sums::{self, Sum, Summed};
use crate::typed::{CellOutput, Operation, Origin, Precision, TypedCell, ValueId};

/// Elements of an input from which on what it adds costs more to compute than to keep, to find and to add.
const DEPTH: usize = 128;

/// See [`super::by_input`].
pub(super) fn split(whole: &TypedCell) -> Option<ByInput> {
    // Where some inputs are known before others, or one is a token, sums are cut between these instead.
    let is_cut_otherwise = whole.inputs.iter().any(|port| port.carried != whole.inputs[0].carried) || super::by_token(whole).is_some();
    if whole.inputs.len() < 2 || is_cut_otherwise {
        return None;
    }
    // Every concatenation that can be is cut, also one that turns out to have an input that is too short: then it is several terms of one product.
    let mut cell = whole.clone();
    // What is rounded to integers is cut already where it is, for everyone.
    if cell.precision != Precision::Int8 {
        resolve::cut_all(&mut cell, &|_| true).ok()?;
    }
    let found = sums::find(&cell);
    let mut step = Building::new(&cell);
    let mut parts = Parts { cell: &cell, of: BTreeMap::new(), count: 0 };
    for (operation, summed) in cell.operations.iter().zip(&found) {
        match summed {
            Summed::Inside => {}
            Summed::Apart => step.copy(operation)?,
            Summed::Whole(sum) => {
                let result = operation.results[0];
                let total = match terms(&cell, sum) {
                    Some(terms) => parts.sum(&mut step, sum, terms, result)?,
                    None => step.sum(sum, &sum.linears, None, result)?,
                };
                step.know(result, total);
            }
        }
    }
    if parts.of.is_empty() {
        return None;
    }
    let mut output = |output: &CellOutput| Some(CellOutput { port: output.port.clone(), value: step.find(output.value)? });
    let outputs = cell.outputs.iter().map(&mut output).collect::<Option<_>>()?;
    Some(ByInput { parts: parts.finish(), step: step.finish(outputs) })
}

/// The terms of a sum by the one input that each depends on, in order, if it is a sum over inputs as they come, several of them.
fn terms(cell: &TypedCell, sum: &Sum) -> Option<Vec<(u32, Vec<Operation>)>> {
    let mut terms: Vec<(u32, Vec<Operation>)> = Vec::new();
    for linear in &sum.linears {
        let left = cell.value(linear.operands[0]);
        let Origin::Input(input) = left.origin else { return None };
        if left.shape.last().is_none_or(|depth| *depth < DEPTH) {
            return None;
        }
        match terms.iter_mut().find(|(of, _)| *of == input) {
            Some((_, linears)) => linears.push(linear.clone()),
            None => terms.push((input, vec![linear.clone()])),
        }
    }
    (sum.begin.is_none() && terms.len() > 1).then_some(terms)
}

/// What inputs add, while it is put together.
struct Parts<'a> {
    cell: &'a TypedCell,
    /// By input: its half, and what it gives: where that is, and its number among all.
    of: BTreeMap<u32, (Building<'a>, Vec<(ValueId, u32)>)>,
    count: u32,
}

impl<'a> Parts<'a> {
    /// Has each input's half compute its terms, the first of them with the constants, and the step add these up.
    fn sum(&mut self, step: &mut Building<'a>, sum: &Sum, terms: Vec<(u32, Vec<Operation>)>, result: ValueId) -> Option<ValueId> {
        let like = self.cell.value(result);
        let mut total = None;
        for (input, linears) in terms {
            let (half, given) = self.of.entry(input).or_insert_with(|| (Building::new(self.cell), Vec::new()));
            let constants = if total.is_none() { sum.constants.clone() } else { Vec::new() };
            let part = half.sum(&Sum { constants, ..sum.clone() }, &linears, None, result)?;
            given.push((part, self.count));
            let part = step.begin(like, self.count as usize);
            self.count += 1;
            total = Some(match total {
                None => part,
                Some(before) => step.plus(before, part, result),
            });
        }
        total
    }

    fn finish(self) -> Vec<OfInput> {
        let of_input = |(input, (half, given)): (u32, (Building<'a>, Vec<(ValueId, u32)>))| {
            let outputs = given.iter().map(|(value, number)| CellOutput { port: half.port(*value, *number), value: *value }).collect();
            OfInput { input, numbers: given.iter().map(|(_, number)| *number).collect(), half: half.finish(outputs) }
        };
        self.of.into_iter().map(of_input).collect()
    }
}
