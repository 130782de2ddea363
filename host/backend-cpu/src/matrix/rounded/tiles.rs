//! AMX: sixteen rows times sixteen columns at a time, summed over sixteen groups by one instruction.
//!
//! Tiles 0 to 3 hold sums (two times two), 4 and 5 rows, 6 and 7 columns ([`digits`] has an order of its own). Rows and weights are packed as tiles, one behind the other as they are read,
//! because that is how the second-level cache gives most; and a panel is multiplied a few steps at a time with two heights of rows, so that the weights of
//! these steps come from the nearest cache for the second. Sums that stand by then are put down and taken up again, bit by bit.
//!
//! The invariant: what tiles hold lives within one block of assembly, which begins by taking up its sums, ends by putting them down and says that it
//! overwrites all eight. From block to block only their shape lives on: [`set_up_tiles`] gives it to the thread's tiles and [`release`] takes it away;
//! between the two the thread runs no function that does either, and the compiler, for which no function here may use tiles, does not either.

pub(super) mod digits;

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_fmadd_ps,
    _mm512_load_si512, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_set1_ps,
};
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::{PANEL, TERMS, Units};
use super::{AHEAD, Batch, Block, Columns, GROUP, GROUPS, Onto, Width};

/// Rows that are multiplied at once, at most: two of the processor's tiles.
pub(super) const HEIGHT: usize = 32;
/// Rows that are worked on before the next of a panel, at most.
pub(super) const PAIR: usize = 2 * HEIGHT;
/// Rows, and columns, of one of the processor's.
pub(super) const SIDE: usize = 16;
/// Bytes of a row of one.
pub(super) const ROW: usize = 64;
/// Bytes of one.
pub(super) const TILE: usize = SIDE * ROW;
/// Steps that a panel is multiplied for before other rows are: its weights and both heights' rows then share the nearest cache.
const STEPS: usize = 8;
/// Steps of a panel that lie between where weights are asked for and where they are used, by rows of one height.
const TURN: usize = AHEAD / (2 * TILE);
/// Lines of a step of a panel.
const LINES: usize = PANEL * GROUP * GROUPS / 64;
/// Lines of a step that are asked for where a panel is used once: the processor asks for those behind them by itself, and does other things meanwhile that so many would keep
/// it from.
const FIRST_LINES: usize = 8;

/// What the processor reads when tiles are set up.
#[repr(C, align(64))]
struct Palette {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Sets the tiles up for that many rows: sums in tiles 0 to 3, rows in 4 and 5, columns in 6 and 7.
///
/// # Safety
/// The processor has AMX, and the system lets this process use it.
pub(crate) unsafe fn set_up(rows: usize) {
    let upper = rows.min(SIDE);
    // A tile must have a row, even if nobody asks for it.
    let lower = rows.saturating_sub(SIDE).max(1);
    // SAFETY: the caller's promise.
    unsafe { set_up_tiles([upper, upper, lower, lower, upper, lower, SIDE, SIDE]) };
}

/// Sets tiles of so many rows up.
///
/// # Safety
/// As for [`set_up`].
unsafe fn set_up_tiles(rows: [usize; 8]) {
    let mut palette = Palette { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    palette.row_bytes[..8].fill(ROW as u16);
    palette.rows.iter_mut().zip(rows).for_each(|(row, rows)| *row = rows as u8);
    // SAFETY: the caller's promise; the palette is as the processor wants it.
    unsafe { asm!("ldtilecfg [{0}]", in(reg) &raw const palette, options(nostack, readonly)) };
}

/// Gives the tiles back, so that the system need not keep them for this thread.
///
/// # Safety
/// As for [`set_up`].
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Sums of two tiles times two, as they are put down: those of the upper rows, then of the lower, each by columns.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Sums([[[u32; SIDE]; SIDE]; 4]);

/// Some steps of a panel and of rows.
#[derive(Clone, Copy)]
struct Run {
    /// The first step's tiles of rows, and bytes to the next step's.
    left: *const u8,
    left_bytes: usize,
    /// The first step's tiles of the panel.
    panel: *const u8,
    steps: usize,
    /// Sums so far, if it is not the first run.
    sums: *mut Sums,
    is_first: bool,
    /// What to ask for meanwhile, and, when so many steps are left, from then on.
    next: *const u8,
    turn: usize,
    then: *const u8,
}

/// A quarter of a step's lines that are asked for.
macro_rules! ask {
    () => {
        ".rept {lines}\nprefetcht1 [{next}]\nadd {next}, 64\n.endr"
    };
}

/// Sums up to thirty-two rows with that instruction.
macro_rules! two {
    ($instruction:literal, $run:ident) => {
        asm!(
            "test {first:e}, {first:e}",
            "jz 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 2f",
            "3:",
            "tileloadd tmm0, [{sums} + {row}]",
            "tileloadd tmm1, [{sums} + {row} + 1024]",
            "tileloadd tmm2, [{sums} + {row} + 2048]",
            "tileloadd tmm3, [{sums} + {row} + 3072]",
            "2:",
            "cmp {steps}, {turn}",
            "cmove {next}, {then}",
            "tileloadd tmm4, [{left} + {row}]",
            "tileloadd tmm6, [{w} + {row}]",
            "tileloadd tmm7, [{w} + {row} + 1024]",
            concat!($instruction, " tmm0, tmm4, tmm6"),
            ask!(),
            "tileloadd tmm5, [{left} + {row} + 1024]",
            concat!($instruction, " tmm1, tmm4, tmm7"),
            ask!(),
            concat!($instruction, " tmm2, tmm5, tmm6"),
            ask!(),
            concat!($instruction, " tmm3, tmm5, tmm7"),
            ask!(),
            "add {left}, {left_bytes}",
            "add {next}, {skipped}",
            "add {w}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 1024], tmm1",
            "tilestored [{sums} + {row} + 2048], tmm2",
            "tilestored [{sums} + {row} + 3072], tmm3",
            first = in(reg) u32::from($run.is_first),
            left = inout(reg) $run.left => _,
            left_bytes = in(reg) $run.left_bytes,
            w = inout(reg) $run.panel => _,
            row = in(reg) ROW,
            steps = inout(reg) $run.steps => _,
            next = inout(reg) $run.next => _,
            turn = in(reg) $run.turn,
            then = in(reg) $run.then,
            sums = in(reg) $run.sums,
            lines = const ASKED / 4,
            skipped = const SKIPPED,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Sums up to sixteen rows with that instruction, in one run.
macro_rules! one {
    ($instruction:literal, $run:ident) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "cmp {steps}, {turn}",
            "cmove {next}, {then}",
            "tileloadd tmm4, [{left} + {row}]",
            "tileloadd tmm6, [{w} + {row}]",
            "tileloadd tmm7, [{w} + {row} + 1024]",
            concat!($instruction, " tmm0, tmm4, tmm6"),
            ask!(),
            ask!(),
            concat!($instruction, " tmm1, tmm4, tmm7"),
            ask!(),
            ask!(),
            "add {left}, {left_bytes}",
            "add {next}, {skipped}",
            "add {w}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 1024], tmm1",
            left = inout(reg) $run.left => _,
            left_bytes = in(reg) $run.left_bytes,
            w = inout(reg) $run.panel => _,
            row = in(reg) ROW,
            steps = inout(reg) $run.steps => _,
            next = inout(reg) $run.next => _,
            turn = in(reg) $run.turn,
            then = in(reg) $run.then,
            sums = in(reg) $run.sums,
            lines = const ASKED / 4,
            skipped = const SKIPPED,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Asks for so many lines in a step, and skips so many bytes behind them.
///
/// # Safety
/// There are the run's tiles and room for its sums, and tiles are set up for so many rows: no more than sixteen if it is one tile's.
unsafe fn sum<const ASKED: usize, const SKIPPED: usize>(width: Width, is_one: bool, run: Run) {
    // SAFETY: the caller's promise: a step reads one tile's rows, or two, and two of the panel.
    unsafe {
        match (width, is_one) {
            (Width::Half, false) => two!("tdpbf16ps", run),
            (Width::Byte, false) => two!("tdpbssd", run),
            (Width::Half, true) => one!("tdpbf16ps", run),
            (Width::Byte, true) => one!("tdpbssd", run),
            (Width::Digits, _) => debug_assert!(false, "they have sums of their own"),
        }
    }
}

/// Sums of some rows of a panel, by term and height.
type All = [[MaybeUninit<Sums>; PAIR / HEIGHT]; TERMS];

/// Multiplies a block's rows with panels.
///
/// # Safety
/// As for [`super::run`], on a processor with AMX, which the system lets this process use.
pub(super) unsafe fn run(block: &Block<'_>, units: Units<'_>) {
    let Batch { rows, height } = block.batch;
    let heights = rows.div_ceil(height);
    let sum = match LINES.div_ceil(heights) {
        0..=4 => sum::<4, 0>,
        5..=8 => sum::<8, 0>,
        9..=16 => sum::<16, 0>,
        _ => sum::<FIRST_LINES, { (LINES - FIRST_LINES) * 64 }>,
    };
    let mut all: All = [const { [const { MaybeUninit::uninit() }; PAIR / HEIGHT] }; TERMS];
    let is_digits = block.rounded.width == Width::Digits;
    // SAFETY: the caller's promise.
    unsafe { if is_digits { digits::set_up(height) } else { set_up(height) } };
    let most = PAIR / block.rounded.height() * height;
    for (panels, next) in units.each(1) {
        let panel = panels.start;
        for first in (0..rows).step_by(most) {
            let part = Part { block, panel, next: next.unwrap_or(panel), first, rows: most.min(rows - first) };
            // SAFETY: the caller's promise.
            unsafe {
                if is_digits {
                    part.sum_digits(&mut all)
                } else {
                    part.sum(sum, heights, &mut all)
                }
                part.add(&all);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { release() };
}

/// Rows of a block times one panel: a few tiles of them, of which the last may be short.
struct Part<'a> {
    block: &'a Block<'a>,
    panel: usize,
    /// The one that comes next.
    next: usize,
    first: usize,
    rows: usize,
}

impl Part<'_> {
    /// Sums every term, from zero.
    ///
    /// # Safety
    /// As for [`run`]; tiles are set up for the batch.
    unsafe fn sum(&self, sum: unsafe fn(Width, bool, Run), heights: usize, all: &mut All) {
        let Self { block, panel, next: next_panel, first, rows } = *self;
        let (width, height) = (block.rounded.width, block.batch.height);
        for (number, ((term, weight), all)) in block.terms.iter().zip(&block.product.weights).zip(all).enumerate() {
            let steps = block.rounded.groups(weight.k) / GROUPS;
            let panel_bytes = steps * 2 * TILE;
            let w = weight.data.pointer().wrapping_add(panel * panel_bytes);
            let left = term.rows.wrapping_add(first * term.stride);
            let then = weight.data.pointer().wrapping_add(next_panel * panel_bytes);
            let (mut next, turn) = match heights {
                1 if steps > TURN => (w.wrapping_add(AHEAD), TURN),
                1 => (then, 0),
                _ => (then.wrapping_add(panel_bytes / heights * (first / height)), 0),
            };
            let most = if rows > height { STEPS } else { steps };
            debug_assert!(height > SIDE || rows <= height, "tiles are that low in batches of one");
            let mut step = 0;
            while step < steps {
                let count = most.min(steps - step);
                for (at, sums) in all.iter_mut().enumerate().take(rows.div_ceil(height)) {
                    let left_bytes = block.batch.beside(first + at * height) * ROW;
                    let run = Run {
                        left: left.wrapping_add(at * height * term.stride + step * left_bytes),
                        left_bytes,
                        panel: w.wrapping_add(step * 2 * TILE),
                        steps: count,
                        sums: sums.as_mut_ptr(),
                        is_first: step == 0,
                        next,
                        turn,
                        then,
                    };
                    // Some rows at a time: so many lines at once would be in each other's way.
                    let of = |step: usize| (at * height + height * step / steps).min(rows);
                    // SAFETY: the caller's promise.
                    unsafe {
                        if number == 0 {
                            self.ask_for_rows(of(step)..of(step + count));
                        }
                        sum(width, height <= SIDE, run);
                    }
                    next = next.wrapping_add(count * panel_bytes / steps / heights);
                }
                step += count;
            }
        }
    }

    /// Asks for what the sums are added to, if that lies where nothing was just written: it comes while they are summed.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn ask_for_rows(&self, rows: Range<usize>) {
        let onto = self.block.begins(self.first, self.panel);
        let Onto::Rows(..) = onto else { return };
        for row in rows {
            // SAFETY: there is this row.
            let row = unsafe { onto.row(row) };
            for half in 0..2 {
                // SAFETY: it asks, and touches nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(half * SIDE).cast()) };
            }
        }
    }

    /// Adds the terms' sums, one after the other, to what stands.
    ///
    /// # Safety
    /// As for [`run`], on sums of these rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn add(&self, all: &All) {
        let Self { block, panel, first, .. } = *self;
        let column = panel * PANEL;
        let begins = block.begins(first, panel);
        let left = block.product.n - column;
        let masks = [lanes(left), lanes(left.saturating_sub(SIDE))];
        for slot in 0..PAIR / SIDE {
            let rows = self.rows_of(slot);
            for (at, row) in rows.enumerate() {
                let into = block.result.rows.wrapping_add((first + row).wrapping_mul(block.result.stride)).wrapping_add(column);
                // SAFETY: there is this row.
                let from = unsafe { begins.row(row) };
                for (half, mask) in masks.into_iter().enumerate() {
                    // SAFETY: masks end at the result's last column.
                    let mut y = unsafe { _mm512_maskz_loadu_ps(mask, from.wrapping_add(half * SIDE)) };
                    for (term, all) in all.iter().enumerate().take(block.terms.len()) {
                        // SAFETY: `sum` has put them down.
                        let sum = unsafe { _mm512_load_si512((&raw const (*all[slot / 2].as_ptr()).0[slot % 2 * 2 + half][at]).cast()) };
                        y = match block.rounded.width {
                            Width::Half => _mm512_add_ps(y, _mm512_castsi512_ps(sum)),
                            // SAFETY: rows and columns of integers have their scales.
                            Width::Byte => unsafe { self.scaled(term, (first + row, half), _mm512_cvtepi32_ps(sum), y) },
                            // SAFETY: so have those of digits.
                            Width::Digits => unsafe { self.scaled(term, (first + row, half), _mm512_castsi512_ps(sum), y) },
                        };
                    }
                    // SAFETY: masks end at the result's last column.
                    unsafe { _mm512_mask_storeu_ps(into.wrapping_add(half * SIDE), mask, y) };
                }
            }
        }
    }

    /// The rows whose sums are put down in that place, if there are any.
    fn rows_of(&self, slot: usize) -> Range<usize> {
        let height = self.block.batch.height;
        let (first, end) = if self.block.rounded.height() == SIDE {
            (slot * height, (slot + 1) * height)
        } else {
            let tile = slot / 2 * height;
            (tile + slot % 2 * SIDE, tile + if slot.is_multiple_of(2) { height.min(SIDE) } else { height })
        };
        first.min(self.rows)..end.min(self.rows)
    }

    /// Adds a row's sums of integers or digits of a term, times their scales, to what stands.
    ///
    /// # Safety
    /// As for [`Self::add`]; rows and columns have their scales.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn scaled(&self, term: usize, (row, half): (usize, usize), sum: __m512, y: __m512) -> __m512 {
        let columns = self.block.product.weights[term].columns.pointer().cast::<Columns>().wrapping_add(self.panel);
        // SAFETY: the caller's promise.
        unsafe {
            let row_scale = _mm512_set1_ps(*self.block.terms[term].scales.wrapping_add(row));
            let scale = _mm512_loadu_ps((&raw const (*columns).scales).cast::<f32>().wrapping_add(half * SIDE));
            // Never a product of two scales: it could overflow where the sum is zero, or underflow where it is large.
            _mm512_fmadd_ps(_mm512_mul_ps(sum, row_scale), scale, y)
        }
    }
}

/// The lanes of a vector of which there are so many columns.
fn lanes(columns: usize) -> __mmask16 {
    if columns >= SIDE { !0 } else { (1 << columns) - 1 }
}
