//! Products so thin that a loop is as good as anything.

use std::ops::Range;

use super::{Left, Product, Target};
use crate::kernels::dispatch;

/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn run(product: &Product, lefts: &[Left], result: Target, rows: usize, columns: Range<usize>) {
    // The same bits on every level; where there are no fused multiply-adds, they are many times slower.
    let multiply = dispatch!(
        product.level,
        multiply::<>,
        [],
        (product: &Product, lefts: &[Left], result: Target, rows: usize, columns: Range<usize>)
    );
    // SAFETY: the caller's promise.
    unsafe { multiply(product, lefts, result, rows, columns) }
}

/// # Safety
/// As for [`Product::run`].
#[inline(always)]
unsafe fn multiply(product: &Product, lefts: &[Left], result: Target, rows: usize, columns: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { product.begin(result, rows, &columns) };
    for row in 0..rows {
        // SAFETY: the result has this row and these columns.
        let y = unsafe { std::slice::from_raw_parts_mut(result.rows.wrapping_add(row * result.stride + columns.start), columns.len()) };
        for (weight, left) in product.weights.iter().zip(lefts) {
            // SAFETY: x has this row of k floats.
            let x = unsafe { std::slice::from_raw_parts(left.rows.add(row * left.stride), weight.k) };
            for (k, x) in x.iter().enumerate() {
                // SAFETY: w is k × n.
                let w = unsafe {
                    std::slice::from_raw_parts(weight.data.pointer().cast::<f32>().add(k * product.n + columns.start), columns.len())
                };
                for (y, w) in y.iter_mut().zip(w) {
                    *y = x.mul_add(*w, *y);
                }
            }
        }
    }
}
