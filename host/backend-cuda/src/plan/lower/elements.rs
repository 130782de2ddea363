//! What is computed of one element after the other, lowered; and copies, which concatenations are.

use cellwright_cell_graph::typed::{BinaryKind, Compute, Operation, UnaryKind};

use super::super::view::{Element, Space, View};
use super::{Lowering, Why};
use crate::abi::{GroupInstruction, op};

/// The number of an operation on elements of that type; none if there is no such operation.
fn number(compute: &Compute, element: Element) -> Option<u32> {
    match compute {
        Compute::Unary(kind) => unary(*kind, element),
        Compute::Binary(kind) => binary(*kind, element),
        Compute::Where => Some(op::WHERE),
        Compute::Cast => Some(op::CAST),
        _ => None,
    }
}

fn unary(kind: UnaryKind, element: Element) -> Option<u32> {
    let floats = |number| (element == Element::F32).then_some(number);
    let numbers = |number| (element != Element::Bool).then_some(number);
    match kind {
        UnaryKind::Neg => numbers(op::NEG),
        UnaryKind::Relu => numbers(op::RELU),
        UnaryKind::Sigmoid => floats(op::SIGMOID),
        UnaryKind::Tanh => floats(op::TANH),
        UnaryKind::Gelu => floats(op::GELU),
        UnaryKind::GeluTanh => floats(op::GELU_TANH),
        UnaryKind::Silu => floats(op::SILU),
        UnaryKind::Exp => floats(op::EXP),
        UnaryKind::Log => floats(op::LOG),
        UnaryKind::Sqrt => floats(op::SQRT),
        UnaryKind::Not => (element == Element::Bool).then_some(op::NOT),
    }
}

fn binary(kind: BinaryKind, element: Element) -> Option<u32> {
    let numbers = |number| (element != Element::Bool).then_some(number);
    let truths = |number| (element == Element::Bool).then_some(number);
    match kind {
        BinaryKind::Add => numbers(op::ADD),
        BinaryKind::Sub => numbers(op::SUB),
        BinaryKind::Mul => numbers(op::MUL),
        BinaryKind::Div => numbers(op::DIV),
        BinaryKind::Pow => (element == Element::F32).then_some(op::POW),
        BinaryKind::Equal => Some(op::EQUAL),
        BinaryKind::Greater => numbers(op::GREATER),
        BinaryKind::Less => numbers(op::LESS),
        BinaryKind::And => truths(op::AND),
        BinaryKind::Or => truths(op::OR),
    }
}

impl Lowering<'_> {
    /// An instruction of one element after the other.
    pub(super) fn elements(&mut self, op: u32, sources: &[View], result: &View) -> Result<(), Why> {
        let strides: Vec<Vec<i64>> = sources.iter().chain([result]).map(|view| view.strides.clone()).collect();
        let space = Space::new(&result.shape, result.shape.len(), &strides);
        self.instruction(GroupInstruction { op, ..GroupInstruction::default() }, &space, sources, &[Some(result.clone())])
    }

    /// The same elements, one after the other.
    pub(super) fn copied(&mut self, view: &View) -> Result<View, Why> {
        let result = self.room(view.element, &view.shape);
        self.elements(op::COPY, std::slice::from_ref(view), &result)?;
        Ok(result)
    }

    pub(super) fn map(&mut self, operation: &Operation) -> Result<(), Why> {
        let shape = self.value(operation.results[0]).shape.clone();
        // A choice is of its branches.
        let typed_by = operation.operands[usize::from(operation.compute == Compute::Where)];
        let number = number(&operation.compute, self.element(typed_by)?)
            .ok_or_else(|| format!("{:?} of {}", operation.compute, self.value(typed_by).datatype))?;
        let sources = operation.operands.iter().map(|id| self.spread(*id, &shape)).collect::<Result<Vec<_>, _>>()?;
        let result = self.define(operation.results[0])?;
        self.elements(number, &sources, &result)?;
        self.known.insert(operation.results[0], result);
        Ok(())
    }

    pub(super) fn concat(&mut self, operation: &Operation, axis: usize) -> Result<(), Why> {
        let result = self.define(operation.results[0])?;
        let mut start = 0;
        for id in &operation.operands {
            let part = self.view(*id)?.of_rank(result.shape.len()).ok_or_else(|| format!("a batch of `{}`", self.value(*id).name))?;
            let extent = part.shape[axis];
            if extent > 0 {
                self.elements(op::COPY, std::slice::from_ref(&part), &result.sliced(axis, start, 1, extent))?;
            }
            start += extent;
        }
        self.known.insert(operation.results[0], result);
        Ok(())
    }

    pub(super) fn gather(&mut self, operation: &Operation) -> Result<(), Why> {
        let (table, index) = (self.view(operation.operands[0])?, self.batched(operation.operands[1])?);
        if !matches!(index.element, Element::I64 | Element::I32) {
            return Err(format!("Gather by {}", self.value(operation.operands[1]).datatype));
        }
        let Some((rows, rest)) = table.shape.split_first().filter(|(rows, _)| **rows > 0) else {
            return Err("Gather from a table without rows".to_owned());
        };
        let result = self.define(operation.results[0])?;
        let by_index = [index.strides.clone(), vec![0; rest.len()]].concat();
        let by_rest = [vec![0; index.shape.len()], table.strides[1..].to_vec()].concat();
        let strides = [by_index, by_rest, result.strides.clone()];
        let space = Space::new(&[index.shape.as_slice(), rest].concat(), index.shape.len(), &strides);
        let k = u32::try_from(rest.iter().product::<usize>()).map_err(|_| "a table with rows of 2³² elements")?;
        let instruction = GroupInstruction { op: op::LOOKUP, k, table_rows: *rows as u64, ..GroupInstruction::default() };
        let before = self.lowered.items.len();
        self.instruction(instruction, &space, &[index, table], &[Some(result.clone())])?;
        // Whoever checks an index is not always who looks it up.
        self.lowered.items[before..].iter_mut().flat_map(|item| &mut item.reads).for_each(|(_, in_order)| *in_order = false);
        self.known.insert(operation.results[0], result);
        Ok(())
    }
}
