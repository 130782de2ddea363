//! The only HTTP server: the Open Inference Protocol, the admin API, metrics and their description, over HTTP/1.1 and HTTP/2.
//!
//! It owns what is HTTP: connections and their limits, headers, how a body is read and an answer written. Who is calling, what it may use and
//! what becomes of its request is the gate's. Every answer that is not a success is made in one place ([`Refusal`]).

mod app;
mod auth;
mod body;
mod descriptors;
mod exchange;
mod held;
mod io;
mod lent;
mod limits;
pub mod messages;
mod metrics;
mod openapi;
mod query;
mod refusal;
mod request_id;
mod routes;
mod server;
mod streams;
mod tls;

pub use limits::Limits;
pub use refusal::Refusal;
pub use server::{BindError, Server, ServerOptions};
pub use tls::{TlsError, TlsFiles};
