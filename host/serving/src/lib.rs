//! One request's life, from look-up to answer: unfold it, submit it, call its plugin back, put its outputs together, finish or cancel it.
//!
//! Serving knows plugins, graphs and the engine; it does not know callers, where bundles are kept, or which devices there are. Everything it holds
//! for a request is bounded by that request's graph and its model's limits.

pub mod answer;
pub mod error;
pub mod model;
pub mod samples;
pub mod serving;

mod abandoned;
mod answer_room;
mod ending;
mod input;
mod join;
mod outputs;
mod plugin_threads;
mod plugin_time;
mod recipient;
mod request;
mod rows;

pub use abandoned::{AbandonOnDrop, Abandoned};
pub use answer::{Answer, AnswerWriter, CallCanceller, CallTimes, Delivery, Item, Observer, Patience};
pub use answer_room::AnswerShare;
pub use cellwright_plugin_runtime::CallError;
pub use error::{ErrorKind, InferError, Lateness, LoadError, StartError};
pub use model::{CallBounds, CellSummary, ServedModel};
pub use serving::{Owner, Serving, ServingOptions, Session};
