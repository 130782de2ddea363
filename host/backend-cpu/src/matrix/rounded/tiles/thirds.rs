//! 32-bit floats by AMX: each is the sum of three numbers of bf16, and a product of two is six products of those.
//!
//! The first eight digits of a float, the next eight and the last eight are a number of bf16 each, and products of two such numbers are exact. Of the nine products that a
//! product of two floats is made of, the three smallest are left out: half a unit of its last place on average and four at most, towards zero. Sums of 64 products and more are nevertheless as close to exact ones as those of fused
//! multiply-adds, because sixteen pairs are summed by themselves first. Rows are taken apart when they are packed. Weights lie in memory as floats, of which fewer
//! bytes have to be read, and are taken apart by each thread a step before they are multiplied, beside the multiplication of the step before.

use std::arch::asm;
use std::mem::{MaybeUninit, offset_of};

use super::{All, GROUPS, HEIGHT, Part, ROW, SIDE, Sums, TILE, set_up_tiles};

/// Bytes of a step of a panel as floats, and taken apart: two tiles of each part.
pub(super) const STEP: usize = 4 * TILE;
const APART: usize = 6 * TILE;
/// The bits of a float that are its first part.
const FIRST: usize = 0xffff_0000;
/// Steps that lie between one that is multiplied and one that is asked for.
const AHEAD: usize = 3;
/// Steps that are kept as they were taken apart: the one that is multiplied and the one that comes after it. What the nearest cache has to hold, and to put
/// down when other things come, is little then.
const SLOTS: usize = 2;

/// Steps of panels, taken apart.
pub(super) struct Apart {
    slots: MaybeUninit<Slots>,
    /// The next run's first slot, and which step is there.
    slot: usize,
    holds: *const u8,
}

#[repr(C, align(64))]
struct Slots([[u8; APART]; SLOTS]);

/// All steps of a panel, for some rows.
#[repr(C)]
struct Run {
    sums: *mut Sums,
    /// Bytes from one step's rows to the next's.
    left_bytes: usize,
    /// The step that comes after the last one.
    after: *const u8,
    /// Where steps are that were taken apart.
    begin: *mut u8,
    end: *mut u8,
}

/// Asks for the first lines of a step, which of large weights is a page: the processor then asks for the others by itself, and better than a program could.
macro_rules! ask {
    () => {
        "prefetcht1 [{next}]\nprefetcht1 [{next} + 64]\nprefetcht1 [{next} + 128]\nprefetcht1 [{next} + 192]\n"
    };
}

/// Takes pairs of floats that are summed together apart, those of sixteen columns at once: by their numbers in a step, separated by commas.
macro_rules! take_apart {
    ($pairs:literal) => {
        concat!(
            ".irp pair,",
            $pairs,
            "
            vmovups zmm0, [{from} + 128 * \\pair]
            vmovups zmm1, [{from} + 128 * \\pair + 64]
            vpandd zmm2, zmm0, zmm31
            vpandd zmm3, zmm1, zmm31
            vsubps zmm0, zmm0, zmm2
            vsubps zmm1, zmm1, zmm3
            vpsrld zmm2, zmm2, 16
            vpord zmm2, zmm2, zmm3
            vmovups [{into} + 64 * \\pair], zmm2
            vpandd zmm2, zmm0, zmm31
            vpandd zmm3, zmm1, zmm31
            vsubps zmm0, zmm0, zmm2
            vsubps zmm1, zmm1, zmm3
            vpsrld zmm2, zmm2, 16
            vpord zmm2, zmm2, zmm3
            vmovups [{into} + 64 * \\pair + 2048], zmm2
            vpsrld zmm0, zmm0, 16
            vpternlogd zmm0, zmm1, zmm31, 0xf8
            vmovups [{into} + 64 * \\pair + 4096], zmm0
            .endr\n"
        )
    };
}

/// Asks for eight lines of the rows of the next step.
macro_rules! ask_for_rows {
    ($line:literal) => {
        concat!(".irp line,0,1,2,3,4,5,6,7\nprefetcht0 [{tmp} + 64 * (\\line + ", $line, ")]\n.endr\n")
    };
}

/// A tile of a part of the rows, or of the columns.
macro_rules! rows {
    ($part:literal, $tile:literal) => {
        concat!("tileloadd ", $tile, ", [{", $part, "} + {row}]\n")
    };
    ($part:literal, lower, $tile:literal) => {
        concat!("tileloadd ", $tile, ", [{", $part, "} + {row} + 1024]\n")
    };
}
macro_rules! columns {
    ($part:literal, $half:literal, $tile:literal) => {
        concat!("tileloadd ", $tile, ", [{w} + {row} + 2048 * ", $part, " + 1024 * ", $half, "]\n")
    };
}

/// Adds products to sums.
macro_rules! add {
    ($sums:literal, $rows:literal, $columns:literal) => {
        concat!("tdpbf16ps tmm", $sums, ", tmm", $rows, ", tmm", $columns, "\n")
    };
}

/// Of up to thirty-two rows: products of the upper sixteen, of the same with columns that are loaded meanwhile, and of the lower.
macro_rules! upper {
    () => {
        concat!(add!(0, 4, 6), add!(1, 4, 7))
    };
    ($columns:literal) => {
        concat!(columns!($columns, 0, "tmm6"), add!(0, 4, 6), columns!($columns, 1, "tmm7"), add!(1, 4, 7))
    };
}
macro_rules! lower {
    () => {
        concat!(add!(2, 5, 6), add!(3, 5, 7))
    };
}

/// What a few instructions for tiles have between them.
macro_rules! meanwhile {
    ($line:literal, $pairs:literal) => {
        concat!(ask_for_rows!($line), take_apart!($pairs))
    };
}

/// A step of up to thirty-two rows: sums are in tiles 0 to 3, rows in 4 and 5, columns in 6 and 7. Between a few instructions for tiles there are a few that take the next step
/// apart, because the processor looks ahead no further than that.
macro_rules! step_of_two {
    () => {
        concat!(
            concat!(rows!("first", "tmm4"), upper!(2), meanwhile!("0", "0,1")),
            concat!(rows!("first", lower, "tmm5"), lower!(), meanwhile!("8", "2,3,4")),
            concat!(upper!(1), meanwhile!("16", "5,6,7")),
            concat!(lower!(), meanwhile!("24", "8,9")),
            concat!(rows!("second", "tmm4"), upper!(), meanwhile!("32", "10,11,12")),
            concat!(rows!("second", lower, "tmm5"), lower!(), meanwhile!("40", "13,14,15")),
            concat!(upper!(0), meanwhile!("48", "16,17")),
            concat!(lower!(), meanwhile!("56", "18,19,20")),
            concat!(rows!("first", "tmm4"), upper!(), meanwhile!("64", "21,22,23")),
            concat!(rows!("first", lower, "tmm5"), lower!(), meanwhile!("72", "24,25")),
            concat!(rows!("third", "tmm4"), upper!(), meanwhile!("80", "26,27,28")),
            concat!(rows!("third", lower, "tmm5"), lower!(), meanwhile!("88", "29,30,31")),
        )
    };
}

/// A step of up to sixteen rows: sums are in tiles 0 and 1, all parts of the rows in 2, 3 and 5, columns in 4, 6 and 7. The products are summed in the same order.
macro_rules! step_of_one {
    () => {
        concat!(
            rows!("first", "tmm2"),
            columns!(2, 0, "tmm6"),
            take_apart!("0,1"),
            columns!(2, 1, "tmm7"),
            take_apart!("2,3,4"),
            rows!("second", "tmm3"),
            take_apart!("5,6,7"),
            columns!(1, 0, "tmm4"),
            add!(0, 2, 6),
            take_apart!("8,9"),
            add!(1, 2, 7),
            take_apart!("10,11,12"),
            columns!(1, 1, "tmm6"),
            add!(0, 2, 4),
            take_apart!("13,14,15"),
            add!(1, 2, 6),
            take_apart!("16,17"),
            rows!("third", "tmm5"),
            add!(0, 3, 4),
            take_apart!("18,19,20"),
            columns!(0, 0, "tmm7"),
            add!(1, 3, 6),
            take_apart!("21,22,23"),
            columns!(0, 1, "tmm4"),
            add!(0, 3, 7),
            take_apart!("24,25"),
            add!(1, 3, 4),
            add!(0, 2, 7),
            take_apart!("26,27,28"),
            add!(1, 2, 4),
            add!(0, 5, 7),
            add!(1, 5, 4),
            take_apart!("29,30,31"),
        )
    };
}

/// All steps of a run, and the sums are put down.
macro_rules! sum {
    ($run:ident, ($left:ident, $steps:ident), ($from:ident, $into:ident, $w:ident), $next:ident, $step:ident, $tiles:literal) => {
        asm!(
            "vpbroadcastd zmm31, {tmp:e}",
            concat!(".irp tile,", $tiles, "\ntilezero tmm\\tile\n.endr"),
            "2:",
            "cmp {steps}, {ahead}",
            "cmove {next}, [{run} + {after}]",
            "cmp {steps}, 1",
            "cmove {from}, [{run} + {after}]",
            ask!(),
            "mov {tmp}, [{run} + {left_bytes}]",
            "add {tmp}, {first}",
            $step!(),
            "sub {tmp}, {first}",
            "add {first}, {tmp}",
            "add {second}, {tmp}",
            "add {third}, {tmp}",
            "add {next}, {step}",
            "add {w}, {apart}",
            "cmp {w}, [{run} + {end}]",
            "cmove {w}, [{run} + {begin}]",
            "add {from}, {step}",
            "add {into}, {apart}",
            "cmp {into}, [{run} + {end}]",
            "cmove {into}, [{run} + {begin}]",
            "dec {steps}",
            "jnz 2b",
            "mov {tmp}, [{run} + {sums}]",
            concat!(".irp tile,", $tiles, "\ntilestored [{tmp} + {row} + 1024 * \\tile], tmm\\tile\n.endr"),
            "vzeroupper",
            run = in(reg) &raw const $run,
            first = inout(reg) $left => _,
            second = inout(reg) $left.wrapping_add($run.left_bytes / 3) => _,
            third = inout(reg) $left.wrapping_add($run.left_bytes / 3 * 2) => _,
            w = inout(reg) $w => _,
            row = in(reg) ROW,
            steps = inout(reg) $steps => _,
            next = inout(reg) $next => _,
            from = inout(reg) $from => _,
            into = inout(reg) $into => _,
            tmp = inout(reg) FIRST => _,
            ahead = const AHEAD,
            sums = const offset_of!(Run, sums),
            left_bytes = const offset_of!(Run, left_bytes),
            after = const offset_of!(Run, after),
            begin = const offset_of!(Run, begin),
            end = const offset_of!(Run, end),
            apart = const APART,
            step = const STEP,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm31") _, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Sets the tiles up for that many rows.
///
/// # Safety
/// As for [`super::set_up`].
pub(super) unsafe fn set_up(rows: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if rows <= SIDE {
            set_up_tiles([rows, rows, rows, rows, SIDE, rows, SIDE, SIDE]);
        } else {
            super::set_up(rows);
        }
    }
}

impl Apart {
    /// None yet.
    #[inline(always)]
    pub(super) const fn none() -> Self {
        Self { slots: MaybeUninit::uninit(), slot: 0, holds: std::ptr::null() }
    }

    /// Where a slot begins.
    fn slot(&mut self, slot: usize) -> *mut u8 {
        self.slots.as_mut_ptr().cast::<u8>().wrapping_add(slot % SLOTS * APART)
    }

    /// Takes a step apart by itself.
    ///
    /// # Safety
    /// It is a step of a panel, on a processor with AVX-512.
    unsafe fn take_apart(&mut self, step: *const u8) {
        let into = self.slot(self.slot);
        // SAFETY: the caller's promise; a slot has room for a step.
        unsafe {
            asm!(
                "vpbroadcastd zmm31, {first:e}",
                take_apart!("0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"),
                first = in(reg) FIRST,
                from = in(reg) step,
                into = in(reg) into,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm31") _,
                options(nostack),
            );
        }
        self.holds = step;
    }

    /// Sums rows of a height times so many steps, and takes the step apart that comes after them.
    ///
    /// # Safety
    /// As for [`Part::sum_thirds`]; both `w` and `after` are steps of panels.
    unsafe fn sum(
        &mut self,
        is_one: bool,
        (left, left_bytes): (*const u8, usize),
        (w, steps): (*const u8, usize),
        after: *const u8,
        sums: *mut Sums,
    ) {
        if self.holds != w {
            // SAFETY: the caller's promise.
            unsafe { self.take_apart(w) };
        }
        let begin = self.slot(0);
        let from = w.wrapping_add(STEP);
        let next = if steps > AHEAD { w.wrapping_add(AHEAD * STEP) } else { after };
        let (into, w) = (self.slot(self.slot + 1), self.slot(self.slot));
        (self.slot, self.holds) = ((self.slot + steps) % SLOTS, after);
        let run = Run { sums, left_bytes, after, begin, end: begin.wrapping_add(APART * SLOTS) };
        // SAFETY: the caller's promise.
        unsafe {
            if is_one {
                sum!(run, (left, steps), (from, into, w), next, step_of_one, "0,1");
            } else {
                sum!(run, (left, steps), (from, into, w), next, step_of_two, "0,1,2,3");
            }
        }
    }
}

impl Part<'_> {
    /// Sums every term, from zero.
    ///
    /// # Safety
    /// As for [`Part::sum`].
    pub(super) unsafe fn sum_thirds(&self, all: &mut All, apart: &mut Apart) {
        let Self { block, panel, next, first, rows } = *self;
        let height = rows.min(HEIGHT);
        let left_bytes = 3 * height * ROW;
        let panel_of = |term: usize, panel: usize| {
            let weight = &block.product.weights[term];
            let steps = block.rounded.groups(weight.k) / GROUPS;
            (weight.data.pointer().wrapping_add(panel * steps * STEP), steps)
        };
        for (number, (term, all)) in block.terms.iter().zip(all).enumerate() {
            let w = panel_of(number, panel);
            let left = term.rows.wrapping_add(first * term.stride);
            let after_term = match number + 1 {
                more if more < block.terms.len() => panel_of(more, panel),
                _ if first + rows < block.rows => panel_of(0, panel),
                _ => panel_of(0, next),
            };
            let heights = rows.div_ceil(HEIGHT);
            for (at, sums) in all.iter_mut().enumerate().take(heights) {
                let left = left.wrapping_add(at * HEIGHT * term.stride);
                let (after, _) = if at + 1 < heights { w } else { after_term };
                // SAFETY: the caller's promise.
                unsafe {
                    if number == 0 {
                        self.ask_for_rows(at * HEIGHT..at * HEIGHT + height);
                    }
                    apart.sum(rows <= SIDE, (left, left_bytes), w, after, sums.as_mut_ptr());
                }
            }
        }
    }
}
