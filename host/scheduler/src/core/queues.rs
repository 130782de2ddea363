//! Each cell type's queue of subgraphs, and how many ready nodes each worker finds in it.
//!
//! Only subgraphs with a ready node are listed, under the key they got when they entered. A
//! subgraph that is listed again keeps its key. So forming a batch touches little but what it
//! takes.

mod sorted_ring;

use std::cell::Cell;

use smallvec::SmallVec;

use crate::core::group::Group;
use crate::core::queues::sorted_ring::SortedRing;
use crate::id::{DomainId, LaneId, ModelId, Time, WorkerId};

/// A subgraph's key in its queue: by rank, then first come, first served. Also the age of a ready
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) rank: u32,
    pub(crate) time: Time,
    pub(crate) order: u64,
    pub(crate) chain: u32,
    pub(crate) stage: u32,
    pub(crate) step: u32,
}

impl Key {
    /// Older than any other.
    pub(crate) const FIRST: Self = Self { rank: 0, time: Time(0), order: 0, chain: 0, stage: 0, step: 0 };
}

/// A subgraph with ready nodes, or a run of single-node ones that became ready together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A stage that is one subgraph in order.
    Front(LaneId),
    /// Steps of a stage whose every node is a subgraph; some may be submitted already.
    Run(LaneId, u32, u32),
    /// One of a stage's subgraphs.
    Subgraph(LaneId, u32),
}

/// Which workers may run a ready node now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Any worker of the domain.
    Domain(DomainId),
    /// One worker.
    Worker(WorkerId),
    /// None for now: a producer is in flight on one worker, its subgraph on another.
    Nobody,
}

/// Ready nodes by the workers that may run them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    domains: Counts,
    workers: Counts,
}

/// Entries by number of a domain or worker. Most hosts have one of each, so the first entry needs
/// no allocation.
pub(crate) type Few<T> = SmallVec<[T; 1]>;

/// The entry with this number. Adds it, and those before it, if it does not exist.
#[inline]
pub(crate) fn entry<T: Default>(entries: &mut Few<T>, number: usize) -> &mut T {
    if number >= entries.len() {
        grow(entries, number);
    }
    &mut entries[number]
}

#[cold]
fn grow<T: Default>(entries: &mut Few<T>, number: usize) {
    entries.resize_with(number + 1, T::default);
}

/// Counts by number of a domain or worker. A `Few<u32>` makes the workload `mix` of
/// `benches/cost.rs` 4 % slower.
#[derive(Debug, Default)]
struct Counts {
    first: u32,
    others: Vec<u32>,
}

impl Counts {
    fn get(&self, index: usize) -> u32 {
        if index == 0 { self.first } else { self.others.get(index - 1).copied().unwrap_or(0) }
    }

    fn get_mut(&mut self, index: usize) -> &mut u32 {
        if index == 0 {
            return &mut self.first;
        }
        if index > self.others.len() {
            self.others.resize(index, 0);
        }
        &mut self.others[index - 1]
    }
}

impl Tally {
    #[inline]
    pub(crate) fn change(&mut self, scope: Scope, by: i32) {
        let count = match scope {
            Scope::Domain(domain) => self.domains.get_mut(domain.index()),
            Scope::Worker(worker) => self.workers.get_mut(worker.index()),
            Scope::Nobody => return,
        };
        *count = count.checked_add_signed(by).expect("fewer ready nodes than none");
    }

    /// Ready nodes that this worker alone may run.
    pub(crate) fn own(&self, worker: WorkerId) -> u32 {
        self.workers.get(worker.index())
    }

    /// Ready nodes that this worker may run.
    pub(crate) fn runnable(&self, worker: WorkerId, domain: DomainId) -> u32 {
        self.domains.get(domain.index()) + self.workers.get(worker.index())
    }
}

/// A cell type's queue, one part for each domain: what waits in one cannot run in another.
#[derive(Debug, Default)]
pub(crate) struct TypeQueue {
    domains: Few<SortedRing>,
    pub(crate) tally: Tally,
    /// Chains that continue together, by worker.
    pub(crate) groups: Few<Group>,
    /// Counts changes of what is ready, and of how old it is.
    changes: u64,
    seen: Cell<Option<Seen>>,
    /// Tasks in flight.
    pub(crate) running: u32,
    /// Cells of models that are of this type.
    pub(crate) cells: u32,
    /// Device time of a task, nanoseconds: a moving average.
    pub(crate) estimate_ns: u64,
}

/// The answer to the last question for the oldest ready node, and after which change it was given.
#[derive(Clone, Copy, Debug)]
struct Seen {
    changes: u64,
    worker: WorkerId,
    model: Option<ModelId>,
    oldest: Option<Key>,
}

impl TypeQueue {
    /// The ready nodes, or their ages, have changed.
    pub(crate) const fn changed(&mut self) {
        self.changes += 1;
    }

    /// The result of `find`, cached until the next change.
    pub(crate) fn oldest(&self, worker: WorkerId, model: Option<ModelId>, find: impl FnOnce() -> Option<Key>) -> Option<Key> {
        let same = |seen: &Seen| seen.changes == self.changes && seen.worker == worker && seen.model == model;
        if let Some(seen) = self.seen.get().filter(same) {
            return seen.oldest;
        }
        let oldest = find();
        self.seen.set(Some(Seen { changes: self.changes, worker, model, oldest }));
        oldest
    }

    pub(crate) fn list(&mut self, domain: DomainId, key: Key, item: Item) {
        entry(&mut self.domains, domain.index()).insert(key, item);
    }

    pub(crate) fn unlist(&mut self, domain: DomainId, key: &Key) -> Option<Item> {
        self.domains.get_mut(domain.index())?.remove(key)
    }

    pub(crate) fn items(&self, domain: DomainId) -> impl Iterator<Item = (&Key, &Item)> {
        self.domains.get(domain.index()).into_iter().flat_map(SortedRing::iter)
    }

    /// The run that holds a step: the last one that began at or before it.
    pub(crate) fn run_mut(&mut self, domain: DomainId, key: &Key) -> Option<(Key, &mut Item)> {
        self.domains.get_mut(domain.index())?.last_to(key)
    }
}
