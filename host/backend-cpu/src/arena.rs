//! The slots of a domain: one large reservation, shared by its workers without a lock.
//!
//! The scheduler knows who may write which slots: a slot belongs to one lane at a time, and a
//! reader of a node runs after its writer. The arena checks bounds and nothing else.
//!
//! An arena is reserved as a whole before any model is loaded. Untouched pages take no memory, so
//! calibrated limits need not size it. Touched ones are asked for as large pages, so an arena grows
//! by 2 MiB.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use cellwright_backend::SLOT_BYTES;

use crate::memory::advise_large_pages;

/// So that large pages can be used where the system gives them.
const ALIGNMENT: usize = 2 << 20;

/// A zeroed reservation; pages nobody touched take no memory.
#[derive(Debug)]
pub(crate) struct Arena {
    allocation: NonNull<u8>,
    layout: Layout,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the arena is plain bytes behind pointers; its methods that touch them are unsafe and say what their callers must keep apart.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves so many slots; none if the system refuses.
    pub(crate) fn new(slots: u32) -> Option<Self> {
        let bytes = (slots as usize).checked_mul(SLOT_BYTES)?;
        // Asking the allocator for the alignment would make it zero by writing; asking for more and aligning by hand leaves pages untouched.
        let layout = Layout::from_size_align(bytes.checked_add(ALIGNMENT)?, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = allocation.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: `skip` is less than the alignment, by which the allocation is larger than `bytes`.
        let base = unsafe { allocation.add(skip) };
        advise_large_pages(base, bytes);
        Some(Self { allocation, layout, base, bytes })
    }

    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.bytes / SLOT_BYTES).unwrap_or(u32::MAX)
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.bytes), "slots beyond the arena");
        // SAFETY: just checked.
        unsafe { self.base.add(offset).as_ptr() }
    }

    /// Where some bytes are, to be read while nobody writes them.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> *const u8 {
        self.at(offset, length)
    }

    /// Where some bytes are, to be written while nobody else reads or writes them.
    pub(crate) fn bytes_mut(&self, offset: usize, length: usize) -> *mut u8 {
        self.at(offset, length)
    }

    /// Copies bytes out.
    ///
    /// # Safety
    /// Nobody writes them at the same time, and `into` is valid for `length` bytes.
    pub(crate) unsafe fn read(&self, offset: usize, into: *mut u8, length: usize) {
        // SAFETY: the source is in the arena, the rest is the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, length), into, length) }
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// Nobody reads or writes them at the same time, and `from` is valid for `length` bytes.
    pub(crate) unsafe fn write(&self, offset: usize, from: *const u8, length: usize) {
        // SAFETY: the target is in the arena, the rest is the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, self.at(offset, length), length) }
    }

    /// Zeroes bytes.
    ///
    /// # Safety
    /// Nobody reads or writes them at the same time.
    pub(crate) unsafe fn zero(&self, offset: usize, length: usize) {
        // SAFETY: the target is in the arena, the rest is the caller's promise.
        unsafe { std::ptr::write_bytes(self.at(offset, length), 0, length) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}
