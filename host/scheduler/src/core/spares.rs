//! Allocations of ended requests, kept for new ones: a steady load allocates nothing.
//!
//! The pools are bounded. Memory that the current load does not use is freed bit by bit.

use crate::core::lane::{Grouped, Moments, Progress};
use crate::core::request::{Chain, Links, Rare};
use crate::core::reserve;

/// So many of each kind are kept.
const KEPT_MAX: usize = 4096;
/// Unused spares that are always tolerated.
const IDLE_MIN: usize = 32;
/// So many are given up at once, at most.
const TRIMMED_MAX: usize = 256;
/// So many `handle`s are a long time.
const LONG: u64 = 1024;

/// Up to so many words there is a size for every few, above four to the octave.
const FEW_WORDS: usize = 64;
/// The steps of small sizes.
const FINE: usize = 4;
/// Of so many sizes the first that there is will do.
const NEAR: usize = 3;
/// What is larger is not kept: a request of so many nodes takes long anyway.
const WORDS_MAX: usize = 1024;
/// Words that are kept of each size.
const WORDS_KEPT_MAX: usize = 1 << 16;

/// Memory to be used again.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    grouped: Pool<Box<Grouped>>,
    links: Pool<Box<Links>>,
    rare: Pool<Box<Rare>>,
    words: Words,
}

/// Spares of a kind.
#[derive(Debug)]
struct Pool<T> {
    spares: Vec<T>,
    /// So many are in use.
    lent: usize,
    /// So many spares there were at least since it was last looked at.
    least: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { spares: Vec::new(), lent: 0, least: 0 }
    }
}

impl<T> Pool<T> {
    fn lend(&mut self) -> Option<T> {
        self.lent += 1;
        let spare = self.spares.pop();
        self.least = self.least.min(self.spares.len());
        spare
    }

    /// Takes one back, and keeps up to so many.
    fn take(&mut self, spare: T, most: usize) {
        self.lent = self.lent.saturating_sub(1);
        if self.spares.len() < most {
            reserve::in_table(&mut self.spares, 1);
            self.spares.push(spare);
        }
    }

    /// Frees some unused spares, if they are many beside those in use.
    fn trim(&mut self) {
        let idle = self.least.saturating_sub(self.lent / 8 + IDLE_MIN);
        self.spares.truncate(self.spares.len() - idle.div_ceil(2).min(TRIMMED_MAX));
        if self.spares.capacity() > 2 * self.spares.len() + IDLE_MIN {
            self.spares.shrink_to(self.spares.len() + self.spares.len() / 2);
        }
        self.least = self.spares.len();
    }
}

/// Runs of numbers, by size.
#[derive(Debug, Default)]
pub(crate) struct Words {
    sizes: Vec<Pool<Box<[u32]>>>,
}

impl Spares {
    /// To be called with each `handle`.
    #[inline]
    pub(crate) fn pass(&mut self, tick: u64) {
        if tick.is_multiple_of(LONG) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        self.grouped.trim();
        self.links.trim();
        self.rare.trim();
        self.words.sizes.iter_mut().for_each(Pool::trim);
    }

    pub(crate) const fn words(&mut self) -> &mut Words {
        &mut self.words
    }

    pub(crate) fn grouped(&mut self) -> (Box<Grouped>, &mut Words) {
        (self.grouped.lend().unwrap_or_default(), &mut self.words)
    }

    pub(crate) fn links(&mut self) -> Box<Links> {
        self.links.lend().unwrap_or_default()
    }

    pub(crate) fn rare(&mut self) -> Box<Rare> {
        self.rare.lend().unwrap_or_default()
    }

    /// Takes back what few requests have.
    pub(crate) fn take_rare(&mut self, mut rare: Box<Rare>) {
        rare.clear();
        self.rare.take(rare, KEPT_MAX);
    }

    /// Takes back what a lane held.
    #[inline]
    pub(crate) fn take_progress(&mut self, progress: Progress, moments: &mut Moments) {
        match progress {
            Progress::Front(_) => {}
            Progress::Each(mut nodes) => self.words.take(nodes.clear(moments)),
            Progress::Grouped(mut grouped) => {
                grouped.clear(moments).into_iter().for_each(|words| self.words.take(words));
                self.grouped.take(grouped, KEPT_MAX);
            }
        }
    }

    /// Takes back what a chain had to do with others.
    #[inline]
    pub(crate) fn take_links(&mut self, chain: &mut Chain) {
        if let Some(mut links) = chain.links.take() {
            links.clear();
            self.links.take(links, KEPT_MAX);
        }
    }
}

impl Words {
    /// At least so many, all 0.
    pub(crate) fn give(&mut self, count: usize) -> Box<[u32]> {
        let Some((size, words)) = size_of(count) else { return vec![0; count].into() };
        if size >= self.sizes.len() {
            self.sizes.resize_with(size + 1, Pool::default);
        }
        // What is a little larger will do, so that it is not kept for nothing.
        let near = self.sizes[size..].iter().take(NEAR).position(|pool| !pool.spares.is_empty());
        match self.sizes[size + near.unwrap_or(0)].lend() {
            Some(mut spare) => {
                spare.fill(0);
                spare
            }
            None => vec![0; words].into(),
        }
    }

    fn take(&mut self, words: Box<[u32]>) {
        let Some((size, exact)) = size_of(words.len()).filter(|_| !words.is_empty()) else { return };
        if let Some(pool) = self.sizes.get_mut(size).filter(|_| exact == words.len()) {
            pool.take(words, WORDS_KEPT_MAX / exact);
        }
    }
}

/// The number of the least size that has so many words, and its words; none if there is none.
const fn size_of(count: usize) -> Option<(usize, usize)> {
    const OF_FEW: usize = FEW_WORDS / FINE;
    if count > WORDS_MAX {
        return None;
    }
    if count <= FEW_WORDS {
        let size = count.div_ceil(FINE);
        return Some((size, size * FINE));
    }
    let octave = (count - 1).ilog2();
    let step = 1 << (octave - 2);
    let quarter = (count - (1 << octave)).div_ceil(step);
    Some((OF_FEW + (octave - FEW_WORDS.ilog2()) as usize * 4 + quarter, (1 << octave) + quarter * step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_tight_and_their_own() {
        for count in 1..=WORDS_MAX {
            let (size, words) = size_of(count).unwrap();
            assert!(words >= count && words - count < FINE.max(words / 5), "{count} words take {words}");
            assert_eq!(size_of(words), Some((size, words)), "a size is of its own size");
            assert!(size_of(words + 1).is_none_or(|(next, _)| next == size + 1), "{words} words");
        }
        assert_eq!(size_of(WORDS_MAX + 1), None);
    }

    #[test]
    fn what_nobody_asks_for_is_given_up() {
        let (mut pool, mut lent) = (Pool::default(), Vec::new());
        let lend = |pool: &mut Pool<u32>, lent: &mut Vec<u32>, count| (0..count).for_each(|_| lent.push(pool.lend().unwrap_or_default()));
        lend(&mut pool, &mut lent, 1000);
        lent.drain(..).for_each(|spare| pool.take(spare, KEPT_MAX));
        for _ in 0..20 {
            // A hundred are asked for again and again.
            lend(&mut pool, &mut lent, 100);
            lent.drain(..).for_each(|spare| pool.take(spare, KEPT_MAX));
            pool.trim();
        }
        assert!((100..=100 + IDLE_MIN).contains(&pool.spares.len()), "{} are kept", pool.spares.len());
        assert!(pool.spares.capacity() <= 2 * pool.spares.len() + IDLE_MIN);
        lend(&mut pool, &mut lent, 100);
        assert_eq!((pool.lent, lent.len()), (100, 100));
    }

    #[test]
    fn words_come_back_empty() {
        let mut words = Words::default();
        let mut first = words.give(19);
        first.fill(7);
        let (at, len) = (first.as_ptr(), first.len());
        words.take(first);
        let (more, less) = (words.give(len + 1), words.give(FINE));
        assert!(more.as_ptr() != at && less.as_ptr() != at, "one was too small, and one too large");
        let again = words.give(len - FINE);
        assert_eq!((again.as_ptr(), again.len(), again.iter().sum::<u32>()), (at, len, 0));
    }
}
