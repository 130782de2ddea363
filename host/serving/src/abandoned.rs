//! How work on a thread of its own hears that whoever asked for it waits no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says whether something was given up by those who asked for it. Work that takes long looks at it now and then, and ends.
#[derive(Clone, Debug, Default)]
pub struct Abandoned(Arc<AtomicBool>);

/// Gives something up when it is dropped.
#[derive(Debug)]
pub struct AbandonOnDrop(Abandoned);

impl Abandoned {
    /// Whether nobody waits any more.
    #[must_use]
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Nobody waits any more.
    pub fn give_up(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Nobody waits any more once what this gives is dropped.
    #[must_use]
    pub fn on_drop(&self) -> AbandonOnDrop {
        AbandonOnDrop(self.clone())
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
