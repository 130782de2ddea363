//! The clock: cancels calls whose time is up, and looks at queues whose tenants may use the devices
//! again.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use cellwright_serving::CallCanceller;

use crate::catalog::TenantEntry;
use crate::queue;

/// When, and a number that tells deadlines of one instant apart.
pub(crate) type DeadlineKey = (Instant, u64);

/// The way to the clock for those who must not keep it running.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Weak<Timer>);

impl Clock {
    /// Looks at a tenant's queue at that time. False if the clock has stopped.
    pub(crate) fn look_at(&self, tenant: &Arc<TenantEntry>, at: Instant) -> bool {
        let Some(timer) = self.0.upgrade() else { return false };
        timer.add(at, Then::Look(Arc::downgrade(tenant)));
        true
    }
}

/// The thread that watches the clock.
#[derive(Debug)]
pub(crate) struct Deadlines {
    shared: Arc<Timer>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Timer {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    /// At most one for each call, and for each tenant those of the next second.
    actions: BTreeMap<DeadlineKey, Then>,
    entered: u64,
    stopping: bool,
}

/// What is to be done when a time has come.
#[derive(Debug)]
enum Then {
    Cancel(CallCanceller),
    Look(Weak<TenantEntry>),
}

impl Then {
    fn happen(self) {
        match self {
            Self::Cancel(call) => call.cancel(),
            Self::Look(tenant) => {
                if let Some(tenant) = tenant.upgrade() {
                    queue::look(&tenant);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deadlines {
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Timer::default());
        let watched = shared.clone();
        let thread = std::thread::Builder::new().name("deadlines".to_owned()).spawn(move || watched.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Cancels the call at that time, unless it is taken back before.
    pub(crate) fn enter(&self, at: Instant, call: CallCanceller) -> DeadlineKey {
        self.shared.add(at, Then::Cancel(call))
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock(Arc::downgrade(&self.shared))
    }

    /// The call has ended.
    pub(crate) fn take_back(&self, deadline: DeadlineKey) {
        lock(&self.shared.pending).actions.remove(&deadline);
    }
}

impl Timer {
    fn add(&self, at: Instant, then: Then) -> DeadlineKey {
        let mut pending = lock(&self.pending);
        let key = (at, pending.entered);
        pending.entered += 1;
        let is_first = pending.actions.first_key_value().is_none_or(|(first, _)| key < *first);
        pending.actions.insert(key, then);
        drop(pending);
        if is_first {
            self.changed.notify_one();
        }
        key
    }

    fn run(&self) {
        let mut pending = lock(&self.pending);
        while !pending.stopping {
            let now = Instant::now();
            if let Some(first) = pending.actions.first_entry().filter(|first| first.key().0 <= now) {
                let then = first.remove();
                // What ends by it comes back here to leave.
                drop(pending);
                then.happen();
                pending = lock(&self.pending);
                continue;
            }
            let next = pending.actions.first_key_value().map(|((at, _), _)| *at);
            pending = match next {
                None => self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(now);
                    self.changed.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        lock(&self.shared.pending).stopping = true;
        self.shared.changed.notify_one();
        // A call that it ends may be the last to hold it.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cellwright_serving::{Answer, Patience};

    use super::*;

    #[test]
    fn a_deadline_that_was_taken_back_leaves_nothing() {
        let deadlines = Deadlines::start().unwrap();
        let (answer, _writer) = Answer::new(0, Patience::endless());
        let key = deadlines.enter(Instant::now() + Duration::from_secs(1000), answer.canceller());
        assert_eq!(lock(&deadlines.shared.pending).actions.len(), 1);
        deadlines.take_back(key);
        deadlines.take_back(key);
        assert!(lock(&deadlines.shared.pending).actions.is_empty());
    }
}
