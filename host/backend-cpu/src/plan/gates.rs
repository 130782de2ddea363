//! Gates: a product of floats and the sigmoid or tanh that it alone reads become one operation.
//!
//! An LSTM's nine passes over a row become four. Gates stay a step of their own behind the matrix
//! product. Computing them column by column as the product goes on was slower. Between the columns
//! of a gate and the same ones of the next, so many weights pass the second cache that little is
//! left of the first.

use cellwright_cell_graph::typed::{BinaryKind, UnaryKind};

use super::folding::Folding;
use super::lower::{LowOp, Lowered, Operand};
use crate::kernels::element::{Element, ElementOp};
use crate::kernels::gates::Factor;

/// Puts every product of floats together with those of its factors that are functions which nothing else reads.
pub(super) fn fold(lowered: &mut Lowered) {
    let mut folding = Folding::of(lowered);
    for at in 0..folding.ops.len() {
        let Some(LowOp::Element { op: ElementOp::Binary(BinaryKind::Mul), element: Element::F32, operands, .. }) = &folding.ops[at] else {
            continue;
        };
        let [first, second] = operands[..] else { continue };
        let mut factors = [first, second].map(|operand| factor(&folding, operand));
        factors.sort_by_key(|(factor, ..)| *factor);
        let [(first, left, left_maker), (second, right, right_maker)] = factors;
        if first == Factor::Itself {
            continue;
        }
        for maker in [left_maker, right_maker].into_iter().flatten() {
            folding.ops[maker] = None;
        }
        if let Some(LowOp::Element { op, operands, .. }) = &mut folding.ops[at] {
            *op = ElementOp::Gate(first, second);
            *operands = vec![left, right];
        }
    }
    folding.into(lowered);
}

/// What a factor is of what, and which operation that spares.
fn factor(folding: &Folding, operand: Operand) -> (Factor, Operand, Option<usize>) {
    let itself = (Factor::Itself, operand, None);
    let Some(maker) = operand.value().and_then(|value| folding.maker_for_one(value)) else { return itself };
    match &folding.ops[maker] {
        Some(LowOp::Element { op: ElementOp::Unary(kind), element: Element::F32, operands, .. }) => match kind {
            UnaryKind::Sigmoid => (Factor::Sigmoid, operands[0], Some(maker)),
            UnaryKind::Tanh => (Factor::Tanh, operands[0], Some(maker)),
            _ => itself,
        },
        _ => itself,
    }
}
