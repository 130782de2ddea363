//! Whole-graph batching (to be written).
use crate::id::{RequestId, WorkerId};
use crate::scheduler::Scheduler;
/// A batch.
pub(crate) type BatchId = u32;
#[derive(Debug, Default)]
pub(crate) struct GraphPolicy {}
impl Scheduler {
    pub(crate) fn run_graph(&mut self) {}
    pub(crate) fn join_bucket(&mut self, _id: RequestId, _growth: u32) {}
    pub(crate) fn batch_task_done(&mut self, _worker: WorkerId) {}
    pub(crate) fn batch_worker_lost(&mut self, _worker: WorkerId) {}
}
