//! Orders steps and forms groups: what is element-wise and of one width runs tile by tile, intermediate values in registers.

use std::collections::{BTreeMap, BTreeSet};

use super::lower::{LowOp, Lowered, Operand, Val};
use super::storage::Storage;
use super::{
    Assembly, Group, Input, Instruction, LeftPlace, Linear, Lookup, Output, Packed, Place, Plan, Pointed, Projection, Source, Step,
    StepKind, TILE, Whole, gates, moves, project,
};
use crate::cache;
use crate::kernels::element::{Element, ElementOp};
use crate::kernels::rows::Shape;
use crate::level::{Kernels, Level};
use crate::matrix::{Packs, Product};
use crate::memory::Lines;

/// What is done at once: an operation by itself, or several element-wise ones of equal width.
#[derive(Debug)]
enum Work {
    Single(usize),
    Fused(Vec<usize>),
}

/// Makes the plan.
pub(super) fn plan(mut lowered: Lowered, (level, kernels): (Level, Kernels), packs: &mut Packs) -> Result<Plan, String> {
    project::fold(&mut lowered, level);
    gates::fold(&mut lowered);
    let storage = Storage::share(&mut lowered);
    let order = order(&lowered);
    let registers = registers(&lowered, &storage, &order);
    let mut is_made = vec![false; lowered.values.len()];
    lowered.inputs.iter().copied().chain(lowered.ops.iter().flat_map(LowOp::results)).for_each(|value| is_made[value.0] = true);
    let (packed, packings) = moves::packed(&lowered);
    let pointed = moves::pointed(&lowered, &storage);
    let is_packed_alone = |value: Val| packed.get(&value).is_some_and(|packed| packed.alone) && !storage.is_shared(value);
    let (places, strides) = storage.allocate(&lowered, |value| is_made[value.0] && !registers[value.0] && !is_packed_alone(value));
    let output = |value: &Val| {
        let place = places[value.0].ok_or_else(|| "a value without a place".to_owned())?;
        Ok(Output { place, pointed: pointed.get(value).copied(), bytes: lowered.values[value.0].bytes() })
    };
    let outputs = lowered.outputs.iter().map(output).collect::<Result<_, String>>()?;
    let input = |value: &Val| {
        let low = lowered.values[value.0];
        Input {
            place: places[value.0],
            packed: packed.get(value).map(|packed| packed.at.clone()).unwrap_or_default(),
            pointed: pointed.get(value).copied(),
            bytes: low.bytes(),
            element: low.element,
        }
    };
    let inputs = lowered.inputs.iter().map(input).collect();
    let pointed_count = pointed.len();
    let packed = packed.into_iter().map(|(value, packed)| (value, packed.at)).collect();
    let mut builder = Builder {
        level,
        kernels,
        packs,
        places,
        packed,
        pointed,
        constants: Vec::new(),
        constant_of: BTreeMap::new(),
        register_bytes: 0,
        steps: Vec::new(),
    };
    let Lowered { values, constants, ops, .. } = lowered;
    let sizes: Vec<(Element, usize)> = values.iter().map(|value| (value.element, value.count)).collect();
    let mut ops: Vec<Option<LowOp>> = ops.into_iter().map(Some).collect();
    for work in order {
        match work {
            Work::Single(index) => {
                if let Some(op) = ops[index].take() {
                    builder.single(op, &sizes, &constants)?;
                }
            }
            Work::Fused(indices) => {
                let group: Vec<LowOp> = indices.iter().filter_map(|index| ops[*index].take()).collect();
                builder.group(&group, &sizes, &constants)?;
            }
        }
    }
    let Builder { constants, register_bytes, steps, .. } = builder;
    let mut plan =
        Plan { inputs, outputs, strides, packings, pointed: pointed_count, register_bytes, constants, steps, is_read_by_all: false };
    plan.stands_beside(0);
    let is_cached = cache::keeps(plan.products().1);
    plan.steps.iter_mut().filter_map(|step| step.kind.product_mut()).for_each(|product| product.set_cached(is_cached));
    Ok(plan)
}

pub(super) fn values_of(operands: &[Operand]) -> impl Iterator<Item = Val> {
    operands.iter().filter_map(|operand| operand.value())
}

/// Everything in an order in which it can be done: what is not element-wise as early as it can, so that groups become large.
///
/// A cell has thousands of operations, and a million values if it likes: each is looked at when what it reads is known, not again and again until then.
fn order(lowered: &Lowered) -> Vec<Work> {
    let mut waiting = Waiting::of(lowered);
    let mut order = Vec::new();
    loop {
        if let Some(index) = waiting.singles.pop_first() {
            waiting.done(index);
            order.push(Work::Single(index));
            continue;
        }
        // Of those that can be done the first says how wide the group is.
        let Some(width) = waiting.elements.first().map(|index| waiting.width(*index)) else { break };
        let mut fused = Vec::new();
        while let Some(index) = waiting.by_width.get_mut(&width).and_then(BTreeSet::pop_first) {
            waiting.elements.remove(&index);
            waiting.done(index);
            fused.push(index);
        }
        order.push(Work::Fused(fused));
    }
    assert!(waiting.unknown.iter().all(|unknown| *unknown == 0), "operands stand before results");
    order
}

/// Operations that are not done yet.
struct Waiting<'a> {
    lowered: &'a Lowered,
    /// By operation: how many of its operands are not known.
    unknown: Vec<usize>,
    /// By value: operations that read it, as often as they do.
    readers: Vec<Vec<usize>>,
    /// Those that can be done: element-wise ones, all of them and by width, and others.
    elements: BTreeSet<usize>,
    by_width: BTreeMap<usize, BTreeSet<usize>>,
    singles: BTreeSet<usize>,
}

impl<'a> Waiting<'a> {
    fn of(lowered: &'a Lowered) -> Self {
        let (unknown, readers) = (vec![0; lowered.ops.len()], vec![Vec::new(); lowered.values.len()]);
        let (elements, by_width, singles) = Default::default();
        let mut waiting = Self { lowered, unknown, readers, elements, by_width, singles };
        let mut is_input = vec![false; lowered.values.len()];
        lowered.inputs.iter().for_each(|input| is_input[input.0] = true);
        for (index, op) in lowered.ops.iter().enumerate() {
            for value in values_of(&op.operands()).filter(|value| !is_input[value.0]) {
                waiting.unknown[index] += 1;
                waiting.readers[value.0].push(index);
            }
        }
        for index in 0..lowered.ops.len() {
            if waiting.unknown[index] == 0 {
                waiting.enter(index);
            }
        }
        waiting
    }

    /// Elements of a row of what an operation makes.
    fn width(&self, index: usize) -> usize {
        self.lowered.ops[index].results().next().map_or(0, |result| self.lowered.values[result.0].count)
    }

    /// Everything that an operation reads is known.
    fn enter(&mut self, index: usize) {
        if matches!(self.lowered.ops[index], LowOp::Element { .. }) {
            self.elements.insert(index);
            self.by_width.entry(self.width(index)).or_default().insert(index);
        } else {
            self.singles.insert(index);
        }
    }

    fn done(&mut self, index: usize) {
        for result in self.lowered.ops[index].results() {
            for reader in std::mem::take(&mut self.readers[result.0]) {
                self.unknown[reader] -= 1;
                if self.unknown[reader] == 0 {
                    self.enter(reader);
                }
            }
        }
    }
}

/// For each value whether it lives in a register: made and used by one group alone.
fn registers(lowered: &Lowered, storage: &Storage, order: &[Work]) -> Vec<bool> {
    let mut group_of = vec![None; lowered.values.len()];
    for (number, work) in order.iter().enumerate() {
        let Work::Fused(indices) = work else { continue };
        for index in indices {
            lowered.ops[*index].results().for_each(|result| group_of[result.0] = Some(number));
        }
    }
    let mut is_register: Vec<bool> =
        (0..lowered.values.len()).map(|value| group_of[value].is_some() && !storage.is_shared(Val(value))).collect();
    lowered.outputs.iter().for_each(|output| is_register[output.0] = false);
    for (number, work) in order.iter().enumerate() {
        let indices = match work {
            Work::Single(index) => std::slice::from_ref(index),
            Work::Fused(indices) => indices.as_slice(),
        };
        for value in indices.iter().flat_map(|index| values_of(&lowered.ops[*index].operands()).collect::<Vec<_>>()) {
            is_register[value.0] &= group_of[value.0] == Some(number);
        }
    }
    is_register
}

struct Builder<'a> {
    level: Level,
    kernels: Kernels,
    packs: &'a mut Packs,
    places: Vec<Option<Place>>,
    packed: BTreeMap<Val, Vec<Packed>>,
    pointed: BTreeMap<Val, Pointed>,
    constants: Vec<Lines>,
    /// Constants by number and how often they are repeated.
    constant_of: BTreeMap<(usize, usize), usize>,
    register_bytes: usize,
    steps: Vec<Step>,
}

impl Builder<'_> {
    fn place(&self, value: Val) -> Result<Place, String> {
        self.places[value.0].ok_or_else(|| "a value without a place".to_owned())
    }

    /// Where a product's term reads a value that has so many of its rows. A product may read floats that are packed for another.
    fn left(&self, value: Val, lead: usize, (product, term): (&Product, usize)) -> Result<LeftPlace, String> {
        let packed = self.packed.get(&value).filter(|_| lead == 1).into_iter().flatten();
        match packed.copied().find(|packed| product.packing(term) == Some(packed.packing)) {
            Some(packed) => Ok(LeftPlace::Packed(packed)),
            None if let Some(pointed) = self.pointed.get(&value) => Ok(LeftPlace::Pointed(*pointed)),
            None => self.place(value).map(LeftPlace::Floats),
        }
    }

    /// A constant, so many times one after the other.
    fn constant(&mut self, constants: &[Vec<u8>], number: usize, times: usize) -> usize {
        *self.constant_of.entry((number, times)).or_insert_with(|| {
            let bytes = constants[number].repeat(times);
            let mut lines = Lines::zeroed(bytes.len());
            lines.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            self.constants.push(lines);
            self.constants.len() - 1
        })
    }

    /// Where a value is that is not in a register.
    fn lasting(&self, value: Val) -> Option<Source> {
        self.pointed.get(&value).copied().map(Source::Pointed).or_else(|| self.places[value.0].map(Source::Buffer))
    }

    fn push(&mut self, kind: StepKind, row_ps: usize) {
        self.steps.push(Step { kind, row_ps });
    }

    fn single(&mut self, op: LowOp, sizes: &[(Element, usize)], constants: &[Vec<u8>]) -> Result<(), String> {
        match op {
            LowOp::Linear { product, lefts, begin, lead, n, result } => {
                let lefts = lefts
                    .into_iter()
                    .enumerate()
                    .map(|(term, (left, k))| Ok((self.left(left, lead, (&product, term))?, k)))
                    .collect::<Result<_, String>>()?;
                let begin = begin.and_then(|begin| self.pointed.get(&begin).copied());
                let row_ps = product.flops() * lead * 10;
                let result = self.place(result)?;
                self.push(StepKind::Linear(Linear { product, lefts, lead, n, result, begin }), row_ps);
            }
            LowOp::Assemble { parts, result, .. } => {
                let result = self.place(result)?;
                let mut kept = Vec::new();
                for (operand, copies) in parts {
                    let source = match operand {
                        Operand::Value(value) => Source::Buffer(self.place(value)?),
                        Operand::Constant(number) => Source::Constant(self.constant(constants, number, 1)),
                    };
                    kept.push((source, copies));
                }
                if !kept.is_empty() {
                    let row_ps = kept.iter().map(|(_, copies)| copies.row_ps()).sum();
                    self.push(StepKind::Assembly(Assembly { parts: kept, result }), row_ps);
                }
            }
            LowOp::Lookup { table, table_rows, row_bytes, index, result } => {
                let (index_element, count) = sizes[index.0];
                let (index, result) = (self.place(index)?, self.place(result)?);
                let row_ps = count * (20_000 + row_bytes * 50);
                self.push(StepKind::Lookup(Lookup { table, table_rows, row_bytes, index, index_element, count, result }), row_ps);
            }
            LowOp::Whole { op, outer, n, k, epsilon, source, result, second } => {
                let kernel = op.kernel(sizes[source.0].0, self.level).ok_or_else(|| format!("{op:?}"))?;
                let shape = Shape { outer, n, k, epsilon };
                let second = second.map(|second| self.place(second)).transpose()?;
                let (source, result) = (self.place(source)?, self.place(result)?);
                self.push(StepKind::Whole(Whole { kernel, shape, source, result, second }), outer * (n + 16) * 500);
            }
            LowOp::Project { product, lefts, op, k, of, n, result, second } => {
                let wanted = project::Wanted::new((op, k), of, n, self.level).ok_or_else(|| format!("{op:?}"))?;
                let lefts = lefts.into_iter().map(|(left, _)| self.place(left)).collect::<Result<_, String>>()?;
                let second = second.map(|second| self.place(second)).transpose()?;
                let screen = if op.is_arg_max() && of.is_none() { self.packs.screen(&product, (self.level, self.kernels)) } else { None };
                let (row_ps, result) = (product.flops() * 10, self.place(result)?);
                self.push(StepKind::Project(Projection { product, screen, lefts, wanted, result, second }), row_ps);
            }
            // A view is a place.
            LowOp::View { .. } => {}
            LowOp::Element { .. } => self.group(&[op], sizes, constants)?,
        }
        Ok(())
    }

    fn group(&mut self, ops: &[LowOp], sizes: &[(Element, usize)], constants: &[Vec<u8>]) -> Result<(), String> {
        let Some(LowOp::Element { result, .. }) = ops.first() else { return Ok(()) };
        let width = sizes[result.0].1;
        let tile_rows = (TILE / width).max(1);
        let register = (tile_rows * width * size_of::<u64>()).next_multiple_of(64);
        let mut file = Registers { assigned: BTreeMap::new(), free: Vec::new(), count: 0, bytes: register };
        let mut instructions = Vec::with_capacity(ops.len());
        let mut operations = 0;
        let mut last_read = BTreeMap::new();
        for (at, op) in ops.iter().enumerate() {
            values_of(&op.operands()).for_each(|value| _ = last_read.insert(value, at));
        }
        for (at, op) in ops.iter().enumerate() {
            let LowOp::Element { op, element, operands, result } = op else { continue };
            let mut sources = Vec::with_capacity(3);
            for operand in operands {
                sources.push(match operand {
                    Operand::Constant(number) => Source::Constant(self.constant(constants, *number, tile_rows)),
                    Operand::Value(value) => match self.lasting(*value) {
                        Some(source) => source,
                        None => file.of(*value)?,
                    },
                });
            }
            let into = self.lasting(*result).unwrap_or_else(|| file.take(*result));
            // A register is free again when nothing behind reads it; only then, so that a result never overwrites an operand on the way.
            file.release(|value| last_read.get(&value).is_none_or(|last| *last <= at));
            let kernel = op.kernel(*element, self.level).ok_or_else(|| format!("{op:?}"))?;
            operations += op.count();
            let (first, last) = (sources[0], *sources.last().unwrap_or(&sources[0]));
            let size_of_source = |index: usize| if *op == ElementOp::Where && index == 0 { 1 } else { element.size() };
            instructions.push(Instruction {
                kernel,
                result: into,
                result_size: sizes[result.0].0.size(),
                sources: [first, sources.get(1).copied().unwrap_or(last), last],
                source_sizes: if sources.len() == 3 { [0, 1, 2].map(size_of_source) } else { [element.size(); 3] },
            });
        }
        self.register_bytes = self.register_bytes.max(file.count * register);
        let row_ps = operations * (4_000 + width * 150);
        self.push(StepKind::Group(Group { width, tile_rows, instructions }), row_ps);
        Ok(())
    }
}

/// Registers of a group, given to values and taken back.
struct Registers {
    assigned: BTreeMap<Val, usize>,
    free: Vec<usize>,
    count: usize,
    bytes: usize,
}

impl Registers {
    fn of(&self, value: Val) -> Result<Source, String> {
        self.assigned.get(&value).map(|number| Source::Register(number * self.bytes)).ok_or_else(|| "a value without a place".to_owned())
    }

    fn take(&mut self, value: Val) -> Source {
        let number = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.assigned.insert(value, number);
        Source::Register(number * self.bytes)
    }

    fn release(&mut self, is_done: impl Fn(Val) -> bool) {
        let free = &mut self.free;
        self.assigned.retain(|value, number| {
            let done = is_done(*value);
            if done {
                free.push(*number);
            }
            !done
        });
    }
}
