//! From a task to what is uploaded of it: which rows run, where their inputs are, where their outputs go.

use std::ops::Range;
use std::sync::Arc;

use cellwright_backend::DeviceLost;

use super::CudaWorker;
use super::cost::{Cost, Limit, Load, SLACK};
use super::flight::{Batch, InFlight, Segment, Told};
use super::graphs::{DESK_BYTES, Key, STEPS_MOST};
use super::inputs::{BLOCK, Inputs, column, end, write_entries};
use super::joined::Arena;
use super::resident::Resident;
use super::ring::Pen;
use super::together::{self, Selected, Together};
use crate::abi::{BatchHead, NOWHERE, RowEntry, RowStatus, WordEntry, bytes_of_all};
use crate::driver::DeviceAddress;

/// Words that one segment begins, at most; in a small ring a quarter of it.
const WORDS_MOST: usize = 4096;

/// Words that a segment on the desk begins, at most.
const DESK_WORDS: usize = 256;

/// Heads on the desk: those that graphs find there, and all of a segment once more, from which those of a second graph are copied to the first place.
const HEADS: usize = 2 * STEPS_MOST;

/// What of the desk is no batch's: heads, words, and what lies between.
const DESK_SLACK: usize = HEADS * size_of::<BatchHead>() + DESK_WORDS * size_of::<WordEntry>() + 2 * SLACK;

/// What a batch leaves is left with the host, without a copy, if it is no more than so many bytes: kernels write there one row at a time.
const LEFT_WITH_HOST_BYTES: usize = 256 << 10;

/// A batch that is written.
#[derive(Clone, Debug)]
pub(super) struct Written {
    /// Rows of each step.
    pub(super) steps: Vec<u32>,
    /// Of several steps: the graph that they are queued as, if they are.
    pub(super) whole: Option<Key>,
    /// What a queue of the steps is told; 0: there is one step, or they are a graph.
    pub(super) queue: u64,
    pub(super) head: BatchHead,
    /// Whether it begins with what was computed ahead.
    pub(super) is_ahead: bool,
    /// Whether its states pass by the frame, if they may: of one step all do.
    pub(super) is_direct: bool,
    /// What may have been refused before ([`Given`]).
    pub(super) checks: (u64, u32),
}

/// What phases give to a batch that is the rest of a cell with ragged inputs.
#[derive(Clone, Copy, Default)]
pub(super) struct Given<'a> {
    /// The addresses of its inputs; none: they are found.
    pub(super) addresses: &'a [u64],
    /// Where the lists lie of rows that may have been refused, and how many.
    pub(super) checks: (u64, u32),
}

/// A segment that is being written.
pub(super) struct Writing {
    pub(super) up: usize,
    pub(super) down: usize,
    up_bytes: usize,
    down_bytes: usize,
    pub(super) up_used: usize,
    pub(super) down_used: usize,
    /// Where the words lie that it begins, and how many they are.
    pub(super) words: (u64, u32),
    /// The newest pass of which its batches read; 0: none.
    pub(super) pass: u64,
    pub(super) batches: Vec<Written>,
    /// Where on the device their heads lie, one behind the other.
    pub(super) heads: DeviceAddress,
    /// Where on the device all of it will lie.
    pub(super) to: DeviceAddress,
    /// Whether that is the desk.
    pub(super) is_on_desk: bool,
    /// What of the download batches leave on the device; the rest they leave with the host.
    pub(super) downloads: Vec<Range<usize>>,
    segment: Segment,
}

impl Writing {
    fn has_room(&self, (up, down): (usize, usize)) -> bool {
        let heads = if self.is_on_desk { 0 } else { self.batches.len() * size_of::<BatchHead>() };
        (!self.is_on_desk || self.batches.len() < STEPS_MOST)
            && self.up_used + heads + up <= self.up_bytes
            && self.down_used + down <= self.down_bytes
    }
}

impl CudaWorker {
    /// Queues the newest task, so many steps of it.
    pub(super) fn enqueue(&mut self, resident: &Arc<Resident>, steps: u32) -> Result<(), DeviceLost> {
        if let Some(spans) = &resident.spans {
            return self.enqueue_spans(resident, spans, steps);
        }
        let limit = Limit::new(resident, self.frame, self.sizes.rows_most, self.quarter());
        self.complete_ahead(resident, steps)?;
        let goes_together = steps > 1 && self.newest_goes_together();
        let mut writing: Option<Writing> = None;
        let (mut selected, mut together) = (Vec::new(), Together::default());
        let (mut at, mut is_selected) = (0, false);
        while at < steps {
            if !std::mem::take(&mut is_selected) {
                self.select(at, &mut selected);
            }
            at += 1;
            together.clear();
            if goes_together && together.push(&selected, &limit) {
                let mut has_room = true;
                while has_room && at < steps {
                    self.select(at, &mut selected);
                    has_room = together.push(&selected, &limit);
                    at += u32::from(has_room);
                }
                // The step that has no room there is the first of the next batch.
                is_selected = !has_room;
                let left = together.rows.len() + (steps - at) as usize * selected.len();
                self.put_batch(resident, &mut writing, (&together.rows, &together.counts, together.load), (left, Given::default()))?;
                continue;
            }
            let left = (steps - at + 1) as usize * selected.len();
            for (rows, load) in limit.parts(&selected) {
                self.put_batch(resident, &mut writing, (rows, &[rows.len() as u32], load), (left, Given::default()))?;
            }
        }
        self.flush(resident, writing)?;
        self.compute_ahead(resident, steps)
    }

    /// Writes a batch, of so many rows in each step, to the segment, or to a new one if it has no room. So many rows are left with this one.
    pub(super) fn put_batch(
        &mut self,
        resident: &Arc<Resident>,
        writing: &mut Option<Writing>,
        (rows, counts, load): (&[Selected], &[u32], Load),
        (left, given): (usize, Given<'_>),
    ) -> Result<(), DeviceLost> {
        if rows.is_empty() {
            return Ok(());
        }
        let (cost, quarter) = (Cost::new(resident), self.quarter());
        let needed = cost.of(load);
        if writing.as_ref().is_none_or(|writing| !writing.has_room(needed)) {
            self.flush(resident, writing.take())?;
            // Room for all that is left, if that is not too much: what is not used goes back at once. What each batch wastes is less than a row.
            let batches = left.div_ceil(rows.len());
            let left = cost.of(Load { rows: left + batches, hosted: load.hosted * batches, bringing: left });
            let left = (left.0 + batches * size_of::<BatchHead>(), left.1);
            let desk = DESK_BYTES.min(quarter).saturating_sub(DESK_SLACK);
            let is_on_desk = self.graphs.desk().is_some() && needed.0 <= desk;
            let most = if is_on_desk { desk } else { quarter };
            let wanted = (left.0.min(most).max(needed.0), left.1.min(quarter).max(needed.1));
            *writing = Some(self.open(resident, wanted, is_on_desk)?);
        }
        if let Some(writing) = writing {
            self.write_batch(resident, writing, (rows, counts), given)?;
        }
        Ok(())
    }

    pub(super) const fn quarter(&self) -> usize {
        self.up.capacity() / 4
    }

    /// Whether several steps of the newest task may be one batch.
    fn newest_goes_together(&self) -> bool {
        self.tasks.back().is_some_and(|task| task.rows.iter().all(|row| self.lanes.of(row.lane).goes_together))
    }

    /// Collects the rows that are worth computing: all but padding and those of chains that have ended, as far as the host knows, or of requests that were dead
    /// when they joined.
    pub(super) fn select(&self, at: u32, selected: &mut Vec<Selected>) {
        selected.clear();
        let Some(task) = self.tasks.back() else { return };
        let seats = self.lanes.seats();
        selected.reserve(task.rows.len());
        for (position, row) in task.rows.iter().enumerate() {
            let (lane, step) = (row.lane, row.step.saturating_add(at));
            let seat = seats.of(lane);
            if step < seat.bound && (!seat.may_stop || step < seats.whose(lane).executed()) {
                let hosted = if step > 0 { seat.hosted } else { seats.whose(lane).hosted };
                selected.push(Selected { position: position as u32, lane, step, hosted, brings: seat.may_bring(step) });
            }
        }
    }

    /// Begins a segment with room for so much, waiting for older ones to leave it.
    fn open(&mut self, resident: &Arc<Resident>, wanted: (usize, usize), is_on_desk: bool) -> Result<Writing, DeviceLost> {
        let most = if is_on_desk { DESK_WORDS } else { self.words_most() };
        while self.words.begun.len() > most {
            let writing = self.reserve((0, 0), false)?;
            self.flush(resident, Some(writing))?;
        }
        self.reserve(wanted, is_on_desk)
    }

    fn words_most(&self) -> usize {
        WORDS_MOST.min(self.quarter() / size_of::<WordEntry>())
    }

    fn reserve(&mut self, (up_bytes, down_bytes): (usize, usize), is_on_desk: bool) -> Result<Writing, DeviceLost> {
        let most = self.words_most();
        let begun: Vec<WordEntry> =
            std::iter::from_fn(|| self.words.begun.pop_first()).take(most).map(|(word, value)| WordEntry { word, value }).collect();
        let words = bytes_of_all(&begun);
        // On the desk heads have a place, and the first of them lie where graphs look for them as well.
        let heads = if is_on_desk { HEADS } else { 0 };
        let up_bytes = up_bytes + heads * size_of::<BatchHead>() + words.len() + SLACK;
        let (up, down) = self.room((up_bytes, down_bytes))?;
        // SAFETY: the room is nobody's: what was queued on it is done.
        let bytes = unsafe { self.up.pinned.bytes_mut(up..up + up_bytes) };
        let to = self.graphs.desk().filter(|_| is_on_desk).unwrap_or_else(|| self.up.device.plus(up));
        let mut pen = Pen::new(bytes, to);
        let heads = DeviceAddress(pen.list::<BatchHead>(heads).address);
        let words = (pen.put(words), begun.len() as u32);
        // So that rows behind them are aligned as they are among themselves.
        let up_used = pen.written();
        Ok(Writing {
            up,
            down,
            up_bytes,
            down_bytes,
            up_used,
            down_used: 0,
            words,
            pass: 0,
            batches: Vec::new(),
            heads,
            to,
            is_on_desk,
            downloads: Vec::new(),
            segment: Segment::default(),
        })
    }

    /// Where so many bytes may be taken of both rings, waiting for older segments to leave them.
    pub(super) fn room(&mut self, (up_bytes, down_bytes): (usize, usize)) -> Result<(usize, usize), DeviceLost> {
        loop {
            if let (Some(up), Some(down)) = (self.up.room(up_bytes), self.down.room(down_bytes)) {
                return Ok((up, down));
            }
            let Some(oldest) = self.tasks.iter().find_map(InFlight::oldest) else {
                return Err(self.device.lose(format!("a segment of {up_bytes} and {down_bytes} bytes is larger than its ring")));
            };
            self.device.wait_for(oldest)?;
            self.retire()?;
        }
    }

    /// Writes the lists of a batch, and its rows that the host has.
    fn write_batch(
        &mut self,
        resident: &Arc<Resident>,
        writing: &mut Writing,
        (rows, counts): (&[Selected], &[u32]),
        given: Given<'_>,
    ) -> Result<(), DeviceLost> {
        // A launch for no rows would wait for nothing, and whoever waits for it for too little.
        debug_assert!(counts.iter().all(|count| *count > 0), "a step without rows");
        let ahead = self.take_ahead(resident, rows);
        // Those of the first step; all others are of the same lanes.
        let begins = counts.first().map_or(0, |count| *count as usize);
        // Of several steps of a lane that have one place, what is brought of any but the last would be written over first.
        let is_direct = counts.len() == 1 || rows[..begins].iter().all(|row| self.lanes.of(row.lane).brings_at_its_end());
        let mut whole = None;
        if counts.len() > 1 && (is_direct || resident.direct(ahead.is_some()).is_none()) {
            let graph = self.whole(resident, counts, ahead.is_some());
            whole = self.device.held(graph)?;
        }
        // SAFETY: the stretch is this segment's, of which nothing is queued yet.
        let bytes = unsafe { self.up.pinned.bytes_mut(writing.up + writing.up_used..writing.up + writing.up_bytes) };
        let mut pen = Pen::new(bytes, writing.to.plus(writing.up_used));
        let (inputs, outlets) = (&resident.plan.inputs, &resident.plan.outlets);
        let seats = self.lanes.seats();
        let inputs_of = Inputs { arena: Arena { address: self.arena, cells: &self.cells }, seats, resident };
        // What was computed ahead is read by the number of its row, instead of the inputs that it is of.
        let kept = ahead.as_ref().zip(resident.ahead);
        let every: Vec<usize> = (0..inputs.len()).collect();
        let gathered = if kept.is_some() { resident.late_inputs() } else { &every };
        let port_count = usize::from(kept.is_some()) + gathered.len();
        let entries = pen.list::<RowEntry>(rows.len());
        let addresses = pen.list::<u64>(rows.len() * port_count);
        let deliveries = pen.list::<u32>(rows.len() * outlets.len());
        // Where what is delivered goes, by its place among all that might be.
        let mut goes: Vec<(usize, u32)> = Vec::new();
        let all = whole.map_or_else(|| counts.iter().sum(), |key| key.rows());
        let steps = if counts.len() > 1 { pen.put(bytes_of_all(&resident.queue(self.frame, counts, all))) } else { 0 };
        let statuses = writing.down_used.next_multiple_of(16);
        let delivered = (statuses + rows.len() * size_of::<RowStatus>()).next_multiple_of(16);
        let mut delivered_bytes = 0;
        let Segment { rows: written, told, batches, .. } = &mut writing.segment;
        let first = written.len();
        let port = usize::from(kept.is_some());
        let mut numbers = 0..0;
        for count in counts {
            let is_first_step = numbers.end == 0;
            numbers = numbers.end..numbers.end + *count as usize;
            let (told_before, delivered) = (told.len(), delivered + delivered_bytes);
            for begin in numbers.clone().step_by(BLOCK) {
                let block = begin..numbers.end.min(begin + BLOCK);
                let (of_block, entries) = (&rows[block.clone()], &mut entries.values[block.clone()]);
                let mut tells = write_entries(seats, (self.arena, resident.layout.slots), of_block, entries);
                while tells != 0 {
                    let at = tells.trailing_zeros() as usize;
                    tells &= tells - 1;
                    let (number, Selected { lane, step, brings, .. }) = (block.start + at, of_block[at]);
                    let (seat, whose) = (seats.of(lane), seats.whose(lane));
                    told.push(Told { number: first + number, whose: Arc::clone(whose) });
                    if seat.may_stop {
                        end(resident, whose, &mut entries[at]);
                    }
                    if !brings {
                        continue;
                    }
                    for (output, outlet) in outlets.iter().enumerate() {
                        if whose.brings(output, step) {
                            goes.push((number * outlets.len() + output, delivered_bytes as u32));
                            delivered_bytes += (outlet.bytes as usize).next_multiple_of(16);
                        }
                    }
                }
                let places = block.start * port_count..block.end * port_count;
                let addresses = &mut addresses.values[places.clone()];
                if let Some(given) = given.addresses.get(places).filter(|given| !given.is_empty()) {
                    addresses.copy_from_slice(given);
                    continue;
                }
                inputs_of.write_block((gathered, is_first_step), of_block, (addresses, port, port_count), &mut pen);
            }
            batches.push(Batch {
                rows: first + numbers.start..first + numbers.end,
                statuses: statuses + numbers.start * size_of::<RowStatus>(),
                delivered,
                told: told_before..told.len(),
            });
        }
        if counts.len() > 1 {
            let lanes = rows.iter().map(|row| (row.position, seats.of(row.lane).held));
            together::link(entries.values, lanes);
            debug_assert!(entries.values[begins..].iter().all(|entry| entry.before != NOWHERE), "a lane whose first step is a later one");
        }
        if let Some((places, kept)) = &kept {
            places.iter().zip(column(addresses.values, (0, port_count))).for_each(|(place, address)| *address = kept.number(place.row));
        }
        if !goes.is_empty() {
            deliveries.values.fill(NOWHERE);
        }
        for (place, offset) in &goes {
            deliveries.values[*place] = *offset;
        }
        let end = delivered + delivered_bytes;
        let deliveries = if goes.is_empty() { 0 } else { deliveries.address };
        // What is little goes to the host as it is left; but there nobody sees what is written beside it.
        let down = if end - statuses <= LEFT_WITH_HOST_BYTES && !self.device.is_guarded() {
            self.down.pinned.address()
        } else {
            writing.downloads.push(statuses..end);
            self.down.device
        };
        let down = down.plus(writing.down);
        let head = BatchHead {
            rows: rows.len() as u32,
            padding: 0,
            addresses: addresses.address,
            entries: entries.address,
            executed: self.executed.0.0,
            deliveries,
            delivered: down.plus(delivered).0,
            statuses: down.plus(statuses).0,
            steps,
        };
        let queue = if whole.is_none() { steps } else { 0 };
        writing.batches.push(Written {
            steps: counts.to_vec(),
            whole,
            queue,
            head,
            is_ahead: ahead.is_some(),
            is_direct,
            checks: given.checks,
        });
        for place in ahead.iter().flatten() {
            writing.pass = writing.pass.max(place.pass);
            writing.segment.ahead.push(place.row);
        }
        writing.up_used += pen.written();
        writing.down_used = end;
        writing.segment.rows.extend_from_slice(rows);
        Ok(())
    }

    /// Writes the heads of all batches, one behind the other: where they have a place, or behind everything.
    fn write_heads(&mut self, writing: &mut Writing) {
        let mut heads: Vec<BatchHead> = writing.batches.iter().map(|batch| batch.head).collect();
        let first = writing.up + if writing.is_on_desk { 0 } else { writing.up_used };
        if writing.is_on_desk {
            heads.resize(STEPS_MOST, BatchHead::default());
            heads.extend_from_within(..);
        }
        // SAFETY: the stretch is this segment's, of which nothing is queued yet.
        let bytes = unsafe { self.up.pinned.bytes_mut(first..writing.up + writing.up_bytes) };
        let mut pen = Pen::new(bytes, writing.to.plus(first - writing.up));
        writing.heads = DeviceAddress(pen.put(bytes_of_all(&heads)));
        if writing.is_on_desk {
            writing.heads = writing.heads.plus(STEPS_MOST * size_of::<BatchHead>());
        } else {
            writing.up_used += pen.written();
        }
    }

    /// Queues a segment.
    pub(super) fn flush(&mut self, resident: &Arc<Resident>, writing: Option<Writing>) -> Result<(), DeviceLost> {
        let Some(mut writing) = writing else { return Ok(()) };
        self.write_heads(&mut writing);
        self.up.take(writing.up, writing.up_used);
        self.down.take(writing.down, writing.down_used);
        let queued = self.queue(resident, &writing);
        let number = self.device.held(queued)?;
        if let Some(task) = self.tasks.back_mut() {
            let down = writing.down..writing.down + writing.down_used;
            task.segments.push_back(Segment { number, down, ..writing.segment });
        }
        Ok(())
    }
}
