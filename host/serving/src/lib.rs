//! One request's life, from look-up to reply: unfold it, submit it, call its plugin back, put its outputs together, finish or cancel it.
//!
//! Serving knows plugins, graphs and the engine; it does not know HTTP, where bundles are kept, or which devices there are. Everything it holds
//! for a request is bounded by that request's graph and its model's limits.

pub mod error;
pub mod model;
pub mod reply;
pub mod serving;

mod input;
mod join;
mod outputs;
mod plugin_threads;
mod request;
mod rows;

pub use error::{ErrorKind, InferError, LoadError, StartError};
pub use model::{CellSummary, ServedModel};
pub use reply::{Client, Delivery, Reply};
pub use request::Running;
pub use serving::{Serving, ServingOptions, Session};
