//! Which rows hold what, of the rows that cells have for what is computed ahead of their steps.
//!
//! A row is free, or one lane's for one of its steps, or a segment's that reads it. Rows are computed several at once, one behind the other, and so they
//! are taken by blocks; a block is free again when all of its rows are. A row that a segment reads is given back when that segment is done, so that
//! nobody writes to what is still read. A row that nobody has read may be written anew at once: whoever does so comes behind whoever wrote it.

use std::collections::BTreeMap;
use std::ops::Range;

use cellwright_backend::LaneId;

use crate::driver::DeviceAddress;

/// Steps of a lane that are kept, at most.
pub(in crate::worker) const STEPS: u32 = 16;

/// Rows that are taken at once: those of the smallest tile of a product.
pub(in crate::worker) const BLOCK: u32 = 16;

/// A row, and the number of the pass in which it was queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::worker) struct Place {
    pub(in crate::worker) row: u32,
    pub(in crate::worker) pass: u64,
}

/// Steps of a lane, one after the other, and where each of them is.
#[derive(Debug)]
struct Run {
    /// The cell's memory, by which it is known.
    cell: DeviceAddress,
    steps: Range<u32>,
    places: [Place; STEPS as usize],
}

impl Run {
    fn place(&self, step: u32) -> Place {
        self.places[(step % STEPS) as usize]
    }
}

/// A cell's blocks, by how many of their rows are taken.
type Blocks = Vec<u32>;

/// What is kept of all cells.
#[derive(Debug, Default)]
pub(in crate::worker) struct Kept {
    /// By lane.
    runs: Vec<Option<Box<Run>>>,
    cells: BTreeMap<DeviceAddress, Blocks>,
}

impl Kept {
    /// So many rows more: those of a cell. What is less than a block is not used.
    pub(in crate::worker) fn add_cell(&mut self, cell: DeviceAddress, rows: u32) {
        self.cells.insert(cell, vec![0; (rows / BLOCK) as usize]);
    }

    /// A cell is gone. No segment reads what was kept of it.
    pub(in crate::worker) fn forget_cell(&mut self, cell: DeviceAddress) {
        if self.cells.remove(&cell).is_some() {
            self.runs.iter_mut().filter(|run| run.as_ref().is_some_and(|run| run.cell == cell)).for_each(|run| *run = None);
        }
    }

    /// A lane is another's from now on, or nobody's.
    pub(in crate::worker) fn forget_lane(&mut self, lane: LaneId) {
        if let Some(run) = self.runs.get_mut(lane.index()).and_then(Option::take) {
            self.free(run.cell, run.steps.clone().map(|step| run.place(step).row));
        }
    }

    /// Rows that were read are free.
    pub(in crate::worker) fn free(&mut self, cell: DeviceAddress, rows: impl Iterator<Item = u32>) {
        let Some(blocks) = self.cells.get_mut(&cell) else { return };
        for row in rows {
            if let Some(taken) = blocks.get_mut((row / BLOCK) as usize) {
                *taken = taken.saturating_sub(1);
            }
        }
    }

    fn run(&self, cell: DeviceAddress, lane: LaneId) -> Option<&Run> {
        self.runs.get(lane.index())?.as_deref().filter(|run| run.cell == cell)
    }

    /// How many steps of a lane are kept, from that one on.
    pub(in crate::worker) fn steps(&self, cell: DeviceAddress, lane: LaneId, step: u32) -> u32 {
        self.run(cell, lane).filter(|run| run.steps.contains(&step)).map_or(0, |run| run.steps.end - step)
    }

    /// A lane goes on with that step: what is kept of those before it is of no use, or somebody's who has taken it.
    pub(in crate::worker) fn begin(&mut self, lane: LaneId, step: u32) {
        let Some(run) = self.runs.get_mut(lane.index()).and_then(Option::as_deref_mut) else { return };
        let old = run.steps.start..step.clamp(run.steps.start, run.steps.end);
        run.steps.start = old.end;
        let (cell, places) = (run.cell, run.places);
        self.free(cell, old.map(|step| places[(step % STEPS) as usize].row));
    }

    /// Where a step of a lane is kept, which is the caller's from now on, until it gives it back ([`Kept::free`]).
    pub(in crate::worker) fn take(&mut self, cell: DeviceAddress, lane: LaneId, step: u32) -> Option<Place> {
        let place = self.run(cell, lane).filter(|run| run.steps.contains(&step))?.place(step);
        self.begin(lane, step);
        if let Some(run) = self.runs.get_mut(lane.index()).and_then(Option::as_deref_mut) {
            run.steps.start = step + 1;
        }
        Some(place)
    }

    /// Rows of a cell that are free, one behind the other, at most so many: as many as there are, from the first stretch of blocks that is long enough on.
    pub(in crate::worker) fn room(&self, cell: DeviceAddress, rows_most: u32) -> Range<u32> {
        let Some(blocks) = self.cells.get(&cell) else { return 0..0 };
        let wanted = rows_most.div_ceil(BLOCK) as usize;
        let (mut longest, mut first) = (0..0, 0);
        for (block, taken) in blocks.iter().enumerate() {
            if *taken > 0 {
                first = block + 1;
            } else if block + 1 - first > longest.len() {
                longest = first..block + 1;
                if longest.len() >= wanted {
                    break;
                }
            }
        }
        let (first, rows) = (longest.start as u32 * BLOCK, (longest.len() as u32 * BLOCK).min(rows_most));
        first..first + rows
    }

    /// Keeps the step of a lane that follows those that are kept of it, or begins anew with it. Its row is free, and there is room for the step.
    pub(in crate::worker) fn keep(&mut self, cell: DeviceAddress, (lane, step): (LaneId, u32), place: Place) {
        if lane.index() >= self.runs.len() {
            self.runs.resize_with(lane.index() + 1, || None);
        }
        if self.run(cell, lane).is_none_or(|run| run.steps.end != step || run.steps.len() == STEPS as usize) {
            self.forget_lane(lane);
            self.runs[lane.index()] = Some(Box::new(Run { cell, steps: step..step, places: [Place::default(); STEPS as usize] }));
        }
        if let Some(run) = &mut self.runs[lane.index()] {
            run.places[(step % STEPS) as usize] = place;
            run.steps.end = step + 1;
        }
        if let Some(taken) = self.cells.get_mut(&cell).and_then(|blocks| blocks.get_mut((place.row / BLOCK) as usize)) {
            *taken += 1;
        }
    }
}

#[cfg(test)]
mod tests;
