//! Tiles of up to eight rows and three vectors: 24 sums, three vectors of weights and a row's value fill 28 of 32 registers.

use std::arch::x86_64::{
    __m512, __mmask16, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
};

use super::tile::tiles;

tiles! {
    feature "avx512f", lanes 16, height 8,
    zero _mm512_setzero_ps(), load _mm512_loadu_ps, add_row add_row,
    mask mask, load_masked load_masked, store_masked _mm512_mask_storeu_ps,
    rows [1 2 3 4 5 6 7 8]
}

/// # Safety
/// The value is readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_row<const PANEL: usize>(x: *const f32, columns: &[__m512; PANEL], sums: &mut [__m512; PANEL]) {
    // SAFETY: the caller's promise.
    let value = _mm512_set1_ps(unsafe { *x });
    for v in 0..PANEL {
        sums[v] = _mm512_fmadd_ps(value, columns[v], sums[v]);
    }
}

fn mask(columns: usize) -> __mmask16 {
    if columns >= LANES { !0 } else { (1 << columns) - 1 }
}

/// # Safety
/// The lanes of the mask are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_masked(from: *const f32, mask: __mmask16) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_ps(mask, from) }
}
