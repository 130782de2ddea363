//! What a host can know of the machine that it and its devices share.

/// The machine's memory in bytes, as far as it says; 8 GiB if it does not.
#[must_use]
pub fn memory_bytes() -> u64 {
    let said = std::fs::read_to_string("/proc/meminfo").ok();
    let kibibytes = said.as_deref().and_then(|said| {
        let line = said.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    });
    kibibytes.map_or(8 << 30, |kibibytes| kibibytes.saturating_mul(1024))
}
