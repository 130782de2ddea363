//! Denormal numbers count as zeros while kernels run.
//!
//! An operation on a denormal number takes up to a hundred times as long as on any other. So without this, the time of a row would depend on its
//! values, and one request could hold up a worker. With it every operation takes denormal operands for zeros and gives zero in place of a denormal
//! result, whichever instructions it is made of: those of AMX and of AVX-512 BF16 do so always. An operation that only moves numbers may keep them.
//! Numbers of 16 bits are not concerned: the least of them is a normal float.
//!
//! The processor does this if bits of its control register say so. Rust assumes that nobody changes that register: the compiler may move floating-point
//! operations across a change, and so into it or out of it. So it is changed and put back within one block of assembly, and the kernels are called from
//! there. The compiler sees a call of a function that it does not know, and moves nothing across. It still assumes the register's usual state inside,
//! when it folds constants; no kernel has denormal constants.
//!
//! No guest of the host runs like this: WebAssembly demands denormal numbers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Does some work with denormal numbers as zeros, on this thread alone.
///
/// # Panics
/// If the work panics.
pub(crate) fn as_zeros<R>(work: impl FnOnce() -> R) -> R {
    let (mut work, mut done) = (Some(work), None);
    // A panic does not unwind through assembly.
    call(&mut || done = work.take().map(|work| catch_unwind(AssertUnwindSafe(work))));
    match done {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("it was called"),
    }
}

/// The same of one float, wherever it is: for what a library computes, which may look at the bits.
#[inline(always)]
pub(crate) fn as_zero(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x }
}

/// Calls the work with the register set. The work must not panic.
#[cfg(target_arch = "x86_64")]
fn call<W: FnMut()>(work: &mut W) {
    /// Denormal operands are zeros, and so are denormal results.
    const ZEROS: u32 = 1 << 6 | 1 << 15;
    /// # Safety
    /// The work is there, and nobody else's.
    unsafe extern "sysv64" fn enter<W: FnMut()>(work: *mut W) {
        // SAFETY: the caller's promise.
        unsafe { (*work)() }
    }
    let enter: unsafe extern "sysv64" fn(*mut W) = enter::<W>;
    // As it was, and as it is meanwhile.
    let mut states = [0_u32; 2];
    // SAFETY: calls a function by its own convention, on a stack that is aligned for it; r12 is one that it gives back as it was. The control register is
    // as it was when the block ends.
    unsafe {
        std::arch::asm!(
            "stmxcsr [r12]",
            "mov eax, [r12]",
            "or eax, {zeros}",
            "mov [r12 + 4], eax",
            "ldmxcsr [r12 + 4]",
            "call {enter}",
            "ldmxcsr [r12]",
            zeros = const ZEROS,
            enter = in(reg) enter,
            in("rdi") &raw mut *work,
            in("r12") states.as_mut_ptr(),
            out("rax") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Calls the work with the register set. The work must not panic.
#[cfg(target_arch = "aarch64")]
fn call<W: FnMut()>(work: &mut W) {
    /// Denormal operands and results are zeros.
    const ZEROS: u64 = 1 << 24;
    /// # Safety
    /// The work is there, and nobody else's.
    unsafe extern "C" fn enter<W: FnMut()>(work: *mut W) {
        // SAFETY: the caller's promise.
        unsafe { (*work)() }
    }
    let enter: unsafe extern "C" fn(*mut W) = enter::<W>;
    // SAFETY: calls a function by its own convention, on a stack that is aligned for it; x20 is one that it gives back as it was. The control register is
    // as it was when the block ends.
    unsafe {
        std::arch::asm!(
            "mrs x20, fpcr",
            "orr x21, x20, {zeros}",
            "msr fpcr, x21",
            "blr {enter}",
            "msr fpcr, x20",
            zeros = const ZEROS,
            enter = in(reg) enter,
            in("x0") &raw mut *work,
            out("x20") _,
            out("x21") _,
            clobber_abi("C"),
        );
    }
}

/// Of other processors nothing is known: denormal numbers are what they are there.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn call<W: FnMut()>(work: &mut W) {
    work();
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// A number that no compiler knows.
    fn product(a: f32, b: f32) -> f32 {
        black_box(a) * black_box(b)
    }

    #[test]
    fn operands_and_results_are_zeros_inside_alone() {
        let both = || [product(1e-30, 1e-10), product(1e-40, 1e10), product(-1e-30, 1e-10)].map(f32::to_bits);
        let before = both();
        assert!(before[0] != 0 && before[1] != 0, "denormal numbers are numbers");
        assert_eq!(as_zeros(both), [0, 0, 1 << 31]);
        assert_eq!(as_zeros(|| as_zeros(both)), [0, 0, 1 << 31]);
        assert_eq!(as_zeros(|| [(); 2].map(|()| as_zeros(both))[1]), [0, 0, 1 << 31], "also behind another one");
        assert_eq!(both(), before);
    }

    #[test]
    fn a_panic_comes_out_and_leaves_nothing_behind() {
        let outcome = catch_unwind(|| as_zeros(|| assert!(product(1e-30, 1e-10) > 0.0, "it is zero")));
        assert_eq!(outcome.expect_err("it panics").downcast_ref(), Some(&"it is zero"));
        assert!(product(1e-30, 1e-10) > 0.0);
    }

    #[test]
    fn one_float_is_zero_if_it_is_denormal() {
        for zero in [1e-40, f32::from_bits(1), f32::MIN_POSITIVE.next_down(), 0.0] {
            assert_eq!([as_zero(zero), as_zero(-zero)].map(f32::to_bits), [0, 1 << 31]);
        }
        for other in [f32::MIN_POSITIVE, 1.0, f32::INFINITY] {
            assert_eq!([as_zero(other), as_zero(-other)], [other, -other]);
        }
        assert!(as_zero(f32::NAN).is_nan());
    }
}
