//! Tiles of up to four rows and three vectors: twelve sums, three vectors of weights and a row's value fill all sixteen registers.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m256i, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_set1_ps, _mm256_setzero_ps,
};

use super::tile::tiles;

tiles! {
    feature "avx2,fma", lanes 8, height 4,
    zero _mm256_setzero_ps(), load _mm256_loadu_ps, add_row add_row,
    mask mask, load_masked _mm256_maskload_ps, store_masked _mm256_maskstore_ps,
    rows [1 2 3 4]
}

/// The multiply-adds of a row stand together: taken apart, the next row's value or weights are loaded before all registers are free for them, and a sum that
/// has to make room goes through memory for every k, which takes twice as long as all multiply-adds.
///
/// # Safety
/// The value is readable.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_row<const PANEL: usize>(x: *const f32, columns: &[__m256; PANEL], sums: &mut [__m256; PANEL]) {
    if let ([first, second, third], [one, two, three]) = (&columns[..], &mut sums[..]) {
        // SAFETY: the caller's promise; the instructions are those of the target's features.
        unsafe {
            asm!(
                "vbroadcastss {value}, dword ptr [{x}]",
                "vfmadd231ps {one}, {value}, {first}",
                "vfmadd231ps {two}, {value}, {second}",
                "vfmadd231ps {three}, {value}, {third}",
                value = out(ymm_reg) _,
                x = in(reg) x,
                one = inout(ymm_reg) *one,
                two = inout(ymm_reg) *two,
                three = inout(ymm_reg) *three,
                first = in(ymm_reg) *first,
                second = in(ymm_reg) *second,
                third = in(ymm_reg) *third,
                options(pure, readonly, nostack),
            );
        }
        return;
    }
    // SAFETY: the caller's promise.
    let value = _mm256_set1_ps(unsafe { *x });
    for v in 0..PANEL {
        sums[v] = _mm256_fmadd_ps(value, columns[v], sums[v]);
    }
}

#[target_feature(enable = "avx2")]
fn mask(columns: usize) -> __m256i {
    let lanes: [i32; LANES] = std::array::from_fn(|lane| if lane < columns { -1 } else { 0 });
    // SAFETY: both are 256 bits, and every pattern of them is valid.
    unsafe { std::mem::transmute(lanes) }
}
