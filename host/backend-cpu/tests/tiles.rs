//! A worker that is not to use AMX does not ask the system for its tiles. It has a process of its own, because what was asked for stays.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(unsafe_code, reason = "what a process may use is known to the system alone")]

use cellwright_backend_cpu::{CpuDomain, DomainOptions, Level};

/// Whether this process was given tiles: bit 18 of what it may use.
fn has_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_GET_XCOMP_PERM: usize = 0x1022;
    let mut may_use = 0_u64;
    let answer: usize;
    // SAFETY: the call writes eight bytes where it is told to, or is refused.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_GET_XCOMP_PERM,
            in("rsi") &raw mut may_use,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0 && may_use >> 18 & 1 == 1
}

#[test]
fn tiles_are_asked_for_where_they_may_be_used() {
    let domain =
        |level| CpuDomain::new(DomainOptions { arena_bytes: Some(1 << 20), level, ..DomainOptions::default() }).expect("1 MiB is there");
    for level in Level::ALL.into_iter().filter(|level| *level < Level::Amx) {
        let _domain = domain(Some(level));
        assert!(!has_tiles(), "{level:?}");
    }
    let _domain = domain(None);
    assert_eq!(has_tiles(), Level::detect() == Level::Amx);
}
