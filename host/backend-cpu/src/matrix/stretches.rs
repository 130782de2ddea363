//! A product whose columns are used up as they are made: a stretch of them at a time, for a block of rows, in memory that stays near.

use std::ops::Range;

use super::{Form, Left, PANEL, Product, TERMS, Target, Units, halves, rounded};
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
    pub(crate) elements: (*mut f32, usize),
}

/// Which columns one of several threads computes, and which of these it shows.
#[derive(Clone, Debug)]
pub(crate) struct Showing {
    units: Range<usize>,
    columns: Range<usize>,
    /// Stretches begin at multiples of so many columns and, but for the last, end there.
    block: usize,
}

impl Showing {
    /// The columns that are shown.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }
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

    /// Floats of scratch memory that each thread needs for stretches of so many rows that end at multiples of so many columns; none if columns are put
    /// where they are wanted.
    pub(crate) fn stretch_scratch(&self, rows: usize, block: Option<usize>) -> usize {
        let rows = self.stretch_rows(rows);
        self.scratch(rows).next_multiple_of(16) + block.map_or(0, |block| rows * tile_stride(block))
    }

    /// All of a thread's columns.
    pub(crate) fn showing_share(&self, thread: usize, threads: usize) -> Showing {
        let units = self.share(thread, threads);
        Showing { columns: if units.is_empty() { 0..0 } else { self.columns(units.clone()) }, units, block: 1 }
    }

    /// Of a thread's columns those whose blocks are its alone, or no other thread's columns are in them.
    pub(crate) fn showing_inner(&self, thread: usize, threads: usize, block: usize) -> Showing {
        let Showing { units, columns, .. } = self.showing_share(thread, threads);
        let end = if columns.end == self.n { self.n } else { columns.end / block * block };
        Showing { columns: columns.start.next_multiple_of(block).min(end)..end, units, block }
    }

    /// Those columns, which begin at a multiple of `block`. What stands in one unit with them is computed too.
    pub(crate) fn showing_columns(&self, columns: Range<usize>, block: usize) -> Showing {
        let units = if columns.is_empty() { 0..0 } else { self.unit_of(columns.start)..self.unit_of(columns.end - 1) + 1 };
        Showing { units, columns, block }
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

    /// Computes columns for `rows` rows and shows them, a stretch at a time: of each row in the order of the columns. They stand in scratch memory, or where
    /// `into` says.
    ///
    /// # Safety
    /// As for [`Product::run`], with `scratch` for what [`Self::stretch_scratch`] says; sums do not begin with rows.
    pub(crate) unsafe fn run_in_stretches(
        &self,
        (lefts, rows): (&[Left], usize),
        showing: &Showing,
        scratch: *mut f32,
        into: Option<Target>,
        seen: &mut dyn FnMut(Stretch),
    ) {
        let Showing { units, columns: shown, block } = showing;
        let most = self.stretch_rows(rows);
        if units.is_empty() || rows == 0 {
            return;
        }
        let tile = scratch.wrapping_add(self.scratch(most).next_multiple_of(16));
        let blocks = rows.div_ceil(most);
        for at in 0..blocks {
            let (first, end) = (rows * at / blocks, rows * (at + 1) / blocks);
            let count = end - first;
            debug_assert!(lefts.iter().all(|left| left.packed.is_none()), "parts need not begin with a tile");
            let lefts: [Left; TERMS] = std::array::from_fn(|term| lefts[term.min(lefts.len() - 1)].beginning_at(first));
            // Rounded once for all stretches.
            // SAFETY: the caller's promise, for some of the rows.
            let lefts = if self.in_halves { unsafe { halves::round(self, &lefts, count, scratch) } } else { lefts };
            let lefts = &lefts[..self.weights.len()];
            let batch = match self.form {
                Form::Rounded(rounded) => Some((rounded, rounded.batch(count))),
                _ => None,
            };
            // SAFETY: the caller's promise, for some of the rows.
            let packed =
                batch.map(|(rounded, batch)| unsafe { (rounded, batch, rounded::pack_terms((rounded, self), lefts, batch, scratch)) });
            // The first column that was not shown yet, with which a tile begins.
            let mut begin = self.columns(units.clone()).start;
            for start in units.clone().step_by(self.stretch_units()) {
                let units = start..(start + self.stretch_units()).min(units.end);
                let columns = self.columns(units.clone());
                let target = match into {
                    Some(into) => into.beginning_at(first),
                    None => Target::rows(tile.wrapping_sub(begin), tile_stride(*block)),
                };
                // SAFETY: the caller's promise, for some of the rows and columns; the tile has room for a stretch of a block of rows, and what was left of the last.
                unsafe {
                    let units = Units::own(units);
                    match &packed {
                        Some((rounded, batch, terms)) => rounded::run_packed((*rounded, self), terms, target, units, *batch),
                        None => self.multiply(lefts, target, count, units, scratch),
                    }
                }
                let whole = if columns.end >= shown.end { shown.end } else { columns.end / block * block };
                let from = begin.max(shown.start);
                if from < whole {
                    seen(Stretch { rows: first..end, columns: from..whole, elements: (target.rows.wrapping_add(from), target.stride) });
                }
                let left = begin.max(whole);
                if into.is_none() && left < columns.end {
                    for row in 0..count {
                        let row = tile.wrapping_add(row * target.stride);
                        // SAFETY: both are within the tile's row.
                        unsafe { std::ptr::copy(row.wrapping_add(left - begin), row, columns.end - left) };
                    }
                }
                begin = left;
            }
        }
    }
}

/// Floats from row to row of a tile: room for less than a block that is left and for a stretch. An odd number of lines, if a block is an even one.
const fn tile_stride(block: usize) -> usize {
    if block == 1 { STRIDE } else { STRIDE + block }
}
