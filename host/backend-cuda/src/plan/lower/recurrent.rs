//! The step of an LSTM or a GRU, lowered: its sums without h are products like any others, and what remains is the recurrence, laid out for its kernels.

use cellwright_cell_graph::sums::{self, Sum};
use cellwright_cell_graph::typed::{Compute, Origin, ValueId};

use super::super::pack::{GateWeight, Weight, gate_bytes};
use super::super::recurrence::{Gate, Gated};
use super::super::view::{Base, Element, View};
use super::super::{Blob, BlobId, GATES_MOST, Kind, Recurrence, Second};
use super::{Lowering, Seen, Why, narrow};
use crate::abi::op;

/// Units are computed by so many.
const UNITS: usize = 8;

/// What becomes of h and c, and where h lies rounded before the step.
pub(super) struct States {
    h: View,
    c: View,
    h_from: usize,
}

/// Where sums begin, and where the gates lie from there on, in elements.
struct Beginning {
    begin: Option<usize>,
    bias: Option<BlobId>,
    columns: [u32; GATES_MOST],
    /// Values of the row that they lie in.
    values: Vec<usize>,
}

impl Lowering<'_> {
    /// Room for the states, before anything reads them.
    pub(super) fn states(&mut self, gated: &Gated) -> Result<States, Why> {
        let units = gated.units.next_multiple_of(UNITS);
        let mut room = |id| {
            let room = self.room(Element::F32, &[units]);
            let view = View { shape: vec![gated.units], ..room };
            self.known.insert(id, view.clone());
            view
        };
        let h = room(gated.h_next);
        let c = if gated.c_next == gated.h_next { h.clone() } else { room(gated.c_next) };
        // As many of c are read, wherever that came from.
        for c in [gated.c].into_iter().chain(gated.second.map(|second| second.c)).filter(|_| units > gated.units) {
            let given = self.batched(c)?;
            let wider = self.lowered.frame.place(units * Element::F32.size());
            for port in self.lowered.inputs.iter_mut().filter(|port| port.place as usize == given.at) {
                port.place = narrow(wider)?;
            }
            self.known.insert(c, View { at: wider, ..given });
        }
        let h_from = self.lowered.frame.place(units * size_of::<u16>());
        // What is multiplied by weights next need not be rounded again. A tree's node leaves h as it is alone.
        if self.arithmetic.is_wide() && gated.kind != Kind::Tree {
            let element = if self.arithmetic.is_f16() { Element::F16 } else { Element::Bf16 };
            self.rounded_states.insert(gated.h_next, (View { element, ..h.clone() }, None));
        }
        Ok(States { h, c, h_from })
    }

    /// A sum of which the products of h are left out: what is known before.
    pub(super) fn sum_without_h(&mut self, sum: &Sum, result_id: ValueId, gated: &Gated) -> Result<(), Why> {
        let h = gated.multiplied();
        let linears: Vec<_> = sum.linears.iter().filter(|linear| !h.contains(&linear.operands[0])).cloned().collect();
        if !linears.is_empty() {
            return self.sum(&Sum { linears, ..sum.clone() }, result_id);
        }
        if let Some(begin) = sum.begin {
            let begin = self.aligned(begin)?;
            self.known.insert(result_id, begin);
        }
        Ok(())
    }

    /// The recurrence, when everything else is lowered.
    pub(super) fn gated(&mut self, gated: &Gated, states: States) -> Result<(), Why> {
        let units = gated.units.next_multiple_of(UNITS);
        let Beginning { begin, bias, columns, values: begins } = self.beginning(gated, units)?;
        let weights = self.gate_weights(gated)?;
        let second = gated.second.map(|second| {
            let rounded = self.lowered.frame.place(units * size_of::<u16>());
            Ok::<_, Why>(Second { h: self.batched(second.h)?.at, c: self.batched(second.c)?.at, rounded })
        });
        let second = second.transpose()?;
        let (h, c) = (self.batched(gated.h)?.at, self.batched(gated.c)?.at);
        let outputs_of = |id: ValueId| {
            let outputs = (0..).zip(&self.cell.outputs).filter(|(_, output)| output.value == id);
            outputs.map(|(number, _)| number).collect()
        };
        let recurrence = Recurrence {
            kind: gated.kind,
            z_takes: gated.z_takes,
            is_f16: self.arithmetic.is_f16(),
            at: 0,
            is_steady: false,
            own: narrow(gated.units)?,
            units: narrow(units)?,
            weights,
            bias,
            begin,
            columns,
            h,
            c,
            h_next: states.h.at,
            c_next: states.c.at,
            h_from: states.h_from,
            h_out: self.rounded_states.get(&gated.h_next).and_then(|(_, at)| *at),
            second,
            token: None,
            ahead: None,
            inputs: [gated.h.0 as usize, gated.c.0 as usize],
            outputs: [outputs_of(gated.h_next), outputs_of(gated.c_next)],
        };
        let value = |view: &View| view.value().ok_or("an input or a state that is no value of the row");
        let inputs =
            (0..self.cell.inputs.len() as u32).map(|input| Ok(value(&self.batched(ValueId(input))?)?)).collect::<Result<_, Why>>()?;
        let seen = Seen { inputs, begins, outputs: self.lowered.given.clone(), states: [value(&states.h)?, value(&states.c)?] };
        self.lowered.recurrence = Some((recurrence, seen));
        Ok(())
    }

    fn beginning(&mut self, gated: &Gated, units: usize) -> Result<Beginning, Why> {
        let mut in_order = [0; GATES_MOST];
        (0..).zip(&mut in_order).take(gated.gates.len()).for_each(|(gate, column)| *column = gate * units as u32);
        let mut views = Vec::new();
        for Gate { of, column, beside } in &gated.gates {
            let view = beside
                .map_or_else(|| self.known.get(of).map(|view| view.sliced(0, *column, 1, gated.units)), |id| self.known.get(&id).cloned());
            views.extend(view);
        }
        if views.is_empty() {
            return Ok(Beginning { begin: None, bias: self.gate_bias(gated, &in_order, units)?, columns: in_order, values: Vec::new() });
        }
        if views.len() < gated.gates.len() {
            return Err("gates of which some begin nowhere".to_owned());
        }
        // Where the gates lie as the kernels read them, they are read where they are.
        let size = Element::F32.size();
        let first = views.iter().map(|view| view.at).min().unwrap_or_default();
        let mut columns = [0; GATES_MOST];
        for (column, view) in columns.iter_mut().zip(&views) {
            *column = narrow((view.at - first) / size)?;
        }
        let is_read = gated.units == units && first.is_multiple_of(super::super::ALIGNMENT) && columns.iter().all(|column| column % 2 == 0);
        // Each gate has a bias of its own, which lies as what it is added to does.
        let mut sorted = columns[..views.len()].to_vec();
        sorted.sort_unstable();
        let are_apart = sorted.windows(2).all(|pair| (pair[1] - pair[0]) as usize >= units);
        if is_read && are_apart && views.iter().all(View::is_whole) {
            let values = views.iter().filter_map(View::value).collect();
            return Ok(Beginning { begin: Some(first), bias: self.gate_bias(gated, &columns, units)?, columns, values });
        }
        let room = self.room(Element::F32, &[gated.gates.len(), units]);
        for (gate, view) in views.iter().enumerate() {
            let part = View { at: room.at + gate * units * size, ..View::whole(room.base, 0, Element::F32, &[gated.units]) };
            self.elements(op::COPY, std::slice::from_ref(view), &part)?;
        }
        if units > gated.units {
            // Units that are none must stay zeros.
            let zero = self.blob(Blob::Bytes(vec![0; size]));
            let rest = View { at: room.at + gated.units * size, shape: vec![gated.gates.len(), units - gated.units], ..room.clone() };
            let zeros = View::whole(Base::Blob(zero), 0, Element::F32, &[]).spread(&rest.shape).ok_or("a row of zeros")?;
            self.elements(op::COPY, &[zeros], &rest)?;
        }
        let values = room.value().into_iter().collect();
        Ok(Beginning { begin: Some(room.at), bias: self.gate_bias(gated, &in_order, units)?, columns: in_order, values })
    }

    /// What sums begin with that are of nothing but h, where their gates lie; none if that is nothing.
    fn gate_bias(&mut self, gated: &Gated, columns: &[u32; GATES_MOST], units: usize) -> Result<Option<BlobId>, Why> {
        let last = columns.iter().max().copied().unwrap_or_default() as usize;
        let mut bias = vec![0.0_f32; last + units];
        let mut is_there = false;
        for (Gate { of, column, .. }, place) in gated.gates.iter().zip(columns) {
            let sum = gated.sums.get(of).filter(|sum| !gated.is_begun(sum) && !sum.constants.is_empty());
            let Some(sum) = sum else { continue };
            let of_sum = sums::bias(self.cell, sum, *of).ok_or("a bias that is not of floats")?;
            bias[*place as usize..][..gated.units].copy_from_slice(&of_sum[*column..][..gated.units]);
            is_there = true;
        }
        let bytes = || bias.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(is_there.then(|| BlobId(self.blob(Blob::Bytes(bytes())))))
    }

    /// The weights of h, packed for the steps.
    fn gate_weights(&mut self, gated: &Gated) -> Result<BlobId, Why> {
        let children = 1 + usize::from(gated.second.is_some());
        let bytes = gate_bytes((gated.gates.len(), children), gated.units).ok_or("a weight of more bytes than there are")?;
        self.lowered.packed_bytes = self.lowered.packed_bytes.saturating_add(bytes as u64);
        if self.lowered.packed_bytes > self.weight_bytes_most {
            // What does not fit is only reckoned.
            return Ok(BlobId(self.blob(Blob::Bytes(Vec::new()))));
        }
        let mut packed = GateWeight::new(self.arithmetic, (gated.gates.len(), children), gated.units);
        for (number, gate) in gated.gates.iter().enumerate() {
            for (state, h) in gated.multiplied().into_iter().enumerate() {
                let of_h = gated.sums.get(&gate.of).and_then(|sum| sum.linears.iter().find(|linear| linear.operands[0] == h));
                let of_h = of_h.ok_or("a gate without a state")?;
                let Compute::Linear { transposed, alpha, .. } = of_h.compute else { return Err("a sum of what is no product".to_owned()) };
                let Origin::Constant(tensor) = &self.cell.value(of_h.operands[1]).origin else {
                    return Err("a weight that varies".to_owned());
                };
                let values = tensor.to_f32().ok_or_else(|| format!("a product with a weight of datatype {}", tensor.datatype))?;
                let weight = Weight::new(tensor, &values, transposed, alpha);
                let is_put = weight.and_then(|weight| packed.put((number, state), &weight, gate.column));
                is_put.ok_or("a weight that lacks values")?;
            }
        }
        Ok(BlobId(self.blob(Blob::Bytes(packed.into_bytes()))))
    }
}
