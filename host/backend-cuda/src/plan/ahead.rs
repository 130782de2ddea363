//! Whether what an LSTM's sums begin with is known before its step comes: then it may be computed ahead, and kept until its step runs.

use std::collections::BTreeSet;

use super::lower::{Item, Seen, Work};
use crate::abi::{GroupInstruction, op};

/// What comes before a step and depends on some inputs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Inputs that it depends on,
    pub(crate) early: Vec<usize>,
    /// and those that the step, what follows it or an output reads: some may be both.
    pub(crate) late: Vec<usize>,
    /// Where in a row of the frame the number of 64 bits lies of the row in which it was computed.
    pub(crate) number: usize,
}

/// The inputs that `before` depends on and those that anything else reads, if `before` has a product, cannot refuse a row, and leaves nothing but what the
/// step, whose states are those inputs, begins with.
pub(super) fn find(before: &[Item], after: &[Item], seen: &Seen, states: [usize; 2]) -> Option<(Vec<usize>, Vec<usize>)> {
    let read = |items: &[Item]| items.iter().flat_map(|item| &item.reads).map(|(value, _)| *value).collect::<BTreeSet<usize>>();
    let written: BTreeSet<usize> = before.iter().flat_map(|item| &item.writes).map(|(value, _)| *value).collect();
    let late: BTreeSet<usize> = read(after).into_iter().chain(seen.outputs.iter().copied()).collect();
    if !written.is_disjoint(&late) || !seen.begins.iter().all(|value| written.contains(value)) {
        return None;
    }
    // A row that is refused would have to be told of when its step runs, and without a product there is nothing to gain.
    let is_lookup = |item: &Item| matches!(&item.work, Work::Instruction(one) if matches!(**one, GroupInstruction { op: op::LOOKUP, .. }));
    let is_product = |item: &Item| matches!(item.work, Work::Product(_));
    if before.iter().any(is_lookup) || !before.iter().any(is_product) {
        return None;
    }
    let needed = read(before).difference(&written).copied().collect::<Vec<_>>();
    let input = |value: &usize| seen.inputs.iter().position(|input| input == value);
    let early = needed.iter().map(input).collect::<Option<Vec<usize>>>()?;
    let late = (0..seen.inputs.len()).filter(|input| states.contains(input) || late.contains(&seen.inputs[*input])).collect();
    Some((early, late))
}
