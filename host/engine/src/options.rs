//! What an operator may choose of the engine.

use std::fmt;

use cellwright_scheduler::{Commands, Event, Time};

use crate::trace::TaskTrace;

/// Called for every task, as it is handed to its worker, on the thread that runs the scheduler.
pub type TraceFn = Box<dyn FnMut(&TaskTrace<'_>) + Send>;

/// Sees what the scheduler is told and what it makes of it: first the one, then the other. Called on the thread that runs it.
pub trait Observer: Send {
    /// The scheduler is told this, at that time; when the tasks of which [`Event::Done`] tells ended, in their order, as their workers saw it.
    fn told(&mut self, now: Time, events: &[Event], ended: &[Time]);
    /// It decided this.
    fn decided(&mut self, commands: &Commands);
}

/// How long a task of a cell of long rows runs before others may run in between.
pub const SLICE_NS: u64 = 4_000_000;

/// The engine's configuration.
pub struct EngineOptions {
    /// The scheduler's.
    pub scheduler: cellwright_scheduler::Config,
    /// Requests in flight, at most; one more is refused.
    pub in_flight_max: u32,
    /// The largest batch that calibration tries.
    pub batch_max: u32,
    /// A task should not take longer: a cell type's batch limit is lowered until it does not.
    pub task_time_max: std::time::Duration,
    /// Bytes of weights that may be loaded, at most, those that models share counted once; none: half of the machine's memory.
    pub weight_bytes_max: Option<u64>,
    /// A request that takes longer ends with [`RequestFailure::Overdue`](crate::RequestFailure::Overdue); none: no bound.
    pub request_time_max: Option<std::time::Duration>,
    /// A cell of which a single row takes longer is refused.
    pub row_time_max: std::time::Duration,
    /// Time that devices may take to measure all cells of a model.
    pub load_time_max: std::time::Duration,
    /// Measures all batch sizes again, and keeps what it finds, whatever is known of them.
    pub recalibrate: bool,
    /// Where measured batch sizes are kept between starts; none: they are measured at every load.
    pub calibration_folder: Option<std::path::PathBuf>,
    /// What wants to see every task, if anything does.
    pub trace: Option<TraceFn>,
    /// What wants to see every decision, if anything does.
    pub observer: Option<Box<dyn Observer>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            scheduler: cellwright_scheduler::Config { slice_ns: SLICE_NS, ..cellwright_scheduler::Config::default() },
            in_flight_max: 1 << 14,
            batch_max: 512,
            task_time_max: std::time::Duration::from_millis(50),
            weight_bytes_max: None,
            request_time_max: None,
            row_time_max: std::time::Duration::from_millis(250),
            load_time_max: std::time::Duration::from_secs(300),
            recalibrate: false,
            calibration_folder: None,
            trace: None,
            observer: None,
        }
    }
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineOptions")
            .field("scheduler", &self.scheduler)
            .field("in_flight_max", &self.in_flight_max)
            .field("batch_max", &self.batch_max)
            .field("task_time_max", &self.task_time_max)
            .field("weight_bytes_max", &self.weight_bytes_max)
            .field("request_time_max", &self.request_time_max)
            .field("row_time_max", &self.row_time_max)
            .field("load_time_max", &self.load_time_max)
            .field("recalibrate", &self.recalibrate)
            .field("calibration_folder", &self.calibration_folder)
            .field("trace", &self.trace.is_some())
            .field("observer", &self.observer.is_some())
            .finish()
    }
}
