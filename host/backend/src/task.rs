//! Tasks and completions: what crosses between the engine and a worker.

use std::sync::Arc;
use std::time::Duration;

use crate::lane::Lane;

pub use cellwright_cell_graph::{CellTypeId, LaneId, Row, Slot};

/// Rows of one cell type to run together, `steps` times.
#[derive(Debug, Default)]
pub struct Task {
    /// Counts up by one from task to task on a worker.
    pub seq: u64,
    /// What to run.
    pub cell: CellTypeId,
    /// Each row runs its step and the following ones, so many.
    pub steps: u32,
    /// The rows.
    pub rows: Vec<Row>,
    /// Lanes this worker does not know yet and this or a later task names.
    pub joins: Vec<(LaneId, Arc<Lane>)>,
    /// Lanes that no task from this one on names, to be forgotten before the joins.
    pub leaves: Vec<LaneId>,
    /// Runs of slots `(first, count)` to zero first, because another tenant held them.
    pub scrub: Vec<(Slot, u32)>,
    /// After so long a device that can pauses it ([`Completed::paused`]); none: it runs to its end.
    pub slice: Option<Duration>,
}

/// A chain that may stop executed its last step: its stop was true, or it reached its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Stopped {
    pub lane: LaneId,
    pub step: u32,
}

/// Why a kernel refused a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Gather.
    #[error("index {index} is out of range for a table of {rows} rows (operator Gather, cell `{cell}`)")]
    Index {
        /// The index.
        index: i64,
        /// Rows of the table.
        rows: u64,
        /// The cell.
        cell: String,
    },
    /// `GatherND` of rows of a span.
    #[error("index {index} is out of range for a span of {rows} rows (operator GatherND, cell `{cell}`)")]
    SpanIndex {
        /// The index.
        index: i64,
        /// Rows of the span.
        rows: u64,
        /// The cell.
        cell: String,
    },
    /// ArgMax and TopK over a span.
    #[error("a span has {rows} rows, fewer than the {needed} that are asked for (cell `{cell}`)")]
    TooFewRows {
        /// Rows of the span.
        rows: u64,
        /// How many there must be.
        needed: u64,
        /// The cell.
        cell: String,
    },
}

/// A row that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Refused {
    pub lane: LaneId,
    pub step: u32,
    pub error: RowError,
}

/// An output that leaves the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Whose.
    pub lane: LaneId,
    /// Which output of the stage.
    pub output: u32,
    /// Which step.
    pub step: u32,
    /// Where its bytes begin in [`Completed::bytes`]; they end where the next one's begin.
    pub offset: u64,
}

/// A completed task. Buffers come back to their worker with [`Task`]s, emptied.
#[derive(Debug, Default)]
pub struct Completed {
    /// Which.
    pub seq: u64,
    /// It is only paused, and goes on by [`Backend::resume`](crate::Backend::resume). The rows, and all that comes of them, are said with its end.
    pub paused: bool,
    /// Device time it took, of several slices the last, nanoseconds.
    pub busy_ns: u64,
    /// Chains that stopped.
    pub stopped: Vec<Stopped>,
    /// Rows that failed.
    pub refused: Vec<Refused>,
    /// Outputs that leave.
    pub delivered: Vec<Delivered>,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// The task's own row buffer, to be used again.
    pub rows: Vec<Row>,
}

impl Completed {
    /// Forgets what it holds, and keeps room for that much again: for at most so many bytes of outputs. The rows' buffer goes.
    pub fn clear(&mut self, bytes_kept: usize) {
        self.paused = false;
        self.stopped.clear();
        self.refused.clear();
        self.delivered.clear();
        self.bytes.clear();
        self.bytes.shrink_to(bytes_kept);
        self.rows = Vec::new();
    }
}
