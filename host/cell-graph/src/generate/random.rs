//! Random choices of the generators of cells and graphs.

use crate::Random;

/// Draws from the workspace's [`Random`].
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Seeded.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end` (0 if `end` is 0).
    pub fn below(&mut self, end: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(end)) >> 64).unwrap_or(0)
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u32, most: u32) -> u32 {
        let span = u64::from(most.saturating_sub(least)) + 1;
        least + u32::try_from(self.below(span)).unwrap_or(0)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A float from −1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }
}
