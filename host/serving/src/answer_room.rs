//! How much memory the answers of one call may take, and those of all calls together.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Whose;

/// A bound that the rows of one call share, within that of their tenant, within the host's. What a request may come to hold is taken when its graph
/// says so, before any of it is computed; a call gives all that it took back when it is dropped.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    bytes_max: u64,
    taken: AtomicU64,
    /// Whose answers share it; none: those of one call.
    whose: Option<Whose>,
    within: Option<Arc<AnswerRoom>>,
}

/// There is not so much room. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// The bound.
    pub(crate) bytes_max: u64,
    /// Of whose answers together; none: of those of one call.
    pub(crate) whose: Option<Whose>,
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

impl AnswerRoom {
    const fn new(bytes_max: u64, whose: Option<Whose>, within: Option<Arc<Self>>) -> Self {
        Self { bytes_max, taken: AtomicU64::new(0), whose, within }
    }

    /// For all answers of a host.
    pub(crate) const fn of_host(bytes_max: u64) -> Self {
        Self::new(bytes_max, Some(Whose::Host), None)
    }

    /// For those of one of its tenants: half of it.
    pub(crate) fn of_tenant(host: &Arc<Self>) -> Self {
        Self::new(host.bytes_max / 2, Some(Whose::Tenant), Some(host.clone()))
    }

    /// For those of one call, which may take no more than all may.
    pub(crate) fn of_call(tenant: &Arc<Self>, bytes_max: u64) -> Self {
        Self::new(bytes_max.min(tenant.bytes_max), None, Some(tenant.clone()))
    }

    /// A call's that is within nobody's.
    pub(crate) const fn alone(bytes_max: u64) -> Self {
        Self::new(bytes_max, None, None)
    }

    /// Takes `bytes` instead of the `before` that were taken already. To take less always succeeds.
    pub(crate) fn change(&self, before: u64, bytes: u64) -> Result<(), NoRoom> {
        let fits = |sum: &u64| *sum <= self.bytes_max || bytes <= before;
        let changed = |taken: u64| Some(taken.saturating_sub(before).saturating_add(bytes)).filter(fits);
        let changed = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        changed.map_err(|_| NoRoom { bytes_max: self.bytes_max, whose: self.whose })?;
        let Some(within) = &self.within else { return Ok(()) };
        within.change(before, bytes).inspect_err(|_| {
            self.taken.fetch_sub(bytes - before, Ordering::Relaxed);
        })
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        if let Some(within) = &self.within {
            let _ = within.change(*self.taken.get_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let room = AnswerRoom::alone(10);
        let no_room = Err(NoRoom { bytes_max: 10, whose: None });
        assert_eq!(room.change(0, 7), Ok(()));
        assert_eq!(room.change(0, 4), no_room);
        assert_eq!(room.change(0, u64::MAX), no_room);
        assert_eq!(room.change(7, 10), Ok(()));
        assert_eq!(room.change(10, 6), Ok(()));
        assert_eq!(room.change(0, 4), Ok(()));
    }

    #[test]
    fn calls_share_what_their_tenant_and_the_host_have() {
        let host = Arc::new(AnswerRoom::of_host(100));
        let [one, other, third] = [(); 3].map(|()| Arc::new(AnswerRoom::of_tenant(&host)));
        let beyond = |bytes_max, whose| Err(NoRoom { bytes_max, whose });
        let (first, second) = (AnswerRoom::of_call(&one, 30), AnswerRoom::of_call(&one, 1000));
        assert_eq!(first.change(0, 31), beyond(30, None));
        assert_eq!(first.change(0, 30), Ok(()));
        assert_eq!(second.change(0, 51), beyond(50, None), "a call alone may take no more than its tenant");
        assert_eq!(second.change(0, 21), beyond(50, Some(Whose::Tenant)));
        assert_eq!(second.change(0, 20), Ok(()));
        let (large, small) = (AnswerRoom::of_call(&other, 1000), AnswerRoom::of_call(&third, 1000));
        assert_eq!(large.change(0, 50), Ok(()));
        assert_eq!(small.change(0, 1), beyond(100, Some(Whose::Host)));
        drop(first);
        assert_eq!(small.change(0, 31), beyond(100, Some(Whose::Host)));
        assert_eq!(small.change(0, 30), Ok(()));
        assert_eq!(second.change(20, 21), beyond(100, Some(Whose::Host)), "what was refused above is not taken below");
        drop((second, large, small));
        assert!([host, one, other, third].iter().all(|room| room.taken.load(Ordering::Relaxed) == 0));
    }
}
