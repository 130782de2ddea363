//! Products on AVX-512: tiles of up to twelve rows and one to four panels, each with its whole sum in registers.
//!
//! A tile starts at the bias and runs over all k of all terms; nothing is written before it is complete. So an element's sum is the same chain
//! of fused multiply-adds in every tile shape, and a row's bits do not depend on the tile it falls into.

use std::arch::x86_64::{
    __m512, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_set1_ps,
    _mm512_setzero_ps,
};
use std::ops::Range;

use super::{Left, PANEL, Product, Target};

/// Floats of a vector.
const LANES: usize = 16;
/// How many rows of a panel ahead of its use a weight is asked for, in tiles too small to hide the wait.
const AHEAD: usize = 16;

/// # Safety
/// As for [`Product::run`], and the processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run(product: &Product, lefts: &[Left], result: Target, rows: usize, units: Range<usize>) {
    let tiles = Tiles { product, lefts, result };
    let mut panel = units.start;
    while panel < units.end {
        let (panels, height) = shape(rows, units.end - panel);
        let blocks = rows.div_ceil(height);
        for block in 0..blocks {
            let (first, end) = (rows * block / blocks, rows * (block + 1) / blocks);
            // SAFETY: rows and panels are within the product's; the rest is the caller's promise.
            unsafe { tiles.run(panels, end - first, first, panel) };
        }
        panel += panels;
    }
}

/// How many panels a tile takes, and how many rows at most: as many sums as registers hold.
const fn shape(rows: usize, panels: usize) -> (usize, usize) {
    match (rows, panels) {
        (..=2, 4..) => (4, 2),
        (..=6, 2..) => (2, 6),
        _ => (1, 12),
    }
}

struct Tiles<'a> {
    product: &'a Product,
    lefts: &'a [Left],
    result: Target,
}

impl Tiles<'_> {
    /// # Safety
    /// As for [`run`]; there are that many rows from `row` on and that many panels from `panel` on.
    #[target_feature(enable = "avx512f")]
    unsafe fn run(&self, panels: usize, rows: usize, row: usize, panel: usize) {
        // SAFETY: the caller's promise, for every arm.
        unsafe {
            match (panels, rows) {
                (4, 1) => self.tile::<4, 1>(row, panel),
                (4, _) => self.tile::<4, 2>(row, panel),
                (2, 1) => self.tile::<2, 1>(row, panel),
                (2, 2) => self.tile::<2, 2>(row, panel),
                (2, 3) => self.tile::<2, 3>(row, panel),
                (2, 4) => self.tile::<2, 4>(row, panel),
                (2, 5) => self.tile::<2, 5>(row, panel),
                (2, _) => self.tile::<2, 6>(row, panel),
                (_, 1) => self.tile::<1, 1>(row, panel),
                (_, 2) => self.tile::<1, 2>(row, panel),
                (_, 3) => self.tile::<1, 3>(row, panel),
                (_, 4) => self.tile::<1, 4>(row, panel),
                (_, 5) => self.tile::<1, 5>(row, panel),
                (_, 6) => self.tile::<1, 6>(row, panel),
                (_, 7) => self.tile::<1, 7>(row, panel),
                (_, 8) => self.tile::<1, 8>(row, panel),
                (_, 9) => self.tile::<1, 9>(row, panel),
                (_, 10) => self.tile::<1, 10>(row, panel),
                (_, 11) => self.tile::<1, 11>(row, panel),
                (..) => self.tile::<1, 12>(row, panel),
            }
        }
    }

    /// # Safety
    /// As for [`Self::run`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn tile<const PANELS: usize, const ROWS: usize>(&self, row: usize, panel: usize) {
        let mut sums = [[[_mm512_setzero_ps(); 2]; PANELS]; ROWS];
        if let Some(bias) = self.product.bias() {
            for (index, start) in (panel..).take(PANELS).enumerate() {
                // SAFETY: the bias is padded to whole panels.
                let bias = unsafe { [0, LANES].map(|half| _mm512_loadu_ps(bias.add(start * PANEL + half))) };
                sums.iter_mut().for_each(|sums| sums[index] = bias);
            }
        }
        for (weight, left) in self.product.weights.iter().zip(self.lefts) {
            // SAFETY: the caller's promise; panels are packed one after the other, `k` rows each.
            unsafe {
                let w = weight.data.pointer().cast::<f32>().add(panel * weight.k * PANEL);
                let x = left.rows.add(row * left.stride);
                accumulate(&mut sums, (x, left.stride), w, weight.k);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.store(&sums, row, panel) }
    }

    /// # Safety
    /// As for [`Self::run`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store<const PANELS: usize, const ROWS: usize>(&self, sums: &[[[__m512; 2]; PANELS]; ROWS], row: usize, panel: usize) {
        for (index, sums) in sums.iter().enumerate() {
            for (of, start) in (panel..).take(PANELS).enumerate() {
                for (half, sum) in sums[of].iter().enumerate() {
                    let column = start * PANEL + half * LANES;
                    let at = self.result.rows.wrapping_add((row + index) * self.result.stride + column);
                    // SAFETY: the row is the result's, and the mask ends at its last column.
                    unsafe { _mm512_mask_storeu_ps(at, mask(self.product.n.saturating_sub(column)), *sum) };
                }
            }
        }
    }
}

/// The first `left` lanes.
const fn mask(left: usize) -> __mmask16 {
    if left >= LANES { !0 } else { (1 << left) - 1 }
}

/// Adds `x · w` of one term to the sums.
///
/// # Safety
/// There are `ROWS` rows of `k` floats at `x`, its stride apart, and `PANELS` panels of `k` rows at `w`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn accumulate<const PANELS: usize, const ROWS: usize>(
    sums: &mut [[[__m512; 2]; PANELS]; ROWS],
    (x, stride): (*const f32, usize),
    w: *const f32,
    k: usize,
) {
    for depth in 0..k {
        let mut columns = [[_mm512_setzero_ps(); 2]; PANELS];
        for (panel, columns) in columns.iter_mut().enumerate() {
            // SAFETY: within the panel.
            unsafe {
                let at = w.add((panel * k + depth) * PANEL);
                *columns = [_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(LANES))];
                if ROWS <= 4 {
                    // A prefetch beyond the end of the panels does nothing.
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PANEL * AHEAD).cast());
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PANEL * AHEAD + LANES).cast());
                }
            }
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: within the row.
            let value = _mm512_set1_ps(unsafe { *x.add(row * stride + depth) });
            for (sums, columns) in sums.iter_mut().zip(&columns) {
                sums[0] = _mm512_fmadd_ps(value, columns[0], sums[0]);
                sums[1] = _mm512_fmadd_ps(value, columns[1], sums[1]);
            }
        }
    }
}
