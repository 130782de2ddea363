//! Requests that wait for memory: one queue per tenant, and the choice of the next tenant.
//!
//! The next memory goes to the tenant that holds the least of it for its weight. Among equals it
//! goes to the one that was served longest ago. Within a queue the lowest rank goes first, then
//! the oldest request. The first request of that tenant is waited for until it fits. Meanwhile
//! other tenants get what is left of their [`Parts`].
//!
//! So a tenant is not kept out by the number, the ranks or the length of another's requests, and a
//! large request does not starve behind small ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::core::tenants::TenantIndex;
use crate::id::RequestId;
use crate::parts::Parts;

/// Fraction bits of the slots that a tenant holds for its weight.
const FRACTION: u32 = 16;

/// A tenant's turn: the least is the next.
pub(crate) type Turn = (QueuePriority, TenantIndex);

/// A request's position in its tenant's queue: rank, then order of admission.
pub(crate) type Order = (u32, u64);

/// The queues of a numeric class. Every change takes a time logarithmic in what waits.
#[derive(Debug, Default)]
pub(crate) struct AdmissionQueues {
    /// By tenant.
    queues: Vec<TenantQueue>,
    /// Slots that tenants hold, of those of all arenas.
    parts: Parts,
    /// Tenants whose queues are not empty, the next one first.
    by_priority: BTreeSet<Turn>,
    /// Counts requests served and queues begun.
    moment: u64,
}

/// When a tenant's queue is served: the least goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePriority {
    /// Slots that the tenant holds, for its weight.
    slots: u64,
    /// The moment since which it waits.
    since: u64,
}

#[derive(Debug, Default)]
struct TenantQueue {
    priority: QueuePriority,
    requests: BTreeMap<Order, RequestId>,
}

impl AdmissionQueues {
    /// Whether no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_priority.is_empty()
    }

    /// Requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.requests.len()).sum()
    }

    /// Tenants that hold memory or wait for some.
    pub(crate) fn tenants(&self) -> usize {
        let holds_or_waits = |(tenant, queue): &(u32, &TenantQueue)| self.parts.held(*tenant) > 0 || !queue.requests.is_empty();
        (0..).zip(&self.queues).filter(holds_or_waits).count()
    }

    /// The slots of all arenas, and how they are divided.
    pub(crate) const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Changes how slots are divided, or how many there are.
    pub(crate) const fn parts_mut(&mut self) -> &mut Parts {
        &mut self.parts
    }

    /// The request that gets the next memory, of the tenants whose turn is after that one's.
    pub(crate) fn first_after(&self, turn: Option<Turn>) -> Option<(Turn, Order, RequestId)> {
        let after = turn.map_or(Bound::Unbounded, Bound::Excluded);
        let turn = *self.by_priority.range((after, Bound::Unbounded)).next()?;
        let (order, id) = self.queues.get(turn.1.index())?.requests.first_key_value()?;
        Some((turn, *order, *id))
    }

    pub(crate) fn push(&mut self, tenant: TenantIndex, order: Order, id: RequestId) {
        let now = self.next_moment();
        self.change(tenant, |queue, _| {
            if queue.requests.is_empty() {
                queue.priority.since = now;
            }
            queue.requests.insert(order, id);
        });
    }

    /// A request waits no more.
    pub(crate) fn remove(&mut self, tenant: TenantIndex, order: Order) {
        self.change(tenant, |queue, _| {
            queue.requests.remove(&order);
        });
    }

    /// A tenant's request was given slots, of those that were [available](Parts::available).
    pub(crate) fn add_slots(&mut self, tenant: TenantIndex, slots: u32) {
        let now = self.next_moment();
        self.change(tenant, |queue, held| {
            queue.priority.since = now;
            held.hold(tenant.number(), slots.into());
        });
    }

    /// A tenant's request has given slots back.
    pub(crate) fn remove_slots(&mut self, tenant: TenantIndex, slots: u32) {
        self.change(tenant, |_, held| held.give_back(tenant.number(), slots.into()));
    }

    const fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Changes a queue, and its place among the others.
    fn change(&mut self, tenant: TenantIndex, change: impl FnOnce(&mut TenantQueue, &mut Parts)) {
        if tenant.index() >= self.queues.len() {
            self.queues.resize_with(tenant.index() + 1, TenantQueue::default);
        }
        let queue = &mut self.queues[tenant.index()];
        if !queue.requests.is_empty() {
            self.by_priority.remove(&(queue.priority, tenant));
        }
        change(queue, &mut self.parts);
        if !queue.requests.is_empty() {
            let (held, weight) = (self.parts.held(tenant.number()), self.parts.weight(tenant.number()));
            queue.priority.slots = (held << FRACTION) / u64::from(weight.max(1));
            self.by_priority.insert((queue.priority, tenant));
        } else if self.parts.held(tenant.number()) == 0 {
            *queue = TenantQueue::default();
        }
    }
}
