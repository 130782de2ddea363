//! What the compiler's process may ask of the system: memory, threads, and its pipes. seccomp refuses the rest.
//!
//! A refused call fails with `EPERM` and does not end the process: libraries look for files about the machine, and do without. What a
//! compiler that hostile code has taken over could still do is compute within its limits and write an answer.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// The actions of filters that the system knows; the file is not there if it has no seccomp.
const ACTIONS: &str = "/proc/sys/kernel/seccomp/actions_avail";

const ALLOWED: &[i64] = &[
    // Pipes that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // Threads.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    // Signals that it handles or sends itself.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_sigaltstack,
    // Time and randomness.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
];

/// Whether the system has seccomp.
pub(super) fn is_available() -> bool {
    std::fs::read_to_string(ACTIONS).is_ok_and(|actions| actions.split_whitespace().any(|action| action == "errno"))
}

/// Gives up the other system calls, for this thread and those that it starts.
pub(super) fn confine_this_thread() -> Result<(), Error> {
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    rules.insert(libc::SYS_clone, vec![when(0, Compare::MaskedEq(thread), thread)?]);
    rules.insert(libc::SYS_tgkill, vec![when(0, Compare::Eq, u64::from(std::process::id()))?]);
    // What `clone3` is to start stands in memory, which a filter cannot read. Without it the C library calls `clone`.
    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let no_clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(no_clone3, SeccompAction::Allow, unknown)?;
    // The last one: it refuses to be followed by another.
    apply(rules, refused, SeccompAction::Allow)
}

fn when(argument: u8, compare: Compare, value: u64) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(vec![SeccompCondition::new(argument, Length::Dword, compare, value)?])?)
}

fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, otherwise: SeccompAction, matched: SeccompAction) -> Result<(), Error> {
    let filter = SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?;
    apply_filter(&BpfProgram::try_from(filter)?)
}
