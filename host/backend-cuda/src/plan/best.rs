//! Projections of which only the best few sums are read: the sums are never written down.
//!
//! The block that makes a tile of sums looks at it and leaves up to 16 candidates of each 64
//! columns. A launch behind the product puts the candidates of a row in order. A sum's place in
//! that order is one number, so it does not matter which thread compares which candidates.

use std::collections::BTreeMap;

use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::typed::{Compute, Operation, Origin, ValueId};

use crate::abi::{BEST_MOST, CANDIDATE_BYTES, PRODUCT_COLUMNS, flag};

/// What is kept of each panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// So many.
    pub(crate) k: u32,
    /// By which order: as of [`crate::abi::op::TOP`].
    pub(crate) flags: u32,
}

/// One launch that puts the candidates of each row in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Best {
    /// Where they lie.
    pub(crate) candidates: usize,
    pub(crate) panels: u32,
    pub(crate) kept: Kept,
    /// Where the best sums go, if anywhere.
    pub(crate) values: Option<usize>,
    /// Where their positions go.
    pub(crate) positions: usize,
}

/// Panels of so many columns.
pub(super) const fn panels(n: usize) -> usize {
    n.div_ceil(PRODUCT_COLUMNS as usize)
}

impl Kept {
    /// What an operation reads of its operand; none if it is all of it.
    fn by(compute: &Compute) -> Option<(u32, Self)> {
        Some(match compute {
            Compute::ArgMax { axis, select_last } => (*axis, Self { k: 1, flags: if *select_last { flag::LAST } else { 0 } }),
            Compute::TopK { axis, k, largest } => (*axis, Self { k: *k, flags: if *largest { 0 } else { flag::SMALLEST } }),
            _ => return None,
        })
    }

    /// Whether it is worth a launch more: a panel alone is looked at as quickly where it lies. Candidates of several take less room than their sums.
    fn is_worth_it(self, n: usize) -> bool {
        (1..=BEST_MOST).contains(&self.k) && n > PRODUCT_COLUMNS as usize
    }
}

const _: () = assert!(
    2 * BEST_MOST as usize * CANDIDATE_BYTES <= (PRODUCT_COLUMNS as usize + 1) * size_of::<f32>(),
    "two panels' candidates take no more room than the sums, where the second has but one"
);

/// Values of one row of numbers of which nothing is read but the best few, by one operation. Whether they are sums of products is not looked at.
pub(super) fn find(cell: &TypedCell) -> BTreeMap<ValueId, Kept> {
    let mut uses: BTreeMap<ValueId, u32> = BTreeMap::new();
    let operands = cell.operations.iter().flat_map(|operation| &operation.operands);
    operands.chain(cell.outputs.iter().map(|output| &output.value)).for_each(|id| *uses.entry(*id).or_default() += 1);
    let one_use = |id: ValueId| uses.get(&id) == Some(&1);
    cell.operations.iter().filter_map(|operation| read_by(cell, operation, one_use)).collect()
}

/// Where what the operation reads comes from, if it is read by that alone, on its way through reshapes too.
fn read_by(cell: &TypedCell, operation: &Operation, one_use: impl Fn(ValueId) -> bool) -> Option<(ValueId, Kept)> {
    let (axis, kept) = Kept::by(&operation.compute)?;
    let mut id = operation.operands[0];
    let (n, elements) = (*cell.value(id).shape.get(axis as usize)?, cell.value(id).elements());
    if n != elements || !kept.is_worth_it(n) {
        return None;
    }
    loop {
        let value = cell.value(id);
        if !one_use(id) || !value.batched || value.elements() != n {
            return None;
        }
        let Origin::Operation(producer) = value.origin else { return None };
        let producer = &cell.operations[producer as usize];
        if producer.compute != Compute::Reshape {
            return (value.shape.last() == Some(&n)).then_some((id, kept));
        }
        id = producer.operands[0];
    }
}

#[cfg(test)]
mod tests;
