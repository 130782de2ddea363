//! What a row or a column becomes when it is packed: bf16, or whole steps of a scale of its own.

#[cfg(target_arch = "x86_64")]
use super::tiles::digits::take_apart;
use super::{GROUP, GROUPS, Rounded, Width};
use crate::denormals::as_zero;

/// Bytes of a line: as many groups as a term's depth is padded to.
const LINE: usize = GROUP * GROUPS;

/// The largest integer.
pub(super) const STEPS: f32 = 127.0;

/// A float that may stand anywhere in memory: rows come from requests as they were sent.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Float([u8; 4]);

impl Float {
    #[inline(always)]
    fn get(self) -> f32 {
        f32::from_ne_bytes(self.0)
    }

    /// The same floats.
    pub(super) const fn all(floats: &[f32]) -> &[Self] {
        // SAFETY: as large as a float, less aligned, and any bytes are one.
        unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
    }
}

/// What a row's or a column's numbers are multiplied by, and what a step of them is worth.
#[derive(Clone, Copy)]
struct Scale {
    inverse: f32,
    step: f32,
}

impl Rounded {
    /// Rounds a row or column into packed groups; what a step of it is worth.
    #[inline(always)]
    pub(super) fn round(self, values: &[f32], packed: &mut [u8], is_offset: bool) -> f32 {
        let values = Float::all(values);
        #[cfg(target_arch = "x86_64")]
        if self.width == Width::Digits {
            // SAFETY: there are as many lines of each digit; the processor has AMX, or nothing would be packed like that.
            return unsafe { take_apart(values, std::ptr::null(), packed.as_mut_ptr(), LINE) };
        }
        let scale = self.scale(values);
        self.put(values, scale, packed, is_offset);
        scale.step
    }

    #[inline(always)]
    fn scale(self, values: &[Float]) -> Scale {
        let (inverse, step) = match self.width {
            Width::Digits | Width::Half => (1.0, 1.0),
            Width::Byte => steps(largest(values), STEPS),
        };
        Scale { inverse, step }
    }

    /// Rounds some of the values that have that scale.
    #[inline(always)]
    fn put(self, values: &[Float], scale: Scale, packed: &mut [u8], is_offset: bool) {
        match self.width {
            Width::Digits => debug_assert!(false, "`take_apart` packs them"),
            Width::Half => {
                let halves = packed.as_chunks_mut::<2>().0;
                halves.iter_mut().zip(values).for_each(|(half, value)| *half = to_bf16(value.get()).to_le_bytes());
            }
            Width::Byte => {
                let flip = if is_offset { 0x80 } else { 0 };
                if scale.step.is_nan() {
                    // Whatever integers stood here, every result would be NaN.
                    return packed.fill(flip);
                }
                for (byte, value) in packed.iter_mut().zip(values) {
                    // SAFETY: the scale is a number, so every value is one and no larger than 127 steps (and a little, by rounding): see `steps`.
                    let step: i32 = unsafe { (value.get() * scale.inverse).round_ties_even().to_int_unchecked() };
                    *byte = step as u8 ^ flip;
                }
            }
        }
    }
}

/// Rounds a row into lines that are so many bytes apart, zeros behind the last value.
///
/// # Safety
/// There are as many lines as the row fills and, if there are any, as many factors; and the scale can be written.
#[inline(always)]
pub(super) unsafe fn pack_row(rounded: Rounded, row: &[Float], factors: *const f32, lines: *mut u8, apart: usize, scale: *mut f32) {
    #[cfg(target_arch = "x86_64")]
    if rounded.width == Width::Digits {
        // SAFETY: the caller's promise; the processor has AMX, or nothing would be packed like that.
        unsafe { *scale = take_apart(row, factors, lines, apart) };
        return;
    }
    let _ = factors;
    let of = rounded.scale(row);
    let is_offset = rounded.is_offset();
    for (at, values) in row.chunks(LINE / rounded.bytes()).enumerate() {
        // SAFETY: the caller's promise.
        let line = unsafe { &mut *lines.wrapping_add(at * apart).cast::<[u8; LINE]>() };
        if values.len() < LINE / rounded.bytes() {
            line.fill(0);
        }
        rounded.put(values, of, line, is_offset);
    }
    // SAFETY: the caller's promise.
    unsafe { *scale = of.step };
}

/// The nearest number of eight significant bits, ties to even; a NaN stays one, and a denormal number is zero.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = as_zero(value).to_bits();
    // Never beyond the largest pattern: infinities and NaN are not rounded.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let kept = bits >> 16 | u32::from(value.is_nan()) << 6;
    (if bits & 0x7f80_0000 == 0x7f80_0000 { kept } else { rounded }) as u16
}

/// What to multiply by for the largest magnitude to be so many steps, and what a step is worth.
#[inline(always)]
pub(super) fn steps(largest: f32, steps: f32) -> (f32, f32) {
    let inverse = steps / largest;
    if !largest.is_finite() {
        // No value times zero would do for those either.
        return (f32::NAN, f32::NAN);
    }
    if inverse.is_finite() { (inverse, largest / steps) } else { (0.0, 0.0) }
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn largest(values: &[Float]) -> f32 {
    // As integers they are in order, with infinities and NaN above all numbers.
    f32::from_bits(values.iter().fold(0, |most, value| most.max(value.get().to_bits() & 0x7fff_ffff)))
}
