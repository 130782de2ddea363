//! Where the stages of a growth lie within their request's slots, and what happens if they do not
//! fit.
//!
//! A growth that finds no room waits for the chains of its own request. That includes ended chains
//! with steps still in flight. So whether a growth fits does not depend on when it arrives. If no
//! such chain is left, the growth exceeds its reservation and its request fails alone.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::Retention;

use crate::command::Failure;
use crate::core::Core;
use crate::core::lane::NO_SLOT;
use crate::event::ModelInfo;
use crate::id::{RequestId, Slot};

impl Core {
    /// Finds slots for every stage of a growth, in the request's reservation or block, and leaves
    /// them in `placed_slots`. If not all stages fit, it returns false and leaves the reservation
    /// as before.
    pub(crate) fn allocate_stages(&mut self, id: RequestId, graph: &UnfoldedGrowth) -> bool {
        let Self { requests, models, lanes, placed_slots, .. } = self;
        let request = &mut requests[id.index()];
        let info = &models[request.model.index()].as_ref().expect("a request's model is known").info;
        let base = request.block.map_or(0, |block| block.start);
        placed_slots.clear();
        for (continued, _) in slots_of_stages(info, graph) {
            let slot = continued.and_then(|(chain, stage)| Some(lanes[request.chain(chain)?.lane(stage).index()].slot));
            placed_slots.push(slot.unwrap_or(NO_SLOT));
        }
        if let Some(shared) = &graph.shared {
            let held = slots_of_stages(info, graph).map(|(_, slots)| slots > 0);
            placed_slots.clear();
            placed_slots.extend(shared.first.iter().zip(held).map(|(first, held)| if held { Slot(base + first) } else { NO_SLOT }));
            return true;
        }
        let mut reservation = request.rare_if_any().and_then(|rare| rare.reservation.as_mut());
        let mut next = base;
        for (at, (continued, slots)) in slots_of_stages(info, graph).enumerate() {
            if slots == 0 || continued.is_some() {
                continue;
            }
            placed_slots[at] = match &mut reservation {
                Some(reservation) => match reservation.allocate(slots) {
                    Some(start) => Slot(base + start),
                    None => {
                        let own = placed_slots[..at].iter().zip(slots_of_stages(info, graph));
                        let taken = own.filter(|(slot, (continued, _))| **slot != NO_SLOT && continued.is_none());
                        taken.for_each(|(slot, (_, slots))| reservation.free(slot.0 - base, slots));
                        return false;
                    }
                },
                None => {
                    next += slots;
                    Slot(next - slots)
                }
            };
        }
        true
    }

    /// Tries again after freeing chains that could not be freed when they ended, because they were
    /// placed in the same turn.
    #[cold]
    pub(crate) fn allocate_after_freeing(&mut self, id: RequestId, graph: &UnfoldedGrowth) -> bool {
        for number in self.request(id).chain_numbers() {
            self.free_chain_if_unread(id, number);
        }
        self.allocate_stages(id, graph)
    }

    /// A growth has no room. It waits while chains of its request are live or in flight, because
    /// they may free slots. So whether it fits does not depend on when it arrives.
    #[cold]
    pub(crate) fn put_off(&mut self, id: RequestId, graph: Arc<UnfoldedGrowth>) {
        let request = self.request(id);
        if request.live_chains > 0 || request.flying > 0 {
            self.rare_mut(id).pending.push_front(graph);
        } else {
            let reserved = request.rare().and_then(|rare| rare.reservation.as_ref()).map_or(0, |reservation| reservation.slots());
            self.doom(id, Failure::GrewTooLarge { reserved: reserved.into() });
        }
    }
}

/// Slots for the values of a growth.
pub(crate) fn slots_needed(info: &ModelInfo, growth: &UnfoldedGrowth) -> u64 {
    if let Some(shared) = &growth.shared {
        return shared.slots.into();
    }
    slots_of_stages(info, growth).map(|(_, slots)| u64::from(slots)).sum()
}

/// The slots of each stage of a growth, in order. A stage that continues another uses the slots of
/// that one, which is given by chain and stage.
fn slots_of_stages(info: &ModelInfo, growth: &UnfoldedGrowth) -> impl Iterator<Item = (Option<(u32, u32)>, u32)> {
    growth.chains.iter().flat_map(move |chain| {
        (0..).zip(&chain.stages).map(move |(number, stage)| {
            let slots = stage_slots(info, stage.cell, stage.retention.places(chain.length.bound)).unwrap_or(u32::MAX);
            let continues = chain.continues.filter(|_| matches!(stage.retention, Retention::Ring { .. }));
            (continues.map(|chain| (chain, number)), slots)
        })
    })
}

pub(crate) fn stage_slots(info: &ModelInfo, cell: u32, places: u32) -> Option<u32> {
    info.cells[cell as usize].slots.checked_mul(places)
}
