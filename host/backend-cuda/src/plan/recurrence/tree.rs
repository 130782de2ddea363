//! A node of a binary tree (Tai, Socher and Manning, 2015, section 3.2): gates of [h_left, h_right], c' = σ(i) · tanh(u) + σ(f_left) · c_left +
//! σ(f_right) · c_right, h' = σ(o) · tanh(c').

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
        let candidates = sums.values().next()?.linears.iter().map(|linear| linear.operands[0]);
        let (both, [h_left, h_right]) = candidates.into_iter().find_map(|id| Some((id, self.side_by_side(id, units, &mut parts)?)))?;
        let begun = sums.values().filter(|sum| is_begun(sum)).count();
        let are_own = [h_left, h_right, c_left, c_right].into_iter().all(|id| self.is_own(id, &parts));
        if h_left == h_right
            || [c_left, c_right].contains(&h_left)
            || [c_left, c_right].contains(&h_right)
            || ![0, sums.len()].contains(&begun)
        {
            return None;
        }
        let is_multiplied = self.is_multiplied(both, &sums, &parts);
        let second = Some(Child { h: h_right, c: c_right, both });
        let found = Gated { kind: Kind::Tree, h: h_left, c: c_left, second, h_next, c_next, units, gates, sums, operations: parts };
        (are_own && is_multiplied && self.is_closed(&found)).then_some(found)
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
