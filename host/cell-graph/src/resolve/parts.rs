//! Cuts `Concat(x, h)·W` into the sum `x·W₁ + h·W₂` where `x` is known before `h`.
//!
//! Hoisting then finds in such a cell what it finds in cells that are written as a sum. The cut is
//! made once, when a cell is resolved, for every backend and the reference. A cell's sums, and the
//! numbers that a precision rounds, are those of the cut form. Its identity is that of the written
//! form.
//!
//! A backend that computes sums input by input ([`crate::hoist::by_input`]) cuts further. That
//! changes the order of a sum. In int8 it would also change the rounding, because a row has one
//! scale for all the numbers that are multiplied. So in int8 such a cell is cut that far for
//! everyone ([`cut_by_input`]), here and only once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{CellFault, ResolveContext};
use crate::datatype::Datatype;
use crate::hoist::{DEPTH_LEAST, Dependence};
use crate::sums::TERMS;
use crate::tensor::Tensor;
use crate::typed::{BinaryKind, Compute, Operation, Origin, TypedCell, Value, ValueId};

/// Parts of a concatenation that stand side by side and are of one kind.
struct Group<K> {
    parts: Vec<ValueId>,
    kind: K,
    /// Which rows of the weight they are multiplied by.
    start: usize,
    depth: usize,
}

/// A piece of a weight: the tensor, whether it is transposed, the first of its rows and how many.
type Piece = (*const Tensor, bool, usize, usize);

struct Cutting<'a, K> {
    cell: &'a mut TypedCell,
    may_copy: &'a dyn Fn(u64) -> bool,
    /// By value of what was written: parts of one kind stay together.
    kinds: Vec<K>,
    pieces: BTreeMap<Piece, ValueId>,
    /// Bytes of pieces that may yet be made: a weight may be shared by any number of products.
    bytes_left: u64,
    /// That there was no room for a piece.
    refused: Option<CellFault>,
}

/// Cuts every product of a cell that hoisting gains by, as long as its weights and their pieces take no more than they may; whether there was one.
pub(super) fn cut(cell: &mut TypedCell, context: &ResolveContext<'_>) -> Result<bool, CellFault> {
    if cell.spans.iter().any(Option::is_some) {
        return Ok(false);
    }
    let known = Dependence::of(cell).known(cell);
    let bytes_left = cell.weight_bytes.min(context.limits.weight_bytes_max.saturating_sub(cell.weight_bytes));
    cut_by(cell, known, bytes_left, context.may_copy)
}

/// Cuts every product of a cell that can be between any two values of a concatenation, as long as pieces take no more than all its weights do.
pub(crate) fn cut_all(cell: &mut TypedCell, may_copy: &dyn Fn(u64) -> bool) -> Result<(), CellFault> {
    let (each, bytes_left) = ((0..cell.values.len()).collect(), cell.weight_bytes);
    if cut_by(cell, each, bytes_left, may_copy)? {
        super::tidy(cell);
    }
    Ok(())
}

/// A cell of integers, cut between all inputs if its sums can be computed input by input.
pub(super) fn cut_by_input(cell: TypedCell, context: &ResolveContext<'_>) -> Result<TypedCell, CellFault> {
    let mut cut = cell.clone();
    cut_all(&mut cut, context.may_copy)?;
    Ok(if crate::hoist::by_input(&cut).is_some() { cut } else { cell })
}

fn cut_by<K: Copy + PartialEq>(
    cell: &mut TypedCell,
    kinds: Vec<K>,
    bytes_left: u64,
    may_copy: &dyn Fn(u64) -> bool,
) -> Result<bool, CellFault> {
    let mut cutting = Cutting { cell, may_copy, kinds, pieces: BTreeMap::new(), bytes_left, refused: None };
    let operations = std::mem::take(&mut cutting.cell.operations);
    let concats: BTreeMap<ValueId, Operation> = operations
        .iter()
        .filter(|operation| matches!(operation.compute, Compute::Concat { .. }))
        .map(|operation| (operation.results[0], operation.clone()))
        .collect();
    let mut is_cut = false;
    for operation in operations {
        let concat = operation.operands.first().and_then(|left| concats.get(left));
        match concat.and_then(|concat| cutting.product(&operation, concat)) {
            Some(terms) => {
                cutting.cell.operations.extend(terms);
                is_cut = true;
            }
            None => cutting.cell.operations.push(operation),
        }
    }
    cutting.refused.map_or(Ok(is_cut), Err)
}

impl<K: Copy + PartialEq> Cutting<'_, K> {
    /// The operations that a product of a concatenation becomes; none if it stays as it is.
    fn product(&mut self, linear: &Operation, concat: &Operation) -> Option<Vec<Operation>> {
        let Compute::Linear { transposed, alpha, beta } = linear.compute else { return None };
        let summand = linear.operands.get(2).copied();
        if summand.is_some_and(|id| self.cell.value(id).batched) {
            return None;
        }
        let groups = self.groups(concat)?;
        let weights = self.weights(&groups, linear.operands[1], transposed)?;
        let result = linear.results[0];
        let mut operations = Vec::new();
        let mut total: Option<ValueId> = None;
        for (number, (group, weight)) in groups.iter().zip(weights).enumerate() {
            let left = self.left(group, concat, &mut operations);
            let operands = [left, weight].into_iter().chain(summand.filter(|_| number == 0)).collect();
            let term = self.like(result);
            operations.push(Operation { compute: Compute::Linear { transposed, alpha, beta }, operands, results: vec![term] });
            total = Some(match total {
                None => term,
                Some(before) => {
                    let sum = if number + 1 == groups.len() { result } else { self.like(result) };
                    operations.push(Operation {
                        compute: Compute::Binary(BinaryKind::Add),
                        operands: vec![before, term],
                        results: vec![sum],
                    });
                    sum
                }
            });
        }
        Some(operations)
    }

    /// The parts by kind, if that is not the same for all and each is worth a product.
    fn groups(&self, concat: &Operation) -> Option<Vec<Group<K>>> {
        let whole = self.cell.value(concat.results[0]);
        if concat.compute != (Compute::Concat { axis: u32::try_from(whole.shape.len().checked_sub(1)?).ok()? }) {
            return None;
        }
        let mut groups: Vec<Group<K>> = Vec::new();
        for part in &concat.operands {
            let value = self.cell.value(*part);
            if !value.batched {
                return None;
            }
            let (kind, extent) = (*self.kinds.get(part.0 as usize)?, *value.shape.last()?);
            match groups.last_mut() {
                Some(group) if group.kind == kind => {
                    group.parts.push(*part);
                    group.depth += extent;
                }
                before => {
                    let start = before.map_or(0, |group| group.start + group.depth);
                    groups.push(Group { parts: vec![*part], kind, start, depth: extent });
                }
            }
        }
        let is_worth_it = (2..=TERMS).contains(&groups.len()) && groups.iter().all(|group| group.depth >= DEPTH_LEAST);
        is_worth_it.then_some(groups)
    }

    /// The rows of a weight that each group is multiplied by.
    fn weights(&mut self, groups: &[Group<K>], weight: ValueId, transposed: bool) -> Option<Vec<ValueId>> {
        let Origin::Constant(tensor) = &self.cell.value(weight).origin else { return None };
        let tensor = tensor.clone();
        let is_float = tensor.datatype == Datatype::Fp32 && tensor.shape.len() == 2 && tensor.is_consistent();
        let depth = groups.last().map(|group| group.start + group.depth);
        if !is_float || depth != Some(tensor.shape[usize::from(transposed)]) {
            return None;
        }
        let of = |group: &Group<K>| (Arc::as_ptr(&tensor), transposed, group.start, group.depth);
        let columns = tensor.shape[usize::from(!transposed)];
        let new = groups.iter().filter(|group| !self.pieces.contains_key(&of(group)));
        let bytes: u64 = new.map(|group| (group.depth * columns * size_of::<f32>()) as u64).sum();
        self.bytes_left = self.bytes_left.checked_sub(bytes)?;
        if !(self.may_copy)(bytes) {
            self.refused = Some(CellFault::NoRoom { bytes });
            return None;
        }
        let piece = |group: &Group<K>| {
            if let Some(piece) = self.pieces.get(&of(group)) {
                return *piece;
            }
            let rows = Arc::new(rows(&tensor, transposed, group));
            let (datatype, shape, name) = (rows.datatype, rows.shape.clone(), rows.name.clone());
            let piece = push(self.cell, Value { name, datatype, shape, batched: false, span: None, origin: Origin::Constant(rows) });
            self.pieces.insert(of(group), piece);
            piece
        };
        Some(groups.iter().map(piece).collect())
    }

    /// A group as one value: its only part, or its parts side by side.
    fn left(&mut self, group: &Group<K>, concat: &Operation, operations: &mut Vec<Operation>) -> ValueId {
        if let [part] = group.parts[..] {
            return part;
        }
        let whole = self.cell.value(concat.results[0]).clone();
        let mut shape = whole.shape.clone();
        shape.iter_mut().last().into_iter().for_each(|extent| *extent = group.depth);
        let together = push(self.cell, Value { shape, ..whole });
        operations.push(Operation { compute: concat.compute.clone(), operands: group.parts.clone(), results: vec![together] });
        together
    }

    /// A new value like that one.
    fn like(&mut self, id: ValueId) -> ValueId {
        let value = self.cell.value(id).clone();
        push(self.cell, value)
    }
}

/// Where it comes from is said when operations are numbered anew.
fn push(cell: &mut TypedCell, value: Value) -> ValueId {
    cell.values.push(value);
    ValueId(u32::try_from(cell.values.len() - 1).unwrap_or(u32::MAX))
}

/// The rows of `[K, N]`, or the columns of `[N, K]`, that a group is multiplied by.
fn rows<K>(tensor: &Tensor, transposed: bool, group: &Group<K>) -> Tensor {
    let (outer, inner) = (tensor.shape[0], tensor.shape[1] * size_of::<f32>());
    let (data, shape) = if transposed {
        let stretch = group.start * size_of::<f32>()..(group.start + group.depth) * size_of::<f32>();
        let mut data = Vec::with_capacity(outer * stretch.len());
        tensor.data.chunks_exact(inner.max(1)).take(outer).for_each(|row| data.extend_from_slice(&row[stretch.clone()]));
        (data, vec![outer, group.depth])
    } else {
        (tensor.data[group.start * inner..(group.start + group.depth) * inner].to_vec(), vec![group.depth, tensor.shape[1]])
    };
    let name = format!("{} from {}", tensor.name, group.start);
    Tensor { name, datatype: tensor.datatype, shape, data }
}
