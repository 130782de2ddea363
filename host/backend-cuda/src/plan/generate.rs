//! A group of operations as a kernel of its own, compiled when the cell is made ready.
//!
//! The interpreter finds out shapes, strides, types and operations for every element of every row.
//! Here they are text that a compiler sees once. Instructions over equally many elements become one
//! loop. A value that the next instructions read at the same element stays in a register, and a
//! value that nobody else reads is never written.
//!
//! The bits are the interpreter's. Both call the same functions (`kernels/group_numbers.cuh`,
//! `kernels/group_stretches.cuh`), give an element to the same thread and sum in the same order. A
//! compiler of another version than that of `kernels/check` may choose other last bits for these
//! functions; the workers of one host share a compiler.
//!
//! The text holds numbers of the plan and nothing that a model or its author named. The interpreter
//! runs instead if there is no compiler, if it refuses the text, or if the group is too large.

mod code;

use std::ops::Range;

use super::{Plan, Product, Recurrence, Step};
use crate::abi::{CANDIDATE_BYTES, GroupInstruction, GroupOperand, op};

/// Instructions of a group that is compiled, at most: a larger one takes a compiler too long.
const INSTRUCTIONS_MAX: usize = 128;
/// Of one loop, so that its values find room in registers.
const LOOP_MAX: usize = 48;
/// Bytes of a kernel's text, at most.
const SOURCE_MAX: usize = 64 << 10;

/// A kernel's text, and what it reads besides its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Generated {
    pub(crate) source: String,
    /// Numbers of blobs, in the order in which it takes their addresses.
    pub(crate) blobs: Vec<usize>,
}

/// The kernel of a step; none if it is no group, or one that is better interpreted.
pub(crate) fn generate(plan: &Plan, step: usize) -> Option<Generated> {
    let Step::Group { instructions, threads } = plan.steps.get(step)? else { return None };
    // What others read is looked for in all of them, and there may be thousands of groups.
    if !can_be_written(instructions) {
        return None;
    }
    let others = plan.steps.iter().enumerate().filter(|(number, _)| *number != step);
    let mut kept: Vec<Range<u64>> = others.flat_map(|(_, step)| read_by(step)).collect();
    kept.extend(plan.outlets.iter().map(|outlet| bytes(outlet.place.into(), outlet.bytes.into())));
    kept.extend(plan.recurrence.iter().flat_map(read_by_lstm));
    kernel(instructions, *threads, &kept)
}

fn can_be_written(instructions: &[GroupInstruction]) -> bool {
    (1..=INSTRUCTIONS_MAX).contains(&instructions.len()) && instructions.iter().all(code::is_known)
}

/// The kernel of these instructions, of whose results others read those bytes of the row.
fn kernel(instructions: &[GroupInstruction], threads: u32, kept: &[Range<u64>]) -> Option<Generated> {
    if !can_be_written(instructions) {
        return None;
    }
    let generated = code::write(instructions, &parts(instructions), threads, kept);
    (generated.source.len() <= SOURCE_MAX).then_some(generated)
}

const fn bytes(at: u64, bytes: u64) -> Range<u64> {
    at..at + bytes
}

/// The bytes of the row that a step reads.
fn read_by(step: &Step) -> Vec<Range<u64>> {
    match step {
        Step::Product(Product { arithmetic, terms, n, begin, .. }) => {
            let size = if arithmetic.is_wide() { 2 } else { 4 };
            let of_terms = terms.iter().map(|term| bytes(term.x as u64, size * u64::from(term.k)));
            of_terms.chain(begin.map(|begin| bytes(begin as u64, 4 * u64::from(*n)))).collect()
        }
        Step::Best(best) => vec![bytes(best.candidates as u64, u64::from(best.panels * best.kept.k) * CANDIDATE_BYTES as u64)],
        Step::Group { instructions, .. } => instructions.iter().flat_map(sources).map(|access| access.span).collect(),
    }
}

/// The bytes of the row that an LSTM's step reads.
fn read_by_lstm(recurrence: &Recurrence) -> impl Iterator<Item = Range<u64>> {
    let Recurrence { h, c, begin, units, columns, second, .. } = recurrence;
    let sums = columns.iter().max().map_or(0, |last| last + units);
    let begin = begin.map(|begin| bytes(begin as u64, 4 * u64::from(sums)));
    let states = [*h, *c].into_iter().chain(second.iter().flat_map(|second| [second.h, second.c]));
    let states = states.map(|state| bytes(state as u64, 4 * u64::from(*units)));
    states.chain(begin)
}

/// Bytes of the row that are read or written.
#[derive(Clone, Debug, PartialEq)]
struct Access {
    /// Empty for a blob.
    span: Range<u64>,
    /// Where the first element lies and how large each is, if element after element is touched by the thread whose number the element has.
    own: Option<(u64, u32)>,
}

impl Access {
    const fn meets(&self, other: &Self) -> bool {
        self.span.start < other.span.end && other.span.start < self.span.end
    }

    /// Whether a thread may touch here what another one does there.
    fn crosses(&self, other: &Self) -> bool {
        self.meets(other) && (self.own.is_none() || self.own != other.own)
    }
}

const fn type_bytes(kind: u32) -> u32 {
    match kind {
        0 | 2 => 4,
        1 => 8,
        5 | 6 => 2,
        _ => 1,
    }
}

const fn count(instruction: &GroupInstruction) -> u32 {
    instruction.outer.wrapping_mul(instruction.inner)
}

/// Whether an operand's elements lie one after the other in the order of the instruction's.
fn is_linear(instruction: &GroupInstruction, operand: &GroupOperand) -> bool {
    let mut inner = 1_i64;
    (0..instruction.axes as usize).rev().all(|axis| {
        let extent = i64::from(instruction.extents[axis]);
        let fits = extent == 1 || i64::from(operand.strides[axis]) == inner;
        inner *= extent;
        fits
    })
}

fn access(instruction: &GroupInstruction, operand: &GroupOperand, further: i64) -> Access {
    if operand.is_address != 0 {
        return Access { span: 0..0, own: None };
    }
    let size = type_bytes(operand.kind);
    let axes = (0..instruction.axes as usize).map(|axis| (i64::from(instruction.extents[axis]) - 1) * i64::from(operand.strides[axis]));
    let (before, behind) = axes.fold((0, further), |(before, behind), reach| (before + reach.min(0), behind + reach.max(0)));
    let place = |elements: i64| operand.at.saturating_add_signed(elements.saturating_mul(size.into()));
    let is_own = instruction.op < op::SOFTMAX && is_linear(instruction, operand);
    Access { span: place(before)..place(behind + 1), own: is_own.then_some((operand.at, size)) }
}

fn source(instruction: &GroupInstruction, number: usize) -> Access {
    // A table's rows lie one after the other.
    let is_table = instruction.op == op::LOOKUP && number == 1;
    let further = if is_table { i64::try_from(instruction.table_rows).unwrap_or(i64::MAX / 16).saturating_sub(1) } else { 0 };
    access(instruction, &instruction.source[number], further.saturating_mul(instruction.k.into()).min(i64::MAX / 16))
}

fn sources(instruction: &GroupInstruction) -> Vec<Access> {
    (0..instruction.sources as usize).map(|number| source(instruction, number)).collect()
}

fn results(instruction: &GroupInstruction) -> impl Iterator<Item = Access> {
    (0..instruction.result.len())
        .filter(|number| instruction.results & (1 << number) != 0)
        .map(|number| access(instruction, &instruction.result[number], 0))
}

/// What of a kernel is done between barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// So many elements, each by its thread.
    Loop(u32),
    /// Whether the indices of a lookup are in its table.
    Check,
    Stretches,
}

/// Instructions that are run together, by number.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    kind: Kind,
    members: Vec<usize>,
    /// What is read of memory: not what an instruction of the same loop has in a register.
    reads: Vec<Access>,
    writes: Vec<Access>,
}

impl Part {
    fn precedes(&self, reads: &[Access], writes: &[Access]) -> bool {
        met(&self.writes, reads) || met(&self.writes, writes) || met(&self.reads, writes)
    }

    /// Whether a barrier must stand between.
    fn is_apart(&self, later: &Self) -> bool {
        let crossed = |one: &[Access], other: &[Access]| one.iter().any(|one| other.iter().any(|other| one.crosses(other)));
        crossed(&self.writes, &later.reads) || crossed(&self.writes, &later.writes) || crossed(&self.reads, &later.writes)
    }
}

fn met(one: &[Access], other: &[Access]) -> bool {
    one.iter().any(|one| other.iter().any(|other| one.meets(other)))
}

/// The result of an earlier instruction of a loop that a source of a later one is, element by element.
fn register(instructions: &[GroupInstruction], members: &[usize], instruction: &GroupInstruction, number: usize) -> Option<usize> {
    let (own, kind) = (source(instruction, number).own?, instruction.source[number].kind);
    if instruction.op == op::LOOKUP && number == 1 {
        return None;
    }
    let is_it = |member: &usize| {
        let result = &instructions[*member].result[0];
        result.kind == kind && access(&instructions[*member], result, 0).own == Some(own)
    };
    members.iter().copied().find(is_it)
}

/// Puts instructions into parts: each into the first loop over as many elements that stands behind all it needs.
fn parts(instructions: &[GroupInstruction]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (number, instruction) in instructions.iter().enumerate() {
        let reads = sources(instruction);
        let writes: Vec<Access> = results(instruction).collect();
        if instruction.op >= op::SOFTMAX {
            parts.push(Part { kind: Kind::Stretches, members: vec![number], reads, writes });
            continue;
        }
        if instruction.op == op::LOOKUP {
            // Another thread checks an index than those who look it up.
            let reads = vec![Access { own: None, ..reads[0].clone() }];
            parts.push(Part { kind: Kind::Check, members: vec![number], reads, writes: vec![] });
        }
        let kind = Kind::Loop(count(instruction));
        let needs = parts.iter().rposition(|part| part.precedes(&reads, &writes));
        // The last of those that it needs may be its own loop, if it finds there in registers what it needs of it.
        let of_memory = |part: &Part| -> Vec<Access> {
            let in_memory = |(number, _): &(usize, &Access)| register(instructions, &part.members, instruction, *number).is_none();
            reads.iter().enumerate().filter(in_memory).map(|(_, access)| access.clone()).collect()
        };
        let takes = |part: &Part| part.kind == kind && part.members.len() < LOOP_MAX && !part.precedes(&of_memory(part), &writes);
        match (needs.unwrap_or_default()..parts.len()).find(|at| takes(&parts[*at])) {
            Some(at) => {
                let of_memory = of_memory(&parts[at]);
                let part = &mut parts[at];
                part.reads.extend(of_memory);
                part.writes.extend(writes);
                part.members.push(number);
            }
            None => parts.push(Part { kind, members: vec![number], reads, writes }),
        }
    }
    parts
}

/// For each part whether a barrier stands before it.
fn barriers(parts: &[Part]) -> Vec<bool> {
    let mut first = 0;
    let mut barriers = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let is_apart = parts[first..number].iter().any(|before| before.is_apart(part));
        if is_apart {
            first = number;
        }
        barriers.push(is_apart);
    }
    barriers
}

#[cfg(test)]
mod tests;
