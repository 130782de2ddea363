//! Moves (to be written).
use crate::id::RequestId;
use crate::scheduler::Scheduler;
impl Scheduler {
    pub(crate) fn move_to_idle_workers(&mut self) {}
    pub(crate) fn moved(&mut self, _id: RequestId) {}
}
