//! Sigmoid and tanh of four vectors at a time.
//!
//! Each is one long chain of operations that wait for one another. A compiler lays the chains of several vectors one behind the other, and a processor that looks a
//! hundred operations ahead then finds too few that can go on; here the four take turns, operation by operation. Every result has the bits that the
//! functions of the module above have.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T1, _mm_prefetch, _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_div_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_movepi32_mask, _mm512_mul_ps,
    _mm512_or_si512, _mm512_scalef_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
    _mm512_ternarylogic_epi32,
};

use super::{EXP, LN2_HIGH, LN2_LOW, ROUND, TANH_ONE};

/// Vectors that take turns.
const TURNS: usize = 4;
/// Floats of a vector, and of all of them.
const LANES: usize = 16;
pub(crate) const BLOCK: usize = TURNS * LANES;

pub(crate) type Vectors = [__m512; TURNS];

/// Of three words the first where the third has zeros, the second where it has ones.
const CHOOSE: i32 = 0xd8;

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

/// `(e^r − 1, n, …)` with x = r + n · ln 2, and n once more in the low bits of a float. NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp_parts(x: Vectors) -> (Vectors, Vectors, Vectors) {
    let of = |x: f32| _mm512_set1_ps(x);
    let rounded = each!(|at| _mm512_fmadd_ps(x[at], of(std::f32::consts::LOG2_E), of(ROUND)));
    let n = each!(|at| _mm512_sub_ps(rounded[at], of(ROUND)));
    let r = each!(|at| _mm512_fmadd_ps(n[at], of(-LN2_HIGH), x[at]));
    let r = each!(|at| _mm512_fmadd_ps(n[at], of(-LN2_LOW), r[at]));
    let mut p = each!(|at| _mm512_fmadd_ps(of(EXP[0]), r[at], of(EXP[1])));
    for coefficient in &EXP[2..] {
        p = each!(|at| _mm512_fmadd_ps(p[at], r[at], of(*coefficient)));
    }
    (each!(|at| _mm512_fmadd_ps(_mm512_mul_ps(r[at], r[at]), p[at], r[at])), n, rounded)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn sigmoid(x: Vectors) -> Vectors {
    let one = _mm512_set1_ps(1.0);
    let a = each!(|at| _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(x[at]), sign())));
    // Of a NaN and another number, the second.
    let (e, n, _) = exp_parts(each!(|at| _mm512_max_ps(_mm512_set1_ps(-110.0), a[at])));
    let e = each!(|at| _mm512_scalef_ps(_mm512_add_ps(e[at], one), n[at]));
    let above = each!(|at| _mm512_mask_mov_ps(one, _mm512_movepi32_mask(_mm512_castps_si512(x[at])), e[at]));
    each!(|at| _mm512_div_ps(above[at], _mm512_add_ps(one, e[at])))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn tanh(x: Vectors) -> Vectors {
    let of = |x: f32| _mm512_set1_ps(x);
    let a = each!(|at| _mm512_abs_ps(x[at]));
    let (e, _, rounded) = exp_parts(each!(|at| _mm512_min_ps(of(TANH_ONE), _mm512_add_ps(a[at], a[at]))));
    let one = _mm512_castps_si512(of(1.0));
    let power = each!(|at| _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32::<23>(_mm512_castps_si512(rounded[at])), one)));
    let e = each!(|at| _mm512_fmadd_ps(e[at], power[at], _mm512_sub_ps(power[at], of(1.0))));
    let y = each!(|at| _mm512_div_ps(e[at], _mm512_add_ps(e[at], of(2.0))));
    let bits = |x: __m512| _mm512_castps_si512(x);
    each!(|at| _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<CHOOSE>(bits(y[at]), bits(x[at]), sign())))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn multiply(a: Vectors, b: Vectors) -> Vectors {
    each!(|at| _mm512_mul_ps(a[at], b[at]))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load(x: &[f32; BLOCK]) -> Vectors {
    // SAFETY: a vector is within the block.
    each!(|at| unsafe { _mm512_loadu_ps(x.as_ptr().add(at * LANES)) })
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store(y: &mut [f32; BLOCK], vectors: Vectors) {
    for (at, vector) in vectors.into_iter().enumerate() {
        // SAFETY: a vector is within the block.
        unsafe { _mm512_storeu_ps(y.as_mut_ptr().add(at * LANES), vector) };
    }
}

/// Asks for what lies so many bytes behind a block, to be read from the second cache.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn ask_for(x: &[f32; BLOCK], behind: usize) {
    for at in 0..TURNS {
        // An address that nothing is at does no harm.
        _mm_prefetch::<_MM_HINT_T1>(x.as_ptr().wrapping_add(at * LANES).wrapping_byte_add(behind).cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of every function for floats of all magnitudes, not only numbers.
    #[test]
    fn blocks_have_the_bits_of_their_elements() {
        if !(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq")) {
            return;
        }
        let bits: Vec<u32> = (0..u32::MAX).step_by(4_001).chain([0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, u32::MAX]).collect();
        for bits in bits.chunks(BLOCK) {
            let x: [f32; BLOCK] = std::array::from_fn(|at| f32::from_bits(bits[at.min(bits.len() - 1)]));
            let (mut of_sigmoid, mut of_tanh) = ([0.0; BLOCK], [0.0; BLOCK]);
            // SAFETY: just asked.
            unsafe {
                store(&mut of_sigmoid, sigmoid(load(&x)));
                store(&mut of_tanh, tanh(load(&x)));
            }
            for at in 0..BLOCK {
                for (got, right) in [(of_sigmoid[at], super::super::sigmoid(x[at])), (of_tanh[at], super::super::tanh(x[at]))] {
                    assert!(got.to_bits() == right.to_bits() || (got.is_nan() && right.is_nan()), "{}: {got} and {right}", x[at]);
                }
            }
        }
    }
}
