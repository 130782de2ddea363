//! Which lanes are placed, and which workers know them.
//!
//! What crosses to a worker follows joins and leaves, not batches. A released lane is held here
//! until every worker that knew it has completed the task with which it was told to forget the
//! lane. So no worker, unless it is lost, is the last to hold a request. The engine's thread, which
//! allocated most of a request's memory, is the one that frees it or passes it on (`spares`).

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use cellwright_backend::{Lane, Slot};
use cellwright_scheduler::{LaneId, ModelId, RequestId, Row, WorkerId};

use crate::spares::Spares;

/// More workers than bits of the set of those that a worker reaches would need another structure.
pub(crate) const WORKERS_MAX: usize = 64;

/// A placed lane.
pub(crate) struct LaneEntry {
    pub(crate) lane: Arc<Lane>,
    pub(crate) request: RequestId,
    /// Which of the request's growths.
    pub(crate) growth: u32,
    /// Its request's.
    pub(crate) model: ModelId,
    /// Its chain, counted over the request, and its stage.
    pub(crate) chain: u32,
    pub(crate) stage: u32,
    /// What it held before was another tenant's.
    pub(crate) scrub: bool,
}

impl LaneEntry {
    /// The slots that `steps` steps from `step` on are the first of this request to write, to be zeroed before them: another tenant held them.
    ///
    /// A node is zeroed by the task that computes it and by no other, because other workers may compute other nodes of the lane meanwhile.
    pub(crate) fn scrub(&self, step: u32, steps: u32, node_slots: u32) -> Option<(Slot, u32)> {
        let retention = self.lane.stage().retention;
        let places = retention.first_written(self.lane.chain().length.bound, step..step.saturating_add(steps));
        let first = self.lane.slot().0.checked_add(places.start.checked_mul(node_slots)?)?;
        let count = places.end.checked_sub(places.start).filter(|places| *places > 0)?.checked_mul(node_slots)?;
        self.scrub.then_some((Slot(first), count))
    }
}

/// All placed lanes, by id.
#[derive(Default)]
pub(crate) struct Lanes {
    entries: Vec<Option<LaneEntry>>,
    /// How many of them are to be scrubbed.
    scrubs: usize,
    /// For each worker; none if it is lost.
    workers: Vec<Option<Known>>,
}

/// What a worker knows of lanes. Of those that were released: a worker that has nothing to do keeps them until its next task, and with them what their growths
/// refer to (tensors of requests that have ended): at most the lanes that were placed when it got its last task, each once.
#[derive(Default)]
struct Known {
    /// A bit for each lane that is placed and that it was told of: so near together that all of a task's are looked at in no time. It is cleared when the lane
    /// is released, before the worker is told: until then it has the lane in its table, and the id may be another lane's already.
    lanes: Vec<u64>,
    /// Those that it must forget with its next task.
    left: Vec<LaneId>,
    /// The same, which are held until that task is complete, and so freed by the engine's thread, which allocated most of what they refer to, and not by the
    /// worker's, which would have to hand all of it back to another thread's heap.
    held: Vec<Arc<Lane>>,
    /// Those of tasks that are on their way, by their numbers.
    told: VecDeque<(u64, Vec<Arc<Lane>>)>,
}

impl Known {
    /// Notes that the worker knows a lane; whether it did not.
    fn learn(&mut self, id: LaneId) -> bool {
        let (word, bit) = (id.index() / u64::BITS as usize, 1 << (id.0 % u64::BITS));
        if self.lanes.len() <= word {
            self.lanes.resize(word + 1, 0);
        }
        let known = &mut self.lanes[word];
        let is_new = *known & bit == 0;
        // Neighbours are in one word: where nothing changes, the next one does not wait for it to be written.
        if is_new {
            *known |= bit;
        }
        is_new
    }

    /// Notes that it is to forget a lane; whether it knew it.
    fn forget(&mut self, id: LaneId) -> bool {
        let bit = 1 << (id.0 % u64::BITS);
        let Some(known) = self.lanes.get_mut(id.index() / u64::BITS as usize) else { return false };
        let knew = *known & bit != 0;
        *known &= !bit;
        knew
    }
}

impl Lanes {
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers: (0..workers).map(|_| Some(Known::default())).collect(), ..Self::default() }
    }

    pub(crate) fn place(&mut self, id: LaneId, entry: LaneEntry) {
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.scrubs += usize::from(entry.scrub);
        self.entries[id.index()] = Some(entry);
    }

    pub(crate) fn get(&self, id: LaneId) -> Option<&LaneEntry> {
        self.entries.get(id.index())?.as_ref()
    }

    /// Reads those lanes, so that whoever goes through them does not wait for each by itself.
    pub(crate) fn read_ahead(&self, ids: impl Iterator<Item = LaneId>) {
        black_box(ids.filter_map(|id| self.get(id)).fold(0, |read, entry| read ^ entry.request.0));
    }

    /// Whether any lane may have slots to zero.
    pub(crate) const fn any_to_scrub(&self) -> bool {
        self.scrubs > 0
    }

    /// Forgets a lane; workers that know it are told with their next task. Its request, and which of its growths it was of.
    pub(crate) fn release(&mut self, id: LaneId) -> Option<(RequestId, u32)> {
        let LaneEntry { lane, request, growth, scrub, .. } = self.entries.get_mut(id.index())?.take()?;
        self.scrubs -= usize::from(scrub);
        let mut lane = Some(lane);
        let mut knowing = self.workers.iter_mut().flatten().filter_map(|worker| worker.forget(id).then_some(worker)).peekable();
        while let Some(worker) = knowing.next() {
            worker.left.push(id);
            // Mostly there is but one.
            let held = if knowing.peek().is_some() { lane.clone() } else { lane.take() };
            worker.held.extend(held);
        }
        Some((request, growth))
    }

    /// Lanes of a task that its worker is now to be told of, in its order.
    pub(crate) fn introduce(&mut self, rows: &[Row], worker: WorkerId, new: &mut Vec<LaneId>) {
        if let Some(known) = &mut self.workers[worker.index()] {
            new.extend(rows.iter().map(|row| row.lane).filter(|lane| known.learn(*lane)));
        }
    }

    /// What the worker must forget with that task, handed over once.
    pub(crate) fn take_leaves(&mut self, worker: WorkerId, task: u64) -> Vec<LaneId> {
        let Some(known) = &mut self.workers[worker.index()] else { return Vec::new() };
        if !known.held.is_empty() {
            known.told.push_back((task, std::mem::take(&mut known.held)));
        }
        std::mem::take(&mut known.left)
    }

    /// A worker's tasks up to that one are complete: of what it has forgotten with them, some may be to spare.
    pub(crate) fn completed(&mut self, worker: WorkerId, task: u64, spares: &mut Spares) {
        let Some(known) = &mut self.workers[worker.index()] else { return };
        while let Some((_, mut lanes)) = known.told.pop_front_if(|(number, _)| *number <= task) {
            spares.keep(&mut lanes);
            if known.held.capacity() == 0 {
                known.held = lanes;
            }
        }
    }

    /// A worker is lost: it is told of nothing any more.
    pub(crate) fn lost(&mut self, worker: WorkerId) {
        self.workers[worker.index()] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    use cellwright_backend::{FirstSlots, PlacedGrowth};
    use cellwright_conformance::driver::{growth_of, independent};

    fn lane() -> Arc<Lane> {
        let growth = PlacedGrowth {
            growth: Arc::new(growth_of(vec![independent(0, 1, Vec::new(), 1)])),
            cells: [].into(),
            slots: FirstSlots::one(Slot(0)),
            executed: [AtomicU32::new(1)].into(),
            earlier: Vec::new(),
            tensors: Vec::new(),
            first_tensor: 0,
            flags: Arc::default(),
        };
        Arc::new(Lane { growth: Arc::new(growth), chain: 0, stage: 0 })
    }

    fn entry(lane: Arc<Lane>, scrub: bool) -> LaneEntry {
        LaneEntry { lane, request: RequestId(0), growth: 0, model: ModelId(0), chain: 0, stage: 0, scrub }
    }

    /// Which lanes are new to a worker in a task that has a row of each of them.
    fn new_of(lanes: &mut Lanes, ids: &[LaneId], worker: WorkerId) -> Vec<LaneId> {
        let (rows, mut new): (Vec<Row>, _) = (ids.iter().map(|lane| Row { lane: *lane, step: 0 }).collect(), Vec::new());
        lanes.introduce(&rows, worker, &mut new);
        new
    }

    #[test]
    fn what_a_worker_knows_is_held_until_it_has_forgotten_it() {
        let workers = [WorkerId(0), WorkerId(1)];
        let (mut lanes, mut spares, own) = (Lanes::new(2), Spares::default(), [0; 4].map(|_| lane()));
        let users = || own.each_ref().map(Arc::strong_count);
        for (id, lane) in (0..).map(LaneId).zip(&own) {
            lanes.place(id, entry(Arc::clone(lane), false));
        }
        // The first is known to both, the next two to one each, the last to none.
        for (id, worker) in [(0, 0), (0, 1), (1, 0), (2, 1)] {
            let (lane, mut new) = (LaneId(id), Vec::new());
            (0..2).for_each(|step| lanes.introduce(&[Row { lane, step }], workers[worker], &mut new));
            assert_eq!(new, [lane]);
        }
        (0..4).for_each(|id| assert_eq!(lanes.release(LaneId(id)), Some((RequestId(0), 0))));
        assert_eq!(users(), [3, 2, 2, 1]);
        assert_eq!(lanes.take_leaves(workers[0], 7), [LaneId(0), LaneId(1)]);
        assert_eq!(lanes.take_leaves(workers[0], 8), []);
        lanes.completed(workers[0], 6, &mut spares);
        assert_eq!(users(), [3, 2, 2, 1]);
        lanes.completed(workers[0], 8, &mut spares);
        assert_eq!(users(), [2, 1, 2, 1]);
        lanes.lost(workers[1]);
        assert_eq!((users(), lanes.take_leaves(workers[1], 9)), ([1; 4], Vec::new()));
    }

    #[test]
    fn a_lane_whose_id_was_another_ones_before_is_new_to_whoever_knew_that_one() {
        // The last is in a word of its own.
        let (worker, ids, own) = (WorkerId(0), [0, 3, 64].map(LaneId), [0; 3].map(|_| lane()));
        let mut lanes = Lanes::new(1);
        for (id, lane) in ids.iter().zip(&own) {
            lanes.place(*id, entry(Arc::clone(lane), false));
        }
        assert_eq!(new_of(&mut lanes, &ids, worker), ids);
        assert_eq!((lanes.take_leaves(worker, 1), new_of(&mut lanes, &ids, worker)), (Vec::new(), Vec::new()));

        for (id, before) in ids.iter().zip(&own).skip(1) {
            let after = lane();
            assert!(lanes.release(*id).is_some() && lanes.get(*id).is_none() && lanes.release(*id).is_none());
            lanes.place(*id, entry(Arc::clone(&after), false));
            assert!(lanes.get(*id).is_some_and(|known| Arc::ptr_eq(&known.lane, &after)));
            // Of both it hears with one task, by the same id.
            assert_eq!(lanes.take_leaves(worker, 2), [*id]);
            assert_eq!(new_of(&mut lanes, &ids, worker), [*id]);
            assert_eq!(Arc::strong_count(before), 2, "until that task is complete");
        }
    }

    #[test]
    fn there_are_lanes_to_scrub_until_the_last_of_them_is_released() {
        let mut lanes = Lanes::new(1);
        assert!(!lanes.any_to_scrub());
        for (id, scrub) in [(0, true), (1, false), (2, true)] {
            lanes.place(LaneId(id), entry(lane(), scrub));
        }
        let left = [0, 1, 0, 2].map(|id| (lanes.release(LaneId(id)).is_some(), lanes.any_to_scrub()));
        assert_eq!(left, [(true, true), (true, true), (false, true), (true, false)]);
        lanes.place(LaneId(0), entry(lane(), false));
        assert!(!lanes.any_to_scrub(), "what another lane of that id held before does not count");
    }

    #[test]
    fn a_lane_that_two_workers_knew_becomes_spare_when_the_second_has_forgotten_it() {
        let workers = [WorkerId(0), WorkerId(1)];
        for [first, second] in [workers, [workers[1], workers[0]]] {
            let (mut lanes, mut spares) = (Lanes::new(2), Spares::default());
            lanes.place(LaneId(0), entry(lane(), false));
            let new = workers.map(|worker| new_of(&mut lanes, &[LaneId(0)], worker));
            assert_eq!(new, [[LaneId(0)], [LaneId(0)]]);
            lanes.release(LaneId(0));
            assert_eq!(workers.map(|worker| lanes.take_leaves(worker, 1)), [[LaneId(0)], [LaneId(0)]]);
            let spare = [first, first, second, second, first].map(|worker| {
                lanes.completed(worker, 1, &mut spares);
                spares.len()
            });
            assert_eq!(spare, [0, 0, 1, 1, 1]);
        }
    }
}
