//! What a host can know of the machine that it and its devices share.

use std::fs::read_to_string;

/// Where the limit of whoever runs it in a container stands: in the first as version 2 of cgroups has it, in the second as version 1.
const LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
/// Of a machine that does not say.
const UNKNOWN: u64 = 8 << 30;

/// The machine's memory in bytes, or what of it this process may have if that is less, as far as the system says; 8 GiB if it does not.
#[must_use]
pub fn memory_bytes() -> u64 {
    let read = |path| read_to_string(path).unwrap_or_default();
    least(&read("/proc/meminfo"), &LIMITS.map(read))
}

fn least(machine: &str, limits: &[String]) -> u64 {
    let limits = limits.iter().filter_map(|said| limit(said));
    limits.fold(total(machine).unwrap_or(UNKNOWN), u64::min)
}

/// What `/proc/meminfo` says there is.
fn total(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes = line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?;
    Some(kibibytes.saturating_mul(1024))
}

/// What a cgroup's file says; none: it has no limit.
fn limit(said: &str) -> Option<u64> {
    said.trim().parse().ok().filter(|limit| *limit > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        assert_eq!(total("Active: 3 kB\nMemTotal:       16384 kB\nMemFree:  7 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 7 kB\n"), None);
        assert_eq!(limit("536870912\n"), Some(512 << 20));
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("0\n"), None);
        assert_eq!(limit(""), None);
        // How version 1 says that there is none: more than any machine has.
        assert!(limit("9223372036854771712\n").is_some_and(|limit| limit > 1 << 60));
    }

    #[test]
    fn the_least_counts() {
        let machine = "MemTotal: 1048576 kB\n";
        let of = |machine, limits: [&str; 2]| least(machine, &limits.map(str::to_owned));
        assert_eq!(of(machine, ["", ""]), 1 << 30);
        assert_eq!(of(machine, ["max\n", "4294967296\n"]), 1 << 30);
        assert_eq!(of(machine, ["536870912\n", ""]), 512 << 20);
        assert_eq!(of(machine, ["", "268435456\n"]), 256 << 20);
        assert_eq!(of("", ["", ""]), UNKNOWN);
        assert!(memory_bytes() > 0);
    }
}
