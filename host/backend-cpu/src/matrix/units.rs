//! How threads share the columns of a product, by units.
//!
//! Each has a part of its own, which lies together. Most of that it computes in any case; the rest of it anybody may take who is done with everything of his own,
//! because threads that read the same caches are seldom equally fast. From one time to the next the direction changes, so that what was read last, and is still in a near
//! cache, is read first: of weights that are twice as large as such a cache half is then there already.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of how many units of a part one is left to whoever is done first.
const REST: usize = 4;
/// Into how many takings the rest of a part is divided at least, if it has as many units.
const TAKES_LEAST: usize = 4;

/// The part of so many units that one of several threads has.
pub(super) const fn share(units: usize, thread: usize, threads: usize) -> Range<usize> {
    units * thread / threads..units * (thread + 1) / threads
}

/// Who shares columns, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing<'a> {
    pub(crate) thread: usize,
    pub(crate) threads: usize,
    /// Whether everybody begins with the last of his columns.
    pub(crate) backwards: bool,
    /// What was taken of the rests, for all threads, from zero on: as many bits for each part as its rest may be divided into.
    pub(crate) taken: &'a AtomicU64,
}

/// Units that one of several threads computes: some for certain, and then what is left of anybody's.
#[derive(Clone, Debug)]
pub(crate) struct Units<'a> {
    own: Range<usize>,
    backwards: bool,
    rest: Option<Rest<'a>>,
}

/// Units that are nobody's yet.
#[derive(Clone, Debug)]
struct Rest<'a> {
    /// All of the product's.
    units: usize,
    sharing: Sharing<'a>,
}

/// The units of a part that are its thread's for certain, and the rest.
fn settle(part: Range<usize>, backwards: bool) -> (Range<usize>, Range<usize>) {
    let rest = part.len() / REST;
    if backwards {
        (part.start + rest..part.end, part.start..part.start + rest)
    } else {
        (part.start..part.end - rest, part.end - rest..part.end)
    }
}

impl Rest<'_> {
    /// Units side by side that nobody has taken, of this thread's part first: so many, or one, if there are too few to keep all threads busy to the end; and more of very
    /// many.
    fn take(&self, most: usize) -> Option<Range<usize>> {
        let Sharing { thread: own, threads, backwards, taken } = self.sharing;
        let bits = u64::BITS as usize / threads;
        for thread in (own..threads).chain(0..own) {
            let (_, rest) = settle(share(self.units, thread, threads), backwards);
            let each = rest.len().div_ceil(bits).max(if rest.len() < TAKES_LEAST * most { 1 } else { most });
            let count = rest.len().div_ceil(each);
            for at in 0..count {
                let bit = 1_u64 << (thread * bits + at);
                if taken.load(Ordering::Relaxed) & bit == 0 && taken.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                    let first = rest.start + each * if backwards { count - 1 - at } else { at };
                    return Some(first..(first + each).min(rest.end));
                }
            }
        }
        None
    }
}

impl<'a> Units<'a> {
    /// Those, and no others.
    pub(crate) const fn own(own: Range<usize>) -> Self {
        Self { own, backwards: false, rest: None }
    }

    /// What a thread has of so many.
    pub(super) fn shared(units: usize, sharing: Sharing<'a>) -> Self {
        let Sharing { thread, threads, backwards, .. } = sharing;
        let part = share(units, thread, threads);
        if threads > u64::BITS as usize {
            return Self { own: part, backwards, rest: None };
        }
        Self { own: settle(part, backwards).0, backwards, rest: Some(Rest { units, sharing }) }
    }

    /// Those that are this thread's for certain.
    pub(super) const fn settled(self) -> Range<usize> {
        self.own
    }

    /// The same units, if all are settled, in the other direction.
    pub(super) const fn turned(self, is_turned: bool) -> Self {
        Self { backwards: self.backwards != is_turned, ..self }
    }

    /// Whether there are none for certain.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.rest.is_none()
    }

    /// Every unit, and the one that comes after it.
    pub(super) fn each(self) -> impl Iterator<Item = (usize, Option<usize>)> + use<'a> {
        let mut units = self.together(1).map(|units| units.start);
        let mut next = units.next();
        std::iter::from_fn(move || {
            let unit = next?;
            next = units.next();
            Some((unit, next))
        })
    }

    /// All units, so many that lie side by side at once, or fewer.
    pub(super) fn together(self, most: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let Self { own: mut units, backwards, rest } = self;
        std::iter::from_fn(move || {
            if units.is_empty() {
                units = rest.as_ref()?.take(most)?;
            }
            let count = most.min(units.len());
            let (taken, left) = if backwards {
                (units.end - count..units.end, units.start..units.end - count)
            } else {
                (units.start..units.start + count, units.start + count..units.end)
            };
            units = left;
            Some(taken)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: [usize; 7] = [1, 2, 7, 22, 86, 128, 938];

    /// Every number of units and threads, in both directions.
    fn all() -> impl Iterator<Item = (usize, usize, bool)> {
        UNITS
            .into_iter()
            .flat_map(|units| [1, 2, 3, 5, 70].map(|threads| (units, threads)))
            .flat_map(|(units, threads)| [false, true].map(|backwards| (units, threads, backwards)))
    }

    fn units<'a>(units: usize, threads: usize, backwards: bool, taken: &'a AtomicU64) -> Vec<Units<'a>> {
        (0..threads).map(|thread| Units::shared(units, Sharing { thread, threads, backwards, taken })).collect()
    }

    #[test]
    fn each_is_taken_once_whoever_is_late() {
        for (count, threads, backwards) in all() {
            let taken = AtomicU64::new(0);
            let mut each: Vec<_> = units(count, threads, backwards, &taken).into_iter().map(Units::each).collect();
            let (mut seen, mut expected) = (vec![0; count], vec![None; threads]);
            // The first is kept from its work, the others go on in turns.
            for thread in (0..count).flat_map(|_| 1..threads).chain((0..=count).map(|_| 0)) {
                let Some((unit, next)) = each[thread].next() else { continue };
                assert!(expected[thread].is_none_or(|expected| expected == unit), "what comes next is known");
                (seen[unit], expected[thread]) = (seen[unit] + 1, next);
            }
            assert!(seen.iter().all(|times| *times == 1), "{count} units, {threads} threads, backwards: {backwards}: {seen:?}");
        }
    }

    #[test]
    fn several_lie_side_by_side_and_each_is_taken_once() {
        for (count, threads, backwards) in all() {
            let taken = AtomicU64::new(0);
            let mut together: Vec<_> = units(count, threads, backwards, &taken).into_iter().map(|units| units.together(2)).collect();
            let (mut seen, mut pairs) = (vec![0; count], 0);
            for thread in (0..count).flat_map(|_| 1..threads).chain((0..=count).map(|_| 0)) {
                let Some(units) = together[thread].next() else { continue };
                assert!((1..=2).contains(&units.len()));
                pairs += usize::from(units.len() == 2);
                units.for_each(|unit| seen[unit] += 1);
            }
            assert!(seen.iter().all(|times| *times == 1), "{count} units, {threads} threads: {seen:?}");
            assert!(pairs >= count / 4 || count < 6 * threads, "{count} units, {threads} threads: {pairs} pairs");
        }
    }

    #[test]
    fn a_thread_that_nobody_helps_reads_the_same_weights_there_and_back() {
        for (count, threads, _) in all() {
            let in_turns = |backwards: bool| {
                let taken = AtomicU64::new(0);
                let mut each: Vec<_> = units(count, threads, backwards, &taken).into_iter().map(Units::each).collect();
                // As if all were equally fast: what they take last they take at the same time.
                let mut read = vec![Vec::new(); threads];
                for _ in 0..count.div_ceil(threads) {
                    (0..threads).for_each(|thread| read[thread].extend(each[thread].next().map(|(unit, _)| unit)));
                }
                read
            };
            let (there, mut back) = (in_turns(false), in_turns(true));
            if count % threads == 0 {
                (0..threads).for_each(|thread| assert!(there[thread].iter().copied().eq(share(count, thread, threads)), "{there:?}"));
                back.iter_mut().for_each(|units| units.reverse());
                assert_eq!(there, back);
            }
        }
    }

    #[test]
    fn who_is_done_takes_the_rest_of_who_is_not() {
        let taken = AtomicU64::new(0);
        let mut two = units(16, 2, false, &taken).into_iter().map(|units| units.together(1).map(|unit| unit.start));
        let (first, second) = (two.next().expect("two"), two.next().expect("two"));
        assert_eq!(second.collect::<Vec<_>>(), [8, 9, 10, 11, 12, 13, 14, 15, 6, 7]);
        assert_eq!(first.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}
