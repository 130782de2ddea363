//! Few rows, or few columns: left-hand sides are read where they lie, in tiles of up to twelve rows and one to four panels.

use std::arch::x86_64::{
    _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps,
};
use std::ops::Range;

use super::{LANES, Tiles};
use crate::matrix::{Left, PANEL};

/// How many rows of a panel ahead of its use a weight is asked for, in tiles too small to hide the wait.
const AHEAD: usize = 16;
/// Rows of a panel that stay in the nearest cache while the rows of a block pass: 24 KiB, which leaves room for a tile's rows.
const PIECE: usize = 192;

/// How many panels a tile takes, and how many rows at most: as many sums as registers hold.
const fn shape(rows: usize, panels: usize) -> (usize, usize) {
    match (rows, panels) {
        (..=2, 4..) => (4, 2),
        (..=6, 2..) => (2, 6),
        _ => (1, 12),
    }
}

/// A part of a term's k, for one or more panels.
#[derive(Clone, Copy)]
struct Piece {
    /// The left-hand side at the piece's first k, and floats between its rows.
    left: Left,
    /// The first panel at the piece's first k.
    w: *const f32,
    /// Floats between panels.
    next_panel: usize,
    depth: usize,
}

impl Tiles<'_> {
    /// # Safety
    /// As for [`super::run`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn direct_block(&self, rows: Range<usize>, units: Range<usize>) {
        let mut panel = units.start;
        while panel < units.end {
            let (panels, height) = shape(rows.len(), units.end - panel);
            let tiles = rows.len().div_ceil(height);
            // SAFETY: the caller's promise.
            unsafe { self.begin(rows.clone(), panel, panels) };
            for (weight, left) in self.product.weights.iter().zip(self.lefts) {
                // A single tile uses its panels once, so nothing is gained by keeping a piece of them near.
                let pieces = if tiles == 1 { 1 } else { weight.k.div_ceil(PIECE) };
                for piece in 0..pieces {
                    let (start, end) = (weight.k * piece / pieces, weight.k * (piece + 1) / pieces);
                    let piece = Piece {
                        left: Left { rows: left.rows.wrapping_add(start), stride: left.stride },
                        w: weight.data.pointer().cast::<f32>().wrapping_add((panel * weight.k + start) * PANEL),
                        next_panel: weight.k * PANEL,
                        depth: end - start,
                    };
                    for tile in 0..tiles {
                        let (first, end) = (rows.len() * tile / tiles, rows.len() * (tile + 1) / tiles);
                        // SAFETY: rows and panels are within the product's; the rest is the caller's promise.
                        unsafe { self.direct(piece, panels, (rows.start + first, end - first), panel) };
                    }
                }
            }
            panel += panels;
        }
    }

    /// # Safety
    /// As for [`super::run`]; there are that many rows from `row` on and that many panels from `panel` on.
    #[target_feature(enable = "avx512f")]
    unsafe fn direct(&self, piece: Piece, panels: usize, (row, rows): (usize, usize), panel: usize) {
        // SAFETY: the caller's promise, for every arm.
        unsafe {
            match (panels, rows) {
                (4, 1) => self.direct_tile::<4, 1>(piece, row, panel),
                (4, _) => self.direct_tile::<4, 2>(piece, row, panel),
                (2, 1) => self.direct_tile::<2, 1>(piece, row, panel),
                (2, 2) => self.direct_tile::<2, 2>(piece, row, panel),
                (2, 3) => self.direct_tile::<2, 3>(piece, row, panel),
                (2, 4) => self.direct_tile::<2, 4>(piece, row, panel),
                (2, 5) => self.direct_tile::<2, 5>(piece, row, panel),
                (2, _) => self.direct_tile::<2, 6>(piece, row, panel),
                (_, 1) => self.direct_tile::<1, 1>(piece, row, panel),
                (_, 2) => self.direct_tile::<1, 2>(piece, row, panel),
                (_, 3) => self.direct_tile::<1, 3>(piece, row, panel),
                (_, 4) => self.direct_tile::<1, 4>(piece, row, panel),
                (_, 5) => self.direct_tile::<1, 5>(piece, row, panel),
                (_, 6) => self.direct_tile::<1, 6>(piece, row, panel),
                (_, 7) => self.direct_tile::<1, 7>(piece, row, panel),
                (_, 8) => self.direct_tile::<1, 8>(piece, row, panel),
                (_, 9) => self.direct_tile::<1, 9>(piece, row, panel),
                (_, 10) => self.direct_tile::<1, 10>(piece, row, panel),
                (_, 11) => self.direct_tile::<1, 11>(piece, row, panel),
                (..) => self.direct_tile::<1, 12>(piece, row, panel),
            }
        }
    }

    /// # Safety
    /// As for [`Self::direct`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    #[expect(clippy::needless_range_loop, reason = "loops over constant ranges unroll, and the sums stay in registers; iterators do not")]
    unsafe fn direct_tile<const PANELS: usize, const ROWS: usize>(&self, piece: Piece, row: usize, panel: usize) {
        let mut sums = [[[_mm512_setzero_ps(); 2]; PANELS]; ROWS];
        for r in 0..ROWS {
            for p in 0..PANELS {
                let (at, masks) = (self.at(row + r, panel + p), self.masks(panel + p));
                // SAFETY: the row is the result's, and the masks end at its last column.
                sums[r][p] = unsafe { [_mm512_maskz_loadu_ps(masks[0], at), _mm512_maskz_loadu_ps(masks[1], at.wrapping_add(LANES))] };
            }
        }
        // Steps are taken with wrapping arithmetic, because checks would take the registers that the rows' addresses need.
        let stride = piece.left.stride;
        let mut x = piece.left.rows.wrapping_add(row * stride);
        let mut w = piece.w;
        for _ in 0..piece.depth {
            let mut columns = [[_mm512_setzero_ps(); 2]; PANELS];
            for p in 0..PANELS {
                // SAFETY: panels are packed one after the other; a prefetch beyond the end of them does nothing.
                unsafe {
                    let at = w.wrapping_add(p.wrapping_mul(piece.next_panel));
                    columns[p] = [_mm512_loadu_ps(at), _mm512_loadu_ps(at.wrapping_add(LANES))];
                    if ROWS <= 4 {
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PANEL * AHEAD).cast());
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PANEL * AHEAD + LANES).cast());
                    } else {
                        // The next piece comes nearer while this one is used.
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(PANEL * PIECE).cast());
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(PANEL * PIECE + LANES).cast());
                    }
                }
            }
            for r in 0..ROWS {
                // SAFETY: x has these rows, and so many floats in each.
                let value = _mm512_set1_ps(unsafe { *x.wrapping_add(r.wrapping_mul(stride)) });
                for p in 0..PANELS {
                    sums[r][p][0] = _mm512_fmadd_ps(value, columns[p][0], sums[r][p][0]);
                    sums[r][p][1] = _mm512_fmadd_ps(value, columns[p][1], sums[r][p][1]);
                }
            }
            x = x.wrapping_add(1);
            w = w.wrapping_add(PANEL);
        }
        for r in 0..ROWS {
            for p in 0..PANELS {
                let (at, masks) = (self.at(row + r, panel + p), self.masks(panel + p));
                // SAFETY: as above.
                unsafe {
                    _mm512_mask_storeu_ps(at, masks[0], sums[r][p][0]);
                    _mm512_mask_storeu_ps(at.wrapping_add(LANES), masks[1], sums[r][p][1]);
                }
            }
        }
    }
}
