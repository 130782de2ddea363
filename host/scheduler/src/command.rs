//! What a scheduler wants done: one reusable structure of arrays.
//!
//! The caller carries out one `handle`'s commands in this order: `released`, `placements`, `moves`,
//! `launches` (as they stand), `finished`, `failed`. Nothing per node crosses this interface but
//! the rows of launches.

use std::ops::Range;

pub use cellwright_cell_graph::Row;

use crate::id::{CellTypeId, DomainId, LaneId, ModelId, RequestId, Slot, TaskSeq, Time, WorkerId};
use crate::policy::{Fault, PolicyKind};

/// A task for a worker. Tasks of one worker run in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The worker that runs it.
    pub worker: WorkerId,
    /// What it runs.
    pub cell_type: CellTypeId,
    /// The model that was chosen. Rows of other models of the same type may join.
    pub model: ModelId,
    /// The model of all its rows, where it is known that they are of one.
    pub sole: Option<ModelId>,
    /// Its number on that worker.
    pub seq: TaskSeq,
    /// Every row runs `step`, `step + 1`, …, so many; all rows their first before any its second,
    /// for they may read one another. Whatever limits tasks counts each as a task. A row whose
    /// chain ends on the way is padding from then on.
    pub steps: u32,
    /// How many are padding for that reason, in all steps together.
    pub ended: u32,
    /// Its rows, in [`Commands::rows`].
    pub rows: Range<usize>,
    /// Whether it runs in slices.
    pub slice: Slice,
}

/// Which part of a task a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// All of it.
    Whole,
    /// The beginning: the worker may pause the task, and says so by [`Event::Paused`](crate::Event::Paused).
    First,
    /// The task that had this number when it was paused goes on. It may be paused again.
    Next(TaskSeq),
}

impl Launch {
    /// Nodes that it runs, rows that are padding from the beginning included.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.rows.len() as u64 * u64::from(self.steps) - u64::from(self.ended)
    }

    /// Rows of one of its steps: of all its rows, or as many as its steps have on average, rounded
    /// up.
    #[must_use]
    pub fn step_rows(&self) -> usize {
        self.nodes().div_ceil(u64::from(self.steps.max(1))) as usize
    }
}

/// A growth of a request gets its place: lanes and slots for its stages, chain by chain, stage by
/// stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The request.
    pub request: RequestId,
    /// Which of its growths, from 0.
    pub growth: u32,
    /// Where.
    pub domain: DomainId,
    /// One (lane, first slot) for each stage, in [`Commands::places`]. After a move a stage whose
    /// chain had given its place back before has the lane `LaneId(u32::MAX)`.
    pub places: Range<usize>,
    /// Whether those slots last held another tenant's values and must be zeroed.
    pub scrub: bool,
}

/// A request's state goes to another domain before anything of it runs there. Its growths are
/// placed anew (`placements`, before this in order), old lanes are released when `Event::Moved` has
/// come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Move {
    pub request: RequestId,
    pub from: DomainId,
    pub to: DomainId,
    /// What to copy: (slot there before, slot after, number of slots), in [`Commands::copies`].
    pub copies: Range<usize>,
}

/// Why a request was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was cancelled.
    Cancelled,
    /// It needs more slots than any arena has, or than its tenant may have.
    TooLarge {
        /// Slots it needs.
        needed: u64,
        /// Slots that it may have.
        available: u64,
    },
    /// A growth went beyond the request's reservation, or found no room in a row there (see
    /// `reservation` for when that cannot be).
    GrewTooLarge {
        /// Slots that may be held at once.
        reserved: u64,
    },
    /// A model grew that declares no `live-max`.
    MayNotGrow,
    /// A kernel refused one of its rows.
    Row,
    /// A step was named that its chain never executed.
    BeyondEnd {
        /// The chain that ended.
        chain: u32,
    },
    /// The worker that held its state is gone.
    WorkerLost,
    /// There is no worker of its model's class.
    NoWorker,
    /// Too many requests wait for a place.
    Overloaded,
    /// The policy of its model broke a rule.
    Policy {
        /// The policy.
        policy: PolicyKind,
        /// Which rule.
        fault: Fault,
    },
    /// It could not be done by its deadline any more, or was not.
    Late {
        /// What it takes at least on idle devices, nanoseconds.
        alone_ns: u64,
    },
}

/// A policy broke a rule: the model's requests have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Refusal {
    pub model: ModelId,
    pub policy: PolicyKind,
    pub worker: WorkerId,
    pub fault: Fault,
}

/// Everything one `handle` wants done. Cleared by `handle`, not by the caller.
#[derive(Debug, Default)]
pub struct Commands {
    /// Tasks.
    pub launches: Vec<Launch>,
    /// Their rows.
    pub rows: Vec<Row>,
    /// Growths that get their place.
    pub placements: Vec<Placement>,
    /// Their lanes and first slots (a stage that holds nothing has the slot `Slot(u32::MAX)`).
    pub places: Vec<(LaneId, Slot)>,
    /// State that changes domain.
    pub moves: Vec<Move>,
    /// What moves copy.
    pub copies: Vec<(Slot, Slot, u32)>,
    /// Lanes that nothing in flight names any more: tables may forget them.
    pub released: Vec<LaneId>,
    /// Requests whose last node is complete.
    pub finished: Vec<RequestId>,
    /// Requests that end otherwise.
    pub failed: Vec<(RequestId, Failure)>,
    /// Rules that policies broke. Not a command: for the log.
    pub refused: Vec<Refusal>,
    /// Device time, nanoseconds, of completed tasks, by the models of their rows. Not a command:
    /// for accounts.
    pub used: Vec<(ModelId, u64)>,
    /// When to send `Event::Wake`, if at all; at once, if that time has come.
    pub wake_at: Option<Time>,
}

impl Commands {
    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.launches.clear();
        self.rows.clear();
        self.placements.clear();
        self.places.clear();
        self.moves.clear();
        self.copies.clear();
        self.released.clear();
        self.finished.clear();
        self.failed.clear();
        self.refused.clear();
        self.used.clear();
        self.wake_at = None;
    }
}
