//! A client of the server: the Open Inference Protocol and the administration under `/v1`, and a load generator.
//!
//! This crate speaks HTTP and knows the messages of `protocol`; it knows nothing of what serves them, so that it can measure any server that
//! speaks the same protocol. Connections are kept and used again. Nothing is retried: what failed is said, with the server's own sentence where it gave one.
//!
//! Addresses, calls and event streams are written here, on hyper: `reqwest`, `url` and `eventsource-stream` would add 35 crates to the first build,
//! and 28 s of processor time.

mod address;
mod admin;
mod client;
mod error;
mod events;
mod infer;
pub mod load;
mod push;
mod repository;
mod trust;

pub use address::Address;
pub use client::{Client, ClientOptions, ModelRef};
pub use error::ClientError;
pub use events::EventStream;
pub use infer::{Form, Generated};
pub use push::{Extent, Progress, PushOptions};
pub use trust::Trust;
