//! The lists of a batch: where rows of spans and inputs of phases lie.

use std::collections::HashMap;

use cellwright_backend::{InputRef, Piece, TIMED_SPAN_ROWS};
use cellwright_cell_graph::hoist::Feed;

use super::super::inputs::Inputs;
use super::super::resident::Resident;
use super::super::ring::{List, Pen};
use super::super::together::Selected;
use crate::abi::{AttentionArguments, BatchHead, SPAN_OPERANDS, SPAN_RESULTS, SpanArguments, SpanRows, SpanRun, span};
use crate::driver::DeviceAddress;
use crate::plan::{KeptValue, Spans, Taken, Whole, WholeKind};

/// The nodes of a batch.
#[derive(Clone, Copy)]
pub(super) enum Nodes<'a> {
    Batch(&'a [Selected]),
    /// So many, whose spans have [`TIMED_SPAN_ROWS`] rows of zeros each.
    Zeros(usize),
}

impl Nodes<'_> {
    pub(super) const fn count(&self) -> usize {
        match self {
            Self::Batch(rows) => rows.len(),
            Self::Zeros(nodes) => *nodes,
        }
    }
}

/// Where rows of a value lie.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Home {
    pub(super) first: DeviceAddress,
    pub(super) stride: usize,
}

impl Home {
    pub(super) const fn row(self, row: usize) -> u64 {
        self.first.plus(row * self.stride).0
    }
}

/// A launch that is ready.
#[derive(Debug)]
pub(super) enum Ready {
    /// Rows of that phase, with their head.
    Rows(usize, BatchHead),
    Span(SpanArguments),
    Attention(AttentionArguments),
}

/// Writes the lists of a batch.
pub(super) struct Writer<'a, 'b> {
    pub(super) spans: &'a Spans<Resident>,
    pub(super) nodes: Nodes<'a>,
    pub(super) inputs: Inputs<'a>,
    pub(super) pen: Pen<'b>,
    /// By ragged input and node, the runs of its rows.
    pub(super) runs: Vec<Vec<Vec<SpanRun>>>,
    /// By span and node, and once more: how many rows nodes before it have.
    pub(super) offsets: Vec<Vec<u32>>,
    /// By value.
    pub(super) homes: Vec<Home>,
    /// By operand, where the device finds its rows of all nodes.
    pub(super) listed: HashMap<(bool, usize), u64>,
}

impl Writer<'_, '_> {
    pub(super) fn rows(&self, span: usize) -> usize {
        self.offsets[span].last().copied().unwrap_or_default() as usize
    }

    /// The first of a node's rows of a span among those of all nodes, and how many it has.
    fn of_node(&self, span: usize, node: usize) -> (usize, usize) {
        let [first, end] = [node, node + 1].map(|node| self.offsets[span][node] as usize);
        (first, end - first)
    }

    /// Finds the rows of a ragged input; those that the host has are put into the lists.
    pub(super) fn find(&mut self, number: usize) {
        let (input, count) = (self.spans.inputs[number], self.nodes.count());
        let mut runs = vec![Vec::new(); count];
        match self.nodes {
            Nodes::Zeros(_) => {
                let (_, at) = self.pen.zeros(TIMED_SPAN_ROWS as usize * input.row_bytes);
                let run = SpanRun { at, stride: input.row_bytes as u64, rows: TIMED_SPAN_ROWS, padding: 0 };
                runs.iter_mut().for_each(|runs| runs.push(run));
            }
            Nodes::Batch(rows) => {
                // Later steps see the same rows and more: these are uploaded once.
                let mut known: HashMap<(*const u8, u32), SpanRun> = HashMap::new();
                for (row, runs) in rows.iter().zip(&mut runs).rev() {
                    let lane = &self.inputs.seats.whose(row.lane).lane;
                    let InputRef::Span(span) = lane.input(input.input, row.step) else { continue };
                    for piece in span.pieces() {
                        runs.extend(self.inputs.run((piece, input.row_bytes), &mut known, &mut self.pen));
                    }
                }
            }
        }
        let mut rows = 0;
        let ends = runs.iter().map(|runs| {
            rows += runs.iter().map(|run| run.rows).sum::<u32>();
            rows
        });
        self.offsets.push(std::iter::once(0).chain(ends).collect());
        let List { values, address } = self.pen.list::<SpanRows>(count);
        for (node, (rows, runs)) in values.iter_mut().zip(&runs).enumerate() {
            let own = self.offsets[number][node + 1] - self.offsets[number][node];
            let list = self.pen.list::<SpanRun>(runs.len());
            list.values.copy_from_slice(runs);
            *rows = SpanRows { runs: list.address, rows: own.into() };
        }
        self.runs.push(runs);
        self.listed.insert((true, number), address);
    }

    /// Addresses of the inputs of a part over rows of nodes.
    pub(super) fn of_nodes(&mut self, part: &Resident, feeds: &[Feed], addresses: &mut [u64]) {
        for (node, row) in addresses.chunks_exact_mut(feeds.len().max(1)).enumerate() {
            for (at, (feed, address)) in feeds.iter().zip(row).enumerate() {
                *address = match (feed, self.nodes) {
                    (Feed::Pre(value), _) => self.homes[*value as usize].row(node),
                    (Feed::Own(_), Nodes::Zeros(_)) => 0,
                    (Feed::Own(input), Nodes::Batch(rows)) => {
                        let Selected { lane, step, .. } = rows[node];
                        let kind = (part.plan.inputs[at].bytes as usize, part.plan.datatypes[at]);
                        self.inputs.said(&self.inputs.seats.whose(lane).lane, (*input as usize, step), kind, &mut self.pen)
                    }
                };
            }
        }
    }

    /// The same over all rows of a span.
    pub(super) fn of_rows(&self, feeds: &[Feed], addresses: &mut [u64]) {
        let rows = addresses.len() / feeds.len().max(1);
        for (at, feed) in feeds.iter().enumerate() {
            let into = addresses.iter_mut().skip(at).step_by(feeds.len());
            match feed {
                Feed::Pre(value) => into.zip(0..rows).for_each(|(address, row)| *address = self.homes[*value as usize].row(row)),
                Feed::Own(input) => {
                    let position = self.spans.inputs.iter().position(|ragged| ragged.input == *input as usize).unwrap_or_default();
                    let of_run = |run: &SpanRun| {
                        let run = *run;
                        (0..u64::from(run.rows)).map(move |row| run.at + row * run.stride)
                    };
                    into.zip(self.runs[position].iter().flatten().flat_map(of_run)).for_each(|(to, from)| *to = from);
                }
            }
        }
    }

    /// Where the device finds the rows of an operand.
    fn operand(&mut self, taken: Taken) -> u64 {
        let (value, span) = match taken {
            Taken::Input(input) => return self.listed[&(true, input)],
            Taken::Rows(span) => return self.list(|of, node| run(Home::default(), of.of_node(span, node))),
            Taken::Value(value) => (value, self.spans.values[value].span),
        };
        if let Some(address) = self.listed.get(&(false, value)) {
            return *address;
        }
        let address = self.list(|of, node| run(of.homes[value], span.map_or((node, 1), |span| of.of_node(span, node))));
        self.listed.insert((false, value), address);
        address
    }

    /// Lists rows of all nodes, of which each has one run.
    fn list(&mut self, run: impl Fn(&Self, usize) -> SpanRun) -> u64 {
        let count = self.nodes.count();
        let (runs, all) = (self.pen.list::<SpanRun>(count), self.pen.list::<SpanRows>(count));
        for (node, (own, rows)) in runs.values.iter_mut().zip(all.values).enumerate() {
            *own = run(self, node);
            *rows = SpanRows { runs: runs.address + (node * size_of::<SpanRun>()) as u64, rows: own.rows.into() };
        }
        all.address
    }

    /// Copies rows of each operand behind those of the one before.
    fn concat(&mut self, whole: &Whole, launches: &mut Vec<Ready>) {
        let &[Some(value)] = &whole.results[..] else { return };
        let count = self.nodes.count();
        let (home, KeptValue { row_bytes, span }) = (self.homes[value], self.spans.values[value]);
        let Some(span) = span else { return };
        let mut next: Vec<usize> = (0..count).map(|node| self.of_node(span, node).0).collect();
        for taken in &whole.operands {
            let span = match taken {
                Taken::Value(value) => self.spans.values[*value].span.ok_or(*value),
                Taken::Input(span) | Taken::Rows(span) => Ok(*span),
            };
            let operand = match span {
                Ok(_) => self.operand(*taken),
                // Rows of a node lie in one row of the operand.
                Err(value) => {
                    let rows = self.spans.values[value].row_bytes / row_bytes.max(1);
                    self.list(|of, node| SpanRun { stride: row_bytes as u64, rows: rows as u32, ..run(of.homes[value], (node, 1)) })
                }
            };
            let into = self.pen.list::<u64>(count);
            for (node, place) in into.values.iter_mut().enumerate() {
                *place = home.row(next[node]);
                let own = |value: usize| self.spans.values[value].row_bytes / row_bytes.max(1);
                next[node] += span.map_or_else(own, |span| self.of_node(span, node).1);
            }
            launches.push(Ready::Span(SpanArguments {
                op: span::COPY,
                operands: [operand, 0],
                results: [into.address, 0],
                strides: [home.stride as u32, 0],
                width: row_bytes as u32,
                ..SpanArguments::default()
            }));
        }
    }

    /// Where the first rows of a result go, of all nodes.
    fn result(&mut self, value: usize) -> u64 {
        let (home, span) = (self.homes[value], self.spans.values[value].span);
        let List { values, address } = self.pen.list::<u64>(self.nodes.count());
        for (node, place) in values.iter_mut().enumerate() {
            *place = home.row(span.map_or(node, |span| self.of_node(span, node).0));
        }
        address
    }

    pub(super) fn whole(&mut self, whole: &Whole, statuses: u64, launches: &mut Vec<Ready>) {
        let operands: Vec<u64> = whole.operands.iter().map(|taken| self.operand(*taken)).collect();
        let operand = |number: usize| operands.get(number).copied().unwrap_or_default();
        let results: Vec<(u64, usize)> =
            whole.results.iter().map(|value| value.map_or((0, 0), |value| (self.result(value), self.homes[value].stride))).collect();
        let result = |number: usize| results.get(number).copied().unwrap_or_default();
        launches.push(match whole.kind {
            WholeKind::Concat => return self.concat(whole, launches),
            WholeKind::Span(arguments) => Ready::Span(SpanArguments {
                operands: std::array::from_fn::<u64, SPAN_OPERANDS, _>(operand),
                results: std::array::from_fn::<u64, SPAN_RESULTS, _>(|number| result(number).0),
                strides: std::array::from_fn(|number| result(number).1 as u32),
                statuses: if whole.may_refuse() { statuses } else { 0 },
                ..arguments
            }),
            WholeKind::Attention(arguments) => Ready::Attention(AttentionArguments {
                queries: operand(0),
                keys: operand(1),
                values: operand(2),
                masks: operand(3),
                results: result(0).0,
                ..arguments
            }),
        });
    }
}

/// Rows from that one on, and how many.
const fn run(home: Home, (first, rows): (usize, usize)) -> SpanRun {
    SpanRun { at: home.row(first), stride: home.stride as u64, rows: rows as u32, padding: 0 }
}

impl Inputs<'_> {
    /// Rows of a piece of a span, of so many bytes each.
    fn run(
        &self,
        (piece, bytes): (Piece<'_>, usize),
        known: &mut HashMap<(*const u8, u32), SpanRun>,
        pen: &mut Pen<'_>,
    ) -> Option<SpanRun> {
        let (rows, every) = (piece.rows, piece.every as usize);
        match piece.first {
            InputRef::Slot { first, place, output, cell } => {
                let at = self.arena.place((first, place), (cell, output as usize), bytes)?;
                let stride = self.arena.node_bytes(cell)? * every;
                Some(SpanRun { at: at.0, stride: stride as u64, rows, padding: 0 })
            }
            InputRef::Host(from) => {
                let key = (from.as_ptr(), piece.every);
                if let Some(run) = known.get(&key).filter(|run| run.rows >= rows) {
                    return Some(SpanRun { rows, ..*run });
                }
                let (into, at) = pen.zeros(rows as usize * bytes);
                for (into, from) in into.chunks_exact_mut(bytes.max(1)).zip(from.chunks(bytes.max(1)).step_by(every)) {
                    into.copy_from_slice(from.get(..bytes)?);
                }
                let run = SpanRun { at, stride: bytes as u64, rows, padding: 0 };
                known.insert(key, run);
                Some(run)
            }
            _ => None,
        }
    }
}
