//! The server over real sockets, with a made-up host behind it that does whatever a test needs: answer, wait, stream, fail.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops where it is")]

#[path = "http/administration.rs"]
mod administration;
#[path = "http/described.rs"]
mod described;
#[path = "http/fake.rs"]
mod fake;
#[path = "http/harness.rs"]
mod harness;
#[path = "http/hostile.rs"]
mod hostile;
#[path = "http/inference.rs"]
mod inference;
#[path = "http/keys.rs"]
mod keys;
#[path = "http/leaving.rs"]
mod leaving;
#[path = "http/resting.rs"]
mod resting;
#[path = "http/stopping.rs"]
mod stopping;
#[path = "http/streams.rs"]
mod streams;
#[path = "http/tls_and_h2.rs"]
mod tls_and_h2;
