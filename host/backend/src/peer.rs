//! State that moves from one device to another without passing through the host.
//!
//! A device says once, when the engine starts, which other devices' memory it can read. A move is
//! then asked of the target alone ([`crate::Backend::take`]). The source is neither asked nor
//! waited for: requests move between their tasks, so the state is complete before the move is
//! decided.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A device as the others of its process know it: whatever its own kind needs to read its memory, and opaque to all others.
#[derive(Clone)]
pub struct Peer(Arc<dyn Any + Send + Sync>);

impl Peer {
    /// What a backend gives away of itself.
    pub fn new(known: impl Any + Send + Sync) -> Self {
        Self(Arc::new(known))
    }

    /// What it is, to a backend of its kind.
    #[must_use]
    pub fn known<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").finish_non_exhaustive()
    }
}

/// What became of state that a device takes from another ([`crate::Backend::take`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is there, and what it was copied from is not read any more.
    Moved,
    /// It is not: the other device is lost, or its memory cannot be read. Nothing writes where it should have come.
    NotMoved,
    /// It is on its way: it is worth a core to look again at once.
    Soon,
    /// It takes its time: it is looked at again after so long.
    Later(Duration),
}
