//! The client against a small server made for the test: what it sends, and what it makes of the answers.

#![expect(clippy::unwrap_used, reason = "what a test could not set up fails it")]

mod calls;
mod load;
mod push;
mod server;
mod stream;
mod tls;
