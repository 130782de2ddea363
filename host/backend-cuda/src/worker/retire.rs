//! What a segment that is done means for its requests: rows refused, chains stopped, outputs that leave.

use std::sync::atomic::Ordering;

use cellwright_backend::{Completed, Delivered, DeviceLost, Lane, Refused, Row, RowError, Stopped};
use cellwright_cell_graph::unfolded::Delivery;

use super::CudaWorker;
use super::flight::{Batch, InFlight, Segment};
use super::joined::Joined;
use crate::abi::{Outlet, RowStatus, read, status};

impl CudaWorker {
    /// Takes the oldest segment's results in. It is done.
    pub(super) fn retire(&mut self) -> Result<(), DeviceLost> {
        let Some(task) = self.tasks.iter_mut().find(|task| task.oldest().is_some()) else { return Ok(()) };
        let Some(segment) = task.segments.pop_front() else { return Ok(()) };
        self.device.is_intact(format_args!("a task of cell `{}`", task.resident.name))?;
        // SAFETY: its signal was seen, and the stretch is its own until it is given back below.
        let bytes = unsafe { self.down.pinned.bytes(segment.down.clone()) };
        let mut sound = true;
        for batch in &segment.batches {
            sound &= take_in(task, &segment, batch, bytes);
        }
        self.ahead.kept.free(task.resident.memory, segment.ahead.iter().copied());
        self.up.give_back();
        self.down.give_back();
        if sound { Ok(()) } else { Err(self.device.lose("a row's status is none".to_owned())) }
    }

    /// Waits for all tasks that are queued, and takes their results in. What is computed ahead of others may be under way still.
    pub(super) fn drain(&mut self) -> Result<(), DeviceLost> {
        while let Some(number) = self.tasks.iter().find_map(InFlight::oldest) {
            self.device.wait_for(number)?;
            self.retire()?;
        }
        Ok(())
    }
}

/// Takes a batch's results in; whether they are what they can be.
fn take_in(task: &mut InFlight, segment: &Segment, batch: &Batch, bytes: &[u8]) -> bool {
    let rows = &segment.rows[batch.rows.clone()];
    let status_of = |number: usize| read::<RowStatus>(&bytes[batch.statuses + number * size_of::<RowStatus>()..]);
    // Of most rows there is nothing to note: they ran, their chains go on, and what they left stays on the device.
    let is_told = |(number, (position, step)): &(usize, &(u32, u32))| {
        let joined = &task.joined[*position as usize];
        joined.words.is_some() || joined.may_bring(*step) || status_of(*number).status != status::RAN
    };
    // What was told of requests that died meanwhile concerns nobody. Those that die here do so for the steps that follow.
    let told: Vec<(usize, bool)> = rows
        .iter()
        .enumerate()
        .filter(is_told)
        .map(|(number, (position, _))| (number, !task.joined[*position as usize].is_dead()))
        .collect();
    let mut offset = batch.delivered;
    let mut sound = true;
    for (number, is_alive) in told {
        let (position, step) = rows[number];
        let joined = &task.joined[position as usize];
        let row = Row { lane: task.rows[position as usize].lane, step };
        let RowStatus { status, index, table_rows, .. } = status_of(number);
        let has_run = matches!(status, status::RAN | status::STOPPED) && is_alive;
        match status {
            status::REFUSED if is_alive => {
                joined.lane.growth.flags.dead.store(true, Ordering::Relaxed);
                let error = RowError::Index { index, rows: table_rows, cell: task.resident.name.clone() };
                task.completed.refused.push(Refused { lane: row.lane, step: row.step, error });
            }
            status::RAN | status::STOPPED if has_run => stop(&joined.lane, row, status == status::STOPPED, &mut task.completed),
            status::SKIPPED | status::REFUSED | status::RAN | status::STOPPED => {}
            _ => sound = false,
        }
        let outlets = &task.resident.plan.outlets;
        offset = deliver(joined, row, has_run, (outlets, bytes, offset), &mut task.completed);
    }
    sound
}

/// Notes how many steps the chain executes, if this step decides it.
fn stop(lane: &Lane, row: Row, is_stopped: bool, completed: &mut Completed) {
    let (chain, steps) = (lane.chain(), row.step + 1);
    let executed = &lane.growth.executed[lane.chain as usize];
    if chain.stop.is_some_and(|(stage, _)| stage == lane.stage) {
        if is_stopped || steps == chain.length.bound {
            executed.fetch_min(steps, Ordering::AcqRel);
            completed.stopped.push(Stopped { lane: row.lane, step: row.step });
        }
    } else if chain.length.like.is_some() && steps == lane.executed() {
        // What refers to this chain after the request has moved on finds its own length, not the other chain's.
        executed.fetch_min(steps, Ordering::AcqRel);
    }
}

/// Takes a row's outputs out of what was downloaded from `offset` on: where the next row's begin.
fn deliver(
    joined: &Joined,
    row: Row,
    has_run: bool,
    (outlets, bytes, mut offset): (&[Outlet], &[u8], usize),
    completed: &mut Completed,
) -> usize {
    for (output, (delivery, outlet)) in joined.lane.stage().delivery.iter().zip(outlets).enumerate() {
        if !joined.brings(delivery, row.step) {
            continue;
        }
        let size = outlet.bytes as usize;
        if has_run && (*delivery != Delivery::Last || row.step + 1 == joined.executed()) {
            let at = completed.bytes.len() as u64;
            completed.delivered.push(Delivered { lane: row.lane, output: output as u32, step: row.step, offset: at });
            completed.bytes.extend_from_slice(&bytes[offset..offset + size]);
        }
        offset += size.next_multiple_of(16);
    }
    offset
}
