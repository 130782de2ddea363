//! Exponentials and what is made of them, for 32-bit floats: branch-free, so that loops over them become vectors.
//!
//! Errors are a few units in the last place; zeros keep their sign, infinities and NaN come out as they should, and results below the smallest
//! normal number may be flushed. Polynomials are those of the Cephes library; the error function's is Eigen's.

/// 1.5 · 2²³: added to a float it rounds it to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;
/// 355/512: so short that its product with an exponent is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `(e^r, n)` with x = r + n · ln 2, for x within ±2²⁰. NaN stays NaN.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    ((r * r).mul_add(p, r) + 1.0, rounded.to_bits().cast_signed().wrapping_sub(ROUND.to_bits().cast_signed()))
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
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// eˣ where a result between 2⁻¹²⁶ and 2¹²⁷ will do.
#[inline(always)]
fn exp_clamped(x: f32) -> f32 {
    let (e, n) = exp_parts(x.clamp(-87.0, 88.0));
    e * power_of_two(n)
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let s = 1.0 / (1.0 + exp_clamped(-x));
    // Beyond the clamp the true value is below the smallest normal number.
    if x < -88.0 { 0.0 } else { s }
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let large = 1.0 - 2.0 / (exp_clamped(2.0 * a) + 1.0);
    let s = x * x;
    let mut p = -5.704_988_7e-3_f32;
    p = p.mul_add(s, 2.063_908_8e-2);
    p = p.mul_add(s, -5.373_971_6e-2);
    p = p.mul_add(s, 1.333_144_2e-1);
    p = p.mul_add(s, -3.333_328e-1);
    let small = (p * s).mul_add(a, a);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// Error function.
#[inline(always)]
fn erf(whole: f32) -> f32 {
    let x = whole.clamp(-4.0, 4.0);
    let s = x * x;
    let mut p = -2.726_142_3e-10_f32;
    p = p.mul_add(s, 2.770_681_5e-8);
    p = p.mul_add(s, -2.101_024e-6);
    p = p.mul_add(s, -5.692_506_5e-5);
    p = p.mul_add(s, -7.349_906e-4);
    p = p.mul_add(s, -2.954_6e-3);
    p = p.mul_add(s, -1.609_603_3e-2);
    let mut q = -1.456_607_2e-5_f32;
    q = q.mul_add(s, -2.133_740_6e-4);
    q = q.mul_add(s, -1.682_827e-3);
    q = q.mul_add(s, -7.373_329e-3);
    q = q.mul_add(s, -1.426_474e-2);
    // From four on it is one, to the last bit.
    if whole.abs() >= 4.0 { 1.0_f32.copysign(whole) } else { (x * p) / q }
}

/// x/2 · (1 + erf(x/√2)).
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    // An infinity times the factor's zero would be NaN where the limit is zero.
    let y = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    if x == f32::NEG_INFINITY { -0.0 } else { y }
}

/// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let y = 0.5 * x * (1.0 + tanh(0.797_884_6 * (0.044_715 * x * x).mul_add(x, x)));
    if x == f32::NEG_INFINITY { -0.0 } else { y }
}

/// x · sigmoid(x).
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    let y = x * sigmoid(x);
    if x == f32::NEG_INFINITY { -0.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error of `f` against `exact`, in units of the last place of the exact result, over floats of all magnitudes within the range.
    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, low: f32, high: f32) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for bits in (0..f32::INFINITY.to_bits()).step_by(6_007) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let right = exact(f64::from(x));
                if x < low || x > high || right.abs() < f64::from(f32::MIN_POSITIVE) {
                    continue;
                }
                let nearest = (right as f32).abs();
                let unit = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
                let error = (f64::from(f(x)) - right).abs() / unit;
                if error > worst.0 || error.is_nan() {
                    worst = (error, x);
                }
            }
        }
        worst
    }

    #[test]
    fn errors_are_a_few_units_in_the_last_place() {
        for (name, f, exact, bound) in [
            ("exp", exp as fn(f32) -> f32, f64::exp as fn(f64) -> f64, 2.0),
            ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.0),
            ("tanh", tanh, f64::tanh, 3.0),
            ("silu", silu, |x| x / (1.0 + (-x).exp()), 4.0),
        ] {
            let (error, at) = worst(f, exact, -87.0, 88.5);
            assert!(error < bound, "{name}: {error} units at {at}");
        }
    }

    #[test]
    fn edges() {
        let inf = f32::INFINITY;
        for (name, f, cases) in [
            (
                "exp",
                exp as fn(f32) -> f32,
                vec![(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (89.0, inf), (-200.0, 0.0), (1e-40, 1.0)],
            ),
            ("sigmoid", sigmoid, vec![(0.0, 0.5), (-0.0, 0.5), (inf, 1.0), (-inf, 0.0), (200.0, 1.0), (-200.0, 0.0), (1e-40, 0.5)]),
            ("tanh", tanh, vec![(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (1e-40, 1e-40), (-1e-40, -1e-40), (50.0, 1.0)]),
            ("gelu", gelu, vec![(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -0.0), (30.0, 30.0)]),
            ("gelu_tanh", gelu_tanh, vec![(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -0.0), (30.0, 30.0)]),
            ("silu", silu, vec![(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -0.0), (200.0, 200.0)]),
        ] {
            for (x, y) in cases {
                assert_eq!(f(x).to_bits(), f32::to_bits(y), "{name}({x}) = {}", f(x));
            }
            assert!(f(f32::NAN).is_nan(), "{name}(NaN) = {}", f(f32::NAN));
        }
    }
}
