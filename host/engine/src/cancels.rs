//! Cancellations on their way to the engine's thread.
//!
//! They do not pass through its inbox, because whoever cancels must never wait: it may be a client's callback on one of the engine's own threads, and the
//! inbox may be full. There is one place for each request that can be in flight, so this never grows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cellwright_scheduler::RequestId;

use crate::requests::Handle;

/// What is to become of a cancellation that the engine's thread has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has been carried out, or names a request that has ended.
    Settled,
    /// Its request is still on its way.
    Early,
}

/// The latest handle of each request id that somebody wants to be rid of.
#[derive(Debug, Default)]
pub(crate) struct Cancels {
    /// Some were asked for since they were last looked at.
    new: AtomicBool,
    /// Some of those that were looked at came too early.
    early: AtomicBool,
    wanted: Mutex<BTreeMap<RequestId, u32>>,
}

impl Cancels {
    /// Notes one; whether the engine's thread is to be woken for it.
    pub(crate) fn ask(&self, handle: Handle) -> bool {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = wanted.entry(handle.id).or_insert(handle.generation);
        // A stale handle must not hide that of the request that has the id now.
        if handle.is_after(*latest) {
            *latest = handle.generation;
        }
        drop(wanted);
        !self.new.swap(true, Ordering::AcqRel)
    }

    /// Shows each to `settle`, and keeps those that came too early: they are shown again with new ones, and once more requests have `arrived`.
    pub(crate) fn settle(&self, arrived: bool, mut settle: impl FnMut(Handle) -> Verdict) {
        let new = self.new.swap(false, Ordering::AcqRel);
        let again = arrived && self.early.load(Ordering::Relaxed);
        if !new && !again {
            return;
        }
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.retain(|id, generation| settle(Handle { id: *id, generation: *generation }) == Verdict::Early);
        self.early.store(!wanted.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(id: u32, generation: u32) -> Handle {
        Handle { id: RequestId(id), generation }
    }

    fn settled(cancels: &Cancels, verdict: Verdict) -> Vec<Handle> {
        let mut seen = Vec::new();
        cancels.settle(true, |handle| {
            seen.push(handle);
            verdict
        });
        seen
    }

    #[test]
    fn each_is_shown_until_it_is_settled() {
        let cancels = Cancels::default();
        assert!(cancels.ask(handle(1, 0)), "somebody has to look");
        assert!(!cancels.ask(handle(1, 0)), "somebody is about to");
        cancels.ask(handle(2, 5));
        let both = [handle(1, 0), handle(2, 5)];
        assert_eq!(settled(&cancels, Verdict::Early), both);
        assert_eq!(settled(&cancels, Verdict::Settled), both);
        assert_eq!(settled(&cancels, Verdict::Settled), []);
    }

    #[test]
    fn one_that_never_comes_does_not_keep_the_next_from_being_seen() {
        let cancels = Cancels::default();
        cancels.ask(handle(1, 0));
        assert_eq!(settled(&cancels, Verdict::Early), [handle(1, 0)]);
        assert!(cancels.ask(handle(2, 0)), "somebody has to look again");
        cancels.settle(false, |_| Verdict::Early);
        cancels.settle(false, |_| panic!("nothing is new, and nobody has arrived"));
    }

    #[test]
    fn a_stale_handle_does_not_hide_the_request_that_has_its_id_now() {
        for order in [[3, 4], [4, 3]] {
            let cancels = Cancels::default();
            order.into_iter().for_each(|generation| {
                let _ = cancels.ask(handle(7, generation));
            });
            assert_eq!(settled(&cancels, Verdict::Settled), [handle(7, 4)]);
        }
        let cancels = Cancels::default();
        [u32::MAX, 0].into_iter().for_each(|generation| {
            let _ = cancels.ask(handle(7, generation));
        });
        assert_eq!(settled(&cancels, Verdict::Settled), [handle(7, 0)], "generations start over");
    }
}
