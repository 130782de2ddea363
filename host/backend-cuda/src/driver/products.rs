//! Products of matrices by the library of the device's maker (cublasLt), where the system has one: what the worker's own kernels are measured against.
//!
//! Nothing that a worker computes depends on it. Such a library chooses the order of a product's sums by its shape, the number of rows included, and
//! promises the same bits for the same call alone; so what it leaves for a row may depend on what else is in the batch, which the worker's results must not.
//! (From CUDA 13.4 on a description has a flag for that, `CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS`; the oldest driver that the worker takes is for 13.0.)

use super::{DeviceAddress, Done, Graph, GraphLaunch, Stream};

/// A product y = x·Wᵀ, of bf16 with sums in 32-bit floats: x has `rows` rows of `k` numbers, W has `n` rows of `k`, y has `rows` rows of `n` 32-bit floats. Each
/// row lies behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Rows of x and of y.
    pub rows: u32,
    /// Numbers of a row of x and of W: a multiple of 8.
    pub k: u32,
    /// Rows of W: a multiple of 4.
    pub n: u32,
}

impl ProductShape {
    /// Bytes of x, of W and of y; none if there are no such numbers of bytes, or a side is not what it has to be.
    #[must_use]
    pub fn bytes(self) -> Option<[usize; 3]> {
        let [rows, k, n] = [self.rows, self.k, self.n].map(|side| side as usize);
        let is_there = rows > 0 && k > 0 && n > 0 && k.is_multiple_of(8) && n.is_multiple_of(4);
        let bytes = |one: usize, other: usize, size: usize| one.checked_mul(other)?.checked_mul(size);
        Some([bytes(rows, k, 2)?, bytes(n, k, 2)?, bytes(rows, n, 4)?]).filter(|_| is_there)
    }
}

/// How a product of one shape is computed. It lives as long as its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductPlan(pub(crate) u32);

/// Where a product's matrices lie, each aligned to 256 bytes, and as many bytes that it may use meanwhile as its plan was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProductOperands {
    /// x.
    pub x: DeviceAddress,
    /// W.
    pub weights: DeviceAddress,
    /// y, which overlaps none of the others.
    pub y: DeviceAddress,
    /// Those bytes; not looked at where there are none.
    pub workspace: DeviceAddress,
}

/// Plans that [`Products::plans`] gives for a shape, at most.
pub const PLANS_MAX: usize = 8;

/// Plans that a driver has at once, at most.
pub(crate) const PLANS_OF_DRIVER_MAX: usize = 1024;

/// A library of products.
///
/// # Errors
/// As for the calls of [`super::Driver`].
pub trait Products {
    /// Its name and version.
    fn library(&self) -> String;

    /// Ways to compute a product in no more than so many bytes of workspace, what the library thinks the fastest first; none if it has none. No other call
    /// asks it what it thinks.
    ///
    /// # Errors
    /// Also if the shape is none, or the driver has 1024 plans.
    fn plans(&mut self, shape: ProductShape, workspace_bytes: usize) -> Done<Vec<ProductPlan>>;

    /// Queues a product.
    ///
    /// # Safety
    /// As for [`super::Driver::launch`]: the operands are as large as the plan's shape has them, and stay there until it has run.
    unsafe fn multiply(&mut self, stream: Stream, plan: ProductPlan, operands: &ProductOperands) -> Done;

    /// A graph ([`super::Driver::graph`]) of launches, a product, and launches behind it.
    ///
    /// # Safety
    /// As for [`Products::multiply`], whenever the graph is launched.
    unsafe fn graph(&mut self, before: &[GraphLaunch], product: (ProductPlan, &ProductOperands), behind: &[GraphLaunch]) -> Done<Graph>;
}
