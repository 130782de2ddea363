//! Where the numbers of packed weights and rows are: in panels of columns and in rows, or as AMX's tiles. What becomes of a number is said in `numbers`.

use super::super::{PANEL, Packed};
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{Batch, Columns, GROUP, GROUPS, Rounded, Width};
use crate::kernels::dispatch;
use crate::level::Level;
use crate::memory::Lines;

impl Rounded {
    /// Where a group of a column is in its panel, of that digit of its numbers.
    pub(super) const fn place(self, group: usize, lane: usize, digit: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.is_tiled() {
            let (step, row, half) = (group / GROUPS, group % GROUPS, lane * GROUP / tiles::ROW);
            return ((2 * step + half) * self.digits() + digit) * tiles::TILE + row * tiles::ROW + lane * GROUP % tiles::ROW;
        }
        let _ = digit;
        (group * PANEL + lane) * GROUP
    }

    /// How so many rows are packed together.
    pub(in super::super) const fn batch(self, rows: usize) -> Batch {
        let most = self.height();
        let height = if !self.is_tiled() {
            most
        } else if rows <= most {
            // A tile must have a row, even if nobody asks for it.
            if rows == 0 { 1 } else { rows }
        } else {
            rows.div_ceil(rows.div_ceil(most))
        };
        Batch { rows, height }
    }

    /// Where a row of so many begins, and bytes from line to line of it.
    pub(super) fn row_place(self, row: usize, batch: Batch, stride: usize) -> (usize, usize) {
        #[cfg(target_arch = "x86_64")]
        if self.is_tiled() {
            let at = if row < batch.height { row } else { row % batch.height };
            return ((row - at) * stride + at * tiles::ROW, batch.beside(row - at) * tiles::ROW);
        }
        let _ = batch;
        (row * stride, GROUPS * GROUP)
    }

    /// Bytes of a weight of that many rows and columns as packed.
    pub(in super::super) fn packed_bytes(self, k: usize, n: usize) -> usize {
        let panels = n.div_ceil(PANEL);
        let columns = if self.is_scaled() { Lines::rounded(panels * size_of::<Columns>()) } else { 0 };
        let factors = if self.width == Width::Digits { Lines::rounded(k * size_of::<f32>()) } else { 0 };
        panels * self.panel_bytes(k) + columns + factors
    }

    /// Copies a column of a packed weight of bf16.
    pub(in super::super) fn copy_halves(self, weight: &Packed, column: usize, into: &mut [f32]) {
        let (panel, lane) = (column / PANEL, column % PANEL);
        let data = &weight.data.as_bytes()[panel * self.panel_bytes(weight.k)..];
        for (group, numbers) in into.chunks_mut(GROUP / self.bytes()).enumerate() {
            let halves = data[self.place(group, lane, 0)..][..GROUP].as_chunks::<2>().0;
            numbers.iter_mut().zip(halves).for_each(|(into, half)| *into = f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16));
        }
    }

    /// Bytes of a panel.
    pub(super) const fn panel_bytes(self, k: usize) -> usize {
        self.digits() * self.groups(k) * PANEL * GROUP
    }

    /// Packs the weight `w(k, n)`, on a processor of that level.
    pub(in super::super) fn pack(self, level: Level, (k, n): (usize, usize), w: &dyn Fn(usize, usize) -> f32) -> Packed {
        let factors = if self.width == Width::Digits { factors((k, n), w) } else { Vec::new() };
        self.pack_columns(level, (k, n), factors, &mut |at, column| {
            column.iter_mut().enumerate().for_each(|(row, value)| *value = w(row, at))
        })
    }

    /// Packs a weight that is told column by column, after dividing its rows by those factors, if there are any.
    pub(super) fn pack_columns(
        self,
        level: Level,
        (k, n): (usize, usize),
        factors: Vec<f32>,
        tell: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Packed {
        let round = dispatch!(level, round_column::<>, [], (rounded: Rounded, column: &[f32], packed: &mut [u8], scale: &mut f32));
        let (groups, panels, panel_bytes) = (self.groups(k), n.div_ceil(PANEL), self.panel_bytes(k));
        let mut data = Lines::zeroed(panels * panel_bytes);
        let mut columns = if self.is_scaled() { Lines::zeroed(panels * size_of::<Columns>()) } else { Lines::default() };
        let (mut column, mut scale) = (vec![0.0_f32; k], 0.0);
        let mut packed = vec![0_u8; self.digits() * groups * GROUP];
        for at in 0..n {
            tell(at, &mut column);
            column.iter_mut().zip(&factors).filter(|(_, factor)| **factor != 0.0).for_each(|(value, factor)| *value /= factor);
            // SAFETY: levels are no more than the processor's.
            unsafe { round(self, &column, &mut packed, &mut scale) };
            let (panel, lane) = (at / PANEL, at % PANEL);
            for (line, groups) in packed.chunks_exact(GROUP * GROUPS).enumerate() {
                let (step, digit) = (line / self.digits(), line % self.digits());
                for (group, bytes) in groups.chunks_exact(GROUP).enumerate() {
                    let place = self.place(step * GROUPS + group, lane, digit);
                    data.bytes_mut()[panel * panel_bytes + place..][..GROUP].copy_from_slice(bytes);
                }
            }
            if self.is_scaled() {
                // A panel's scales, then its sums, which digits have no use for.
                let floats = &mut columns.floats_mut()[panel * 2 * PANEL..];
                // What an infinite weight is multiplied with is not looked at.
                floats[lane] = if scale.is_finite() { scale } else { f32::NAN };
                if self.width == Width::Byte {
                    let sum: i32 = packed.iter().map(|byte| i32::from(byte.cast_signed())).sum();
                    floats[PANEL + lane] = f32::from_bits((128 * sum).cast_unsigned());
                }
            }
        }
        let mut lines = Lines::zeroed(size_of_val(&*factors));
        lines.floats_mut()[..factors.len()].copy_from_slice(&factors);
        Packed { k, data, columns, factors: lines }
    }
}

/// # Safety
/// None but the processor's level.
#[inline(always)]
unsafe fn round_column(rounded: Rounded, column: &[f32], packed: &mut [u8], scale: &mut f32) {
    *scale = rounded.round(column, packed, false);
}

/// What a left-hand row's numbers are multiplied by, and each row of the weight divided by: powers of two, so that of each row of the weight the largest part of a column's largest is near 1. The largest number of a left-hand row is then one that contributes much, in whatever units it comes.
fn factors((k, n): (usize, usize), w: &dyn Fn(usize, usize) -> f32) -> Vec<f32> {
    // Of what lies between two powers of two.
    const HALF: u32 = 1 << 22;
    let inverse = |column: usize| {
        let largest = (0..k).fold(0.0_f32, |most, row| most.max(w(row, column).abs()));
        // Of a column of zeros, and of one with an infinity, nothing can be told.
        if largest == 0.0 || largest.is_infinite() { 0.0 } else { (1.0 / largest).clamp(f32::MIN_POSITIVE, f32::MAX) }
    };
    let inverses: Vec<f32> = (0..n).map(inverse).collect();
    let factor = |row: usize| {
        let most = inverses.iter().enumerate().fold(0.0_f32, |most, (column, inverse)| most.max(w(row, column).abs() * inverse));
        if most == 0.0 { 0.0 } else { f32::from_bits((most.clamp(f32::MIN_POSITIVE, 1.0).to_bits() + HALF) & !(2 * HALF - 1)) }
    };
    (0..k).map(factor).collect()
}
