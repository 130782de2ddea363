//! Decides which nodes run together, where and when.
//!
//! [`Scheduler::handle`] is a state machine: events in, commands out. It never waits, spawns, locks, reads a clock or draws a random number,
//! so the same events give the same commands, whether the engine drives it with real workers, the simulator in virtual time or a test with
//! generated traffic.

mod admission;
mod arena;
pub mod command;
mod completion;
pub mod config;
pub mod cost;
mod ending;
pub mod event;
mod fairness;
mod few;
mod fleet;
mod group;
pub mod id;
mod lane;
mod listing;
mod moving;
mod naming;
mod policy;
mod queues;
mod readiness;
mod request;
mod reservation;
mod room;
pub mod scheduler;
mod seating;
mod spares;
mod tenants;
mod waiting;

pub use command::{Commands, Failure, Launch, Move, Placement, Row};
pub use config::{Config, PolicyKind, Release};
pub use cost::{CostError, CostTable, Knot};
pub use event::{BatchSizes, CellInfo, Event, ModelInfo, Submission};
pub use id::{CellTypeId, DomainId, LaneId, ModelId, NumericClass, RequestId, Slot, TaskSeq, TenantId, Time, WorkerId};
pub use naming::PolicyNameError;
pub use scheduler::Scheduler;
