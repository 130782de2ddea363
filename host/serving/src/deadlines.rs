//! The clock: cancels requests whose time is up, and looks at lines of calls that wait until their tenant may use the devices again.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::catalog::TenantEntry;
use crate::request::Running;
use crate::waiting;

/// When, and a number that tells requests of one instant apart.
type Key = (Instant, u64);

/// A request's deadline, as the request sees it.
#[derive(Debug, Default)]
pub(crate) struct Deadline(Mutex<Entry>);

/// Where a deadline stands with the clock. A request may have ended before it is entered.
#[derive(Clone, Copy, Debug, Default)]
enum Entry {
    #[default]
    Before,
    Entered(Key),
    Ended,
}

/// The way to the clock for whoever must not keep it going.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Weak<Shared>);

impl Clock {
    /// Looks at a tenant's line at that time. False if the clock has stopped.
    pub(crate) fn look_at(&self, tenant: &Arc<TenantEntry>, at: Instant) -> bool {
        let shared = self.0.upgrade();
        shared.inspect(|shared| shared.add(at, Then::Look(Arc::downgrade(tenant)), |_| true)).is_some()
    }
}

/// The thread that watches the clock.
#[derive(Debug)]
pub(crate) struct Deadlines {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// At most one for each request that waits or runs, and for each tenant those of the next second.
    waiting: BTreeMap<Key, Then>,
    entered: u64,
    stopping: bool,
}

/// What is to be done when a time has come.
#[derive(Debug)]
enum Then {
    Cancel(Running),
    Look(Weak<TenantEntry>),
}

impl Then {
    fn happen(self) {
        match self {
            Self::Cancel(running) => running.cancel(),
            Self::Look(tenant) => {
                if let Some(tenant) = tenant.upgrade() {
                    waiting::look(&tenant);
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
        let shared = Arc::new(Shared::default());
        let watched = shared.clone();
        let thread = std::thread::Builder::new().name("deadlines".to_owned()).spawn(move || watched.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Cancels the request at that time, unless it is taken back before.
    pub(crate) fn enter(&self, at: Instant, running: Running, deadline: &Deadline) {
        self.shared.add(at, Then::Cancel(running), |key| {
            let mut entry = lock(&deadline.0);
            let ended = matches!(*entry, Entry::Ended);
            if !ended {
                *entry = Entry::Entered(key);
            }
            !ended
        });
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock(Arc::downgrade(&self.shared))
    }

    /// The request has ended.
    pub(crate) fn leave(&self, deadline: &Deadline) {
        let mut state = lock(&self.shared.state);
        if let Entry::Entered(key) = std::mem::replace(&mut *lock(&deadline.0), Entry::Ended) {
            state.waiting.remove(&key);
        }
    }
}

impl Shared {
    /// `entered` hears under which key, and says whether it is still wanted.
    fn add(&self, at: Instant, then: Then, entered: impl FnOnce(Key) -> bool) {
        let mut state = lock(&self.state);
        let key = (at, state.entered);
        state.entered += 1;
        if !entered(key) {
            return;
        }
        let is_first = state.waiting.first_key_value().is_none_or(|(first, _)| key < *first);
        state.waiting.insert(key, then);
        drop(state);
        if is_first {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        while !state.stopping {
            let now = Instant::now();
            if let Some(first) = state.waiting.first_entry().filter(|first| first.key().0 <= now) {
                let then = first.remove();
                // What ends by it comes back here to leave.
                drop(state);
                then.happen();
                state = lock(&self.state);
                continue;
            }
            let next = state.waiting.first_key_value().map(|((at, _), _)| *at);
            state = match next {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(now);
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        lock(&self.shared.state).stopping = true;
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

    use super::*;

    #[test]
    fn nothing_stays_of_a_request_that_has_ended_whichever_came_first() {
        let deadlines = Deadlines::start().unwrap();
        let at = Instant::now() + Duration::from_secs(1000);
        let [first, second] = [(); 2].map(|()| Deadline::default());
        deadlines.enter(at, Running::default(), &first);
        assert_eq!(lock(&deadlines.shared.state).waiting.len(), 1);
        deadlines.leave(&first);
        deadlines.leave(&second);
        deadlines.enter(at, Running::default(), &second);
        assert!(lock(&deadlines.shared.state).waiting.is_empty());
    }
}
