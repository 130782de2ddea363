//! Products by the crate `gemm`, held to one summation order.
//!
//! The library chooses paths by shape. What would make a row's sum depend on the batch is kept from it: one row is computed as two (a single
//! row is summed in another order), K is given in pieces that no cache heuristic cuts again, products with fewer than three k or two columns
//! never come here, and no slice of columns is a single one.

use std::ops::Range;

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
            // SAFETY: x has `rows` rows of k floats, w is k × n, the result has `rows` rows and these columns.
            unsafe {
                gemm::gemm(
                    rows,
                    columns.len(),
                    depth.len(),
                    result.rows.wrapping_add(columns.start),
                    1,
                    result.stride as isize,
                    true,
                    left.rows.add(depth.start),
                    1,
                    left.stride as isize,
                    weight.data.pointer().cast::<f32>().add(depth.start * product.n + columns.start),
                    1,
                    product.n as isize,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
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
