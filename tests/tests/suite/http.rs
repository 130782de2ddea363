//! The HTTP server over real sockets, in this process: a platform with real models behind it, on a device that stands still when a test says so.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod administration;
mod described;
mod harness;
mod hostile;
mod inference;
mod keys;
mod leaving;
mod models;
mod resting;
mod stopping;
mod streams;
mod tls_and_h2;
