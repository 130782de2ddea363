//! Screens: rule out most columns of a product of which only the largest element of a row is
//! wanted.
//!
//! The product is first computed in integers of eight bits, several times as fast (AVX-512 VNNI).
//! Every element y = b + w·x is then known within a bound. Let x = x' + r and w = w' + s, where x'
//! and w' are the values of the integers. Then w·x − w'·x' = w·r + s·x', and by Cauchy and Schwarz
//! this is at most ‖w‖‖r‖ + ‖s‖‖x'‖. Rounding in both sums adds a small factor times ‖w‖‖x‖ + |b|.
//! Up to eight numbers of a row that are much larger than the others are taken by themselves, or
//! the bound would be theirs.
//!
//! A few dozen of tens of thousands of elements remain. They are compared more exactly, from the
//! columns as integers of 16 bits and the row's floats. If more than one remains then, the product
//! itself computes those. So a screen is no approximation: it finds the product's own result, bit
//! for bit, ties, infinities and NaN included. Whether there is one may depend on anything, such as
//! memory: all packed weights, screens included, stay within half of what weights may take.
//!
//! Rows for which the screen does not help are computed without it: rows with NaN or infinities,
//! and rows with too many near-equal elements. If that is more than a quarter of a task's rows, the
//! next tasks do without the screen. A plan shares its work as if there were no screen, because any
//! row may need the whole product. Softmax and `TopK` have no screens: they need the values
//! themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cellwright_cell_graph::typed::Precision;

use super::super::{Form, PANEL, Packed, Product};
use super::numbers::{Float, STEPS, largest, steps, to_bf16};
use super::{GROUP, Rounded, Width};
use crate::kernels::dispatch;
use crate::kernels::screening::{self, Apart, Columns, Looking, Norms, Reach};
use crate::level::{Kernels, Level};
use crate::memory::Lines;

/// Columns from which on a screen is faster than the product.
const COLUMNS_LEAST: usize = 2048;
/// How deep they may be: of fewer numbers the product is as fast, and of more the bounds of rounding grow useless.
const DEPTHS: std::ops::RangeInclusive<usize> = 32..=1 << 15;
/// Bytes that are known of a column, its bias twice.
const COLUMN_BYTES: usize = 7 * size_of::<f32>();
/// What is added to bounds for the rounding of bounds.
const MORE: f32 = 1.001;
/// Columns beyond that are not told anything of, nor rows whose norm times the largest of them is: sums of their products might be infinite on the way. As much added to the least of all floats leaves that as it
/// is, so that a bias may be as small as it likes (which is how words are masked), but not as large.
const NORM_MOST: f32 = 1e30;
const BIAS_MOST: f32 = 1e37;
/// A row whose largest number is smaller is zero, or nothing is told of it: squares of its numbers might be lost.
const LARGEST_LEAST: f32 = 1e-12;
/// What numbers too small for their squares can add to a norm, and those too small for a float to an element.
const LOST_OF_NORM: f32 = 1e-16;
const LOST: f32 = 1e-30;
/// How many times, once a task or, where threads have rows of their own, once for each of them, the product does without a screen after too many rows did not profit from it.
const REST: u32 = 63;
/// Of how many columns one may be told more exactly, and one computed by itself: of a row with more candidates all elements together take less time.
const COLUMNS_OF_TOLD: usize = 64;
const COLUMNS_OF_COMPUTED: usize = 2048;
/// Elements of a row that are computed one by one, at least and at most. Each takes the columns that are packed with it from memory.
const COMPUTED: (usize, usize) = (2, 16);

/// A screen of one product.
#[derive(Debug)]
pub(crate) struct Screen {
    /// The same product of integers.
    pub(crate) coarse: Product,
    k: usize,
    level: Level,
    /// Whether the product multiplies numbers that are rounded to bf16.
    is_halved: bool,
    /// What a sum of as many products loses at most, as a part of the sum of their magnitudes.
    rounding: f32,
    /// The columns' parts of bounds, as integers of eight bits and of 16; what a step of the latter is worth.
    norms: Vec<f32>,
    residuals: Vec<f32>,
    fine_residuals: Vec<f32>,
    rests: Vec<f32>,
    fine_scales: Vec<f32>,
    bias: Vec<f32>,
    /// The largest of the norms that are numbers.
    norm_most: f32,
    /// The first and the last column with the largest bias, if that of every column is known.
    largest_bias: Option<[u32; 2]>,
    /// Each column's integers of 16 bits.
    fine: Lines,
    /// How many times it is still done without.
    rests_for: AtomicU32,
}

/// What can be told of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    Nothing,
    /// Its elements, within bounds of which this is the row's part.
    Within(Reach),
    /// Its elements are the bias: the first and the last column with the largest.
    Bias([u32; 2]),
}

impl Screen {
    /// Bytes that a screen of that product takes; none if it has none.
    pub(in super::super) fn bytes_for(product: &Product, (level, kernels): (Level, Kernels)) -> Option<usize> {
        let coarse = Self::coarse(product, (level, kernels))?;
        let (k, n) = (product.weights[0].k, product.n);
        Some(coarse.packed_bytes(k, n) + Lines::rounded(n * k * size_of::<i16>()) + COLUMN_BYTES * n)
    }

    /// How a product's numbers become integers of eight bits; none if that would not be faster.
    fn coarse(product: &Product, (level, kernels): (Level, Kernels)) -> Option<Rounded> {
        let coarse = Rounded::choose(Precision::Int8, level, kernels)?;
        let is_faster = match product.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(_) => true,
            Form::Rounded(Rounded { width: Width::Half, .. }) => true,
            _ => false,
        };
        let [weight] = product.weights.as_slice() else { return None };
        let is_worth_it = product.n >= COLUMNS_LEAST && DEPTHS.contains(&weight.k) && weight.data.bytes() > 0;
        (is_faster && is_worth_it && !product.onto_rows && !product.in_halves && coarse.kernel != super::Kernel::Plain).then_some(coarse)
    }

    /// The screen of a product of one term, from its packed weight; none if it has none.
    pub(in super::super) fn new(product: &Product, how: (Level, Kernels)) -> Option<Self> {
        let coarse = Self::coarse(product, how)?;
        let (n, weight) = (product.n, &product.weights[0]);
        let (k, level) = (weight.k, how.0);
        let rounding = (2 * k + 64) as f32 * (f32::EPSILON / 2.0) * 1.05;
        let bias = product.biases().map_or_else(|| vec![0.0; n], <[f32]>::to_vec);
        let mut screen = Self {
            coarse: Product::new(Form::Rounded(coarse), level, n),
            k,
            level,
            is_halved: product.is_rounded(),
            rounding,
            norms: vec![0.0; n],
            residuals: vec![0.0; n],
            fine_residuals: vec![0.0; n],
            rests: vec![0.0; n],
            fine_scales: vec![0.0; n],
            bias,
            norm_most: 0.0,
            largest_bias: None,
            fine: Lines::zeroed(n * k * size_of::<i16>()),
            rests_for: AtomicU32::new(0),
        };
        screen.coarse.set_bias(&screen.bias);
        let packed = coarse.pack_columns(level, (k, n), Vec::new(), &mut |at, column| {
            product.copy_column(at, column);
            screen.measure(at, column);
        });
        screen.coarse.weights.push(Arc::new(packed));
        screen.norm_most = screen.norms.iter().copied().fold(0.0, f32::max);
        let unknown = screen.rests.iter().filter(|rest| rest.is_infinite()).count();
        if unknown == 0 {
            let largest = screen.bias.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let column = |at: Option<usize>| at.map(|at| at as u32);
            let first = column(screen.bias.iter().position(|bias| *bias == largest));
            let last = column(screen.bias.iter().rposition(|bias| *bias == largest));
            screen.largest_bias = first.zip(last).map(|(first, last)| [first, last]);
        }
        // Columns of which nothing is known are candidates of every row, beside the one that reaches most.
        (unknown < screen.computed_most()).then_some(screen)
    }

    /// How many candidates of a row are told more exactly at most, and how many of those that are left then are computed.
    pub(crate) fn told_most(&self) -> usize {
        self.norms.len() / COLUMNS_OF_TOLD
    }

    pub(crate) fn computed_most(&self) -> usize {
        (self.norms.len() / COLUMNS_OF_COMPUTED).clamp(COMPUTED.0, COMPUTED.1)
    }

    /// Measures a column, and keeps it as integers of 16 bits.
    fn measure(&mut self, at: usize, column: &[f32]) {
        // A little more than they are.
        let root = |squares: f64| (squares.sqrt() * (1.0 + 1e-6)) as f32;
        let most = largest(Float::all(column));
        let fine = steps(most, f32::from(i16::MAX));
        // SAFETY: memory for so many integers for each column, which nobody else uses; any bits are one.
        let integers = unsafe { std::slice::from_raw_parts_mut(self.fine.pointer_mut().cast::<i16>().add(at * self.k), self.k) };
        let [norm, residual, fine_residual] = screening::measure(self.level, column, [steps(most, STEPS), fine], integers).map(root);
        let bias = self.bias[at];
        // An element that is minus infinity whatever the row is known exactly.
        let is_known = norm <= NORM_MOST && bias <= BIAS_MOST;
        if !is_known {
            self.rests[at] = f32::INFINITY;
            return;
        }
        (self.norms[at], self.residuals[at]) = (norm, residual + LOST);
        (self.fine_residuals[at], self.fine_scales[at]) = (fine_residual + LOST, fine.1);
        self.rests[at] = if bias.is_finite() { bias.abs() * self.rounding * MORE + LOST } else { LOST };
    }

    pub(crate) fn bytes(&self) -> usize {
        self.coarse.bytes() + self.fine.bytes() + COLUMN_BYTES * self.norms.len()
    }

    /// Whether it is one for that bias.
    pub(in super::super) fn has_bias(&self, product: &Product) -> bool {
        let bias = product.biases();
        self.bias.iter().enumerate().all(|(at, own)| own.to_bits() == bias.map_or(0.0, |bias| bias[at]).to_bits())
    }

    /// Whether it is to be used now.
    pub(crate) fn is_worth_it(&self) -> bool {
        self.rests_for.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tasks| tasks.checked_sub(1)).is_err()
    }

    /// That so many of a task's rows had to be computed nevertheless.
    pub(crate) fn learn(&self, computed: usize, rows: usize) {
        if computed * 4 > rows {
            self.rests_for.store(REST, Ordering::Relaxed);
        }
    }

    /// How many numbers a row has.
    pub(crate) const fn depth(&self) -> usize {
        self.k
    }

    /// A row's numbers as the product multiplies them: where they are or, rounded, in memory for as many.
    pub(crate) fn operand<'a>(&self, row: &'a [f32], rounded: &'a mut [f32]) -> &'a [f32] {
        if !self.is_halved {
            return row;
        }
        rounded.iter_mut().zip(row).for_each(|(into, value)| *into = f32::from_bits(u32::from(to_bf16(*value)) << 16));
        rounded
    }

    /// Prepares a row for the product of integers; what is taken out of it, and what can be told of it.
    pub(crate) fn prepare(&self, operand: &[f32], into: &mut [f32]) -> (Apart, Told) {
        let apart = screening::cut(self.level, operand, into);
        let steps = steps(largest(Float::all(into)), STEPS);
        let Norms { norm, residual, largest } = screening::norms(self.level, (operand, into), steps);
        let is_known = norm <= NORM_MOST && residual.is_finite() && norm * self.norm_most <= NORM_MOST;
        if largest == 0.0 && norm == 0.0 {
            return (apart, self.largest_bias.map_or(Told::Nothing, Told::Bias));
        }
        let is_seen = largest >= LARGEST_LEAST;
        let reach = Reach { norm: (norm * self.rounding + residual + LOST_OF_NORM) * MORE, residual: (norm + residual) * MORE };
        (apart, if is_known && is_seen { Told::Within(reach) } else { Told::Nothing })
    }

    /// Adds to some of the columns of a row, from the first of a panel on, what was taken out of it.
    pub(crate) fn add_apart(&self, elements: &mut [f32], first: usize, apart: &Apart) {
        let Form::Rounded(rounded) = self.coarse.form else { return };
        let weight = &self.coarse.weights[0];
        let add = dispatch!(self.level, add_apart::<>, [], (rounded: Rounded, weight: &Packed, elements: &mut [f32], first: usize, apart: &Apart));
        // SAFETY: a screen is made for what the processor has.
        unsafe { add(rounded, weight, elements, first, apart) };
    }

    /// The columns' parts of the bounds of what is known of integers of eight bits.
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns { norms: &self.norms, residuals: &self.residuals, rests: &self.rests }
    }

    /// The same of what is told from integers of 16 bits.
    pub(crate) fn fine_columns(&self) -> Columns<'_> {
        Columns { residuals: &self.fine_residuals, ..self.columns() }
    }

    /// A row's part of these: the row is not rounded for them, so that what is left of it is that of rounding sums.
    pub(crate) fn fine_reach(&self, reach: Reach) -> Reach {
        Reach { norm: (reach.residual * self.rounding + LOST_OF_NORM) * MORE, ..reach }
    }

    /// An element of a row from integers of 16 bits.
    pub(crate) fn tell(&self, operand: &[f32], column: usize) -> f32 {
        assert!(column < self.fine_scales.len() && operand.len() == self.k, "a column of the product, and a row");
        // SAFETY: there are as many integers for every column; any bits are one.
        let integers = unsafe { std::slice::from_raw_parts(self.fine.pointer().cast::<i16>().add(column * self.k), self.k) };
        screening::dot(self.level, operand, integers) * self.fine_scales[column] + self.bias[column]
    }

    /// Looks at some of the columns of rows.
    ///
    /// # Safety
    /// As for [`screening::look`].
    pub(crate) unsafe fn look(&self, looking: Looking<'_>) {
        // SAFETY: the caller's promise; a screen is made for what the processor has.
        unsafe { screening::look(self.level, looking) }
    }
}

/// # Safety
/// None but the processor's level.
#[inline(always)]
unsafe fn add_apart(rounded: Rounded, weight: &Packed, elements: &mut [f32], first: usize, apart: &Apart) {
    // Columns whose groups of a row lie together, of tiles too.
    const LANES: usize = 16;
    let (data, columns, panel_bytes) = (weight.data.as_bytes(), weight.columns.floats(), rounded.panel_bytes(weight.k));
    for (elements, column) in elements.chunks_mut(LANES).zip((first..).step_by(LANES)) {
        let (panel, lane) = (column / PANEL, column % PANEL);
        let scales = &columns[panel * 2 * PANEL + lane..][..LANES];
        for (place, excess) in apart.each() {
            let groups = data[panel * panel_bytes + rounded.place(place / GROUP, lane, 0)..][..LANES * GROUP].as_chunks::<GROUP>().0;
            let shift = 24 - 8 * (place % GROUP) as u32;
            for ((element, group), scale) in elements.iter_mut().zip(groups).zip(scales) {
                let integer = i32::from_le_bytes(*group) << shift >> 24;
                *element = (integer as f32 * excess).mul_add(*scale, *element);
            }
        }
    }
}

#[cfg(test)]
mod tests;
