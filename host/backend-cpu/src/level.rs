//! Which instructions this processor has, and so which kernels run: the numeric class of the worker.

/// An instruction set that kernels are compiled for; each has what those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, VL, BW and DQ.
    Avx512,
    /// AVX-512 VNNI: sums of products of bytes.
    Avx512Vnni,
    /// AVX-512 BF16: sums of products of 16-bit floats.
    Avx512Bf16,
    /// AMX: both, for tiles of rows and columns, where the system lets this process use them.
    Amx,
}

impl Level {
    /// Every level, the least first.
    pub const ALL: [Self; 6] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Vnni, Self::Avx512Bf16, Self::Amx];

    /// The best this processor has. Asks the system for tiles if it has those.
    #[must_use]
    pub fn detect() -> Self {
        Self::up_to(Self::Amx)
    }

    /// The best this processor has, up to that one. The system is asked for tiles only if they may be used.
    pub(crate) fn up_to(most: Self) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has = [
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq"),
                is_x86_feature_detected!("avx512vnni"),
                is_x86_feature_detected!("avx512bf16"),
                most >= Self::Amx && tiles::are_usable(),
            ];
            Self::ALL[has.into_iter().take_while(|has| *has).count()].min(most)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Portable.min(most)
    }

    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
            Self::Avx512Vnni => "AVX-512 with VNNI",
            Self::Avx512Bf16 => "AVX-512 with VNNI and BF16",
            Self::Amx => "AVX-512 and AMX",
        }
    }

    /// What tells workers' results apart; workers of one class give the same bits at every precision.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Portable => std::env::consts::ARCH,
            Self::Avx2 => "avx2",
            // Sums of bytes are exact, however they are computed.
            Self::Avx512 | Self::Avx512Vnni => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Amx => "amx",
        }
    }
}

/// Who multiplies matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kernels {
    /// The crate's own kernel where it has one for this processor, the library elsewhere.
    #[default]
    Best,
    /// The same, and AMX for products of 32-bit floats as well: [`CpuDomain::new`](crate::CpuDomain::new) refuses it where there is none.
    Tiles,
    /// The library `gemm` always, and for rounded numbers a loop.
    Library,
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    //! The tiles of AMX are more state than a system saves for every thread, so that a process has to ask for them.

    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;

    /// AMX-BF16, AMX-TILE and AMX-INT8 in register D of leaf 7.
    const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

    /// Whether the processor has them and the system lets this process use them.
    pub(super) fn are_usable() -> bool {
        static USABLE: OnceLock<bool> = OnceLock::new();
        *USABLE.get_or_init(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES && ask())
    }

    #[cfg(target_os = "linux")]
    fn ask() -> bool {
        const ARCH_PRCTL: usize = 158;
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const XFEATURE_XTILEDATA: usize = 18;
        let answer: usize;
        // SAFETY: the call takes two numbers, touches no memory of this process, and is refused where the system does not know it.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => answer,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        answer == 0
    }

    #[cfg(not(target_os = "linux"))]
    fn ask() -> bool {
        false
    }
}
