//! Several steps of a task as one batch: a row of the frame for each row and step, of which all that does not wait for a state is computed at once.
//!
//! This is possible where nothing that a step reads depends on what the steps before it leave, but for the states of an LSTM, which go from row to row
//! within the frame. Everything else is as if the steps came one after the other: rows of chains that have ended leave nothing, and what is held of a
//! lane is what its last step leaves.

use cellwright_backend::{CellTypeId, Lane, LaneId};
use cellwright_cell_graph::unfolded::{RunOf, Source};

use super::cost::{Limit, Load};
use super::resident::Resident;
use super::seat::Held;
use crate::abi::{NOWHERE, RowEntry};

/// A row to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    /// Its place in the task: the same for all steps of what may be there twice.
    pub(super) position: u32,
    pub(super) lane: LaneId,
    pub(super) step: u32,
    /// Bytes that it takes of an upload beside its lists, at most.
    pub(super) hosted: u32,
    /// Whether it may bring outputs to the host.
    pub(super) brings: bool,
}

/// Rows that are to be one batch: those of each step behind those of the step before, of which they are some.
#[derive(Debug, Default)]
pub(super) struct Together {
    pub(super) rows: Vec<Selected>,
    /// How many each step has.
    pub(super) counts: Vec<u32>,
    pub(super) load: Load,
}

impl Together {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.counts.clear();
        self.load = Load::default();
    }

    /// Adds a step's rows if all of them are within a limit then; whether they are.
    pub(super) fn push(&mut self, selected: &[Selected], limit: &Limit) -> bool {
        let load = self.load.plus(Load::of(selected));
        let has_room = limit.holds(load);
        if has_room && !selected.is_empty() {
            self.rows.extend_from_slice(selected);
            self.counts.push(selected.len() as u32);
            self.load = load;
        }
        has_room
    }
}

/// Whether several steps of a lane may be one batch.
pub(super) fn goes_together(lane: &Lane, resident: &Resident) -> bool {
    let Some(recurrence) = resident.plan.recurrence.as_ref().filter(|recurrence| recurrence.is_steady) else { return false };
    let is_state = |input: usize| {
        let feedback = lane.stage().inputs.get(input).and_then(|input| input.feedback);
        let state = recurrence.inputs.iter().position(|state| *state == input);
        match (feedback, state) {
            (Some((stage, output)), Some(state)) => stage == lane.stage && recurrence.outputs[state].contains(&output),
            _ => false,
        }
    };
    let is_ended_here = lane.chain().stop.is_some_and(|(stage, _)| stage == lane.stage);
    let is_ready = |input: usize| if recurrence.inputs.contains(&input) { is_state(input) } else { is_apart(lane, input) };
    !is_ended_here && (0..resident.plan.inputs.len()).all(is_ready)
}

/// Whether an input is at no step what a node of the same cell leaves, which could be one of the same task.
fn is_apart(lane: &Lane, input: usize) -> bool {
    let Some(input) = lane.stage().inputs.get(input) else { return true };
    let growth = &*lane.growth;
    let loaded = |cell: u32| growth.cells.get(cell as usize).copied();
    let own: Option<CellTypeId> = loaded(lane.stage().cell);
    let is_other = |cell: Option<u32>| cell.is_some_and(|cell| loaded(cell) != own);
    let reads_other = |chain: u32, stage: u32| match growth.chain(chain) {
        Some(chain) => is_other(chain.stages.get(stage as usize).map(|stage| stage.cell)),
        // A chain of an earlier growth has ended.
        None => true,
    };
    let is_apart = match &input.source {
        Source::Zeros | Source::Literal(_) | Source::Ints(_) | Source::Index(_) | Source::Rows { .. } | Source::Frames { .. } => true,
        Source::Steps { chain, stage, .. } | Source::Last { chain, stage, .. } => reads_other(*chain, *stage),
        Source::Window(runs) | Source::Span(runs) => runs.iter().all(|run| match run.of {
            RunOf::Tensor(_) => true,
            RunOf::Chain { chain, stage, .. } => reads_other(chain, stage),
        }),
        Source::Nodes { .. } => false,
        Source::Sibling { stage, .. } => is_other(lane.chain().stages.get(*stage as usize).map(|stage| stage.cell)),
    };
    is_apart && input.feedback.is_none()
}

/// Notes in rows of a batch of several steps which of them each has to know of. `lanes`: of each its position in the task, and what is held of its lane.
pub(super) fn link(entries: &mut [RowEntry], lanes: impl Iterator<Item = (u32, Held)>) {
    // Of each position, its newest row.
    let mut newest: Vec<u32> = Vec::new();
    for (row, (position, held)) in lanes.enumerate() {
        let position = position as usize;
        if position >= newest.len() {
            newest.resize(position + 1, NOWHERE);
        }
        let before = std::mem::replace(&mut newest[position], row as u32);
        entries[row].before = before;
        let Some(one_before) = entries.get_mut(before as usize) else { continue };
        one_before.after = row as u32;
        // With two places for each lane, the step before last is the one whose place this is.
        let older = one_before.before;
        if held == Held::Double
            && let Some(older) = entries.get_mut(older as usize)
        {
            older.later = row as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::unfolded::Retention;

    use super::*;

    #[test]
    fn rows_know_the_step_before_and_who_takes_their_place() {
        let of = |retention| {
            // Lanes 0 and 2 have four steps, lane 1 one.
            let lanes = [0, 1, 2, 0, 2, 0, 2, 0, 2].map(|position| (position, Held::of(retention)));
            let mut rows = [RowEntry { before: NOWHERE, later: NOWHERE, after: NOWHERE, ..RowEntry::default() }; 9];
            link(&mut rows, lanes.into_iter());
            let after: Vec<u32> = rows.iter().map(|row| row.after).collect();
            assert_eq!(after, [3, NOWHERE, 4, 5, 6, 7, 8, NOWHERE, NOWHERE], "whose step before each is");
            (rows.iter().map(|row| row.before).collect::<Vec<_>>(), rows.iter().map(|row| row.later).collect::<Vec<_>>())
        };
        let none = NOWHERE;
        let (before, later) = of(Retention::Double);
        assert_eq!(before, [none, none, none, 0, 2, 3, 4, 5, 6]);
        assert_eq!(later, [5, none, 6, 7, 8, none, none, none, none]);
        assert_eq!(of(Retention::All), (before.clone(), vec![none; 9]));
        assert_eq!(of(Retention::None), (before, vec![none; 9]));
    }
}
