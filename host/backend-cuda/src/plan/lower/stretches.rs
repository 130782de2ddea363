//! What looks at stretches of a value, lowered: axes that are kept say which stretch, the others walk it.

use cellwright_cell_graph::typed::{Compute, Operation, ReduceKind};

use super::super::view::{Element, Space, View, row_major};
use super::{Lowering, Why};
use crate::abi::{GroupInstruction, flag, op};

/// A stretch of at most so many elements has one thread,
const BY_THREAD: usize = 16;
/// of at most so many a warp, as has each of several,
const BY_WARP: usize = 256;
/// that is, of at least so many; any other has the block.
const SEVERAL: usize = 4;

/// Elements that are looked at for the first few of an order, at most: the kernel looks at all of them for each, and nobody can interrupt it.
const TOP_LOOKS_MAX: usize = 1 << 26;

fn walked_by((outer, inner): (usize, usize)) -> u32 {
    if inner <= BY_THREAD {
        0
    } else if inner <= BY_WARP || outer >= SEVERAL {
        flag::BY_WARP
    } else {
        flag::BY_BLOCK
    }
}

/// What an operation is for the kernel.
struct Along {
    instruction: GroupInstruction,
    axes: Vec<usize>,
    /// Whether its results have the source's axes; if not, those it is along are gone from them.
    has_axes: bool,
    takes_integers: bool,
}

impl Along {
    fn new(op: u32, axes: Vec<usize>) -> Self {
        Self { instruction: GroupInstruction { op, ..GroupInstruction::default() }, axes, has_axes: true, takes_integers: false }
    }

    fn normalizing(op: u32, axes: Vec<usize>, epsilon: f32) -> Self {
        let along = Self::new(op, axes);
        Self { instruction: GroupInstruction { epsilon, ..along.instruction }, ..along }
    }

    fn reducing(op: u32, axes: Vec<usize>) -> Self {
        Self { has_axes: false, takes_integers: true, ..Self::new(op, axes) }
    }

    /// The first few of an order.
    fn top(axes: Vec<usize>, k: u32, flags: u32, has_axes: bool) -> Self {
        let along = Self::reducing(op::TOP, axes);
        Self { instruction: GroupInstruction { k, flags, ..along.instruction }, has_axes, ..along }
    }

    fn of(compute: &Compute, rank: usize) -> Option<Self> {
        let one = |axis: u32| vec![axis as usize];
        let from = |axis: u32| (axis as usize..rank).collect::<Vec<_>>();
        Some(match compute {
            Compute::Softmax { axis } => Self::new(op::SOFTMAX, one(*axis)),
            Compute::LogSoftmax { axis } => Self::new(op::LOG_SOFTMAX, one(*axis)),
            Compute::LayerNormalization { axis, epsilon } => Self::normalizing(op::STANDARDIZE, from(*axis), *epsilon),
            Compute::RmsNormalization { axis, epsilon } => Self::normalizing(op::ROOT_MEAN_SQUARE, from(*axis), *epsilon),
            Compute::ArgMax { axis, select_last } => Self::top(one(*axis), 1, if *select_last { flag::LAST } else { 0 }, false),
            Compute::TopK { axis, k, largest } => Self::top(one(*axis), *k, if *largest { 0 } else { flag::SMALLEST }, true),
            Compute::Reduce { kind, axes } => {
                let axes = axes.iter().map(|axis| *axis as usize).collect();
                match kind {
                    ReduceKind::Sum => Self::reducing(op::SUM, axes),
                    ReduceKind::Mean => Self::reducing(op::MEAN, axes),
                    ReduceKind::Max => Self::top(axes, 1, 0, false),
                }
            }
            _ => return None,
        })
    }

    /// How far it is from one element of a result to the next, along the source's axes in that order, of which the first are kept.
    fn strides(&self, result: &View, order: &[usize]) -> Vec<i64> {
        if self.has_axes {
            return order.iter().map(|axis| result.strides[*axis]).collect();
        }
        // What is reduced does not move. Whether its axes stay, with an extent of 1, or go, the rest lies in the same order.
        let kept = &order[..order.len() - self.axes.len()];
        let stays = result.shape.len() == order.len();
        let extents: Vec<usize> = kept.iter().enumerate().map(|(at, axis)| result.shape[if stays { *axis } else { at }]).collect();
        [row_major(&extents), vec![0; self.axes.len()]].concat()
    }
}

impl Lowering<'_> {
    pub(super) fn along(&mut self, operation: &Operation) -> Result<(), Why> {
        let source = self.batched(operation.operands[0])?;
        if let Some(kept) = self.kept(&source) {
            return self.best(operation, &source, kept);
        }
        let along = Along::of(&operation.compute, source.shape.len())
            .filter(|along| source.element == Element::F32 || (along.takes_integers && source.element != Element::Bool))
            .ok_or_else(|| format!("{:?} of {}", operation.compute, self.value(operation.operands[0]).datatype))?;
        let kept = (0..source.shape.len()).filter(|axis| !along.axes.contains(axis));
        let order: Vec<usize> = kept.chain(along.axes.iter().copied()).collect();
        let mut sources = vec![source.permuted(&order)];
        for id in &operation.operands[1..] {
            sources.push(self.spread(*id, &source.shape)?.permuted(&order));
        }
        let mut results = Vec::new();
        for id in &operation.results {
            let result = self.define(*id)?;
            self.known.insert(*id, result.clone());
            results.push(Some(result));
        }
        if matches!(operation.compute, Compute::ArgMax { .. }) {
            // Positions are the second result, and the elements themselves nobody asks for.
            results.insert(0, None);
        }
        let nowhere = vec![0; order.len()];
        let of_results =
            results.iter().map(|result| result.as_ref().map_or_else(|| nowhere.clone(), |result| along.strides(result, &order)));
        let strides: Vec<Vec<i64>> = sources.iter().map(|view| view.strides.clone()).chain(of_results).collect();
        let extents: Vec<usize> = order.iter().map(|axis| source.shape[*axis]).collect();
        let space = Space::new(&extents, order.len() - along.axes.len(), &strides);
        if let Compute::TopK { k, .. } = &operation.compute {
            let ((outer, inner), k) = (space.counts(), *k as usize);
            if outer.checked_mul(inner).and_then(|elements| elements.checked_mul(k)).is_none_or(|looks| looks > TOP_LOOKS_MAX) {
                return Err(format!("the first {k} of {inner} elements, {outer} times a row: more than {TOP_LOOKS_MAX} comparisons"));
            }
        }
        let mut instruction = along.instruction;
        instruction.flags |= walked_by(space.counts());
        let before = self.lowered.items.len();
        self.instruction(instruction, &space, &sources, &results)?;
        // A stretch's elements are not divided among threads as single ones are.
        for item in &mut self.lowered.items[before..] {
            item.reads.iter_mut().chain(&mut item.writes).for_each(|(_, in_order)| *in_order = false);
        }
        Ok(())
    }
}
