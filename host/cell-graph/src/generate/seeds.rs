//! Which seeds a test at random tries: `CELLWRIGHT_SEED` one of them again, `CELLWRIGHT_SEEDS` how many a long run takes.

use std::ops::Range;
use std::panic::{RefUnwindSafe, catch_unwind};

/// The first seed of long runs, far behind those that tests try by default.
const LONG: u64 = 1 << 32;

/// So many from 0, or the one in `CELLWRIGHT_SEED`.
///
/// # Panics
/// If that is no number.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    said("CELLWRIGHT_SEED").map_or(0..count, |seed| seed..seed.saturating_add(1))
}

/// As many as `CELLWRIGHT_SEEDS` says (`count`, if it says nothing), none of which a shorter run tries; or the one in `CELLWRIGHT_SEED`.
///
/// # Panics
/// If one of them is no number.
#[must_use]
pub fn more_seeds(count: u64) -> Range<u64> {
    let count = said("CELLWRIGHT_SEEDS").unwrap_or(count);
    said("CELLWRIGHT_SEED").map_or(LONG..LONG.saturating_add(count), |seed| seed..seed.saturating_add(1))
}

/// Tries each.
///
/// # Panics
/// If one fails; it says which.
pub fn try_each(seeds: Range<u64>, test: impl Fn(u64) + RefUnwindSafe) {
    for seed in seeds {
        assert!(catch_unwind(|| test(seed)).is_ok(), "failed with CELLWRIGHT_SEED={seed}");
    }
}

fn said(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is to be a number, it is `{text}`")))
}
