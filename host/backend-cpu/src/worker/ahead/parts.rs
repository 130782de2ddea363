//! What each input of a batch adds to the sums of a cell (cells that are taken input by input).
//!
//! The inner node of a binary tree knows nothing before its children, but half of its edges lead to
//! leaves, and a leaf depends on its token alone. Where an input is the output of a cell that takes
//! one token and nothing else, its part is looked up by cell, input and token. Parts that are
//! missing are computed and kept.
//!
//! A table is made when such a giving cell is first met, and goes when that cell is unloaded. It
//! takes its share of the tables' budget. If there is room for some tokens only, it is made anew
//! once there could be four times as many rows. Lookups change no bit.

use std::sync::Arc;

use cellwright_backend::{CellTypeId, InputRef};

use super::{Ahead, BYTES};
use crate::compiled::{Part, PartTables, Parts};
use crate::plan::Frame;
use crate::team::Team;
use crate::worker::transfer::{Ends, Transfer, zero_inputs};
use crate::worker::{Active, Clock};

/// Rows of a batch of which a part is computed.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// By row of the frame.
    batch: Vec<Active>,
    /// By row of the frame: where it is kept: in which of the tables, and the token.
    keep: Vec<Option<(usize, usize)>>,
    /// Rows of the batch that ask for a row of the frame that another asked for first.
    again: Vec<(usize, usize)>,
    /// Tables that this batch has asked: of that cell's output. They are held as long as what was found is read.
    tables: Vec<(CellTypeId, u32, Option<Arc<PartTables>>)>,
}

impl Parts {
    /// Rows of a batch of which all parts are computed at once: what they give is there together.
    pub(in crate::worker) fn rows_most(&self) -> usize {
        let row = self.all.iter().map(|part| part.body.plan.row_bytes()).sum::<usize>();
        (BYTES / row.max(1)).max(1)
    }
}

impl Ahead {
    /// Sees to it that what each input adds is there for the rows of a batch, until the next.
    pub(in crate::worker) fn run_parts(
        &mut self,
        parts: &Parts,
        batch: &mut [Active],
        ends: Ends<'_>,
        team: &mut Team,
        clock: &mut Clock<'_>,
    ) {
        let count = parts.all.len();
        self.given.reset(batch.len(), parts.all.iter().map(|part| part.numbers.len()).sum());
        self.part_frames.resize_with(self.part_frames.len().max(count), Frame::default);
        self.asked.tables.clear();
        batch.iter_mut().enumerate().for_each(|(row, active)| active.given = row);
        for number in 0..count {
            self.look_up_part((parts, number), batch, ends);
            if !self.asked.batch.is_empty() {
                self.run_part((&parts.all[number], number), ends, team, clock);
            }
        }
        clock.transferred();
    }

    /// Finds for which rows of a batch a part is there, and which are to be computed.
    fn look_up_part(&mut self, (parts, number): (&Parts, usize), batch: &[Active], ends: Ends<'_>) {
        let part = &parts.all[number];
        let Asked { batch: asked, keep, again, tables } = &mut self.asked;
        asked.clear();
        keep.clear();
        again.clear();
        for active in batch {
            let found = token(part, active, ends).and_then(|(cell, output, index)| {
                let at = tables.iter().position(|(of, number, _)| (*of, *number) == (cell, output)).unwrap_or_else(|| {
                    let giver = ends.cells.get(cell.index()).and_then(Option::as_ref);
                    tables.push((cell, output, giver.and_then(|giver| parts.tables(&giver.plan, output))));
                    tables.len() - 1
                });
                let table = tables[at].2.as_ref()?.of[number].as_ref()?;
                Some((at, table.token(index)?, table))
            });
            let Some((at, token, table)) = found else {
                asked.push(*active);
                keep.push(None);
                continue;
            };
            if let Some(outputs) = table.find(token) {
                self.given.set_some(active.given, &part.numbers, outputs);
            } else if !table.has_room() {
                asked.push(*active);
                keep.push(None);
            } else if let Some(first) = keep.iter().position(|other| *other == Some((at, token))) {
                again.push((active.given, first));
            } else {
                asked.push(*active);
                keep.push(Some((at, token)));
            }
        }
    }

    /// Computes a part of the rows that ask for it.
    fn run_part(&mut self, (part, number): (&Part, usize), ends: Ends<'_>, team: &mut Team, clock: &mut Clock<'_>) {
        let Asked { batch, keep, again, tables } = &self.asked;
        let plan = &part.body.plan;
        let memory = self.part_frames[number].prepare(plan, batch.len(), team.size());
        let transfer = Transfer { ends, body: &part.body, memory, given: None };
        transfer.gather(batch, false, team);
        clock.run(plan, (memory, batch.len()), team, &self.refused);
        for (row, (active, keep)) in batch.iter().zip(keep).enumerate() {
            let outputs = || plan.outputs.iter().map(|output| memory.output(output, row).cast_const());
            self.given.set_some(active.given, &part.numbers, outputs());
            let Some((table, token)) = keep.and_then(|(at, token)| Some((tables[at].2.as_ref()?.of[number].as_ref()?, token))) else {
                continue;
            };
            // SAFETY: the frame holds this row of every output of the half that the table was made for.
            unsafe { table.keep(token, |output| memory.output(&plan.outputs[output], row)) };
        }
        for (asking, row) in again {
            let outputs = plan.outputs.iter().map(|output| memory.output(output, *row).cast_const());
            self.given.set_some(*asking, &part.numbers, outputs);
        }
    }

    /// Runs all parts over so many rows of zeros.
    pub(in crate::worker) fn run_parts_on_zeros(&mut self, parts: &Parts, rows: usize, team: &mut Team) {
        self.part_frames.resize_with(self.part_frames.len().max(1), Frame::default);
        for part in &parts.all {
            let rows_a_run = rows.min(parts.rows_most());
            let memory = self.part_frames[0].prepare(&part.body.plan, rows_a_run, team.size());
            zero_inputs(&part.body.plan, memory, rows_a_run);
            for first in (0..rows).step_by(rows_a_run) {
                part.body.plan.run(memory, rows_a_run.min(rows - first), team, &self.refused);
            }
        }
    }
}

/// The token of which alone a row's input is made: the cell that made it, which of its outputs that is, and the index.
fn token(part: &Part, active: &Active, ends: Ends<'_>) -> Option<(CellTypeId, u32, i64)> {
    let lane = ends.lane(active).filter(|_| !active.is_padding)?;
    let (input, step) = (part.input as usize, active.row.step);
    let InputRef::Slot { cell, .. } = lane.input(input, step) else { return None };
    ends.cells.get(cell.index())?.as_ref()?.plan.only_token?;
    let giver = lane.giver(input, step)?;
    let index = match giver.input {
        InputRef::Int(number) => number,
        InputRef::Host(bytes) => match *bytes {
            [a, b, c, d] => i64::from(i32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => return None,
        },
        _ => return None,
    };
    Some((giver.cell, giver.output, index))
}
