//! Which work is launched together: as many instructions in one group as do not wait for a product in between, and barriers only where a thread needs
//! what another one left.

use std::collections::{BTreeMap, BTreeSet};

use super::lower::{Item, Lowered, Why, Work};
use super::{ALIGNMENT, Ahead, GROUP_THREADS, Kind, Plan, Recurrence, Step, ahead, token};
use crate::abi::{GroupInstruction, flag, op};

/// Puts lowered work into steps.
pub(super) fn plan(lowered: Lowered) -> Result<Plan, Why> {
    let Lowered { mut frame, inputs, datatypes, outlets, items, blobs, recurrence, .. } = lowered;
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
    Ok(Plan { stride, inputs, datatypes, outlets, steps, recurrence, blobs })
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
    let mut waits = waits(&items);
    let mut left: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    let mut done = BTreeSet::new();
    let mut steps = Vec::new();
    while done.len() < left.len() {
        let before = done.len();
        let instructions = taken(&mut left, &mut waits, &mut done, true);
        if !instructions.is_empty() {
            steps.push(group(instructions));
        }
        // A product that waits for another one is launched after it: their stream keeps them in order.
        let products = taken(&mut left, &mut waits, &mut done, false);
        steps.extend(products.into_iter().filter_map(|item| match item.work {
            Work::Product(product) => Some(Step::Product(product)),
            Work::Best(best) => Some(Step::Best(best)),
            Work::Instruction(_) => None,
        }));
        assert!(done.len() > before, "operands stand before results");
    }
    steps
}

/// For each item those that write what it reads.
fn waits(items: &[Item]) -> Vec<BTreeSet<usize>> {
    let mut writers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut waits = Vec::new();
    for (index, item) in items.iter().enumerate() {
        waits.push(item.reads.iter().flat_map(|(value, _)| writers.get(value).into_iter().flatten().copied()).collect());
        item.writes.iter().for_each(|(value, _)| writers.entry(*value).or_default().push(index));
    }
    waits
}

/// Takes everything of one kind that waits for nothing that is not done, or taken with it.
fn taken(left: &mut [Option<Item>], waits: &mut [BTreeSet<usize>], done: &mut BTreeSet<usize>, instructions: bool) -> Vec<Item> {
    let mut taken = Vec::new();
    for (index, place) in left.iter_mut().enumerate() {
        let is_kind = place.as_ref().is_some_and(|item| matches!(item.work, Work::Instruction(_)) == instructions);
        if is_kind && waits[index].is_subset(done) {
            taken.extend(place.take());
            done.insert(index);
        }
    }
    taken
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
