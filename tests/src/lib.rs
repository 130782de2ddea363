//! What the end-to-end tests share: bundles made on the spot, hosts to serve them, and honest requests that run beside everything bad.
//!
//! Nothing depends on this crate. It panics where a test would: on a set-up that does not work.

pub mod archives;
pub mod binary;
pub mod bundle_folder;
pub mod collector;
pub mod devices;
pub mod graphs;
pub mod host;
pub mod http2;
pub mod naive;
pub mod neighbours;
pub mod platform;
pub mod requests;
pub mod server;
pub mod sessions;
pub mod town;
