//! A pass: the rows of some steps of some lanes, gathered and multiplied on the stream that is for this.

use std::ops::Range;
use std::sync::Arc;

use cellwright_backend::DeviceLost;

use super::kept::Place;
use super::{Ahead, BLOCK, CudaWorker, PASS_ROWS, PASSES};
use crate::abi::{BatchHead, GatherArguments, RowEntry, bytes_of_all};
use crate::driver::Done;
use crate::worker::frame::FrameMemory;
use crate::worker::inputs::{ALONE, Inputs};
use crate::worker::joined::Arena;
use crate::worker::queue::copies;
use crate::worker::resident::{Resident, Rows};
use crate::worker::ring::Pen;

/// What aligns the pieces.
const SLACK: usize = 64;

/// Bytes of the ring that a pass takes besides its rows, and for each of these.
pub(super) fn cost(resident: &Resident) -> (usize, usize) {
    let of_input = |port: &crate::abi::Port| size_of::<u64>() + (port.bytes as usize).next_multiple_of(16);
    (SLACK, size_of::<RowEntry>() + resident.early().map(of_input).sum::<usize>())
}

impl CudaWorker {
    /// Queues what is wanted, in as many passes as there is room for.
    pub(super) fn queue_passes(&mut self, resident: &Arc<Resident>) -> Result<(), DeviceLost> {
        let mut wanted = std::mem::take(&mut self.ahead.wanted);
        let mut left = wanted.as_slice();
        while !left.is_empty() {
            let queued = self.queue_pass(resident, left);
            match self.device.held(queued)? {
                0 => break,
                rows => left = &left[rows..],
            }
        }
        wanted.clear();
        self.ahead.wanted = wanted;
        Ok(())
    }

    /// Queues a pass of the first few of these rows: how many.
    fn queue_pass(&mut self, resident: &Resident, wanted: &[(u32, u32)]) -> Done<usize> {
        let (Some(ahead), Some((rows, up))) = (resident.ahead, self.room_for_pass(resident, wanted.len())) else { return Ok(0) };
        let Some((own, used)) = self.write_pass(resident, wanted, (rows.clone(), up.clone())) else { return Ok(0) };
        let Some(queue) = &mut self.ahead.queue else { return Ok(0) };
        queue.up.take(up.start, used);
        queue.queued += 1;
        queue.flying.push_back(queue.queued);
        let (stream, event) = (queue.stream, queue.events[queue.queued as usize % PASSES]);
        let (count, stride) = (own.rows, resident.plan.stride);
        let frame = FrameMemory { address: ahead.frame.address.plus(rows.start as usize * stride), bytes: rows.len() * stride };
        let (ports, port_count) = (resident.early_ports, resident.early_inputs().len() as u32);
        let arguments = GatherArguments { frame: frame.address.0, ports, head: 0, stride: stride as u32, port_count, own };
        self.device.driver.upload(stream, &queue.up.pinned, up.start, queue.up.device.plus(up.start), used)?;
        self.device.beside(stream, |device| {
            // SAFETY: the kernel takes this structure; the lists lie in the pass's stretch, and the rows in those of the cell that nobody has.
            unsafe { device.launch(&copies(device.kernels.gather, count), &arguments)? };
            resident.run_before(device, frame, &Rows::of_one_step(&count))
        })?;
        self.device.driver.record(event, stream)?;
        self.device.driver.signal(stream, &queue.done, 0, queue.queued)?;
        Ok(rows.len())
    }

    /// Rows of the cell for a pass of so many at most, and bytes of the ring; none if there is no room.
    fn room_for_pass(&mut self, resident: &Resident, rows_most: usize) -> Option<(Range<u32>, Range<usize>)> {
        let Ahead { queue: Some(queue), kept, .. } = &mut self.ahead else { return None };
        queue.sweep();
        let (fixed, of_row) = cost(resident);
        // Half of the ring, so that one pass is written while another one is on its way.
        let most = ((queue.up.capacity() / 2 - fixed) / of_row).min(PASS_ROWS as usize).min(rows_most);
        let rows = kept.room(resident.memory, most as u32);
        if rows.is_empty() || queue.flying.len() == PASSES {
            return None;
        }
        let bytes = fixed + rows.len() * of_row;
        let up = queue.up.room(bytes)?;
        Some((rows, up..up + bytes))
    }

    /// Writes a pass of the first of these rows to its stretch of the ring: its head, and how many bytes it takes. They are kept from now on.
    fn write_pass(
        &mut self,
        resident: &Resident,
        wanted: &[(u32, u32)],
        (rows, up): (Range<u32>, Range<usize>),
    ) -> Option<(BatchHead, usize)> {
        let Ahead { queue: Some(queue), kept, .. } = &mut self.ahead else { return None };
        let task = self.tasks.back()?;
        // SAFETY: the room is nobody's: what was queued on it is done.
        let bytes = unsafe { queue.up.pinned.bytes_mut(up.clone()) };
        let mut pen = Pen::new(bytes, queue.up.device.plus(up.start));
        // Of chains that do not end: what of them runs in the end is seen when its step comes.
        let entries = pen.put(bytes_of_all(&vec![ALONE; rows.len()]));
        let early = resident.early_inputs();
        let list = pen.list::<u64>(rows.len() * early.len());
        let inputs = Inputs { arena: Arena { address: self.arena, cells: &self.cells }, seats: self.lanes.seats(), resident };
        let lane = |position: u32| task.rows[position as usize].lane;
        let of_rows = wanted.iter().map(|(position, step)| (lane(*position), *step));
        inputs.write(early, of_rows, (list.values, 0, early.len()), &mut pen);
        let (pass, count, addresses) = (queue.queued + 1, rows.len() as u32, list.address);
        for ((position, step), row) in wanted.iter().zip(rows) {
            kept.keep(resident.memory, (lane(*position), *step), Place { row, pass });
        }
        Some((BatchHead { rows: count, addresses, entries, ..BatchHead::default() }, pen.written()))
    }
}

const _: () = assert!(PASS_ROWS.is_multiple_of(BLOCK), "a pass leaves no part of a block but at its end");
