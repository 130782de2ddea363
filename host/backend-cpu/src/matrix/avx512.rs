//! Products on AVX-512: tiles of up to twelve rows and one to four panels, with their sums in registers.
//!
//! An element's sum is one chain of fused multiply-adds that starts at the bias and runs over all k of all terms. Where that chain is cut, because
//! a piece of a panel is to stay in a near cache while many rows pass, the sum is put down and taken up again as it is. So the bits depend
//! neither on the shape of a tile nor on the length of a piece, nor on whether left-hand sides were packed.

mod direct;
mod packed;

use std::arch::x86_64::{__mmask16, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_setzero_ps};
use std::ops::Range;

use super::{Left, PANEL, Product, Target};

/// Floats of a vector.
const LANES: usize = 16;
/// Bytes of left-hand sides that are worked on before the next rows: they and a panel fit the second-level cache.
const BLOCK_BYTES: usize = 512 << 10;

/// Floats of scratch memory that a thread needs for so many rows of a product.
pub(super) fn scratch(product: &Product, rows: usize) -> usize {
    if packed::pays(rows, product.units()) { rows.min(block_rows(product)) * product.depth() } else { 0 }
}

/// How many rows are worked on before the next.
fn block_rows(product: &Product) -> usize {
    (BLOCK_BYTES / (product.depth() * size_of::<f32>()).max(1)).max(24)
}

/// # Safety
/// As for [`Product::run`], and the processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run(product: &Product, lefts: &[Left], result: Target, rows: usize, units: Range<usize>, scratch: *mut f32) {
    let tiles = Tiles { product, lefts, result };
    let blocks = rows.div_ceil(block_rows(product));
    for block in 0..blocks {
        let rows = rows * block / blocks..rows * (block + 1) / blocks;
        // SAFETY: the caller's promise, for some of the rows.
        unsafe {
            if packed::pays(rows.len(), units.len()) {
                tiles.packed_block(rows, units.clone(), scratch);
            } else {
                tiles.direct_block(rows, units.clone());
            }
        }
    }
}

struct Tiles<'a> {
    product: &'a Product,
    lefts: &'a [Left],
    result: Target,
}

impl Tiles<'_> {
    /// Puts down what sums begin with: the bias, or zero.
    ///
    /// # Safety
    /// As for [`run`].
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(&self, rows: Range<usize>, panel: usize, panels: usize) {
        for panel in panel..panel + panels {
            let (mut low, mut high) = (_mm512_setzero_ps(), _mm512_setzero_ps());
            if let Some(bias) = self.product.bias() {
                // SAFETY: the bias is padded to whole panels.
                (low, high) = unsafe { (_mm512_loadu_ps(bias.add(panel * PANEL)), _mm512_loadu_ps(bias.add(panel * PANEL + LANES))) };
            }
            let masks = self.masks(panel);
            for row in rows.clone() {
                let at = self.at(row, panel);
                // SAFETY: the row is the result's, and the masks end at its last column.
                unsafe {
                    _mm512_mask_storeu_ps(at, masks[0], low);
                    _mm512_mask_storeu_ps(at.wrapping_add(LANES), masks[1], high);
                }
            }
        }
    }

    #[inline]
    fn at(&self, row: usize, panel: usize) -> *mut f32 {
        self.result.rows.wrapping_add(row.wrapping_mul(self.result.stride).wrapping_add(panel.wrapping_mul(PANEL)))
    }

    /// The lanes of a panel's two vectors that the result has.
    #[inline]
    fn masks(&self, panel: usize) -> [__mmask16; 2] {
        let left = self.product.n.saturating_sub(panel.wrapping_mul(PANEL));
        [left, left.saturating_sub(LANES)].map(|left| if left >= LANES { !0 } else { (1 << left) - 1 })
    }
}
