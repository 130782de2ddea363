//! From what was written to work on the stream: batch by batch, or several that have one step each, or one of several steps, as a graph.

use std::sync::Arc;

use super::CudaWorker;
use super::device::Device;
use super::frame::FrameMemory;
use super::gather::{Writing, Written};
use super::graphs::STEPS_MOST;
use super::recurrent::Direct;
use super::resident::{Resident, Rows};
use crate::abi::{BatchHead, FinishArguments, GatherArguments, SpanCheckArguments, WordsArguments};
use crate::driver::{DeviceAddress, Done, Kernel, Launch};

/// Threads that copy a row.
const COPY_THREADS: u32 = 128;

impl CudaWorker {
    /// Queues a segment: the number of its signal.
    pub(super) fn queue(&mut self, resident: &Arc<Resident>, writing: &Writing) -> Done<u64> {
        let from = (&self.up.pinned, writing.up);
        if writing.is_on_desk {
            // Behind what ran with what lay there before.
            self.device.upload_behind(from, writing.to, writing.up_used)?;
        } else {
            self.device.upload(from, writing.to, writing.up_used)?;
        }
        let (entries, count) = writing.words;
        if count > 0 {
            let arguments = WordsArguments { entries, words: self.executed.0.0, count, padding: 0 };
            let launch = Launch {
                kernel: self.device.kernels.begin_words,
                grid: [count.div_ceil(COPY_THREADS), 1, 1],
                threads: COPY_THREADS,
                shared_bytes: 0,
                cooperative: false,
            };
            // SAFETY: the kernel takes this structure; the entries lie in the segment's stretch, and there are more words than any of them names.
            unsafe { self.device.launch(&launch, &arguments)? };
        }
        self.ahead.wait_for(writing.pass, &mut self.device)?;
        let (mut batches, mut heads) = (writing.batches.as_slice(), writing.heads);
        // Those of the first graph are where it looks for them already.
        let mut place = if writing.is_on_desk { writing.to } else { heads };
        while !batches.is_empty() {
            let queued = self.queue_some(resident, batches, place)?;
            (batches, heads) = (&batches[queued..], heads.plus(queued * size_of::<BatchHead>()));
            place = heads;
        }
        let down = self.down.device;
        let downloads = writing.downloads.iter().map(|range| writing.down + range.start..writing.down + range.end);
        self.device.download(down, &self.down.pinned, downloads)
    }

    /// Queues the first few of these batches, whose heads lie there: how many.
    fn queue_some(&mut self, resident: &Arc<Resident>, batches: &[Written], heads: DeviceAddress) -> Done<usize> {
        // Those of several steps are a graph of their own, or may be a cooperative launch, which no graph has.
        let is_ahead = batches[0].is_ahead;
        let alike = batches.iter().take(STEPS_MOST).take_while(|batch| batch.steps.len() == 1 && batch.is_ahead == is_ahead);
        let rows = |batch: &Written| batch.head.rows;
        let alike = if resident.spans.is_some() { 0 } else { alike.count() };
        if let Some(steps) = alike.checked_ilog2().map(|power| 1 << power) {
            let most = batches[..steps].iter().map(rows).max().unwrap_or_default();
            if self.queue_graph(resident, (most, steps, is_ahead), heads)? {
                return Ok(steps);
            }
        }
        let Written { ref steps, whole, queue, head, is_ahead, is_direct, checks } = batches[0];
        if let Some(key) = whole {
            self.queue_whole(resident, key, heads)?;
            return Ok(1);
        }
        let direct = if is_direct { resident.direct(is_ahead) } else { None };
        let rows = Rows { steps, entries: head.entries, queue, head: 0, is_ahead, direct, checks };
        queue_batch(&mut self.device, resident, self.frame, (&rows, head))?;
        Ok(1)
    }
}

/// Queues a batch: its rows into the frame, the cell's plan, and what comes of it out of the frame. Its head is `own` if the rows name none.
pub(super) fn queue_batch(device: &mut Device, resident: &Resident, frame: FrameMemory, (rows, own): (&Rows<'_>, BatchHead)) -> Done {
    let (count, head, stride) = (rows.count(), rows.head, resident.plan.stride as u32);
    let (gather, finish) = (copies(device.kernels.gather, count), copies(device.kernels.finish, count));
    let (ports, port_count) = match rows.is_ahead {
        true => (resident.late_ports, resident.late_inputs().len() + 1),
        false => (resident.ports, resident.plan.inputs.len()),
    };
    let (port_count, outlet_count) = (port_count as u32, resident.plan.outlets.len() as u32);
    if rows.direct.is_none() {
        let arguments = GatherArguments { frame: frame.address.0, ports, head, stride, port_count, own };
        // SAFETY: the kernel takes this structure; the lists lie in a segment's stretch, their addresses in the arena or the stretch, the rows in the frame.
        unsafe { device.launch(&gather, &arguments)? };
    }
    let (checks, check_count) = rows.checks;
    if check_count > 0 {
        let arguments = SpanCheckArguments { frame: frame.address.0, checks, stride, count: check_count };
        // SAFETY: the kernel takes this structure; the rows lie in the frame, and the lists in the memory for spans.
        unsafe { device.launch(&copies(device.kernels.span_check, count), &arguments)? };
    }
    resident.launch(device, frame, &Rows { direct: rows.direct.map(|direct| Direct { own, ..direct }), ..*rows })?;
    let is_left = u32::from(rows.direct.is_some());
    let arguments =
        FinishArguments { frame: frame.address.0, outlets: resident.outlets, head, stride, outlet_count, is_left, padding: 0, own };
    // SAFETY: as above; what is left goes to slots of the rows' lanes and to the segment's stretch.
    unsafe { device.launch(&finish, &arguments) }
}

/// How a kernel is launched that moves so many rows into a frame or out of it.
pub(super) const fn copies(kernel: Kernel, rows: u32) -> Launch {
    Launch { kernel, grid: [rows, 1, 1], threads: COPY_THREADS, shared_bytes: 0, cooperative: false }
}
