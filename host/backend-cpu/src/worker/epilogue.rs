//! What a step's results mean for their requests: rows refused, chains stopped, outputs that leave.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{Completed, Delivered, Lane, Refused, RowError, Stopped};
use cellwright_cell_graph::unfolded::Delivery;

use super::transfer::Transfer;
use super::{Active, RefusedRow};
use crate::plan::Refusal;

/// Marks rows that kernels refused, and their requests dead. Each row is reported once, with its first complaint; padding, which was computed on
/// zeros that nobody sent, never.
pub(super) fn refuse(
    found: &mut Vec<RefusedRow>,
    batch: &mut [Active],
    lanes: &[Option<Arc<Lane>>],
    cell: &str,
    completed: &mut Completed,
) {
    if found.is_empty() {
        return;
    }
    // Threads report in any order.
    found.sort_unstable();
    found.dedup_by_key(|refused| refused.row);
    for RefusedRow { row, why } in found.drain(..) {
        let Some(active) = batch.get_mut(row).filter(|active| !active.is_padding) else { continue };
        active.is_refused = true;
        if let Some(lane) = lanes.get(active.row.lane.index()).and_then(Option::as_ref) {
            lane.growth.flags.dead.store(true, Ordering::Relaxed);
        }
        let error = match why {
            Refusal::Index { index, rows } => RowError::Index { index, rows, cell: cell.to_owned() },
            Refusal::SpanIndex { index, rows } => RowError::SpanIndex { index, rows, cell: cell.to_owned() },
            Refusal::TooFewRows { rows, needed } => RowError::TooFewRows { rows, needed, cell: cell.to_owned() },
        };
        completed.refused.push(Refused { lane: active.row.lane, step: active.row.step, error });
    }
}

/// Ends chains that stopped, then delivers.
pub(super) fn finish(transfer: &Transfer<'_>, batch: &[Active], completed: &mut Completed) {
    for (row, active) in batch.iter().enumerate() {
        let Some(lane) = transfer.lane(active).filter(|_| !active.is_padding && !active.is_refused) else { continue };
        stop(transfer, lane, active, row, completed);
        for (output, delivery) in lane.stage().delivery.iter().enumerate() {
            let leaves = match delivery {
                Delivery::None => false,
                Delivery::Last => active.row.step + 1 == lane.executed(),
                Delivery::All => true,
            };
            if leaves {
                deliver(transfer.output(output, row), output, active, completed);
            }
        }
    }
}

/// Notes how many steps the chain executes, if this step decides it.
fn stop(transfer: &Transfer<'_>, lane: &Lane, active: &Active, row: usize, completed: &mut Completed) {
    let (chain, steps) = (lane.chain(), active.row.step + 1);
    let executed = &lane.growth.executed[lane.chain as usize];
    if let Some((stage, output)) = chain.stop.filter(|(stage, _)| *stage == lane.stage) {
        debug_assert_eq!(stage, lane.stage);
        let stops = transfer.output(output as usize, row).first().is_some_and(|byte| *byte != 0);
        if stops || steps == chain.length.bound {
            executed.fetch_min(steps, Ordering::AcqRel);
            completed.stopped.push(Stopped { lane: active.row.lane, step: active.row.step });
        }
    } else if chain.length.like.is_some() && steps == lane.executed() {
        // What refers to this chain after the request has moved on finds its own length, not the other chain's.
        executed.fetch_min(steps, Ordering::AcqRel);
    }
}

fn deliver(bytes: &[u8], output: usize, active: &Active, completed: &mut Completed) {
    let offset = completed.bytes.len() as u64;
    completed.delivered.push(Delivered { lane: active.row.lane, output: output as u32, step: active.row.step, offset });
    completed.bytes.extend_from_slice(bytes);
}
