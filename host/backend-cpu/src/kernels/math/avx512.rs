//! Sigmoid and tanh of four vectors at a time.
//!
//! Each is one long chain of operations that wait for one another. A compiler lays the chains of several vectors one behind the other, and a processor that looks a
//! hundred operations ahead then finds too few that can go on; here the four take turns, operation by operation. Every result has the bits that the
//! functions of the module above have.

use std::arch::x86_64::{
    __m512, __m512i, _CMP_LT_OQ, _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_div_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_max_ps,
    _mm512_min_ps, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{EXP, LN2_HIGH, LN2_LOW, ROUND, TANH};

/// Vectors that take turns.
const TURNS: usize = 4;
/// Floats of a vector, and of all of them.
const LANES: usize = 16;
pub(crate) const BLOCK: usize = TURNS * LANES;

type Vectors = [__m512; TURNS];

/// 2⁶⁴, by whose exponent numbers are larger than they will be in the end, and its inverse.
const UP: f32 = 64.0;
const DOWN: f32 = 1.0 / 18_446_744_073_709_551_616.0;

/// An operation on every vector.
macro_rules! each {
    (|$at:ident| $one:expr) => {{
        let mut all = [_mm512_setzero_ps(); TURNS];
        for $at in 0..TURNS {
            all[$at] = $one;
        }
        all
    }};
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sign() -> __m512i {
    _mm512_castps_si512(_mm512_set1_ps(-0.0))
}

/// `e^x · 2^up`, for x that leave it a normal number. NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: Vectors, up: f32) -> Vectors {
    let of = |x: f32| _mm512_set1_ps(x);
    // What rounds holds the exponent, and what is to be added to it, in its low bits.
    let rounded = each!(|at| _mm512_fmadd_ps(x[at], of(std::f32::consts::LOG2_E), of(ROUND + up)));
    let n = each!(|at| _mm512_sub_ps(rounded[at], of(ROUND + up)));
    let r = each!(|at| _mm512_fmadd_ps(n[at], of(-LN2_HIGH), x[at]));
    let r = each!(|at| _mm512_fmadd_ps(n[at], of(-LN2_LOW), r[at]));
    let mut p = each!(|at| _mm512_fmadd_ps(of(EXP[0]), r[at], of(EXP[1])));
    for coefficient in &EXP[2..] {
        p = each!(|at| _mm512_fmadd_ps(p[at], r[at], of(*coefficient)));
    }
    let y = each!(|at| _mm512_fmadd_ps(_mm512_mul_ps(r[at], r[at]), p[at], r[at]));
    let y = each!(|at| _mm512_add_ps(y[at], of(1.0)));
    let one = _mm512_castps_si512(of(1.0));
    let power = each!(|at| _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32::<23>(_mm512_castps_si512(rounded[at])), one)));
    each!(|at| _mm512_mul_ps(y[at], power[at]))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sigmoid(x: Vectors) -> Vectors {
    let a = each!(|at| _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(x[at]), sign())));
    // Of a NaN and another number, the second.
    let a = each!(|at| _mm512_max_ps(_mm512_set1_ps(-110.0), a[at]));
    // Only the last factor may leave the normal numbers, so that it rounds once.
    let e = exp(a, UP);
    let e = each!(|at| _mm512_mul_ps(e[at], _mm512_set1_ps(DOWN)));
    let one = _mm512_set1_ps(1.0);
    let above = each!(|at| _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x[at], _mm512_setzero_ps()), one, e[at]));
    each!(|at| _mm512_div_ps(above[at], _mm512_add_ps(one, e[at])))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn tanh(x: Vectors) -> Vectors {
    let of = |x: f32| _mm512_set1_ps(x);
    let a = each!(|at| _mm512_abs_ps(x[at]));
    let e = exp(each!(|at| _mm512_min_ps(of(88.0), _mm512_add_ps(a[at], a[at]))), 0.0);
    let large = each!(|at| _mm512_sub_ps(of(1.0), _mm512_div_ps(of(2.0), _mm512_add_ps(e[at], of(1.0)))));
    let s = each!(|at| _mm512_mul_ps(x[at], x[at]));
    let mut p = each!(|at| _mm512_fmadd_ps(of(TANH[0]), s[at], of(TANH[1])));
    for coefficient in &TANH[2..] {
        p = each!(|at| _mm512_fmadd_ps(p[at], s[at], of(*coefficient)));
    }
    let small = each!(|at| _mm512_fmadd_ps(_mm512_mul_ps(p[at], s[at]), a[at], a[at]));
    let y = each!(|at| _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a[at], of(0.625)), large[at], small[at]));
    let sign_of = |x: __m512| _mm512_and_si512(_mm512_castps_si512(x), sign());
    let size_of = |y: __m512| _mm512_and_si512(_mm512_castps_si512(y), _mm512_set1_epi32(i32::MAX));
    each!(|at| _mm512_castsi512_ps(_mm512_or_si512(size_of(y[at]), sign_of(x[at]))))
}

/// A function of some floats, one by one, and of [`BLOCK`] of them.
pub(crate) trait Blocks {
    fn one(x: f32) -> f32;

    /// # Safety
    /// The processor has AVX-512 F.
    unsafe fn block(x: &[f32; BLOCK], y: &mut [f32; BLOCK]);
}

macro_rules! blocks {
    ($($name:ident: $function:ident),*) => {$(
        pub(crate) struct $name;

        impl Blocks for $name {
            #[inline(always)]
            fn one(x: f32) -> f32 {
                super::$function(x)
            }

            #[inline]
            #[target_feature(enable = "avx512f")]
            unsafe fn block(x: &[f32; BLOCK], y: &mut [f32; BLOCK]) {
                // SAFETY: a vector is within the block.
                let x = each!(|at| unsafe { _mm512_loadu_ps(x.as_ptr().add(at * LANES)) });
                for (at, vector) in $function(x).into_iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { _mm512_storeu_ps(y.as_mut_ptr().add(at * LANES), vector) };
                }
            }
        }
    )*};
}

blocks! { Sigmoid: sigmoid, Tanh: tanh }

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of every function for floats of all magnitudes, not only numbers.
    #[test]
    fn blocks_have_the_bits_of_their_elements() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let bits: Vec<u32> = (0..u32::MAX).step_by(4_001).chain([0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, u32::MAX]).collect();
        for bits in bits.chunks(BLOCK) {
            let x: [f32; BLOCK] = std::array::from_fn(|at| f32::from_bits(bits[at.min(bits.len() - 1)]));
            let (mut of_sigmoid, mut of_tanh) = ([0.0; BLOCK], [0.0; BLOCK]);
            // SAFETY: just asked.
            unsafe {
                Sigmoid::block(&x, &mut of_sigmoid);
                Tanh::block(&x, &mut of_tanh);
            }
            for at in 0..BLOCK {
                for (got, right) in [(of_sigmoid[at], Sigmoid::one(x[at])), (of_tanh[at], Tanh::one(x[at]))] {
                    assert!(got.to_bits() == right.to_bits() || (got.is_nan() && right.is_nan()), "{}: {got} and {right}", x[at]);
                }
            }
        }
    }
}
