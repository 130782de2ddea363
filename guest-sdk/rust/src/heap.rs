//! The allocator of guests. A call makes and drops some dozens of small values, and so does every next one: they come from lists of free blocks of
//! their size, which is several times cheaper than a general allocator and, unlike one that only grows, lasts as long as the instance does.
//! What is large goes to the standard library's allocator.

#![expect(unsafe_code, reason = "an allocator hands out memory by address")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Blocks of 16, 32, … bytes, each kind in a list.
const KINDS: usize = 8;
const SMALLEST: usize = 16;
const LARGEST: usize = SMALLEST << (KINDS - 1);

struct Heap {
    free: [Cell<*mut Block>; KINDS],
}

/// A free block names the next one of its kind.
struct Block {
    next: *mut Block,
}

// SAFETY: guests of this ABI are of one thread: the target has no threads, and the host never shares an instance.
#[cfg(target_arch = "wasm32")]
unsafe impl Sync for Heap {}

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static HEAP: Heap = Heap::new();

/// The kind of blocks that fits; none: it is large.
fn kind(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    (size <= LARGEST).then(|| (size - 1).ilog2() as usize - (SMALLEST.ilog2() as usize - 1))
}

impl Heap {
    const fn new() -> Self {
        Self { free: [const { Cell::new(null_mut()) }; KINDS] }
    }

    /// The kind has no free block: cuts several from a piece of memory, aligned to their size.
    #[cold]
    fn refill(&self, kind: usize) -> *mut u8 {
        const BLOCKS: usize = 8;
        let size = SMALLEST << kind;
        let Ok(layout) = Layout::from_size_align(size * BLOCKS, size) else { return null_mut() };
        // SAFETY: the layout's size is not zero.
        let piece = unsafe { System.alloc(layout) };
        if !piece.is_null() {
            for block in 1..BLOCKS {
                // SAFETY: within the piece, which has room for that many blocks and is never given back.
                unsafe { self.put(kind, piece.add(block * size)) };
            }
        }
        piece
    }

    /// # Safety
    /// The block is of that kind, and nobody uses it.
    unsafe fn put(&self, kind: usize, block: *mut u8) {
        #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to their size, which is a pointer's at least")]
        let block = block.cast::<Block>();
        // SAFETY: a block is as large as a pointer at least, aligned to its size, and the caller's to give.
        unsafe { block.write(Block { next: self.free[kind].get() }) };
        self.free[kind].set(block);
    }
}

// SAFETY: a block is in its list or handed out, never both; it has the size and alignment of its kind, which are at least the layout's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(kind) = kind(layout) else {
            // SAFETY: the caller's promise about the layout.
            return unsafe { System.alloc(layout) };
        };
        let block = self.free[kind].get();
        if block.is_null() {
            return self.refill(kind);
        }
        // SAFETY: what is in a list is a free block, written by `put`.
        self.free[kind].set(unsafe { (*block).next });
        block.cast()
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match kind(layout) {
            // SAFETY: `alloc` took it from this kind's list, for a layout of the same kind.
            Some(kind) => unsafe { self.put(kind, pointer) },
            // SAFETY: `alloc` had it from there.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow.
        let grown = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (kind(layout), kind(grown)) {
            (Some(before), Some(after)) if before == after => pointer,
            // SAFETY: `alloc` had it from there, and the new size belongs there too.
            (None, None) => unsafe { System.realloc(pointer, layout, size) },
            _ => {
                // SAFETY: the new size is not zero, as the caller promises.
                let moved = unsafe { self.alloc(grown) };
                if !moved.is_null() {
                    // SAFETY: both are valid for the smaller of the two sizes, and different.
                    unsafe {
                        pointer.copy_to_nonoverlapping(moved, layout.size().min(size));
                        self.dealloc(pointer, layout);
                    }
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that a test holds: its place, its layout, and the byte it is filled with.
    struct Held(*mut u8, Layout, u8);

    impl Held {
        fn fill(&self) {
            // SAFETY: the heap gave that many bytes.
            unsafe { self.0.write_bytes(self.2, self.1.size()) };
        }

        fn check(&self, bytes: usize) {
            assert_eq!(self.0.align_offset(self.1.align()), 0, "aligned as {:?}", self.1);
            // SAFETY: the heap gave at least that many bytes, and `fill` wrote them.
            let held = unsafe { std::slice::from_raw_parts(self.0, bytes) };
            assert!(held.iter().all(|byte| *byte == self.2), "{:?} was overwritten", self.1);
        }
    }

    #[test]
    fn values_of_all_sizes_live_side_by_side_grow_shrink_and_go() {
        let heap = Heap::new();
        let mut held: Vec<Held> = vec![];
        let mut random = 1_u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        for round in 0..20_000_usize {
            let most = 1 << below(14);
            let (size, align) = (1 + below(most), 1 << below(6));
            let layout = Layout::from_size_align(size, align).unwrap();
            match below(4) {
                0 if !held.is_empty() => {
                    let at = below(held.len());
                    let value = held.swap_remove(at);
                    value.check(value.1.size());
                    // SAFETY: the heap gave it for that layout.
                    unsafe { heap.dealloc(value.0, value.1) };
                }
                1 if !held.is_empty() => {
                    let at = below(held.len());
                    let value = &mut held[at];
                    // SAFETY: the heap gave it for that layout, and the size is not zero.
                    value.0 = unsafe { heap.realloc(value.0, value.1, size) };
                    let kept = value.1.size().min(size);
                    value.1 = Layout::from_size_align(size, value.1.align()).unwrap();
                    value.check(kept);
                    value.fill();
                }
                _ => {
                    // SAFETY: the size is not zero.
                    let value = Held(unsafe { heap.alloc(layout) }, layout, round as u8);
                    value.fill();
                    held.push(value);
                }
            }
        }
        for value in held {
            value.check(value.1.size());
            // SAFETY: the heap gave it for that layout.
            unsafe { heap.dealloc(value.0, value.1) };
        }
    }

    #[test]
    fn a_freed_block_is_the_next_of_its_kind() {
        let heap = Heap::new();
        let [small, same, other] = [20, 32, 33].map(|size| Layout::from_size_align(size, 8).unwrap());
        // SAFETY: sizes are not zero, and blocks are freed with the layout they were given for.
        unsafe {
            let first = heap.alloc(small);
            heap.dealloc(first, small);
            assert_ne!(heap.alloc(other), first);
            assert_eq!(heap.alloc(same), first);
        }
    }
}
