//! Rows of a batch looked up in a table by token, which is filled with what it has not.
//!
//! As soon as one token is not there, the first half's weights are read for it. So tokens that the same requests brought for later steps, and that are
//! not there either, are computed with it: a table that fills costs what computing ahead does, and not a reading of the weights for each step. Once a table is
//! full that has not room for all tokens, the others are computed with the steps that they come in.

use std::sync::PoisonError;

use cellwright_backend::Lane;
use cellwright_cell_graph::hoist::Feed;

use super::kept::wanted;
use super::{Ahead, ROWS};
use crate::compiled::Body;
use crate::kernels::element::Element;
use crate::plan::{Memory, RefusedRow};
use crate::table::Table;
use crate::team::Team;
use crate::worker::transfer::Transfer;
use crate::worker::{Active, Clock};

/// Later steps that are looked at.
const STEPS: usize = 64;
/// Rows of them: where nearly all tokens are there already, looking must not take as long as what it saves.
const LOOKED_AT: usize = 16 * ROWS;

/// What a table has not.
#[derive(Debug, Default)]
pub(super) struct Misses {
    /// By row of the frame: the token that is computed there, each once; none if an index means no token.
    tokens: Vec<Option<usize>>,
    /// Rows of the batch, and rows of the frame with what they asked for.
    asked: Vec<(usize, usize)>,
}

impl Misses {
    /// The row of the frame where a token is computed already.
    fn find(&self, token: Option<usize>) -> Option<usize> {
        token.and_then(|token| self.tokens.iter().position(|other| *other == Some(token)))
    }
}

impl Ahead {
    /// Looks up what a table has for the rows of a batch, whose transfer that is, and computes and keeps what it has not.
    pub(in crate::worker) fn look_up(
        &mut self,
        (pre, table): (&Body, &Table),
        batch: &mut [Active],
        transfer: &Transfer<'_>,
        team: &mut Team,
        clock: &mut Clock<'_>,
    ) {
        let memory = self.frame.prepare(&pre.plan, batch.len().max(pre.fit()), team.size());
        let transfer = Transfer { body: pre, memory, given: None, ..*transfer };
        transfer.gather(batch, false, team);
        self.given.reset(batch.len(), pre.plan.outputs.len());
        self.bad.clear();
        self.misses.tokens.clear();
        self.misses.asked.clear();
        for (row, active) in batch.iter_mut().enumerate() {
            active.given = row;
            let token = table.token(index_at(pre, memory, row));
            if let Some(found) = token.and_then(|token| table.find(token)) {
                self.given.set(row, found);
                continue;
            }
            let at = self.misses.find(token).unwrap_or_else(|| {
                let at = self.misses.tokens.len();
                move_row(pre, memory, row, at);
                self.misses.tokens.push(token);
                at
            });
            self.misses.asked.push((row, at));
        }
        if self.misses.asked.is_empty() {
            return;
        }
        // What would not be kept would be computed in vain.
        if table.has_room() {
            self.misses.add_later(table, batch, &transfer);
        }
        let Misses { tokens, asked } = &self.misses;
        clock.run(&pre.plan, (memory, tokens.len()), team, &self.refused);
        let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (at, token) in tokens.iter().enumerate() {
            // What was refused is refused again when it is asked for again.
            let Some(token) = token.filter(|_| refused.iter().all(|bad| bad.row != at)) else { continue };
            // SAFETY: the frame holds this row of every output of the half that the table was made for.
            unsafe { table.keep(token, |output| memory.output(&pre.plan.outputs[output], at)) };
        }
        for (row, at) in asked {
            self.given.set(*row, Self::outputs(pre, memory, *at));
            // Of a later step nothing is told before it runs.
            self.bad.extend(refused.iter().filter(|bad| bad.row == *at).map(|bad| RefusedRow { row: *row, ..*bad }));
        }
        refused.clear();
    }
}

impl Misses {
    /// Adds tokens of the batch's later steps that the table has not either, as long as there are fewer than are computed at once.
    fn add_later(&mut self, table: &Table, batch: &[Active], transfer: &Transfer<'_>) {
        let (pre, memory) = (transfer.body, transfer.memory);
        let ([Feed::Own(input)], [terminal]) = (&pre.feeds[..], &pre.plan.inputs[..]) else { return };
        let input = *input as usize;
        // A chain that may end at any step would have some computed in vain.
        let is_known = |lane: &&Lane| lane.is_given(input) && lane.chain().stop.is_none() && lane.chain().length.like.is_none();
        for later in 1..=STEPS.min(LOOKED_AT / batch.len().max(1)) as u32 {
            for active in batch.iter().filter(|active| !active.is_padding) {
                let at = self.tokens.len();
                if at >= pre.fit() {
                    return;
                }
                let Some(lane) = transfer.lane(active).filter(is_known) else { continue };
                let Some(row) = wanted(lane, active.row, later) else { continue };
                transfer.fill(lane.input(input, row.step), terminal, (at, pre.fit()));
                let token = table.token(index_at(pre, memory, at));
                if token.is_some_and(|token| table.find(token).is_none()) && self.find(token).is_none() {
                    self.tokens.push(token);
                }
            }
        }
    }
}

/// The index in a row of a half that has one input alone.
fn index_at(pre: &Body, memory: Memory<'_>, row: usize) -> i64 {
    let Some((input, place)) = pre.plan.inputs.first().and_then(|input| Some((input, input.place?))) else { return 0 };
    let at = memory.at(place, row);
    // SAFETY: the frame has this row of this input, which was gathered.
    unsafe {
        match input.element {
            Element::I32 => i64::from(at.cast::<i32>().read()),
            _ => at.cast::<i64>().read(),
        }
    }
}

/// Moves a row's inputs to the front. They are indices, which no product packs.
fn move_row(pre: &Body, memory: Memory<'_>, from: usize, to: usize) {
    for input in &pre.plan.inputs {
        let Some(place) = input.place else { continue };
        // SAFETY: the frame has both rows; they may be one.
        unsafe { std::ptr::copy(memory.at(place, from), memory.at(place, to), input.bytes) };
    }
}

#[cfg(test)]
mod tests;
