//! Which elements of a row could be its largest, where each is known within a bound: what is looked at while they pass by, some columns at a time.
//!
//! Where an element is known to lie within x ± e, no element below the largest x − e is the row's largest. All others are candidates, in the order
//! of their columns. What is not a number is one too: it compares with nothing.

use super::dispatch;
use crate::level::Level;

/// Candidates of a row that a thread keeps at most.
pub(crate) const CANDIDATES: usize = 512;
/// Words of what is known of a row before its candidates: how many there are, what the largest element reaches at least, and the row's part of a bound.
const HEAD: usize = 4;
/// Words of what is kept of a row.
pub(crate) const WORDS: usize = HEAD + 2 * CANDIDATES;
/// How many candidates there are of a row of which nothing can be told.
const LOST: u32 = u32::MAX;
/// Elements that are looked at together for a candidate.
const LOOK: usize = 32;
/// Numbers of a row at most that are taken for themselves, because they are much larger than all others.
pub(crate) const APART: usize = 8;
/// How many times as large as the largest that is not in any case.
const LARGE: f32 = 1.5;

/// A row's part of a bound: what a column's [`Columns`] are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) norm: f32,
    pub(crate) residual: f32,
}

/// The columns' parts of bounds, for each column. An element is known within `norm · reach.norm + residual · reach.residual + rest`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'a> {
    pub(crate) norms: &'a [f32],
    pub(crate) residuals: &'a [f32],
    pub(crate) rests: &'a [f32],
}

impl Columns<'_> {
    #[inline(always)]
    pub(crate) fn bound(&self, column: usize, reach: Reach) -> f32 {
        self.norms[column] * reach.norm + self.residuals[column] * reach.residual + self.rests[column]
    }
}

/// Whether an element could be so large. What is no number could.
#[inline(always)]
fn reaches(value: f32, bound: f32, least: f32) -> bool {
    let is_below = value + bound < least;
    !is_below
}

/// What is known of a row.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    head: &'a mut [u32],
    columns: &'a mut [u32],
    values: &'a mut [u32],
}

impl<'a> Candidates<'a> {
    /// As it stands in [`WORDS`] words.
    #[inline(always)]
    pub(crate) fn of(words: &'a mut [u32]) -> Self {
        let (head, rest) = words.split_at_mut(HEAD);
        let (columns, values) = rest.split_at_mut(CANDIDATES);
        Self { head, columns, values }
    }

    /// Nothing has passed yet of a row with that reach; without one nothing can be told of it.
    pub(crate) fn begin(&mut self, reach: Option<Reach>) {
        let Reach { norm, residual } = reach.unwrap_or(Reach { norm: 0.0, residual: 0.0 });
        self.head[0] = if reach.is_some() { 0 } else { LOST };
        self.head[1] = f32::NEG_INFINITY.to_bits();
        (self.head[2], self.head[3]) = (norm.to_bits(), residual.to_bits());
    }

    /// Whether nothing can be told of the row, or too little.
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.head[0] == LOST
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        if self.is_lost() { 0 } else { self.head[0] as usize }
    }

    /// What the largest element reaches at least.
    #[inline(always)]
    pub(crate) fn least(&self) -> f32 {
        f32::from_bits(self.head[1])
    }

    #[inline(always)]
    pub(crate) fn reach(&self) -> Reach {
        Reach { norm: f32::from_bits(self.head[2]), residual: f32::from_bits(self.head[3]) }
    }

    /// The columns of candidates, in order.
    pub(crate) fn columns(&self) -> &[u32] {
        &self.columns[..self.count()]
    }

    /// Keeps those candidates that could reach so much, after telling more of each: of a column and what is known of it, what is known now and within which bound. What the largest of them
    /// reaches at least.
    #[inline(always)]
    pub(crate) fn sift(&mut self, least: f32, mut tell: impl FnMut(usize, f32) -> (f32, f32)) -> f32 {
        let (mut kept, mut reached) = (0, least);
        for at in 0..self.count() {
            let column = self.columns[at];
            let (value, bound) = tell(column as usize, f32::from_bits(self.values[at]));
            if !reaches(value, bound, least) {
                continue;
            }
            if value - bound > reached {
                reached = value - bound;
            }
            (self.columns[kept], self.values[kept]) = (column, value.to_bits());
            kept += 1;
        }
        self.head[0] = kept as u32;
        reached
    }

    /// Takes a column in if its element could be the largest.
    #[inline(always)]
    fn enter(&mut self, column: usize, value: f32, bounds: &Columns<'_>) {
        let bound = bounds.bound(column, self.reach());
        if self.is_lost() || !reaches(value, bound, self.least()) {
            return;
        }
        if value - bound > self.least() {
            self.head[1] = (value - bound).to_bits();
        }
        if self.count() == CANDIDATES {
            let (least, reach) = (self.least(), self.reach());
            self.sift(least, |column, value| (value, bounds.bound(column, reach)));
            // So few are left out each time that this would go on and on.
            if self.count() > CANDIDATES / 4 * 3 {
                self.head[0] = LOST;
                return;
            }
        }
        let at = self.count();
        (self.columns[at], self.values[at]) = (column as u32, value.to_bits());
        self.head[0] += 1;
    }
}

/// Some columns of some rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looking<'a> {
    /// The rows' first elements of these columns, and floats from row to row.
    pub(crate) elements: (*const f32, usize),
    pub(crate) rows: usize,
    /// Which columns they are, from and to.
    pub(crate) columns: (usize, usize),
    /// Of all columns.
    pub(crate) bounds: Columns<'a>,
    /// What is known of each row, one behind the other.
    pub(crate) known: *mut u32,
}

/// Looks at some columns of some rows, behind those that were looked at before.
///
/// # Safety
/// There are these elements; what is known of the rows is there, nobody else's, and was begun. The processor has the level.
pub(crate) unsafe fn look(level: Level, looking: Looking<'_>) {
    let kernel = dispatch!(level, pass::<>, [], (looking: Looking<'_>));
    // SAFETY: the caller's promise.
    unsafe { kernel(looking) }
}

/// # Safety
/// As for [`look`].
#[inline(always)]
unsafe fn pass(looking: Looking<'_>) {
    let Looking { elements: (elements, stride), rows, columns: (first, end), bounds, known } = looking;
    let (norms, rest) = bounds.norms[first..end].as_chunks::<LOOK>();
    let (residuals, _) = bounds.residuals[first..end].as_chunks::<LOOK>();
    let (rests, _) = bounds.rests[first..end].as_chunks::<LOOK>();
    for row in 0..rows {
        // SAFETY: the caller's promise.
        let (x, words) = unsafe {
            (
                std::slice::from_raw_parts(elements.add(row * stride), end - first),
                std::slice::from_raw_parts_mut(known.add(row * WORDS), WORDS),
            )
        };
        let mut candidates = Candidates::of(words);
        if candidates.is_lost() {
            continue;
        }
        let Reach { norm, residual } = candidates.reach();
        let mut column = first;
        for (((x, norms), residuals), rests) in x.as_chunks::<LOOK>().0.iter().zip(norms).zip(residuals).zip(rests) {
            let least = candidates.least();
            let mut any = false;
            for at in 0..LOOK {
                let bound = norms[at] * norm + residuals[at] * residual + rests[at];
                any |= reaches(x[at], bound, least);
            }
            if any {
                (column..).zip(x).for_each(|(column, value)| candidates.enter(column, *value, &bounds));
            }
            column += LOOK;
        }
        let rest = &x[x.len() - rest.len()..];
        (column..).zip(rest).for_each(|(column, value)| candidates.enter(column, *value, &bounds));
    }
}

/// Numbers of a row that are taken for themselves: where they are, and by how much they are larger than the others are at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Apart {
    count: usize,
    places: [u32; APART],
    excesses: [f32; APART],
}

impl Apart {
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, f32)> {
        self.places.iter().zip(&self.excesses).take(self.count).map(|(place, excess)| (*place as usize, *excess))
    }
}

/// Copies a row, and cuts numbers off that are much larger than all others.
pub(crate) fn cut(level: Level, row: &[f32], into: &mut [f32]) -> Apart {
    let kernel = dispatch!(level, cut_off::<>, [], (row: &[f32], into: &mut [f32], apart: &mut Apart));
    let mut apart = Apart::default();
    // SAFETY: levels are no more than the processor's.
    unsafe { kernel(row, into, &mut apart) };
    apart
}

/// # Safety
/// None but the processor's level.
#[inline(always)]
unsafe fn cut_off(row: &[f32], into: &mut [f32], apart: &mut Apart) {
    into.copy_from_slice(row);
    // The largest magnitudes, in order, and where they are.
    let (mut most, mut places) = ([-1.0_f32; APART + 1], [0_u32; APART + 1]);
    let mut enter = |at: usize, value: f32| {
        if value > most[APART] {
            let mut place = APART;
            while place > 0 && value > most[place - 1] {
                (most[place], places[place]) = (most[place - 1], places[place - 1]);
                place -= 1;
            }
            (most[place], places[place]) = (value, at as u32);
        }
        most[APART]
    };
    let (chunks, rest) = row.as_chunks::<LOOK>();
    let mut last = -1.0;
    for (chunk, values) in chunks.iter().enumerate() {
        if values.iter().fold(false, |any, value| any | (value.abs() > last)) {
            values.iter().enumerate().for_each(|(at, value)| last = enter(chunk * LOOK + at, value.abs()));
        }
    }
    rest.iter().enumerate().for_each(|(at, value)| last = enter(chunks.len() * LOOK + at, value.abs()));
    apart.count = most[..APART].iter().take_while(|value| **value > last.max(0.0) * LARGE).count();
    let limit = most[apart.count].max(0.0);
    for at in 0..apart.count {
        let number = &mut into[places[at] as usize];
        let kept = limit.copysign(*number);
        (apart.places[at], apart.excesses[at]) = (places[at], *number - kept);
        *number = kept;
    }
}

/// What is known of a row's numbers: the root of the sum of their squares, the same of what rounding leaves of them, and the largest. A little more than they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norms {
    pub(crate) norm: f32,
    pub(crate) residual: f32,
    pub(crate) largest: f32,
}

/// Of a row, of which those numbers are rounded to whole steps: what they are multiplied by for that, and what a step is worth.
pub(crate) fn norms(level: Level, (row, rounded): (&[f32], &[f32]), steps: (f32, f32)) -> Norms {
    let kernel = dispatch!(level, norms_of::<>, [], (row: &[f32], rounded: &[f32], steps: (f32, f32), found: &mut Norms));
    let mut found = Norms { norm: 0.0, residual: 0.0, largest: 0.0 };
    // SAFETY: levels are no more than the processor's.
    unsafe { kernel(row, rounded, steps, &mut found) };
    found
}

/// # Safety
/// None but the processor's level.
#[inline(always)]
unsafe fn norms_of(row: &[f32], rounded: &[f32], (inverse, step): (f32, f32), found: &mut Norms) {
    const LANES: usize = 16;
    // What sums of squares lose by rounding is less than a thousandth.
    const MORE: f32 = 1.001;
    let (mut squares, mut residuals, mut largest) = ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
    let mut add = |lane: usize, number: f32, rounded: f32| {
        let left = rounded - step * (rounded * inverse).round_ties_even();
        squares[lane] += number * number;
        residuals[lane] += left * left;
        largest[lane] = largest[lane].max(number.abs());
    };
    let ((numbers, number_rest), (chunks, rest)) = (row.as_chunks::<LANES>(), rounded.as_chunks::<LANES>());
    for (numbers, chunk) in numbers.iter().zip(chunks) {
        for lane in 0..LANES {
            add(lane, numbers[lane], chunk[lane]);
        }
    }
    number_rest.iter().zip(rest).enumerate().for_each(|(lane, (number, rounded))| add(lane, *number, *rounded));
    let root = |sums: [f32; LANES]| sums.iter().sum::<f32>().sqrt() * MORE;
    *found = Norms { norm: root(squares), residual: root(residuals), largest: largest.iter().fold(0.0, |most, lane| most.max(*lane)) };
}

/// Rounds a column to whole steps: what its numbers are multiplied by for that and what a step is worth, first of coarse steps, which are only measured, then of those that are kept.
/// The sums of the squares of its numbers, and of what rounding leaves of them in either way.
pub(crate) fn measure(level: Level, column: &[f32], steps: [(f32, f32); 2], fine: &mut [i16]) -> [f64; 3] {
    let kernel = dispatch!(level, measured::<>, [], (column: &[f32], steps: [(f32, f32); 2], fine: &mut [i16], found: &mut [f64; 3]));
    let mut found = [0.0; 3];
    // SAFETY: levels are no more than the processor's.
    unsafe { kernel(column, steps, fine, &mut found) };
    found
}

/// # Safety
/// None but the processor's level.
#[inline(always)]
unsafe fn measured(column: &[f32], [coarse, fine]: [(f32, f32); 2], integers: &mut [i16], found: &mut [f64; 3]) {
    const LANES: usize = 16;
    let mut sums = [[0.0_f64; LANES]; 3];
    let mut add = |lane: usize, number: f32, integer: &mut i16| {
        let steps = (number * fine.0).round_ties_even();
        // Numbers that are none become zeros here.
        *integer = steps as i16;
        let left = |steps: f32, step: f32| f64::from(number) - f64::from(steps) * f64::from(step);
        let all = [f64::from(number), left((number * coarse.0).round_ties_even(), coarse.1), left(steps, fine.1)];
        sums.iter_mut().zip(all).for_each(|(sums, value)| sums[lane] += value * value);
    };
    let ((chunks, rest), (kept, kept_rest)) = (column.as_chunks::<LANES>(), integers.as_chunks_mut::<LANES>());
    for (numbers, kept) in chunks.iter().zip(kept) {
        for lane in 0..LANES {
            add(lane, numbers[lane], &mut kept[lane]);
        }
    }
    rest.iter().zip(kept_rest).enumerate().for_each(|(lane, (number, kept))| add(lane, *number, kept));
    *found = sums.map(|sums| sums.iter().sum());
}

/// The sum of products of a row with integers.
pub(crate) fn dot(level: Level, row: &[f32], integers: &[i16]) -> f32 {
    let kernel = dispatch!(level, dot_of::<>, [], (row: &[f32], integers: &[i16], sum: &mut f32));
    let mut sum = 0.0;
    // SAFETY: levels are no more than the processor's.
    unsafe { kernel(row, integers, &mut sum) };
    sum
}

/// # Safety
/// None but the processor's level.
#[inline(always)]
unsafe fn dot_of(row: &[f32], integers: &[i16], sum: &mut f32) {
    // Four vectors, so that their sums need not wait for one another.
    const LANES: usize = 64;
    let mut sums = [0.0_f32; LANES];
    let ((rows, row_rest), (chunks, rest)) = (row.as_chunks::<LANES>(), integers.as_chunks::<LANES>());
    for (x, w) in rows.iter().zip(chunks) {
        for lane in 0..LANES {
            sums[lane] = x[lane].mul_add(f32::from(w[lane]), sums[lane]);
        }
    }
    for ((x, w), lane) in row_rest.iter().zip(rest).zip(&mut sums) {
        *lane = x.mul_add(f32::from(*w), *lane);
    }
    *sum = sums.iter().sum();
}

#[cfg(test)]
mod tests;
