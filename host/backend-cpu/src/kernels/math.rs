//! Exponentials and what is made of them, for 32-bit floats: branch-free, so that loops over them become vectors.
//!
//! Errors are less than three units in the last place (of silu three and a half) over the whole range, results below the smallest normal number included; zeros keep their sign,
//! infinities and NaN come out as they should. Polynomials are those of the Cephes library; [`wide`] has its own.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod wide;

pub(crate) use wide::{gelu, gelu_tanh};

/// 1.5 · 2²³: added to a float it rounds it to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;
/// 355/512: so short that its product with an exponent is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Of the exponential between −½ ln 2 and ½ ln 2: the highest power's coefficient first.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// From which on tanh is one to the last place of a float, twice over.
const TANH_ONE: f32 = 40.0;

/// `(e^r − 1, n)` with x = r + n · ln 2, for x within ±2²⁰. NaN stays NaN.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let p = EXP[1..].iter().fold(EXP[0], |p, coefficient| p.mul_add(r, *coefficient));
    ((r * r).mul_add(p, r), rounded.to_bits().cast_signed().wrapping_sub(ROUND.to_bits().cast_signed()))
}

/// 2ⁿ for n from −126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).wrapping_shl(23).cast_unsigned())
}

/// eˣ over the whole range: overflow is infinity, underflow zero.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (e, n) = exp_parts(x.clamp(-110.0, 90.0));
    // In two factors, because 2¹²⁸ and 2⁻¹⁵⁰ are no floats.
    let half = n >> 1;
    (e + 1.0) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    // By an exponential that is no more than one, so that nothing overflows and small results keep their digits.
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // By e^(2|x|) − 1, which keeps its digits where x is small.
    let (e, n) = exp_parts((x.abs() + x.abs()).clamp(0.0, TANH_ONE));
    let power = power_of_two(n);
    let e = e.mul_add(power, power - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// x · sigmoid(x).
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    let (m, n) = exp_parts((-x.abs()).clamp(-110.0, 0.0));
    let half = n >> 1;
    let (low, high) = (power_of_two(half), power_of_two(n.wrapping_sub(half)));
    let m = m + 1.0;
    let divisor = 1.0 + m * low * high;
    // Below zero the power of two comes last, so that what is too small for a normal number is rounded once. A very negative x counts as −110, which
    // gives zero already.
    let below = x.clamp(-110.0, 0.0) * m / divisor * low * high;
    if x < 0.0 { below } else { x / divisor }
}

#[cfg(test)]
mod tests;
