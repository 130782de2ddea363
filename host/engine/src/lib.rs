//! Feeds the scheduler and the workers: a thread that runs the scheduler, a thread for each device, which may run it too, and everything between them.
//!
//! The engine carries out what the scheduler decides and decides nothing about batches itself. Everything in it is bounded: requests in
//! flight, submissions queued, tasks outstanding. It knows graphs and tensors, not plugins, protocols or who is asking.

pub mod calibration;
pub mod engine;
pub mod figures;
pub mod model;
pub mod options;
pub mod sink;
pub mod trace;

mod calibration_store;
mod cancels;
mod core;
mod growths;
mod lanes;
mod requests;
mod spares;
mod turns;
mod weight_room;
mod worker;

pub use calibration::{BatchLimits, Calibration};
pub use cellwright_scheduler::{Lazy, Parts, PolicyKind, PolicyNameError};
pub use engine::{Canceller, ClosedModel, Engine, Handle, ModelError, RequestTensors, StartError, SubmitError, Urgency};
pub use figures::{
    CellCounters, Counters, DomainSnapshot, ModelCounters, ModelCounts, RequestMemory, RequestTimes, Snapshot, WorkerSnapshot,
};
pub use model::{CellOverride, LoadedCell, LoadedModel, ModelSpec, TableCounts, Tables};
pub use options::{EngineOptions, SLICE_NS};
pub use sink::{RequestFailure, Sink, Value};
pub use trace::{TaskTrace, TraceRow};
pub use weight_room::WeightGrant;
