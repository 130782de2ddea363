//! Where the system refuses AMX's tiles, a worker computes with what it has beside them. It has a process of its own, because what was answered stays.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(unsafe_code, reason = "the system refuses tiles to a process with a thread whose stack for signals could not hold them")]

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Level};

/// What `sigaltstack` takes.
#[repr(C)]
struct Stack {
    start: *mut u8,
    flags: i32,
    bytes: usize,
}

/// Gives this thread a stack for signals that holds the registers of AVX-512, but no tiles; whether the system took it.
fn take_small_stack() -> bool {
    const SIGALTSTACK: usize = 131;
    const BYTES: usize = 4096;
    let memory = Box::leak(vec![0_u8; BYTES].into_boxed_slice());
    let stack = Stack { start: memory.as_mut_ptr(), flags: 0, bytes: BYTES };
    let answer: usize;
    // SAFETY: the call reads the description; the memory behind it is never given back.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SIGALTSTACK => answer,
            in("rdi") &raw const stack,
            in("rsi") 0_usize,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[test]
fn a_worker_without_tiles_computes_with_the_rest() {
    if !take_small_stack() {
        return;
    }
    assert!(Level::detect() < Level::Amx);
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(1 << 20), ..DomainOptions::default() }).expect("1 MiB is there");
    let worker = CpuWorker::new(domain, CpuOptions::default()).expect("a thread");
    let info = worker.info();
    assert!(info.name.contains(Level::detect().name()) && !info.numeric_class.contains("amx"), "{info:?}");
}
