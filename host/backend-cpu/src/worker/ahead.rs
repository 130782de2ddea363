//! First halves of cells: computed for several steps at once, or for tokens that a table lacks.
//!
//! A task of several steps brings all inputs that are not carried. The part that depends on those
//! alone is computed first, for all steps in one batch, so that its weights are read once. That is
//! worth it where few rows would read more than 1 MiB of weights each time; larger batches run the
//! cell as a whole. If the request brought those inputs along, later tasks' steps are computed too
//! ([`kept`]).
//!
//! A table ([`lookup`]) may lack a token of this step. Tokens of later steps that it lacks are then
//! computed together with it. In a cell that is taken input by input ([`parts`]), what each input
//! adds is looked up or computed for the rows of a batch.
//!
//! Rows may be computed in vain, as rows queued beyond a stop are: their chain stopped or their
//! request died. Nothing is reported for them. The result never tells which of these ways was
//! taken.
//!
//! A cell with ragged inputs has phases before its rest ([`spans`]).

mod kept;
mod lookup;
mod parts;
mod spans;

use std::any::Any;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cellwright_backend::{DeviceLost, InputRef, Task};
use cellwright_cell_graph::hoist::Feed;

pub(super) use self::spans::Nodes;
use super::timing::Watch;
use super::transfer::{Ends, Transfer, zero_inputs};
use super::{Active, Clock, CpuWorker};
use crate::compiled::{Body, Split};
use crate::plan::{Frame, Memory, RefusedRow};

/// Rows of several steps that are computed at once: with more of them than that in one step, weights are not what takes the time.
const ROWS: usize = 64;
/// Bytes that they may take.
const BYTES: usize = 32 << 20;
/// Rows that are timed of what a table has not yet, if one alone does not take as long as that.
const MISSING_ROWS: usize = 16;
const MISSING_LONG: Duration = Duration::from_millis(10);

/// What first halves gave.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    frame: Frame,
    batch: Vec<Active>,
    given: Given,
    refused: Mutex<Vec<RefusedRow>>,
    /// Rows of `given` that kernels refused.
    bad: Vec<RefusedRow>,
    misses: lookup::Misses,
    asked: parts::Asked,
    /// One for each part of a cell that is taken input by input: all of them are read when they are added up.
    part_frames: Vec<Frame>,
    spans: spans::SpanMemory,
    /// By cell: rows that later tasks may take.
    kept: Vec<kept::Kept>,
}

/// Where the outputs of a first half are.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// By row and output.
    at: Vec<*const u8>,
    outputs: usize,
}

// SAFETY: they point into memory that belongs to the worker or to a table that it holds, of which threads read what nobody writes.
unsafe impl Send for Given {}
// SAFETY: as above.
unsafe impl Sync for Given {}

impl Given {
    fn reset(&mut self, rows: usize, outputs: usize) {
        self.outputs = outputs;
        self.at.clear();
        self.at.resize(rows * outputs, std::ptr::null());
    }

    fn set(&mut self, row: usize, at: impl Iterator<Item = *const u8>) {
        self.at[row * self.outputs..][..self.outputs].iter_mut().zip(at).for_each(|(own, at)| *own = at);
    }

    /// The same of outputs of those numbers.
    fn set_some(&mut self, row: usize, numbers: &[u32], at: impl Iterator<Item = *const u8>) {
        let row = &mut self.at[row * self.outputs..][..self.outputs];
        numbers.iter().zip(at).for_each(|(number, at)| row[*number as usize] = at);
    }

    /// An output of a row, if it was computed.
    pub(super) fn at(&self, row: usize, output: usize) -> Option<*const u8> {
        self.at.get(row * self.outputs + output).copied().filter(|at| !at.is_null())
    }
}

impl Ahead {
    pub(super) const fn given(&self) -> &Given {
        &self.given
    }

    /// Gives back what is much.
    pub(super) fn shrink(&mut self) -> impl Any + Send + use<> {
        self.asked = parts::Asked::default();
        (self.frame.shrink(), std::mem::take(&mut self.part_frames), std::mem::take(&mut self.spans))
    }

    /// Rows of a batch that were refused ahead of it.
    pub(super) fn tell_refused(&self, batch: &[Active], refused: &mut Vec<RefusedRow>) {
        if self.bad.is_empty() {
            return;
        }
        for (row, active) in batch.iter().enumerate() {
            refused.extend(self.bad.iter().filter(|bad| bad.row == active.given).map(|bad| RefusedRow { row, ..*bad }));
        }
    }

    /// Where the outputs of a row of the frame are.
    fn outputs<'m>(pre: &'m Body, memory: Memory<'m>, row: usize) -> impl Iterator<Item = *const u8> + 'm {
        pre.plan.outputs.iter().map(move |output| memory.output(output, row).cast_const())
    }
}

impl Body {
    /// Rows of several steps that are computed at once.
    fn fit(&self) -> usize {
        ROWS.min(self.rows_most())
    }

    /// Rows of one step that are computed at once: a first half may be as wide as it likes of which the second sees little.
    pub(super) fn rows_most(&self) -> usize {
        self.plan.rows_within(BYTES)
    }
}

impl CpuWorker {
    /// Sees to it that the first half of a task's steps from `step` on has run; of how many of them, if any.
    pub(super) fn run_ahead(&mut self, task: &Task, step: u32) -> Result<Option<u32>, DeviceLost> {
        let kept = self.steps_kept(task, step);
        if kept > 0 {
            self.give_kept(task, step, kept);
            return Ok(Some(kept));
        }
        let steps = self.steps_ahead(task, step);
        if steps < 2 {
            return Ok(None);
        }
        self.run_task_ahead(task, step, steps)?;
        Ok(Some(steps))
    }

    /// For how many steps of a task, from `step` on, first halves run at once; one: a step runs as it is.
    fn steps_ahead(&self, task: &Task, step: u32) -> u32 {
        let loaded = self.cells.get(task.cell.index()).and_then(Option::as_ref);
        let Some(Split { pre, .. }) = loaded.and_then(|loaded| loaded.plan.ahead()) else { return 1 };
        let fit = pre.fit() / task.rows.len().max(1);
        let steps = u32::try_from(fit).unwrap_or(u32::MAX).min(task.steps - step);
        let is_own = |from: InputRef<'_>| matches!(from, InputRef::Slot { cell, .. } if cell == task.cell);
        let known = |row: &cellwright_backend::Row| {
            let Some(lane) = self.lanes.get(row.lane.index()).and_then(Option::as_ref) else { return false };
            let first = row.step.saturating_add(step);
            // What this task writes it cannot read ahead. What other cells write was written by tasks before it.
            (first..first.saturating_add(steps)).take_while(|step| *step < lane.chain().length.bound).all(|step| {
                let own = pre.feeds.iter().filter_map(|feed| if let Feed::Own(input) = feed { Some(*input as usize) } else { None });
                own.into_iter().all(|input| match lane.input(input, step) {
                    InputRef::Window(window) => !window.rows().any(is_own),
                    from => !is_own(from),
                })
            })
        };
        if steps > 1 && task.rows.iter().all(known) { steps } else { 1 }
    }

    /// Runs the first half for so many steps of a task.
    fn run_task_ahead(&mut self, task: &Task, step: u32, steps: u32) -> Result<(), DeviceLost> {
        self.ahead.batch.clear();
        for at in 0..steps {
            self.select(&task.rows, (step, at, steps))?;
            self.ahead.batch.extend_from_slice(&self.batch);
        }
        let Some(loaded) = self.cells.get(task.cell.index()).and_then(Option::as_ref) else { return Ok(()) };
        let Some(Split { pre, .. }) = loaded.plan.ahead() else { return Ok(()) };
        let Ahead { frame, batch, given, refused, bad, .. } = &mut self.ahead;
        given.reset(task.rows.len() * steps as usize, pre.plan.outputs.len());
        bad.clear();
        if batch.is_empty() {
            return Ok(());
        }
        let mut clock = Clock::start(self.account.as_deref());
        let memory = frame.prepare(&pre.plan, batch.len(), self.team.size());
        let ends = Ends { arena: &self.domain.arena, cells: &self.cells, lanes: &self.lanes, loaded };
        let transfer = Transfer { ends, body: pre, memory, given: None };
        transfer.gather(batch, false, &mut self.team);
        clock.run(&pre.plan, (memory, batch.len()), &mut self.team, refused);
        let refused = refused.get_mut().unwrap_or_else(PoisonError::into_inner);
        bad.extend(refused.drain(..).map(|found| RefusedRow { row: batch[found.row].given, ..found }));
        for (row, active) in batch.iter().enumerate() {
            given.set(active.given, Ahead::outputs(pre, memory, row));
        }
        clock.transferred();
        Ok(())
    }

    /// How long a row takes of a first half whose token its table has not, among others.
    pub(super) fn time_missing(&mut self, pre: &Body) -> Duration {
        let mut row = Duration::ZERO;
        for rows in [1, MISSING_ROWS.min(pre.rows_most())] {
            let memory = self.ahead.frame.prepare(&pre.plan, rows, self.team.size());
            zero_inputs(&pre.plan, memory, rows);
            let watch = Watch::start();
            pre.plan.run(memory, rows, &mut self.team, &self.refused);
            self.refused.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            row = watch.elapsed() / rows as u32;
            if row >= MISSING_LONG {
                break;
            }
        }
        row
    }
}
