//! What is kept of rows while their elements pass by, some columns at a time: the first few in an order, and where they stood.
//!
//! Elements pass in the order of their columns, so what is kept in the end is what [`super::rows`] finds in a whole row: ties, NaN and all. A row
//! that is in the making need never be there as a whole.

use std::ops::Range;

use super::convert::Number;
use super::dispatch;
use super::rows::RowOp;
use crate::level::Level;

/// More are not kept in this way: each that enters moves those behind it.
pub(crate) const KEPT_MOST: usize = 64;
/// Elements that are looked at together for one that enters.
const LOOK: usize = 32;

/// Some columns of some rows, and what is kept of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing {
    /// The rows' first elements of these columns, and floats from row to row.
    pub(crate) elements: (*const f32, usize),
    pub(crate) rows: usize,
    /// Which columns they are, from and to.
    pub(crate) columns: (usize, usize),
    /// What is kept of each row, one behind the other: [`Keeper::words`] each.
    pub(crate) kept: *mut u32,
    /// How many are kept.
    pub(crate) k: usize,
}

/// # Safety
/// There are these elements, and what is kept is there, nobody else's, and was begun ([`Keeper::begin`]). The processor has what the kernel was
/// compiled for.
type PassKernel = unsafe fn(Passing);

/// Keeps the first `k` of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeper {
    k: usize,
    pass: PassKernel,
    enter: fn(&mut Kept<'_>, f32, u32),
}

impl Keeper {
    /// What keeps what that operation finds; none if nothing does.
    pub(crate) fn new(op: RowOp, k: usize, level: Level) -> Option<Self> {
        match op {
            _ if !(1..=KEPT_MOST).contains(&k) => None,
            RowOp::ArgMax { last: false } | RowOp::TopK { largest: true } => Some(Self::ordered::<LargestFirst>(k, level)),
            RowOp::ArgMax { last: true } => Some(Self::ordered::<LargestLast>(k, level)),
            RowOp::TopK { largest: false } => Some(Self::ordered::<SmallestFirst>(k, level)),
            _ => None,
        }
    }

    fn ordered<O: Order>(k: usize, level: Level) -> Self {
        Self { k, pass: dispatch!(level, pass::<O>, [O: Order], (passing: Passing)), enter: enter::<O> }
    }

    /// What keeps one more.
    pub(crate) const fn one_more(&self) -> Self {
        Self { k: self.k + 1, ..*self }
    }

    /// Words of what is kept of a row: how many there are, then elements, then columns.
    pub(crate) const fn words(&self) -> usize {
        1 + 2 * self.k
    }

    /// Nothing has passed yet of a row.
    pub(crate) fn begin(kept: &mut [u32]) {
        kept[0] = 0;
    }

    /// Nothing has passed yet of any of these rows, of which so much is kept one behind the other.
    ///
    /// # Safety
    /// There is so much, and it is nobody else's.
    pub(crate) unsafe fn begin_rows(&self, kept: *mut u32, rows: usize) {
        let words = self.words();
        for row in 0..rows {
            // SAFETY: the caller's promise.
            Self::begin(unsafe { std::slice::from_raw_parts_mut(kept.wrapping_add(row * words), words) });
        }
    }

    /// Takes one element in, behind those that were taken in before.
    pub(crate) fn take(&self, kept: &mut [u32], value: f32, column: u32) {
        (self.enter)(&mut Kept::of(kept), value, column);
    }

    /// Looks at some columns of some rows, behind those that were looked at before.
    ///
    /// # Safety
    /// There are these elements, `stride` floats apart, and nobody else uses what is kept.
    pub(crate) unsafe fn pass(&self, (elements, stride): (*mut f32, usize), rows: usize, columns: &Range<usize>, kept: *mut u32) {
        let passing = Passing { elements: (elements, stride), rows, columns: (columns.start, columns.end), kept, k: self.k };
        // SAFETY: the caller's promise; the kernel was chosen for this processor.
        unsafe { (self.pass)(passing) }
    }

    /// Adds what is kept of later columns of the same row.
    pub(crate) fn join(&self, kept: &mut [u32], later: &mut [u32]) {
        let (mut kept, later) = (Kept::of(kept), Kept::of(later));
        for at in 0..later.count() {
            (self.enter)(&mut kept, later.value(at), later.columns[at]);
        }
    }

    /// What was kept, first things first: elements and their columns.
    pub(crate) fn found<'a>(&self, kept: &'a mut [u32]) -> impl Iterator<Item = (f32, i64)> + use<'a> {
        let kept = Kept::of(kept);
        (0..kept.count()).map(move |at| (kept.value(at), i64::from(kept.columns[at])))
    }
}

/// What is kept of a row.
struct Kept<'a> {
    count: &'a mut u32,
    values: &'a mut [u32],
    columns: &'a mut [u32],
}

impl<'a> Kept<'a> {
    #[inline(always)]
    fn of(words: &'a mut [u32]) -> Self {
        let k = words.len() / 2;
        let (count, rest) = words.split_at_mut(1);
        let (values, columns) = rest.split_at_mut(k);
        Self { count: &mut count[0], values, columns }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        *self.count as usize
    }

    #[inline(always)]
    fn value(&self, at: usize) -> f32 {
        f32::from_bits(self.values[at])
    }
}

/// Which of two elements comes first.
trait Order {
    /// Whether an element comes before one that stands to the left of it.
    fn is_before(value: f32, earlier: f32) -> bool;
}

/// The largest first, and of equal ones the first. NaN is the largest.
struct LargestFirst;
/// The largest first, and of equal ones the last. NaN is the largest.
struct LargestLast;
/// The smallest first, and of equal ones the first. NaN is the largest.
struct SmallestFirst;

impl Order for LargestFirst {
    #[inline(always)]
    fn is_before(value: f32, earlier: f32) -> bool {
        value.is_above_with_nan(earlier)
    }
}

impl Order for LargestLast {
    #[inline(always)]
    fn is_before(value: f32, earlier: f32) -> bool {
        !earlier.is_above_with_nan(value)
    }
}

impl Order for SmallestFirst {
    #[inline(always)]
    fn is_before(value: f32, earlier: f32) -> bool {
        earlier.is_above_with_nan(value)
    }
}

/// Takes an element in if it is one of the first.
#[inline(always)]
fn enter<O: Order>(kept: &mut Kept<'_>, value: f32, column: u32) {
    let (count, k) = (kept.count(), kept.values.len());
    if count == k && !O::is_before(value, kept.value(k - 1)) {
        return;
    }
    let mut at = count.min(k - 1);
    while at > 0 && O::is_before(value, kept.value(at - 1)) {
        kept.values[at] = kept.values[at - 1];
        kept.columns[at] = kept.columns[at - 1];
        at -= 1;
    }
    kept.values[at] = value.to_bits();
    kept.columns[at] = column;
    *kept.count = (count + 1).min(k) as u32;
}

/// # Safety
/// As for [`PassKernel`].
#[inline(always)]
unsafe fn pass<O: Order>(passing: Passing) {
    let Passing { elements: (elements, stride), rows, columns: (first, end), kept, k } = passing;
    let words = 1 + 2 * k;
    for row in 0..rows {
        // SAFETY: the caller's promise.
        let (x, words) = unsafe {
            (
                std::slice::from_raw_parts(elements.add(row * stride), end - first),
                std::slice::from_raw_parts_mut(kept.add(row * words), words),
            )
        };
        let mut kept = Kept::of(words);
        let mut column = first as u32;
        let (chunks, rest) = x.as_chunks::<LOOK>();
        for chunk in chunks {
            // Seldom does one enter, once the first have passed.
            let any_enters = kept.count() < k || {
                let last = kept.value(k - 1);
                chunk.iter().fold(false, |any, value| any | O::is_before(*value, last))
            };
            if any_enters {
                (column..).zip(chunk).for_each(|(column, value)| enter::<O>(&mut kept, *value, column));
            }
            column += LOOK as u32;
        }
        (column..).zip(rest).for_each(|(column, value)| enter::<O>(&mut kept, *value, column));
    }
}

#[cfg(test)]
mod tests;
