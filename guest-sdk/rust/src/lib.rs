//! Writes Cellwright model plugins in Rust.
//!
//! A plugin [describes](Plugin::describe) its model once (tensors and cells) and [unfolds](Plugin::unfold) every request into a graph of those
//! cells. [`ModelBuilder`] and [`CellBuilder`] build the first, [`GrowthBuilder`] the second, [`Request`] and [`Parameters`] read what came
//! in and refuse it in sentences that a client or a model's author can act on. [`testing`] runs a plugin natively: no WebAssembly, no host.
//!
//! This crate owns the guest's side of the ABI in `guest-sdk/wit`. It depends on nothing of the host and promises nothing about scheduling.
//!
//! ```
#![doc = include_str!("../examples/classifier.rs")]
//! ```

pub mod abi;
pub mod plugin;

mod bundle;
mod cell;
mod growth;
#[cfg(any(test, all(target_arch = "wasm32", feature = "heap")))]
mod heap;
mod model;
mod nearest;
mod parameters;
mod request;
mod tensor;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
mod window;

pub use bundle::{Bundle, BundleWeights};
pub use cell::{Cell, CellBuilder, Recurrence, RecurrentWeights, Value};
pub use growth::{ChainBuilder, ChainHandle, GrowthBuilder};
pub use model::ModelBuilder;
pub use parameters::Parameters;
pub use plugin::Plugin;
pub use request::{HostRequest, Incoming, Input, Request, Sequence};
pub use window::{Frames, Window};

/// The ABI's own types; `Value` there is a parameter's value.
pub mod types {
    pub use crate::abi::cellwright::plugin::types::*;
}

/// What nearly every plugin uses.
pub mod prelude {
    pub use crate::types::Datatype::{self, Bool, Bytes, Fp32, Int64};
    pub use crate::types::{Affine, Description, Event, Growth, Node, OutputRef, Reaction, Refusal, Source, Tensor};
    pub use crate::{
        Bundle, Cell, CellBuilder, GrowthBuilder, ModelBuilder, Parameters, Plugin, Recurrence, RecurrentWeights, Request, Sequence,
        export_plugin,
    };
}
