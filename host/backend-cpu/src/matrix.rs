//! Matrix products with constant right-hand sides: `y = bias + Σ x·w`, one to several terms summed in a fixed order.
//!
//! A weight is packed once, when its cell is loaded, in the form of the kernel that will read it; the form depends on K and N alone, never on a
//! batch. Within a product an element of y is the bias plus one sum over k, in order, term by term: so a row's bits depend on nothing but the
//! row. Threads share a product by columns.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod library;
mod plain;

use std::ops::Range;

use crate::level::{Kernels, Level};
use crate::memory::Lines;

/// Columns of a packed panel, and the unit in which columns are given to threads.
pub(crate) const PANEL: usize = 32;

/// Who multiplies a weight, and so how it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Panels of [`PANEL`] columns, K rows each; the last is padded with zeros.
    #[cfg(target_arch = "x86_64")]
    Panels,
    /// K × N for the library.
    Library,
    /// K × N for products so thin that the library takes other paths for them.
    Plain,
}

impl Form {
    /// The form for a weight of that many rows and columns.
    pub(crate) fn choose(level: Level, kernels: Kernels, k: usize, n: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512 && kernels == Kernels::Best {
            return Self::Panels;
        }
        let _ = (level, kernels);
        if k <= 2 || n <= 1 { Self::Plain } else { Self::Library }
    }
}

/// A packed weight.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) k: usize,
    data: Lines,
}

/// The weights and the bias of one product.
#[derive(Debug)]
pub(crate) struct Product {
    form: Form,
    n: usize,
    weights: Vec<Packed>,
    /// Padded to whole panels.
    bias: Option<Lines>,
}

/// Where the rows of a term's left-hand side are: `rows` of `k` floats, `stride` floats apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) rows: *const f32,
    pub(crate) stride: usize,
}

/// Where the result's rows are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) rows: *mut f32,
    pub(crate) stride: usize,
}

impl Product {
    pub(crate) fn new(form: Form, n: usize) -> Self {
        Self { form, n, weights: Vec::new(), bias: None }
    }

    /// Adds a term with the weight `w(k, n)`.
    pub(crate) fn push(&mut self, k: usize, w: &dyn Fn(usize, usize) -> f32) {
        let n = self.n;
        let mut data = match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels => Lines::zeroed(n.div_ceil(PANEL) * PANEL * k * size_of::<f32>()),
            Form::Library | Form::Plain => Lines::zeroed(n * k * size_of::<f32>()),
        };
        let floats = data.floats_mut();
        for row in 0..k {
            for column in 0..n {
                let at = match self.form {
                    #[cfg(target_arch = "x86_64")]
                    Form::Panels => (column / PANEL * k + row) * PANEL + column % PANEL,
                    Form::Library | Form::Plain => row * n + column,
                };
                floats[at] = w(row, column);
            }
        }
        self.weights.push(Packed { k, data });
    }

    pub(crate) fn set_bias(&mut self, bias: &[f32]) {
        let mut lines = Lines::zeroed(bias.len().next_multiple_of(PANEL) * size_of::<f32>());
        lines.floats_mut()[..bias.len()].copy_from_slice(bias);
        self.bias = Some(lines);
    }

    /// Floating-point operations of one row.
    pub(crate) fn flops(&self) -> usize {
        self.weights.iter().map(|weight| 2 * weight.k * self.n).sum()
    }

    /// Values of a left-hand row in all terms.
    #[cfg(target_arch = "x86_64")]
    fn depth(&self) -> usize {
        self.weights.iter().map(|weight| weight.k).sum()
    }

    /// Floats of scratch memory that each thread needs to compute so many rows.
    pub(crate) fn scratch(&self, rows: usize) -> usize {
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels => avx512::scratch(self, rows),
            Form::Library | Form::Plain => 0,
        }
    }

    /// Bytes of packed weights.
    pub(crate) fn bytes(&self) -> usize {
        self.weights.iter().map(|weight| weight.data.bytes()).sum()
    }

    /// In how many pieces columns can be given away.
    fn units(&self) -> usize {
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Panels => self.n.div_ceil(PANEL),
            // The last unit takes the remainder, because the library sums single columns in another order.
            Form::Library | Form::Plain => (self.n / PANEL).max(1),
        }
    }

    /// The part of the columns, in units, that one of several threads computes.
    pub(crate) fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        let units = self.units();
        units * thread / threads..units * (thread + 1) / threads
    }

    /// Computes the columns of those units for `rows` rows, with [`Self::scratch`] at hand.
    ///
    /// # Safety
    /// `lefts` has one entry for each term, whose rows are readable; `result`'s rows are writable and no other thread touches these columns.
    /// Both have room for two rows even if `rows` is one, and `scratch`, which is this thread's alone, for what [`Self::scratch`] says. The processor has what the weights were packed for.
    pub(crate) unsafe fn run(&self, lefts: &[Left], result: Target, rows: usize, units: Range<usize>, scratch: *mut f32) {
        debug_assert_eq!(lefts.len(), self.weights.len());
        if units.is_empty() || rows == 0 {
            return;
        }
        let _ = scratch;
        match self.form {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise; panels are packed only where AVX-512 was found.
            Form::Panels => unsafe { avx512::run(self, lefts, result, rows, units, scratch) },
            // SAFETY: the caller's promise.
            Form::Library => unsafe { library::run(self, lefts, result, rows, self.columns(units)) },
            // SAFETY: the caller's promise.
            Form::Plain => unsafe { plain::run(self, lefts, result, rows, self.columns(units)) },
        }
    }

    fn columns(&self, units: Range<usize>) -> Range<usize> {
        let end = if units.end == self.units() { self.n } else { units.end * PANEL };
        units.start * PANEL..end
    }

    fn bias(&self) -> Option<*const f32> {
        self.bias.as_ref().map(|lines| lines.pointer().cast())
    }

    /// Sets columns of the result to the bias, or to zeros.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn begin(&self, result: Target, rows: usize, columns: &Range<usize>) {
        for row in 0..rows {
            // SAFETY: the result has these rows and columns.
            unsafe {
                let target = result.rows.add(row * result.stride + columns.start);
                match self.bias() {
                    Some(bias) => std::ptr::copy_nonoverlapping(bias.add(columns.start), target, columns.len()),
                    None => std::ptr::write_bytes(target, 0, columns.len()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
