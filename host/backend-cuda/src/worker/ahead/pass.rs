//! A pass: the rows of some steps of some lanes, gathered and multiplied on the stream that is for this.

use std::sync::Arc;

use cellwright_backend::DeviceLost;

use super::kept::Place;
use super::{Ahead, BLOCK, CudaWorker, PASS_ROWS, PASSES};
use crate::abi::{BatchHead, GatherArguments, NOWHERE, RowEntry, bytes_of_all};
use crate::driver::Done;
use crate::worker::gather::Inputs;
use crate::worker::queue::copies;
use crate::worker::resident::{FrameMemory, Resident, Rows};
use crate::worker::ring::Pen;

/// Bytes of the word that says that rows run, and what aligns the pieces.
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
        let Ahead { queue, kept, .. } = &mut self.ahead;
        let (Some(queue), Some(rows), Some(task)) = (queue, resident.ahead, self.tasks.back()) else { return Ok(0) };
        queue.sweep();
        let (fixed, of_row) = cost(resident);
        // Half of the ring, so that one pass is written while another one is on its way.
        let most = ((queue.up.capacity() / 2 - fixed) / of_row).min(PASS_ROWS as usize).min(wanted.len());
        let places = kept.room(resident.memory, most as u32);
        let count = places.len();
        let up_bytes = fixed + count * of_row;
        let Some(up) = queue.up.room(up_bytes).filter(|_| count > 0 && queue.flying.len() < PASSES) else { return Ok(0) };
        // SAFETY: the room is nobody's: what was queued on it is done.
        let bytes = unsafe { queue.up.pinned.bytes_mut(up..up + up_bytes) };
        let mut pen = Pen::new(bytes, queue.up.device.plus(up));
        // One chain that does not end: what of it runs in the end is seen when its step comes.
        let executed = pen.put(&u32::MAX.to_le_bytes());
        let entry = RowEntry { stop: NOWHERE, before: NOWHERE, later: NOWHERE, ..RowEntry::default() };
        let entries = pen.put(bytes_of_all(&vec![entry; count]));
        let early = resident.early_inputs();
        let addresses = pen.leave(count * early.len() * size_of::<u64>());
        let inputs = Inputs { arena: self.arena, cells: &self.cells, resident };
        let number = queue.queued + 1;
        for (at, ((position, step), row)) in wanted.iter().zip(places.clone()).enumerate() {
            let position = *position as usize;
            for (port, input) in early.iter().enumerate() {
                let address = inputs.address(&task.joined[position], (*input, *step), &mut pen);
                pen.fill(addresses + (at * early.len() + port) * size_of::<u64>(), &address.to_le_bytes());
            }
            kept.keep(resident.memory, (task.rows[position].lane, *step), Place { row, pass: number });
        }
        let [executed, entries, addresses] = [executed, entries, addresses].map(|place| pen.address(place));
        let (used, stride) = (pen.written(), resident.plan.stride);
        queue.up.take(up, used);
        queue.queued = number;
        queue.flying.push_back(number);
        let (stream, event) = (queue.stream, queue.events[number as usize % PASSES]);
        let address = rows.frame.address.plus(places.start as usize * stride);
        let (frame, count) = (FrameMemory { address, bytes: count * stride }, count as u32);
        let own = BatchHead { rows: count, addresses, entries, executed, ..BatchHead::default() };
        let (ports, port_count) = (resident.early_ports, early.len() as u32);
        let arguments = GatherArguments { frame: address.0, ports, head: 0, stride: stride as u32, port_count, own };
        let (ring, done) = (&queue.up, &queue.done);
        let driver = &mut self.device.driver;
        driver.upload(stream, &ring.pinned, up, ring.device.plus(up), used)?;
        self.device.beside(stream, |device| {
            // SAFETY: the kernel takes this structure; the lists lie in the pass's stretch, and the rows in those of the cell that nobody has.
            unsafe { device.launch(&copies(device.kernels.gather, count), &arguments)? };
            resident.run_before(device, frame, &Rows::of_one_step(&count))
        })?;
        let driver = &mut self.device.driver;
        driver.record(event, stream)?;
        driver.signal(stream, done, 0, number)?;
        Ok(count as usize)
    }
}

const _: () = assert!(PASS_ROWS.is_multiple_of(BLOCK), "a pass leaves no part of a block but at its end");
