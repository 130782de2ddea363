//! An LSTM's step: c' = σ(f) · c + σ(i) · tanh(g), h' = σ(o) · tanh(c').

use cellwright_cell_graph::typed::{BinaryKind, UnaryKind, ValueId};

use super::{Gated, Parts, Search, is_begun};
use crate::plan::Kind;

impl Search<'_> {
    /// σ(a) · tanh(b), in either order: a and b.
    pub(super) fn gated(&self, id: ValueId, parts: &mut Parts) -> Option<(ValueId, ValueId)> {
        let either = self.binary(id, BinaryKind::Mul, parts)?;
        either
            .into_iter()
            .find_map(|[gate, of]| Some((self.unary(gate, UnaryKind::Sigmoid, parts)?, self.unary(of, UnaryKind::Tanh, parts)?)))
    }

    /// σ(f) · c, in either order: f and c.
    pub(super) fn kept(&self, id: ValueId, parts: &mut Parts) -> Option<(ValueId, ValueId)> {
        let either = self.binary(id, BinaryKind::Mul, parts)?;
        let is_state = |c: &ValueId| self.is_input(*c);
        either.into_iter().filter(|[_, c]| is_state(c)).find_map(|[gate, c]| Some((self.unary(gate, UnaryKind::Sigmoid, parts)?, c)))
    }

    /// The one whose h that operation gives.
    pub(super) fn lstm_ending_in(&self, last: usize) -> Option<Gated> {
        let h_next = *self.cell.operations[last].results.first()?;
        let mut parts = Parts::new();
        let (o, c_next) = self.gated(h_next, &mut parts)?;
        let either = self.binary(c_next, BinaryKind::Add, &mut parts)?;
        let ((f, c), (i, g), of_c) = either.into_iter().find_map(|[kept, new]| {
            let mut parts = Parts::new();
            Some((self.kept(kept, &mut parts)?, self.gated(new, &mut parts)?, parts))
        })?;
        parts.extend(of_c);
        let [units] = self.cell.value(h_next).shape[..] else { return None };
        let is_wide = |id: ValueId| self.cell.value(id).shape == [units];
        if ![c, c_next, i, f, g, o].into_iter().all(is_wide) {
            return None;
        }
        let gates = [i, f, g, o].map(|gate| self.gate(gate, &mut parts)).into_iter().collect::<Option<Vec<_>>>()?;
        let sums = self.sums_of(&gates)?;
        // Of several inputs that could be h the one that is known last, for that is what a sum's last products are of. With another one h would be right as
        // well, but its steps could not be joined.
        let mut candidates = sums.values().next()?.linears.iter().rev().map(|linear| linear.operands[0]);
        let h = candidates.find(|id| *id != c && self.is_state(*id, units, &sums, &parts))?;
        let found = Gated { kind: Kind::Lstm, z_takes: false, h, c, second: None, h_next, c_next, units, gates, sums, operations: parts };
        // All its sums begin somewhere, or none does.
        let begun = found.sums.values().filter(|sum| is_begun(sum, 1)).count();
        (self.is_closed(&found) && self.is_own(c, &found.operations) && [0, found.sums.len()].contains(&begun)).then_some(found)
    }
}
