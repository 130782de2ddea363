//! A GRU's step, as cuDNN and PyTorch have it: r = σ(of x + of h), z likewise, n = tanh(of x + r · (of h)), h' = (1 − z) · n + z · h. Where z is the weight
//! of n, as its authors have it later (Chung et al., 2014), it is one as well.
//!
//! ONNX calls it `linear_before_reset`. Where r is multiplied with h before the product, as in its original form, one product waits for another, and
//! the cell is one like any other.

use cellwright_cell_graph::typed::{BinaryKind, Compute, Origin, UnaryKind, ValueId};

use super::{Gate, Gated, Parts, Search, is_begun};
use crate::plan::Kind;

/// z, n and h of h', and whether z is how much is taken of n.
struct Mixed {
    z: ValueId,
    n: ValueId,
    h: ValueId,
    z_takes: bool,
    parts: Parts,
}

impl Search<'_> {
    /// The one whose h that operation gives.
    pub(super) fn gru_ending_in(&self, last: usize) -> Option<Gated> {
        let h_next = *self.cell.operations[last].results.first()?;
        let Mixed { z, n, h, z_takes, mut parts } = self.weighted(h_next).or_else(|| self.stepped(h_next))?;
        let [units] = self.cell.value(h_next).shape[..] else { return None };
        let z = self.unary(z, UnaryKind::Sigmoid, &mut parts)?;
        let n = self.unary(n, UnaryKind::Tanh, &mut parts)?;
        let ((known, r, of_h), of_n) = self.binary(n, BinaryKind::Add, &mut parts)?.into_iter().find_map(|[known, reset]| {
            self.binary(reset, BinaryKind::Mul, &mut Parts::new())?.into_iter().find_map(|[r, of_h]| {
                let mut parts = Parts::from([self.producer(reset)?.0]);
                Some(((known, self.unary(r, UnaryKind::Sigmoid, &mut parts)?, of_h), parts))
            })
        })?;
        parts.extend(of_n);
        let is_row = |id: ValueId| self.cell.value(id).shape == [units];
        if ![r, z, of_h].into_iter().all(is_row) {
            return None;
        }
        let (r, z) = (self.summed(r, h, &mut parts)?, self.summed(z, h, &mut parts)?);
        let n = Gate { beside: Some(known), ..self.gate(of_h, &mut parts)? };
        if is_begun(self.sum_of(n.of)?, 1) {
            return None;
        }
        let gates = vec![r, z, n];
        let sums = self.sums_of(&gates)?;
        // What is known is neither a part of the step nor its state.
        let is_known = |id: ValueId| {
            let value = self.cell.value(id);
            let is_part = self.producer(id).is_some_and(|(index, _)| parts.contains(&index));
            value.batched && value.shape == [units] && !is_part && !sums.contains_key(&id) && id != h
        };
        let is_wide = |gate: &Gate| self.cell.value(gate.of).shape[0] >= gate.column + units;
        if !gates.iter().filter_map(|gate| gate.beside).all(is_known)
            || !gates.iter().all(is_wide)
            || !self.is_state(h, units, &sums, &parts)
        {
            return None;
        }
        let found =
            Gated { kind: Kind::Gru, z_takes, h, c: h, second: None, h_next, c_next: h_next, units, gates, sums, operations: parts };
        self.is_closed(&found).then_some(found)
    }

    /// (1 − z) · n + z · h, or z · n + (1 − z) · h.
    fn weighted(&self, id: ValueId) -> Option<Mixed> {
        self.binary(id, BinaryKind::Add, &mut Parts::new())?.into_iter().find_map(|[one_term, other_term]| {
            self.binary(one_term, BinaryKind::Mul, &mut Parts::new())?.into_iter().find_map(|[rest, of_rest]| {
                let (minus, [one, z]) = self.difference(rest)?;
                let [[a, b], _] = self.binary(other_term, BinaryKind::Mul, &mut Parts::new())?;
                let of_z = if a == z { b } else { a };
                let parts = Parts::from([self.producer(id)?.0, self.producer(one_term)?.0, self.producer(other_term)?.0, minus]);
                (self.is_one(one) && [a, b].contains(&z)).then(|| self.mixed(z, (of_z, of_rest), parts))
            })
        })
    }

    /// n + z · (h − n) or h + z · (n − h), or either with both signs turned: n − z · (n − h).
    fn stepped(&self, id: ValueId) -> Option<Mixed> {
        let added = self.binary(id, BinaryKind::Add, &mut Parts::new()).map(|either| (either.to_vec(), true));
        let (from, is_added) = added.or_else(|| self.difference(id).map(|(_, operands)| (vec![operands], false)))?;
        from.into_iter().find_map(|[from, step]| {
            self.binary(step, BinaryKind::Mul, &mut Parts::new())?.into_iter().find_map(|[z, rest]| {
                let (minus, [first, second]) = self.difference(rest)?;
                let (to, back) = if is_added { (first, second) } else { (second, first) };
                let parts = Parts::from([self.producer(id)?.0, self.producer(step)?.0, minus]);
                (back == from).then(|| self.mixed(z, (to, from), parts))
            })
        })
    }

    /// What has z for its weight, and what has the rest: h is the one that is an input.
    fn mixed(&self, z: ValueId, (of_z, of_rest): (ValueId, ValueId), parts: Parts) -> Mixed {
        let z_takes = self.is_input(of_rest);
        let (n, h) = if z_takes { (of_z, of_rest) } else { (of_rest, of_z) };
        Mixed { z, n, h, z_takes, parts }
    }

    /// The operation that subtracts, and what it subtracts from and what.
    fn difference(&self, id: ValueId) -> Option<(usize, [ValueId; 2])> {
        let (index, operation) = self.producer(id).filter(|(_, operation)| operation.compute == Compute::Binary(BinaryKind::Sub))?;
        Some((index, operation.operands[..].try_into().ok()?))
    }

    /// Whether it is the number one, or a row of it.
    fn is_one(&self, id: ValueId) -> bool {
        let Origin::Constant(tensor) = &self.cell.value(id).origin else { return false };
        tensor.to_f32().is_some_and(|values| values.iter().all(|value| value.to_bits() == 1.0_f32.to_bits()))
    }

    /// A gate that is a sum of h and of what is known; or one of h alone, to which what is known is added.
    fn summed(&self, id: ValueId, h: ValueId, parts: &mut Parts) -> Option<Gate> {
        let of_h = |gate: &Gate| self.sum_of(gate.of).filter(|sum| sum.linears.iter().any(|linear| linear.operands[0] == h));
        let mut own = Parts::new();
        if let Some(gate) = self.gate(id, &mut own).filter(|gate| of_h(gate).is_some_and(|sum| is_begun(sum, 1))) {
            parts.extend(own);
            return Some(gate);
        }
        let added = self.producer(id)?.0;
        self.binary(id, BinaryKind::Add, &mut Parts::new())?.into_iter().find_map(|[of, known]| {
            if self.cell.value(of).shape != self.cell.value(id).shape {
                return None;
            }
            let mut own = Parts::from([added]);
            let gate = self.gate(of, &mut own).filter(|gate| of_h(gate).is_some_and(|sum| !is_begun(sum, 1)))?;
            parts.extend(own);
            Some(Gate { beside: Some(known), ..gate })
        })
    }
}
