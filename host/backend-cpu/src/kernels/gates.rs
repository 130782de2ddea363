//! Sigmoid and tanh, and what gates make of them: products of two factors, each of them a number, its sigmoid or its tanh, in one pass.
//!
//! With AVX-512 they are computed block by block, and the rows behind are asked for meanwhile, most of which a matrix product has left in the last cache.
//! A product's bits are those of its factors by themselves, multiplied.

use std::marker::PhantomData;

use super::element::{Itself, Kernel, Map1, Map2, Sigmoid, Tanh, map1, map2};
#[cfg(target_arch = "x86_64")]
use super::{
    element::{Sources, row, row_mut},
    math::avx512::{self, BLOCK, Vectors},
};
use crate::level::Level;

/// What of an operand is multiplied; in the order in which [`product`] takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Factor {
    Sigmoid,
    Tanh,
    Itself,
}

/// The kernel for one function by itself.
pub(super) fn alone<F: Function>(level: Level) -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512 {
        return blocks_alone::<F>;
    }
    map1::<F>(level)
}

/// The kernel for the product of two, which stand in their order.
pub(super) fn product(factors: (Factor, Factor), level: Level) -> Option<Kernel> {
    Some(match factors {
        (Factor::Sigmoid, Factor::Sigmoid) => product_of::<Sigmoid, Sigmoid>(level),
        (Factor::Sigmoid, Factor::Tanh) => product_of::<Sigmoid, Tanh>(level),
        (Factor::Sigmoid, Factor::Itself) => product_of::<Sigmoid, Itself>(level),
        (Factor::Tanh, Factor::Tanh) => product_of::<Tanh, Tanh>(level),
        (Factor::Tanh, Factor::Itself) => product_of::<Tanh, Itself>(level),
        _ => return None,
    })
}

fn product_of<F: Function, G: Function>(level: Level) -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512 {
        return blocks_multiplied::<F, G>;
    }
    map2::<Product<F, G>>(level)
}

struct Product<F, G>(PhantomData<(F, G)>);

impl<F: Function, G: Function> Map2 for Product<F, G> {
    type In = f32;
    type Out = f32;
    #[inline(always)]
    fn apply(a: f32, b: f32) -> f32 {
        F::apply(a) * G::apply(b)
    }
}

/// A function of one float, and of a block of them with the same bits.
pub(super) trait Function: Map1<In = f32, Out = f32> {
    /// # Safety
    /// The processor has AVX-512 F and DQ.
    #[cfg(target_arch = "x86_64")]
    unsafe fn block(x: Vectors) -> Vectors;
}

macro_rules! functions {
    ($($name:ident: |$x:ident| $body:expr;)*) => {$(
        impl Function for $name {
            #[cfg(target_arch = "x86_64")]
            #[inline]
            #[target_feature(enable = "avx512f,avx512dq")]
            unsafe fn block($x: Vectors) -> Vectors {
                $body
            }
        }
    )*};
}

functions! {
    Itself: |x| x;
    Sigmoid: |x| avx512::sigmoid(x);
    Tanh: |x| avx512::tanh(x);
}

/// # Safety
/// As for [`Kernel`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
unsafe fn blocks_alone<F: Function>(result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize) {
    for at in 0..rows {
        // SAFETY: the caller's promise.
        let (y, x) = unsafe { (row_mut::<f32>(result, stride, at, width), row::<f32>(sources[0], at, width)) };
        let ((y, y_left), (x, x_left)) = (y.as_chunks_mut::<BLOCK>(), x.as_chunks::<BLOCK>());
        for (y, x) in y.iter_mut().zip(x) {
            avx512::ask_for(x, sources[0].1);
            // SAFETY: the caller's promise.
            avx512::store(y, unsafe { F::block(avx512::load(x)) });
        }
        for (y, x) in y_left.iter_mut().zip(x_left) {
            *y = F::apply(*x);
        }
    }
}

/// # Safety
/// As for [`Kernel`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
unsafe fn blocks_multiplied<F: Function, G: Function>(result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize) {
    for at in 0..rows {
        // SAFETY: the caller's promise.
        let (y, a, b) =
            unsafe { (row_mut::<f32>(result, stride, at, width), row::<f32>(sources[0], at, width), row::<f32>(sources[1], at, width)) };
        let ((y, y_left), (a, a_left), (b, b_left)) = (y.as_chunks_mut::<BLOCK>(), a.as_chunks::<BLOCK>(), b.as_chunks::<BLOCK>());
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            avx512::ask_for(a, sources[0].1);
            avx512::ask_for(b, sources[1].1);
            // SAFETY: the caller's promise.
            let (a, b) = unsafe { (F::block(avx512::load(a)), G::block(avx512::load(b))) };
            avx512::store(y, avx512::multiply(a, b));
        }
        for ((y, a), b) in y_left.iter_mut().zip(a_left).zip(b_left) {
            *y = Product::<F, G>::apply(*a, *b);
        }
    }
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::typed::{BinaryKind, UnaryKind};

    use super::*;
    use crate::kernels::element::{Element, ElementOp};

    #[test]
    fn a_product_has_the_bits_of_its_factors_multiplied() {
        // More than two blocks, and some that are none.
        const WIDTH: usize = 151;
        let number = |at: usize| f32::from_bits((at as u32).wrapping_mul(0x9e37_79b9));
        let (a, b): (Vec<f32>, Vec<f32>) = (0..3 * WIDTH).map(|at| (number(at), (at as f32 - 200.0) / 30.0)).unzip();
        for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
            let run = |op: ElementOp, a: &[f32], b: &[f32]| {
                let mut y = vec![0.0_f32; 3 * WIDTH];
                let kernel = op.kernel(Element::F32, level).expect("there is one");
                let row = WIDTH * size_of::<f32>();
                // SAFETY: all have as many rows of so many floats, and the processor has the level.
                unsafe {
                    kernel(
                        y.as_mut_ptr().cast(),
                        row,
                        [(a.as_ptr().cast(), row), (b.as_ptr().cast(), row), (b.as_ptr().cast(), row)],
                        3,
                        WIDTH,
                    )
                };
                y
            };
            let of = |factor: Factor, x: &[f32]| match factor {
                Factor::Sigmoid => run(ElementOp::Unary(UnaryKind::Sigmoid), x, x),
                Factor::Tanh => run(ElementOp::Unary(UnaryKind::Tanh), x, x),
                Factor::Itself => x.to_vec(),
            };
            let factors = [Factor::Sigmoid, Factor::Tanh, Factor::Itself];
            for (first, second) in factors.into_iter().flat_map(|first| factors.map(|second| (first, second))) {
                if product((first, second), level).is_none() {
                    assert!(first > second || first == Factor::Itself, "{first:?} and {second:?} stand in their order");
                    continue;
                }
                for (a, b) in [(&a, &b), (&b, &a)] {
                    let right = run(ElementOp::Binary(BinaryKind::Mul), &of(first, a), &of(second, b));
                    for (at, (got, right)) in run(ElementOp::Gate(first, second), a, b).iter().zip(&right).enumerate() {
                        let is_same = got.to_bits() == right.to_bits() || (got.is_nan() && right.is_nan());
                        assert!(is_same, "{level:?}: {first:?} of {} times {second:?} of {} is {right}, not {got}", a[at], b[at]);
                    }
                }
            }
        }
    }
}
