//! Sums of products, lowered.

use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::sums::{self, Sum};
use cellwright_cell_graph::typed::{BinaryKind, Compute, Operation, Precision, ValueId};

use super::{LowOp, Lowering, Operand, Val, Why};
use crate::kernels::element::{Element, ElementOp};
use crate::matrix::rounded::{BYTES_DEPTH_MAX, Rounded};
use crate::matrix::{Form, Product};

impl Lowering<'_> {
    /// A product by itself.
    pub(super) fn linear(&mut self, operation: &Operation) -> Result<(), Why> {
        let Compute::Linear { beta, .. } = operation.compute else { return Ok(()) };
        let result_id = operation.results[0];
        let Some(c) = operation.operands.get(2).copied() else {
            return self.sum(&Sum { linears: vec![operation.clone()], constants: Vec::new(), begin: None }, result_id);
        };
        // A summand that is not one bias for all rows is added element by element.
        let shape = self.value(result_id).shape.clone();
        let mut summand = self.broadcast(c, &shape)?;
        let count = self.value(result_id).elements();
        if beta.to_bits() != 1.0_f32.to_bits() {
            let scale = self.constant(beta.to_le_bytes().repeat(count));
            let scaled = self.new_value(Element::F32, count);
            self.element_op(ElementOp::Binary(BinaryKind::Mul), Element::F32, vec![summand, Operand::Constant(scale)], scaled);
            summand = Operand::Value(scaled);
        }
        let product = self.new_value(Element::F32, count);
        let without = Operation { operands: operation.operands[..2].to_vec(), ..operation.clone() };
        self.product(&Sum { linears: vec![without], constants: Vec::new(), begin: None }, result_id, product)?;
        let result = self.define(result_id)?;
        self.element_op(ElementOp::Binary(BinaryKind::Add), Element::F32, vec![Operand::Value(product), summand], result);
        Ok(())
    }

    pub(super) fn sum(&mut self, sum: &Sum, result: ValueId) -> Result<(), Why> {
        let value = self.define(result)?;
        self.product(sum, result, value)
    }

    /// One product of several terms, with all its constant summands as its bias, or onto a row.
    fn product(&mut self, sum: &Sum, like: ValueId, result: Val) -> Result<(), Why> {
        let shape = &self.value(like).shape;
        let n = *shape.last().ok_or("a product without columns")?;
        let lead = shape.iter().product::<usize>() / n.max(1);
        let mut terms = Vec::new();
        let mut lefts = Vec::new();
        for linear in &sum.linears {
            let Compute::Linear { transposed, alpha, .. } = linear.compute else { continue };
            let w = self.tensor(linear.operands[1])?.clone();
            if w.datatype != Datatype::Fp32 {
                return Err(format!("a product with a weight of datatype {}", w.datatype));
            }
            let k = if transposed { w.shape[1] } else { w.shape[0] };
            if k == 0 {
                return Err("a product over no elements".to_owned());
            }
            lefts.push((self.batched(linear.operands[0])?, k));
            terms.push((w, transposed, alpha));
        }
        let thinnest = lefts.iter().map(|(_, k)| *k).min().unwrap_or(1);
        let form = match Rounded::choose(self.cell.precision, self.level, self.kernels) {
            Some(rounded) if rounded.is_worth(n) => Form::Rounded(rounded),
            _ => Form::choose(self.level, self.kernels, thinnest, n),
        };
        let deepest = lefts.iter().map(|(_, k)| *k).max().unwrap_or(0);
        if self.cell.precision == Precision::Int8 && deepest > BYTES_DEPTH_MAX {
            return Err(format!("a product over {deepest} elements in int8 (over at most {BYTES_DEPTH_MAX})"));
        }
        let mut product = Product::new(form, self.level, n);
        if self.cell.precision == Precision::F16 {
            product.round_to_halves();
        }
        for (w, transposed, alpha) in &terms {
            product.push_weight(self.packs, w, *transposed, *alpha);
        }
        let begin = sum.begin.map(|begin| self.batched(begin)).transpose()?;
        if begin.is_some() {
            product.begin_with_rows();
        } else if !sum.constants.is_empty() {
            product.set_bias(&sums::bias(self.cell, sum, like).ok_or("a bias that is not of floats")?);
        }
        self.lowered.ops.push(LowOp::Linear { product, lefts, begin, lead, n, result });
        Ok(())
    }
}
