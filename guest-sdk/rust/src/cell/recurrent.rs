//! LSTM, GRU and vanilla RNN from ONNX operators, with PyTorch's gate orders and weight layouts.

use crate::abi::cellwright::plugin::types::Datatype::Fp32;
use crate::cell::{CellBuilder, RecurrentWeights, Value};

/// A recurrent cell family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    /// `nn.LSTM`: states `h` and `c`.
    Lstm,
    /// `nn.GRU`: state `h`.
    Gru,
    /// `nn.RNN(nonlinearity="tanh")`: state `h`.
    RnnTanh,
    /// `nn.RNN(nonlinearity="relu")`: state `h`.
    RnnRelu,
}

impl Recurrence {
    /// The names of its states, which are also its outputs.
    #[must_use]
    pub const fn states(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["h", "c"],
            Self::Gru | Self::RnnTanh | Self::RnnRelu => &["h"],
        }
    }
}

impl CellBuilder {
    /// A step of any family: declares its states and their successors, and returns the new `h`, of shape `[hidden]`.
    pub fn recurrent(&mut self, family: Recurrence, x: Value, hidden: u32, weights: impl Into<RecurrentWeights>) -> Value {
        match family {
            Recurrence::Lstm => self.lstm(x, hidden, weights),
            Recurrence::Gru => self.gru(x, hidden, weights),
            Recurrence::RnnTanh => self.rnn(x, hidden, weights, Self::tanh),
            Recurrence::RnnRelu => self.rnn(x, hidden, weights, Self::relu),
        }
    }

    /// `nn.LSTM`: weights `[4H, D]` and `[4H, H]`, gates i, f, g, o; states `h` and `c`. Returns the new `h`.
    pub fn lstm(&mut self, x: Value, hidden: u32, weights: impl Into<RecurrentWeights>) -> Value {
        let (h, c) = (self.state("h", Fp32, &[hidden]), self.state("c", Fp32, &[hidden]));
        let (from_input, from_state) = self.gates(x, h, &weights.into());
        let gates = self.add(from_input, from_state);
        let [i, f, g, o] = self.split(gates, [hidden; 4]);
        let (i, f, g, o) = (self.sigmoid(i), self.sigmoid(f), self.tanh(g), self.sigmoid(o));
        let (kept, new) = (self.mul(f, c), self.mul(i, g));
        let c_next = self.add(kept, new);
        let squashed = self.tanh(c_next);
        let h_next = self.mul(o, squashed);
        self.next(h, h_next);
        self.next(c, c_next);
        h_next
    }

    /// `nn.GRU`: weights `[3H, D]` and `[3H, H]`, gates r, z, n with n = tanh(W_in x + b_in + r · (W_hn h + b_hn)); state `h`. Returns the new `h`.
    pub fn gru(&mut self, x: Value, hidden: u32, weights: impl Into<RecurrentWeights>) -> Value {
        let h = self.state("h", Fp32, &[hidden]);
        let (from_input, from_state) = self.gates(x, h, &weights.into());
        let [input_r, input_z, input_n] = self.split(from_input, [hidden; 3]);
        let [state_r, state_z, state_n] = self.split(from_state, [hidden; 3]);
        let (r, z) = (self.add(input_r, state_r), self.add(input_z, state_z));
        let (r, z) = (self.sigmoid(r), self.sigmoid(z));
        let reset = self.mul(r, state_n);
        let n = self.add(input_n, reset);
        let n = self.tanh(n);
        // (1 − z) · n + z · h, without a constant.
        let difference = self.sub(h, n);
        let kept = self.mul(z, difference);
        let h_next = self.add(kept, n);
        self.next(h, h_next);
        h_next
    }

    fn rnn(&mut self, x: Value, hidden: u32, weights: impl Into<RecurrentWeights>, squash: fn(&mut Self, Value) -> Value) -> Value {
        let h = self.state("h", Fp32, &[hidden]);
        let (from_input, from_state) = self.gates(x, h, &weights.into());
        let sum = self.add(from_input, from_state);
        let h_next = squash(self, sum);
        self.next(h, h_next);
        h_next
    }

    /// W_ih x + b_ih, and W_hh h + b_hh. The first depends on no state, so the host may compute it ahead.
    fn gates(&mut self, x: Value, h: Value, weights: &RecurrentWeights) -> (Value, Value) {
        let mut of = |value, from| {
            let weight = self.weight(&weights.weight(from));
            let bias = weights.bias(from).map(|bias| self.weight(&bias));
            self.gemm(value, weight, bias)
        };
        (of(x, "ih"), of(h, "hh"))
    }
}
