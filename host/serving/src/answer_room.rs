//! How much of the host's memory answers may take: of one call, of one tenant, and of the host.
//!
//! It counts every row that will leave a worker for a request, every copy for the response or the
//! plugin, and the request's graph. The bytes are taken when the graph is checked, before any of it
//! is computed. They are given back when the answer has been sent, or when it is certain that it
//! will not be.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::AnswersOf;

/// A bound that the rows of one call share, within that of their tenant, within the host's. A tenant's moves: it may take as much as would then still be
/// free, so that however many tenants take all they may, there is some left for the next one. What a request may come to hold is taken when its graph
/// says so, before any of it is computed; a call gives all that it took back when it is dropped.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    bytes_max: u64,
    taken: AtomicU64,
    /// What is taken of its tenant's for the call's graphs: a call's bound is for its answer alone.
    graphs: AtomicU64,
    /// Whose answers share it; none: those of one call.
    whose: Option<AnswersOf>,
    within: Option<Arc<AnswerRoom>>,
}

/// There is not so much room. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// The bound.
    pub(crate) bytes_max: u64,
    /// Of whose answers together; none: of those of one call.
    pub(crate) whose: Option<AnswersOf>,
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
    const fn new(bytes_max: u64, whose: Option<AnswersOf>, within: Option<Arc<Self>>) -> Self {
        Self { bytes_max, taken: AtomicU64::new(0), graphs: AtomicU64::new(0), whose, within }
    }

    /// For all answers of a host.
    pub(crate) const fn of_host(bytes_max: u64) -> Self {
        Self::new(bytes_max, Some(AnswersOf::Host), None)
    }

    /// For those of one of its tenants: half of it at most, and half of what others leave.
    pub(crate) fn of_tenant(host: &Arc<Self>) -> Self {
        Self::new(host.bytes_max / 2, Some(AnswersOf::Tenant), Some(host.clone()))
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
        let changed = |taken: u64| {
            let sum = taken.saturating_sub(before).saturating_add(bytes);
            (bytes <= before || sum <= self.bound(taken)).then_some(sum)
        };
        let changed = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        changed.map_err(|taken| NoRoom { bytes_max: self.bound(taken), whose: self.whose })?;
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

    /// What it may hold, if it holds `taken` now. Others change meanwhile what a tenant's depends on: it is about right; the host's is exact.
    fn bound(&self, taken: u64) -> u64 {
        match &self.within {
            Some(host) if self.whose == Some(AnswersOf::Tenant) => {
                let others = host.taken.load(Ordering::Relaxed).saturating_sub(taken);
                host.bytes_max.saturating_sub(others) / 2
            }
            _ => self.bytes_max,
        }
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

    fn beyond(bytes_max: u64, whose: impl Into<Option<AnswersOf>>) -> Result<(), NoRoom> {
        Err(NoRoom { bytes_max, whose: whose.into() })
    }

    #[test]
    fn calls_share_what_their_tenant_has() {
        let host = Arc::new(AnswerRoom::of_host(100));
        let one = Arc::new(AnswerRoom::of_tenant(&host));
        let (first, second) = (AnswerRoom::of_call(&one, 30), AnswerRoom::of_call(&one, 1000));
        assert_eq!(first.change(0, 31), beyond(30, None));
        assert_eq!(first.change(0, 30), Ok(()));
        assert_eq!(second.change(0, 51), beyond(50, None), "a call alone may take no more than its tenant");
        assert_eq!(second.change(0, 21), beyond(50, AnswersOf::Tenant));
        assert_eq!(second.change(0, 20), Ok(()));
        let other = AnswerRoom::of_call(&host, 1000);
        assert_eq!(other.change(0, 51), beyond(100, AnswersOf::Host));
        assert_eq!(other.taken.load(Ordering::Relaxed), 0, "what was refused above is not taken below");
        drop((first, second));
        assert_eq!(other.change(0, 100), Ok(()));
        drop(other);
        assert!([host, one].iter().all(|room| room.taken.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn whatever_tenants_take_there_is_some_left_for_another() {
        let host = Arc::new(AnswerRoom::of_host(120));
        let tenants = [(); 4].map(|()| Arc::new(AnswerRoom::of_tenant(&host)));
        let [one, other, third, fourth] = &tenants;
        assert_eq!(one.change(0, 61), beyond(60, AnswersOf::Tenant));
        assert_eq!(one.change(0, 60), Ok(()));
        assert_eq!(other.change(0, 31), beyond(30, AnswersOf::Tenant));
        assert_eq!(other.change(0, 30), Ok(()));
        assert_eq!(third.change(0, 15), Ok(()), "two that took all they may lock nobody out");
        assert_eq!(one.change(60, 61), beyond(37, AnswersOf::Tenant), "who took more while it was there takes no more now");
        assert_eq!(one.change(60, 50), Ok(()));
        // Each takes as much as it may for as long as it can: all come to have the same.
        one.change(50, 0).unwrap();
        other.change(30, 0).unwrap();
        third.change(15, 0).unwrap();
        let mut held = [0; 4];
        for _ in 0..200 {
            for (tenant, held) in tenants.iter().zip(&mut held).take(3) {
                *held += u64::from(tenant.change(*held, *held + 1).is_ok());
            }
        }
        assert_eq!(held, [30, 30, 30, 0]);
        assert_eq!(fourth.change(0, 15), Ok(()));
        assert_eq!(host.taken.load(Ordering::Relaxed), 105);
    }
}
