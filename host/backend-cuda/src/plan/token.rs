//! Whether the beginning of an LSTM's sums depends on one token alone, so that a table can hold it.

use std::collections::BTreeSet;

use super::Token;
use super::lower::{Item, Seen, Work};
use crate::abi::{GroupInstruction, op};

/// The token that all of `before` depends on, if nobody but the step needs what comes of it.
pub(super) fn find(before: &[Item], after: &[Item], seen: &Seen) -> Option<Token> {
    let read = |items: &[Item]| items.iter().flat_map(|item| &item.reads).map(|(value, _)| *value).collect::<BTreeSet<usize>>();
    let written: BTreeSet<usize> = before.iter().flat_map(|item| &item.writes).map(|(value, _)| *value).collect();
    if !written.is_disjoint(&read(after)) || seen.outputs.iter().any(|value| written.contains(value)) {
        return None;
    }
    // What a sum begins with may be an input that nothing else reads.
    let needed: BTreeSet<usize> = read(before).into_iter().chain(seen.begins.iter().copied()).collect();
    let given: Vec<usize> = needed.difference(&written).copied().collect();
    let [token] = given[..] else { return None };
    let input = seen.inputs.iter().position(|value| *value == token)?;
    let tables = before.iter().filter(|item| item.reads.iter().any(|(value, _)| *value == token)).map(table_of);
    let rows: BTreeSet<Option<u64>> = tables.collect();
    let [Some(rows)] = rows.into_iter().collect::<Vec<_>>()[..] else { return None };
    Some(Token { input, rows })
}

/// How many rows the table has that work looks its token up in, and does nothing else with it.
fn table_of(item: &Item) -> Option<u64> {
    let Work::Instruction(lookup) = &item.work else { return None };
    let GroupInstruction { op: op::LOOKUP, outer: 1, table_rows, .. } = **lookup else { return None };
    Some(table_rows)
}
