//! The step of an LSTM, lowered: its sums without h are products like any others, and what remains is the recurrence, laid out for its kernels.

use cellwright_cell_graph::sums::{self, Sum};
use cellwright_cell_graph::typed::{Compute, Origin, ValueId};

use super::super::pack::{LstmWeight, lstm_bytes};
use super::super::recurrence::{Gate, Lstm};
use super::super::view::{Base, Element, View};
use super::super::{Blob, BlobId, Recurrence};
use super::{Lowering, Seen, Why, narrow};
use crate::abi::op;

/// Units are computed by so many.
const UNITS: usize = 8;

/// What becomes of h and c.
pub(super) struct States {
    h: View,
    c: View,
}

/// Where sums begin, and where the gates lie from there on, in elements.
struct Beginning {
    begin: Option<usize>,
    bias: Option<BlobId>,
    columns: [u32; 4],
}

impl Lowering<'_> {
    /// Room for the states, before anything reads them.
    pub(super) fn states(&mut self, lstm: &Lstm) -> Result<States, Why> {
        let units = lstm.units.next_multiple_of(UNITS);
        let [h, c] = [lstm.h_next, lstm.c_next].map(|id| {
            let room = self.room(Element::F32, &[units]);
            let view = View { shape: vec![lstm.units], ..room };
            self.known.insert(id, view.clone());
            view
        });
        // As many of c are read, wherever that came from.
        let given = self.batched(lstm.c)?;
        if units > lstm.units {
            let wider = self.lowered.frame.place(units * Element::F32.size());
            for port in self.lowered.inputs.iter_mut().filter(|port| port.place as usize == given.at) {
                port.place = narrow(wider)?;
            }
            self.known.insert(lstm.c, View { at: wider, ..given });
        }
        Ok(States { h, c })
    }

    /// A sum of which the product of h is left out: what is known before.
    pub(super) fn sum_without_h(&mut self, sum: &Sum, result_id: ValueId, h: Option<ValueId>) -> Result<(), Why> {
        let linears: Vec<_> = sum.linears.iter().filter(|linear| Some(linear.operands[0]) != h).cloned().collect();
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
    pub(super) fn lstm(&mut self, lstm: &Lstm, states: States) -> Result<(), Why> {
        let units = lstm.units.next_multiple_of(UNITS);
        let Beginning { begin, bias, columns } = self.beginning(lstm, units)?;
        let weights = self.lstm_weights(lstm)?;
        let rounded = [(); 2].map(|()| self.lowered.frame.place(units * size_of::<u16>()));
        let (h, c) = (self.batched(lstm.h)?.at, self.batched(lstm.c)?.at);
        let outputs_of = |id: ValueId| {
            let outputs = (0..).zip(&self.cell.outputs).filter(|(_, output)| output.value == id);
            outputs.map(|(number, _)| number).collect()
        };
        let recurrence = Recurrence {
            at: 0,
            is_steady: false,
            own: narrow(lstm.units)?,
            units: narrow(units)?,
            weights,
            bias,
            begin,
            columns,
            h,
            c,
            h_next: states.h.at,
            c_next: states.c.at,
            rounded,
            token: None,
            inputs: [lstm.h.0 as usize, lstm.c.0 as usize],
            outputs: [outputs_of(lstm.h_next), outputs_of(lstm.c_next)],
        };
        let value = |view: &View| match view.base {
            Base::Row(value) => value,
            Base::Blob(_) => unreachable!("inputs and states are values of the row"),
        };
        let inputs =
            (0..self.cell.inputs.len() as u32).map(|input| Ok(value(&self.batched(ValueId(input))?))).collect::<Result<_, Why>>()?;
        let seen = Seen { inputs, outputs: self.lowered.given.clone(), states: [value(&states.h), value(&states.c)] };
        self.lowered.recurrence = Some((recurrence, seen));
        Ok(())
    }

    fn beginning(&mut self, lstm: &Lstm, units: usize) -> Result<Beginning, Why> {
        let apart = |gate: usize| (gate * units) as u32;
        let in_order = [apart(0), apart(1), apart(2), apart(3)];
        let mut views = Vec::new();
        for Gate { of, column } in lstm.gates {
            views.extend(self.known.get(&of).map(|view| view.sliced(0, column, 1, lstm.units)));
        }
        if views.is_empty() {
            let mut bias = vec![0.0_f32; 4 * units];
            for (gate, Gate { of, column }) in lstm.gates.iter().enumerate() {
                let Some(sum) = lstm.sums.get(of).filter(|sum| !sum.constants.is_empty()) else { continue };
                let of_sum = sums::bias(self.cell, sum, *of).ok_or("a bias that is not of floats")?;
                bias[gate * units..][..lstm.units].copy_from_slice(&of_sum[*column..][..lstm.units]);
            }
            let bytes = bias.iter().flat_map(|value| value.to_le_bytes()).collect();
            return Ok(Beginning { begin: None, bias: Some(BlobId(self.blob(Blob::Bytes(bytes)))), columns: in_order });
        }
        // Where the gates lie as the kernels read them, they are read where they are.
        let size = Element::F32.size();
        let first = views.iter().map(|view| view.at).min().unwrap_or_default();
        let columns: Vec<usize> = views.iter().map(|view| (view.at - first) / size).collect();
        let is_read = lstm.units == units && first.is_multiple_of(super::super::ALIGNMENT) && columns.iter().all(|column| column % 2 == 0);
        if let ([i, f, g, o], true) = (&columns[..], is_read) {
            return Ok(Beginning { begin: Some(first), bias: None, columns: [narrow(*i)?, narrow(*f)?, narrow(*g)?, narrow(*o)?] });
        }
        let room = self.room(Element::F32, &[4, units]);
        for (gate, view) in views.iter().enumerate() {
            let part = View { at: room.at + gate * units * size, ..View::whole(room.base, 0, Element::F32, &[lstm.units]) };
            self.elements(op::COPY, std::slice::from_ref(view), &part)?;
        }
        if units > lstm.units {
            // Units that are none must stay zeros.
            let zero = self.blob(Blob::Bytes(vec![0; size]));
            let rest = View { at: room.at + lstm.units * size, shape: vec![4, units - lstm.units], ..room.clone() };
            let zeros = View::whole(Base::Blob(zero), 0, Element::F32, &[]).spread(&rest.shape).ok_or("a row of zeros")?;
            self.elements(op::COPY, &[zeros], &rest)?;
        }
        Ok(Beginning { begin: Some(room.at), bias: None, columns: in_order })
    }

    /// The weights of h, packed for the steps.
    fn lstm_weights(&mut self, lstm: &Lstm) -> Result<BlobId, Why> {
        let bytes = lstm_bytes(lstm.units).ok_or("a weight of more bytes than there are")?;
        self.lowered.packed_bytes = self.lowered.packed_bytes.saturating_add(bytes as u64);
        if self.lowered.packed_bytes > self.weight_bytes_most {
            // What does not fit is only reckoned.
            return Ok(BlobId(self.blob(Blob::Bytes(Vec::new()))));
        }
        let mut packed = LstmWeight::new(lstm.units);
        for (number, gate) in lstm.gates.iter().enumerate() {
            let of_h = lstm.sums.get(&gate.of).and_then(|sum| lstm.product_of_h(sum)).ok_or("a gate without a state")?;
            let Compute::Linear { transposed, alpha, .. } = of_h.compute else { return Err("a sum of what is no product".to_owned()) };
            let Origin::Constant(tensor) = &self.cell.value(of_h.operands[1]).origin else { return Err("a weight that varies".to_owned()) };
            let values = tensor.to_f32().ok_or_else(|| format!("a product with a weight of datatype {}", tensor.datatype))?;
            packed.put(number, (tensor, &values), (transposed, alpha), gate.column).ok_or("a weight that lacks values")?;
        }
        Ok(BlobId(self.blob(Blob::Bytes(packed.into_bytes()))))
    }
}
