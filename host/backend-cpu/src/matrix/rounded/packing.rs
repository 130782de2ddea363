//! Rows of a batch in the form that products of rounded numbers multiply.
//!
//! A whole input of a cell is rounded where it is gathered, once for all products that pack it
//! alike and for all threads. Each thread packs the rest for itself: results within the cell, parts
//! of a concatenation, stretches, and rows of a projection that keeps only its best results.
//!
//! For AMX a batch is packed in as few tiles as possible, with about equally many rows in each: 51
//! rows are 26 and 25, not 32 and 19. So tiles are set up once a batch, and two of them share each
//! reading of a panel. A last tile with fewer rows is multiplied as a full one, over whatever bytes
//! lie behind it, and those results are dropped.

use super::super::Packed;
use super::numbers::{Float, pack_row};
use super::{Batch, GROUP, GROUPS, Rounded};
use crate::kernels::dispatch;
use crate::level::Level;
use crate::memory::Lines;

/// How rows of so many elements are packed; where they are digits, for one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    rounded: Rounded,
    level: Level,
    k: usize,
    /// What their numbers are multiplied by first: those of a weight, or nothing.
    factors: *const f32,
}

// SAFETY: factors are only read, and those who read them promise that they are there.
unsafe impl Send for Packing {}
// SAFETY: as above.
unsafe impl Sync for Packing {}

/// Packed rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedRows {
    pub(super) rows: *const u8,
    /// Bytes that each takes.
    pub(super) stride: usize,
    pub(super) scales: *const f32,
}

impl PackedRows {
    pub(super) const NONE: Self = Self { rows: std::ptr::null(), stride: 0, scales: std::ptr::null() };

    /// The same from a row on, with which a tile begins.
    pub(crate) fn beginning_at(self, row: usize) -> Self {
        Self { rows: self.rows.wrapping_add(row * self.stride), scales: self.scales.wrapping_add(row), ..self }
    }
}

impl Packing {
    /// Those that are multiplied with that weight.
    pub(crate) fn new((rounded, level): (Rounded, Level), weight: &Packed) -> Self {
        let factors = if weight.factors.bytes() == 0 { std::ptr::null() } else { weight.factors.pointer().cast() };
        Self { rounded, level, k: weight.k, factors }
    }

    /// Bytes that a row takes, but for its scale.
    pub(crate) const fn row_bytes(&self) -> usize {
        self.rounded.stride(self.k)
    }

    /// Bytes that so many rows take. Of the last tile's some are read as if it had as many as the others, and nothing is made of them.
    pub(crate) const fn bytes(&self, rows: usize) -> usize {
        let behind = if self.rounded.is_tiled() { self.rounded.height() * GROUP * GROUPS } else { 0 };
        Lines::rounded(rows * self.row_bytes()) + Lines::rounded(rows * size_of::<f32>()) + behind
    }

    /// Those for which there are so many bytes.
    pub(crate) fn rows_at(&self, at: *mut u8, rows: usize) -> PackedRows {
        PackedRows { rows: at, stride: self.row_bytes(), scales: at.wrapping_add(Lines::rounded(rows * self.row_bytes())).cast() }
    }

    /// Packs a row of floats, which need not be aligned, as one of so many that are multiplied together.
    ///
    /// # Safety
    /// The row can be read, the weight is still there, `rows` was made by [`Self::rows_at`] for memory that nobody else reads or writes this row of, and the processor has the level.
    pub(crate) unsafe fn pack(&self, from: *const u8, rows: PackedRows, (row, of): (usize, usize)) {
        // SAFETY: the caller's promise.
        unsafe { self.pack_among(from, rows, (row, self.rounded.batch(of))) }
    }

    /// # Safety
    /// As for [`Self::pack`].
    pub(super) unsafe fn pack_among(&self, from: *const u8, rows: PackedRows, (row, of): (usize, Batch)) {
        let Self { rounded, level, k, factors } = *self;
        let (at, apart) = rounded.row_place(row, of, rows.stride);
        let pack = dispatch!(level, pack_row::<>, [], (rounded: Rounded, row: &[Float], factors: *const f32, lines: *mut u8, apart: usize, scale: *mut f32));
        // SAFETY: the caller's promise; a row's lines are within what rows take.
        unsafe {
            let row_of = std::slice::from_raw_parts(from.cast(), k);
            pack(rounded, row_of, factors, rows.rows.cast_mut().wrapping_add(at), apart, rows.scales.cast_mut().wrapping_add(row));
        }
    }

    /// Packs a row of zeros.
    ///
    /// # Safety
    /// As for [`Self::pack`].
    pub(crate) unsafe fn pack_zeros(&self, rows: PackedRows, (row, of): (usize, usize)) {
        let (at, apart) = self.rounded.row_place(row, self.rounded.batch(of), rows.stride);
        let zero = if self.rounded.is_offset() { 0x80 } else { 0 };
        let scale = if self.rounded.is_scaled() { 0.0 } else { 1.0 };
        for line in 0..self.rounded.digits() * self.rounded.groups(self.k) / GROUPS {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::write_bytes(rows.rows.cast_mut().wrapping_add(at + line * apart), zero, GROUP * GROUPS) };
        }
        // SAFETY: the caller's promise.
        unsafe { *rows.scales.cast_mut().wrapping_add(row) = scale };
    }
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::typed::Precision;

    use super::super::Width;
    use super::*;
    use crate::level::Kernels;

    fn packings(k: usize) -> impl Iterator<Item = Packing> {
        [Precision::F32, Precision::Bf16, Precision::Int8].into_iter().flat_map(move |precision| {
            let levels = Level::ALL;
            levels.into_iter().filter(|level| *level <= Level::detect()).filter_map(move |level| {
                Some(Packing::new((Rounded::choose(precision, level, Kernels::Tiles)?, level), &Packed { k, ..Packed::default() }))
            })
        })
    }

    #[test]
    fn a_row_may_begin_anywhere_in_memory_and_touches_no_other() {
        for (k, packing) in [1, 31, 64, 200].into_iter().flat_map(|k| packings(k).map(move |packing| (k, packing))) {
            let rows = 70;
            let values: Vec<f32> = (0..k).map(|at| (at as f32 - 3.3) * 0.7).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let mut owner = vec![None; packing.bytes(rows)];
            for row in 0..rows {
                let pack = |before: usize| {
                    let moved: Vec<u8> = std::iter::repeat_n(0xff, before).chain(bytes.iter().copied()).collect();
                    let mut memory = Lines::zeroed(packing.bytes(rows));
                    memory.bytes_mut().fill(0x5a);
                    let packed = packing.rows_at(memory.pointer_mut(), rows);
                    // SAFETY: the row is there, and memory for all rows.
                    unsafe { packing.pack(moved[before..].as_ptr(), packed, (row, rows)) };
                    memory.bytes_mut().to_vec()
                };
                let aligned = pack(0);
                assert!((1..8).step_by(3).all(|before| pack(before) == aligned), "{packing:?}, row {row}");
                for (at, _) in aligned.iter().enumerate().filter(|(_, byte)| **byte != 0x5a) {
                    let before = owner[at].replace(row);
                    assert!(before.is_none(), "{packing:?}: byte {at} is of row {row} and of row {before:?}");
                }
                assert!(owner.contains(&Some(row)), "{packing:?}, row {row}");
            }
        }
    }

    #[test]
    fn a_row_of_zeros_is_packed_zeros() {
        for (k, packing) in [1, 64, 200].into_iter().flat_map(|k| packings(k).map(move |packing| (k, packing))) {
            let rows = 3;
            let (mut one, mut other) = (Lines::zeroed(packing.bytes(rows)), Lines::zeroed(packing.bytes(rows)));
            one.bytes_mut().fill(0x5a);
            other.bytes_mut().fill(0x5a);
            let (packed, zeros) = (packing.rows_at(one.pointer_mut(), rows), packing.rows_at(other.pointer_mut(), rows));
            // SAFETY: the row is there, and memory for all rows.
            unsafe {
                packing.pack(vec![0_u8; k * size_of::<f32>()].as_ptr(), packed, (1, rows));
                packing.pack_zeros(zeros, (1, rows));
                assert_eq!((*packed.scales.add(1)).to_bits(), (*zeros.scales.add(1)).to_bits(), "{packing:?}");
            }
            // Behind the row's last number is what weights of zero are multiplied with.
            let numbers = if packing.rounded.width == Width::Digits { packing.row_bytes() } else { k * packing.rounded.bytes() };
            let (at, apart) = packing.rounded.row_place(1, packing.rounded.batch(rows), packing.row_bytes());
            let number = |memory: &mut Lines, number: usize| memory.bytes_mut()[at + number / 64 * apart + number % 64];
            assert!((0..numbers).all(|byte| number(&mut one, byte) == number(&mut other, byte)), "{packing:?}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn three_digits_are_the_nearest_number() {
        let kernel = super::super::Kernel::Tiles;
        if Level::detect() < Level::Amx {
            return;
        }
        let packing = Packing::new((Rounded { width: Width::Digits, kernel }, Level::detect()), &Packed { k: 70, ..Packed::default() });
        // The largest with both signs: its digits reach further below zero than above.
        let row = |largest: f32| {
            (0..70).map(move |at| match at {
                9 => -largest,
                10 => largest,
                _ => largest * ((at * 37 % 70) as f32 / 70.1 - 0.3),
            })
        };
        for largest in [8_355_711.0, 1.0, 0.999_999_9, 1.0 / 3.0, 3e-7, f32::MAX, 1e-31, 1e-33, 0.0] {
            let bytes: Vec<u8> = row(largest).flat_map(f32::to_ne_bytes).collect();
            let mut memory = Lines::zeroed(packing.bytes(3));
            let packed = packing.rows_at(memory.pointer_mut(), 3);
            // SAFETY: the row is there, and memory for all rows.
            let unit = unsafe {
                packing.pack(bytes.as_ptr(), packed, (2, 3));
                f64::from(*packed.scales.add(2))
            };
            let (begin, apart) = packing.rounded.row_place(2, packing.rounded.batch(3), packing.row_bytes());
            let mut digit =
                |at: usize, digit: usize| f64::from(memory.bytes_mut()[begin + (at / 64 * 3 + digit) * apart + at % 64].cast_signed());
            for (at, value) in row(largest).map(f64::from).chain(std::iter::repeat_n(0.0, 58)).enumerate() {
                let number = (digit(at, 0) / 64.0 + digit(at, 1) / 16384.0 + digit(at, 2) / 4194304.0) * unit;
                // Half a step, and what is rounded in multiplying; rows of values that are all tiny count as zeros.
                let most = if largest < 1e-31 { f64::from(largest) } else { f64::from(largest) * 1.8e-7 };
                assert!((number - value).abs() <= most, "{largest:e}, number {at}: {number:e} of {value:e}");
            }
        }
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let bytes: Vec<u8> = row(bad).flat_map(f32::to_ne_bytes).collect();
            let mut memory = Lines::zeroed(packing.bytes(1));
            let packed = packing.rows_at(memory.pointer_mut(), 1);
            // SAFETY: as above.
            unsafe {
                packing.pack(bytes.as_ptr(), packed, (0, 1));
                assert!(if bad.is_nan() { (*packed.scales).is_nan() } else { *packed.scales == f32::INFINITY }, "{bad}");
            }
        }
    }
}
