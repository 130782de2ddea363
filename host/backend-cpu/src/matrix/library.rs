//! Products by the crate `gemm-f32`, held to one summation order.
//!
//! The library chooses paths by shape, and a row's sum must not depend on the batch. So one row is
//! computed as two, because the library sums a single row in another order. K is given in pieces that
//! no cache heuristic cuts again. Products with fewer than three k or two columns never come here, and
//! no slice of columns is a single one.

use std::ops::Range;

use gemm_common::Parallelism;

use super::{Left, Product, Target};

/// The library cuts K at 512 for small results, and at 512 or later for others.
const DEPTH: usize = 512;

/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn run(product: &Product, lefts: &[Left], result: Target, rows: usize, columns: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { product.begin(result, rows, &columns) };
    // There is room for two rows (the caller's promise); what the second holds is nobody's.
    let rows = rows.max(2);
    for (weight, left) in product.weights.iter().zip(lefts) {
        for depth in pieces(weight.k) {
            // The library wants a result with columns together. Ours has rows together, so it is given the transposed product.
            // SAFETY: x has `rows` rows of k floats, w is k × n, the result has `rows` rows and these columns.
            unsafe {
                gemm_f32::gemm::f32::get_gemm_fn()(
                    columns.len(),
                    rows,
                    depth.len(),
                    result.rows.wrapping_add(columns.start),
                    result.stride as isize,
                    1,
                    true,
                    weight.data.pointer().cast::<f32>().add(depth.start * product.n + columns.start),
                    product.n as isize,
                    1,
                    left.rows.add(depth.start),
                    left.stride as isize,
                    1,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    }
}

/// K in equal pieces of at most [`DEPTH`].
fn pieces(k: usize) -> impl Iterator<Item = Range<usize>> {
    let count = k.div_ceil(DEPTH).max(1);
    (0..count).map(move |piece| k * piece / count..k * (piece + 1) / count)
}
