//! What runs before the rest of a cell with ragged inputs, for the rows of a batch.
//!
//! Rows of spans are read where they lie by what sees whole spans, and gathered by plans. Values are
//! kept from phase to phase, those of spans with the rows of all nodes one behind the other. A batch
//! is cut into nodes whose spans fit the working memory together.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::PoisonError;

use cellwright_backend::{InputRef, WORKING_BYTES};
use cellwright_cell_graph::hoist::Feed;

use super::Ahead;
use crate::compiled::Body;
use crate::kernels::attention::{self, LANES, Query, Stretch, Tile};
use crate::kernels::spans as kernels;
use crate::memory::Lines;
use crate::plan::{Refusal, RefusedRow};
use crate::slices;
use crate::spans::{Phase, RaggedInput, Spans, Taken, Whole, WholeKind};
use crate::team::Team;
use crate::worker::transfer::{Ends, Transfer, by_rows, put, zero_inputs};
use crate::worker::{Active, Clock};

/// Of whom spans are.
pub(in crate::worker) enum Nodes<'a> {
    /// Rows of a batch.
    Batch(&'a mut [Active], Ends<'a>),
    /// So many nodes, whose spans have so many rows of zeros each.
    Zeros(usize, usize),
}

impl Nodes<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Batch(batch, _) => batch.len(),
            Self::Zeros(nodes, _) => *nodes,
        }
    }
}

/// The memory of it, and where everything is.
#[derive(Debug, Default)]
pub(super) struct SpanMemory {
    /// By ragged input and node: which of `stretches` its rows are.
    ranges: Vec<(usize, usize)>,
    stretches: Vec<Stretch>,
    /// By span and node, and once more: how many rows nodes before it have.
    offsets: Vec<usize>,
    nodes: usize,
    /// By value.
    kept: Vec<Lines>,
    /// Rows that could not be read where they lie, and zeros.
    copies: Vec<Lines>,
    scratch: Vec<Lines>,
}

// SAFETY: stretches point into the arena, into requests, or into this memory, where threads read what nobody writes.
unsafe impl Send for SpanMemory {}
// SAFETY: as above.
unsafe impl Sync for SpanMemory {}

impl SpanMemory {
    fn stretches(&self, input: usize, node: usize) -> &[Stretch] {
        let (from, to) = self.ranges[input * self.nodes + node];
        &self.stretches[from..to]
    }

    /// The first of a node's rows among those of all nodes, and how many it has.
    fn rows(&self, span: usize, node: usize) -> (usize, usize) {
        let at = span * (self.nodes + 1) + node;
        (self.offsets[at], self.offsets[at + 1] - self.offsets[at])
    }

    fn total(&self, span: usize) -> usize {
        self.offsets[span * (self.nodes + 1) + self.nodes]
    }

    /// Finds where all spans are.
    fn find(&mut self, spans: &Spans, nodes: &Nodes<'_>) {
        self.nodes = nodes.count();
        self.ranges.clear();
        self.stretches.clear();
        self.offsets.clear();
        self.copies.clear();
        for input in &spans.inputs {
            let mut rows = 0;
            for node in 0..self.nodes {
                self.offsets.push(rows);
                let from = self.stretches.len();
                match nodes {
                    Nodes::Batch(batch, ends) => {
                        let active = &batch[node];
                        let lane = ends.lane(active).filter(|_| !active.is_padding);
                        if let Some(InputRef::Span(span)) = lane.map(|lane| lane.input(input.input as usize, active.row.step)) {
                            self.stretches.extend(span.pieces().filter_map(|piece| ends.stretch(piece, input.row_bytes)));
                        }
                    }
                    Nodes::Zeros(_, rows) => {
                        if node == 0 {
                            self.copies.push(Lines::zeroed(rows * input.row_bytes));
                        }
                        let at = self.copies.last().map_or(std::ptr::null(), Lines::pointer);
                        self.stretches.extend((*rows > 0).then_some(Stretch { at, stride: input.row_bytes, rows: *rows }));
                    }
                }
                for at in from..self.stretches.len() {
                    let stretch = self.stretches[at];
                    rows += stretch.rows;
                    if stretch.at.align_offset(input.alignment) > 0 || !stretch.stride.is_multiple_of(input.alignment) {
                        let copy = aligned(stretch, input.row_bytes);
                        self.stretches[at] = Stretch { at: copy.pointer(), stride: input.row_bytes, ..stretch };
                        self.copies.push(copy);
                    }
                }
                self.ranges.push((from, self.stretches.len()));
            }
            self.offsets.push(rows);
        }
        for joined in &spans.joined {
            let mut rows = 0;
            for node in 0..self.nodes {
                self.offsets.push(rows);
                rows += joined.rows + joined.inputs.iter().map(|input| self.rows(*input as usize, node).1).sum::<usize>();
            }
            self.offsets.push(rows);
        }
    }

    /// Makes room for what phases give.
    fn reserve(&mut self, spans: &Spans) {
        self.kept.resize_with(self.kept.len().max(spans.values.len()), Lines::default);
        for (number, value) in spans.values.iter().enumerate() {
            let rows = value.span.map_or(self.nodes, |span| self.total(span));
            self.kept[number].reserve(rows * value.row_bytes);
        }
    }
}

/// A copy of rows, one behind the other.
fn aligned(stretch: Stretch, row_bytes: usize) -> Lines {
    let mut copy = Lines::zeroed(stretch.rows * row_bytes);
    // SAFETY: the copy is as large as the rows.
    unsafe { copy_rows(stretch, row_bytes, copy.pointer_mut()) };
    copy
}

/// Copies rows of so many bytes, one behind the other.
///
/// # Safety
/// The rows are there, and room for them is nobody else's.
unsafe fn copy_rows(stretch: Stretch, bytes: usize, into: *mut u8) {
    let (pieces, piece) = if stretch.stride == bytes { (1, stretch.rows * bytes) } else { (stretch.rows, bytes) };
    for row in 0..pieces {
        // SAFETY: the caller's promise. Rows without a gap are one piece.
        unsafe { std::ptr::copy_nonoverlapping(stretch.row(row), into.add(row * piece), piece) };
    }
}

/// A pointer that threads share, each of which writes rows of its own.
#[derive(Clone, Copy)]
struct Rows(*mut u8);

// SAFETY: see above.
unsafe impl Send for Rows {}
// SAFETY: see above.
unsafe impl Sync for Rows {}

impl Rows {
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

impl Spans {
    /// How many of a batch's first rows are computed together: as many as fit the working memory; one at least.
    pub(in crate::worker) fn nodes_at_once(&self, batch: &[Active], ends: Ends<'_>, threads: usize) -> usize {
        let (row, mut bytes) = (self.row_bytes(threads) as u64, 0_u64);
        let fits = |active: &&Active| {
            let lane = ends.lane(active).filter(|_| !active.is_padding);
            let rows = |input: &RaggedInput| match lane.map(|lane| lane.input(input.input as usize, active.row.step)) {
                Some(InputRef::Span(span)) => u64::from(span.rows()),
                _ => 0,
            };
            bytes += row * self.rows(rows);
            bytes <= WORKING_BYTES
        };
        batch.iter().take_while(fits).count().max(1)
    }
}

impl Ahead {
    /// Sees to it that what phases give is there for the rows of a batch, until the next.
    pub(in crate::worker) fn run_spans(&mut self, spans: &Spans, nodes: &mut Nodes<'_>, team: &mut Team, clock: &mut Clock<'_>) {
        self.bad.clear();
        self.given.reset(nodes.count(), spans.values.len());
        if let Nodes::Batch(batch, _) = nodes {
            batch.iter_mut().enumerate().for_each(|(row, active)| active.given = row);
        }
        self.spans.find(spans, nodes);
        self.spans.reserve(spans);
        for phase in &spans.phases {
            let refused_before = self.bad.len();
            match phase {
                Phase::Rows { span: None, body, gives } => self.run_nodes((spans, body, gives), nodes, team, clock),
                Phase::Rows { span: Some(span), body, gives } => self.run_rows((spans, body, gives), *span, team, clock),
                Phase::Whole(whole) => self.run_whole((spans, whole), team),
            }
            // A node is refused for what the first phase found.
            let more = self.bad.split_off(refused_before);
            let is_new = |found: &RefusedRow| self.bad.iter().all(|before| before.row != found.row);
            let more: Vec<RefusedRow> = more.into_iter().filter(is_new).collect();
            self.bad.extend(more);
            slices::point();
        }
        clock.transferred();
    }

    /// Says where rows of nodes of a value are.
    fn give(&mut self, spans: &Spans, value: usize) {
        let (kept, bytes) = (self.spans.kept[value].pointer(), spans.values[value].row_bytes);
        for node in 0..self.spans.nodes {
            self.given.set_some(node, &[value as u32], std::iter::once(kept.wrapping_add(node * bytes)));
        }
    }

    /// A phase over rows of nodes.
    fn run_nodes(&mut self, (spans, body, gives): (&Spans, &Body, &[u32]), nodes: &mut Nodes<'_>, team: &mut Team, clock: &mut Clock<'_>) {
        let count = nodes.count();
        let part = count.div_ceil(body.plan.parts(count, team.size())).max(1);
        for first in (0..count).step_by(part) {
            let rows = part.min(count - first);
            let memory = self.frame.prepare(&body.plan, rows, team.size());
            match nodes {
                Nodes::Batch(batch, ends) => {
                    let transfer = Transfer { ends: *ends, body, memory, given: Some(&self.given) };
                    transfer.gather(&batch[first..first + rows], false, team);
                }
                Nodes::Zeros(..) => zero_inputs(&body.plan, memory, rows),
            }
            clock.run(&body.plan, (memory, rows), team, &self.refused);
            let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.bad.extend(refused.drain(..).map(|found| RefusedRow { row: first + found.row, ..found }));
            for (output, value) in body.plan.outputs.iter().zip(gives) {
                let kept = self.spans.kept[*value as usize].pointer_mut();
                for row in 0..rows {
                    // SAFETY: the frame has this row, and there is room for it.
                    unsafe {
                        let into = kept.add((first + row) * output.bytes);
                        std::ptr::copy_nonoverlapping(memory.output(output, row).cast_const(), into, output.bytes);
                    }
                }
            }
        }
        gives.iter().for_each(|value| self.give(spans, *value as usize));
    }

    /// A phase over all rows of a span of all nodes.
    fn run_rows(&mut self, (spans, body, gives): (&Spans, &Body, &[u32]), span: usize, team: &mut Team, clock: &mut Clock<'_>) {
        let total = self.spans.total(span);
        let part = total.div_ceil(body.plan.parts(total, team.size())).max(1);
        let position = |own: u32| spans.inputs.iter().position(|input| input.input == own);
        for first in (0..total).step_by(part) {
            let rows = part.min(total - first);
            let memory = self.frame.prepare(&body.plan, rows, team.size());
            let places = &self.spans;
            let node_of = |row: usize| {
                let own = &places.offsets[span * (places.nodes + 1)..][..places.nodes];
                own.partition_point(|offset| *offset <= row) - 1
            };
            let moved = body.plan.inputs.iter().map(|input| input.bytes).sum();
            by_rows(team, rows, moved, &|range| {
                for row in range {
                    let node = node_of(first + row);
                    let (begin, _) = places.rows(span, node);
                    for (feed, into) in body.feeds.iter().zip(&body.plan.inputs) {
                        let from = match feed {
                            Feed::Own(own) => {
                                let stretches = position(*own).map_or(&[][..], |input| places.stretches(input, node));
                                nth(stretches, first + row - begin)
                            }
                            Feed::Pre(value) => Some(places.kept[*value as usize].pointer().wrapping_add((first + row) * into.bytes)),
                        };
                        debug_assert!(from.is_some(), "inputs of one phase have as many rows");
                        if let Some(from) = from {
                            // SAFETY: so many bytes are there, and stay.
                            unsafe { put(from, into, memory, (row, rows)) };
                        }
                    }
                }
            });
            clock.run(&body.plan, (memory, rows), team, &self.refused);
            let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.bad.extend(refused.drain(..).map(|found| RefusedRow { row: node_of(first + found.row), ..found }));
            for (output, value) in body.plan.outputs.iter().zip(gives) {
                let kept = Rows(self.spans.kept[*value as usize].pointer_mut());
                by_rows(team, rows, output.bytes, &|range| {
                    for row in range {
                        let into = kept.at((first + row) * output.bytes);
                        // SAFETY: the frame has this row, and there is room for it.
                        unsafe { std::ptr::copy_nonoverlapping(memory.output(output, row).cast_const(), into, output.bytes) };
                    }
                });
            }
            slices::point();
        }
    }

    /// An operation that sees whole spans.
    fn run_whole(&mut self, (spans, whole): (&Spans, &Whole), team: &mut Team) {
        match &whole.kind {
            WholeKind::Concat => self.concat((spans, whole), team),
            WholeKind::Repeat(bytes) => self.repeat(whole, *bytes, team),
            WholeKind::Gather { bytes, count } => self.pick((spans, whole), (*bytes, *count), team),
            WholeKind::Span { .. } => self.run_span((spans, whole), team),
            WholeKind::Attention { .. } => self.attend((spans, whole), team),
        }
        for value in whole.results.iter().flatten().filter(|value| spans.values[**value].span.is_none()) {
            self.give(spans, *value);
        }
    }

    fn concat(&mut self, (spans, whole): (&Spans, &Whole), team: &mut Team) {
        let &[Some(into)] = &whole.results[..] else { return };
        let bytes = spans.values[into].row_bytes;
        let into = Rows(self.spans.kept[into].pointer_mut());
        let places = &self.spans;
        by_rows(team, places.nodes, bytes * places.total(whole.span) / places.nodes.max(1), &|range| {
            for node in range {
                let mut at = places.rows(whole.span, node).0 * bytes;
                for taken in &whole.operands {
                    // Rows of a node lie in one row of the operand.
                    let bytes = match taken {
                        Taken::Input(input) => spans.inputs[*input].row_bytes,
                        Taken::Value(value) => spans.values[*value].row_bytes,
                    };
                    for stretch in places.operand(spans, *taken, node, &mut [Stretch::NONE; 1]) {
                        // SAFETY: the result has room for these rows, and no other node writes there.
                        unsafe { copy_rows(*stretch, bytes, into.at(at)) };
                        at += stretch.rows * bytes;
                    }
                }
            }
        });
    }

    fn repeat(&mut self, whole: &Whole, bytes: usize, team: &mut Team) {
        let (&[Taken::Value(from)], &[Some(into)]) = (&whole.operands[..], &whole.results[..]) else { return };
        let from = Rows(self.spans.kept[from].pointer_mut());
        let into = Rows(self.spans.kept[into].pointer_mut());
        let (places, span) = (&self.spans, whole.span);
        by_rows(team, places.nodes, bytes * places.total(span) / places.nodes.max(1), &|range| {
            for node in range {
                let (begin, rows) = places.rows(span, node);
                for row in begin..begin + rows {
                    // SAFETY: both have this row.
                    unsafe { std::ptr::copy_nonoverlapping(from.at(node * bytes), into.at(row * bytes), bytes) };
                }
            }
        });
    }

    fn pick(&mut self, (spans, whole): (&Spans, &Whole), (bytes, count): (usize, usize), team: &mut Team) {
        let (&[of, Taken::Value(numbers)], &[Some(into)]) = (&whole.operands[..], &whole.results[..]) else { return };
        let numbers = Rows(self.spans.kept[numbers].pointer_mut());
        let into = Rows(self.spans.kept[into].pointer_mut());
        let (places, bad) = (&self.spans, &self.refused);
        by_rows(team, places.nodes, bytes * count, &|range| {
            for node in range {
                let mut room = [Stretch::NONE; 1];
                let stretches = places.operand(spans, of, node, &mut room);
                let rows: usize = stretches.iter().map(|stretch| stretch.rows).sum();
                for at in node * count..(node + 1) * count {
                    // SAFETY: each node has so many numbers, which nobody writes meanwhile.
                    let index = unsafe { numbers.at(at * size_of::<i64>()).cast::<i64>().read() };
                    let from_end = if index < 0 { rows as i64 } else { 0 };
                    let row = usize::try_from(index.saturating_add(from_end)).ok();
                    let Some(row) = row.and_then(|row| nth(stretches, row)) else {
                        let why = Refusal::SpanIndex { index, rows: rows as u64 };
                        bad.lock().unwrap_or_else(PoisonError::into_inner).push(RefusedRow { row: node, why });
                        break;
                    };
                    // SAFETY: the span has this row, and there is room for it.
                    unsafe { std::ptr::copy_nonoverlapping(row, into.at(at * bytes), bytes) };
                }
            }
        });
        let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.bad.append(refused);
    }

    fn run_span(&mut self, (spans, whole): (&Spans, &Whole), team: &mut Team) {
        let WholeKind::Span { op, kernel, width, columns } = whole.kind else { return };
        let threads = team.size();
        let scratch = self.spans.scratch(threads, 3 * width * size_of::<f32>());
        let results: Vec<Option<(Rows, usize, bool)>> = whole
            .results
            .iter()
            .map(|result| {
                let value = spans.values[(*result)?];
                Some((Rows(self.spans.kept[(*result)?].pointer_mut()), value.row_bytes, value.span.is_some()))
            })
            .collect();
        // A result that nobody takes is computed nowhere but beside another.
        let apart = Rows(self.spans.apart(op.rows_least().max(1) * width * size_of::<u64>() * threads));
        let (places, span, bad) = (&self.spans, whole.span, &self.refused);
        let work = |node: usize, thread: usize| {
            let (begin, rows) = places.rows(span, node);
            if rows < op.rows_least() {
                let why = Refusal::TooFewRows { rows: rows as u64, needed: op.rows_least() as u64 };
                return bad.lock().unwrap_or_else(PoisonError::into_inner).push(RefusedRow { row: node, why });
            }
            let into = |number: usize| {
                results
                    .get(number)
                    .copied()
                    .flatten()
                    .map(|(rows, bytes, is_of_span)| rows.at(if is_of_span { begin } else { node } * bytes))
            };
            let (mut a, mut b) = ([Stretch::NONE; 1], [Stretch::NONE; 1]);
            let a = places.operand(spans, whole.operands[0], node, &mut a);
            let b = whole.operands.get(1).map_or(&[][..], |taken| places.operand(spans, *taken, node, &mut b));
            let y = into(0).unwrap_or_else(|| apart.at(op.rows_least().max(1) * width * size_of::<u64>() * thread));
            let node = kernels::Node { op, a, width, b, columns, y, places: into(1).unwrap_or(std::ptr::null_mut()).cast() };
            // SAFETY: operands are there, results are this node's, and the kernel was chosen for this processor.
            unsafe { kernel(node, scratch.at(thread * 3 * width * size_of::<f32>()).cast()) };
        };
        let bytes = places.total(span) * width * size_of::<f32>();
        in_turns(team, places.nodes, bytes, &work);
        let refused = self.refused.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.bad.append(refused);
    }

    fn attend(&mut self, (spans, whole): (&Spans, &Whole), team: &mut Team) {
        let WholeKind::Attention { head, kernel, queries, heads, key_heads, mask } = whole.kind else { return };
        let (&Taken::Value(q), Some(&Some(y))) = (&whole.operands[0], whole.results.first()) else { return };
        let room = attention::scratch(&head) * size_of::<f32>();
        let scratch = self.spans.scratch(team.size(), room);
        let (q, y) = (Rows(self.spans.kept[q].pointer_mut()), Rows(self.spans.kept[y].pointer_mut()));
        let (q_bytes, y_bytes) = (queries * heads * head.depth * size_of::<f32>(), queries * heads * head.size * size_of::<f32>());
        let places = &self.spans;
        let operands = &whole.operands[1..];
        let (order, ends) = places.groups((spans, whole.span), operands);
        let each = heads / key_heads;
        let per_node = queries * each;
        // Of each tile the nodes of its group, its key head, and the first of its lanes.
        let mut tiles: Vec<(Range<usize>, usize, usize)> = Vec::new();
        let mut begin = 0;
        for end in ends {
            let lanes = (end - begin) * per_node;
            tiles.extend((0..key_heads).flat_map(|key_head| (0..lanes).step_by(LANES).map(move |first| (begin..end, key_head, first))));
            begin = end;
        }
        let work = |at: usize, thread: usize| {
            let (nodes, key_head, first) = tiles[at].clone();
            let lanes = LANES.min(nodes.len() * per_node - first);
            let mut own = [Query { q: std::ptr::null(), y: std::ptr::null_mut(), rows: 0, mask: 0 }; LANES];
            for (lane, query) in own[..lanes].iter_mut().enumerate() {
                let (node, rest) = (order[nodes.start + (first + lane) / per_node], (first + lane) % per_node);
                let (row, head_of) = (rest / each, key_head * each + rest % each);
                let at = row * heads + head_of;
                *query = Query {
                    q: q.at(node * q_bytes + at * head.depth * size_of::<f32>()).cast_const().cast(),
                    y: y.at(node * y_bytes + at * head.size * size_of::<f32>()).cast(),
                    rows: places.rows(whole.span, node).1,
                    mask: (head_of % mask.0) * mask.1 + row % mask.1,
                };
            }
            // Nodes stand in the order of their spans' lengths.
            let longest = order[nodes.start + (first + lanes - 1) / per_node];
            let (mut k, mut v, mut m) = ([Stretch::NONE; 1], [Stretch::NONE; 1], [Stretch::NONE; 1]);
            let of = |taken: Option<&Taken>, room| taken.map_or(&[][..], |taken| places.operand(spans, *taken, longest, room));
            let (keys, values, masks) = (of(operands.first(), &mut k), of(operands.get(1), &mut v), of(operands.get(2), &mut m));
            let (mut moved_keys, mut moved_values) = (Vec::new(), Vec::new());
            let keys = moved(keys, key_head * head.depth, &mut moved_keys);
            let values = moved(values, key_head * head.size, &mut moved_values);
            let tile = Tile { head, queries: &own[..lanes], keys, values, masks };
            // SAFETY: keys and values are there for the longest span, results are these queries', and the kernel was chosen for this processor.
            unsafe { kernel(tile, scratch.at(thread * room).cast()) };
        };
        let flops = places.total(whole.span) * per_node * key_heads * (head.depth + head.size);
        in_turns(team, tiles.len(), flops, &work);
    }
}

/// Stretches of rows that begin so many floats further on.
fn moved<'a>(stretches: &'a [Stretch], floats: usize, into: &'a mut Vec<Stretch>) -> &'a [Stretch] {
    if floats == 0 {
        return stretches;
    }
    into.extend(stretches.iter().map(|stretch| Stretch { at: stretch.at.wrapping_add(floats * size_of::<f32>()), ..*stretch }));
    into
}

/// A row by its number.
fn nth(stretches: &[Stretch], mut row: usize) -> Option<*const u8> {
    for stretch in stretches {
        if row < stretch.rows {
            return Some(stretch.row(row));
        }
        row -= stretch.rows;
    }
    None
}

/// Pieces of work that are worth a look at the clock, by what they cost together.
const WORTH_SHARING: usize = 16 << 10;
/// Of work in slices: pieces for each thread before others may have a turn.
const PIECES: usize = 4;

/// Does pieces of work, each on one of the threads.
fn in_turns(team: &mut Team, pieces: usize, cost: usize, work: &(dyn Fn(usize, usize) + Sync)) {
    if pieces < 2 || cost < WORTH_SHARING {
        return (0..pieces).for_each(|piece| work(piece, 0));
    }
    let at_once = if slices::is_sliced() { PIECES * team.size() } else { pieces };
    for first in (0..pieces).step_by(at_once) {
        let (threads, end) = (team.size(), pieces.min(first + at_once));
        team.run(&|thread| (first + thread..end).step_by(threads).for_each(|piece| work(piece, thread)));
        slices::point();
    }
}

impl Stretch {
    const NONE: Self = Self { at: std::ptr::null(), stride: 0, rows: 0 };
}

impl SpanMemory {
    /// The rows of an operand at a node; of one that is of nodes, its row.
    fn operand<'a>(&'a self, spans: &Spans, taken: Taken, node: usize, room: &'a mut [Stretch; 1]) -> &'a [Stretch] {
        match taken {
            Taken::Input(input) => self.stretches(input, node),
            Taken::Value(value) => {
                let kept = spans.values[value];
                let (first, rows) = kept.span.map_or((node, 1), |span| self.rows(span, node));
                room[0] = Stretch { at: self.kept[value].pointer().wrapping_add(first * kept.row_bytes), stride: kept.row_bytes, rows };
                room
            }
        }
    }

    /// Whether the shorter of two nodes' spans is the beginning of the longer one.
    fn begin_alike(&self, spans: &Spans, taken: Taken, (one, other): (usize, usize)) -> bool {
        let (mut a, mut b) = ([Stretch::NONE; 1], [Stretch::NONE; 1]);
        let (a, b) = (self.operand(spans, taken, one, &mut a), self.operand(spans, taken, other, &mut b));
        let Some(last) = a.len().min(b.len()).checked_sub(1) else { return true };
        let (x, y) = (a[last], b[last]);
        let ends = match x.rows.cmp(&y.rows) {
            Ordering::Equal => true,
            Ordering::Less => a.len() == last + 1,
            Ordering::Greater => b.len() == last + 1,
        };
        a[..last] == b[..last] && (x.at, x.stride) == (y.at, y.stride) && ends
    }

    /// All nodes, and where groups of them end. Spans of a group begin alike, so that its nodes see the same rows as far as the shorter ones go; the last node
    /// has the longest.
    fn groups(&self, (spans, span): (&Spans, usize), operands: &[Taken]) -> (Vec<usize>, Vec<usize>) {
        let begins = |node: usize, taken: &Taken| {
            let mut room = [Stretch::NONE; 1];
            self.operand(spans, *taken, node, &mut room).first().map_or(std::ptr::null(), |first| first.at)
        };
        let mut order: Vec<usize> = (0..self.nodes).collect();
        order.sort_by_key(|node| (operands.first().map(|taken| begins(*node, taken)), self.rows(span, *node).1));
        let is_alike = |one: usize, other: usize| operands.iter().all(|taken| self.begin_alike(spans, *taken, (one, other)));
        let mut ends = Vec::new();
        for at in 1..order.len() {
            if !is_alike(order[at - 1], order[at]) {
                ends.push(at);
            }
        }
        ends.push(order.len());
        (order, ends)
    }

    fn scratch(&mut self, threads: usize, bytes: usize) -> Rows {
        if self.scratch.is_empty() {
            self.scratch.push(Lines::default());
        }
        self.scratch[0].reserve(threads * bytes);
        Rows(self.scratch[0].pointer_mut())
    }

    fn apart(&mut self, bytes: usize) -> *mut u8 {
        if self.scratch.len() < 2 {
            self.scratch.push(Lines::default());
        }
        self.scratch[1].reserve(bytes);
        self.scratch[1].pointer_mut()
    }
}
