//! How much of the host's memory answers may take: of one call, and of one tenant.
//!
//! It counts every row that will leave a worker for a request, every copy for the response or the
//! plugin, and the request's graph. The bytes are taken when the graph is checked, before any of it
//! is computed. They are given back when the answer has been sent, or when it is certain that it
//! will not be.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_engine::Parts;

/// What the answers of all tenants share.
#[derive(Clone, Debug)]
pub(crate) struct HostRoom(Arc<Mutex<Parts>>);

/// A tenant's part of it, for as long as the tenant has models or calls.
#[derive(Debug)]
pub(crate) struct TenantRoom {
    host: HostRoom,
    tenant: u32,
}

/// A bound for the answer of one call, within its tenant's room. A call gives all that it took back
/// when this is dropped.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    bytes_max: u64,
    taken: AtomicU64,
    /// Taken of the tenant's room for the call's graphs: `bytes_max` is for the answer alone.
    graphs: AtomicU64,
    within: Option<Arc<TenantRoom>>,
}

/// There is not so much room. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// What there may be.
    pub(crate) bytes_max: u64,
    /// Of all answers of a tenant, not of one call.
    pub(crate) of_tenant: bool,
}

/// What an answer holds of the host's room, for as long as somebody keeps this.
#[derive(Debug)]
pub struct AnswerShare {
    _room: Arc<dyn Debug + Send + Sync>,
}

impl AnswerShare {
    /// Of that room.
    #[must_use]
    pub fn new(room: Arc<impl Debug + Send + Sync + 'static>) -> Self {
        Self { _room: room }
    }
}

impl HostRoom {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self(Arc::new(Mutex::new(Parts::new(bytes_max))))
    }

    /// Of a tenant that has no room yet.
    pub(crate) fn tenant(&self, tenant: u32, weight: u32) -> TenantRoom {
        self.parts().set_weight(tenant, weight.max(1));
        TenantRoom { host: self.clone(), tenant }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenantRoom {
    pub(crate) fn set_weight(&self, weight: u32) {
        self.host.parts().set_weight(self.tenant, weight.max(1));
    }

    /// Takes `bytes` instead of the `before` that were taken already. To take less always succeeds.
    fn change(&self, before: u64, bytes: u64) -> Result<(), NoRoom> {
        let mut parts = self.host.parts();
        match bytes.checked_sub(before) {
            None => parts.give_back(self.tenant, before - bytes),
            Some(more) if parts.take(self.tenant, more) => {}
            Some(_) => return Err(NoRoom { bytes_max: parts.held(self.tenant) + parts.available(self.tenant), of_tenant: true }),
        }
        Ok(())
    }
}

impl Drop for TenantRoom {
    fn drop(&mut self) {
        self.host.parts().set_weight(self.tenant, 0);
    }
}

impl AnswerRoom {
    /// Of one call, which may take no more than its tenant may.
    pub(crate) fn new(tenant: &Arc<TenantRoom>, bytes_max: u64) -> Self {
        let most = tenant.host.parts().most(tenant.tenant);
        Self { bytes_max: bytes_max.min(most), taken: AtomicU64::new(0), graphs: AtomicU64::new(0), within: Some(tenant.clone()) }
    }

    /// A call's that is within nobody's.
    pub(crate) const fn alone(bytes_max: u64) -> Self {
        Self { bytes_max, taken: AtomicU64::new(0), graphs: AtomicU64::new(0), within: None }
    }

    /// Takes `bytes` instead of the `before` that were taken already. To take less always succeeds.
    pub(crate) fn change(&self, before: u64, bytes: u64) -> Result<(), NoRoom> {
        let changed = |taken: u64| {
            let sum = taken.saturating_sub(before).saturating_add(bytes);
            (bytes <= before || sum <= self.bytes_max).then_some(sum)
        };
        let changed = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        changed.map_err(|_| NoRoom { bytes_max: self.bytes_max, of_tenant: false })?;
        let Some(within) = &self.within else { return Ok(()) };
        within.change(before, bytes).inspect_err(|_| {
            self.taken.fetch_sub(bytes - before, Ordering::Relaxed);
        })
    }

    /// As [`Self::change`], for graphs of a call.
    pub(crate) fn change_graphs(&self, before: u64, bytes: u64) -> Result<(), NoRoom> {
        let Some(within) = &self.within else { return Ok(()) };
        within.change(before, bytes)?;
        // Wraps around where it becomes less.
        self.graphs.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        if let Some(within) = &self.within {
            let _ = within.change(*self.taken.get_mut() + *self.graphs.get_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn beyond(bytes_max: u64, of_tenant: bool) -> Result<(), NoRoom> {
        Err(NoRoom { bytes_max, of_tenant })
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let room = AnswerRoom::alone(10);
        assert_eq!(room.change(0, 7), Ok(()));
        assert_eq!(room.change(0, 4), beyond(10, false));
        assert_eq!(room.change(0, u64::MAX), beyond(10, false));
        assert_eq!(room.change(7, 10), Ok(()));
        assert_eq!(room.change(10, 6), Ok(()));
        assert_eq!(room.change(0, 4), Ok(()));
    }

    #[test]
    fn calls_share_what_their_tenant_has() {
        let host = HostRoom::new(100);
        let (one, other) = (Arc::new(host.tenant(0, 3)), Arc::new(host.tenant(1, 2)));
        let (first, second) = (AnswerRoom::new(&one, 30), AnswerRoom::new(&one, 1000));
        assert_eq!(first.change(0, 31), beyond(30, false));
        assert_eq!(first.change(0, 30), Ok(()));
        assert_eq!(second.change(0, 81), beyond(80, false), "a call alone may take no more than its tenant");
        assert_eq!(second.change(0, 51), beyond(80, true));
        assert_eq!(second.taken.load(Ordering::Relaxed), 0, "what the tenant may not have, the call has not");
        assert_eq!(second.change(0, 50), Ok(()));
        let third = AnswerRoom::new(&other, 1000);
        assert_eq!(third.change_graphs(0, 21), beyond(20, true));
        assert_eq!(third.change_graphs(0, 20), Ok(()));
        drop((first, second, one));
        let fourth = AnswerRoom::new(&other, 1000);
        assert_eq!(fourth.change(0, 80), Ok(()), "a tenant alone may have everything");
        drop((third, fourth, other));
        assert_eq!([0, 1].map(|tenant| host.parts().held(tenant)), [0, 0]);
    }
}
