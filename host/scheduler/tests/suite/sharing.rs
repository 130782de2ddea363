//! Stages that share their slots: nothing that is still to be read is written over.

use super::model::{self, NodeId};
use super::world::{LaneInfo, NodeState, Request, World};

impl World {
    /// Whose slots a node takes is done with, and all that read it, or comes later.
    pub(crate) fn check_place(&self, request: &Request, own: &LaneInfo, launch: &cellwright_scheduler::Launch) {
        if !own.shares || own.slots == 0 || request.graph.growth_of(own.chain).shared.is_none() {
            return;
        }
        let growth = request.graph.growth_of(own.chain);
        let slots = |info: &LaneInfo| info.slot.0..info.slot.0 + info.slots;
        let begun = |chain: u32, stage: u32| request.nodes.keys().any(|node| (node.chain, node.stage) == (chain, stage));
        let over = |chain: u32, stage: u32| {
            let is_over = |step| match request.nodes.get(&NodeId { chain, stage, step }) {
                Some(NodeState::Done) => true,
                Some(NodeState::Queued(worker, before)) => *worker == launch.worker && before.0 < launch.seq.0,
                None => false,
            };
            (0..request.known(chain)).all(is_over)
        };
        for other in self.lanes.values().filter(|other| other.request == own.request && other.domain == own.domain && other.slots > 0) {
            let is_same = (other.chain, other.stage) == (own.chain, own.stage);
            let overlaps = slots(other).start < slots(own).end && slots(own).start < slots(other).end;
            if is_same || !overlaps || !begun(other.chain, other.stage) {
                continue;
            }
            assert!(over(other.chain, other.stage), "{own:?} takes the place of {other:?}, which goes on");
            for (reader, chain) in (growth.first_chain..).zip(&growth.chains) {
                for (stage, of) in (0..).zip(&chain.stages) {
                    let reads = model::reads(reader, of).any(|read| read == (other.chain, other.stage));
                    assert!(!reads || over(reader, stage), "{own:?} takes the place of {other:?}, which {reader}, {stage} has not read");
                }
            }
        }
    }
}
