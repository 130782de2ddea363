//! Finds the step of an LSTM or a GRU, or the node of a tree, in a cell.
//!
//! It is found by its computation, not by names: sums of products in which h takes part, their
//! gates, and the new states. The gates may come from one sum or several, in any order, cut out by
//! `Split` or `Slice`. Nothing else may use the values between the sums and the new states, nor the
//! old states.
//!
//! The kernels for such a step are a part of a plan, not another worker. The products and groups
//! before and after it are those of any cell, and rows are gathered and finished in the same way. A
//! cell that is not quite one of these, or a device without the kernels, takes the common path.

mod gru;
mod lstm;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::sums::{Sum, Summed};
use cellwright_cell_graph::typed::{BinaryKind, Compute, Operation, Origin, Precision, UnaryKind, ValueId};

use super::Kind;

/// Where a gate's sums are: a stretch of a value, from a column on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) of: ValueId,
    pub(super) column: usize,
    /// What is added to them, which does not wait for h; of an n of a GRU: when that is known how much of h is forgotten.
    pub(super) beside: Option<ValueId>,
}

/// The second child of a tree's node, by inputs of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) h: ValueId,
    pub(super) c: ValueId,
    /// Both h, one behind the other, if that is what is multiplied; else each is by itself.
    pub(super) both: Option<ValueId>,
}

/// A cell's step, found.
#[derive(Clone, Debug)]
pub(super) struct Gated {
    pub(super) kind: Kind,
    /// Of a GRU: z says how much is taken of n, not how much is kept of h.
    pub(super) z_takes: bool,
    /// Inputs of the cell. A GRU's c is its h; a tree's are the first child's.
    pub(super) h: ValueId,
    pub(super) c: ValueId,
    pub(super) second: Option<Child>,
    pub(super) h_next: ValueId,
    pub(super) c_next: ValueId,
    /// Values of h and c.
    pub(super) units: usize,
    /// In the kernels' order.
    pub(super) gates: Vec<Gate>,
    /// The sums that the gates are of, by their results. In each, one product is that of h; or each child's h has one.
    pub(super) sums: BTreeMap<ValueId, Sum>,
    /// Positions of the operations that are part of it, its sums not among them.
    pub(super) operations: BTreeSet<usize>,
}

impl Gated {
    /// The first one of a cell in bf16 or in f16, if there is one.
    pub(super) fn of(cell: &TypedCell, sums: &[Summed]) -> Option<Self> {
        if !matches!(cell.precision, Precision::Bf16 | Precision::F16) {
            return None;
        }
        let search = Search { cell, sums };
        (0..cell.operations.len())
            .find_map(|last| search.lstm_ending_in(last).or_else(|| search.gru_ending_in(last)).or_else(|| search.tree_ending_in(last)))
    }

    /// What its sums are products of: h, or that of both children, in the order in which the kernels have them.
    pub(super) fn multiplied(&self) -> Vec<ValueId> {
        match self.second {
            None => vec![self.h],
            Some(Child { both: Some(both), .. }) => vec![both],
            Some(second) => vec![self.h, second.h],
        }
    }

    /// Whether there is anything in one of its sums that is known before.
    pub(super) fn is_begun(&self, sum: &Sum) -> bool {
        is_begun(sum, self.multiplied().len())
    }
}

/// Operations that are found to be part of a step.
type Parts = BTreeSet<usize>;

struct Search<'a> {
    cell: &'a TypedCell,
    sums: &'a [Summed],
}

impl Search<'_> {
    /// The operation that a value is the result of.
    fn producer(&self, id: ValueId) -> Option<(usize, &Operation)> {
        match self.cell.value(id).origin {
            Origin::Operation(index) => Some((index as usize, &self.cell.operations[index as usize])),
            _ => None,
        }
    }

    fn is_input(&self, id: ValueId) -> bool {
        matches!(self.cell.value(id).origin, Origin::Input(_))
    }

    /// What a value is that function of.
    fn unary(&self, id: ValueId, kind: UnaryKind, parts: &mut Parts) -> Option<ValueId> {
        let (index, operation) = self.producer(id).filter(|(_, operation)| operation.compute == Compute::Unary(kind))?;
        parts.insert(index);
        Some(operation.operands[0])
    }

    /// What a value is put together of, in either order.
    fn binary(&self, id: ValueId, kind: BinaryKind, parts: &mut Parts) -> Option<[[ValueId; 2]; 2]> {
        let (index, operation) = self.producer(id).filter(|(_, operation)| operation.compute == Compute::Binary(kind))?;
        let [one, other] = operation.operands[..] else { return None };
        parts.insert(index);
        Some([[one, other], [other, one]])
    }

    /// Where a gate's sums lie.
    fn gate(&self, id: ValueId, parts: &mut Parts) -> Option<Gate> {
        let (index, operation) = self.producer(id)?;
        let column = match &operation.compute {
            Compute::Split { axis: 0, sizes } => {
                let position = operation.results.iter().position(|result| *result == id)?;
                sizes[..position].iter().map(|size| *size as usize).sum()
            }
            Compute::Slice { axes } => match axes[..] {
                [(0, start, 1)] => start as usize,
                _ => return None,
            },
            _ => return Some(Gate { of: id, column: 0, beside: None }),
        };
        parts.insert(index);
        Some(Gate { of: operation.operands[0], column, beside: None })
    }

    fn sum_of(&self, id: ValueId) -> Option<&Sum> {
        let (index, _) = self.producer(id).filter(|_| self.cell.value(id).shape.len() == 1)?;
        match &self.sums[index] {
            Summed::Whole(sum) => Some(sum),
            Summed::Apart | Summed::Inside => None,
        }
    }

    /// What gates are of, by its results.
    fn sums_of(&self, gates: &[Gate]) -> Option<BTreeMap<ValueId, Sum>> {
        gates.iter().map(|gate| Some((gate.of, self.sum_of(gate.of)?.clone()))).collect()
    }

    /// Whether an input is as wide as the state, and multiplied.
    fn is_state(&self, id: ValueId, units: usize, sums: &BTreeMap<ValueId, Sum>, parts: &Parts) -> bool {
        self.is_input(id) && self.cell.value(id).shape == [units] && self.is_multiplied(id, sums, parts)
    }

    /// Whether each of these sums has one product of a value, which is used for nothing else but in those operations.
    fn is_multiplied(&self, id: ValueId, sums: &BTreeMap<ValueId, Sum>, parts: &Parts) -> bool {
        let is_once = |sum: &Sum| sum.linears.iter().filter(|linear| linear.operands[0] == id).count() == 1;
        let products: BTreeSet<ValueId> =
            sums.values().flat_map(|sum| &sum.linears).filter(|linear| linear.operands[0] == id).map(|linear| linear.results[0]).collect();
        let is_product = |user: &Operation| products.contains(&user.results[0]) && user.operands[1..].iter().all(|other| *other != id);
        sums.values().all(is_once) && self.users(id).all(|user| is_product(user) || self.is_inside(user, parts)) && !self.is_output(id)
    }

    fn users(&self, id: ValueId) -> impl Iterator<Item = &Operation> {
        self.cell.operations.iter().filter(move |operation| operation.operands.contains(&id))
    }

    fn is_output(&self, id: ValueId) -> bool {
        self.cell.outputs.iter().any(|output| output.value == id)
    }

    fn is_inside(&self, user: &Operation, parts: &Parts) -> bool {
        self.producer(user.results[0]).is_some_and(|(index, _)| parts.contains(&index))
    }

    /// Whether an input is used in those operations, and nowhere else.
    fn is_own(&self, id: ValueId, parts: &Parts) -> bool {
        self.is_input(id) && self.users(id).all(|user| self.is_inside(user, parts)) && !self.is_output(id)
    }

    /// Whether nobody else needs what lies between its sums and its states.
    fn is_closed(&self, found: &Gated) -> bool {
        let multiplied = found.multiplied();
        let hidden = found.operations.iter().flat_map(|index| &self.cell.operations[*index].results);
        let mut hidden =
            hidden.filter(|id| ![found.h_next, found.c_next].contains(*id) && !multiplied.contains(*id)).chain(found.sums.keys());
        hidden.all(|id| self.users(*id).all(|user| self.is_inside(user, &found.operations)) && !self.is_output(*id))
            && !found.sums.values().any(|sum| self.waits_for(sum, found.c_next))
    }

    /// Whether a sum is of a value, or of what comes of it.
    fn waits_for(&self, sum: &Sum, awaited: ValueId) -> bool {
        let mut left: Vec<ValueId> = sum.begin.into_iter().chain(sum.linears.iter().map(|linear| linear.operands[0])).collect();
        let mut seen = BTreeSet::new();
        while let Some(id) = left.pop() {
            if id == awaited {
                return true;
            }
            if seen.insert(id) {
                left.extend(self.producer(id).into_iter().flat_map(|(_, operation)| &operation.operands));
            }
        }
        false
    }
}

/// Whether there is anything in a sum but so many products of h and constants.
fn is_begun(sum: &Sum, products: usize) -> bool {
    sum.begin.is_some() || sum.linears.len() > products
}
