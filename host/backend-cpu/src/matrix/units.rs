//! How threads share the columns of a product.
//!
//! Each thread has a contiguous part of the columns. The last quarter of every part may be taken by
//! any thread that is done with its own, because threads that share caches are seldom equally fast.
//!
//! The direction changes from one step of a cell to the next. The weights that were read last are
//! still in a near cache and are read first. Of weights twice as large as such a cache, half are
//! then there already. First halves of cells do not turn: other weights are read between two of
//! them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of how many units of a part one is left to whoever is done first.
const REST: usize = 4;
/// Into how many takings all rests are divided at least, if they have as many units.
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
    let rest = (part.len() + REST / 2) / REST;
    if backwards {
        (part.start + rest..part.end, part.start..part.start + rest)
    } else {
        (part.start..part.end - rest, part.end - rest..part.end)
    }
}

impl Rest<'_> {
    /// Units side by side that nobody has taken, of this thread's part first: so many, which must be the same for all threads, or one, if there are too few to keep all of them
    /// busy to the end; and more of very many.
    fn take(&self, most: usize) -> Option<Range<usize>> {
        let Sharing { thread: own, threads, backwards, taken } = self.sharing;
        let bits = u64::BITS as usize / threads;
        for thread in (own..threads).chain(0..own) {
            let (_, rest) = settle(share(self.units, thread, threads), backwards);
            let each = rest.len().div_ceil(bits).max(if rest.len() * threads < TAKES_LEAST * most { 1 } else { most });
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
        if threads == 1 || threads > u64::BITS as usize {
            return Self { own: part, backwards, rest: None };
        }
        Self { own: settle(part, backwards).0, backwards, rest: Some(Rest { units, sharing }) }
    }

    /// Those that are this thread's for certain.
    pub(super) const fn settled(self) -> Range<usize> {
        self.own
    }

    /// The same units, all of which are settled, in the other direction or not.
    pub(super) fn turned(self, is_turned: bool) -> Self {
        debug_assert!(self.rest.is_none() || !is_turned, "others take them in this direction");
        Self { backwards: self.backwards != is_turned, ..self }
    }

    /// Whether there are none for certain.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.rest.is_none()
    }

    /// All units, so many that lie side by side at once, or fewer, and which begin those that come after them.
    pub(super) fn each(self, most: usize) -> impl Iterator<Item = (Range<usize>, Option<usize>)> + use<'a> {
        let mut all = self.together(most);
        let mut next = all.next();
        std::iter::from_fn(move || {
            let units = next.take()?;
            next = all.next();
            Some((units, next.as_ref().map(|next| next.start)))
        })
    }

    fn together(self, most: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
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

    const UNITS: [usize; 8] = [1, 2, 7, 16, 22, 86, 128, 938];

    /// Every number of units and threads, in both directions.
    fn all() -> impl Iterator<Item = (usize, usize, bool)> {
        let threads = |units: usize| [1, 2, 3, 5, 8, 70].map(|threads| (units, threads));
        UNITS.into_iter().flat_map(threads).flat_map(|(units, threads)| [false, true].map(|backwards| (units, threads, backwards)))
    }

    type Each = Box<dyn Iterator<Item = (Range<usize>, Option<usize>)> + Send>;

    /// What each thread takes, so many at once.
    fn each((units, threads, backwards): (usize, usize, bool), most: usize) -> Vec<Each> {
        let taken: &'static AtomicU64 = Box::leak(Box::default());
        let of = |thread| Units::shared(units, Sharing { thread, threads, backwards, taken }).each(most);
        (0..threads).map(|thread| Box::new(of(thread)) as Each).collect()
    }

    #[test]
    fn each_is_taken_once_whoever_is_late() {
        for (case, most) in all().flat_map(|case| [(case, 1), (case, 2)]) {
            let (count, threads, _) = case;
            let mut each = each(case, most);
            let (mut seen, mut expected, mut pairs) = (vec![0; count], vec![None; threads], 0);
            // The first is kept from its work, the others go on in turns.
            for thread in (0..count).flat_map(|_| 1..threads).chain((0..=count).map(|_| 0)) {
                let Some((units, next)) = each[thread].next() else { continue };
                assert!(expected[thread].is_none_or(|expected| expected == units.start), "what comes next is known");
                assert!((1..=most).contains(&units.len()));
                (expected[thread], pairs) = (next, pairs + usize::from(units.len() == 2));
                units.for_each(|unit| seen[unit] += 1);
            }
            assert!(seen.iter().all(|times| *times == 1), "{case:?}, {most} at once: {seen:?}");
            assert!(most == 1 || pairs >= count / 4 || count < 3 * threads, "{case:?}: {pairs} pairs");
            assert!(most == 1 || threads > 1 || pairs == count / 2, "{case:?}: one thread has pairs alone");
        }
    }

    #[test]
    fn each_is_taken_once_by_threads_that_run_beside_one_another() {
        for case in all().filter(|(_, threads, _)| *threads <= 8) {
            let taken: Vec<Vec<usize>> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    each(case, 2).into_iter().map(|each| scope.spawn(|| each.flat_map(|(units, _)| units).collect())).collect();
                threads.into_iter().map(|thread| thread.join().expect("it takes units")).collect()
            });
            let mut all = taken.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..case.0), "{case:?}: {taken:?}");
        }
    }

    #[test]
    fn threads_that_are_equally_fast_read_parts_of_their_own_there_and_back() {
        for (count, threads, _) in all().filter(|(count, threads, _)| count % threads == 0) {
            let in_turns = |backwards: bool| {
                let mut each = each((count, threads, backwards), 1);
                let mut read = vec![Vec::new(); threads];
                for _ in 0..count / threads {
                    (0..threads).for_each(|thread| read[thread].extend(each[thread].next().map(|(units, _)| units.start)));
                }
                read
            };
            let (there, mut back) = (in_turns(false), in_turns(true));
            (0..threads).for_each(|thread| assert!(there[thread].iter().copied().eq(share(count, thread, threads)), "{there:?}"));
            back.iter_mut().for_each(|units| units.reverse());
            assert_eq!(there, back);
        }
    }

    #[test]
    fn who_is_done_takes_the_rest_of_who_is_not() {
        let mut two = each((16, 2, false), 1).into_iter().map(|each| each.map(|(units, _)| units.start));
        let (first, second) = (two.next().expect("two"), two.next().expect("two"));
        assert_eq!(second.collect::<Vec<_>>(), [8, 9, 10, 11, 12, 13, 14, 15, 6, 7]);
        assert_eq!(first.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}
