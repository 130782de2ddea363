//! What needs more than 32 bits on the way to be right in all of them: both forms of gelu lose every digit below zero if they are computed as they are
//! written, one plus something close to minus one.

/// 1.5 · 2⁵²: as `ROUND`, for 64 bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// eˣ to ten digits, for x from −700 to 0; below, as if it were −700.
#[inline(always)]
fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 0.0);
    let rounded = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-std::f64::consts::LN_2, x);
    // Taylor's polynomial: |r| is less than 0.35.
    let mut p = 1.0_f64 / 40_320.0;
    p = p.mul_add(r, 1.0 / 5_040.0);
    p = p.mul_add(r, 1.0 / 720.0);
    p = p.mul_add(r, 1.0 / 120.0);
    p = p.mul_add(r, 1.0 / 24.0);
    p = p.mul_add(r, 1.0 / 6.0);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    // The integer stands in the low bits; 2ⁿ has it, and 1023, in those of the exponent.
    p * f64::from_bits(rounded.to_bits().wrapping_add(1023).wrapping_shl(52))
}

/// How likely a normal variable is to exceed a, for a ≥ 0: e^(−a²/2) times Mills' ratio over √(2π). Of that, times 1 + 2a, a polynomial in (a − 3)/(a + 3) fitted at
/// Chebyshev's points from 0 to 16 errs by less than 10⁻⁹; beyond, the exponential is zero to any float.
#[inline(always)]
fn beyond(a: f64) -> f64 {
    let near = a.clamp(0.0, 16.0);
    let t = (near - 3.0) / (near + 3.0);
    let mut p = 5.057_886_747_614_002e-5_f64;
    p = p.mul_add(t, 1.825_331_846_529_796_8e-4);
    p = p.mul_add(t, -5.268_607_540_014_229e-5);
    p = p.mul_add(t, -1.156_977_777_112_995_2e-3);
    p = p.mul_add(t, -3.524_846_345_812_952e-4);
    p = p.mul_add(t, 7.007_833_743_082_492e-3);
    p = p.mul_add(t, -5.868_456_672_964_546e-4);
    p = p.mul_add(t, -5.159_262_695_967_225e-2);
    p = p.mul_add(t, 1.365_414_539_268_807_4e-1);
    p = p.mul_add(t, -1.560_892_930_611_532e-1);
    p = p.mul_add(t, 1.334_909_109_581_791_3e-2);
    p = p.mul_add(t, 8.505_976_382_247_632e-1);
    exp(-0.5 * a * a) * p / 2.0_f64.mul_add(near, 1.0)
}

/// x/2 · (1 + erf(x/√2)).
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let wide = f64::from(x);
    let tail = beyond(wide.abs());
    let y = wide * if x < 0.0 { tail } else { 1.0 - tail };
    // An infinity times the factor's zero would be NaN where the limit is zero.
    if x == f32::NEG_INFINITY { -0.0 } else { y as f32 }
}

/// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), which is x · sigmoid(2√(2/π) · …).
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let wide = f64::from(x);
    let u = 1.595_769_121_605_731 * (0.044_715 * wide * wide).mul_add(wide, wide);
    let e = exp(-u.abs());
    let y = wide * (if x < 0.0 { e } else { 1.0 }) / (1.0 + e);
    if x == f32::NEG_INFINITY { -0.0 } else { y as f32 }
}
