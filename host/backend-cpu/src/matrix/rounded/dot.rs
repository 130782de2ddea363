//! AVX-512's sums of products: `vdpbf16ps` takes two 16-bit floats of each column at once, `vpdpbusd` four bytes.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpbf16_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sub_epi32,
};

use super::super::PANEL;
use super::{Columns, GROUP, Tile};

/// Rows of a tile at most: two vectors of sums for each, two of weights and one of a row's group fill 27 of 32 registers.
pub(super) const HEIGHT: usize = 12;
/// Columns of a vector.
const LANES: usize = 16;

/// A tile of that many rows by that function of the number of rows.
macro_rules! by_rows {
    ($function:ident, $tile:ident) => {
        match $tile.rows {
            1 => $function::<1>($tile),
            2 => $function::<2>($tile),
            3 => $function::<3>($tile),
            4 => $function::<4>($tile),
            5 => $function::<5>($tile),
            6 => $function::<6>($tile),
            7 => $function::<7>($tile),
            8 => $function::<8>($tile),
            9 => $function::<9>($tile),
            10 => $function::<10>($tile),
            11 => $function::<11>($tile),
            _ => $function::<HEIGHT>($tile),
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

/// A group of all columns of a panel.
///
/// # Safety
/// The panel has this group.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn columns(tile: &Tile, group: usize) -> [__m512i; 2] {
    let at = tile.panel.wrapping_add(group.wrapping_mul(PANEL * GROUP)).cast::<__m512i>();
    let next = tile.next.wrapping_add(group.wrapping_mul(PANEL * GROUP) / super::LINES * tile.next_lines);
    _mm_prefetch::<_MM_HINT_T0>(next.cast());
    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64).cast());
    // SAFETY: the caller's promise.
    unsafe { [_mm512_loadu_si512(at), _mm512_loadu_si512(at.wrapping_add(1))] }
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
unsafe fn halves_tile<const ROWS: usize>(tile: Tile) {
    // SAFETY: the types differ in name alone.
    let halves = |bits: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for group in 0..tile.groups {
        // SAFETY: the caller's promise.
        let w = unsafe { columns(&tile, group) }.map(halves);
        for r in 0..ROWS {
            // SAFETY: the caller's promise.
            let x = halves(unsafe { spread(&tile, r, group) });
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, w[0]);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, w[1]);
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
unsafe fn bytes_tile<const ROWS: usize>(tile: Tile) {
    let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
    for group in 0..tile.groups {
        // SAFETY: the caller's promise.
        let w = unsafe { columns(&tile, group) };
        for r in 0..ROWS {
            // SAFETY: the caller's promise.
            let x = unsafe { spread(&tile, r, group) };
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], x, w[0]);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], x, w[1]);
        }
    }
    // SAFETY: the caller's promise.
    let Columns { sums: moved, .. } = unsafe { &*tile.scales };
    // SAFETY: there is one for each column of the panel.
    let moved = unsafe { [_mm512_loadu_si512(moved.as_ptr().cast()), _mm512_loadu_si512(moved.as_ptr().add(LANES).cast())] };
    for r in 0..ROWS {
        // Left-hand integers were moved up by 128.
        let exact = [_mm512_sub_epi32(sums[r][0], moved[0]), _mm512_sub_epi32(sums[r][1], moved[1])];
        // SAFETY: the caller's promise.
        unsafe { add_scaled(&tile, r, exact) };
    }
}

/// Adds a row's sums of integers to what stands, times their scales.
///
/// # Safety
/// As for [`bytes`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_scaled(tile: &Tile, row: usize, sums: [__m512i; 2]) {
    // SAFETY: the caller's promise.
    let (row_scale, scales) = unsafe { (_mm512_set1_ps(*tile.row_scales.wrapping_add(row)), (*tile.scales).scales.as_ptr()) };
    for (half, sum) in sums.into_iter().enumerate() {
        let (mask, from, into) = places(tile, row, half);
        // SAFETY: there is a scale for each column of the panel; masks end at the result's last column.
        unsafe {
            let scale = _mm512_loadu_ps(scales.wrapping_add(half * LANES));
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
unsafe fn add(tile: &Tile, row: usize, sums: [__m512; 2]) {
    for (half, sum) in sums.into_iter().enumerate() {
        let (mask, from, into) = places(tile, row, half);
        // SAFETY: masks end at the result's last column.
        unsafe { _mm512_mask_storeu_ps(into, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, from), sum)) };
    }
}

/// The lanes of half a panel that the result has, what is added to, and where it goes.
#[inline]
fn places(tile: &Tile, row: usize, half: usize) -> (__mmask16, *const f32, *mut f32) {
    let left = tile.columns.saturating_sub(half * LANES);
    let mask = if left >= LANES { !0 } else { (1 << left) - 1 };
    let at = |stride: usize| row.wrapping_mul(stride).wrapping_add(half * LANES);
    (mask, tile.from.wrapping_add(at(tile.from_stride)), tile.into.wrapping_add(at(tile.into_stride)))
}
