//! Which work is launched together: as many instructions in one group as do not wait for a product in between, and barriers only where a thread needs
//! what another one left.

use std::collections::{BTreeMap, BTreeSet};

use super::lower::{Item, Lowered, Why, Work};
use super::{ALIGNMENT, Ahead, GROUP_THREADS, Kind, Plan, Recurrence, Step, ahead, token};
use crate::abi::{GroupInstruction, flag, op};

/// Puts lowered work into steps.
pub(super) fn plan(lowered: Lowered) -> Result<Plan, Why> {
    let Lowered { mut frame, inputs, datatypes, pieces, outlets, items, blobs, recurrence, .. } = lowered;
    let (recurrence, steps) = match recurrence {
        None => (None, steps(items)),
        Some((recurrence, seen)) => {
            let (before, after) = around(items, &seen.states);
            // A tree's node has no step before it, and no token that its kernels would look up.
            let is_chain = recurrence.kind != Kind::Tree;
            let token = token::find(&before, &after, &seen).filter(|_| is_chain);
            let ahead = ahead::find(&before, &after, &seen, recurrence.inputs).filter(|_| is_chain && recurrence.begin.is_some());
            let ahead = ahead.map(|(early, late)| Ahead { early, late, number: frame.place(size_of::<u64>()) });
            let is_steady = is_chain && !after.iter().any(|item| matches!(&item.work, Work::Instruction(one) if one.op == op::LOOKUP));
            let mut steps = self::steps(before);
            let at = steps.len();
            steps.extend(self::steps(after));
            (Some(Recurrence { at, is_steady, token, ahead, ..recurrence }), steps)
        }
    };
    let stride = frame.bytes.next_multiple_of(ALIGNMENT);
    // Strides of kernels have 32 bits.
    if u32::try_from(stride).is_err() {
        return Err(format!("rows of {stride} bytes"));
    }
    Ok(Plan { stride, inputs, datatypes, pieces, outlets, steps, recurrence, blobs })
}

/// What does not wait for these values, and what does.
fn around(items: Vec<Item>, values: &[usize]) -> (Vec<Item>, Vec<Item>) {
    let mut late: BTreeSet<usize> = values.iter().copied().collect();
    items.into_iter().partition(|item| {
        let waits = item.reads.iter().any(|(value, _)| late.contains(value));
        if waits {
            late.extend(item.writes.iter().map(|(value, _)| *value));
        }
        !waits
    })
}

/// By turns all instructions that can be computed and all products that can.
fn steps(items: Vec<Item>) -> Vec<Step> {
    let mut order = Order::of(&items);
    let mut left: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    let mut steps = Vec::new();
    while order.is_left() {
        let instructions = order.taken(&mut left, true);
        if !instructions.is_empty() {
            steps.push(group(instructions));
        }
        // A product that waits for another one is launched after it: their stream keeps them in order.
        let products = order.taken(&mut left, false);
        steps.extend(products.into_iter().filter_map(|item| match item.work {
            Work::Product(product) => Some(Step::Product(product)),
            Work::Best(best) => Some(Step::Best(best)),
            Work::Instruction(_) => None,
        }));
    }
    steps
}

/// Which items wait for which: each is looked at once, however many turns there are, for a cell may have hundreds of thousands.
struct Order {
    /// For each item how many it waits for, and who waits for it.
    waits: Vec<usize>,
    awaited_by: Vec<Vec<usize>>,
    /// Those that wait for nothing, by number: products and the like, and instructions.
    ready: [BTreeSet<usize>; 2],
}

impl Order {
    /// An item waits for those in front of it that write what it reads.
    fn of(items: &[Item]) -> Self {
        let mut writers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let (mut waits, mut awaited_by) = (vec![0; items.len()], vec![Vec::new(); items.len()]);
        let mut ready = [BTreeSet::new(), BTreeSet::new()];
        for (index, item) in items.iter().enumerate() {
            for writer in item.reads.iter().filter_map(|(value, _)| writers.get(value)).flatten() {
                awaited_by[*writer].push(index);
                waits[index] += 1;
            }
            if waits[index] == 0 {
                ready[usize::from(is_instruction(item))].insert(index);
            }
            item.writes.iter().for_each(|(value, _)| writers.entry(*value).or_default().push(index));
        }
        Self { waits, awaited_by, ready }
    }

    fn is_left(&self) -> bool {
        self.ready.iter().any(|ready| !ready.is_empty())
    }

    /// Takes everything of one kind that waits for nothing that is not done, or taken with it.
    fn taken(&mut self, left: &mut [Option<Item>], instructions: bool) -> Vec<Item> {
        let mut taken = Vec::new();
        while let Some(index) = self.ready[usize::from(instructions)].pop_first() {
            taken.extend(left[index].take());
            for other in std::mem::take(&mut self.awaited_by[index]) {
                self.waits[other] -= 1;
                if let Some(item) = left[other].as_ref().filter(|_| self.waits[other] == 0) {
                    self.ready[usize::from(is_instruction(item))].insert(other);
                }
            }
        }
        taken
    }
}

const fn is_instruction(item: &Item) -> bool {
    matches!(item.work, Work::Instruction(_))
}

fn group(items: Vec<Item>) -> Step {
    let mut threads = *GROUP_THREADS.start();
    // Values written since the last barrier: by how many elements in order, if each thread wrote those that it will read.
    let mut written: BTreeMap<usize, Option<(u32, u64)>> = BTreeMap::new();
    let mut instructions = Vec::new();
    for item in items {
        let Work::Instruction(mut instruction) = item.work else { continue };
        threads = threads.max(useful_threads(&instruction));
        let count = instruction.outer * instruction.inner;
        // In order of the sources that lie in the row, as `reads` is.
        let places =
            instruction.source.iter().take(instruction.sources as usize).filter(|source| source.is_address == 0).map(|source| source.at);
        let is_apart = item.reads.iter().zip(places).any(|((value, in_order), at)| match written.get(value) {
            Some(Some(own)) => !in_order || *own != (count, at),
            Some(None) => true,
            None => false,
        });
        if is_apart {
            instruction.flags |= flag::BARRIER;
            written.clear();
        }
        let results = instruction.result.iter().enumerate().filter(|(number, _)| instruction.results & (1 << number) != 0);
        for ((value, in_order), (_, result)) in item.writes.iter().zip(results) {
            let own = in_order.then_some((count, result.at));
            // What is written in parts has been written by anybody.
            written.entry(*value).and_modify(|before| *before = None).or_insert(own);
        }
        instructions.push(*instruction);
    }
    Step::Group { instructions, threads: threads.min(*GROUP_THREADS.end()).next_multiple_of(32) }
}

/// How many threads an instruction can use.
fn useful_threads(instruction: &GroupInstruction) -> u32 {
    let (outer, inner) = (instruction.outer, instruction.inner);
    if instruction.op < op::SOFTMAX {
        return outer.saturating_mul(inner);
    }
    match instruction.flags & (flag::BY_WARP | flag::BY_BLOCK) {
        flag::BY_WARP => outer.saturating_mul(32),
        flag::BY_BLOCK => inner,
        _ => outer,
    }
}
