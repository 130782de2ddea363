//! How a device multiplies: what of a model's precision is asked of the worker, too.

use cellwright_cell_graph::typed::Precision;

/// In which arithmetic a product's operands are taken; sums are in 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arithmetic {
    /// As they are.
    F32,
    /// Rounded to 10 bits behind the point, to nearest, ties away from zero.
    Tf32,
    /// Rounded to 7 bits behind the point, to nearest, ties to even.
    Bf16,
}

impl Arithmetic {
    /// Of a model at that precision, where the worker is asked for nothing else.
    pub(crate) const fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            // There are no products in int8: cells that have some are refused before this matters.
            Precision::Bf16 | Precision::Int8 => Self::Bf16,
        }
    }
}
