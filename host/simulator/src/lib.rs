//! The production scheduler in virtual time: what a policy would do on a device that is not here.
//!
//! A [`workload::Workload`] says what requests are, a [`device::Device`] what a batch costs. Nothing here decides what runs together: that is
//! the scheduler's, and it is the same code that serves. Everything is a function of its inputs and a seed: the same run gives the same numbers.

pub mod arrivals;
mod costs;
pub mod crowd;
pub mod device;
mod driven;
pub mod error;
pub mod figures;
mod fleet;
mod hearing;
mod lines;
pub mod meter;
pub mod outcome;
pub mod replay;
pub mod run;
pub mod timeline;
pub mod workload;

pub use arrivals::Arrivals;
pub use crowd::{Crowd, Decided, Members};
pub use device::{Curve, Device};
pub use error::Error;
pub use meter::Meter;
pub use outcome::Outcome;
pub use replay::replay;
pub use run::{Gathering, Ran, Setup, run};
pub use timeline::Timeline;
pub use workload::Workload;
