//! Memory that begins at a cache line, and in large pages where it is large: weights and frames are walked through once per step, and the
//! small pages of tens of megabytes do not fit the processor's table of them.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A cache line.
const LINE: usize = 64;
/// A large page.
const LARGE_PAGE: usize = 2 << 20;

/// What nothing points to where there is nothing: aligned as everything else.
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "for its size")] [u8; LINE]);

/// A growable run of zeroed bytes.
#[derive(Debug)]
pub(crate) struct Lines {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the bytes are owned like those of a `Vec`.
unsafe impl Send for Lines {}
// SAFETY: shared references only read.
unsafe impl Sync for Lines {}

impl Default for Lines {
    fn default() -> Self {
        Self { start: NonNull::<Line>::dangling().cast(), bytes: 0 }
    }
}

impl Lines {
    /// At least so many zeroed bytes.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let bytes = Self::rounded(bytes);
        if bytes == 0 {
            return Self::default();
        }
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { if bytes < LARGE_PAGE { alloc_zeroed(layout) } else { alloc(layout) } };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if bytes >= LARGE_PAGE {
            advise_large_pages(start, bytes);
            // SAFETY: just allocated, so long.
            unsafe { std::ptr::write_bytes(start.as_ptr(), 0, bytes) };
        }
        Self { start, bytes }
    }

    /// How many there are if so many are asked for.
    pub(crate) const fn rounded(bytes: usize) -> usize {
        bytes.next_multiple_of(LINE)
    }

    fn layout(bytes: usize) -> Layout {
        let alignment = if bytes < LARGE_PAGE { LINE } else { LARGE_PAGE };
        Layout::from_size_align(bytes, alignment).expect("sizes of weights and frames are bounded")
    }

    /// Makes room for at least so many bytes, and for an eighth more at most, so that who needs a little more again and again seldom moves; what was there is lost if it has to.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if bytes > self.bytes {
            *self = Self::default();
            *self = Self::zeroed(bytes.next_multiple_of((bytes.next_power_of_two() / 16).max(LINE)));
        }
    }

    pub(crate) fn pointer(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub(crate) fn pointer_mut(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// As bytes, to be read.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the bytes are initialised, and nobody writes what is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// As 32-bit floats, to be read.
    pub(crate) fn floats(&self) -> &[f32] {
        // SAFETY: as above; aligned beyond what floats need, and every bit pattern is a float.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<f32>()) }
    }

    /// As 32-bit floats.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: the bytes are initialised, aligned beyond what floats need, and every bit pattern is a float.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / size_of::<f32>()) }
    }

    /// As bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are initialised and owned.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
        }
    }
}

/// Asks the system for large pages; it may do as it likes.
pub(crate) fn advise_large_pages(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let whole = bytes / LARGE_PAGE * LARGE_PAGE;
        // SAFETY: the range is allocated and begins at a page; the advice changes nothing of what it holds.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
    }
    let _ = (start, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_more_seldom_moves_and_nothing_takes_an_eighth_more() {
        let (mut lines, mut moves) = (Lines::default(), 0);
        for bytes in (LINE..4 << 20).step_by(LINE * 7) {
            let before = lines.bytes();
            lines.reserve(bytes);
            moves += usize::from(lines.bytes() != before);
            assert!(lines.bytes() >= bytes && lines.bytes() - bytes <= (bytes / 8).max(LINE), "{bytes}: {}", lines.bytes());
        }
        assert!(moves < 200, "{moves}");
    }

    #[test]
    fn all_lines_begin_at_a_cache_line_none_too() {
        for bytes in [0, 1, 100, LARGE_PAGE] {
            assert!(Lines::zeroed(bytes).pointer().addr().is_multiple_of(LINE), "{bytes}");
        }
    }
}
