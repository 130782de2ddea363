//! What runs before the rest of a cell with ragged inputs, for the nodes of a batch.
//!
//! Each phase over rows is an ordinary plan: rows are gathered from addresses, and outputs are left
//! in nodes. The nodes of a phase lie in the memory for spans, so their addresses are known before
//! anything runs. Lists of a whole batch are written at once and uploaded there. What sees whole
//! spans has kernels of its own (`kernels/spans.cu`). These read rows in the arena where they lie;
//! rows that the host has are uploaded with the lists.
//!
//! One batch after the other uses that memory, in the order of the stream. It has room for one node
//! with the longest span that a request may have. Nothing of this is a graph.

mod lists;

use std::collections::HashMap;
use std::sync::Arc;

use cellwright_backend::{DeviceLost, InputRef, LoadError, SLOT_BYTES, TIMED_SPAN_ROWS, WORKING_BYTES};

use super::CudaWorker;
use super::cost::{Limit, Load, hosted_in_pieces};
use super::flight::{InFlight, Segment};
use super::frame::FrameMemory;
use super::gather::{Given, Writing};
use super::inputs::{ALONE, Inputs};
use super::joined::Arena;
use super::queue::queue_batch;
use super::resident::{Resident, Rows, fault_of_load};
use super::ring::Pen;
use super::together::Selected;
use crate::abi::{BatchHead, RowEntry, RowStatus, SpanCheck, SpanRows, SpanRun, bytes_of_all, op};
use crate::driver::{DeviceAddress, Done, Fault, Kernel, Launch};
use crate::plan::{Phase, Spans};
use lists::{Home, Nodes, Ready, Writer};

/// Threads of a block that has one node.
const SPAN_THREADS: u32 = 128;

/// Everything in the memory for spans begins at a multiple of so many bytes.
const ALIGNMENT: usize = 64;

/// Bytes of the memory for spans that batches of a cell take, at most.
#[derive(Clone, Debug)]
struct Costs {
    batch: usize,
    node: usize,
    /// By span, of each row.
    rows: Vec<usize>,
}

impl Costs {
    fn of(rest: &Resident, spans: &Spans<Resident>) -> Self {
        let hosted = |part: &Resident| {
            let inputs = part.plan.inputs.iter().zip(&part.plan.pieces);
            inputs.map(|(input, pieces)| hosted_in_pieces(input.bytes as usize, *pieces as usize)).sum::<usize>()
        };
        let lists = |part: &Resident| part.plan.inputs.len() * size_of::<u64>() + size_of::<RowEntry>() + size_of::<RowStatus>();
        let ends = (spans.inputs.len() + spans.joined.len()) * (size_of::<SpanRows>() + size_of::<u32>());
        let mut costs = Self {
            batch: ALIGNMENT * (8 + 8 * spans.phases.len() + spans.inputs.len()),
            node: hosted(rest) + ends,
            // The host may have each row of an input, and it may be a run of its own.
            rows: spans.inputs.iter().map(|input| input.row_bytes + size_of::<SpanRun>() + 32).collect(),
        };
        costs.rows.resize(spans.inputs.len() + spans.joined.len(), 0);
        let operand = size_of::<SpanRows>() + size_of::<SpanRun>() + size_of::<u64>();
        for phase in &spans.phases {
            match phase {
                Phase::Rows { span, body, .. } => {
                    let row = lists(body) + node_bytes(body);
                    match span {
                        Some(span) => {
                            costs.rows[*span] += row;
                            // Each phase may list where the rows of nodes begin.
                            costs.node += size_of::<u32>();
                        }
                        None => costs.node += row + hosted(body),
                    }
                }
                Phase::Whole(whole) => {
                    costs.node += whole.operands.len() * operand + size_of::<RowStatus>();
                    for value in whole.results.iter().flatten() {
                        let value = spans.values[*value];
                        let bytes = row_stride(value.row_bytes);
                        costs.node += size_of::<u64>() + if value.span.is_none() { bytes } else { 0 };
                        value.span.into_iter().for_each(|span| costs.rows[span] += bytes);
                    }
                }
            }
        }
        costs
    }

    /// Of so many nodes whose spans together have so many rows, by span.
    fn of_nodes(&self, nodes: usize, rows: &[usize]) -> usize {
        let of_spans = rows.iter().zip(&self.rows).map(|(rows, bytes)| rows.saturating_mul(*bytes));
        of_spans.fold(self.batch + nodes * self.node, usize::saturating_add)
    }
}

/// How many rows so many nodes have of each span, if each node has so many of each ragged input.
fn rows_each(spans: &Spans<Resident>, nodes: usize, rows: usize) -> Vec<usize> {
    spans.with_joined(nodes, vec![nodes * rows; spans.inputs.len()])
}

/// Bytes from node to node of a phase.
const fn node_bytes(part: &Resident) -> usize {
    part.layout.slots as usize * SLOT_BYTES
}

/// Bytes from row to row of what sees whole spans.
const fn row_stride(row_bytes: usize) -> usize {
    row_bytes.next_multiple_of(16)
}

/// What runs before the rest of a batch.
#[derive(Debug)]
pub(super) struct Phases {
    nodes: u32,
    launches: Vec<Ready>,
    /// What is uploaded, and to where.
    lists: Vec<u8>,
    at: DeviceAddress,
    /// Addresses of the inputs of the rest.
    rest: Vec<u64>,
    /// What of these phases may have been refused, and how many such lists there are.
    checks: (u64, u32),
}

impl CudaWorker {
    /// Makes the memory for spans as large as a cell needs it, and the frame for all of its phases.
    pub(super) fn make_room_for_spans(&mut self, resident: &Resident) -> Result<(), LoadError> {
        let Some(spans) = &resident.spans else { return Ok(()) };
        spans.bodies().try_for_each(|part| self.make_room(part))?;
        let costs = Costs::of(resident, spans);
        let working = usize::try_from(WORKING_BYTES).unwrap_or(usize::MAX);
        let nodes = self.sizes.rows_most;
        let timed = costs.of_nodes(nodes, &rows_each(spans, nodes, TIMED_SPAN_ROWS as usize));
        let least = costs.of_nodes(1, &rows_each(spans, 1, spans.rows_most));
        let grown = match self.grow_spans(least.max(timed.min(working))) {
            // Fewer nodes at once do as well.
            Err(Fault::OutOfMemory { .. }) => self.grow_spans(least),
            grown => grown,
        };
        grown.map_err(|fault| fault_of_load(&resident.name, &mut self.device, &fault))
    }

    fn grow_spans(&mut self, wanted: usize) -> Done {
        if wanted <= self.spans.bytes {
            return Ok(());
        }
        let address = self.device.driver.allocate(wanted)?;
        self.device.call(address, "the memory for spans");
        let old = std::mem::replace(&mut self.spans, FrameMemory { address, bytes: wanted });
        if old.bytes > 0 { self.device.driver.free(old.address) } else { Ok(()) }
    }

    /// Queues the newest task of a cell with ragged inputs, so many steps of it.
    pub(super) fn enqueue_spans(&mut self, resident: &Arc<Resident>, spans: &Spans<Resident>, steps: u32) -> Result<(), DeviceLost> {
        let (limit, costs) = (Limit::new(resident, self.frame, self.sizes.rows_most, self.quarter()), Costs::of(resident, spans));
        let mut selected = Vec::new();
        for at in 0..steps {
            self.select(at, &mut selected);
            // What the host has of inputs goes another way than with the rows.
            selected.iter_mut().for_each(|row| row.hosted = 0);
            let mut left = selected.as_slice();
            while !left.is_empty() {
                let (some, rest) = left.split_at(self.nodes_at_once(spans, &costs, left));
                left = rest;
                for (rows, load) in limit.parts(some) {
                    self.queue_part(resident, spans, &costs, (rows, load))?;
                }
            }
        }
        Ok(())
    }

    /// How many of the first rows have room in the memory for spans together; one at least.
    fn nodes_at_once(&self, spans: &Spans<Resident>, costs: &Costs, rows: &[Selected]) -> usize {
        let mut span_rows = rows_each(spans, 0, 0);
        let fits = |(before, row): &(usize, &Selected)| {
            let more = self.span_rows(spans, std::slice::from_ref(*row));
            span_rows.iter_mut().zip(more).for_each(|(rows, more)| *rows += more);
            costs.of_nodes(before + 1, &span_rows) <= self.spans.bytes
        };
        rows.iter().enumerate().take_while(fits).count().max(1)
    }

    /// Rows that nodes have of each span together.
    fn span_rows(&self, spans: &Spans<Resident>, rows: &[Selected]) -> Vec<usize> {
        let seats = self.lanes.seats();
        let of_row = |row: &Selected, input: usize| match seats.whose(row.lane).lane.input(input, row.step) {
            InputRef::Span(span) => span.rows() as usize,
            _ => 0,
        };
        let of_inputs = spans.inputs.iter().map(|ragged| rows.iter().map(|row| of_row(row, ragged.input)).sum()).collect();
        spans.with_joined(rows.len(), of_inputs)
    }

    fn queue_part(
        &mut self,
        resident: &Arc<Resident>,
        spans: &Spans<Resident>,
        costs: &Costs,
        (rows, load): (&[Selected], Load),
    ) -> Result<(), DeviceLost> {
        let phases = self.phases_of(resident, spans, costs, Nodes::Batch(rows));
        self.upload_lists(&phases)?;
        let launched = self.launch_phases(spans, &phases);
        self.device.held(launched)?;
        let mut writing: Option<Writing> = None;
        let given = Given { addresses: &phases.rest, checks: phases.checks };
        self.put_batch(resident, &mut writing, (rows, &[rows.len() as u32], load), (rows.len(), given))?;
        self.flush(resident, writing)
    }

    /// Uploads what runs before the rest of a batch of so many rows that is timed. Nothing else is queued.
    pub(super) fn timed_phases(&mut self, resident: &Resident, spans: &Spans<Resident>, nodes: usize) -> Done<Phases> {
        let phases = self.phases_of(resident, spans, &Costs::of(resident, spans), Nodes::Zeros(nodes));
        self.device.driver.write(self.device.stream, phases.at, &phases.lists)?;
        Ok(phases)
    }

    /// Rows of a batch that may be timed.
    pub(super) fn timed_most(&self, resident: &Resident, spans: &Spans<Resident>) -> usize {
        let costs = Costs::of(resident, spans);
        let fits = |nodes: &usize| costs.of_nodes(*nodes, &rows_each(spans, *nodes, TIMED_SPAN_ROWS as usize)) <= self.spans.bytes;
        (2..=self.sizes.rows_most).take_while(fits).count() + 1
    }

    /// Writes what runs before the rest of a batch.
    fn phases_of(&self, resident: &Resident, spans: &Spans<Resident>, costs: &Costs, nodes: Nodes<'_>) -> Phases {
        let arena = Arena { address: self.arena, cells: &self.cells };
        let inputs = Inputs { arena, seats: self.lanes.seats(), resident };
        let count = nodes.count();
        // Rows of phases first: where lists begin depends on how many there are.
        let mut bytes = 0;
        let mut take = |rows: usize, stride: usize| {
            let first = self.spans.address.plus(bytes);
            bytes = (bytes + rows * stride).next_multiple_of(ALIGNMENT);
            Home { first, stride }
        };
        let rows_of = match nodes {
            Nodes::Zeros(nodes) => rows_each(spans, nodes, TIMED_SPAN_ROWS as usize),
            Nodes::Batch(rows) => self.span_rows(spans, rows),
        };
        let mut homes = vec![Home::default(); spans.values.len()];
        let mut of_phases = Vec::with_capacity(spans.phases.len());
        for phase in &spans.phases {
            let rows = match phase {
                Phase::Rows { span, body, gives, .. } => {
                    let rows = span.map_or(count, |span| rows_of[span]);
                    let home = take(rows, node_bytes(body));
                    for (value, outlet) in gives.iter().zip(&body.plan.outlets) {
                        homes[*value] = Home { first: home.first.plus(outlet.node_offset as usize), ..home };
                    }
                    of_phases.push((home, take(rows, size_of::<RowStatus>()).first.0));
                    continue;
                }
                Phase::Whole(whole) => {
                    for value in whole.results.iter().flatten() {
                        let kept = spans.values[*value];
                        homes[*value] = take(kept.span.map_or(count, |span| rows_of[span]), row_stride(kept.row_bytes));
                    }
                    count
                }
            };
            let statuses = take(rows, size_of::<RowStatus>());
            of_phases.push((statuses, statuses.first.0));
        }
        let mut lists = vec![0; costs.of_nodes(count, &rows_of)];
        let at = self.spans.address.plus(bytes);
        let (runs, offsets) = (Vec::new(), Vec::new());
        let pen = Pen::new(&mut lists, at);
        let mut writer = Writer { spans, nodes, inputs, pen, runs, offsets, homes, listed: HashMap::new() };
        (0..spans.inputs.len()).for_each(|input| writer.find(input));
        for joined in &spans.joined {
            let rows_before = |node: usize| {
                let parts = joined.inputs.iter().map(|input| writer.offsets[*input as usize][node]);
                (node * joined.rows) as u32 + parts.sum::<u32>()
            };
            let offsets = (0..=count).map(rows_before).collect();
            writer.offsets.push(offsets);
        }
        let (mut launches, mut checks) = (Vec::new(), Vec::new());
        for (number, (phase, (home, statuses))) in spans.phases.iter().zip(of_phases).enumerate() {
            let span = match phase {
                Phase::Whole(whole) => {
                    writer.whole(whole, statuses, &mut launches);
                    if whole.may_refuse() {
                        checks.push(SpanCheck { statuses, offsets: 0 });
                    }
                    continue;
                }
                Phase::Rows { span, body, feeds, .. } => {
                    let rows = span.map_or(count, |span| writer.rows(span));
                    let addresses = writer.pen.list::<u64>(rows * feeds.len());
                    match span {
                        Some(_) => writer.of_rows(feeds, addresses.values),
                        None => writer.of_nodes(body, feeds, addresses.values),
                    }
                    let entries = writer.pen.list::<RowEntry>(rows);
                    let entry = |row: usize| RowEntry { node: home.row(row), ..ALONE };
                    entries.values.iter_mut().enumerate().for_each(|(row, to)| *to = entry(row));
                    let head = BatchHead {
                        rows: rows as u32,
                        addresses: addresses.address,
                        entries: entries.address,
                        statuses,
                        ..BatchHead::default()
                    };
                    launches.push(Ready::Rows(number, head));
                    if !body.plan.instructions().any(|instruction| instruction.op == op::LOOKUP) {
                        continue;
                    }
                    span
                }
            };
            let offsets = span.map_or(0, |span| writer.pen.put(bytes_of_all(&writer.offsets[span])));
            checks.push(SpanCheck { statuses, offsets });
        }
        let mut rest = vec![0; count * spans.feeds.len()];
        writer.of_nodes(resident, &spans.feeds, &mut rest);
        let checks = (writer.pen.put(bytes_of_all(&checks)), checks.len() as u32);
        let written = writer.pen.written();
        debug_assert!(bytes + written <= self.spans.bytes, "a batch within what it may take");
        lists.truncate(written);
        Phases { nodes: count as u32, launches, lists, at, rest, checks }
    }

    /// Uploads lists behind what was queued before: it reads what lies there.
    fn upload_lists(&mut self, phases: &Phases) -> Result<(), DeviceLost> {
        let mut to = phases.at;
        for piece in phases.lists.chunks(self.quarter()) {
            let (up, down) = self.room((piece.len(), 0))?;
            // SAFETY: the room is nobody's: what was queued on it is done.
            unsafe { self.up.pinned.bytes_mut(up..up + piece.len()) }.copy_from_slice(piece);
            let queued = self.device.upload_behind((&self.up.pinned, up), to, piece.len()).and_then(|()| self.device.queue_signal());
            let number = self.device.held(queued)?;
            self.up.take(up, piece.len());
            self.down.take(down, 0);
            let segment = Segment { number, down: down..down, ..Segment::default() };
            self.tasks.back_mut().into_iter().for_each(|task: &mut InFlight| task.segments.push_back(segment.clone()));
            to = to.plus(piece.len());
        }
        Ok(())
    }

    /// Queues the phases of a batch.
    pub(super) fn launch_phases(&mut self, spans: &Spans<Resident>, phases: &Phases) -> Done {
        let launch = |kernel: Kernel, blocks: u32| Launch {
            kernel,
            grid: [phases.nodes, blocks, 1],
            threads: SPAN_THREADS,
            shared_bytes: 0,
            cooperative: false,
        };
        let kernels = self.device.kernels;
        for ready in &phases.launches {
            // SAFETY (both): these kernels take these structures; operands lie in the arena or the memory for spans, lists and results in the latter.
            match ready {
                Ready::Rows(number, head) => {
                    let Phase::Rows { body, feeds, .. } = &spans.phases[*number] else { continue };
                    self.launch_rows((body, feeds.len()), *head)?;
                }
                // SAFETY: above.
                Ready::Span(arguments) => unsafe { self.device.launch(&launch(kernels.span, 1), arguments)? },
                // SAFETY: above.
                Ready::Attention(arguments) => unsafe {
                    self.device.launch(&launch(kernels.attention, arguments.key_heads), arguments)?;
                },
            }
        }
        Ok(())
    }

    /// Queues rows of a phase, as many at once as the frame has.
    fn launch_rows(&mut self, (part, ports): (&Resident, usize), head: BatchHead) -> Done {
        let most = part.rows_in(self.frame).min(self.sizes.rows_most);
        for first in (0..head.rows as usize).step_by(most) {
            let rows = (head.rows as usize - first).min(most) as u32;
            let further = |list: u64, bytes: usize| DeviceAddress(list).plus(first * bytes).0;
            let own = BatchHead {
                rows,
                addresses: further(head.addresses, ports * size_of::<u64>()),
                entries: further(head.entries, size_of::<RowEntry>()),
                statuses: further(head.statuses, size_of::<RowStatus>()),
                ..head
            };
            queue_batch(&mut self.device, part, self.frame, (&Rows::of_one_step(&rows), own))?;
        }
        Ok(())
    }
}
