//! Requests that wait for memory: one queue per tenant, and the choice of the next tenant.
//!
//! The next memory goes to the tenant that holds the least of it for its weight. Among equals it
//! goes to the one that was served longest ago. Within a queue the lowest rank goes first, then
//! the oldest request. The first request of that tenant is waited for until it fits.
//!
//! So a tenant is not kept out by the number or the ranks of another's requests, and a large
//! request does not starve behind small ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::tenants::TenantIndex;
use crate::id::RequestId;

/// Fraction bits of the slots that a tenant holds for its weight.
const FRACTION: u32 = 16;

/// A request's position in its tenant's queue: rank, then order of admission.
pub(crate) type Order = (u32, u64);

/// The queues of a numeric class. Every change takes a time logarithmic in what waits.
#[derive(Debug, Default)]
pub(crate) struct AdmissionQueues {
    /// By tenant.
    queues: Vec<TenantQueue>,
    /// Tenants whose queues are not empty, the next one first.
    by_priority: BTreeSet<(QueuePriority, TenantIndex)>,
    /// Counts requests served and queues begun.
    moment: u64,
}

/// When a tenant's queue is served: the least goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePriority {
    /// Slots that the tenant holds, for its weight.
    slots: u64,
    /// The moment since which it waits.
    since: u64,
}

#[derive(Debug, Default)]
struct TenantQueue {
    weight: u32,
    /// Slots that the tenant's requests hold.
    slots_held: u64,
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
        self.queues.iter().filter(|queue| queue.slots_held > 0 || !queue.requests.is_empty()).count()
    }

    /// The request that gets the next memory.
    pub(crate) fn first(&self) -> Option<(TenantIndex, Order, RequestId)> {
        let (_, tenant) = self.by_priority.first()?;
        let (order, id) = self.queues.get(tenant.index())?.requests.first_key_value()?;
        Some((*tenant, *order, *id))
    }

    pub(crate) fn push(&mut self, (tenant, weight): (TenantIndex, u32), order: Order, id: RequestId) {
        let now = self.next_moment();
        self.change(tenant, |queue| {
            queue.weight = weight;
            if queue.requests.is_empty() {
                queue.priority.since = now;
            }
            queue.requests.insert(order, id);
        });
    }

    /// A request waits no more.
    pub(crate) fn remove(&mut self, tenant: TenantIndex, order: Order) {
        self.change(tenant, |queue| {
            queue.requests.remove(&order);
        });
    }

    /// A tenant's request was given slots.
    pub(crate) fn add_slots(&mut self, (tenant, weight): (TenantIndex, u32), slots: u32) {
        let now = self.next_moment();
        self.change(tenant, |queue| {
            (queue.weight, queue.priority.since) = (weight, now);
            queue.slots_held += u64::from(slots);
        });
    }

    /// A tenant's request has given slots back.
    pub(crate) fn remove_slots(&mut self, tenant: TenantIndex, slots: u32) {
        self.change(tenant, |queue| queue.slots_held -= u64::from(slots));
    }

    const fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Changes a queue, and its place among the others.
    fn change(&mut self, tenant: TenantIndex, change: impl FnOnce(&mut TenantQueue)) {
        if tenant.index() >= self.queues.len() {
            self.queues.resize_with(tenant.index() + 1, TenantQueue::default);
        }
        let queue = &mut self.queues[tenant.index()];
        if !queue.requests.is_empty() {
            self.by_priority.remove(&(queue.priority, tenant));
        }
        change(queue);
        if !queue.requests.is_empty() {
            queue.priority.slots = (queue.slots_held << FRACTION) / u64::from(queue.weight.max(1));
            self.by_priority.insert((queue.priority, tenant));
        } else if queue.slots_held == 0 {
            *queue = TenantQueue::default();
        }
    }
}
