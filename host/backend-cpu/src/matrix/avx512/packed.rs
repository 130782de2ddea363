//! Many rows and columns: left-hand sides are packed tile by tile, so that a tile reads them in one stream, and while a panel is used all its tiles
//! together ask for the next one.
//!
//! Weights of a few tens of megabytes come from the last cache or from memory. Whoever waits for them at the beginning of each panel computes half
//! as fast at a batch of 32; asking evenly ahead hides that wait behind the arithmetic.

use std::arch::x86_64::{
    __m512, _MM_HINT_T1, _mm_prefetch, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps,
};
use std::ops::Range;

use super::{LANES, Tiles};
use crate::matrix::PANEL;

/// Rows of a tile at most: two vectors of sums for each, two of weights and one of a row's value fill 27 of 32 registers.
const HEIGHT: usize = 12;
/// Fewer rows are a single tile, which uses a panel once and is limited by how fast weights are read.
const ROWS_LEAST: usize = HEIGHT + 1;
/// With fewer panels packing takes longer than it saves.
const UNITS_LEAST: usize = 8;
/// Rows of a panel at most that all tiles pass before the next: it, the one asked for, and a block of rows fit the second-level cache.
const PIECE: usize = 1024;
/// Rows of a panel between two rounds of asking ahead.
const ROUND: usize = 4;

/// Whether packing pays for so many rows and panels.
pub(super) const fn pays(rows: usize, units: usize) -> bool {
    rows >= ROWS_LEAST && units >= UNITS_LEAST
}

/// Some rows of a panel, and what comes after them.
#[derive(Clone, Copy, Debug)]
struct Piece {
    panel: usize,
    /// Its place among all k of all terms.
    start: usize,
    depth: usize,
    w: *const f32,
    next: *const f32,
    next_depth: usize,
}

/// A tile's packed rows.
#[derive(Clone, Copy, Debug)]
struct Band {
    row: usize,
    rows: usize,
    x: *const f32,
}

impl Tiles<'_> {
    /// # Safety
    /// As for [`super::run`]; there is room for the block's rows of all terms in `scratch`.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn packed_block(&self, rows: Range<usize>, units: Range<usize>, scratch: *mut f32) {
        let tiles = rows.len().div_ceil(HEIGHT);
        let depth = self.product.depth();
        let band = |tile: usize| {
            let (first, end) = (rows.len() * tile / tiles, rows.len() * (tile + 1) / tiles);
            Band { row: rows.start + first, rows: end - first, x: scratch.wrapping_add(first * depth) }
        };
        for tile in 0..tiles {
            // SAFETY: the caller's promise; bands do not overlap.
            unsafe { self.pack(band(tile)) };
        }
        for panel in units.clone() {
            // SAFETY: the caller's promise.
            unsafe { self.begin(rows.clone(), panel, 1) };
            let next_panel = if panel + 1 < units.end { panel + 1 } else { units.start };
            for piece in self.pieces(panel, next_panel) {
                for tile in 0..tiles {
                    let Band { row, rows, x } = band(tile);
                    let band = Band { row, rows, x: x.wrapping_add(piece.start * rows) };
                    // SAFETY: the band was packed above; rows and panel are the product's.
                    unsafe { self.packed(piece, band, (tile, tiles)) };
                }
            }
        }
    }

    /// The pieces of a panel, in the order of all k.
    fn pieces(&self, panel: usize, next_panel: usize) -> impl Iterator<Item = Piece> {
        let weights = &self.product.weights;
        let at = move |term: usize, panel: usize, row: usize| {
            weights[term].data.pointer().cast::<f32>().wrapping_add((panel * weights[term].k + row) * PANEL)
        };
        let count = move |term: usize| weights[term].k.div_ceil(PIECE);
        let range = move |term: usize, piece: usize| (weights[term].k * piece / count(term), weights[term].k * (piece + 1) / count(term));
        let mut before = 0;
        (0..weights.len()).flat_map(move |term| {
            let begins = before;
            before += weights[term].k;
            (0..count(term)).map(move |piece| {
                let (start, end) = range(term, piece);
                let (next_term, next_panel, next_piece) = if piece + 1 < count(term) {
                    (term, panel, piece + 1)
                } else if term + 1 < weights.len() {
                    (term + 1, panel, 0)
                } else {
                    (0, next_panel, 0)
                };
                let (next_start, next_end) = range(next_term, next_piece);
                Piece {
                    panel,
                    start: begins + start,
                    depth: end - start,
                    w: at(term, panel, start),
                    next: at(next_term, next_panel, next_start),
                    next_depth: next_end - next_start,
                }
            })
        })
    }

    /// Puts a tile's rows side by side: all rows' first value, all rows' second, and so on through all terms.
    ///
    /// # Safety
    /// As for [`Self::packed_block`].
    unsafe fn pack(&self, band: Band) {
        let mut into = band.x.cast_mut();
        for (weight, left) in self.product.weights.iter().zip(self.lefts) {
            for row in 0..band.rows {
                let from = left.rows.wrapping_add((band.row + row) * left.stride);
                for k in 0..weight.k {
                    // SAFETY: the row has k values, and the scratch memory room for those of all rows of the band.
                    unsafe { *into.wrapping_add(k * band.rows + row) = *from.wrapping_add(k) };
                }
            }
            into = into.wrapping_add(weight.k * band.rows);
        }
    }

    /// # Safety
    /// As for [`Self::packed_block`].
    #[target_feature(enable = "avx512f")]
    unsafe fn packed(&self, piece: Piece, band: Band, part: (usize, usize)) {
        // SAFETY: the caller's promise, for every arm.
        unsafe {
            match band.rows {
                ..=6 => self.packed_tile::<6>(piece, band, part),
                7 => self.packed_tile::<7>(piece, band, part),
                8 => self.packed_tile::<8>(piece, band, part),
                9 => self.packed_tile::<9>(piece, band, part),
                10 => self.packed_tile::<10>(piece, band, part),
                11 => self.packed_tile::<11>(piece, band, part),
                _ => self.packed_tile::<12>(piece, band, part),
            }
        }
    }

    /// # Safety
    /// As for [`Self::packed_block`]; the band has `ROWS` rows.
    #[inline]
    #[target_feature(enable = "avx512f")]
    #[expect(clippy::needless_range_loop, reason = "loops over constant ranges unroll, and the sums stay in registers; iterators do not")]
    unsafe fn packed_tile<const ROWS: usize>(&self, piece: Piece, band: Band, (tile, tiles): (usize, usize)) {
        let masks = self.masks(piece.panel);
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        for r in 0..ROWS {
            let at = self.at(band.row + r, piece.panel);
            // SAFETY: the row is the result's, and the masks end at its last column.
            sums[r] = unsafe { [_mm512_maskz_loadu_ps(masks[0], at), _mm512_maskz_loadu_ps(masks[1], at.wrapping_add(LANES))] };
        }
        let (mut x, mut w) = (band.x, piece.w);
        let rounds = piece.depth / ROUND;
        // Each tile asks for its part of the next piece, a few lines in each round.
        let lines = (2 * piece.next_depth).div_ceil(tiles * rounds.max(1));
        let mut next = piece.next.wrapping_add(tile * rounds * lines * LANES);
        let step = |x: *const f32, w: *const f32, sums: &mut [[__m512; 2]; ROWS]| {
            // SAFETY: the piece has this row, and the band its values.
            let columns = unsafe { [_mm512_loadu_ps(w), _mm512_loadu_ps(w.wrapping_add(LANES))] };
            for r in 0..ROWS {
                // SAFETY: as above.
                let value = _mm512_set1_ps(unsafe { *x.wrapping_add(r) });
                sums[r][0] = _mm512_fmadd_ps(value, columns[0], sums[r][0]);
                sums[r][1] = _mm512_fmadd_ps(value, columns[1], sums[r][1]);
            }
        };
        for _ in 0..rounds {
            for line in 0..lines {
                // Asking for what is beyond the weights does nothing.
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(line.wrapping_mul(LANES)).cast());
            }
            next = next.wrapping_add(lines.wrapping_mul(LANES));
            for k in 0..ROUND {
                step(x.wrapping_add(k * ROWS), w.wrapping_add(k * PANEL), &mut sums);
            }
            x = x.wrapping_add(ROUND * ROWS);
            w = w.wrapping_add(ROUND * PANEL);
        }
        for _ in rounds * ROUND..piece.depth {
            step(x, w, &mut sums);
            x = x.wrapping_add(ROWS);
            w = w.wrapping_add(PANEL);
        }
        for r in 0..ROWS {
            let at = self.at(band.row + r, piece.panel);
            // SAFETY: as above.
            unsafe {
                _mm512_mask_storeu_ps(at, masks[0], sums[r][0]);
                _mm512_mask_storeu_ps(at.wrapping_add(LANES), masks[1], sums[r][1]);
            }
        }
    }
}
