//! What a precision makes of a row of a product's left-hand side, or of a column of its right-hand side.

use cellwright_cell_graph::typed::{F16_MOST, Precision};

use super::flushed;

/// The numbers that are multiplied.
pub(super) fn stretch(precision: Precision, values: &[f64]) -> Vec<f64> {
    match precision {
        Precision::F32 => values.to_vec(),
        Precision::F16 => values.iter().map(|value| to_f16(*value as f32)).collect(),
        Precision::Bf16 => values.iter().map(|value| f64::from(to_bf16(*value as f32))).collect(),
        Precision::Int8 => to_steps(&values.iter().map(|value| *value as f32).collect::<Vec<_>>()),
    }
}

/// The same of 32-bit floats in tf32.
pub(super) fn stretch_in_tf32(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| f64::from(to_tf32(*value as f32))).collect()
}

/// The nearest number of eleven significant bits; of two the one that is further from zero.
fn to_tf32(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    let bits = value.to_bits();
    let (kept, rest) = (bits >> 13, bits & 0x1fff);
    // From the largest number away from zero is infinity, as the bits are ordered.
    f32::from_bits((kept + u32::from(rest >= 0x1000)) << 13)
}

/// The nearest number of eight significant bits; of two the even one.
fn to_bf16(value: f32) -> f32 {
    if value.is_nan() {
        return value;
    }
    let bits = value.to_bits();
    let (kept, rest) = (bits >> 16, bits & 0xffff);
    let up = rest > 0x8000 || (rest == 0x8000 && kept % 2 == 1);
    // From the largest number up is infinity, as the bits are ordered.
    f32::from_bits((kept + u32::from(up)) << 16)
}

/// The nearest number of eleven significant bits, or below the least normal one the nearest multiple of its last bit; of two the even one.
fn to_f16(value: f32) -> f64 {
    const LEAST_EXPONENT: i32 = -14;
    let value = f64::from(value);
    if !value.is_finite() {
        return value;
    }
    // In 64 bits no 32-bit float below a power of two has its logarithm.
    let step = 2.0_f64.powi((value.abs().log2().floor() as i32).max(LEAST_EXPONENT) - 10);
    let rounded = (value / step).round_ties_even() * step;
    if rounded.abs() > f64::from(F16_MOST) { f64::INFINITY.copysign(value) } else { rounded }
}

/// Whole steps of a 127th of the largest magnitude, which is zero if it is denormal.
fn to_steps(values: &[f32]) -> Vec<f64> {
    if values.iter().any(|value| !value.is_finite()) {
        return vec![f64::NAN; values.len()];
    }
    let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let inverse = 127.0 / most;
    if inverse.is_infinite() {
        return vec![0.0; values.len()];
    }
    values.iter().map(|value| f64::from((value * inverse).round_ties_even()) * flushed(f64::from(most / 127.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        let rounded = |bits: u32| to_bf16(f32::from_bits(bits)).to_bits();
        assert_eq!(rounded(0x3f80_7fff), 0x3f80_0000);
        assert_eq!(rounded(0x3f80_8000), 0x3f80_0000, "a tie goes to the even one below");
        assert_eq!(rounded(0x3f80_8001), 0x3f81_0000);
        assert_eq!(rounded(0x3f81_8000), 0x3f82_0000, "a tie goes to the even one above");
        assert_eq!(rounded(0xbf81_8000), 0xbf82_0000);
        assert_eq!(to_bf16(f32::MAX), f32::INFINITY);
        assert!(to_bf16(f32::from_bits(0x7f80_0001)).is_nan(), "what is left of a NaN is one");
    }

    #[test]
    fn f16_rounds_to_nearest_and_ties_to_even_down_to_the_least_number() {
        let least = 2.0_f32.powi(-24);
        for (value, rounded) in [
            (1.0 + 0.5 / 1024.0, 1.0),
            (1.0 + 0.501 / 1024.0, 1.0 + 1.0 / 1024.0),
            (-1.0 - 1.5 / 1024.0, -1.0 - 2.0 / 1024.0),
            (2.0 - 0.5 / 1024.0, 2.0),
            (65519.0, 65504.0),
            (65520.0, f32::INFINITY),
            (-1e30, f32::NEG_INFINITY),
            (2.0_f32.powi(-14) - 0.5 * least, 2.0_f32.powi(-14)),
            (2.5 * least, 2.0 * least),
            (-3.5 * least, -4.0 * least),
            (0.5 * least, 0.0),
            (0.501 * least, least),
            (1e-45, 0.0),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(to_f16(value), f64::from(rounded), "{value}");
        }
        assert!(to_f16(f32::NAN).is_nan() && to_f16(-0.0).is_sign_negative());
    }

    #[test]
    fn tf32_rounds_to_nearest_and_ties_away_from_zero() {
        let rounded = |bits: u32| to_tf32(f32::from_bits(bits)).to_bits();
        assert_eq!(rounded(0x3f80_0fff), 0x3f80_0000);
        assert_eq!([rounded(0x3f80_1000), rounded(0x3f80_3000)], [0x3f80_2000, 0x3f80_4000], "a tie goes away from zero");
        assert_eq!([rounded(0xbf80_1000), rounded(0xbf80_3000)], [0xbf80_2000, 0xbf80_4000]);
        assert_eq!(to_tf32(f32::MAX), f32::INFINITY);
        assert_eq!(to_tf32(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(to_tf32(f32::from_bits(0x7f80_0001)).is_nan(), "what is left of a NaN is one");
    }

    #[test]
    fn steps_are_of_the_stretch_itself() {
        let close = |got: Vec<f64>, wanted: &[f64]| got.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() < 1e-6);
        assert!(close(to_steps(&[-2.54, 0.0, 0.031, 0.029, 0.05]), &[-2.54, 0.0, 0.04, 0.02, 0.04]), "half steps go to the even one");
        assert_eq!(to_steps(&[0.0, 1e-38]), [0.0, 0.0]);
        assert!(to_steps(&[1.0, f32::INFINITY]).iter().all(|value| value.is_nan()));
    }
}
