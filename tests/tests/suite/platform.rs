//! Many models of many tenants on one host: versions that come and go, limits, deadlines, restarts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounds;
mod limits;
mod loads;
mod lost;
mod queue;
mod random;
mod sessions;
mod shares;
mod versions;
mod weights;
