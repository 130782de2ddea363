//! Matrix products with constant right-hand sides: `y = bias + Σ x·w`, one to several terms summed in a fixed order.
//!
//! A weight is packed once, when its cell is loaded, in the form of the kernel that will read it; the form depends on K and N alone, never on a
//! batch. Within a product an element of y is the bias plus one sum over k, in order, term by term: so a row's bits depend on nothing but the
//! row. Instead of a bias, sums may begin with a row of the batch: what an earlier product put down is taken up again, bit by bit, from where the result is to be
//! or from wherever it lies.
//! Threads that share a product share its columns ([`units`]).

mod halves;
mod library;
mod operands;
mod packs;
#[cfg(target_arch = "x86_64")]
mod panels;
mod plain;
pub(crate) mod rounded;
mod stretches;
mod units;

use std::ops::Range;
use std::sync::Arc;

use cellwright_cell_graph::Tensor;

use crate::held::Held;
use crate::level::{Kernels, Level};
use crate::memory::Lines;

pub(crate) use operands::{Left, Target};
pub(crate) use packs::Packs;
#[cfg(target_arch = "x86_64")]
use panels::{Isa, Layout};
pub(crate) use rounded::screen::{Screen, Told};
pub(crate) use rounded::{PackedRows, Packing};
use rounded::{Rounded, Width};
pub(crate) use stretches::Stretch;
pub(crate) use units::{Sharing, Units};

pub(crate) use cellwright_cell_graph::sums::TERMS;

/// Columns of a packed panel of rounded numbers, and the unit in which columns of all but [`Form::Panels`] are given to threads.
pub(crate) const PANEL: usize = 32;

/// Who multiplies a weight, and so how it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// Panels of up to three vectors of columns, K rows each; where columns end within a vector it is padded with zeros.
    #[cfg(target_arch = "x86_64")]
    Panels(Isa),
    /// K × N for the library.
    Library,
    /// K × N for products so thin that the library takes other paths for them.
    Plain,
    /// Panels of rounded numbers.
    Rounded(Rounded),
}

impl Form {
    /// The form for a weight of that many rows and columns.
    pub(crate) fn choose(level: Level, kernels: Kernels, k: usize, n: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        match (level, kernels) {
            (Level::Portable, _) | (_, Kernels::Library) => {}
            (Level::Avx2, _) => return Self::Panels(Isa::Avx2),
            _ => return Self::Panels(Isa::Avx512),
        }
        let _ = (level, kernels);
        if k <= 2 || n <= 1 { Self::Plain } else { Self::Library }
    }

    /// Bytes of a weight of that many rows and columns as packed.
    fn packed_bytes(self, k: usize, n: usize) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Panels(isa) => Lines::rounded(Layout::new(isa, n).columns() * k * size_of::<f32>()),
            Self::Library | Self::Plain => Lines::rounded(n * k * size_of::<f32>()),
            Self::Rounded(rounded) => rounded.packed_bytes(k, n),
        }
    }
}

/// A packed weight.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub(crate) k: usize,
    data: Lines,
    /// Of integers and digits: what is known of the columns.
    columns: Lines,
    /// Of digits: what numbers of a left-hand row are multiplied by before they are taken apart.
    factors: Lines,
}

impl Packed {
    fn bytes(&self) -> usize {
        self.data.bytes() + self.columns.bytes() + self.factors.bytes()
    }
}

/// The weights and the bias of one product.
#[derive(Debug)]
pub(crate) struct Product {
    form: Form,
    /// What loops are compiled for.
    level: Level,
    n: usize,
    weights: Vec<Arc<Packed>>,
    /// In the order of packed columns.
    bias: Option<Lines>,
    /// Whether sums begin with rows of the batch, and not with the bias.
    onto_rows: bool,
    /// Whether both sides are rounded to f16.
    in_halves: bool,
    /// Whether the last cache mostly keeps the weights, and those of the same plan.
    is_cached: bool,
}

impl Product {
    pub(crate) fn new(form: Form, level: Level, n: usize) -> Self {
        Self { form, level, n, weights: Vec::new(), bias: None, onto_rows: false, in_halves: false, is_cached: false }
    }

    /// Adds a term with the weight `w(k, n)`.
    #[cfg(test)]
    pub(crate) fn push(&mut self, k: usize, w: &dyn Fn(usize, usize) -> f32) {
        let packed = Arc::new(self.pack(k, w));
        self.weights.push(packed);
    }

    /// Adds a term with a factor times a weight of floats and two dimensions, `[K, N]` or, if it is transposed, `[N, K]`.
    pub(crate) fn push_weight(&mut self, packs: &mut Packs, w: &Arc<Tensor>, transposed: bool, alpha: f32) {
        self.weights.push(packs.weight(self, w, transposed, alpha));
    }

    fn pack(&self, k: usize, w: &dyn Fn(usize, usize) -> f32) -> Packed {
        if self.in_halves {
            return self.pack_numbers(k, &|row, column| halves::rounded(w(row, column)));
        }
        self.pack_numbers(k, w)
    }

    fn pack_numbers(&self, k: usize, w: &dyn Fn(usize, usize) -> f32) -> Packed {
        let n = self.n;
        if let Form::Rounded(rounded) = self.form {
            return rounded.pack(self.level, (k, n), w);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(layout) = self.layout() {
            let mut data = Lines::zeroed(layout.columns() * k * size_of::<f32>());
            let floats = data.floats_mut();
            for (column, columns, packed_columns) in layout.panels() {
                for row in 0..k {
                    let into = &mut floats[column * k + row * packed_columns..][..columns];
                    into.iter_mut().enumerate().for_each(|(at, into)| *into = w(row, column + at));
                }
            }
            return Packed { k, data, ..Packed::default() };
        }
        let mut data = Lines::zeroed(n * k * size_of::<f32>());
        let floats = data.floats_mut();
        for row in 0..k {
            for column in 0..n {
                floats[row * n + column] = w(row, column);
            }
        }
        Packed { k, data, ..Packed::default() }
    }

    /// Both sides are rounded to f16; before a weight is packed.
    pub(crate) fn round_to_halves(&mut self) {
        self.in_halves = true;
    }

    /// Sums begin with rows of the batch.
    pub(crate) fn begin_with_rows(&mut self) {
        self.onto_rows = true;
    }

    pub(crate) fn set_bias(&mut self, bias: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(layout) = self.layout() {
            let mut lines = Lines::zeroed(layout.columns() * size_of::<f32>());
            lines.floats_mut()[..self.n].copy_from_slice(bias);
            self.bias = Some(lines);
            return;
        }
        let mut lines = Lines::zeroed(size_of_val(bias));
        lines.floats_mut()[..bias.len()].copy_from_slice(bias);
        self.bias = Some(lines);
    }

    #[cfg(target_arch = "x86_64")]
    fn layout(&self) -> Option<Layout> {
        match self.form {
            Form::Panels(isa) => Some(Layout::new(isa, self.n)),
            _ => None,
        }
    }

    /// Whether it multiplies rounded numbers.
    pub(crate) fn is_rounded(&self) -> bool {
        matches!(self.form, Form::Rounded(_))
    }

    /// Whether it multiplies slowly enough for weights from the last cache to be read meanwhile, once for a few rows. AMX does not; the library packs what it
    /// multiplies, for each of its threads.
    pub(crate) fn is_read_meanwhile(&self) -> bool {
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(_) => true,
            Form::Rounded(rounded) => !rounded.is_tiled(),
            Form::Library | Form::Plain => false,
        }
    }

    pub(crate) fn set_cached(&mut self, is_cached: bool) {
        self.is_cached = is_cached;
    }

    /// How a term's rows are packed, if they need not be there as floats: any product that packs rows like that can share them.
    pub(crate) fn packing(&self, term: usize) -> Option<Packing> {
        match self.form {
            Form::Rounded(rounded) => Some(Packing::new((rounded, self.level), &self.weights[term])),
            _ => None,
        }
    }

    /// Whether rows of left-hand sides may lie anywhere.
    pub(crate) fn takes_pointers(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let is_ours = matches!(self.form, Form::Panels(_));
        #[cfg(not(target_arch = "x86_64"))]
        let is_ours = false;
        is_ours && !self.in_halves
    }

    /// Floating-point operations of one row.
    pub(crate) fn flops(&self) -> usize {
        self.weights.iter().map(|weight| 2 * weight.k * self.n).sum()
    }

    /// Floats of scratch memory that each thread needs to compute so many rows.
    pub(crate) fn scratch(&self, rows: usize) -> usize {
        match self.form {
            Form::Rounded(rounded) => rounded::scratch(rounded, self, rows),
            _ if self.in_halves => halves::scratch(self, rows),
            _ => 0,
        }
    }

    /// Bytes of packed weights.
    pub(crate) fn bytes(&self) -> usize {
        self.weights.iter().map(|weight| weight.bytes()).sum()
    }

    /// Adds them to what is held: another product may have the same.
    pub(crate) fn hold(&self, held: &mut Held) {
        self.weights.iter().for_each(|weight| held.share(weight, weight.bytes()));
        held.own(self.bias.as_ref().map_or(0, Lines::bytes));
    }

    /// In how many pieces columns can be given away.
    fn units(&self) -> usize {
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(isa) => Layout::new(isa, self.n).units,
            Form::Rounded(_) => self.n.div_ceil(PANEL),
            // The last unit takes the remainder, because the library sums single columns in another order.
            Form::Library | Form::Plain => (self.n / PANEL).max(1),
        }
    }

    /// The part of the columns, in units, that one of several threads computes.
    pub(crate) fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        units::share(self.units(), thread, threads)
    }

    /// The same for so many rows, of which a rest is left to whoever is done first.
    pub(crate) fn share_of_rows<'a>(&self, rows: usize, sharing: Sharing<'a>) -> Units<'a> {
        let blocks = match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(_) => rows.div_ceil(panels::block_rows(self)),
            Form::Rounded(rounded) => rows.div_ceil(rounded::block_rows(rounded, self)),
            Form::Library | Form::Plain => usize::MAX,
        };
        // Where columns are computed for one block of rows after the other, or several of them together, who computes them is settled beforehand.
        if blocks > 1 {
            return Units::own(self.share(sharing.thread, sharing.threads)).turned(sharing.backwards);
        }
        Units::shared(self.units(), sharing)
    }

    /// Computes the columns of those units for `rows` rows, with [`Self::scratch`] at hand.
    ///
    /// # Safety
    /// `lefts` has one entry for each term, whose rows are readable; `result`'s rows are writable and no other thread touches these columns. What sums begin with is
    /// readable, and either lies where the result is to be or overlaps nothing that is written.
    /// Both have room for two rows even if `rows` is one, and `scratch`, which is this thread's alone, for what [`Self::scratch`] says; where all terms are packed it is not
    /// touched. Packed rows were packed as so many. The processor has
    /// what the weights were packed for, and the product's level.
    pub(crate) unsafe fn run(&self, lefts: &[Left], result: Target, rows: usize, units: Units<'_>, scratch: *mut f32) {
        debug_assert_eq!(lefts.len(), self.weights.len());
        if units.is_empty() || rows == 0 {
            return;
        }
        if self.in_halves {
            // SAFETY: the caller's promise; what is rounded has as many rows of as many floats.
            return unsafe { self.multiply(&halves::round(self, lefts, rows, scratch)[..lefts.len()], result, rows, units, scratch) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.multiply(lefts, result, rows, units, scratch) }
    }

    /// [`Self::run`] of left-hand sides as they are.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn multiply(&self, lefts: &[Left], result: Target, rows: usize, units: Units<'_>, scratch: *mut f32) {
        match self.form {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise; panels are packed only for what was found.
            Form::Panels(isa) => unsafe { panels::run(self, &Layout::new(isa, self.n), lefts, result, rows, units) },
            // SAFETY: the caller's promise.
            Form::Library => unsafe { library::run(self, lefts, result, rows, self.columns(units.settled())) },
            // SAFETY: the caller's promise; kernels are chosen by what was found.
            Form::Rounded(rounded) => unsafe { rounded::run(rounded, self, lefts, result, units, (rows, scratch)) },
            // SAFETY: the caller's promise.
            Form::Plain => unsafe { plain::run(self, lefts, result, rows, self.columns(units.settled())) },
        }
    }

    /// The unit that has a column.
    fn unit_of(&self, column: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(layout) = self.layout() {
            return layout.unit_of(column);
        }
        (column / PANEL).min(self.units() - 1)
    }

    fn columns(&self, units: Range<usize>) -> Range<usize> {
        #[cfg(target_arch = "x86_64")]
        if let Some(layout) = self.layout() {
            return layout.columns_of(units);
        }
        let end = if units.end == self.units() { self.n } else { units.end * PANEL };
        units.start * PANEL..end
    }

    /// Copies a column of the first term's weight as it is multiplied, of floats or of bf16.
    fn copy_column(&self, column: usize, into: &mut [f32]) {
        let weight = &self.weights[0];
        let (start, apart) = match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels(isa) => Layout::new(isa, self.n).place(column, weight.k),
            Form::Rounded(rounded) => {
                debug_assert!(rounded.width == Width::Half, "scales are not looked at");
                return rounded.copy_halves(weight, column, into);
            }
            Form::Library | Form::Plain => (column, self.n),
        };
        into.iter_mut().zip(weight.data.floats()[start..].iter().step_by(apart)).for_each(|(into, value)| *into = *value);
    }

    /// What sums begin with, column by column.
    fn biases(&self) -> Option<&[f32]> {
        self.bias.as_ref().map(|bias| &bias.floats()[..self.n])
    }

    fn bias(&self) -> Option<*const f32> {
        self.bias.as_ref().map(|lines| lines.pointer().cast())
    }

    /// Sets columns of the result to what sums begin with.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn begin(&self, result: Target, rows: usize, columns: &Range<usize>) {
        if self.onto_rows && result.begins.is_null() {
            return;
        }
        for row in 0..rows {
            // SAFETY: the result has these rows and columns, and so has what they begin with.
            unsafe {
                let target = result.rows.wrapping_add(row * result.stride + columns.start);
                match self.bias() {
                    _ if self.onto_rows => std::ptr::copy((*result.begins.add(row)).add(columns.start), target, columns.len()),
                    Some(bias) => std::ptr::copy_nonoverlapping(bias.add(columns.start), target, columns.len()),
                    None => std::ptr::write_bytes(target, 0, columns.len()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
