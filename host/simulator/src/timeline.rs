//! Who ran when, for pictures like BatchMaker's figure 5.

mod picture;

use cellwright_scheduler::{Launch, Row};

use crate::fleet::Flight;
use crate::run::Requests;
use crate::workload::Workload;

pub use picture::picture;

/// The first tasks of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Names of the cells, by position.
    pub cells: Vec<String>,
    /// Tasks in the order in which they were launched.
    pub tasks: Vec<Task>,
    /// Requests that ended: number, arrival and end, nanoseconds.
    pub requests: Vec<(u64, u64, u64)>,
    tasks_max: usize,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// On which device.
    pub device: u32,
    /// Which cell, by position.
    pub cell: u32,
    /// When it began, nanoseconds.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Steps of each row.
    pub steps: u32,
    /// Requests in order of arrival, and the first step of each.
    pub rows: Vec<(u64, u32)>,
}

impl Timeline {
    pub(crate) fn new(tasks_max: usize, workload: &Workload) -> Self {
        let cells = workload.cells().iter().map(|cell| cell.name.clone()).collect();
        Self { cells, tasks: Vec::new(), requests: Vec::new(), tasks_max }
    }

    pub(crate) fn task(&mut self, launch: &Launch, rows: &[Row], flight: &Flight, requests: &Requests) {
        if self.tasks.len() >= self.tasks_max {
            return;
        }
        let rows = rows.iter().map(|row| (requests.number(row.lane), row.step)).collect();
        let (device, cell, steps) = (launch.worker.0, launch.cell_type.0, launch.steps);
        self.tasks.push(Task { device, cell, start_ns: flight.start_ns, end_ns: flight.end_ns, steps, rows });
    }

    pub(crate) fn left(&mut self, number: u64, arrived_ns: u64, now: u64) {
        if self.requests.len() < self.tasks_max {
            self.requests.push((number, arrived_ns, now));
        }
    }
}
