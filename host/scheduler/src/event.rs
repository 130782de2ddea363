//! What happens to a scheduler.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use serde::{Deserialize, Serialize};

use crate::cost::CostTable;
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, NumericClass, RequestId, TaskSeq, TenantId, Time, WorkerId};
use crate::policy::PolicyKind;

/// Supported batch sizes of a cell type: multiples of `quantum` from `min` to `max` (a last,
/// smaller one when nothing else is ready).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct BatchSizes {
    pub min: u32,
    pub quantum: u32,
    pub max: u32,
}

impl BatchSizes {
    /// Rows of a batch that no other row could join.
    pub(crate) const fn full(self) -> u32 {
        if self.quantum > 0 && self.max > self.quantum { self.max / self.quantum * self.quantum } else { self.max }
    }
}

/// How many rows of spans tasks of a cell type may read: they take as long as rows of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanLimit {
    /// Rows that each span had in the batches whose times [`CellInfo::cost`] has.
    pub rows: u32,
    /// The largest of those batches that took no longer than a task may.
    pub batch: u32,
}

/// A cell of a model, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellInfo {
    /// Its type.
    pub cell_type: CellTypeId,
    /// Arena slots that one node's outputs take.
    pub slots: u32,
    /// Rank among the model's types; higher first.
    pub priority: i32,
    /// Batch limits.
    pub batch: BatchSizes,
    /// Device time of its tasks, for policies that ask.
    pub cost: CostTable,
    /// Of a cell with ragged inputs, how many rows of spans a task may read.
    pub spans: Option<SpanLimit>,
    /// Under cellular and adaptive batching: whether a worker's batch is to be full before another
    /// worker of the same memory begins one, with half a batch at least. Where workers lend each
    /// other their threads, few rows are done sooner as one batch if reading weights is most of the
    /// work.
    pub fill_first: bool,
    /// Under cellular and adaptive batching: whether consecutive tasks of one decision become one
    /// launch also where chains of some rows end meanwhile and nobody takes their place: such rows
    /// are padding from then on. They land with the launch, steps later; where a step takes less
    /// than what comes with each launch, everybody is done sooner.
    pub steps_together: bool,
}

/// A model, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its id.
    pub model: ModelId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its tenant's share of device time, relative to other tenants', whatever number of models it
    /// has; at least 1. What was said last holds.
    pub weight: u32,
    /// Workers of this class alone may run it.
    pub class: NumericClass,
    /// Its policy; none: [`crate::Config::policy`].
    pub policy: Option<PolicyKind>,
    /// Its cells, by position.
    pub cells: Vec<CellInfo>,
    /// Slots that a request of a growing model may hold at once (its `live-max` times the largest
    /// node). It reserves twice as many where the arenas have that. None: its requests may not
    /// grow.
    pub growth_slots: Option<u32>,
}

/// A request that arrives.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Its id, unused until now.
    pub request: RequestId,
    /// Its model.
    pub model: ModelId,
    /// 0 goes first. Lower ranks are served first within a queue of its model, and within its
    /// tenant's admission queue. Rank does not affect fair sharing, and preempts no task in flight.
    pub rank: u32,
    /// When its answer is worth nothing any more, for policies that ask.
    pub deadline: Option<Time>,
    /// Its graph. If `growth.next` is set it stays open until a growth without `next`, or
    /// `Event::Close`.
    pub growth: Arc<UnfoldedGrowth>,
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker is ready; a domain's first worker says how many slots its arena has.
    WorkerUp {
        /// Which.
        worker: WorkerId,
        /// Where its memory is.
        domain: DomainId,
        /// How it computes.
        class: NumericClass,
        /// Slots of the domain's arena.
        arena_slots: u32,
    },
    /// A worker is lost: what it had in flight fails, what was in its domain fails with its last
    /// worker.
    WorkerDown(WorkerId),
    /// A model may be asked for.
    ModelUp(Arc<ModelInfo>),
    /// A model goes: no submission names it any more (those in flight go on).
    ModelDown(ModelId),
    /// A tenant's weight changes, for what is submitted from now on. Nothing happens if it has no
    /// model.
    TenantWeight {
        /// The tenant.
        tenant: TenantId,
        /// As [`ModelInfo::weight`].
        weight: u32,
    },
    /// A request arrives.
    Submit(Submission),
    /// A request's graph goes on.
    Grow {
        /// The request.
        request: RequestId,
        /// Its next piece.
        growth: Arc<UnfoldedGrowth>,
    },
    /// A request that was left open will not grow any more.
    Close(RequestId),
    /// The answer is no longer wanted. The request ends with `Failure::Cancelled`.
    Cancel(RequestId),
    /// A worker completed every task up to this one. A stop is reported with the completion of its
    /// step, at the latest.
    Done {
        /// Which worker.
        worker: WorkerId,
        /// The last completed task.
        up_to: TaskSeq,
        /// Device time those tasks took, nanoseconds.
        busy_ns: u64,
        /// Chains that stopped: a lane of the chain, and the step in which it did.
        stopped: Vec<(LaneId, u32)>,
        /// Lanes of requests that failed in a kernel (an index out of range).
        failed: Vec<LaneId>,
    },
    /// A worker paused its oldest task, whose launch was no [`Slice::Whole`](crate::Slice::Whole).
    Paused {
        /// Which worker.
        worker: WorkerId,
        /// The task.
        seq: TaskSeq,
        /// Device time this slice took, nanoseconds.
        busy_ns: u64,
    },
    /// A move that was commanded is complete, or will never be: every move is answered, even one
    /// from or to a domain that is lost, because until then nothing the request held is released.
    Moved(RequestId),
    /// The time asked for by `Commands::wake_at` has come.
    Wake,
}
