//! Products in f16: the kernels of 32-bit floats, on operands that were rounded to halves before.
//!
//! Every half is a 32-bit float, and so is every product of two halves. So the kernels need not
//! know of f16. A weight is rounded when it is packed; rows are rounded while they are copied to
//! scratch memory. This precision exists for the same results as on a GPU. It takes the time of
//! f32, plus the rounding.

use cellwright_cell_graph::typed::F16_MOST;

use super::{Left, Product, TERMS};
use crate::kernels::dispatch;

/// The nearest number of f16, ties to even; beyond the largest it is infinite, and a NaN stays one.
#[inline(always)]
pub(super) fn rounded(value: f32) -> f32 {
    /// The least number whose digits are all there.
    const NORMAL: f32 = 1.0 / (1 << 14) as f32;
    let magnitude = value.abs();
    let bits = magnitude.to_bits();
    let normal = f32::from_bits(bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff);
    // The last digit of a float of this size is the least number of f16: adding rounds, to the nearest and the even one.
    let small = (magnitude + 0.5) - 0.5;
    let near = if magnitude < NORMAL { small } else { normal };
    let within = if near > F16_MOST { f32::INFINITY } else { near };
    (if value.is_nan() { value } else { within }).copysign(value)
}

/// Floats of scratch memory that rounded rows take. One row may be multiplied as two.
pub(super) fn scratch(product: &Product, rows: usize) -> usize {
    rows.max(2) * product.weights.iter().map(|weight| weight.k).sum::<usize>()
}

/// Rounds the rows of every term into scratch memory: where they are.
///
/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn round(product: &Product, lefts: &[Left], rows: usize, scratch: *mut f32) -> [Left; TERMS] {
    let mut halves = [Left::NONE; TERMS];
    let mut free = scratch;
    let run = dispatch!(product.level, round_row::<>, [], (row: &[f32], into: *mut f32));
    for ((half, weight), left) in halves.iter_mut().zip(&product.weights).zip(lefts) {
        let k = weight.k;
        *half = Left::floats(free, k);
        for row in 0..rows {
            // SAFETY: the caller's promise: there are these rows, and scratch memory for as many; the level is one that the processor has.
            unsafe { run(std::slice::from_raw_parts(left.rows.add(row * left.stride), k), free.add(row * k)) };
        }
        // SAFETY: the caller's promise.
        free = unsafe { free.add(rows.max(2) * k) };
    }
    halves
}

/// # Safety
/// There is room for as many.
#[inline(always)]
unsafe fn round_row(row: &[f32], into: *mut f32) {
    for (at, value) in row.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { *into.add(at) = rounded(*value) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::tests::{SHAPES, forms, pool, run, value};
    use super::*;
    use crate::level::Level;

    /// What the bits of a half that is not negative mean.
    fn half(bits: u32) -> f32 {
        let (exponent, digits) = (bits >> 10, (bits & 0x3ff) as f32);
        if exponent == 0 { digits * 2.0_f32.powi(-24) } else { (1024.0 + digits) * 2.0_f32.powi(exponent as i32 - 25) }
    }

    #[test]
    fn every_half_is_itself_and_what_lies_between_two_goes_to_the_nearer_or_the_even_one() {
        for bits in 0..0x7c00 {
            let (low, high) = (half(bits), if bits == 0x7bff { f32::INFINITY } else { half(bits + 1) });
            // Beyond the largest there would be one more step.
            let middle = low + 0.5 * if bits == 0x7bff { 32.0 } else { high - low };
            let cases = [(low, low), (middle.next_down(), low), (middle, if bits % 2 == 0 { low } else { high }), (middle.next_up(), high)];
            for (value, wanted) in cases {
                assert_eq!(rounded(value).to_bits(), wanted.to_bits(), "{value} of {bits:#x}");
                assert_eq!(rounded(-value).to_bits(), (-wanted).to_bits(), "{value} of {bits:#x}");
            }
        }
        assert_eq!([rounded(f32::MAX), rounded(f32::NEG_INFINITY), rounded(1e-45)], [f32::INFINITY, f32::NEG_INFINITY, 0.0]);
        assert!(rounded(f32::NAN).is_nan() && rounded(f32::from_bits(0xff80_0001)).is_nan());
    }

    fn product(form: Form, ks: &[usize], n: usize, in_halves: bool) -> Product {
        let mut product = Product::new(form, Level::detect(), n);
        if in_halves {
            product.round_to_halves();
        }
        for (term, k) in ks.iter().enumerate() {
            let w = |row: usize, column: usize| value(term * 1_000_003 + row * 4099 + column);
            product.push(*k, &|row, column| if in_halves { w(row, column) } else { rounded(w(row, column)) });
        }
        product.set_bias(&(0..n).map(|column| value(77_000_000 + column)).collect::<Vec<_>>());
        product
    }

    #[test]
    fn products_are_those_of_rounded_numbers_to_the_bit_in_any_company() {
        let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        for (ks, n) in SHAPES {
            let x = pool(ks);
            let halves: Vec<Vec<f32>> = x.iter().map(|x| x.iter().map(|value| rounded(*value)).collect()).collect();
            for form in forms(*ks.iter().min().unwrap(), n).into_iter().filter(|form| !matches!(form, Form::Rounded(_))) {
                let (in_halves, in_floats) = (product(form, ks, n, true), product(form, ks, n, false));
                for (count, threads) in [(1, 1), (2, 3), (29, 2)] {
                    let rows: Vec<usize> = (0..count).map(|at| at * 7).collect();
                    let y = run(&in_halves, ks, &x, &rows, threads);
                    assert!(bits(&y) == bits(&run(&in_floats, ks, &halves, &rows, 1)), "{form:?} {ks:?} × {n}, {count} rows");
                    let last = run(&in_halves, ks, &x, &rows[count - 1..], 1);
                    assert!(bits(&y[(count - 1) * n..]) == bits(&last), "{form:?} {ks:?} × {n}: the last of {count} rows, alone");
                }
            }
        }
    }
}
