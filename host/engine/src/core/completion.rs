//! What a task computed is handed out, and what came of its chains is told to the scheduler.

use std::time::Instant;

use cellwright_backend::Completed;
use cellwright_scheduler::{Event, TaskSeq, WorkerId};

use super::Core;
use crate::lanes::LaneEntry;
use crate::sink::Value;

/// Row buffers kept for tasks to come.
const ROW_BUFFERS_MAX: usize = 64;

/// Completions kept for each worker to be given back to it.
const SPARES_MAX: usize = 8;

/// Bytes of outputs that each of them keeps room for: a task may deliver hundreds of megabytes, and it may be long until its worker has another.
const SPARE_BYTES: usize = 4 << 20;

impl Core {
    /// Hands out what a task computed, then tells the scheduler.
    pub(super) fn completed(&mut self, worker: WorkerId, mut completed: Completed, ended: Instant) {
        if self.observer.is_some() {
            self.state.ended.push(self.time(ended));
        }
        self.count_completion(worker, completed.busy_ns);
        let state = &mut self.state;
        state.lanes.completed(worker, completed.seq, &mut state.spares);
        if completed.paused {
            state.events.push(Event::Paused { worker, seq: TaskSeq(completed.seq), busy_ns: completed.busy_ns });
            return keep(&mut self.workers[worker.index()].spares, completed);
        }
        let delivered = || completed.delivered.iter().map(|delivered| delivered.lane);
        state.lanes.read_ahead(delivered());
        state.requests.read_ahead(delivered().filter_map(|lane| Some(state.lanes.get(lane)?.request)));
        let ends = completed.delivered.iter().skip(1).map(|next| next.offset as usize).chain([completed.bytes.len()]);
        for (delivered, end) in completed.delivered.iter().zip(ends) {
            let Some(entry) = state.lanes.get(delivered.lane) else { continue };
            let LaneEntry { chain, stage, .. } = *entry;
            let Some(bytes) = completed.bytes.get(delivered.offset as usize..end) else { continue };
            if let Some(sink) = state.requests.get_mut(entry.request).and_then(|request| request.sink.as_mut()) {
                sink.value(Value { chain, stage, output: delivered.output, step: delivered.step, bytes });
            }
        }
        let mut stopped = Vec::with_capacity(completed.stopped.len());
        for stop in &completed.stopped {
            stopped.push((stop.lane, stop.step));
            let Some(entry) = state.lanes.get(stop.lane) else { continue };
            if let Some(sink) = state.requests.get_mut(entry.request).and_then(|request| request.sink.as_mut()) {
                sink.ended(entry.chain, stop.step.saturating_add(1));
            }
        }
        let mut failed = Vec::with_capacity(completed.refused.len());
        for refused in completed.refused.drain(..) {
            failed.push(refused.lane);
            let Some(request) = state.lanes.get(refused.lane).map(|entry| entry.request) else { continue };
            if let Some(entry) = state.requests.get_mut(request) {
                entry.row_error.get_or_insert_with(|| Box::new(refused.error));
            }
        }
        if state.row_buffers.len() < ROW_BUFFERS_MAX {
            state.row_buffers.push(std::mem::take(&mut completed.rows));
        }
        state.events.push(Event::Done { worker, up_to: TaskSeq(completed.seq), busy_ns: completed.busy_ns, stopped, failed });
        keep(&mut self.workers[worker.index()].spares, completed);
    }
}

/// Keeps a completion to be given back to its worker, if there is room for one more.
fn keep(spares: &mut Vec<Completed>, mut completed: Completed) {
    if spares.len() < SPARES_MAX {
        completed.bytes.clear();
        completed.bytes.shrink_to(SPARE_BYTES);
        spares.push(completed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_that_are_kept_hold_little() {
        let mut spares = Vec::new();
        for bytes in [1 << 10, 64 << 20].repeat(SPARES_MAX) {
            keep(&mut spares, Completed { bytes: vec![7; bytes], ..Completed::default() });
        }
        let room = |spare: &Completed| (spare.bytes.is_empty(), spare.bytes.capacity());
        assert_eq!(spares.iter().map(room).collect::<Vec<_>>(), [(true, 1 << 10), (true, SPARE_BYTES)].repeat(SPARES_MAX / 2));
    }
}
