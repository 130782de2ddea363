//! What the stock plugins share: layers as `model.toml` describes them, compared with the weights that they name.
//!
//! The host checks shapes too, and names the operator that they do not fit. These sentences name the parameter that is wrong.

mod linear;
mod matrix;
mod recurrent;

use cellwright_guest::prelude::*;

pub use linear::linear;
pub use matrix::{Matrix, Prefix, embedding};
pub use recurrent::{Recurrent, Stack};

/// The recurrent cell that the parameters `cell` and `nonlinearity` name.
///
/// # Errors
/// They name none.
pub fn family(parameters: &Parameters) -> Result<Recurrence, Refusal> {
    let families = [("lstm", Recurrence::Lstm), ("gru", Recurrence::Gru), ("rnn", Recurrence::RnnTanh)];
    match parameters.choice("cell", &families)? {
        Recurrence::RnnTanh => parameters.choice_or_first("nonlinearity", &[("tanh", Recurrence::RnnTanh), ("relu", Recurrence::RnnRelu)]),
        other => Ok(other),
    }
}
