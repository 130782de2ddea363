//! Which rows are copied, packed or left where they lie, on their way into a plan and out of it.
//!
//! - A product of rounded numbers packs its rows. A row that is a whole input of the cell is packed
//!   as it is gathered, once for all products that pack it alike and for all threads. It is there
//!   as floats only if something else reads it too.
//! - Products of floats by vectors, and element-wise groups, read rows where they lie: in the
//!   arena, in a request's tensor or in the result of a first half.
//! - Outputs that groups alone make are written to the slots where they will be read.
//! - Everything else is copied. Groups read short rows as copies, too: below one kilobyte a copy is
//!   as fast, and several rows are then one call.

use std::collections::{BTreeMap, BTreeSet};

use super::fuse::values_of;
use super::lower::{LowOp, Lowered, Val};
use super::storage::Storage;
use super::{Packed, Pointed};
use crate::kernels::element::Element;
use crate::matrix::Packing;

/// Bytes of a row from which on pointing groups to it costs less than copying it.
const POINTED_LEAST: usize = 1024;

/// An input that products read.
pub(super) struct PackedInput {
    pub(super) at: Vec<Packed>,
    /// Whether they alone do.
    pub(super) alone: bool,
}

/// Inputs that products pack and read whole: they are packed as they are gathered, once for all products that do it alike and for every thread. All ways of packing, by number.
pub(super) fn packed(lowered: &Lowered) -> (BTreeMap<Val, PackedInput>, Vec<Packing>) {
    let (mut packed, mut all) = (BTreeMap::new(), Vec::new());
    let mut readers: BTreeMap<Val, BTreeSet<usize>> = lowered.inputs.iter().map(|input| (*input, BTreeSet::new())).collect();
    for (index, op) in lowered.ops.iter().enumerate() {
        for value in values_of(&op.operands()) {
            readers.entry(value).and_modify(|readers| _ = readers.insert(index));
        }
    }
    for value in &lowered.inputs {
        let readers = readers.get(value).into_iter().flatten();
        let packings: Vec<Option<Packing>> = readers
            .flat_map(|index| match &lowered.ops[*index] {
                LowOp::Linear { product, lefts, lead: 1, begin, .. } if *begin != Some(*value) => {
                    let terms = lefts.iter().enumerate().filter(|(_, (left, _))| left == value);
                    terms.map(|(term, _)| product.packing(term)).collect()
                }
                _ => vec![None],
            })
            .collect();
        let alone = packings.iter().all(Option::is_some) && !lowered.outputs.contains(value);
        let mut at: Vec<Packed> = Vec::new();
        for packing in packings.into_iter().flatten() {
            if at.iter().all(|other| other.packing != packing) {
                at.push(Packed { packing, number: all.len() });
                all.push(packing);
            }
        }
        if !at.is_empty() {
            packed.insert(*value, PackedInput { at, alone });
        }
    }
    (packed, all)
}

/// Inputs that sums of a product begin with, one row of the product for each of the batch, or that products and groups alone read which take rows wherever they
/// lie; and long rows of floats that groups alone make.
pub(super) fn pointed(lowered: &Lowered, storage: &Storage) -> BTreeMap<Val, Pointed> {
    let is_output = |value: &Val| lowered.outputs.contains(value);
    let begins = lowered.ops.iter().filter_map(|op| if let LowOp::Linear { begin, lead: 1, .. } = op { *begin } else { None });
    let begins = begins.filter(|begin| lowered.inputs.contains(begin) && !is_output(begin));
    let mut touched = vec![Touched::default(); lowered.values.len()];
    for op in &lowered.ops {
        match op {
            LowOp::Element { result, .. } => {
                values_of(&op.operands()).chain([*result]).for_each(|value| touched[value.0].by_groups = true);
            }
            LowOp::Linear { product, lefts, begin, lead: 1, result, .. } if product.takes_pointers() => {
                lefts.iter().for_each(|(left, _)| touched[left.0].by_products = true);
                begin.iter().chain([result]).for_each(|value| touched[value.0].otherwise = true);
            }
            _ => values_of(&op.operands()).chain(op.results()).for_each(|value| touched[value.0].otherwise = true),
        }
    }
    let may = |value: &Val, touched: Touched| {
        let low = lowered.values[value.0];
        let is_worth_it = if touched.by_groups { low.bytes() >= POINTED_LEAST } else { touched.by_products };
        is_worth_it && low.element == Element::F32 && !touched.otherwise && !storage.is_shared(*value)
    };
    let inputs = lowered.inputs.iter().filter(|input| !is_output(input) && may(input, touched[input.0]));
    let is_made = |output: &Val| !touched[output.0].by_products && !lowered.inputs.contains(output);
    let outputs = lowered.outputs.iter().filter(|output| is_made(output) && may(output, touched[output.0]));
    // A value that is several outputs is one row.
    let mut pointed = BTreeMap::new();
    for value in begins.chain(inputs.copied()).chain(outputs.copied()) {
        let number = pointed.len();
        pointed.entry(value).or_insert(Pointed(number));
    }
    pointed
}

/// What reads or makes a value.
#[derive(Clone, Copy, Default)]
struct Touched {
    by_groups: bool,
    /// That take rows wherever they lie.
    by_products: bool,
    otherwise: bool,
}
