//! How much a thread has allocated: for benchmarks that must say so.
//!
//! The numbers are each thread's own and are never read by whoever serves; they cost an addition or two.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use mimalloc::MiMalloc;

/// The process's allocator, counted by thread.
pub(crate) struct Counting(pub(crate) MiMalloc);

/// What a thread has allocated since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// How often.
    pub(crate) times: u64,
    /// Bytes that it took, less those that it gave back (whoever took them).
    pub(crate) bytes: i64,
}

impl Allocated {
    /// Since an earlier time.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self { times: self.times - before.times, bytes: self.bytes - before.bytes }
    }
}

thread_local! {
    static HERE: Cell<Allocated> = const { Cell::new(Allocated { times: 0, bytes: 0 }) };
}

/// What this thread has allocated.
pub(crate) fn here() -> Allocated {
    HERE.get()
}

fn note(times: u64, taken: usize, given: usize) {
    // A thread that ends may allocate when its own numbers are gone.
    let _ = HERE.try_with(|here| {
        let before = here.get();
        let bytes = before.bytes.wrapping_add(taken as i64).wrapping_sub(given as i64);
        here.set(Allocated { times: before.times.wrapping_add(times), bytes });
    });
}

// SAFETY: every call is handed on as it is; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, 0, layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size, layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_takes_and_gives_is_counted() {
        let before = here();
        let taken = vec![0_u8; 1000];
        let during = here().since(before);
        drop(taken);
        let after = here().since(before);
        assert_eq!((during, after), (Allocated { times: 1, bytes: 1000 }, Allocated { times: 1, bytes: 0 }));
    }
}
