//! AVX-512's sums of products: `vdpbf16ps` takes two 16-bit floats of each column at once, `vpdpbusd` four bytes.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpbf16_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sub_epi32,
};

use super::super::PANEL;
use super::{GROUP, Onto, Tile};

/// Rows of a tile at most: two vectors of sums for each, two of weights and one of a row's group fill 27 of 32 registers.
pub(super) const HEIGHT: usize = 12;
/// The same of a tile of two panels, whose vectors are twice as many.
pub(super) const HEIGHT_OF_PAIRS: usize = 6;
/// Columns of a vector.
const LANES: usize = 16;

/// A tile of that many rows and panels (of two panels six rows at most) by that function of the number of rows and vectors.
macro_rules! by_rows {
    ($function:ident, $tile:ident) => {
        match ($tile.panels, $tile.rows) {
            (1, 1) => $function::<1, 2>($tile),
            (1, 2) => $function::<2, 2>($tile),
            (1, 3) => $function::<3, 2>($tile),
            (1, 4) => $function::<4, 2>($tile),
            (1, 5) => $function::<5, 2>($tile),
            (1, 6) => $function::<6, 2>($tile),
            (1, 7) => $function::<7, 2>($tile),
            (1, 8) => $function::<8, 2>($tile),
            (1, 9) => $function::<9, 2>($tile),
            (1, 10) => $function::<10, 2>($tile),
            (1, 11) => $function::<11, 2>($tile),
            (1, _) => $function::<HEIGHT, 2>($tile),
            (_, 1) => $function::<1, 4>($tile),
            (_, 2) => $function::<2, 4>($tile),
            (_, 3) => $function::<3, 4>($tile),
            (_, 4) => $function::<4, 4>($tile),
            (_, 5) => $function::<5, 4>($tile),
            (..) => $function::<HEIGHT_OF_PAIRS, 4>($tile),
        }
    };
}

/// # Safety
/// The tile's rows, panel and result are there, and the processor has AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn halves(tile: Tile) {
    // SAFETY: the caller's promise.
    unsafe { by_rows!(halves_tile, tile) }
}

/// # Safety
/// As for [`halves`], with VNNI instead of BF16; rows and columns have their scales.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn bytes(tile: Tile) {
    // SAFETY: the caller's promise.
    unsafe { by_rows!(bytes_tile, tile) }
}

/// A group of all columns of the panels.
///
/// # Safety
/// The panels have this group, and as many vectors.
#[inline]
#[target_feature(enable = "avx512f")]
#[expect(clippy::needless_range_loop, reason = "loops over constant ranges unroll; iterators do not")]
unsafe fn columns<const VECTORS: usize>(tile: &Tile, group: usize) -> [__m512i; VECTORS] {
    let panel_bytes = tile.groups.wrapping_mul(PANEL * GROUP);
    let next = if group < tile.turn { tile.next } else { tile.then };
    let next = next.wrapping_add(group.wrapping_mul(PANEL * GROUP) / super::LINES * tile.next_lines);
    let mut columns = [_mm512_setzero_si512(); VECTORS];
    for v in 0..VECTORS {
        let apart = (v / 2 * panel_bytes).wrapping_add(v % 2 * 64);
        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(apart).cast());
        // SAFETY: the caller's promise.
        columns[v] = unsafe { _mm512_loadu_si512(tile.panel.wrapping_add(group.wrapping_mul(PANEL * GROUP)).wrapping_add(apart).cast()) };
    }
    columns
}

/// Asks for what the sums are added to, if that lies where nothing was just written: it comes while they are summed.
///
/// # Safety
/// There are so many rows.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn ask_for_rows<const ROWS: usize, const VECTORS: usize>(tile: &Tile) {
    let Onto::Rows(..) = tile.onto else { return };
    for row in 0..ROWS {
        // SAFETY: the caller's promise.
        let from = unsafe { tile.onto.row(row) };
        for vector in 0..VECTORS {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(vector * LANES).cast());
        }
    }
}

/// A group of a row, in every column.
///
/// # Safety
/// The row has this group.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn spread(tile: &Tile, row: usize, group: usize) -> __m512i {
    let at = tile.left.wrapping_add(row.wrapping_mul(tile.left_stride).wrapping_add(group.wrapping_mul(GROUP)));
    // SAFETY: the caller's promise.
    _mm512_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// # Safety
/// As for [`halves`]; the tile has so many rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
#[expect(clippy::needless_range_loop, reason = "loops over constant ranges unroll, and the sums stay in registers; iterators do not")]
unsafe fn halves_tile<const ROWS: usize, const VECTORS: usize>(tile: Tile) {
    // SAFETY: the types differ in name alone.
    let halves = |bits: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
    // SAFETY: the caller's promise.
    unsafe { ask_for_rows::<ROWS, VECTORS>(&tile) };
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    for group in 0..tile.groups {
        // SAFETY: the caller's promise.
        let w = unsafe { columns::<VECTORS>(&tile, group) }.map(halves);
        for r in 0..ROWS {
            // SAFETY: the caller's promise.
            let x = halves(unsafe { spread(&tile, r, group) });
            for v in 0..VECTORS {
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, w[v]);
            }
        }
    }
    for r in 0..ROWS {
        // SAFETY: the caller's promise.
        unsafe { add(&tile, r, sums[r]) };
    }
}

/// # Safety
/// As for [`bytes`]; the tile has so many rows.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
#[expect(clippy::needless_range_loop, reason = "loops over constant ranges unroll, and the sums stay in registers; iterators do not")]
unsafe fn bytes_tile<const ROWS: usize, const VECTORS: usize>(tile: Tile) {
    // SAFETY: the caller's promise.
    unsafe { ask_for_rows::<ROWS, VECTORS>(&tile) };
    let mut sums = [[_mm512_setzero_si512(); VECTORS]; ROWS];
    for group in 0..tile.groups {
        // SAFETY: the caller's promise.
        let w = unsafe { columns::<VECTORS>(&tile, group) };
        for r in 0..ROWS {
            // SAFETY: the caller's promise.
            let x = unsafe { spread(&tile, r, group) };
            for v in 0..VECTORS {
                sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], x, w[v]);
            }
        }
    }
    for v in 0..VECTORS {
        // SAFETY: the caller's promise, and there is one for each column of a panel.
        let moved = unsafe { _mm512_loadu_si512((*tile.scales.wrapping_add(v / 2)).sums.as_ptr().add(v % 2 * LANES).cast()) };
        for r in 0..ROWS {
            // Left-hand integers were moved up by 128.
            sums[r][v] = _mm512_sub_epi32(sums[r][v], moved);
        }
    }
    for r in 0..ROWS {
        // SAFETY: the caller's promise.
        unsafe { add_scaled(&tile, r, sums[r]) };
    }
}

/// Adds a row's sums of integers to what stands, times their scales.
///
/// # Safety
/// As for [`bytes`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_scaled<const VECTORS: usize>(tile: &Tile, row: usize, sums: [__m512i; VECTORS]) {
    // SAFETY: the caller's promise.
    let row_scale = unsafe { _mm512_set1_ps(*tile.row_scales.wrapping_add(row)) };
    for (vector, sum) in sums.into_iter().enumerate() {
        // SAFETY: the tile has this row.
        let (mask, from, into) = unsafe { places(tile, row, vector) };
        // SAFETY: there is a scale for each column of the panel; masks end at the result's last column.
        unsafe {
            let scale = _mm512_loadu_ps((*tile.scales.wrapping_add(vector / 2)).scales.as_ptr().add(vector % 2 * LANES));
            // Never a product of two scales: it could overflow where the sum is zero, or underflow where it is large.
            let of_row = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), row_scale);
            let y = _mm512_fmadd_ps(of_row, scale, _mm512_maskz_loadu_ps(mask, from));
            _mm512_mask_storeu_ps(into, mask, y);
        }
    }
}

/// Adds a row's sums to what stands.
///
/// # Safety
/// As for [`halves`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add<const VECTORS: usize>(tile: &Tile, row: usize, sums: [__m512; VECTORS]) {
    for (vector, sum) in sums.into_iter().enumerate() {
        // SAFETY: the tile has this row.
        let (mask, from, into) = unsafe { places(tile, row, vector) };
        // SAFETY: masks end at the result's last column.
        unsafe { _mm512_mask_storeu_ps(into, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, from), sum)) };
    }
}

/// The lanes of a vector that the result has, what is added to, and where it goes.
///
/// # Safety
/// The tile has this row.
#[inline]
unsafe fn places(tile: &Tile, row: usize, vector: usize) -> (__mmask16, *const f32, *mut f32) {
    let left = tile.columns.saturating_sub(vector * LANES);
    let mask = if left >= LANES { !0 } else { (1 << left) - 1 };
    // SAFETY: the caller's promise.
    let from = unsafe { tile.onto.row(row) }.wrapping_add(vector * LANES);
    (mask, from, tile.into.wrapping_add(row.wrapping_mul(tile.into_stride).wrapping_add(vector * LANES)))
}
