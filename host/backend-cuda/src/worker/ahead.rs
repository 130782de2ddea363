//! The beginnings of a step's sums, computed ahead of the step on a stream of their own.
//!
//! This is for LSTM and GRU steps with kernels of their own, no table, and inputs that came with
//! the request. The rows of a lane's next steps, up to sixteen, are gathered and multiplied
//! together with other lanes' before a task asks for them (a pass). They stay in rows of a frame
//! that the cell has for this alone ([`kept`]), within a budget of the worker. A task's batch reads
//! them as it would read a table by token. It gathers everything else, and waits for the event of
//! the newest pass that it reads from.
//!
//! A row is read by one batch and written over only when that batch is known to be done. A batch
//! that lacks rows is computed whole, as if nothing were kept. If only a few new lanes lack theirs,
//! these are computed first. Nothing waits for room: rows without room are not computed ahead. Rows
//! of a step that never comes, because its chain ended or its request died, are given back with
//! their lane or when the lane goes on without them.
//!
//! The kernels are those that would run within the batch, and their bits do not depend on the
//! number of rows. So no result depends on what was computed when. Cells without kernels of their
//! own and inputs that are another node's are multiplied with their steps.

mod kept;
mod pass;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{DeviceLost, LoadError};

use super::CudaWorker;
use super::device::Device;
use super::frame::FrameMemory;
use super::resident::{Resident, fault_of_load};
use super::ring::Ring;
use super::table::Table;
use super::together::Selected;
use crate::driver::{DeviceAddress, Done, Driver, Event, Pinned, Stream};
pub(super) use kept::Kept;
use kept::{BLOCK, STEPS};

/// Passes that are queued at once, at most.
const PASSES: usize = 8;

/// Rows of a pass, at most: more are no faster by the row.
const PASS_ROWS: u32 = 2048;

/// Rows of a pass that a task waits for, at most, unless its own steps are more.
const WAITED_ROWS: u32 = 256;

/// Rows that a cell keeps, at most: sixteen steps of 512 lanes.
const ROWS_MOST: u64 = 8192;

/// A cell's rows take at most this part of what is left: other cells are to be loaded yet.
const SHARE: u64 = 2;

/// Rows of a cell that are computed ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) frame: FrameMemory,
    pub(super) count: u32,
    /// Where the numbers 0, 1, 2, … lie, of 64 bits each, one for each row.
    numbers: DeviceAddress,
}

impl Rows {
    /// Where the number of a row lies.
    pub(super) const fn number(&self, row: u32) -> u64 {
        self.numbers.plus(row as usize * size_of::<u64>()).0
    }

    /// What it takes of the device's memory.
    const fn bytes(&self, stride: usize) -> u64 {
        self.count as u64 * (stride + size_of::<u64>()) as u64
    }
}

/// The stream, and what is on it.
#[derive(Debug)]
struct Queue {
    stream: Stream,
    /// Of each pass, by turns.
    events: [Event; PASSES],
    up: Ring,
    /// Holds the number of the newest pass that is done.
    done: Pinned,
    /// The number of the newest pass that was queued,
    queued: u64,
    /// and of the newest one that the stream of the steps waits for.
    waited: u64,
    /// Numbers of passes whose stretch of the ring was not given back.
    flying: VecDeque<u64>,
}

impl Queue {
    fn new(driver: &mut dyn Driver, ring_bytes: usize) -> Done<Self> {
        // First what there may be no room for: streams and events stay with the driver.
        let up = Ring::new(driver, ring_bytes)?;
        let ring = up.device;
        Self::around(driver, up).inspect_err(|_| {
            // What became of the device is told by the first fault.
            let _ = driver.free(ring);
        })
    }

    fn around(driver: &mut dyn Driver, up: Ring) -> Done<Self> {
        let (done, stream) = (driver.pinned(size_of::<u64>())?, driver.stream()?);
        let mut events = [driver.event()?; PASSES];
        for event in &mut events[1..] {
            *event = driver.event()?;
        }
        Ok(Self { stream, events, up, done, queued: 0, waited: 0, flying: VecDeque::new() })
    }

    /// Takes back what passes that are done have left.
    fn sweep(&mut self) {
        let done = self.done.word(0).load(Ordering::Acquire);
        while self.flying.front().is_some_and(|number| *number <= done) {
            self.flying.pop_front();
            self.up.give_back();
        }
    }
}

/// A worker's.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// None until there is a cell of which something is computed ahead.
    queue: Option<Queue>,
    pub(super) kept: Kept,
    /// Rows of the next pass: positions in the task, and steps.
    wanted: Vec<(u32, u32)>,
}

impl Ahead {
    /// Sees to it that what is queued to run from now on runs behind a pass.
    pub(super) fn wait_for(&mut self, pass: u64, device: &mut Device) -> Done {
        let Some(queue) = self.queue.as_mut().filter(|queue| pass > queue.waited) else { return Ok(()) };
        // The event of one that is done may be a later pass's by now, for which nobody has to wait yet.
        if queue.done.word(0).load(Ordering::Acquire) < pass {
            device.driver.wait(device.stream, queue.events[pass as usize % PASSES])?;
        }
        queue.waited = pass;
        Ok(())
    }

    /// Sees to it that what is queued to run from now on has the device for itself.
    pub(super) fn wait_for_all(&mut self, device: &mut Device) -> Done {
        self.queue.as_ref().map(|queue| queue.queued).map_or(Ok(()), |newest| self.wait_for(newest, device))
    }
}

impl CudaWorker {
    /// Gives a cell rows to compute ahead in, if that is possible and there is room. It runs as well without them: what is refused for them, on the device or on
    /// the host, refuses no cell.
    pub(super) fn make_room_ahead(&mut self, resident: &mut Resident) -> Result<(), LoadError> {
        if resident.plan.recurrence.as_ref().is_none_or(|plan| plan.ahead.is_none()) || resident.table_info().is_some() {
            return Ok(());
        }
        let made = self.make_rows(resident);
        let rows = match made {
            Err(fault) if fault.is_lost() => return Err(fault_of_load(&resident.name, &mut self.device, &fault)),
            Err(fault) => {
                tracing::warn!("cell `{}`: nothing is computed ahead of its steps: {fault}", resident.name);
                None
            }
            Ok(rows) => rows,
        };
        if let Some(rows) = rows {
            self.device.call(rows.frame.address, &format!("what is computed ahead of cell `{}`", resident.name));
            self.ahead.kept.add_cell(resident.memory, rows.count);
            resident.set_ahead(rows);
        }
        Ok(())
    }

    fn make_rows(&mut self, resident: &Resident) -> Done<Option<Rows>> {
        let stride = resident.plan.stride;
        let ring_bytes = self.sizes.ring_bytes / 4;
        let of_cells = self.residents.iter().filter_map(|(_, other)| other.ahead.map(|rows| rows.bytes(other.plan.stride)));
        let taken = of_cells.sum::<u64>() + ring_bytes as u64;
        let share = self.sizes.ahead_bytes.saturating_sub(taken) / SHARE;
        let count = (share / (stride + size_of::<u64>()) as u64).min(ROWS_MOST) as u32 / BLOCK * BLOCK;
        let (fixed, of_row) = pass::cost(resident);
        // A pass takes half of the ring at most.
        if count == 0 || 2 * (fixed + of_row) > ring_bytes {
            return Ok(None);
        }
        let driver = &mut *self.device.driver;
        if self.ahead.queue.is_none() {
            let queue = Queue::new(driver, ring_bytes)?;
            let ring = queue.up.device;
            self.ahead.queue = Some(queue);
            self.device.call(ring, "the ring of what is computed ahead");
        }
        let driver = &mut *self.device.driver;
        let bytes = count as usize * stride;
        let address = driver.allocate(bytes.next_multiple_of(16) + count as usize * size_of::<u64>())?;
        let rows = Rows { frame: FrameMemory { address, bytes }, count, numbers: address.plus(bytes.next_multiple_of(16)) };
        let numbers: Vec<u8> = (0..u64::from(count)).flat_map(u64::to_le_bytes).collect();
        driver.write(self.device.stream, rows.numbers, &numbers).inspect_err(|_| {
            // What became of the device is told by the first fault.
            let _ = driver.free(address);
        })?;
        Ok(Some(rows))
    }

    /// Whether what is before the newest task's steps may be computed ahead: all it needs came with the requests.
    fn is_known_ahead(&self, resident: &Resident) -> bool {
        let plan = resident.plan.recurrence.as_ref().and_then(|plan| plan.ahead.as_ref());
        let (Some(plan), Some(task), Some(_)) = (plan, self.tasks.back(), resident.ahead) else { return false };
        let seats = self.lanes.seats();
        task.rows.iter().all(|row| plan.early.iter().all(|input| seats.whose(row.lane).is_given(*input)))
    }

    /// Computes what a few rows of the newest task lack of what the others have. Of what all of them lack, nothing: it is in nobody's way where it is.
    pub(super) fn complete_ahead(&mut self, resident: &Arc<Resident>, steps: u32) -> Result<(), DeviceLost> {
        if !self.is_known_ahead(resident) {
            return Ok(());
        }
        let Some(task) = self.tasks.back() else { return Ok(()) };
        let kept = |position: usize| {
            let row = task.rows[position];
            self.ahead.kept.steps(resident.memory, row.lane, row.step)
        };
        let is_running = |position: &usize| self.lanes.seats().runs(task.rows[*position].lane, task.rows[*position].step);
        let running: Vec<usize> = (0..task.rows.len()).filter(is_running).collect();
        let lacking: Vec<usize> = running.iter().copied().filter(|position| kept(*position) < steps).collect();
        if lacking.len() == running.len() {
            return Ok(());
        }
        let most = (WAITED_ROWS / (lacking.len() as u32).max(1)).clamp(steps, STEPS.max(steps));
        self.want(resident, &lacking, (0, steps), most);
        self.queue_passes(resident)
    }

    /// Computes what the tasks that follow the newest one are going to need of its lanes.
    pub(super) fn compute_ahead(&mut self, resident: &Arc<Resident>, steps: u32) -> Result<(), DeviceLost> {
        if !self.is_known_ahead(resident) {
            return Ok(());
        }
        let Some(task) = self.tasks.back() else { return Ok(()) };
        let kept = |position: &usize| {
            let row = task.rows[*position];
            self.ahead.kept.steps(resident.memory, row.lane, row.step.saturating_add(steps))
        };
        // Half of them are there while the other half is computed.
        let lacking: Vec<usize> = (0..task.rows.len()).filter(|position| kept(position) <= STEPS / 2).collect();
        self.want(resident, &lacking, (steps, steps), STEPS);
        self.queue_passes(resident)
    }

    /// Collects the steps from the `first` one of these lanes on that are not kept, at most so many, the soonest of all lanes first. Of a chain that may stop no
    /// more than the `next` few: what is computed beyond its stop is computed in vain.
    fn want(&mut self, resident: &Resident, positions: &[usize], (first, next): (u32, u32), most: u32) {
        let Ahead { kept, wanted, .. } = &mut self.ahead;
        wanted.clear();
        let Some(task) = self.tasks.back() else { return };
        let mut of_lane = |position: &usize| {
            let row = task.rows[*position];
            let joined = self.lanes.of(row.lane);
            let from = row.step.saturating_add(first);
            kept.begin(row.lane, from);
            let most = if joined.may_stop { next.min(most) } else { most };
            (*position, from, kept.steps(resident.memory, row.lane, from)..most.min(STEPS))
        };
        let lacking: Vec<(usize, u32, Range<u32>)> = positions.iter().map(&mut of_lane).collect();
        for at in 0..most.min(STEPS) {
            for (position, from, steps) in &lacking {
                let step = from.saturating_add(at);
                if steps.contains(&at) && self.lanes.seats().runs(task.rows[*position].lane, step) {
                    wanted.push((*position as u32, step));
                }
            }
        }
    }

    /// Takes where the rows of a batch are kept, if all of them are: the batch reads them. If not, what is kept of them is given back.
    pub(super) fn take_ahead(&mut self, resident: &Resident, rows: &[Selected]) -> Option<Vec<kept::Place>> {
        resident.ahead?;
        let (kept, cell) = (&mut self.ahead.kept, resident.memory);
        let lanes = rows.iter().map(|row| (row.lane, row.step));
        if lanes.clone().all(|(lane, step)| kept.steps(cell, lane, step) > 0) {
            let mut places = Vec::with_capacity(rows.len());
            places.extend(lanes.map_while(|(lane, step)| kept.take(cell, lane, step)));
            // A lane that is there twice may not come in order.
            if places.len() < rows.len() {
                kept.free(cell, places.iter().map(|place: &kept::Place| place.row));
                return None;
            }
            return Some(places);
        }
        lanes.for_each(|(lane, step)| kept.begin(lane, step.saturating_add(1)));
        None
    }
}

impl Resident {
    /// Has steps begin with what was computed in these rows, where batches say so.
    fn set_ahead(&mut self, rows: Rows) {
        let Some(plan) = &self.plan.recurrence else { return };
        let (Some(begin), Some(number)) = (plan.begin, plan.ahead.as_ref().map(|ahead| ahead.number)) else { return };
        self.ahead = Some(rows);
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.ahead = Table {
                address: rows.frame.address.plus(begin),
                rows: u64::from(rows.count),
                stride: self.plan.stride as u32,
                token: (number as u32, size_of::<u64>() as u32),
            };
        }
    }
}
