//! The stock plugin `chain`: stacked, one- or bidirectional LSTM, GRU or vanilla RNN over a sequence of dense rows or token ids.
//!
//! It owns what a sequence's graph looks like. Weights have PyTorch's names and layouts, so that a `state_dict` is served as it was saved.
//! It never sees the contents of a sequence: rows go from the request's tensor to the cells by number.

mod model;
mod options;
mod unfold;

use cellwright_guest::prelude::*;

pub use model::Chain;

impl Plugin for Chain {
    fn describe(parameters: &Parameters, bundle: &Bundle) -> Result<(Self, Description), Refusal> {
        Ok(Self::new(options::Options::read(parameters, bundle)?))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        unfold::unfold(self, request)
    }
}

export_plugin!(Chain);
