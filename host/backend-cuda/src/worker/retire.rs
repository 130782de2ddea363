//! What a segment that is done means for its requests: rows refused, chains stopped, outputs that leave.

use std::sync::atomic::Ordering;

use cellwright_backend::{Completed, Delivered, DeviceLost, Lane, Refused, Row, RowError, Stopped};

use super::CudaWorker;
use super::flight::{Batch, InFlight, Segment};
use super::joined::Whose;
use super::lanes::Lanes;
use super::together::Selected;
use crate::abi::{Outlet, RowStatus, read, status, why};

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
            sound &= take_in(task, (&segment, &self.lanes), batch, bytes);
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
fn take_in(task: &mut InFlight, (segment, lanes): (&Segment, &Lanes), batch: &Batch, bytes: &[u8]) -> bool {
    let statuses = &bytes[batch.statuses..][..batch.rows.len() * size_of::<RowStatus>()];
    let statuses = statuses.as_chunks::<{ size_of::<RowStatus>() }>().0;
    let row_of = |number: usize| {
        let Selected { lane, step, .. } = segment.rows[number];
        Row { lane, step }
    };
    // Of most rows there is nothing to note: they ran, their chains go on, and what they left stays on the device.
    let mut told: Vec<(usize, &Whose)> = Vec::with_capacity(batch.told.len());
    let mut next = batch.rows.start;
    for expected in segment.told[batch.told.clone()].iter().map(Some).chain([None]) {
        let end = expected.map_or(batch.rows.end, |told| told.number);
        let mut between = statuses[next - batch.rows.start..end - batch.rows.start].iter();
        let did_else = |status: &[u8; size_of::<RowStatus>()]| read::<u32>(status) != status::RAN;
        while between.any(did_else) {
            let number = end - between.len() - 1;
            let Some(whose) = lanes.of_task(row_of(number).lane, task.completed.seq) else { return false };
            told.push((number, whose));
        }
        told.extend(expected.map(|told| (told.number, &*told.whose)));
        next = end + 1;
    }
    // What was told of requests that died meanwhile concerns nobody. Those that die here do so for the steps that follow.
    let alive: Vec<bool> = told.iter().map(|(_, whose)| !whose.is_dead()).collect();
    let mut offset = batch.delivered;
    let mut sound = true;
    for ((number, whose), is_alive) in told.into_iter().zip(alive) {
        let row = row_of(number);
        let RowStatus { status, why, index, table_rows } = read(&statuses[number - batch.rows.start]);
        let has_run = matches!(status, status::RAN | status::STOPPED) && is_alive;
        match status {
            status::REFUSED if is_alive => {
                whose.die();
                let (rows, cell) = (table_rows, task.resident.name.clone());
                let error = match why {
                    why::SPAN_INDEX => RowError::SpanIndex { index, rows, cell },
                    why::TOO_FEW => RowError::TooFewRows { rows, needed: index.unsigned_abs(), cell },
                    _ => RowError::Index { index, rows, cell },
                };
                task.completed.refused.push(Refused { lane: row.lane, step: row.step, error });
            }
            status::RAN | status::STOPPED if has_run && whose.words.is_some() => {
                stop(&whose.lane, row, status == status::STOPPED, &mut task.completed);
            }
            status::SKIPPED | status::REFUSED | status::RAN | status::STOPPED => {}
            _ => sound = false,
        }
        let outlets = &task.resident.plan.outlets;
        offset = deliver(whose, row, has_run, (outlets, bytes, offset), &mut task.completed);
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
    whose: &Whose,
    row: Row,
    has_run: bool,
    (outlets, bytes, mut offset): (&[Outlet], &[u8], usize),
    completed: &mut Completed,
) -> usize {
    for (output, outlet) in outlets.iter().enumerate() {
        if !whose.brings(output, row.step) {
            continue;
        }
        let size = outlet.bytes as usize;
        if has_run && whose.delivers(output, row.step) {
            let at = completed.bytes.len() as u64;
            completed.delivered.push(Delivered { lane: row.lane, output: output as u32, step: row.step, offset: at });
            completed.bytes.extend_from_slice(&bytes[offset..offset + size]);
        }
        offset += size.next_multiple_of(16);
    }
    offset
}
