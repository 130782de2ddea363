//! Bounds work by tenant: each tenant has a queue of its own, so that no tenant's work keeps others
//! waiting.
//!
//! A permit belongs to the work, not to the client that asked for it. Some work runs on a thread of
//! its own: a slow plugin's beginning, an upload's checks, a change of versions. It may outlive its
//! client by one bounded step, and keeps its permit until then. So no tenant has more of these
//! threads than its bound.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_registry::TenantName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{Limit, LimitReached};
use crate::shed::Shed;

/// Tenants without work whose queues may be kept.
const IDLE_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct TenantLimiter {
    limit: Limit,
    at_once: usize,
    waiting_max: usize,
    tenants: Mutex<HashMap<TenantName, TenantTurns>>,
    shed: Arc<Shed>,
}

#[derive(Clone, Debug)]
struct TenantTurns {
    /// For work that is under way or waits.
    taken: Arc<Semaphore>,
    working: Arc<Semaphore>,
}

/// Given back when dropped.
#[derive(Debug)]
pub(crate) struct WorkPermit {
    _working: OwnedSemaphorePermit,
    _taken: OwnedSemaphorePermit,
}

impl TenantLimiter {
    /// `at_once`: permits of one tenant at the same time. `limit` says how many more may wait for
    /// one, and names what is refused beyond that.
    pub(crate) fn new(limit: Limit, at_once: usize, shed: Arc<Shed>) -> Self {
        Self { limit, at_once: at_once.max(1), waiting_max: limit.waiting_max(), tenants: Mutex::default(), shed }
    }

    /// The tenant's next turn, waiting for it.
    ///
    /// # Errors
    /// If too many wait.
    pub(crate) async fn take(&self, tenant: &TenantName) -> Result<WorkPermit, LimitReached> {
        let TenantTurns { taken, working } = self.of_tenant(tenant);
        let reached = || self.shed.count(tenant, self.limit.reached(self.waiting_max as u64));
        let taken = taken.try_acquire_owned().map_err(|_| reached())?;
        let working = working.acquire_owned().await.map_err(|_| reached())?;
        Ok(WorkPermit { _working: working, _taken: taken })
    }

    fn of_tenant(&self, tenant: &TenantName) -> TenantTurns {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = tenants.get(tenant) {
            return turns.clone();
        }
        if tenants.len() >= IDLE_MAX {
            // Work that is under way, or about to be, holds its tenant's.
            tenants.retain(|_, turns| Arc::strong_count(&turns.taken) > 1);
        }
        let all = self.at_once.saturating_add(self.waiting_max).min(Semaphore::MAX_PERMITS);
        let working = self.at_once.min(Semaphore::MAX_PERMITS);
        let turns = TenantTurns { taken: Arc::new(Semaphore::new(all)), working: Arc::new(Semaphore::new(working)) };
        tenants.insert(tenant.clone(), turns.clone());
        turns
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn turns(at_once: usize, waiting_max: usize) -> TenantLimiter {
        TenantLimiter { waiting_max, ..TenantLimiter::new(Limit::TenantLists, at_once, Arc::default()) }
    }

    fn now(turns: &TenantLimiter, tenant: &str) -> Poll<Result<WorkPermit, LimitReached>> {
        poll(pin!(turns.take(&TenantName::parse(tenant).unwrap())))
    }

    #[test]
    fn a_tenant_waits_for_its_own_turns_alone() {
        let (turns, a) = (turns(2, 1), TenantName::parse("a").unwrap());
        let (first, second) = (now(&turns, "a"), now(&turns, "a"));
        assert!(matches!((&first, &second), (Poll::Ready(Ok(_)), Poll::Ready(Ok(_)))));
        let mut third = pin!(turns.take(&a));
        assert!(poll(third.as_mut()).is_pending());
        assert!(matches!(now(&turns, "a"), Poll::Ready(Err(_))), "the queue is full");
        assert!(matches!(now(&turns, "b"), Poll::Ready(Ok(_))));
        drop(first);
        let third = poll(third.as_mut());
        assert!(matches!(third, Poll::Ready(Ok(_))));
        assert!(now(&turns, "a").is_pending(), "it has given up its place in the queue again");
        drop((second, third));
        assert!(matches!(now(&turns, "a"), Poll::Ready(Ok(_))));
    }

    #[test]
    fn queues_without_work_are_not_kept_for_ever() {
        let turns = turns(1, 0);
        let held = now(&turns, "held");
        (0..3 * IDLE_MAX).for_each(|n| assert!(now(&turns, &format!("t{n}")).is_ready()));
        assert!(turns.tenants.lock().unwrap().len() <= IDLE_MAX + 1);
        assert!(matches!(now(&turns, "held"), Poll::Ready(Err(_))));
        drop(held);
        assert!(matches!(now(&turns, "held"), Poll::Ready(Ok(_))));
    }
}
