//! A device as other devices of its process see it when they read its memory directly.
//!
//! A driver's memory outlives the driver as long as a peer lives that has reached it, because that
//! peer may have a copy from it queued.

use std::any::Any;
use std::sync::Arc;

/// What a driver gives away of its device.
#[cfg_attr(not(any(feature = "cuda", feature = "testing")), expect(dead_code, reason = "for drivers"))]
pub(crate) trait Known: Any + Send + Sync {
    /// Whether the device is lost, or its driver gone, as far as is known.
    fn is_lost(&self) -> bool;
}

/// A device as others know it. As long as somebody holds it, the device's memory stays, also when its driver goes.
#[derive(Clone)]
pub struct Peer(Arc<dyn Known>);

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("is_lost", &self.is_lost()).finish()
    }
}

#[cfg_attr(not(any(feature = "cuda", feature = "testing")), expect(dead_code, reason = "for drivers"))]
impl Peer {
    pub(crate) fn new(known: Arc<dyn Known>) -> Self {
        Self(known)
    }

    /// What it is, to a driver of its kind.
    pub(crate) fn known<T: Known>(&self) -> Option<&T> {
        let known: &dyn Any = &*self.0;
        known.downcast_ref()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Peer {
    /// Whether the device is lost, or its driver gone, as far as is known: what its memory holds cannot be relied on any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}
