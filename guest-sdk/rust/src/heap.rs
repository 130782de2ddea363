//! The allocator of guests. A call makes and drops some dozens of small values, and so does every next one: they come from lists of free blocks of
//! their size, which is several times cheaper than a general allocator and, unlike one that only grows, lasts as long as the instance does.
//! What is large goes to the standard library's allocator.
//! With dlmalloc, talc, rlsf or lol_alloc instead, a call takes 1.1 to 1.2 times as long, and 1.3 to 1.6 times on a fresh instance.
//!
//! The first blocks lie in what is left of the initial memory's last page. A small plugin then never grows its memory, which would cost each fresh
//! instance more than describing it does: the host opens pages for it, and closes them again after it.

#![expect(unsafe_code, reason = "an allocator hands out memory by address")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Blocks of 16, 32, … bytes, each kind in a list.
const KINDS: usize = 8;
const SMALLEST: usize = 16;
const LARGEST: usize = SMALLEST << (KINDS - 1);

/// Bytes that are taken from the standard library's allocator at once.
const PIECE: usize = 16 << 10;

struct Heap {
    free: [Cell<*mut Block>; KINDS],
    /// What was never handed out of the present piece of memory.
    rest: Cell<*mut u8>,
    rest_bytes: Cell<usize>,
    /// Whether the initial memory is the present piece, or was it.
    begun: Cell<bool>,
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
    let size = layout.size().max(SMALLEST);
    (size <= LARGEST && layout.align() <= SMALLEST).then(|| (size - 1).ilog2() as usize - (SMALLEST.ilog2() as usize - 1))
}

/// From the end of what the linker placed to the end of its page. The standard library's allocator takes whole pages, behind the initial ones.
#[cfg(target_arch = "wasm32")]
fn initial_memory() -> (*mut u8, usize) {
    const PAGE: usize = 64 << 10;
    unsafe extern "C" {
        static __heap_base: u8;
    }
    let base = (&raw const __heap_base).cast_mut();
    let skipped = base.align_offset(SMALLEST);
    (base.wrapping_add(skipped), base.align_offset(PAGE).saturating_sub(skipped))
}

#[cfg(not(target_arch = "wasm32"))]
fn initial_memory() -> (*mut u8, usize) {
    (null_mut(), 0)
}

/// A piece that is never given back; empty if there is no more memory.
fn new_piece() -> (*mut u8, usize) {
    const LAYOUT: Layout = match Layout::from_size_align(PIECE, SMALLEST) {
        Ok(layout) => layout,
        Err(_) => panic!("both are powers of two"),
    };
    // SAFETY: the layout's size is not zero.
    let piece = unsafe { System.alloc(LAYOUT) };
    (piece, if piece.is_null() { 0 } else { PIECE })
}

impl Heap {
    const fn new() -> Self {
        Self {
            free: [const { Cell::new(null_mut()) }; KINDS],
            rest: Cell::new(null_mut()),
            rest_bytes: Cell::new(0),
            begun: Cell::new(false),
        }
    }

    /// The kind has no free block: cuts one off the present piece.
    #[cold]
    #[inline(never)]
    fn cut(&self, kind: usize) -> *mut u8 {
        let size = SMALLEST << kind;
        if self.rest_bytes.get() < size && !self.begun.replace(true) {
            self.go_on_in(initial_memory());
        }
        if self.rest_bytes.get() < size {
            self.go_on_in(new_piece());
        }
        if self.rest_bytes.get() < size {
            return null_mut();
        }
        let block = self.rest.get();
        // SAFETY: the rest has that many bytes.
        self.rest.set(unsafe { block.add(size) });
        self.rest_bytes.set(self.rest_bytes.get() - size);
        block
    }

    /// What is left of the present piece is smaller than a block that was wanted, and lost.
    fn go_on_in(&self, (piece, bytes): (*mut u8, usize)) {
        self.rest.set(piece);
        self.rest_bytes.set(bytes);
    }

    /// # Safety
    /// The block is of that kind, and nobody uses it.
    unsafe fn put(&self, kind: usize, block: *mut u8) {
        #[expect(clippy::cast_ptr_alignment, reason = "pieces are aligned to the smallest block, and so is every block in them")]
        let block = block.cast::<Block>();
        // SAFETY: a block is as large as a pointer at least, aligned as one, and the caller's to give.
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
            return self.cut(kind);
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
    fn blocks_fill_a_piece_to_its_end_before_the_next_one() {
        #[repr(align(16))]
        struct Page([u8; 96]);
        let mut page = Page([0; 96]);
        let within = page.0.as_ptr_range();
        let heap = Heap::new();
        heap.go_on_in((page.0.as_mut_ptr(), 96));
        let of = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: sizes are not zero.
        let blocks = [33, 16, 16, 1].map(|size| unsafe { heap.alloc(of(size)) });
        let places = blocks.map(|block| within.contains(&block.cast_const()).then(|| block.addr() - within.start.addr()));
        assert_eq!(places, [Some(0), Some(64), Some(80), None]);
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
