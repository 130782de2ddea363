//! The names PyTorch gives a recurrent layer's weights, so that a `state_dict` can be served as it was saved.

/// Names of one layer and direction: `PREFIXweight_ih_l0`, `PREFIXweight_hh_l0`, `PREFIXbias_ih_l0`, `PREFIXbias_hh_l0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecurrentWeights {
    prefix: String,
    suffix: String,
    bias: bool,
}

impl RecurrentWeights {
    /// Layer 0, forward, of `nn.LSTM`, `nn.GRU` or `nn.RNN`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self::layer(prefix, 0, false)
    }

    /// Any layer and direction of `nn.LSTM`, `nn.GRU` or `nn.RNN`.
    #[must_use]
    pub fn layer(prefix: &str, layer: u32, reverse: bool) -> Self {
        let suffix = format!("_l{layer}{}", if reverse { "_reverse" } else { "" });
        Self { prefix: prefix.into(), suffix, bias: true }
    }

    /// `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`, whose names have no layer: `PREFIXweight_ih`.
    #[must_use]
    pub fn cell(prefix: &str) -> Self {
        Self { prefix: prefix.into(), suffix: String::new(), bias: true }
    }

    /// The same without biases (PyTorch's `bias=False`).
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    pub(super) fn weight(&self, from: &str) -> String {
        format!("{}weight_{from}{}", self.prefix, self.suffix)
    }

    pub(super) fn bias(&self, from: &str) -> Option<String> {
        self.bias.then(|| format!("{}bias_{from}{}", self.prefix, self.suffix))
    }
}

impl From<&str> for RecurrentWeights {
    fn from(prefix: &str) -> Self {
        Self::new(prefix)
    }
}
