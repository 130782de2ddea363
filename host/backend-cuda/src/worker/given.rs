//! Rows of a tensor that came with a request, by step. From a lane to them it is several pieces of memory, and a task of hundreds of rows would wait for each.

use std::ptr::NonNull;

use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::graph::Affine;

/// Where the rows lie that the steps of a chain read. Without padding, so that it and what says that an input is such rows are 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(2))]
pub(super) struct Given {
    /// The first step's.
    first: NonNull<u8>,
    /// Bytes from step to step.
    stride: i32,
    /// Bytes of a row. Of longer ones than this can say, finding them is the least.
    bytes: u16,
}

// SAFETY: what it leads to is only read, by everybody who has it.
unsafe impl Send for Given {}
// SAFETY: as above.
unsafe impl Sync for Given {}

impl Given {
    /// Those of so many steps, if the tensor, of whose rows each has so many bytes, has them all and they are something.
    pub(super) fn new(tensor: &Tensor, bytes: usize, at: Affine, steps: u32) -> Option<Self> {
        let begin = |step: u32| {
            let begin = (at.at(step)? as usize).checked_mul(bytes)?;
            tensor.data.get(begin..)?.get(..bytes).map(|_| begin)
        };
        // The rows of the steps between lie between those.
        let (first, _) = (begin(0)?, begin(steps.checked_sub(1)?)?);
        let first = NonNull::new(tensor.data.as_ptr().wrapping_add(first).cast_mut())?;
        let bytes = u16::try_from(bytes).ok().filter(|bytes| *bytes > 0 && !at.from_end)?;
        Some(Self { first, stride: at.stride.checked_mul(i32::from(bytes))?, bytes })
    }

    /// A step's.
    ///
    /// # Safety
    /// It is one of the steps for which this was made, and the tensor is there still, as it was.
    #[inline]
    pub(super) unsafe fn row(&self, step: u32) -> &[u8] {
        let from = self.stride as isize * step as isize;
        // SAFETY: all rows of these steps lie in the tensor, which nobody changes.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr().offset(from), self.bytes as usize) }
    }

    /// Has the processor look for the beginning of a step's, if it can be told to. Nothing is read.
    #[inline]
    pub(super) fn expect(&self, step: u32) {
        let at = self.first.as_ptr().wrapping_offset((self.stride as isize).wrapping_mul(step as isize));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has the instruction, which does nothing where no memory is.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast_const().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Bytes of a row along a tensor's first dimension.
pub(super) fn row_bytes(tensor: &Tensor) -> usize {
    tensor.shape.first().and_then(|rows| tensor.data.len().checked_div(*rows)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_find_their_rows_if_the_tensor_has_all_of_them() {
        let tensor = Tensor::from_i64("x", &[4, 2], &[0, 1, 10, 11, 20, 21, 30, 31]);
        let rows = |at: Affine, steps: u32| {
            let given = Given::new(&tensor, row_bytes(&tensor), at, steps)?;
            // SAFETY: these are its steps, and the tensor is there.
            let row = |step| unsafe { given.row(step) };
            Some((0..steps).map(|step| row(step)[..16].as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).sum()).collect())
        };
        let line = |first: i64, stride: i32| Affine { first, stride, from_end: false };
        let cases: [(Affine, u32, Option<Vec<i64>>); 8] = [
            (Affine::EVERY, 4, Some(vec![1, 21, 41, 61])),
            (line(3, -1), 4, Some(vec![61, 41, 21, 1])),
            (line(1, 2), 2, Some(vec![21, 61])),
            (line(2, 0), 3, Some(vec![41; 3])),
            (Affine::EVERY, 5, None),
            (line(3, -2), 3, None),
            (line(4, 0), 1, None),
            (Affine { from_end: true, ..Affine::EVERY }, 4, None),
        ];
        for (at, steps, expected) in cases {
            assert_eq!(rows(at, steps), expected, "{at:?}, {steps} steps");
        }
        let long = |numbers: usize| Tensor::from_i64("long", &[2, numbers], &vec![0; 2 * numbers]);
        let is_known = |tensor: &Tensor, at: Affine| Given::new(tensor, row_bytes(tensor), at, 1).is_some();
        assert!(is_known(&long(8191), line(0, 1)) && !is_known(&long(8193), line(0, 1)), "longer than is kept");
        assert!(!is_known(&tensor, line(0, i32::MIN)), "further apart than is kept");
        assert!(Given::new(&tensor, 16, Affine::EVERY, 0).is_none(), "a row of no step");
        assert!(Given::new(&Tensor::from_i64("none", &[4, 0], &[]), 0, Affine::EVERY, 4).is_none(), "rows of nothing");
    }
}
