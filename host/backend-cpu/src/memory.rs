//! Memory that begins at a cache line, so that a vector load never straddles two.

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A growable run of zeroed cache lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Vec<Line>,
}

impl Lines {
    /// At least so many zeroed bytes.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self { lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    /// Makes room for at least so many bytes; what was there stays, what is new is zero.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(64);
        if lines > self.lines.len() {
            self.lines.resize(lines.next_power_of_two().max(64), Line([0; 64]));
        }
    }

    pub(crate) fn pointer(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    pub(crate) fn pointer_mut(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * 64
    }

    /// As 32-bit floats.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        let length = self.bytes() / size_of::<f32>();
        // SAFETY: lines are initialised, aligned beyond what floats need, and every bit pattern is a float.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), length) }
    }

    /// As bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.bytes();
        // SAFETY: lines are initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), length) }
    }
}
