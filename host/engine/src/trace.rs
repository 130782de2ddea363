//! What a tracer sees of a task.

use cellwright_scheduler::{CellTypeId, WorkerId};

/// A row of a task, in the request's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// The request's number, counted by the engine from 0 in order of arrival.
    pub request: u64,
    /// The chain, counted over the request.
    pub chain: u32,
    /// The stage.
    pub stage: u32,
    /// The first step.
    pub step: u32,
}

/// A task as it is handed to its worker.
#[derive(Clone, Copy, Debug)]
pub struct TaskTrace<'a> {
    /// Who runs it.
    pub worker: WorkerId,
    /// What it runs.
    pub cell_type: CellTypeId,
    /// Its number on that worker.
    pub seq: u64,
    /// Steps each row runs.
    pub steps: u32,
    /// Its rows.
    pub rows: &'a [TraceRow],
}
