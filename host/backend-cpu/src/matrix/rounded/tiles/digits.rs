//! 32-bit floats by AMX, where workers are asked for it: numbers of three signed eight-bit digits.
//!
//! The numbers of a row, and of a weight's column, are whole steps of one scale, 23 bits and a
//! sign. A product of two numbers is six products of digits out of nine; the three smallest are
//! left out. AMX sums integers, and digits of equal place share a tile, so these sums are exact in
//! any order. Rounded are each number and the result of putting the three sums together. Digits are
//! stored as the tiles that are read: three bytes a weight instead of a float's four.
//!
//! The result must not depend on the units of an input. So the rows of a weight are divided by
//! powers of two that make the largest number of each row an equally large part of its column. Rows
//! on the left are multiplied by the same powers when they are packed. They are therefore packed
//! for one weight. A row with infinities keeps their signs alone and is summed by plain loops.
//!
//! Nine tiles are read from the second cache for twelve products, and the reading takes longer.
//! Putting sums down after a few steps, to keep weights near for the next rows, was slower in every
//! size.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, _CMP_EQ_OQ, _mm_storeu_si128, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_fmadd_ps, _mm512_load_ps, _mm512_load_si512,
    _mm512_mask_sub_epi32, _mm512_maskz_loadu_ps, _mm512_maskz_mov_epi32, _mm512_max_epu32, _mm512_mul_ps, _mm512_reduce_max_epu32,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_srli_epi32, _mm512_store_ps, _mm512_xor_si512,
};
use std::mem::MaybeUninit;

use super::super::super::PANEL;
use super::super::numbers::{Float, steps};
use super::super::{DIGITS, GROUP};
use super::{AHEAD, All, FIRST_LINES, GROUPS, Part, ROW, SIDE, Sums, TILE, lanes, set_up_tiles};

/// Bytes of a step of a panel: a tile of each digit, of either half of its columns.
const STEP: usize = 2 * DIGITS * TILE;
/// Lines of a step.
const LINES: usize = STEP / 64;
/// Steps that lie between where weights are asked for and where they are used, by rows that use a panel once.
const TURN: usize = AHEAD / STEP + 1;
/// Steps that are summed as integers: three products of 64 numbers in each, of no more than 2¹⁴, are below 2³¹ together.
const STEPS: usize = 512;

/// The number of three digits that the largest of a row becomes: a little less than could be, so that nothing that is rounded is more.
const LARGEST: f32 = 0x7f_7f00 as f32;
/// Steps that a first digit is worth.
const FIRST: i32 = 1 << 16;
/// Steps of the unit that sums are counted in: half of what the largest number is, so that neither a row's unit nor a sum times a column's is soon too large for a float.
const UNIT: f32 = (1 << 22) as f32;

/// Takes a row apart into lines that are so many bytes apart, one of each digit for each line of groups, zeros behind the last value; what a unit is worth. That
/// is NaN if a value is; of a row with infinities it is infinite, their first digits are 1 or −1, and all others are zeros.
///
/// # Safety
/// There are lines for all digits of the row and, if there are any, as many factors as it has values; the processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in super::super) unsafe fn take_apart(row: &[Float], factors: *const f32, lines: *mut u8, apart: usize) -> f32 {
    let values = |at: usize| {
        let mask = lanes(row.len().saturating_sub(at));
        // SAFETY: the mask ends with the row, and factors do no sooner.
        unsafe {
            let values = _mm512_maskz_loadu_ps(mask, row.as_ptr().wrapping_add(at).cast());
            if factors.is_null() { values } else { _mm512_mul_ps(values, _mm512_maskz_loadu_ps(mask, factors.wrapping_add(at))) }
        }
    };
    let magnitude = |values: __m512| _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fff_ffff));
    // As integers, magnitudes are in order, with infinities and NaN above all numbers.
    let largest = (0..row.len()).step_by(SIDE).fold(_mm512_setzero_si512(), |most, at| _mm512_max_epu32(most, magnitude(values(at))));
    let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
    let (factor, _) = steps(largest, LARGEST);
    for at in (0..row.len().next_multiple_of(ROW)).step_by(SIDE) {
        let number = if largest.is_infinite() {
            let of = |value: f32| _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(values(at), _mm512_set1_ps(value));
            let (one, none) = (_mm512_set1_epi32(FIRST), _mm512_setzero_si512());
            _mm512_mask_sub_epi32(_mm512_maskz_mov_epi32(of(f32::INFINITY), one), of(f32::NEG_INFINITY), none, one)
        } else {
            // Of a row with a NaN some integers, which are then multiplied by one.
            _mm512_cvtps_epi32(_mm512_mul_ps(values(at), _mm512_set1_ps(factor)))
        };
        // Upwards by as much as the last two digits can be below zero, and each of them down again.
        let half = _mm512_set1_epi32(0x8080);
        let digits = _mm512_xor_si512(_mm512_add_epi32(number, half), half);
        let line = lines.wrapping_add(at / ROW * DIGITS * apart + at % ROW);
        // SAFETY: the caller's promise.
        unsafe {
            _mm_storeu_si128(line.cast(), _mm512_cvtepi32_epi8(_mm512_srli_epi32::<16>(digits)));
            _mm_storeu_si128(line.wrapping_add(apart).cast(), _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(digits)));
            _mm_storeu_si128(line.wrapping_add(2 * apart).cast(), _mm512_cvtepi32_epi8(digits));
        }
    }
    if factor == 0.0 { 0.0 } else { largest / (LARGEST / UNIT) }
}

/// Sets the tiles up for that many rows, of no more than sixteen.
///
/// # Safety
/// As for [`super::set_up`].
pub(super) unsafe fn set_up(rows: usize) {
    // SAFETY: the caller's promise.
    unsafe { set_up_tiles([rows, rows, rows, rows, rows, rows, rows, SIDE]) };
}

/// Sums of products that stand at the same place, the largest first, of either half of a panel's columns.
#[repr(C, align(64))]
struct Places([[[[i32; SIDE]; SIDE]; DIGITS]; 2]);

/// Some steps of a panel, for up to sixteen rows.
#[derive(Clone, Copy)]
struct Run {
    /// The first step's tile of the rows' first digits, bytes to the next digits' and to the next step's.
    left: *const u8,
    digit_bytes: usize,
    left_bytes: usize,
    panel: *const u8,
    steps: usize,
    /// What to ask for meanwhile, and, when so many steps are left, from then on.
    next: *const u8,
    turn: usize,
    then: *const u8,
}

/// A quarter of a step's lines that are asked for.
macro_rules! ask {
    () => {
        ".rept {lines}\nprefetcht1 [{next}]\nadd {next}, 64\n.endr\nadd {next}, {skipped}\n"
    };
}

/// A tile of the rows' digits.
macro_rules! rows {
    ($digit:literal) => {
        concat!("tileloadd tmm6, [{", $digit, "} + {row}]\n")
    };
}

/// Adds the product of the rows' digits and those of a half's columns to sums.
macro_rules! add {
    ($sums:literal) => {
        concat!("tdpbssd tmm", $sums, ", tmm6, tmm7\n")
    };
    ($sums:literal, $half:literal, $digit:literal) => {
        concat!("tileloadd tmm7, [{w} + {row} + 1024 * (3 * ", $half, " + ", $digit, ")]\n", add!($sums))
    };
}

/// Sums are in tiles 0 to 2, of the other half of the columns in 3 to 5, rows in 6 and columns in 7. Between two products that are added to the same sums there are three others, which
/// is as long as one takes.
///
/// # Safety
/// There are the run's tiles, and tiles are set up for its rows.
unsafe fn sum<const ASKED: usize, const SKIPPED: usize>(run: Run, sums: *mut Places) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            ".irp tile,0,1,2,3,4,5\ntilezero tmm\\tile\n.endr",
            "2:",
            "cmp {steps}, {turn}",
            "cmove {next}, {then}",
            concat!(rows!("first"), add!(2, 0, 2), add!(5, 1, 2), add!(3, 1, 0), ask!(), add!(0, 0, 0)),
            concat!(rows!("second"), add!(2, 0, 1), add!(5, 1, 1), ask!(), add!(4, 1, 0), add!(1, 0, 0)),
            concat!(rows!("third"), add!(2), ask!(), add!(5, 1, 0)),
            concat!(rows!("first"), add!(4, 1, 1), ask!(), add!(1, 0, 1)),
            "add {first}, {left_bytes}",
            "add {second}, {left_bytes}",
            "add {third}, {left_bytes}",
            "add {w}, {step}",
            "dec {steps}",
            "jnz 2b",
            ".irp tile,0,1,2,3,4,5\ntilestored [{sums} + {row} + 1024 * \\tile], tmm\\tile\n.endr",
            first = inout(reg) run.left => _,
            second = inout(reg) run.left.wrapping_add(run.digit_bytes) => _,
            third = inout(reg) run.left.wrapping_add(2 * run.digit_bytes) => _,
            left_bytes = in(reg) run.left_bytes,
            w = inout(reg) run.panel => _,
            row = in(reg) ROW,
            steps = inout(reg) run.steps => _,
            next = inout(reg) run.next => _,
            turn = in(reg) run.turn,
            then = in(reg) run.then,
            sums = in(reg) sums,
            step = const STEP,
            lines = const ASKED / 4,
            skipped = const SKIPPED / 4,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Puts sums of so many rows together, and adds them to what stands if they are not the first.
///
/// # Safety
/// Both can be read and written, by a processor with AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn put_together(places: *const Places, rows: usize, (sums, tile): (*mut Sums, usize), is_first: bool) {
    // Products of two first digits, and of the next.
    const FIRSTS: f32 = FIRST as f32 / UNIT * (FIRST as f32 / UNIT);
    const DIGIT: f32 = 1.0 / 256.0;
    let (firsts, seconds, digit) = (_mm512_set1_ps(FIRSTS), _mm512_set1_ps(FIRSTS * DIGIT), _mm512_set1_ps(DIGIT));
    for half in 0..2 {
        for row in 0..rows {
            // SAFETY: the caller's promise.
            unsafe {
                let of = |digit: usize| _mm512_cvtepi32_ps(_mm512_load_si512((&raw const (*places).0[half][digit][row]).cast()));
                let sum = _mm512_fmadd_ps(_mm512_fmadd_ps(of(2), digit, of(1)), seconds, _mm512_mul_ps(of(0), firsts));
                let into: *mut f32 = (&raw mut (*sums).0[tile + half][row]).cast();
                _mm512_store_ps(into, if is_first { sum } else { _mm512_add_ps(_mm512_load_ps(into), sum) });
            }
        }
    }
}

/// Sums a row with infinities, of which nothing but their signs and those of weights, as they are rounded, counts.
///
/// # Safety
/// There are so many steps of the panel and, so many bytes apart, lines of the row's first digits.
#[cold]
unsafe fn sum_infinities((line, left_bytes): (*const u8, usize), (panel, steps): (*const u8, usize)) -> [f32; PANEL] {
    let mut sums = [0.0; PANEL];
    for at in 0..steps * ROW {
        let (step, at) = (at / ROW, at % ROW);
        // SAFETY: the caller's promise.
        let digit = |digits: *const u8, at: usize| i32::from(unsafe { *digits.wrapping_add(at) }.cast_signed());
        let sign = digit(line.wrapping_add(step * left_bytes), at);
        if sign == 0 {
            continue;
        }
        for (column, sum) in sums.iter_mut().enumerate() {
            let tile = panel.wrapping_add(step * STEP + column / SIDE * DIGITS * TILE);
            let of = |number: usize| digit(tile.wrapping_add(number * TILE), at / GROUP * ROW + column % SIDE * GROUP + at % GROUP);
            *sum += f32::INFINITY * (sign * (of(0) * 65536 + of(1) * 256 + of(2))) as f32;
        }
        if sums.iter().all(|sum| sum.is_nan()) {
            break;
        }
    }
    sums
}

impl Part<'_> {
    /// Sums every term, from zero.
    ///
    /// # Safety
    /// As for [`Part::sum`].
    pub(super) unsafe fn sum_digits(&self, all: &mut All) {
        let Self { block, panel, next: next_panel, first, rows } = *self;
        let height = block.batch.height;
        let tiles = block.batch.rows.div_ceil(height);
        let sum = match LINES.div_ceil(tiles) {
            0..=4 => sum::<4, 0>,
            5..=8 => sum::<8, 0>,
            9..=12 => sum::<12, 0>,
            13..=16 => sum::<16, 0>,
            17..=24 => sum::<24, 0>,
            25..=32 => sum::<32, 0>,
            33..=48 => sum::<48, 0>,
            _ => sum::<FIRST_LINES, { (LINES - FIRST_LINES) * 64 }>,
        };
        let mut places = MaybeUninit::<Places>::uninit();
        for (number, ((term, weight), all)) in block.terms.iter().zip(&block.product.weights).zip(all).enumerate() {
            let steps = block.rounded.groups(weight.k) / GROUPS;
            let panel_bytes = steps * STEP;
            let w = weight.data.pointer().wrapping_add(panel * panel_bytes);
            let then = weight.data.pointer().wrapping_add(next_panel * panel_bytes);
            for slot in 0..rows.div_ceil(height) {
                let begin = slot * height;
                let count = block.batch.beside(first + begin);
                let left = term.rows.wrapping_add((first + begin) * term.stride);
                let (digit_bytes, left_bytes) = (count * ROW, DIGITS * count * ROW);
                let asked = then.wrapping_add(panel_bytes / tiles * (first / height + slot));
                let sums = all[slot / 2].as_mut_ptr();
                // SAFETY: the caller's promise.
                unsafe {
                    if number == 0 {
                        self.ask_for_rows(begin..begin + count);
                    }
                    for step in (0..steps).step_by(STEPS) {
                        let (done, steps) = (step * STEP, STEPS.min(steps - step));
                        // What comes after these steps: of a panel that is used once, its own next ones.
                        let then = if done + steps * STEP < panel_bytes { w.wrapping_add(done + steps * STEP) } else { then };
                        let (next, turn) = match tiles {
                            1 if steps > TURN => (w.wrapping_add(done + TURN * STEP), TURN),
                            1 => (then, 0),
                            _ => (asked.wrapping_add(done / tiles), 0),
                        };
                        let run = Run {
                            left: left.wrapping_add(step * left_bytes),
                            digit_bytes,
                            left_bytes,
                            panel: w.wrapping_add(done),
                            steps,
                            next,
                            turn,
                            then,
                        };
                        sum(run, places.as_mut_ptr());
                        put_together(places.as_ptr(), count, (sums, slot % 2 * 2), step == 0);
                    }
                    for row in (0..count).filter(|row| (*term.scales.wrapping_add(first + begin + row)).is_infinite()) {
                        let infinities = sum_infinities((left.wrapping_add(row * ROW), left_bytes), (w, steps));
                        for (half, infinities) in infinities.as_chunks::<SIDE>().0.iter().enumerate() {
                            (*sums).0[slot % 2 * 2 + half][row] = infinities.map(f32::to_bits);
                        }
                    }
                }
            }
        }
    }
}
