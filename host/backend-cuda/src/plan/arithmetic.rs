//! How a device multiplies: a model's precision and the worker's options together.
//!
//! tf32 is an option of a worker, not a precision of a model. A bundle says how exact its results
//! must be, not on which unit they are computed. A worker with tf32 says so in its numeric class.
//! So it is neither combined with a worker without it nor given that worker's calibrated times.
//!
//! Where a device has Hopper's kernels, all products in bf16 and f16 use warpgroups, for any number
//! of rows. Their sums have other bits than those of `mma`.

use cellwright_cell_graph::typed::Precision;

/// In which arithmetic a product's operands are taken; sums are in 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arithmetic {
    /// As they are.
    F32,
    /// Rounded to 10 bits behind the point, to nearest, ties away from zero.
    Tf32,
    /// Rounded to the halves of IEEE 754: 10 bits behind the point, to nearest, ties to even.
    F16,
    /// Rounded to 7 bits behind the point, to nearest, ties to even.
    Bf16,
    /// As [`Self::F16`], by warpgroups, for which rows are rounded before.
    WideF16,
    /// As [`Self::Bf16`], by warpgroups.
    WideBf16,
}

impl Arithmetic {
    /// Whether an operand takes two bytes.
    pub(crate) const fn is_of_halves(self) -> bool {
        !matches!(self, Self::F32 | Self::Tf32)
    }

    /// Whether these halves are those of IEEE 754.
    pub(crate) const fn is_f16(self) -> bool {
        matches!(self, Self::F16 | Self::WideF16)
    }

    /// Whether warpgroups multiply.
    pub(crate) const fn is_wide(self) -> bool {
        matches!(self, Self::WideF16 | Self::WideBf16)
    }

    /// Of a model at that precision, where the worker is asked for nothing else, on a device that has Hopper's kernels or not. All products are of one
    /// kind, however few rows they have: the two kinds do not give the same bits.
    pub(crate) const fn of(precision: Precision, is_hopper: bool) -> Self {
        match (precision, is_hopper) {
            (Precision::F32, _) => Self::F32,
            (Precision::F16, false) => Self::F16,
            (Precision::F16, true) => Self::WideF16,
            // There are no products in int8: cells that have some are refused before this matters.
            (Precision::Bf16 | Precision::Int8, false) => Self::Bf16,
            (Precision::Bf16 | Precision::Int8, true) => Self::WideBf16,
        }
    }
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::{Datatype, Tensor};
    use cellwright_conformance::cells::Draft;

    use super::super::{Plan, Step, Target};
    use super::*;

    #[test]
    fn only_models_in_floats_are_multiplied_in_tf32() {
        let arithmetic_on = |precision: Precision, tf32: bool, is_hopper: bool| {
            let draft = Draft::new("one").input("x", Datatype::Fp32, &[5]).weight(Tensor::from_f32("w", &[5, 7], &[0.5; 35]));
            let cell = draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Datatype::Fp32, &[7]).at(precision).resolve();
            let plan = Plan::compile(&cell, u64::MAX, Target { is_hopper, tf32 }).ok()?;
            plan.steps.iter().find_map(|step| if let Step::Product(product) = step { Some(product.arithmetic) } else { None })
        };
        let arithmetic = |precision, tf32| arithmetic_on(precision, tf32, false);
        let both = |precision| [false, true].map(|tf32| arithmetic(precision, tf32));
        assert_eq!(both(Precision::F32), [Some(Arithmetic::F32), Some(Arithmetic::Tf32)]);
        assert_eq!(both(Precision::F16), [Some(Arithmetic::F16); 2]);
        assert_eq!(both(Precision::Bf16), [Some(Arithmetic::Bf16); 2]);
        assert_eq!(both(Precision::Int8), [None; 2], "refused");
        let on_hopper = [Precision::F32, Precision::F16, Precision::Bf16].map(|precision| arithmetic_on(precision, true, true));
        assert_eq!(on_hopper, [Some(Arithmetic::Tf32), Some(Arithmetic::WideF16), Some(Arithmetic::WideBf16)]);
    }
}
