//! An `nn.LSTM`, `nn.GRU` or `nn.RNN`.

use cellwright_guest::BundleWeights;
use cellwright_guest::prelude::*;

use crate::matrix::{Matrix, Prefix};

/// A recurrent layer, or several, as the parameters say it is.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent<'a> {
    /// Which weights.
    pub prefix: Prefix<'a>,
    /// The parameter `cell`.
    pub family: Recurrence,
    /// The parameter `hidden`.
    pub hidden: u32,
    /// The parameter that says the size of its inputs, and that size.
    pub input: (&'a str, u32),
    /// None: one forward layer with biases, and no parameters that say otherwise.
    pub stack: Option<Stack>,
}

/// The parameters of the same names.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "PyTorch's words")]
pub struct Stack {
    pub layers: u32,
    pub bidirectional: bool,
    pub bias: bool,
}

impl Recurrent<'_> {
    /// Compares it with the weights.
    ///
    /// # Errors
    /// The parameter that contradicts them, and both numbers.
    pub fn check(&self, weights: &BundleWeights) -> Result<(), Refusal> {
        self.check_kind(weights)?;
        self.check_extent(weights)?;
        let Stack { layers, bidirectional, bias } = self.stack();
        for layer in 0..layers {
            for direction in if bidirectional { &["", "_reverse"][..] } else { &[""] } {
                let suffix = format!("_l{layer}{direction}");
                self.check_sizes(weights, layer, &suffix)?;
                self.check_bias(weights, &suffix, bias)?;
            }
        }
        Ok(())
    }

    fn stack(&self) -> Stack {
        self.stack.unwrap_or(Stack { layers: 1, bidirectional: false, bias: true })
    }

    /// What PyTorch has and the stock plugins have not.
    fn check_kind(&self, weights: &BundleWeights) -> Result<(), Refusal> {
        let (cell, projection) = (self.prefix.name("weight_ih"), self.prefix.name("weight_hr_l0"));
        if weights.has(&cell) && !weights.has(&self.prefix.name("weight_ih_l0")) {
            return Err(self.prefix.refusal(format!(
                "whose weights have the names of an `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`: rename `{cell}` to `{cell}_l0`, and the others like it"
            )));
        }
        if weights.has(&projection) {
            return Err(self.prefix.refusal(format!(
                "an LSTM with projections (`proj_size`; it has `{projection}`), which this plugin does not compute: train it without, or write a plugin of your own"
            )));
        }
        Ok(())
    }

    /// As many layers and directions as there are.
    fn check_extent(&self, weights: &BundleWeights) -> Result<(), Refusal> {
        let Stack { layers, bidirectional, .. } = self.stack();
        let has = |suffix: &str| weights.has(&self.prefix.name(&format!("weight_ih{suffix}")));
        let (last, next) = (format!("_l{}", layers - 1), format!("_l{layers}"));
        let wrong = |parameter: &str, value: &dyn std::fmt::Display, there: bool, suffix: &str| {
            let name = self.prefix.name(&format!("weight_ih{suffix}"));
            match self.stack {
                None => self
                    .prefix
                    .refusal(format!("which has `{name}`: this plugin takes one forward layer; write a plugin of your own for more")),
                Some(_) if there => Parameters::refusal(parameter, format!("is {value}, but the bundle has `{name}`")),
                Some(_) => Parameters::refusal(parameter, format!("is {value}, but the bundle has no `{name}`")),
            }
        };
        if !has("_l0") {
            return Err(self.prefix.missing(&self.prefix.name("weight_ih_l0"), weights));
        }
        if bidirectional != has("_l0_reverse") {
            return Err(wrong("bidirectional", &bidirectional, !bidirectional, "_l0_reverse"));
        }
        if !has(&last) {
            let count = (1..layers).take_while(|layer| has(&format!("_l{layer}"))).count() + 1;
            return Err(wrong("layers", &layers, false, &format!("_l{count}")));
        }
        if has(&next) { Err(wrong("layers", &layers, true, &next)) } else { Ok(()) }
    }

    fn check_sizes(&self, weights: &BundleWeights, layer: u32, suffix: &str) -> Result<(), Refusal> {
        let (cell, gates) = kind(self.family);
        let input = Matrix::of(weights, self.prefix, &format!("weight_ih{suffix}"))?;
        let state = Matrix::of(weights, self.prefix, &format!("weight_hh{suffix}"))?;
        state.check_columns("hidden", self.hidden)?;
        let rows = u64::from(self.hidden) * gates;
        if let Some(wrong) = [&input, &state].into_iter().find(|matrix| matrix.rows() != rows) {
            let others = [Recurrence::Lstm, Recurrence::Gru, Recurrence::RnnTanh].map(kind);
            let right = others.into_iter().find(|(_, gates)| wrong.rows() == u64::from(self.hidden) * gates);
            let right = right.map_or_else(String::new, |(cell, _)| format!(", as many as of \"{cell}\""));
            let (name, have, hidden) = (wrong.name(), wrong.rows(), self.hidden);
            let sentence = format!("is \"{cell}\", whose weights have {gates} · {hidden} = {rows} rows, but `{name}` has {have}{right}");
            return Err(Parameters::refusal("cell", sentence));
        }
        if layer == 0 {
            return input.check_columns(self.input.0, self.input.1);
        }
        let below = u64::from(self.hidden) * if self.stack().bidirectional { 2 } else { 1 };
        input.check_inputs(self.prefix, below, "`hidden` and `bidirectional`")
    }

    fn check_bias(&self, weights: &BundleWeights, suffix: &str, bias: bool) -> Result<(), Refusal> {
        let names = ["ih", "hh"].map(|from| self.prefix.name(&format!("bias_{from}{suffix}")));
        match names.iter().find(|name| weights.has(name) != bias) {
            None => Ok(()),
            Some(found) if !bias => Err(Parameters::refusal("bias", format!("is false, but the bundle has `{found}`"))),
            Some(missing) if self.stack.is_some() && names.iter().all(|name| !weights.has(name)) => Err(Parameters::refusal(
                "bias",
                format!("is true, but the bundle has no `{missing}`: a layer without biases needs `bias = false`"),
            )),
            Some(missing) => {
                let (_, gates) = kind(self.family);
                let zeros = u64::from(self.hidden) * gates;
                Err(self
                    .prefix
                    .refusal(format!("a layer without `{missing}`, and this plugin needs it: add it with {zeros} zeros to the weights")))
            }
        }
    }
}

/// The word for a family, and how many rows its weights have for each hidden unit.
const fn kind(family: Recurrence) -> (&'static str, u64) {
    match family {
        Recurrence::Lstm => ("lstm", 4),
        Recurrence::Gru => ("gru", 3),
        Recurrence::RnnTanh | Recurrence::RnnRelu => ("rnn", 1),
    }
}
