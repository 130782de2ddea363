//! First halves of steps that no task has asked for yet: computed with those of a task of few rows, and kept until their own task comes.
//!
//! A task has but a few steps. One request alone would have the first half's weights read anew for each of its tasks, and each time they would push
//! the second half's out of the last cache. Only what a request brought with itself is read for that ([`Lane::is_given`]): what a node gives may
//! not be written yet. A row is kept by lane and step until that step has run or the lane is another's; it never makes room for a row that is wanted
//! sooner, because what is thrown away has to be computed again, which in the end costs more than it saves.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellTypeId, Lane, LaneId, Row, Task};
use cellwright_cell_graph::hoist::Feed;

use super::{Ahead, BYTES, ROWS};
use crate::compiled::{Body, Split};
use crate::memory::Lines;
use crate::plan::{Memory, Plan, RefusedRow};
use crate::team::Team;
use crate::worker::transfer::{Ends, Transfer, by_rows};
use crate::worker::{Active, Clock, CpuWorker};

/// Rows that are kept of a cell: twice what is computed at once, so that a lane that joins finds room beside those that have computed ahead already.
const PLACES: usize = 2 * ROWS;

/// What a place holds the row of.
type Key = Option<(LaneId, u32)>;

/// What is kept of one cell.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// By place. Empty as long as the cell kept nothing.
    keys: Vec<Key>,
    /// By place: what kernels refused of it. It is told when its step runs.
    refused: Vec<Option<RefusedRow>>,
    used: usize,
    memory: Lines,
    /// Where each output is in a row.
    offsets: Vec<usize>,
    stride: usize,
}

impl Kept {
    /// Bytes of a row of what that half gives.
    fn stride(pre: &Plan) -> usize {
        pre.outputs.iter().map(|output| Lines::rounded(output.bytes)).sum()
    }

    /// Makes room for rows of what that half gives, in so many bytes at most.
    fn open(&mut self, pre: &Plan, bytes_most: usize) {
        self.offsets.clear();
        self.stride = 0;
        for output in &pre.outputs {
            self.offsets.push(self.stride);
            self.stride += Lines::rounded(output.bytes);
        }
        let places = PLACES.min(bytes_most / self.stride.max(1));
        self.keys.resize(places, None);
        self.refused.resize(places, None);
        self.memory = Lines::zeroed(places * self.stride);
    }

    fn free(&self) -> usize {
        self.keys.len() - self.used
    }

    fn find(&self, row: Row) -> Option<usize> {
        let key = Some((row.lane, row.step));
        if self.used == 0 { None } else { self.keys.iter().position(|kept| *kept == key) }
    }

    /// A place for a row.
    fn reserve(&mut self, row: Row) -> Option<usize> {
        let place = self.keys.iter().position(Option::is_none)?;
        self.keys[place] = Some((row.lane, row.step));
        self.refused[place] = None;
        self.used += 1;
        Some(place)
    }

    fn forget(&mut self, is_gone: impl Fn(LaneId, u32) -> bool) {
        if self.used == 0 {
            return;
        }
        for key in &mut self.keys {
            if key.is_some_and(|(lane, step)| is_gone(lane, step)) {
                *key = None;
                self.used -= 1;
            }
        }
    }

    fn at(&self, place: usize) -> impl Iterator<Item = *const u8> {
        self.offsets.iter().map(move |offset| self.memory.pointer().wrapping_add(place * self.stride + offset))
    }

    /// Puts rows of a frame into their places.
    fn put(&mut self, pre: &Plan, memory: Memory<'_>, batch: &[Active], team: &mut Team) {
        let (base, stride, offsets) = (Shared(self.memory.pointer_mut()), self.stride, &self.offsets);
        by_rows(team, batch.len(), stride, &|rows| {
            for row in rows {
                let into = base.row(batch[row].given * stride);
                for (output, offset) in pre.outputs.iter().zip(offsets) {
                    // SAFETY: the frame has this row of this output; the place was reserved for this row, which no other thread has.
                    unsafe { std::ptr::copy_nonoverlapping(memory.output(output, row), into.wrapping_add(*offset), output.bytes) };
                }
            }
        });
    }
}

/// Places that threads fill, each its own.
struct Shared(*mut u8);

// SAFETY: threads write different places behind it.
unsafe impl Sync for Shared {}

impl Shared {
    fn row(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

impl Ahead {
    /// Forgets what was kept of a cell, whose index is another's now or nobody's.
    pub(in crate::worker) fn forget_cell(&mut self, cell: CellTypeId) -> Option<Lines> {
        self.kept.get_mut(cell.index()).map(|kept| std::mem::take(kept).memory)
    }

    /// Forgets what was kept for a lane, whose index is another's now or nobody's.
    pub(in crate::worker) fn forget_lane(&mut self, gone: LaneId) {
        self.kept.iter_mut().for_each(|kept| kept.forget(|lane, _| lane == gone));
    }

    /// Forgets what was kept of so many steps of a task from its `first` on, which have run, and of those before, which may have run elsewhere.
    pub(in crate::worker) fn forget_steps(&mut self, task: &Task, first: u32, steps: u32) {
        let Some(kept) = self.kept.get_mut(task.cell.index()) else { return };
        kept.forget(|lane, step| {
            let has_run = |row: &Row| row.lane == lane && step < row.step.saturating_add(first).saturating_add(steps);
            task.rows.iter().any(has_run)
        });
    }

    /// What is kept of a cell, with room if there is any.
    fn open(&mut self, cell: CellTypeId, pre: &Body) -> &mut Kept {
        if cell.index() >= self.kept.len() {
            self.kept.resize_with(cell.index() + 1, Kept::default);
        }
        if self.kept[cell.index()].keys.is_empty() {
            let wanted = PLACES * Kept::stride(&pre.plan);
            if wanted > self.room() {
                // Whoever keeps nothing now had its turn.
                self.kept.iter_mut().filter(|kept| kept.used == 0).for_each(|kept| *kept = Kept::default());
            }
            let room = self.room();
            self.kept[cell.index()].open(&pre.plan, room);
        }
        &mut self.kept[cell.index()]
    }

    /// Bytes that more may be kept in.
    fn room(&self) -> usize {
        BYTES.saturating_sub(self.kept.iter().map(|kept| kept.memory.bytes()).sum())
    }
}

/// The row of a lane, so many steps later, if it is to run as far as is known and not on zeros alone.
pub(super) fn wanted(lane: &Lane, row: Row, later: u32) -> Option<Row> {
    let step = row.step.saturating_add(later);
    // A chain that has ended or a request that has died never goes on, so that what is not wanted now will not be selected either.
    let is_wanted = step < lane.chain().length.bound && step < lane.executed() && !lane.growth.flags.dead.load(Ordering::Relaxed);
    is_wanted.then_some(Row { lane: row.lane, step })
}

impl CpuWorker {
    fn lane(&self, row: &Row) -> Option<&Lane> {
        self.lanes.get(row.lane.index()).and_then(Option::as_deref)
    }

    /// For how many steps of a task, from `step` on, what the first half gives is kept, computed now if need be; zero if it is not, and is not to be.
    pub(super) fn steps_kept(&mut self, task: &Task, step: u32) -> u32 {
        let loaded = self.cells.get(task.cell.index()).and_then(Option::as_ref);
        let Some(Split { pre, .. }) = loaded.and_then(|loaded| loaded.plan.ahead()) else { return 0 };
        // What may end at any step is not computed for many steps in vain.
        let may_stop = |lane: &Lane| lane.chain().stop.is_some() || lane.chain().length.like.is_some();
        let fit = u32::try_from(pre.fit() / task.rows.len().max(1)).unwrap_or(u32::MAX);
        let horizon = if task.rows.iter().any(|row| self.lane(row).is_some_and(may_stop)) { fit.min(task.steps - step) } else { fit };
        let is_given = |lane: &Lane| pre.feeds.iter().all(|feed| !matches!(feed, Feed::Own(input) if !lane.is_given(*input as usize)));
        if horizon < 2 || !task.rows.iter().all(|row| self.lane(row).is_some_and(is_given)) {
            return 0;
        }
        let mut steps = self.steps_at_hand(task, step);
        if steps == 0 && self.keep(task, step, horizon).is_some() {
            steps = self.steps_at_hand(task, step);
        }
        steps
    }

    /// For how many steps of a task, from `step` on, each row that is to run is kept.
    fn steps_at_hand(&self, task: &Task, step: u32) -> u32 {
        let Some(kept) = self.ahead.kept.get(task.cell.index()) else { return 0 };
        let is_kept = |row: &Row, at: u32| {
            let row = self.lane(row).and_then(|lane| wanted(lane, *row, step.saturating_add(at)));
            row.is_none_or(|row| kept.find(row).is_some())
        };
        (0..task.steps - step).take_while(|at| task.rows.iter().all(|row| is_kept(row, *at))).count() as u32
    }

    /// Runs the first half for what is not kept of so many steps from `step` of a task on; none if there is no room, or nothing to gain.
    fn keep(&mut self, task: &Task, step: u32, horizon: u32) -> Option<()> {
        let loaded = self.cells.get(task.cell.index())?.as_ref()?;
        let Split { pre, .. } = loaded.plan.ahead()?;
        let lanes = &self.lanes;
        let wanted = |at: u32| {
            let of = move |row: &Row| wanted(lanes.get(row.lane.index())?.as_deref()?, *row, step.saturating_add(at));
            task.rows.iter().filter_map(of)
        };
        // A last step runs as a whole.
        wanted(1).next()?;
        let free = self.ahead.open(task.cell, pre).free();
        let Ahead { frame, batch, refused, kept, .. } = &mut self.ahead;
        let kept = &mut kept[task.cell.index()];
        let needed = (0..horizon).flat_map(wanted).filter(|row| kept.find(*row).is_none()).count();
        if needed > free {
            return None;
        }
        batch.clear();
        for row in (0..horizon).flat_map(wanted) {
            if kept.find(row).is_none() {
                let given = kept.reserve(row)?;
                batch.push(Active { row, is_padding: false, is_refused: false, given });
            }
        }
        let mut clock = Clock::start(self.account.as_deref());
        let memory = frame.prepare(&pre.plan, batch.len(), self.team.size());
        let ends = Ends { arena: &self.domain.arena, cells: &self.cells, lanes, loaded };
        let transfer = Transfer { ends, body: pre, memory, given: None };
        transfer.gather(batch, false, &mut self.team);
        clock.run(&pre.plan, (memory, batch.len()), &mut self.team, refused);
        for found in refused.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The complaint that would come first if the row ran now.
            let first = &mut kept.refused[batch[found.row].given];
            *first = Some(first.map_or(found, |other| other.min(found)));
        }
        kept.put(&pre.plan, memory, batch, &mut self.team);
        clock.transferred();
        Some(())
    }

    /// Says that so many steps of a task from `first` on take what is kept.
    pub(super) fn give_kept(&mut self, task: &Task, first: u32, steps: u32) {
        let Ahead { given, bad, kept, .. } = &mut self.ahead;
        let Some(kept) = kept.get(task.cell.index()) else { return };
        given.reset(task.rows.len() * steps as usize, kept.offsets.len());
        bad.clear();
        for (position, row) in task.rows.iter().enumerate() {
            for at in 0..steps {
                let row = Row { lane: row.lane, step: row.step.saturating_add(first).saturating_add(at) };
                let Some(place) = kept.find(row) else { continue };
                let into = position * steps as usize + at as usize;
                given.set(into, kept.at(place));
                bad.extend(kept.refused[place].map(|found| RefusedRow { row: into, ..found }));
            }
        }
    }
}

#[cfg(test)]
mod tests;
