//! Seeded choices: the same seed, the same test.

use cellwright_cell_graph::Random;

/// Throws of the workspace's generator.
#[derive(Debug)]
pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed ^ 0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// 0 to `below` − 1.
    pub(crate) fn below(&mut self, below: u32) -> u32 {
        (self.next() % u64::from(below.max(1))) as u32
    }

    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` throws.
    pub(crate) fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u32) as usize]
    }
}
