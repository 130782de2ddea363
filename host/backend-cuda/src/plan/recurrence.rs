//! Finds the step of an LSTM in a cell: sums of products in which h takes part, four gates of them, and what becomes of c and h.
//!
//! It is found by what is computed, not by names: the gates may come from one sum or several, in any order, cut out by `Split` or `Slice`. What lies
//! between the sums and the new states must be of use to nobody else, as must the old states; anything else makes it a cell like any other.

use std::collections::{BTreeMap, BTreeSet};

use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::sums::{Sum, Summed};
use cellwright_cell_graph::typed::{BinaryKind, Compute, Operation, Origin, Precision, UnaryKind, ValueId};

/// Where a gate's sums are: a stretch of a value, from a column on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) of: ValueId,
    pub(super) column: usize,
}

/// An LSTM's step, found.
#[derive(Clone, Debug)]
pub(super) struct Lstm {
    /// Inputs of the cell.
    pub(super) h: ValueId,
    pub(super) c: ValueId,
    pub(super) h_next: ValueId,
    pub(super) c_next: ValueId,
    /// Values of h and c.
    pub(super) units: usize,
    /// i, f, g and o.
    pub(super) gates: [Gate; 4],
    /// The sums that the gates are of, by their results. In each, one product is that of h.
    pub(super) sums: BTreeMap<ValueId, Sum>,
    /// Positions of the operations that are part of it, its sums not among them.
    pub(super) operations: BTreeSet<usize>,
}

impl Lstm {
    /// The first one of a cell in bf16, if there is one.
    pub(super) fn of(cell: &TypedCell, sums: &[Summed]) -> Option<Self> {
        if cell.precision != Precision::Bf16 {
            return None;
        }
        let search = Search { cell, sums };
        (0..cell.operations.len()).find_map(|last| search.ending_in(last))
    }

    /// The product of h in one of its sums.
    pub(super) fn product_of_h<'a>(&self, sum: &'a Sum) -> Option<&'a Operation> {
        sum.linears.iter().find(|linear| linear.operands[0] == self.h)
    }
}

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
    fn unary(&self, id: ValueId, kind: UnaryKind, parts: &mut BTreeSet<usize>) -> Option<ValueId> {
        let (index, operation) = self.producer(id).filter(|(_, operation)| operation.compute == Compute::Unary(kind))?;
        parts.insert(index);
        Some(operation.operands[0])
    }

    /// What a value is put together of, in either order.
    fn binary(&self, id: ValueId, kind: BinaryKind, parts: &mut BTreeSet<usize>) -> Option<[[ValueId; 2]; 2]> {
        let (index, operation) = self.producer(id).filter(|(_, operation)| operation.compute == Compute::Binary(kind))?;
        let [one, other] = operation.operands[..] else { return None };
        parts.insert(index);
        Some([[one, other], [other, one]])
    }

    /// σ(a) · tanh(b), in either order: a and b.
    fn gated(&self, id: ValueId, parts: &mut BTreeSet<usize>) -> Option<(ValueId, ValueId)> {
        let either = self.binary(id, BinaryKind::Mul, parts)?;
        either
            .into_iter()
            .find_map(|[gate, of]| Some((self.unary(gate, UnaryKind::Sigmoid, parts)?, self.unary(of, UnaryKind::Tanh, parts)?)))
    }

    /// σ(f) · c, in either order: f and c.
    fn kept(&self, id: ValueId, parts: &mut BTreeSet<usize>) -> Option<(ValueId, ValueId)> {
        let either = self.binary(id, BinaryKind::Mul, parts)?;
        let is_state = |c: &ValueId| self.is_input(*c);
        either.into_iter().filter(|[_, c]| is_state(c)).find_map(|[gate, c]| Some((self.unary(gate, UnaryKind::Sigmoid, parts)?, c)))
    }

    /// The one whose h that operation gives.
    fn ending_in(&self, last: usize) -> Option<Lstm> {
        let h_next = *self.cell.operations[last].results.first()?;
        let mut parts = BTreeSet::new();
        let (o, c_next) = self.gated(h_next, &mut parts)?;
        let either = self.binary(c_next, BinaryKind::Add, &mut parts)?;
        let ((f, c), (i, g), of_c) = either.into_iter().find_map(|[kept, new]| {
            let mut parts = BTreeSet::new();
            Some((self.kept(kept, &mut parts)?, self.gated(new, &mut parts)?, parts))
        })?;
        parts.extend(of_c);
        let [units] = self.cell.value(h_next).shape[..] else { return None };
        let is_wide = |id: ValueId| self.cell.value(id).shape == [units];
        if ![c, c_next, i, f, g, o].into_iter().all(is_wide) {
            return None;
        }
        let gates = [i, f, g, o].map(|gate| self.gate(gate, &mut parts));
        let [Some(i), Some(f), Some(g), Some(o)] = gates else { return None };
        let gates = [i, f, g, o];
        let sums = gates.iter().map(|gate| Some((gate.of, self.sum_of(gate.of)?.clone()))).collect::<Option<BTreeMap<_, _>>>()?;
        let h = self.state(&sums, units)?;
        let found = Lstm { h, c, h_next, c_next, units, gates, sums, operations: parts };
        self.is_closed(&found).then_some(found)
    }

    /// Where a gate's sums lie.
    fn gate(&self, id: ValueId, parts: &mut BTreeSet<usize>) -> Option<Gate> {
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
            _ => return Some(Gate { of: id, column: 0 }),
        };
        parts.insert(index);
        Some(Gate { of: operation.operands[0], column })
    }

    fn sum_of(&self, id: ValueId) -> Option<&Sum> {
        let (index, _) = self.producer(id).filter(|_| self.cell.value(id).shape.len() == 1)?;
        match &self.sums[index] {
            Summed::Whole(sum) => Some(sum),
            Summed::Apart | Summed::Inside => None,
        }
    }

    /// The input that is h: one as wide as the state, of which each sum has one product, and which is used for nothing else. Of several the one that
    /// is known last, for that is what a sum's last products are of. With another one h would be right as well, but its steps could not be joined.
    fn state(&self, sums: &BTreeMap<ValueId, Sum>, units: usize) -> Option<ValueId> {
        let candidates = sums.values().next()?.linears.iter().rev().map(|linear| linear.operands[0]);
        candidates.into_iter().find(|id| {
            let is_once = |sum: &Sum| sum.linears.iter().filter(|linear| linear.operands[0] == *id).count() == 1;
            let products: BTreeSet<ValueId> = sums
                .values()
                .flat_map(|sum| &sum.linears)
                .filter(|linear| linear.operands[0] == *id)
                .map(|linear| linear.results[0])
                .collect();
            self.is_input(*id)
                && self.cell.value(*id).shape == [units]
                && sums.values().all(is_once)
                && self.users(*id).all(|user| products.contains(&user.results[0]) && user.operands[1..].iter().all(|other| other != id))
                && !self.is_output(*id)
        })
    }

    fn users(&self, id: ValueId) -> impl Iterator<Item = &Operation> {
        self.cell.operations.iter().filter(move |operation| operation.operands.contains(&id))
    }

    fn is_output(&self, id: ValueId) -> bool {
        self.cell.outputs.iter().any(|output| output.value == id)
    }

    /// Whether nobody else needs what lies between its sums and its states, and all its sums begin somewhere, or none does.
    fn is_closed(&self, found: &Lstm) -> bool {
        let is_inside = |user: &Operation| {
            let Some((index, _)) = self.producer(user.results[0]) else { return false };
            found.operations.contains(&index)
        };
        let hidden = found.operations.iter().flat_map(|index| &self.cell.operations[*index].results);
        let hidden = hidden.filter(|id| ![found.h_next, found.c_next].contains(*id)).chain(found.sums.keys()).chain([&found.c]);
        let begins = found.sums.values().filter(|sum| sum.begin.is_some() || sum.linears.len() > 1).count();
        hidden.into_iter().all(|id| self.users(*id).all(is_inside) && !self.is_output(*id)) && [0, found.sums.len()].contains(&begins)
    }
}
