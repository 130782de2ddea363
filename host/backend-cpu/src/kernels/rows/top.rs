//! The first elements of a stretch in an order, and where they stood.
//!
//! Nothing is kept beside the results. Few are kept sorted while elements pass by; many in a heap, of which the last in the order is the root, since
//! whatever order elements come in, no row may take longer than the logarithm of how many are kept, for each.

use std::marker::PhantomData;

use super::super::convert::Number;
use super::super::running::KEPT_MOST;
use super::{Shape, Stretch};

pub(super) struct TopK<T, const LARGEST: bool>(PhantomData<T>);

impl<T: Number, const LARGEST: bool> Stretch for TopK<T, LARGEST> {
    type In = T;
    type Out = T;
    #[inline(always)]
    fn results(shape: &Shape) -> usize {
        shape.k
    }
    #[inline(always)]
    fn apply(_: &Shape, x: &[T], y: &mut [T], positions: &mut [i64]) {
        if y.len() <= KEPT_MOST {
            keep_sorted(x, y, positions, Self::is_before);
        } else {
            Heap { values: y, positions, is_before: Self::is_before }.keep(x);
        }
    }
}

impl<T: Number, const LARGEST: bool> TopK<T, LARGEST> {
    #[inline(always)]
    fn is_before(a: T, b: T) -> bool {
        if LARGEST { a.is_above_with_nan(b) } else { b.is_above_with_nan(a) }
    }
}

/// What is kept so far stands sorted at the front; a later equal one goes behind it.
#[inline(always)]
fn keep_sorted<T: Number>(x: &[T], y: &mut [T], positions: &mut [i64], is_before: impl Fn(T, T) -> bool) {
    let mut kept = 0;
    for (position, value) in x.iter().enumerate() {
        if kept == y.len() && (kept == 0 || !is_before(*value, y[kept - 1])) {
            continue;
        }
        let at = y[..kept].partition_point(|other| !is_before(*value, *other));
        kept = (kept + 1).min(y.len());
        y.copy_within(at..kept - 1, at + 1);
        positions.copy_within(at..kept - 1, at + 1);
        y[at] = *value;
        positions[at] = position as i64;
    }
}

/// What is kept so far: the last in the order first, each before those at twice its place and behind that.
struct Heap<'a, T, B> {
    values: &'a mut [T],
    positions: &'a mut [i64],
    is_before: B,
}

impl<T: Number, B: Fn(T, T) -> bool> Heap<'_, T, B> {
    /// Keeps the first, and puts them in order.
    #[inline(always)]
    fn keep(mut self, x: &[T]) {
        let k = self.values.len();
        let (first, others) = x.split_at(k);
        self.values.copy_from_slice(first);
        (0..).zip(&mut *self.positions).for_each(|(place, position)| *position = place);
        (0..k / 2).rev().for_each(|at| self.sink(at, k));
        for (position, value) in (k..).zip(others) {
            // Of equal ones the earlier stays.
            if (self.is_before)(*value, self.values[0]) {
                (self.values[0], self.positions[0]) = (*value, position as i64);
                self.sink(0, k);
            }
        }
        for end in (1..k).rev() {
            self.values.swap(0, end);
            self.positions.swap(0, end);
            self.sink(0, end);
        }
    }

    /// Whether what is at one place comes behind what is at the other.
    #[inline(always)]
    fn is_behind(&self, a: usize, b: usize) -> bool {
        let (first, second) = (self.values[a], self.values[b]);
        (self.is_before)(second, first) || (!(self.is_before)(first, second) && self.positions[a] > self.positions[b])
    }

    /// Moves what is at a place down until nothing below it, within so many, comes behind it.
    #[inline(always)]
    fn sink(&mut self, mut at: usize, count: usize) {
        loop {
            let mut below = 2 * at + 1;
            if below >= count {
                return;
            }
            if below + 1 < count && self.is_behind(below + 1, below) {
                below += 1;
            }
            if !self.is_behind(below, at) {
                return;
            }
            self.values.swap(at, below);
            self.positions.swap(at, below);
            at = below;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways of a stretch, in that order of its elements.
    fn agree<const LARGEST: bool>(x: &[f32], k: usize) {
        let run = |many: bool| {
            let (mut y, mut positions) = (vec![0.0; k], vec![0; k]);
            if many {
                Heap { values: &mut y, positions: &mut positions, is_before: TopK::<f32, LARGEST>::is_before }.keep(x);
            } else {
                keep_sorted(x, &mut y, &mut positions, TopK::<f32, LARGEST>::is_before);
            }
            (y.into_iter().map(f32::to_bits).collect::<Vec<_>>(), positions)
        };
        assert_eq!(run(true), run(false), "{LARGEST}, the first {k} of {x:?}");
    }

    #[test]
    fn many_are_kept_as_few_are() {
        let mut state = 3_u64;
        for length in [1, 2, 3, 7, 64, 65, 300] {
            let random = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Many equal ones, both zeros, infinities and NaN.
                match state >> 59 {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => -0.0,
                    other => (other as f32 - 16.0).max(-9.0),
                }
            };
            let mixed: Vec<f32> = (0..length).map(random).collect();
            let rising: Vec<f32> = (0..length).map(|number| number as f32).collect();
            let falling = rising.iter().rev().copied().collect();
            for x in [mixed, rising, falling, vec![1.0; length]] {
                for k in [1, 2, length / 2, length].into_iter().filter(|k| (1..=length).contains(k)) {
                    agree::<true>(&x, k);
                    agree::<false>(&x, k);
                }
            }
        }
    }

    /// By insertion it would be 10¹¹ moves, a minute of them.
    #[test]
    fn the_first_half_of_a_million_rising_elements_stands_in_order() {
        let (n, k) = (1 << 20, 1 << 19);
        let x: Vec<f32> = (0..n).map(|number| number as f32).collect();
        let (mut y, mut positions) = (vec![0.0; k], vec![0; k]);
        TopK::<f32, true>::apply(&Shape { outer: 1, n, k, epsilon: 0.0 }, &x, &mut y, &mut positions);
        assert!((0..k).all(|at| y[at] == (n - 1 - at) as f32 && positions[at] == (n - 1 - at) as i64));
    }
}
