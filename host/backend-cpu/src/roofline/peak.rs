//! Multiply-adds with everything in registers, by the instruction that the kernels of a precision use.
//!
//! Every product is one, and sums begin at zero, so that they count what was computed. Nothing is read from memory and nothing else is done: no
//! kernel can be faster.

use cellwright_cell_graph::typed::Precision;

use crate::level::{Kernels, Level};
#[cfg(target_arch = "x86_64")]
use crate::matrix::rounded::Width;
use crate::matrix::rounded::{Kernel, Rounded};

/// Who computes a precision's multiply-adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// 32-bit floats in plain loops.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Fma256,
    #[cfg(target_arch = "x86_64")]
    Fma512,
    /// AVX-512's sums of products: `vdpbf16ps` or `vpdpbusd`.
    #[cfg(target_arch = "x86_64")]
    Dot(Width),
    /// AMX: `tdpbf16ps` or `tdpbssd`, and six of the latter for a product of 32-bit floats.
    #[cfg(target_arch = "x86_64")]
    Tiles(Width),
}

impl Unit {
    /// What kernels of that precision are made of on a processor of that level. Where they are loops, those of 32-bit floats stand for them.
    pub(super) fn choose(precision: Precision, level: Level, kernels: Kernels) -> Self {
        match Rounded::choose(precision, level, kernels) {
            #[cfg(target_arch = "x86_64")]
            Some(Rounded { width, kernel: Kernel::Dot }) => Self::Dot(width),
            #[cfg(target_arch = "x86_64")]
            Some(Rounded { width, kernel: Kernel::Tiles }) => Self::Tiles(width),
            None | Some(Rounded { kernel: Kernel::Plain, .. }) => match level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => Self::Fma256,
                #[cfg(target_arch = "x86_64")]
                level if level >= Level::Avx512 => Self::Fma512,
                _ => Self::Portable,
            },
        }
    }

    /// So many rounds of some ten cycles each; how many multiply-adds they were.
    ///
    /// # Safety
    /// The processor has what it was chosen for.
    pub(super) unsafe fn multiply_adds(self, rounds: usize) -> f64 {
        match self {
            Self::Portable => portable(rounds),
            // SAFETY: the caller's promise, for every arm.
            #[cfg(target_arch = "x86_64")]
            Self::Fma256 => unsafe { x86::fma_256(rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise.
            Self::Fma512 => unsafe { x86::fma_512(rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise.
            Self::Dot(Width::Half) => unsafe { x86::dot_halves(rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise.
            Self::Dot(Width::Byte | Width::Digits) => unsafe { x86::dot_bytes(rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise.
            Self::Tiles(width) => unsafe { x86::tiles(width, rounds) },
        }
    }
}

fn portable(rounds: usize) -> f64 {
    let (factor, summand) = std::hint::black_box((1.0_f32, 1.0_f32));
    let mut sums = std::hint::black_box([[0.0_f32; 4]; 12]);
    for _ in 0..rounds {
        for lane in sums.as_flattened_mut() {
            *lane = *lane * factor + summand;
        }
    }
    sums.as_flattened().iter().map(|sum| f64::from(*sum)).sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m256, __m512, __m512bh, __m512i, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm512_dpbf16_ps, _mm512_dpbusd_epi32,
        _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    };
    use std::hint::black_box;

    use super::Width;
    use crate::matrix::rounded::tiles as amx;

    /// Vectors of sums, enough to hide how long a multiply-add takes.
    const SUMS: usize = 24;
    /// The number one, twice, in bf16, and four times in eight bits.
    const HALVES: i32 = 0x3f80_3f80;
    const BYTES: i32 = 0x0101_0101;

    /// Of sixteen registers twelve hold sums.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma_256(rounds: usize) -> f64 {
        let (factor, summand) = black_box((_mm256_set1_ps(1.0), _mm256_set1_ps(1.0)));
        let mut sums = black_box([_mm256_setzero_ps(); SUMS / 2]);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, summand);
            }
        }
        // SAFETY: eight floats each.
        let lanes = sums.map(|sum| unsafe { std::mem::transmute::<__m256, [f32; 8]>(sum) });
        floats(lanes.as_flattened())
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_512(rounds: usize) -> f64 {
        let (factor, summand) = black_box((_mm512_set1_ps(1.0), _mm512_set1_ps(1.0)));
        let mut sums = black_box([_mm512_setzero_ps(); SUMS]);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, summand);
            }
        }
        floats_512(sums)
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn dot_halves(rounds: usize) -> f64 {
        // SAFETY: the types differ in name alone.
        let ones = unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(HALVES)) };
        let (x, w) = black_box((ones, ones));
        let mut sums = black_box([_mm512_setzero_ps(); SUMS]);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, w);
            }
        }
        floats_512(sums)
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn dot_bytes(rounds: usize) -> f64 {
        let (x, w) = black_box((_mm512_set1_epi32(BYTES), _mm512_set1_epi32(BYTES)));
        let mut sums = black_box([_mm512_setzero_si512(); SUMS]);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, w);
            }
        }
        // SAFETY: sixteen integers each.
        let lanes = sums.map(|sum| unsafe { std::mem::transmute::<__m512i, [i32; 16]>(sum) });
        lanes.as_flattened().iter().map(|sum| f64::from(*sum)).sum()
    }

    fn floats_512(sums: [__m512; SUMS]) -> f64 {
        // SAFETY: sixteen floats each.
        let lanes = sums.map(|sum| unsafe { std::mem::transmute::<__m512, [f32; 16]>(sum) });
        floats(lanes.as_flattened())
    }

    fn floats(sums: &[f32]) -> f64 {
        sums.iter().map(|sum| f64::from(*sum)).sum()
    }

    /// A tile: sixteen rows of a cache line.
    #[repr(C, align(64))]
    #[derive(Clone, Copy)]
    struct Tile([i32; 256]);

    /// The rounds of one instruction, every fourth of them: four multiplications of tiles take as long as some fifty of vectors.
    macro_rules! tiles {
        ($instruction:literal, $ones:ident, $sums:ident, $rounds:ident) => {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{ones} + {row}]",
                "tileloadd tmm5, [{ones} + {row}]",
                "tileloadd tmm6, [{ones} + {row}]",
                "tileloadd tmm7, [{ones} + {row}]",
                "2:",
                concat!($instruction, " tmm0, tmm4, tmm6"),
                concat!($instruction, " tmm1, tmm4, tmm7"),
                concat!($instruction, " tmm2, tmm5, tmm6"),
                concat!($instruction, " tmm3, tmm5, tmm7"),
                "dec {rounds}",
                "jnz 2b",
                "tilestored [{sums} + {row}], tmm0",
                "tilestored [{sums} + {row} + 1024], tmm1",
                "tilestored [{sums} + {row} + 2048], tmm2",
                "tilestored [{sums} + {row} + 3072], tmm3",
                ones = in(reg) &raw const $ones,
                row = in(reg) 64_usize,
                rounds = inout(reg) ($rounds / 4).max(1) => _,
                sums = in(reg) &raw mut $sums,
                options(nostack),
            )
        };
    }

    /// # Safety
    /// The processor has AMX, and the system lets this process use it.
    pub(super) unsafe fn tiles(width: Width, rounds: usize) -> f64 {
        let ones = Tile([if width == Width::Half { HALVES } else { BYTES }; 256]);
        let mut sums = [Tile([0; 256]); 4];
        // SAFETY: the caller's promise; tiles are set up whole before they are used, and are given back; there is room for each.
        unsafe {
            amx::set_up(32);
            match width {
                Width::Half => tiles!("tdpbf16ps", ones, sums, rounds),
                Width::Byte | Width::Digits => tiles!("tdpbssd", ones, sums, rounds),
            }
            amx::release();
        }
        let value = |bits: &i32| match width {
            Width::Half => f64::from(f32::from_bits(bits.cast_unsigned())),
            Width::Digits => f64::from(*bits) / 6.0,
            Width::Byte => f64::from(*bits),
        };
        sums.iter().flat_map(|tile| &tile.0).map(value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_precision_is_held_against_what_its_kernels_use() {
        #[cfg(target_arch = "x86_64")]
        for (level, expected) in [
            (Level::Portable, [Unit::Portable; 3]),
            (Level::Avx2, [Unit::Fma256; 3]),
            (Level::Avx512, [Unit::Fma512; 3]),
            (Level::Avx512Vnni, [Unit::Fma512, Unit::Fma512, Unit::Dot(Width::Byte)]),
            (Level::Avx512Bf16, [Unit::Fma512, Unit::Dot(Width::Half), Unit::Dot(Width::Byte)]),
            (Level::Amx, [Unit::Fma512, Unit::Tiles(Width::Half), Unit::Tiles(Width::Byte)]),
        ] {
            assert_eq!(
                [Precision::F32, Precision::Bf16, Precision::Int8].map(|precision| Unit::choose(precision, level, Kernels::Best)),
                expected
            );
        }
        assert_eq!(Unit::choose(Precision::Int8, Level::Portable, Kernels::Best), Unit::Portable);
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(Unit::choose(Precision::Int8, Level::Amx, Kernels::Library), Unit::Fma512);
            assert_eq!(Unit::choose(Precision::F32, Level::Amx, Kernels::Tiles), Unit::Tiles(Width::Digits));
        }
    }

    /// Whether six of its products are one.
    fn is_sixth(unit: Unit) -> bool {
        #[cfg(target_arch = "x86_64")]
        return unit == Unit::Tiles(Width::Digits);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    #[test]
    fn sums_count_multiply_adds() {
        const ROUNDS: usize = 20;
        for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
            for (precision, kernels) in
                Precision::ALL.into_iter().flat_map(|precision| [(precision, Kernels::Best), (precision, Kernels::Tiles)])
            {
                let unit = Unit::choose(precision, level, kernels);
                // Of a round: vectors, lanes, and products of each. Tiles are multiplied in every fourth.
                let each = match unit {
                    Unit::Portable => 12 * 4,
                    #[cfg(target_arch = "x86_64")]
                    Unit::Fma256 => 12 * 8,
                    #[cfg(target_arch = "x86_64")]
                    Unit::Fma512 => 24 * 16,
                    #[cfg(target_arch = "x86_64")]
                    Unit::Dot(width) => 24 * 16 * if width == Width::Half { 2 } else { 4 },
                    #[cfg(target_arch = "x86_64")]
                    Unit::Tiles(width) => 16 * 16 * 16 * if width == Width::Half { 2 } else { 4 },
                };
                // SAFETY: the processor has that level.
                let counted = unsafe { unit.multiply_adds(ROUNDS) } * if is_sixth(unit) { 6.0 } else { 1.0 };
                assert!((counted - (ROUNDS * each) as f64).abs() < 1e-6, "{unit:?}: {counted}");
            }
        }
    }
}
