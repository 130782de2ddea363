//! What requests that have left held beside the tables, kept for those that come: a crowd that stays as large as it is allocates nothing.
//!
//! It owns memory that nobody uses, and never more of it than a bound.

use crate::lane::{Grouped, Moments, Progress};
use crate::request::{Chain, Links, Rare};

/// So many of each kind are kept.
const KEPT_MAX: usize = 4096;

/// Up to so many words there is a size for every few, above four to the octave.
const FEW_WORDS: usize = 64;
/// The steps of small sizes.
const FINE: usize = 4;
/// What is larger is not kept: whoever has so many nodes is not in a hurry.
const WORDS_MAX: usize = 1024;
/// Words that are kept of each size.
const WORDS_KEPT_MAX: usize = 1 << 16;

/// Memory to be used again.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the boxes are what is kept")]
pub(crate) struct Spares {
    grouped: Vec<Box<Grouped>>,
    links: Vec<Box<Links>>,
    rare: Vec<Box<Rare>>,
    words: Words,
}

/// Runs of numbers, by size.
#[derive(Debug, Default)]
pub(crate) struct Words {
    sizes: Vec<Vec<Box<[u32]>>>,
}

impl Spares {
    pub(crate) const fn words(&mut self) -> &mut Words {
        &mut self.words
    }

    pub(crate) fn grouped(&mut self) -> (Box<Grouped>, &mut Words) {
        (self.grouped.pop().unwrap_or_default(), &mut self.words)
    }

    pub(crate) fn links(&mut self) -> Box<Links> {
        self.links.pop().unwrap_or_default()
    }

    pub(crate) fn rare(&mut self) -> Box<Rare> {
        self.rare.pop().unwrap_or_default()
    }

    /// Takes back what few requests have.
    pub(crate) fn take_rare(&mut self, mut rare: Box<Rare>) {
        rare.clear();
        keep(&mut self.rare, rare);
    }

    /// Takes back what a lane held.
    pub(crate) fn take_progress(&mut self, progress: Progress, moments: &mut Moments) {
        match progress {
            Progress::Front(_) => {}
            Progress::Each(mut nodes) => self.words.take(nodes.clear(moments)),
            Progress::Grouped(mut grouped) => {
                grouped.clear(moments).into_iter().for_each(|words| self.words.take(words));
                keep(&mut self.grouped, grouped);
            }
        }
    }

    /// Takes back what a chain had to do with others.
    pub(crate) fn take_links(&mut self, chain: &mut Chain) {
        if let Some(mut links) = chain.links.take() {
            links.clear();
            keep(&mut self.links, links);
        }
    }
}

fn keep<T>(spares: &mut Vec<T>, spare: T) {
    if spares.len() < KEPT_MAX {
        spares.push(spare);
    }
}

impl Words {
    /// At least so many, all 0.
    pub(crate) fn give(&mut self, count: usize) -> Box<[u32]> {
        let Some((size, words)) = size_of(count) else { return vec![0; count].into() };
        match self.sizes.get_mut(size).and_then(Vec::pop) {
            Some(mut spare) => {
                spare.fill(0);
                spare
            }
            None => vec![0; words].into(),
        }
    }

    fn take(&mut self, words: Box<[u32]>) {
        let Some((size, exact)) = size_of(words.len()).filter(|_| !words.is_empty()) else { return };
        if size >= self.sizes.len() {
            self.sizes.resize_with(size + 1, Vec::new);
        }
        if exact == words.len() && self.sizes[size].len() < WORDS_KEPT_MAX / exact {
            self.sizes[size].push(words);
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
    fn words_come_back_empty() {
        let mut words = Words::default();
        let mut first = words.give(19);
        first.fill(7);
        let (at, len) = (first.as_ptr(), first.len());
        words.take(first);
        let again = words.give(len - 1);
        assert_eq!((again.as_ptr(), again.iter().sum::<u32>()), (at, 0));
    }
}
