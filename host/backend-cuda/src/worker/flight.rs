//! Tasks between their submission and their completion.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::{Completed, Row};

use super::joined::Whose;
use super::resident::Resident;
use super::together::Selected;

/// Rows of one step that run at once.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    /// Of the segment's rows.
    pub(super) rows: Range<usize>,
    /// Where what became of them lies in the segment's download, and behind it what they deliver.
    pub(super) statuses: usize,
    pub(super) delivered: usize,
    /// Of the segment's rows of which there may be something to tell.
    pub(super) told: Range<usize>,
}

/// A row of which there may be something to tell when it has run: an output that leaves, or that its chain ends.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// Its place among the segment's.
    pub(super) number: usize,
    /// Its lane, as it was when its task was submitted: that number may be another one's when it completes.
    pub(super) whose: Arc<Whose>,
}

/// What is uploaded, run, downloaded and signalled together.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    /// Of its signal.
    pub(super) number: u64,
    /// Where its download lies in the ring.
    pub(super) down: Range<usize>,
    pub(super) batches: Vec<Batch>,
    pub(super) rows: Vec<Selected>,
    pub(super) told: Vec<Told>,
    /// Rows of the cell in which what it reads was computed ahead.
    pub(super) ahead: Vec<u32>,
}

/// A task on its way.
pub(super) struct InFlight {
    pub(super) rows: Vec<Row>,
    pub(super) resident: Arc<Resident>,
    pub(super) segments: VecDeque<Segment>,
    pub(super) completed: Completed,
    pub(super) began: Instant,
}

impl InFlight {
    pub(super) fn new(rows: Vec<Row>, resident: Arc<Resident>, completed: Completed) -> Self {
        Self { rows, resident, segments: VecDeque::new(), completed, began: Instant::now() }
    }

    /// The number of its oldest segment that is outstanding.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.segments.front().map(|segment| segment.number)
    }

    /// All of it is done.
    pub(super) fn completed(mut self, busy: Duration) -> Completed {
        self.completed.busy_ns = u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX);
        self.completed.rows = self.rows;
        self.completed
    }
}
