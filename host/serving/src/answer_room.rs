//! How much memory the answers of one call may take.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bound that the rows of one call share. What a request may come to hold is taken when its graph says so, before any of it is computed.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    bytes_max: u64,
    taken: AtomicU64,
}

/// There is not so much room. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// The bound.
    pub(crate) bytes_max: u64,
}

impl AnswerRoom {
    pub(crate) const fn new(bytes_max: u64) -> Self {
        Self { bytes_max, taken: AtomicU64::new(0) }
    }

    /// Takes `bytes` instead of the `before` that were taken already.
    pub(crate) fn change(&self, before: u64, bytes: u64) -> Result<(), NoRoom> {
        let changed = |taken: u64| Some(taken.saturating_sub(before).saturating_add(bytes)).filter(|sum| *sum <= self.bytes_max);
        let changed = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        changed.map(drop).map_err(|_| NoRoom { bytes_max: self.bytes_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let room = AnswerRoom::new(10);
        assert_eq!(room.change(0, 7), Ok(()));
        assert_eq!(room.change(0, 4), Err(NoRoom { bytes_max: 10 }));
        assert_eq!(room.change(0, u64::MAX), Err(NoRoom { bytes_max: 10 }));
        assert_eq!(room.change(7, 10), Ok(()));
        assert_eq!(room.change(10, 6), Ok(()));
        assert_eq!(room.change(0, 4), Ok(()));
    }
}
