//! Products on x86-64 with fused multiply-adds: weights in panels of up to three vectors of columns, tiles of a few rows with their sums in registers.
//!
//! An element's sum is one chain of fused multiply-adds that starts at the bias (or at an element of a row of the batch) and runs over all k
//! of all terms. Where that chain is cut, because
//! a piece of a panel is to stay in a near cache while many rows pass, the sum is put down and taken up again as it is. So the bits depend
//! neither on the shape of a tile nor on the length of a piece.
//!
//! Left-hand sides are read where they lie: a tile of few rows and three vectors loads less for its arithmetic than what packing them would save.
//! Weights of a few tens of megabytes come from the last cache or from memory. While a piece is used, all its tiles together ask for the next one,
//! so that nobody waits at its beginning; a single tile asks for what it will use itself a little later.

mod avx2;
mod avx512;
mod tile;

use std::ops::Range;

use super::{Left, Product, Target, Units};
use tile::{Call, Start, TileFn};

/// Vectors of a panel at most, on every instruction set.
pub(super) const VECTORS: usize = 3;
/// Bytes of left-hand sides that are worked on before the next rows: they and two pieces fit the second-level cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Rows that are worked on together at least, however long they are. Of long rows only what meets a piece has to stay near, and a weight that no cache keeps is
/// read once for all of them.
const BLOCK_ROWS_LEAST: usize = 256;
/// Rows of a panel at most that all tiles pass before the next.
const PIECE: usize = 1024;
/// Lines by which a single tile asks ahead: so many that memory has answered by then, and few enough that they are still in the nearest cache when they are used.
const AHEAD: usize = 192;
/// The same of weights that the last cache keeps, which answers sooner: what is asked for later is less in the way of what is used now.
const AHEAD_IN_CACHE: usize = 96;
/// Bytes of a cache line.
const LINE: usize = 64;

/// An instruction set with tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    Avx512,
    Avx2,
}

impl Isa {
    /// Floats of a vector.
    pub(super) const fn lanes(self) -> usize {
        match self {
            Self::Avx512 => 16,
            Self::Avx2 => 8,
        }
    }

    /// Rows of a tile at most.
    const fn height(self) -> usize {
        match self {
            Self::Avx512 => avx512::HEIGHT,
            Self::Avx2 => avx2::HEIGHT,
        }
    }

    /// The tile of so many rows and vectors, one at least of each, where so many share a piece.
    fn tile(self, rows: usize, vectors: usize, tiles: usize) -> TileFn {
        let asking = match tiles {
            1 => 3,
            2 => 2,
            3..=5 => 1,
            _ => 0,
        };
        match self {
            Self::Avx512 => avx512::TILES[rows - 1][vectors - 1][asking],
            Self::Avx2 => avx2::TILES[rows - 1][vectors - 1][asking],
        }
    }
}

/// How the columns of a product are divided into panels.
///
/// A panel is the unit in which threads share columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) isa: Isa,
    /// Columns of the product.
    width: usize,
    vectors: usize,
    pub(super) units: usize,
}

impl Layout {
    pub(super) fn new(isa: Isa, width: usize) -> Self {
        let vectors = width.div_ceil(isa.lanes());
        Self { isa, width, vectors, units: vectors.div_ceil(VECTORS) }
    }

    /// Columns as packed.
    pub(super) fn columns(&self) -> usize {
        self.vectors * self.isa.lanes()
    }

    /// A panel: it has as many vectors as any other, or one more.
    fn panel(&self, unit: usize) -> Panel {
        let lanes = self.isa.lanes();
        let (start, end) = (self.vectors * unit / self.units, self.vectors * (unit + 1) / self.units);
        let column = start * lanes;
        Panel { column, columns: ((end - start) * lanes).min(self.width - column), vectors: end - start }
    }

    /// The panel that has a column.
    pub(super) fn unit_of(&self, column: usize) -> usize {
        ((column / self.isa.lanes() + 1) * self.units).div_ceil(self.vectors) - 1
    }

    /// Where a column of a weight of that depth begins, and how far apart its numbers are, in floats.
    pub(super) fn place(&self, column: usize, k: usize) -> (usize, usize) {
        let panel = self.panel(self.unit_of(column));
        (panel.column * k + column - panel.column, panel.vectors * self.isa.lanes())
    }

    /// The columns of units, of which there is one at least.
    pub(super) fn columns_of(&self, units: Range<usize>) -> Range<usize> {
        let last = self.panel(units.end - 1);
        self.panel(units.start).column..last.column + last.columns
    }

    /// Every panel as `(its first column, how many it has, columns as packed)`.
    pub(super) fn panels(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let panels = (0..self.units).map(move |unit| self.panel(unit));
        panels.map(|panel| (panel.column, panel.columns, panel.vectors * self.isa.lanes()))
    }
}

/// Some columns.
#[derive(Clone, Copy, Debug)]
struct Panel {
    /// Its first column: it begins so many times k floats into a term's weights.
    column: usize,
    columns: usize,
    vectors: usize,
}

/// Some rows of a panel, of one term.
#[derive(Clone, Copy, Debug)]
struct Piece {
    term: usize,
    start: usize,
    depth: usize,
    w: *const f32,
}

/// How many rows are worked on before the next.
pub(super) fn block_rows(product: &Product) -> usize {
    let depth: usize = product.weights.iter().map(|weight| weight.k).sum();
    (BLOCK_BYTES / (depth * size_of::<f32>()).max(1)).max(BLOCK_ROWS_LEAST)
}

/// # Safety
/// As for [`Product::run`], and the processor has the layout's instruction set.
pub(super) unsafe fn run(product: &Product, layout: &Layout, lefts: &[Left], result: Target, rows: usize, units: Units<'_>) {
    let blocks = rows.div_ceil(block_rows(product));
    for block in 0..blocks {
        let rows = rows * block / blocks..rows * (block + 1) / blocks;
        // Every block begins where the one before ended.
        for (units, next) in units.clone().turned(block % 2 == 1).each(1) {
            let panel = layout.panel(units.start);
            let next = layout.panel(next.unwrap_or(units.start));
            let after = next.column.wrapping_sub(panel.column);
            let work = Work { product, layout, lefts, rows: rows.clone(), result: result.beginning_at(rows.start) };
            // SAFETY: the caller's promise, for some of the rows and columns.
            unsafe { work.panel(panel, (next, after)) };
        }
    }
}

struct Work<'a> {
    product: &'a Product,
    layout: &'a Layout,
    lefts: &'a [Left],
    rows: Range<usize>,
    /// Of these rows.
    result: Target,
}

impl Work<'_> {
    /// What sums of these columns begin with, from a row on.
    fn start(&self, row: usize, column: usize) -> Start {
        if !self.product.onto_rows {
            return self.product.bias().map_or(Start::Zeros, |bias| Start::Bias(bias.wrapping_add(column)));
        }
        let begins = self.result.beginning_at(row).begins;
        if begins.is_null() { Start::Result } else { Start::Rows(begins, column) }
    }

    /// Computes a panel's columns of all rows, and asks for the next one, whose results are so many floats after these.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn panel(&self, panel: Panel, (next, after): (Panel, usize)) {
        let tiles = self.rows.len().div_ceil(self.layout.isa.height());
        let row_bytes = panel.vectors * self.layout.isa.lanes() * size_of::<f32>();
        // A single tile uses the panel once, so nothing is gained by keeping a piece of it near.
        let most = if tiles == 1 { usize::MAX } else { PIECE };
        let y = |row: usize| self.result.beginning_at(row).rows.wrapping_add(panel.column);
        let mut is_first = true;
        let single_ahead = if self.product.is_cached { AHEAD_IN_CACHE } else { AHEAD };
        let mut pieces = self.pieces(panel, most).peekable();
        while let Some(piece) = pieces.next() {
            let next_w = pieces.peek().map_or_else(|| self.beginning(next), |next| next.w);
            // After the last tile the first one's turn comes again, of the next piece or panel.
            let is_last = pieces.peek().is_none();
            let after = if is_last { after } else { 0 };
            let ahead_lines = (piece.depth * row_bytes).div_ceil(LINE * tiles);
            for tile in 0..tiles {
                let (first, end) = (self.rows.len() * tile / tiles, self.rows.len() * (tile + 1) / tiles);
                let left = self.lefts[piece.term];
                let row = left.beginning_at(self.rows.start + first);
                let ahead = if tiles == 1 {
                    piece.w.wrapping_byte_add(single_ahead * LINE)
                } else {
                    next_w.wrapping_byte_add(tile * ahead_lines * LINE)
                };
                let turn = (single_ahead * LINE / row_bytes).min(piece.depth);
                let call = Call {
                    x: row.rows,
                    stride: row.stride,
                    pointers: row.pointers,
                    begin: piece.start,
                    w: piece.w,
                    depth: piece.depth,
                    ahead,
                    ahead_lines,
                    turn,
                    then: next_w,
                    start: if is_first { self.start(first, panel.column) } else { Start::Result },
                    y: y(first),
                    y_stride: self.result.stride,
                    next_y: if tile + 1 < tiles { y(end) } else { y(0).wrapping_add(after) },
                    next_start: match tile + 1 < tiles {
                        true if is_first => self.start(end, panel.column),
                        false if is_last => self.start(0, next.column),
                        _ => Start::Result,
                    },
                    columns: panel.columns,
                };
                // SAFETY: rows and columns are the product's (the caller's promise), pieces are within its weights.
                unsafe { self.layout.isa.tile(end - first, panel.vectors, tiles)(&call) };
            }
            is_first = false;
        }
    }

    fn pieces(&self, panel: Panel, most: usize) -> impl Iterator<Item = Piece> {
        let lanes = panel.vectors * self.layout.isa.lanes();
        self.product.weights.iter().enumerate().flat_map(move |(term, weight)| {
            let count = weight.k.div_ceil(most);
            (0..count).map(move |piece| {
                let (start, end) = (weight.k * piece / count, weight.k * (piece + 1) / count);
                let w = weight.data.pointer().cast::<f32>().wrapping_add(panel.column * weight.k + start * lanes);
                Piece { term, start, depth: end - start, w }
            })
        })
    }

    /// Where a panel's weights begin.
    fn beginning(&self, panel: Panel) -> *const f32 {
        self.product
            .weights
            .first()
            .map_or(std::ptr::null(), |weight| weight.data.pointer().cast::<f32>().wrapping_add(panel.column * weight.k))
    }
}
