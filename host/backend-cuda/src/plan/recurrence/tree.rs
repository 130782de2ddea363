//! A node of a binary tree (Tai, Socher and Manning, 2015, section 3.2): gates of h_left and h_right, c' = σ(i) · tanh(u) + σ(f_left) · c_left +
//! σ(f_right) · c_right, h' = σ(o) · tanh(c').

use std::collections::BTreeMap;

use cellwright_cell_graph::sums::Sum;
use cellwright_cell_graph::typed::{BinaryKind, Compute, ValueId};

use super::{Child, Gated, Parts, Search, is_begun};
use crate::plan::Kind;

impl Search<'_> {
    /// The one whose h that operation gives.
    pub(super) fn tree_ending_in(&self, last: usize) -> Option<Gated> {
        let h_next = *self.cell.operations[last].results.first()?;
        let mut parts = Parts::new();
        let (o, c_next) = self.gated(h_next, &mut parts)?;
        let [units] = self.cell.value(h_next).shape[..] else { return None };
        let terms = self.three(c_next, &mut parts)?;
        let new = terms.iter().position(|term| self.gated(*term, &mut Parts::new()).is_some())?;
        let (i, u) = self.gated(terms[new], &mut parts)?;
        let [left, right] = [(new + 1) % 3, (new + 2) % 3];
        let (f_left, c_left) = self.kept(terms[left], &mut parts)?;
        let (f_right, c_right) = self.kept(terms[right], &mut parts)?;
        let is_wide = |id: ValueId| self.cell.value(id).shape == [units];
        if ![c_left, c_right, c_next, i, f_left, f_right, o, u].into_iter().all(is_wide) || c_left == c_right {
            return None;
        }
        let gates = [i, f_left, f_right, o, u].map(|gate| self.gate(gate, &mut parts)).into_iter().collect::<Option<Vec<_>>>()?;
        let sums = self.sums_of(&gates)?;
        let ([h_left, h_right], both) =
            self.joined(&sums, units, &mut parts).or_else(|| Some((self.apart(&sums, units, [c_left, c_right], &parts)?, None)))?;
        let are_own = [c_left, c_right].into_iter().all(|id| self.is_own(id, &parts));
        if h_left == h_right || [c_left, c_right].contains(&h_left) || [c_left, c_right].contains(&h_right) {
            return None;
        }
        let second = Some(Child { h: h_right, c: c_right, both });
        let found =
            Gated { kind: Kind::Tree, z_takes: false, h: h_left, c: c_left, second, h_next, c_next, units, gates, sums, operations: parts };
        // All its sums begin somewhere, or none does.
        let begun = found.sums.values().filter(|sum| is_begun(sum, found.multiplied().len())).count();
        (are_own && self.is_closed(&found) && [0, found.sums.len()].contains(&begun)).then_some(found)
    }

    /// Both h, of which the sums are as they lie one behind the other; and where they do.
    fn joined(&self, sums: &BTreeMap<ValueId, Sum>, units: usize, parts: &mut Parts) -> Option<([ValueId; 2], Option<ValueId>)> {
        let candidates = sums.values().next()?.linears.iter().map(|linear| linear.operands[0]);
        let (both, children, own) = candidates.into_iter().find_map(|id| {
            let mut own = Parts::new();
            Some((id, self.side_by_side(id, units, &mut own)?, own))
        })?;
        let with_own = &*parts | &own;
        let are_own = children.into_iter().all(|h| self.is_own(h, &with_own));
        (are_own && self.is_multiplied(both, sums, &with_own)).then(|| {
            parts.extend(own);
            (children, Some(both))
        })
    }

    /// Both h, each with products of its own in the sums: of several inputs that could be those the two that are known last. Whose they are does not matter,
    /// for each child's c has a gate of its own.
    fn apart(&self, sums: &BTreeMap<ValueId, Sum>, units: usize, cells: [ValueId; 2], parts: &Parts) -> Option<[ValueId; 2]> {
        let candidates = sums.values().next()?.linears.iter().rev().map(|linear| linear.operands[0]);
        let mut candidates = candidates.filter(|id| !cells.contains(id) && self.is_state(*id, units, sums, parts));
        let right = candidates.next()?;
        Some([candidates.next()?, right])
    }

    /// What three values a sum is of, whichever two are added first.
    fn three(&self, id: ValueId, parts: &mut Parts) -> Option<[ValueId; 3]> {
        self.binary(id, BinaryKind::Add, parts)?.into_iter().find_map(|[sum, one]| {
            let [[two, three], _] = self.binary(sum, BinaryKind::Add, parts)?;
            Some([one, two, three])
        })
    }

    /// What two values one is, one behind the other, if both are so wide.
    fn side_by_side(&self, id: ValueId, units: usize, parts: &mut Parts) -> Option<[ValueId; 2]> {
        let (index, operation) = self.producer(id).filter(|(_, operation)| matches!(operation.compute, Compute::Concat { axis: 0 }))?;
        let [left, right] = operation.operands[..] else { return None };
        if [left, right].into_iter().any(|one| self.cell.value(one).shape != [units]) {
            return None;
        }
        parts.insert(index);
        Some([left, right])
    }
}
