//! A product whose columns are used up as they are made: a stretch of them at a time, for a block of rows, in memory that stays near.

use std::ops::Range;

use super::{Form, Left, PANEL, Product, Target, halves, rounded};
#[cfg(target_arch = "x86_64")]
use super::{panels, panels::VECTORS};

/// Columns of a stretch, or somewhat less: many enough that what is done with them is not done too often.
const COLUMNS: usize = 256;
/// Floats from row to row of a stretch: room for it and, where the last unit takes a remainder, for that. An odd number of lines, so that
/// rows do not compete for the same places of the nearest cache.
const STRIDE: usize = 19 * 16;
/// Rows of a stretch at most.
const ROWS: usize = 256;

/// Some columns of some rows, as a product has just made them.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Range<usize>,
    /// The first of these columns of the first of these rows, and floats from row to row.
    pub(crate) elements: (*const f32, usize),
}

impl Product {
    /// How many rows are worked on before the next, of so many.
    fn stretch_rows(&self, rows: usize) -> usize {
        let most = match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(_) => panels::block_rows(self),
            Form::Rounded(rounded) => rounded::block_rows(rounded, self),
            Form::Library | Form::Plain => ROWS,
        };
        // A product of one row may be computed as two.
        most.min(ROWS).min(rows.max(2))
    }

    /// Floats of scratch memory that each thread needs for stretches of so many rows.
    pub(crate) fn stretch_scratch(&self, rows: usize) -> usize {
        let rows = self.stretch_rows(rows);
        self.scratch(rows).next_multiple_of(16) + rows * STRIDE
    }

    /// Units of a stretch.
    fn stretch_units(&self) -> usize {
        let unit = match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(isa) => VECTORS * isa.lanes(),
            Form::Library | Form::Plain | Form::Rounded(_) => PANEL,
        };
        COLUMNS / unit
    }

    /// Computes the columns of those units for `rows` rows and shows them, a stretch at a time: of each row in the order of the columns.
    ///
    /// # Safety
    /// As for [`Product::run`], with `scratch` for what [`Self::stretch_scratch`] says; the product does not begin with its result.
    pub(crate) unsafe fn run_in_stretches(
        &self,
        lefts: &[Left],
        rows: usize,
        units: Range<usize>,
        scratch: *mut f32,
        seen: &mut dyn FnMut(Stretch),
    ) {
        let block = self.stretch_rows(rows);
        if units.is_empty() || rows == 0 {
            return;
        }
        let tile = scratch.wrapping_add(self.scratch(block).next_multiple_of(16));
        let blocks = rows.div_ceil(block);
        for at in 0..blocks {
            let (first, end) = (rows * at / blocks, rows * (at + 1) / blocks);
            let count = end - first;
            let lefts: [Left; super::TERMS] = std::array::from_fn(|term| {
                let left = lefts[term.min(lefts.len() - 1)];
                Left { rows: left.rows.wrapping_add(first * left.stride), stride: left.stride }
            });
            // Rounded once for all stretches.
            // SAFETY: the caller's promise, for some of the rows.
            let lefts = if self.in_halves { unsafe { halves::round(self, &lefts, count, scratch) } } else { lefts };
            let lefts = &lefts[..self.weights.len()];
            let packed = match self.form {
                // SAFETY: the caller's promise, for some of the rows.
                Form::Rounded(rounded) => Some((rounded, unsafe { rounded::pack_terms((rounded, self), lefts, count, scratch) })),
                _ => None,
            };
            for start in units.clone().step_by(self.stretch_units()) {
                let units = start..(start + self.stretch_units()).min(units.end);
                let columns = self.columns(units.clone());
                let target = Target { rows: tile.wrapping_sub(columns.start), stride: STRIDE };
                // SAFETY: the caller's promise, for some of the rows and columns; the tile has room for a stretch of a block of rows.
                unsafe {
                    match &packed {
                        Some((rounded, terms)) => rounded::run_packed((*rounded, self), terms, target, units, count),
                        None => self.multiply(lefts, target, count, units, scratch),
                    }
                }
                seen(Stretch { rows: first..end, columns, elements: (tile, STRIDE) });
            }
        }
    }
}
