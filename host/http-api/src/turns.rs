//! Turns that each tenant waits for in a line of its own, so that what one tenant asks for cannot keep others from what they ask for.
//!
//! A turn belongs to whatever works, also after the client that asked for it has gone: it moves to the thread that does the work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_registry::TenantName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lines that may be kept though nobody stands in them.
const IDLE_LINES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Turns {
    at_once: usize,
    waiting_max: usize,
    lines: Mutex<HashMap<TenantName, Line>>,
}

#[derive(Clone, Debug)]
struct Line {
    /// Room for those who work and those who wait.
    there: Arc<Semaphore>,
    working: Arc<Semaphore>,
}

/// Given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _working: OwnedSemaphorePermit,
    _there: OwnedSemaphorePermit,
}

impl Turns {
    /// `at_once`: turns of one tenant at the same time; `waiting_max`: how many more may wait for one.
    pub(crate) fn new(at_once: usize, waiting_max: usize) -> Self {
        Self { at_once: at_once.max(1), waiting_max, lines: Mutex::default() }
    }

    /// The tenant's next turn, waiting for it; none: too many wait.
    pub(crate) async fn take(&self, tenant: &TenantName) -> Option<Turn> {
        let Line { there, working } = self.line(tenant);
        let there = there.try_acquire_owned().ok()?;
        let working = working.acquire_owned().await.ok()?;
        Some(Turn { _working: working, _there: there })
    }

    fn line(&self, tenant: &TenantName) -> Line {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(tenant) {
            return line.clone();
        }
        if lines.len() >= IDLE_LINES_MAX {
            // Whoever stands in one, or is about to, holds it.
            lines.retain(|_, line| Arc::strong_count(&line.there) > 1);
        }
        let there = Arc::new(Semaphore::new(self.at_once.saturating_add(self.waiting_max).min(Semaphore::MAX_PERMITS)));
        let line = Line { there, working: Arc::new(Semaphore::new(self.at_once.min(Semaphore::MAX_PERMITS))) };
        lines.insert(tenant.clone(), line.clone());
        line
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

    fn now(turns: &Turns, tenant: &str) -> Poll<Option<Turn>> {
        poll(pin!(turns.take(&TenantName::parse(tenant).unwrap())))
    }

    #[test]
    fn a_tenant_waits_for_its_own_turns_alone() {
        let (turns, a) = (Turns::new(2, 1), TenantName::parse("a").unwrap());
        let (first, second) = (now(&turns, "a"), now(&turns, "a"));
        assert!(matches!((&first, &second), (Poll::Ready(Some(_)), Poll::Ready(Some(_)))));
        let mut third = pin!(turns.take(&a));
        assert!(poll(third.as_mut()).is_pending());
        assert!(matches!(now(&turns, "a"), Poll::Ready(None)), "the line is full");
        assert!(matches!(now(&turns, "b"), Poll::Ready(Some(_))));
        drop(first);
        let third = poll(third.as_mut());
        assert!(matches!(third, Poll::Ready(Some(_))));
        assert!(now(&turns, "a").is_pending(), "it has given up its place in the line again");
        drop((second, third));
        assert!(matches!(now(&turns, "a"), Poll::Ready(Some(_))));
    }

    #[test]
    fn lines_that_nobody_stands_in_are_not_kept_for_ever() {
        let turns = Turns::new(1, 0);
        let held = now(&turns, "held");
        (0..3 * IDLE_LINES_MAX).for_each(|n| assert!(now(&turns, &format!("t{n}")).is_ready()));
        assert!(turns.lines.lock().unwrap().len() <= IDLE_LINES_MAX + 1);
        assert!(matches!(now(&turns, "held"), Poll::Ready(None)));
        drop(held);
        assert!(matches!(now(&turns, "held"), Poll::Ready(Some(_))));
    }
}
