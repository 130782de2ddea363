//! Placed growths that are over, kept for requests of one stage that come later.
//!
//! Such a growth is a few pieces of memory, allocated together and otherwise freed together. The
//! next request gets them while they are still in the cache. A growth is kept only if nobody else
//! holds a part of it, and nothing of its former request is left in it.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cellwright_backend::{CellTypeId, FirstSlots, Lane, Slot};
use cellwright_cell_graph::UnfoldedGrowth;

use crate::requests::RequestTensors;

/// So many are kept.
const KEPT_MAX: usize = 1024;

/// Lanes of growths of one stage, and those growths, without anything of the requests that they were made for.
pub(crate) struct Spares {
    lanes: Vec<Arc<Lane>>,
    /// The graph of nobody.
    nothing: Arc<UnfoldedGrowth>,
}

impl Default for Spares {
    fn default() -> Self {
        let nothing = UnfoldedGrowth {
            first_chain: 0,
            chains: Vec::new(),
            outputs: Vec::new(),
            cancel: Vec::new(),
            next: None,
            nodes: 0,
            shared: None,
        };
        Self { lanes: Vec::new(), nothing: Arc::new(nothing) }
    }
}

impl Spares {
    /// The lane of a growth of one stage that is placed there, if there is one to spare. What the growth brings along is taken.
    pub(crate) fn take(
        &mut self,
        (growth, tensors): (&mut Arc<UnfoldedGrowth>, &mut RequestTensors),
        slots: Slot,
        cells: &Arc<[CellTypeId]>,
    ) -> Option<Arc<Lane>> {
        let bound = growth.chains.first()?.length.bound;
        let mut lane = self.lanes.pop()?;
        let placed = Arc::get_mut(&mut Arc::get_mut(&mut lane)?.growth)?;
        placed.executed.first()?.store(bound, Ordering::Relaxed);
        // The graph changes places with that of nobody, so that nobody counts who has it: whoever submitted it counts too.
        std::mem::swap(&mut placed.growth, growth);
        (placed.slots, placed.first_tensor) = (FirstSlots::one(slots), tensors.first);
        std::mem::swap(&mut placed.tensors, &mut tensors.tensors);
        if !Arc::ptr_eq(&placed.cells, cells) {
            placed.cells = Arc::clone(cells);
        }
        Some(lane)
    }

    /// Keeps those of which nobody else has anything any more, and lets go of what they were about.
    pub(crate) fn keep(&mut self, lanes: &mut Vec<Arc<Lane>>) {
        read_ahead(lanes);
        for mut lane in lanes.drain(..) {
            if self.lanes.len() < KEPT_MAX && self.clear(&mut lane).is_some() {
                self.lanes.push(lane);
            }
        }
    }

    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.lanes.len()
    }

    fn clear(&self, lane: &mut Arc<Lane>) -> Option<()> {
        let placed = Arc::get_mut(&mut Arc::get_mut(lane)?.growth)?;
        let alone = Arc::strong_count(&placed.executed) == 1 && Arc::strong_count(&placed.flags) == 1;
        // Whatever those who had them wrote there was before.
        fence(Ordering::Acquire);
        if !alone || !placed.earlier.is_empty() || placed.slots.sole().is_none() {
            return None;
        }
        placed.flags.dead.store(false, Ordering::Relaxed);
        placed.growth = Arc::clone(&self.nothing);
        placed.tensors = Vec::new();
        Some(())
    }
}

/// Reads of such lanes what keeping them reads, one piece of all of them after the other: a worker had them last, and so not each piece is waited for by itself.
fn read_ahead(lanes: &[Arc<Lane>]) {
    let read = |piece: fn(&Lane) -> usize| {
        black_box(lanes.iter().fold(0, |read, lane| read ^ piece(lane)));
    };
    read(|lane| lane.stage as usize);
    read(|lane| Arc::strong_count(&lane.growth) ^ lane.growth.first_tensor as usize ^ lane.growth.tensors.len());
    read(|lane| usize::from(lane.growth.flags.dead.load(Ordering::Relaxed)) ^ lane.growth.tensors.first().map_or(0, Arc::strong_count));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use cellwright_backend::PlacedGrowth;
    use cellwright_cell_graph::Tensor;
    use cellwright_conformance::driver::{growth_of, independent};

    use super::*;

    fn growth(steps: u32) -> Arc<UnfoldedGrowth> {
        Arc::new(growth_of(vec![independent(0, 1, Vec::new(), steps)]))
    }

    fn tensors() -> RequestTensors {
        RequestTensors { first: 3, tensors: vec![Arc::new(Tensor::from_i64("x", &[1], &[7]))] }
    }

    /// A lane of a request that ran three steps of ten, and was cancelled.
    fn used(growth: Arc<UnfoldedGrowth>, tensors: RequestTensors) -> Arc<Lane> {
        let RequestTensors { first: first_tensor, tensors } = tensors;
        let (slots, executed, flags) = (FirstSlots::one(Slot(5)), [AtomicU32::new(3)].into(), Arc::default());
        let placed =
            PlacedGrowth { growth, cells: [CellTypeId(0)].into(), slots, executed, earlier: Vec::new(), tensors, first_tensor, flags };
        placed.flags.dead.store(true, Ordering::Relaxed);
        Arc::new(Lane { growth: Arc::new(placed), chain: 0, stage: 0 })
    }

    #[test]
    fn who_has_a_spare_place_finds_nothing_of_whoever_had_it_before() {
        let (mut spares, old, old_tensors) = (Spares::default(), growth(10), tensors());
        spares.keep(&mut vec![used(Arc::clone(&old), old_tensors.clone())]);
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&old_tensors.tensors[0])), (1, 1), "a spare holds nothing of a request");

        let (graph, cells): (_, Arc<[CellTypeId]>) = (growth(4), [CellTypeId(9)].into());
        let (mut new, mut new_tensors) = (Arc::clone(&graph), RequestTensors { first: 1, ..tensors() });
        let lane = spares.take((&mut new, &mut new_tensors), Slot(8), &cells).expect("one is spare");
        let placed = &lane.growth;
        assert!(Arc::ptr_eq(&placed.growth, &graph) && Arc::ptr_eq(&placed.cells, &cells));
        assert_eq!((placed.slots.sole(), placed.first_tensor, placed.tensors.len()), (Some(Slot(8)), 1, 1));
        assert_eq!((lane.executed(), placed.flags.dead.load(Ordering::Relaxed)), (4, false));
        assert!(spares.take((&mut new, &mut new_tensors), Slot(8), &cells).is_none(), "there was one");
    }

    #[test]
    fn what_somebody_still_has_is_not_spare() {
        type Part = fn(&Arc<Lane>) -> Box<dyn std::any::Any>;
        let others: [Part; 4] = [
            |lane| Box::new(Arc::clone(lane)),
            |lane| Box::new(Arc::clone(&lane.growth)),
            |lane| Box::new(Arc::clone(&lane.growth.flags)),
            |lane| Box::new(Arc::clone(&lane.growth.executed)),
        ];
        for other in others {
            let mut spares = Spares::default();
            let lane = used(growth(10), tensors());
            let _held = other(&lane);
            spares.keep(&mut vec![lane]);
            assert!(spares.lanes.is_empty());
        }
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let (mut spares, old) = (Spares::default(), growth(10));
        let lanes = |count| (0..count).map(|_| used(Arc::clone(&old), tensors())).collect();
        for (count, kept) in [(KEPT_MAX - 1, KEPT_MAX - 1), (3, KEPT_MAX), (1, KEPT_MAX)] {
            spares.keep(&mut lanes(count));
            assert_eq!(spares.len(), kept);
        }
        assert_eq!(Arc::strong_count(&old), 1, "those that are not kept are gone");
        let taken = spares.take((&mut growth(4), &mut tensors()), Slot(8), &[CellTypeId(9)].into());
        spares.keep(&mut taken.into_iter().collect());
        assert_eq!(spares.len(), KEPT_MAX, "there is room again for one");
    }
}
