//! What multiply-adds cost when their operands have to come from somewhere: the same loop of 24 sums with nothing else, and with the eleven loads
//! that a tile of eight rows and three vectors makes for them, all of which the nearest cache has.
//!
//! `cargo bench -p cellwright-backend-cpu --bench loads`: a product of such tiles, in this order, is no faster than the second line.
#![expect(unsafe_code, reason = "the loops are assembly, so that no compiler orders them")]

#[cfg(target_arch = "x86_64")]
mod loops {
    use std::arch::asm;

    /// Multiply-adds of one floating-point number in a round.
    pub(super) const EACH: usize = 24 * 16;

    macro_rules! row {
        ($load:literal, $a:literal, $b:literal, $c:literal) => {
            concat!(
                $load,
                "vfmadd231ps zmm",
                $a,
                ", zmm31, zmm28\n",
                "vfmadd231ps zmm",
                $b,
                ", zmm31, zmm29\n",
                "vfmadd231ps zmm",
                $c,
                ", zmm31, zmm30"
            )
        };
    }

    macro_rules! rounds {
        ($rounds:ident, $from:ident, $first:literal, $($load:literal),*) => {
            asm!(
                ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 28, 29, 30, 31",
                "vpxord zmm\\n, zmm\\n, zmm\\n",
                ".endr",
                "2:",
                $first,
                rounds!(rows $($load),*),
                "dec {rounds}",
                "jnz 2b",
                "vzeroupper",
                rounds = inout(reg) $rounds => _,
                from = in(reg) $from.as_ptr(),
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                options(nostack, readonly),
            )
        };
        (rows $a:literal, $b:literal, $c:literal, $d:literal, $e:literal, $f:literal, $g:literal, $h:literal) => {
            concat!(
                row!($a, 0, 1, 2), "\n", row!($b, 3, 4, 5), "\n", row!($c, 6, 7, 8), "\n", row!($d, 9, 10, 11), "\n",
                row!($e, 12, 13, 14), "\n", row!($f, 15, 16, 17), "\n", row!($g, 18, 19, 20), "\n", row!($h, 21, 22, 23)
            )
        };
    }

    /// # Safety
    /// The processor has AVX-512.
    pub(super) unsafe fn alone(rounds: usize, from: &[f32; 64]) {
        // SAFETY: nothing is read or written but registers.
        unsafe { rounds!(rounds, from, "/* {from} */", "", "", "", "", "", "", "", "") }
    }

    /// # Safety
    /// As for [`alone`].
    pub(super) unsafe fn with_loads(rounds: usize, from: &[f32; 64]) {
        // SAFETY: every load is within the 256 bytes.
        unsafe {
            rounds!(
                rounds,
                from,
                "vmovups zmm28, [{from}]\nvmovups zmm29, [{from} + 64]\nvmovups zmm30, [{from} + 128]",
                "vbroadcastss zmm31, dword ptr [{from}]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 32]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 64]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 96]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 128]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 160]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 192]\n",
                "vbroadcastss zmm31, dword ptr [{from} + 224]\n"
            );
        }
    }
}

/// Whole lines, as packed weights are.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Lines([f32; 64]);

#[cfg(target_arch = "x86_64")]
#[expect(clippy::print_stdout, reason = "a bench prints")]
fn main() {
    const ROUNDS: usize = 2_000_000;
    const BURSTS: usize = 31;
    if !is_x86_feature_detected!("avx512f") {
        println!("this processor has no AVX-512");
        return;
    }
    let Lines(from) = &Lines([0.5; 64]);
    let mut gflops = [Vec::new(), Vec::new()];
    for _ in 0..BURSTS {
        for (with_loads, gflops) in gflops.iter_mut().enumerate() {
            let began = std::time::Instant::now();
            // SAFETY: just asked.
            unsafe { if with_loads == 1 { loops::with_loads(ROUNDS, from) } else { loops::alone(ROUNDS, from) } }
            gflops.push((2 * ROUNDS * loops::EACH) as f64 / began.elapsed().as_secs_f64() / 1e9);
        }
    }
    for (what, gflops) in ["multiply-adds alone", "with a tile's loads"].iter().zip(&mut gflops) {
        gflops.sort_unstable_by(f64::total_cmp);
        println!("{what}: {:.0} GFLOP/s, best {:.0}", gflops[BURSTS / 2], gflops[BURSTS - 1]);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {}
