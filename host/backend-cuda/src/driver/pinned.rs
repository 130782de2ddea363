//! Memory of the host that a device reads and writes by itself.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::DeviceAddress;

/// Memory of the host that stays where it is, and that the device has an address for.
///
/// It is given back when it is dropped. Nothing that is queued may then need it any more: a driver may wait for that, but need not.
pub struct Pinned {
    pointer: NonNull<u8>,
    bytes: usize,
    address: DeviceAddress,
    /// Whatever gives it back.
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is the owner's, which may be sent; reading and writing it is unsafe, or atomic.
unsafe impl Send for Pinned {}
// SAFETY: as above: through a shared reference only unsafe or atomic accesses are possible.
unsafe impl Sync for Pinned {}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes at {:#x})", self.bytes, self.address.0)
    }
}

impl Pinned {
    /// # Safety
    /// So many bytes lie there, aligned to 8, initialised, for as long as the owner lives, and nobody else has them.
    #[cfg_attr(not(any(feature = "cuda", feature = "testing")), expect(dead_code, reason = "for drivers"))]
    pub(crate) unsafe fn new(pointer: NonNull<u8>, bytes: usize, address: DeviceAddress, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { pointer, bytes, address, owner }
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where the device finds it: kernels may read and write it there.
    #[must_use]
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }

    /// What keeps it where it is.
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "for the emulated driver"))]
    pub(crate) fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.owner)
    }

    /// Where it begins.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// A word that the device may write at any time. Load it with `Acquire`.
    ///
    /// # Panics
    /// If it does not lie within, or not at a multiple of 8.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.bytes), "no word lies at byte {offset}");
        // SAFETY: it lies within and is aligned, because the memory is; atomics may be changed by anybody.
        unsafe { &*self.pointer.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Some of its bytes.
    ///
    /// # Safety
    /// Nothing that is queued or runs writes them while they are borrowed.
    ///
    /// # Panics
    /// If they do not lie within.
    #[must_use]
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "bytes {range:?} of {}", self.bytes);
        // SAFETY: within, and nobody writes them (the caller's promise).
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(range.start), range.len()) }
    }

    /// Some of its bytes, to be written.
    ///
    /// # Safety
    /// Nothing that is queued or runs reads or writes them while they are borrowed.
    ///
    /// # Panics
    /// If they do not lie within.
    #[must_use]
    pub unsafe fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "bytes {range:?} of {}", self.bytes);
        // SAFETY: within, and nobody else has them (the caller's promise, and the exclusive borrow).
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().add(range.start), range.len()) }
    }
}
