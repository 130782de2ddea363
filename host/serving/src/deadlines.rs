//! Cancels requests whose time is up. Only requests that have a deadline come here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::request::Running;

/// When, and a number that tells requests of one instant apart.
type Key = (Instant, u64);

/// A request's deadline, as the request sees it.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    passed: AtomicBool,
    key: Mutex<Option<Key>>,
}

impl Deadline {
    /// Whether it was cancelled because its time was up.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
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
    /// At most one for each request in flight, and those that ended while they were being entered.
    waiting: BTreeMap<Key, (Running, Arc<Deadline>)>,
    entered: u64,
    stopping: bool,
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
    pub(crate) fn enter(&self, at: Instant, running: Running, deadline: &Arc<Deadline>) {
        let mut state = lock(&self.shared.state);
        let key = (at, state.entered);
        state.entered += 1;
        let is_first = state.waiting.first_key_value().is_none_or(|(first, _)| key < *first);
        state.waiting.insert(key, (running, deadline.clone()));
        *lock(&deadline.key) = Some(key);
        drop(state);
        if is_first {
            self.shared.changed.notify_one();
        }
    }

    /// The request has ended.
    pub(crate) fn leave(&self, deadline: &Deadline) {
        let mut state = lock(&self.shared.state);
        if let Some(key) = lock(&deadline.key).take() {
            state.waiting.remove(&key);
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = lock(&self.state);
        while !state.stopping {
            let now = Instant::now();
            while let Some(first) = state.waiting.first_entry().filter(|first| first.key().0 <= now) {
                let (running, deadline) = first.remove();
                deadline.passed.store(true, Ordering::Release);
                running.cancel();
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
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
