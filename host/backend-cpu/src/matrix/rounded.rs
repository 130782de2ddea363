//! Products of rounded numbers: bf16, and integers of eight bits with a scale for each row and each column.
//!
//! Both are summed in groups of four bytes: two numbers of 16 bits or four of eight, one behind the other in k. A weight is packed in panels whose
//! rows are one group of each column, zeros behind the last; rows of a batch are rounded while they are copied next to one another, where they are gathered or, in blocks that
//! stay in a near cache, by each thread that multiplies them ([`packing`]). For AMX both are packed as its tiles. Each term of a product is summed by itself, from zero, in an order that depends on K alone, and is then added to what
//! stands: the bias, the terms before, or what the product is added onto. That order is the kernel's:
//!
//! - bf16, by loops: k by k, with fused multiply-adds, the same bits on every processor;
//! - bf16, by AVX-512 BF16 (`vdpbf16ps`) and by AMX (`tdpbf16ps`): as the instruction sums, with denormal numbers as zeros;
//! - 32-bit floats, by AMX alone and where that is asked for: as whole numbers of three digits, with a scale for each row and each column (`tiles::digits`);
//! - integers: exactly, so that every kernel gives the same bits.

#[cfg(target_arch = "x86_64")]
mod dot;
mod layout;
mod numbers;
mod packing;
mod plain;
pub(crate) mod screen;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

use std::ops::Range;

use cellwright_cell_graph::typed::Precision;

use super::{Left, PANEL, Product, Target, Units};
use crate::level::{Kernels, Level};

pub(crate) use packing::{PackedRows, Packing};

/// Bytes of a group: what one column or row has of it.
const GROUP: usize = 4;
/// Groups that a term's depth is padded to a multiple of: a cache line of a row, and the rows of a tile.
const GROUPS: usize = 16;
/// Bytes of packed rows that are worked on before the next: they and two panels fit the second-level cache.
const BLOCK_BYTES: usize = 1 << 20;
/// Digits of a number that is taken apart.
const DIGITS: usize = 3;
/// Products of integers over more elements could overflow 32 bits.
pub(crate) const BYTES_DEPTH_MAX: usize = 1 << 16;

/// What numbers are rounded to, or taken apart into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Width {
    /// Whole numbers of three signed digits of eight bits: by AMX alone.
    Digits,
    /// bf16.
    Half,
    /// Integers from −127 to 127.
    Byte,
}

/// Who multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kernel {
    /// Loops that the compiler makes vectors of.
    Plain,
    /// AVX-512's sums of products.
    #[cfg(target_arch = "x86_64")]
    Dot,
    /// AMX.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

/// Rows that are packed together, and how many of them are in each tile; in the last there may be fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    rows: usize,
    height: usize,
}

impl Batch {
    /// Some of the rows, which begin with a tile.
    const fn some(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Rows of the tile that begins with that row.
    #[cfg(target_arch = "x86_64")]
    const fn beside(self, first: usize) -> usize {
        let left = self.rows - first;
        if left < self.height { left } else { self.height }
    }
}

/// How a product of rounded numbers is packed and computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rounded {
    pub(crate) width: Width,
    pub(crate) kernel: Kernel,
}

impl Rounded {
    /// For products at that precision; none if vectors of floats multiply them.
    pub(crate) fn choose(precision: Precision, level: Level, kernels: Kernels) -> Option<Self> {
        let (width, dot) = match precision {
            #[cfg(target_arch = "x86_64")]
            Precision::F32 if kernels == Kernels::Tiles && level >= Level::Amx => {
                return Some(Self { width: Width::Digits, kernel: Kernel::Tiles });
            }
            // f16 is that of 32-bit floats, whose operands are rounded: `halves`.
            Precision::F32 | Precision::F16 => return None,
            Precision::Bf16 => (Width::Half, Level::Avx512Bf16),
            Precision::Int8 => (Width::Byte, Level::Avx512Vnni),
        };
        #[cfg(target_arch = "x86_64")]
        if kernels != Kernels::Library && level >= dot {
            return Some(Self { width, kernel: if level >= Level::Amx { Kernel::Tiles } else { Kernel::Dot } });
        }
        let _ = (level, kernels, dot);
        Some(Self { width, kernel: Kernel::Plain })
    }

    /// Whether products of so many columns are its own. What decides that must be the same for a cell and its halves.
    pub(crate) const fn is_worth(self, n: usize) -> bool {
        !matches!(self.width, Width::Digits) || n >= PANEL
    }

    /// Bytes of a number.
    const fn bytes(self) -> usize {
        match self.width {
            Width::Half => 2,
            Width::Digits | Width::Byte => 1,
        }
    }

    /// How many of them stand for an element.
    const fn digits(self) -> usize {
        match self.width {
            Width::Digits => DIGITS,
            Width::Half | Width::Byte => 1,
        }
    }

    /// Whether each row and each column has a scale of its own.
    const fn is_scaled(self) -> bool {
        matches!(self.width, Width::Digits | Width::Byte)
    }

    /// Groups of a term of that depth.
    const fn groups(self, k: usize) -> usize {
        k.div_ceil(GROUP / self.bytes()).next_multiple_of(GROUPS)
    }

    /// Bytes that a packed row takes.
    const fn stride(self, k: usize) -> usize {
        let lines = self.digits() * self.groups(k) / GROUPS;
        // Where rows lie apart they are an odd number of lines, so that they do not compete for the same places of the nearest cache.
        (if self.is_tiled() { lines } else { lines | 1 }) * GROUPS * GROUP
    }

    /// Rows of a tile at most.
    const fn height(self) -> usize {
        match self.kernel {
            Kernel::Plain => plain::HEIGHT,
            #[cfg(target_arch = "x86_64")]
            Kernel::Dot => dot::HEIGHT,
            #[cfg(target_arch = "x86_64")]
            Kernel::Tiles if matches!(self.width, Width::Digits) => tiles::SIDE,
            #[cfg(target_arch = "x86_64")]
            Kernel::Tiles => tiles::HEIGHT,
        }
    }

    /// Rows of a batch that a panel is multiplied with one after the other, at most.
    const fn height_of_parts(self) -> usize {
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Tiles => tiles::PAIR,
            _ => self.height(),
        }
    }

    /// Rows of a tile of two panels at most: of so few a panel has too few sums to keep the processor from waiting for one of them.
    const fn height_of_pairs(self) -> usize {
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Dot => dot::HEIGHT_OF_PAIRS,
            _ => 0,
        }
    }

    /// Whether rows and weights are packed as the processor's tiles.
    pub(super) const fn is_tiled(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.kernel, Kernel::Tiles);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether left-hand integers are moved up by 128, because the instruction takes them without a sign.
    const fn is_offset(self) -> bool {
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Dot => matches!(self.width, Width::Byte),
            _ => false,
        }
    }
}

/// What a panel of integers or digits knows of its columns.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Columns {
    /// What a step is worth, or of digits a unit.
    scales: [f32; PANEL],
    /// 128 times the sum of their integers; digits have no use for it.
    sums: [i32; PANEL],
}

/// What sums are added to: rows of the panels' width.
#[derive(Clone, Copy, Debug)]
enum Onto {
    /// So many floats apart (0: one for all).
    Apart(*const f32, usize),
    /// Wherever each of them lies, from so many floats on.
    Rows(*const *const f32, usize),
}

impl Onto {
    /// The first that a row is added to.
    ///
    /// # Safety
    /// There is this row.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> *const f32 {
        match self {
            Self::Apart(from, stride) => from.wrapping_add(row.wrapping_mul(*stride)),
            // SAFETY: the caller's promise.
            Self::Rows(rows, column) => unsafe { *rows.wrapping_add(row) }.wrapping_add(*column),
        }
    }
}

/// Some rows of a block, and a panel of one term, or two.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "loops take one panel, and ask for nothing"))]
#[derive(Clone, Copy, Debug)]
struct Tile {
    /// The packed rows, and bytes from one to the next.
    left: *const u8,
    left_stride: usize,
    rows: usize,
    /// The first panel, and how many that lie one behind the other.
    panel: *const u8,
    panels: usize,
    groups: usize,
    onto: Onto,
    into: *mut f32,
    into_stride: usize,
    /// Of the panels that the result has.
    columns: usize,
    /// Of integers: the rows' scales, and what is known of each panel's columns.
    row_scales: *const f32,
    scales: *const Columns,
    /// What to ask for while this is computed, and how many lines in each sixteen groups.
    next: *const u8,
    next_lines: usize,
    /// Of a tile that asks for what it uses itself: the group from which on it asks for what comes after it, counted from there as well.
    turn: usize,
    then: *const u8,
}

/// Floats of scratch memory that a thread needs for so many rows of a product.
pub(super) fn scratch(rounded: Rounded, product: &Product, rows: usize) -> usize {
    let rows = rows.min(block_rows(rounded, product));
    product.weights.iter().map(|weight| Packing::new((rounded, product.level), weight).bytes(rows) / size_of::<f32>()).sum()
}

/// How many rows are worked on before the next, at most; a tile's at least, however long they are.
pub(super) fn block_rows(rounded: Rounded, product: &Product) -> usize {
    let row_bytes: usize = product.weights.iter().map(|weight| rounded.stride(weight.k)).sum();
    (BLOCK_BYTES / row_bytes.max(1)).max(1).next_multiple_of(rounded.height_of_parts())
}

/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn run(
    rounded: Rounded,
    product: &Product,
    lefts: &[Left],
    result: Target,
    units: Units<'_>,
    (rows, scratch): (usize, *mut f32),
) {
    let batch = rounded.batch(rows);
    let most = block_rows(rounded, product) / rounded.height() * batch.height;
    // All about as long: for a few rows at the end weights would be read once more.
    let block = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(batch.height);
    for (number, first) in (0..rows).step_by(block).enumerate() {
        let count = batch.some(block.min(rows - first));
        // Every block begins where the one before ended.
        let units = units.clone().turned(number % 2 == 1);
        let mut block_lefts = [Left::NONE; super::TERMS];
        block_lefts.iter_mut().zip(lefts).for_each(|(of, left)| *of = left.beginning_at(first));
        // SAFETY: the caller's promise, for some of the rows.
        unsafe {
            let terms = pack_terms((rounded, product), &block_lefts[..lefts.len()], count, scratch);
            run_packed((rounded, product), &terms, result.beginning_at(first), units, count);
        }
    }
}

/// Packs the rows of all terms that are not packed yet, no more than a block of them.
///
/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn pack_terms(
    (rounded, product): (Rounded, &Product),
    lefts: &[Left],
    batch: Batch,
    scratch: *mut f32,
) -> [PackedRows; super::TERMS] {
    let mut terms = [PackedRows::NONE; super::TERMS];
    let mut free = scratch;
    for ((term, weight), left) in terms.iter_mut().zip(&product.weights).zip(lefts) {
        if let Some(packed) = left.packed {
            *term = packed;
            continue;
        }
        let packing = Packing::new((rounded, product.level), weight);
        *term = packing.rows_at(free.cast(), batch.rows);
        for row in 0..batch.rows {
            // SAFETY: the caller's promise: there are these rows, and the scratch memory was asked for.
            unsafe { packing.pack_among(left.rows.wrapping_add(row * left.stride).cast(), *term, (row, batch)) };
        }
        free = free.wrapping_add(packing.bytes(batch.rows) / size_of::<f32>());
    }
    terms
}

/// Computes the columns of those units for rows that are packed.
///
/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn run_packed(
    (rounded, product): (Rounded, &Product),
    terms: &[PackedRows; super::TERMS],
    result: Target,
    units: Units<'_>,
    batch: Batch,
) {
    let block = Block { rounded, product, terms: &terms[..product.weights.len()], result, batch };
    // SAFETY: the caller's promise.
    unsafe {
        match rounded.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Tiles => tiles::run(&block, units),
            _ => block.run(units),
        }
    }
}

/// A block of rows, packed, and all that is made of it.
struct Block<'a> {
    rounded: Rounded,
    product: &'a Product,
    terms: &'a [PackedRows],
    result: Target,
    batch: Batch,
}

/// What the sums of two panels begin with where there is no bias.
static NOTHING: [f32; 2 * PANEL] = [0.0; 2 * PANEL];

impl Block<'_> {
    /// # Safety
    /// As for [`run`].
    unsafe fn run(&self, units: Units<'_>) {
        let most = if self.batch.rows <= self.rounded.height_of_pairs() { 2 } else { 1 };
        // SAFETY: the caller's promise.
        units.each(most).for_each(|(panels, next)| unsafe { self.panels(panels, next) });
    }

    /// Computes a panel, or two, which is one tile, before what comes next.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn panels(&self, panels: Range<usize>, next: Option<usize>) {
        let (panel, panels) = (panels.start, panels.len());
        let rows = self.batch.rows;
        let tiles = rows.div_ceil(self.rounded.height());
        let ahead = AHEAD / panels;
        for (term, weight) in self.terms.iter().zip(&self.product.weights) {
            let groups = self.rounded.groups(weight.k);
            let panel_bytes = groups * PANEL * GROUP;
            let w = weight.data.pointer().wrapping_add(panel * panel_bytes);
            let next_w = weight.data.pointer().wrapping_add(next.unwrap_or(panel) * panel_bytes);
            let is_first = std::ptr::eq(term, &raw const self.terms[0]);
            for tile in 0..tiles {
                // Of about equal size: sums of a tile of few rows would wait for one another.
                let (first, end) = (rows * tile / tiles, rows * (tile + 1) / tiles);
                let tile = Tile {
                    left: term.rows.wrapping_add(first * term.stride),
                    left_stride: term.stride,
                    rows: end - first,
                    panel: w,
                    panels,
                    groups,
                    onto: if is_first { self.begins(first, panel) } else { self.stands(first, panel) },
                    into: self.result.rows.wrapping_add(first * self.result.stride + panel * PANEL),
                    into_stride: self.result.stride,
                    columns: (panels * PANEL).min(self.product.n - panel * PANEL),
                    row_scales: term.scales.wrapping_add(first),
                    scales: weight.columns.pointer().cast::<Columns>().wrapping_add(panel),
                    next: if tiles == 1 { w.wrapping_add(ahead) } else { next_w.wrapping_add(panel_bytes * tile / tiles) },
                    next_lines: LINES.div_ceil(tiles),
                    turn: if tiles == 1 { groups.saturating_sub(ahead / (PANEL * GROUP)) } else { groups },
                    then: next_w.wrapping_sub(panel_bytes.saturating_sub(ahead)),
                };
                // SAFETY: the caller's promise; kernels are chosen by what the processor has.
                unsafe { self.tile(tile) };
            }
        }
    }

    /// What the first term's sums are added to, from a row on.
    fn begins(&self, row: usize, panel: usize) -> Onto {
        if !self.product.onto_rows {
            return Onto::Apart(self.product.bias().map_or(NOTHING.as_ptr(), |bias| bias.wrapping_add(panel * PANEL)), 0);
        }
        let begins = self.result.beginning_at(row).begins;
        if begins.is_null() { self.stands(row, panel) } else { Onto::Rows(begins, panel * PANEL) }
    }

    /// What stands where the result is to be.
    fn stands(&self, row: usize, panel: usize) -> Onto {
        let Target { rows, stride, .. } = self.result.beginning_at(row);
        Onto::Apart(rows.cast_const().wrapping_add(panel * PANEL), stride)
    }

    /// # Safety
    /// As for [`run`].
    unsafe fn tile(&self, tile: Tile) {
        // SAFETY: the caller's promise, for every arm.
        unsafe {
            match (self.rounded.kernel, self.rounded.width) {
                (Kernel::Plain, Width::Half) => plain::halves(tile, self.product.level),
                (Kernel::Plain, Width::Byte) => plain::bytes(tile, self.product.level),
                #[cfg(target_arch = "x86_64")]
                (Kernel::Dot, Width::Half) => dot::halves(tile),
                #[cfg(target_arch = "x86_64")]
                (Kernel::Dot, Width::Byte) => dot::bytes(tile),
                // It has a loop of its own.
                #[cfg(target_arch = "x86_64")]
                (Kernel::Tiles, _) => debug_assert!(false, "tiles are run by themselves"),
                (_, Width::Digits) => debug_assert!(false, "only tiles multiply them"),
            }
        }
    }
}

/// Lines of sixteen groups of a panel.
const LINES: usize = PANEL * GROUP * GROUPS / 64;
/// How far ahead of its use a weight is asked for where a panel is used once; of two panels half as far in each.
const AHEAD: usize = 8 << 10;

#[cfg(test)]
mod tests;
