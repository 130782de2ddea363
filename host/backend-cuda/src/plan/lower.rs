//! From a cell's operations to products and instructions of groups: what is only seen differently (slices, splits, reshapes, broadcasts) becomes a view,
//! everything else something that is computed, with its axes and strides resolved.

mod best;
mod elements;
mod products;
mod recurrent;
mod stretches;

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::sums::{self, Summed};
use cellwright_cell_graph::typed::{Compute, Operation, Origin, Value, ValueId};
use cellwright_cell_graph::unfolded::WINDOW_ROWS_MAX;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use super::best::{Best, Kept, find};
use super::recurrence::Gated;
use super::view::{Base, Element, Space, View};
use super::{Arithmetic, Blob, Frame, Product, Recurrence};
use crate::abi::{GROUP_AXES, GroupInstruction, GroupOperand, Outlet, Port, op};

/// Why a cell cannot be lowered: what of it cannot run.
pub(super) type Why = String;

/// Elements that all instructions of a row look at, at most. One block has a row, which looks at about one in a nanosecond: a cell that needs more takes longer for a
/// row than it may, and one that needs many times as many would have its device taken for lost ([`WAIT_MAX`](crate::driver::WAIT_MAX)), by measuring it.
const LOOKS_MAX: usize = 1 << 30;

/// What is computed at once.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    Product(Product),
    Best(Best),
    Instruction(Box<GroupInstruction>),
}

/// One thing to compute.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) work: Work,
    /// The row's values that it reads, each with whether a thread reads there no element but those that it has in the instruction's own order.
    pub(super) reads: Vec<(usize, bool)>,
    /// Those that it writes (some of), and the same of that.
    pub(super) writes: Vec<(usize, bool)>,
}

/// Values of a row as others than its items see them.
#[derive(Debug)]
pub(super) struct Seen {
    /// Of each input.
    pub(super) inputs: Vec<usize>,
    /// Those in which the sums of such a step begin.
    pub(super) begins: Vec<usize>,
    /// Those that outputs are of.
    pub(super) outputs: Vec<usize>,
    /// What a step with kernels of its own leaves.
    pub(super) states: [usize; 2],
}

/// A cell in few kinds of work, in an order in which it can be computed.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) frame: Frame,
    pub(super) inputs: Vec<Port>,
    pub(super) datatypes: Vec<Datatype>,
    pub(super) pieces: Vec<u32>,
    pub(super) outlets: Vec<Outlet>,
    pub(super) items: Vec<Item>,
    pub(super) blobs: Vec<Blob>,
    /// Its step, if it has kernels of its own.
    pub(super) recurrence: Option<(Recurrence, Seen)>,
    /// The row's values of which outputs are.
    pub(super) given: Vec<usize>,
    /// What its weights take as packed, whether they were or not.
    pub(super) packed_bytes: u64,
}

/// Lowers a cell; its weights are packed as long as they take no more than so many bytes together.
pub(super) fn lower(cell: &TypedCell, arithmetic: Arithmetic, weight_bytes_most: u64, has_recurrences: bool) -> Result<Lowered, Why> {
    let lowered = Lowered {
        frame: Frame::new(),
        inputs: Vec::new(),
        datatypes: Vec::new(),
        pieces: Vec::new(),
        outlets: Vec::new(),
        items: Vec::new(),
        blobs: Vec::new(),
        recurrence: None,
        given: Vec::new(),
        packed_bytes: 0,
    };
    let mut lowering = Lowering {
        cell,
        arithmetic,
        lowered,
        best: find(cell),
        candidates: BTreeMap::new(),
        known: BTreeMap::new(),
        rounded_states: BTreeMap::new(),
        tensors: BTreeMap::new(),
        packed: BTreeMap::new(),
        values: 0,
        launches: 0,
        slabs: 0,
        looks: 0,
        weight_bytes_most,
    };
    for (index, port) in cell.inputs.iter().enumerate() {
        let id = ValueId(index as u32);
        let view = lowering.define(id)?;
        lowering.lowered.inputs.push(Port { place: narrow(view.at)?, bytes: narrow(view.elements() * view.element.size())? });
        lowering.lowered.datatypes.push(port.datatype);
        lowering.lowered.pieces.push(match port.shape[..] {
            [rows, _, ..] if rows <= WINDOW_ROWS_MAX => rows,
            _ => 0,
        });
        lowering.known.insert(id, view);
    }
    let sums = sums::find(cell);
    let gated = Gated::of(cell, &sums).filter(|_| has_recurrences);
    let states = gated.as_ref().map(|gated| lowering.states(gated)).transpose()?;
    for (index, (operation, summed)) in cell.operations.iter().zip(sums).enumerate() {
        match summed {
            _ if gated.as_ref().is_some_and(|gated| gated.operations.contains(&index)) => {}
            Summed::Apart => lowering.operation(operation)?,
            Summed::Inside => {}
            Summed::Whole(sum) => match gated.as_ref().filter(|gated| gated.sums.contains_key(&operation.results[0])) {
                Some(gated) => lowering.sum_without_h(&sum, operation.results[0], gated)?,
                None => lowering.sum(&sum, operation.results[0])?,
            },
        }
    }
    lowering.outputs()?;
    if let (Some(gated), Some(states)) = (&gated, states) {
        lowering.gated(gated, states)?;
    }
    Ok(lowering.lowered)
}

fn narrow(number: usize) -> Result<u32, Why> {
    u32::try_from(number).map_err(|_| "rows of 4 GiB".to_owned())
}

struct Lowering<'a> {
    cell: &'a TypedCell,
    arithmetic: Arithmetic,
    lowered: Lowered,
    /// Of which values nothing but the best few are read.
    best: BTreeMap<ValueId, Kept>,
    /// Values of the row that are candidates.
    candidates: BTreeMap<usize, Kept>,
    known: BTreeMap<ValueId, View>,
    /// States that a step leaves rounded too, and where, if anybody reads them so.
    rounded_states: BTreeMap<ValueId, (View, Option<usize>)>,
    /// Blobs by the tensors that they are.
    tensors: BTreeMap<*const Tensor, usize>,
    /// Blobs by the weights that they were packed of: the tensor, whether it is transposed, and the bits of its factor.
    packed: BTreeMap<(*const Tensor, bool, u32), usize>,
    values: usize,
    /// Of products, and slabs that a block of theirs walks, of all of them.
    launches: usize,
    slabs: usize,
    /// Elements that instructions look at.
    looks: usize,
    weight_bytes_most: u64,
}

impl Lowering<'_> {
    fn value(&self, id: ValueId) -> &Value {
        self.cell.value(id)
    }

    fn element(&self, id: ValueId) -> Result<Element, Why> {
        let datatype = self.value(id).datatype;
        Element::of(datatype).ok_or_else(|| format!("values of datatype {datatype}"))
    }

    /// Room for a new value of the row.
    fn room(&mut self, element: Element, shape: &[usize]) -> View {
        let at = self.lowered.frame.place(shape.iter().product::<usize>() * element.size());
        self.values += 1;
        View::whole(Base::Row(self.values), at, element, shape)
    }

    /// What the batched value of that id is made of.
    fn defined(&self, id: ValueId) -> Result<(Element, Vec<usize>), Why> {
        let element = self.element(id)?;
        let value = self.value(id);
        if !value.batched {
            return Err(format!("`{}`, which does not depend on the input", value.name));
        }
        if value.elements() == 0 {
            return Err(format!("`{}`, which has no elements", value.name));
        }
        Ok((element, value.shape.clone()))
    }

    /// Room for it.
    fn define(&mut self, id: ValueId) -> Result<View, Why> {
        let (element, shape) = self.defined(id)?;
        Ok(self.room(element, &shape))
    }

    fn batched(&self, id: ValueId) -> Result<View, Why> {
        self.known.get(&id).cloned().ok_or_else(|| format!("the constant `{}` in this place", self.value(id).name))
    }

    fn tensor(&self, id: ValueId) -> Result<&Arc<Tensor>, Why> {
        match &self.value(id).origin {
            Origin::Constant(tensor) => Ok(tensor),
            _ => Err(format!("`{}` in this place, which is not constant", self.value(id).name)),
        }
    }

    fn blob(&mut self, blob: Blob) -> usize {
        self.lowered.blobs.push(blob);
        self.lowered.blobs.len() - 1
    }

    /// A value, batched or constant.
    fn view(&mut self, id: ValueId) -> Result<View, Why> {
        if self.value(id).batched {
            return self.batched(id);
        }
        let element = self.element(id)?;
        let tensor = self.tensor(id)?.clone();
        let shape = self.value(id).shape.clone();
        let blob = match self.tensors.get(&Arc::as_ptr(&tensor)) {
            Some(blob) => *blob,
            None => {
                let blob = self.blob(Blob::Tensor(tensor.clone()));
                self.tensors.insert(Arc::as_ptr(&tensor), blob);
                blob
            }
        };
        Ok(View::whole(Base::Blob(blob), 0, element, &shape))
    }

    /// A value as if it had that shape.
    fn spread(&mut self, id: ValueId, shape: &[usize]) -> Result<View, Why> {
        let view = self.view(id)?;
        view.spread(shape).ok_or_else(|| format!("`{}` of shape {:?} spread to {shape:?}", self.value(id).name, view.shape))
    }

    /// What the cell gives, each output in one piece.
    fn outputs(&mut self) -> Result<(), Why> {
        let mut node_offset = 0;
        for output in &self.cell.outputs {
            let mut view = self.batched(output.value)?;
            if !view.is_whole() {
                view = self.copied(&view)?;
            }
            if let Base::Row(value) = view.base {
                self.lowered.given.push(value);
            }
            let bytes = view.elements() * view.element.size();
            let outlet = Outlet { place: narrow(view.at)?, bytes: narrow(bytes)?, node_offset: narrow(node_offset)?, padding: 0 };
            self.lowered.outlets.push(outlet);
            // As `NodeLayout` has it.
            node_offset += bytes.next_multiple_of(cellwright_backend::SLOT_BYTES);
        }
        Ok(())
    }

    fn operation(&mut self, operation: &Operation) -> Result<(), Why> {
        let result_id = operation.results[0];
        let shape = self.value(result_id).shape.clone();
        let first = operation.operands[0];
        match &operation.compute {
            Compute::Linear { .. } => self.linear(operation),
            Compute::Unary(_) | Compute::Binary(_) | Compute::Where | Compute::Cast => self.map(operation),
            Compute::Concat { axis } => self.concat(operation, *axis as usize),
            Compute::Split { axis, sizes } => {
                let whole = self.batched(first)?;
                let mut start = 0;
                for (id, size) in operation.results.iter().zip(sizes) {
                    self.known.insert(*id, whole.sliced(*axis as usize, start, 1, *size as usize));
                    start += *size as usize;
                }
                Ok(())
            }
            Compute::Slice { axes } => {
                let mut view = self.batched(first)?;
                for (axis, start, step) in axes {
                    let axis = *axis as usize;
                    view = view.sliced(axis, *start as usize, i64::from(*step), shape[axis]);
                }
                self.known.insert(result_id, view);
                Ok(())
            }
            Compute::Reshape => {
                let view = self.batched(first)?;
                let view = match view.reshaped(&shape) {
                    Some(view) => view,
                    None => self.copied(&view)?.reshaped(&shape).ok_or("a reshape of another size")?,
                };
                self.known.insert(result_id, view);
                Ok(())
            }
            Compute::Gather => self.gather(operation),
            Compute::Softmax { .. }
            | Compute::LogSoftmax { .. }
            | Compute::ArgMax { .. }
            | Compute::TopK { .. }
            | Compute::Reduce { .. }
            | Compute::LayerNormalization { .. }
            | Compute::RmsNormalization { .. } => self.along(operation),
            whole => Err(format!("{whole:?}, which sees a whole span")),
        }
    }

    /// An instruction over a space, whose operands are those views with those strides: first the sources, then the results, of which any may be
    /// missing.
    fn instruction(
        &mut self,
        mut instruction: GroupInstruction,
        space: &Space,
        sources: &[View],
        results: &[Option<View>],
    ) -> Result<(), Why> {
        if space.extents.len() > GROUP_AXES {
            return Err(format!("operations over {} axes", space.extents.len()));
        }
        let (outer, inner) = space.counts();
        let times = if instruction.op == op::TOP { instruction.k as usize } else { 1 };
        self.looks = self.looks.saturating_add(outer.saturating_mul(inner).saturating_mul(times));
        if self.looks > LOOKS_MAX {
            return Err(format!("operations that look at {} elements of a row: {LOOKS_MAX} are the most", self.looks));
        }
        (instruction.outer, instruction.inner) = (narrow(outer)?, narrow(inner)?);
        (instruction.axes, instruction.outer_axes) = (space.extents.len() as u32, space.outer_axes as u32);
        for (to, from) in instruction.extents.iter_mut().zip(&space.extents) {
            *to = narrow(*from)?;
        }
        let operand = |view: &View, strides: &[i64]| -> Result<GroupOperand, Why> {
            view.operand(strides).ok_or_else(|| "rows of more than 2³¹ elements".to_owned())
        };
        let in_order = |strides: &[i64]| outer * inner == 1 || (space.extents.len() == 1 && strides == [1]);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        instruction.sources = sources.len() as u32;
        for (number, (view, strides)) in sources.iter().zip(&space.strides).enumerate() {
            instruction.source[number] = operand(view, strides)?;
            if let Base::Row(value) = view.base {
                reads.push((value, in_order(strides)));
            }
        }
        for (number, (view, strides)) in results.iter().zip(&space.strides[sources.len()..]).enumerate() {
            let Some(view) = view else { continue };
            instruction.results |= 1 << number;
            instruction.result[number] = operand(view, strides)?;
            if let Base::Row(value) = view.base {
                writes.push((value, in_order(strides)));
            }
        }
        self.lowered.items.push(Item { work: Work::Instruction(Box::new(instruction)), reads, writes });
        Ok(())
    }
}
