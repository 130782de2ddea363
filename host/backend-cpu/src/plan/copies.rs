//! Bytes copied from places of a row to places of another: as many axes as values have, however many elements those are.

/// An axis along which bytes are copied again and again, and how far it moves each time, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) count: usize,
    /// Zero: the same again. Backwards where a slice is.
    pub(super) source: isize,
    pub(super) result: usize,
}

/// So many bytes at once, along each axis; the last one moves fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) source: usize,
    pub(super) result: usize,
    pub(super) bytes: usize,
    pub(super) axes: Vec<Axis>,
}

impl Copies {
    /// Of one stretch.
    pub(super) const fn stretch(source: usize, result: usize, bytes: usize) -> Self {
        Self { source, result, bytes, axes: Vec::new() }
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.count).product()
    }

    /// Roughly how long they take, in picoseconds.
    pub(super) fn row_ps(&self) -> usize {
        let one = if self.bytes > ELEMENT { 3_000 } else { 300 };
        self.count().saturating_mul(one + self.bytes * 30)
    }

    /// What they make of these bytes: so many.
    ///
    /// # Panics
    /// If they lead out of either.
    pub(super) fn copied(&self, source: &[u8], bytes: usize) -> Vec<u8> {
        let (mut first, mut last, mut end) = (self.source as isize, self.source as isize, self.result + self.bytes);
        for axis in &self.axes {
            let steps = axis.count.saturating_sub(1);
            let reach = axis.source * steps as isize;
            (first, last, end) = (first + reach.min(0), last + reach.max(0), end + axis.result * steps);
        }
        assert!(first >= 0 && last as usize + self.bytes <= source.len() && end <= bytes, "copies stay within their values");
        let mut result = vec![0; bytes];
        // SAFETY: just checked.
        unsafe { self.run(source.as_ptr(), result.as_mut_ptr()) };
        result
    }

    /// Copies a row.
    ///
    /// # Safety
    /// Wherever it leads from `source` can be read, from `result` written, and neither is the other.
    pub(super) unsafe fn run(&self, source: *const u8, result: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { along(&self.axes, self.bytes, source.add(self.source), result.add(self.result)) }
    }
}

/// The largest element there is.
const ELEMENT: usize = 8;

/// # Safety
/// As for [`Copies::run`].
unsafe fn along(axes: &[Axis], bytes: usize, source: *const u8, result: *mut u8) {
    match axes {
        [] => {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(source, result, bytes) }
        }
        // Elements, of which most values are made, without a call for each.
        [axis] if bytes == size_of::<u32>() => {
            // SAFETY: the caller's promise.
            unsafe { elements::<u32>(*axis, source, result) }
        }
        [axis] if bytes == size_of::<u64>() => {
            // SAFETY: as above.
            unsafe { elements::<u64>(*axis, source, result) }
        }
        [axis] if bytes == size_of::<u8>() => {
            // SAFETY: as above.
            unsafe { elements::<u8>(*axis, source, result) }
        }
        [axis, inner @ ..] => {
            for at in 0..axis.count {
                // SAFETY: as above.
                unsafe { along(inner, bytes, source.offset(at as isize * axis.source), result.add(at * axis.result)) };
            }
        }
    }
}

/// # Safety
/// As for [`Copies::run`].
unsafe fn elements<T: Copy>(axis: Axis, source: *const u8, result: *mut u8) {
    if axis.source == 0 && axis.result == size_of::<T>() && axis.count > 0 {
        // SAFETY: the caller's promise.
        let value = unsafe { source.cast::<T>().read_unaligned() };
        for at in 0..axis.count {
            // SAFETY: the caller's promise.
            unsafe { result.cast::<T>().add(at).write_unaligned(value) };
        }
        return;
    }
    for at in 0..axis.count {
        // SAFETY: the caller's promise.
        unsafe {
            let value = source.offset(at as isize * axis.source).cast::<T>().read_unaligned();
            result.add(at * axis.result).cast::<T>().write_unaligned(value);
        }
    }
}
