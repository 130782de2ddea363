//! The only HTTP server: the Open Inference Protocol, the admin API, metrics and their description, over HTTP/1.1 and HTTP/2.
//!
//! It owns what is HTTP: connections and their limits, headers, statuses, who is calling, how a body is read and an answer written. It holds no
//! business logic: whatever a request asks for is done by the [`Host`] behind it. Every answer that is not a success is made in one
//! place ([`Refusal`]), and what a client sends is bounded in size and time before it is read.

mod app;
mod auth;
mod body;
mod budget;
mod call;
mod descriptors;
mod exchange;
pub mod figures;
mod handover;
mod host;
mod io;
mod lent;
mod limits;
pub mod messages;
mod metrics;
mod openapi;
mod platform;
mod query;
mod reading;
mod refusal;
mod request_id;
mod routes;
mod server;
mod streams;
mod tls;
mod turns;

pub use handover::let_others_go_on;
pub use host::{Answering, Endpoint, Host, IndexEntry};
pub use limits::Limits;
pub use platform::host_of;
pub use refusal::Refusal;
pub use server::{BindError, Server, ServerOptions};
pub use tls::{TlsError, TlsFiles};
