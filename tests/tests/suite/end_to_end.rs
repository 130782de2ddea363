//! From a bundle to right answers, and from everything bad to one clear sentence with nobody else harmed.
//!
//! All tests share one host, and most run while honest requests are in flight on it: see `cellwright_tests::neighbours`.

mod bad_bundles;
mod bad_requests;
mod examples;
mod hostile_plugins;
mod overload;
mod sentence;
mod sessions;
mod spans;
mod sums;
