//! One request's life, from look-up to reply: unfold it, submit it, call its plugin back, put its outputs together, finish or cancel it.
//!
//! Serving knows plugins, graphs and the engine; it does not know HTTP, where bundles are kept, or which devices there are. Everything it holds
//! for a request is bounded by that request's graph and its model's limits.

pub mod error;
pub mod figures;
pub mod model;
pub mod platform;
pub mod reply;
pub mod samples;
pub mod serving;

mod abandoned;
mod answer_room;
mod bounds;
mod calls;
mod catalog;
mod deadlines;
mod ending;
mod input;
mod join;
mod outputs;
mod plugin_threads;
mod plugin_time;
mod request;
mod rows;
mod version_figures;
mod waiting;

pub use abandoned::{AbandonOnDrop, Abandoned};
pub use answer_room::AnswerShare;
pub use calls::Call;
pub use catalog::Deployed;
pub use error::{ChangeError, ErrorKind, InferError, LoadError, LookupError, PlatformError, StartError};
pub use model::{CellSummary, ServedModel};
pub use platform::{Activated, Drained, NewUpload, Platform, PlatformOptions, Readiness, Uploaded};
pub use reply::{Client, Delivery, Reply};
pub use request::Running;
pub use serving::{Serving, ServingOptions, Session};
