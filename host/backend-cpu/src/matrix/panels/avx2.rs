//! Tiles of up to four rows and three vectors: twelve sums, three vectors of weights and a row's value fill all sixteen registers.

use std::arch::x86_64::{
    __m256i, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_set1_ps, _mm256_setzero_ps,
};

use super::tile::tiles;

tiles! {
    feature "avx2,fma", lanes 8, height 4,
    zero _mm256_setzero_ps(), load _mm256_loadu_ps, splat _mm256_set1_ps, fmadd _mm256_fmadd_ps,
    mask mask, load_masked _mm256_maskload_ps, store_masked _mm256_maskstore_ps,
    rows [1 2 3 4]
}

#[target_feature(enable = "avx2")]
fn mask(columns: usize) -> __m256i {
    let lanes: [i32; LANES] = std::array::from_fn(|lane| if lane < columns { -1 } else { 0 });
    // SAFETY: both are 256 bits, and every pattern of them is valid.
    unsafe { std::mem::transmute(lanes) }
}
