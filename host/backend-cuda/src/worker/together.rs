//! Several steps of a task as one batch: a row of the frame for each row and step, of which all that does not wait for a state is computed at once.
//!
//! This is possible where nothing that a step reads depends on what the steps before it leave, but for the states of an LSTM, which go from row to row
//! within the frame. Everything else is as if the steps came one after the other: rows of chains that have ended leave nothing, and what is held of a
//! lane is what its last step leaves.

use cellwright_backend::{CellIndex, Lane};
use cellwright_cell_graph::unfolded::{Retention, Source};

use super::CudaWorker;
use super::resident::Resident;
use crate::abi::{NOWHERE, RowEntry};

/// Rows to run: positions in the task, and steps.
pub(super) type Selected = [(u32, u32)];

/// Rows that are to be one batch: those of each step behind those of the step before, of which they are some.
#[derive(Debug, Default)]
pub(super) struct Together {
    pub(super) rows: Vec<(u32, u32)>,
    /// How many each step has.
    pub(super) counts: Vec<u32>,
}

impl Together {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.counts.clear();
    }

    /// Adds a step's rows if there are no more than so many then; whether there are not.
    pub(super) fn push(&mut self, selected: &Selected, rows_most: usize) -> bool {
        let has_room = self.rows.len() + selected.len() <= rows_most;
        if has_room && !selected.is_empty() {
            self.rows.extend_from_slice(selected);
            self.counts.push(selected.len() as u32);
        }
        has_room
    }
}

impl CudaWorker {
    /// Whether several steps of the newest task may be one batch.
    pub(super) fn goes_together(&self, resident: &Resident) -> bool {
        let Some(recurrence) = resident.plan.recurrence.as_ref().filter(|recurrence| recurrence.is_steady) else { return false };
        let Some(task) = self.tasks.back() else { return false };
        let is_state = |lane: &Lane, input: usize| {
            let feedback = lane.stage().inputs.get(input).and_then(|input| input.feedback);
            let state = recurrence.inputs.iter().position(|state| *state == input);
            match (feedback, state) {
                (Some((stage, output)), Some(state)) => stage == lane.stage && recurrence.outputs[state].contains(&output),
                _ => false,
            }
        };
        task.joined.iter().all(|joined| {
            let lane = &joined.lane;
            let is_ended_here = lane.chain().stop.is_some_and(|(stage, _)| stage == lane.stage);
            let inputs = 0..resident.plan.inputs.len();
            !is_ended_here
                && inputs.into_iter().all(
                    |input| {
                        if recurrence.inputs.contains(&input) { is_state(lane, input) } else { is_apart(lane, input) }
                    },
                )
        })
    }
}

/// Whether an input is at no step what a node of the same cell leaves, which could be one of the same task.
fn is_apart(lane: &Lane, input: usize) -> bool {
    let Some(input) = lane.stage().inputs.get(input) else { return true };
    let growth = &*lane.growth;
    let loaded = |cell: u32| growth.cells.get(cell as usize).copied();
    let own: Option<CellIndex> = loaded(lane.stage().cell);
    let is_other = |cell: Option<u32>| cell.is_some_and(|cell| loaded(cell) != own);
    let is_apart = match &input.source {
        Source::Zeros | Source::Literal(_) | Source::Ints(_) | Source::Index(_) | Source::Rows { .. } => true,
        Source::Steps { chain, stage, .. } | Source::Last { chain, stage, .. } => match growth.chain(*chain) {
            Some(chain) => is_other(chain.stages.get(*stage as usize).map(|stage| stage.cell)),
            // A chain of an earlier growth has ended.
            None => true,
        },
        Source::Nodes { .. } => false,
        Source::Sibling { stage, .. } => is_other(lane.chain().stages.get(*stage as usize).map(|stage| stage.cell)),
    };
    is_apart && input.feedback.is_none()
}

/// Notes in the entries of a batch's rows which row has the step before, and which leaves its outputs where another one's would be. `lanes`: of each row
/// its position in the task, and what is held of its lane.
pub(super) fn link(entries: &mut [RowEntry], lanes: impl Iterator<Item = (u32, Retention)>) {
    let mut newest: Vec<u32> = Vec::new();
    for (row, (position, retention)) in lanes.enumerate() {
        let position = position as usize;
        if position >= newest.len() {
            newest.resize(position + 1, NOWHERE);
        }
        let before = std::mem::replace(&mut newest[position], row as u32);
        entries[row].before = before;
        // With two places for each lane, the step before last is the one whose place this is.
        if retention == Retention::Double
            && let Some(older) = entries.get(before as usize).map(|entry| entry.before)
            && let Some(older) = entries.get_mut(older as usize)
        {
            older.later = row as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_know_the_step_before_and_who_takes_their_place() {
        let of = |retention| {
            // Lanes 0 and 2 have four steps, lane 1 one.
            let lanes = [0, 1, 2, 0, 2, 0, 2, 0, 2].map(|position| (position, retention));
            let mut entries = [RowEntry { before: NOWHERE, later: NOWHERE, ..RowEntry::default() }; 9];
            link(&mut entries, lanes.into_iter());
            (entries.map(|entry| entry.before), entries.map(|entry| entry.later))
        };
        let none = NOWHERE;
        let (before, later) = of(Retention::Double);
        assert_eq!(before, [none, none, none, 0, 2, 3, 4, 5, 6]);
        assert_eq!(later, [5, none, 6, 7, 8, none, none, none, none]);
        assert_eq!(of(Retention::All), (before, [none; 9]));
        assert_eq!(of(Retention::None), (before, [none; 9]));
    }
}
