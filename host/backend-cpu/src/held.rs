//! How much memory is held, where several may hold the same.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes that were counted, those of several holders once. They are told apart by address: whoever holds them must outlive this.
#[derive(Debug, Default)]
pub(crate) struct Held {
    shared: BTreeSet<*const ()>,
    bytes: usize,
}

impl Held {
    /// Adds what others may hold as well.
    pub(crate) fn share<T>(&mut self, held: &Arc<T>, bytes: usize) {
        if self.shared.insert(Arc::as_ptr(held).cast()) {
            self.bytes += bytes;
        }
    }

    /// Adds what nobody else holds.
    pub(crate) const fn own(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}
