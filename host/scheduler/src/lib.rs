//! Decides which nodes run together, where and when.
//!
//! [`Scheduler::handle`] is a state machine: events in, commands out. It never waits, spawns,
//! locks, reads a clock or draws a random number, so the same events give the same commands,
//! whether the engine drives it with real workers, the simulator in virtual time or a test with
//! generated traffic.

#[cfg(test)]
extern crate self as cellwright_scheduler;

pub mod command;
pub mod config;
mod core;
pub mod cost;
pub mod event;
pub mod id;
mod parts;
mod policy;
mod scheduler;

pub use self::core::slices::PAUSED_MAX;
pub use command::{Commands, Failure, Launch, Move, Placement, Refusal, Row, Slice};
pub use config::{Config, Release};
pub use cost::{CostError, CostTable, Knot};
pub use event::{BatchSizes, CellInfo, Event, ModelInfo, SpanLimit, Submission};
pub use id::{CellTypeId, DomainId, LaneId, ModelId, NumericClass, RequestId, Slot, TaskSeq, TenantId, Time, WorkerId};
pub use parts::Parts;
pub use policy::{Fault, Graph, Lazy, LengthAware, Merge, PolicyKind, PolicyNameError, Stages, Takes};
pub use scheduler::Scheduler;
