//! Parts of an answer, for a client that takes them as they come.
//!
//! Those of one output come in the order of growths, and of emitted tensors between them. A part is a copy: whoever asks for parts gets no more of
//! them at once than may be copied while others wait.

use std::collections::{BTreeMap, BTreeSet};

use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::unfolded::ResponseFrom;

use super::ordered::{Given, OrderedOutput, Sent};
use super::{Key, Outputs, VALUE_WORK};
use crate::join::Piece;

/// Bytes that may be copied at once.
const AT_ONCE: usize = 256 << 10;

/// What has news for a client.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Outputs of the model that are sent, by what they are made of.
    streams: BTreeMap<Key, Vec<usize>>,
    /// Those that are complete when a chain with a stop has ended, by that chain.
    by_root: BTreeMap<u32, Vec<usize>>,
    /// Those of which there may be parts to send.
    fresh: BTreeSet<usize>,
    /// Bytes of emitted tensors that wait for their turn.
    pub(super) bytes: u64,
}

impl Sending {
    /// A value has arrived.
    pub(super) fn arrived(&mut self, key: &Key) {
        if let Some(outputs) = self.streams.get(key) {
            self.fresh.extend(outputs);
        }
    }

    /// A chain with a stop has ended.
    pub(super) fn ended(&mut self, chain: u32) {
        self.fresh.extend(self.by_root.remove(&chain).into_iter().flatten());
    }

    /// An emitted tensor waits for its turn.
    pub(super) fn wait(&mut self, line: &mut OrderedOutput, piece: Piece) {
        self.bytes += piece.bytes();
        line.sent.push_back(Sent { given: Given::Piece(piece), steps: 0 });
    }

    /// All of it has been sent.
    fn forget(&mut self, key: &Key, output: usize) {
        if let Some(outputs) = self.streams.get_mut(key)
            && let Some(position) = outputs.iter().position(|other| *other == output)
        {
            outputs.swap_remove(position);
            if outputs.is_empty() {
                self.streams.remove(key);
            }
        }
    }
}

impl Outputs {
    /// A growth gives an output something. What is listed has no steps to send one by one.
    pub(super) fn give(&mut self, output: usize, from: ResponseFrom, stream: bool) {
        let Some(line) = self.lines.get_mut(output) else { return };
        let (Some(sending), true, ResponseFrom::Last(key) | ResponseFrom::All(key)) = (self.sending.as_mut(), stream, &from) else {
            return line.pending.push_back(Given::Graph(from));
        };
        sending.streams.entry(*key).or_default().push(output);
        if let Some(root) = self.chains.get(&key.0).and_then(|end| end.awaited(key.0)) {
            sending.by_root.entry(root).or_default().push(output);
        }
        if self.columns.get(key).is_some_and(|column| column.in_order > 0) {
            sending.fresh.insert(output);
        }
        line.sent.push_back(Sent { given: Given::Graph(from), steps: 0 });
    }

    /// Whether there may be parts to send.
    pub(crate) fn has_parts(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| !sending.fresh.is_empty())
    }

    /// Parts of what has arrived since the last call. If that is much, they are the first of them, and there are more.
    pub(crate) fn parts(&mut self, parts: &mut Vec<Tensor>) {
        let mut left = AT_ONCE;
        while left > 0
            && let Some(output) = self.sending.as_ref().and_then(|sending| sending.fresh.last().copied())
        {
            let more = self.send_first(output, &mut left, parts);
            if let (false, Some(sending)) = (more, self.sending.as_mut()) {
                sending.fresh.remove(&output);
            }
        }
    }

    /// Sends what there is of the first in an output's line, as far as it may be copied now; whether there may be more of that output to send.
    fn send_first(&mut self, output: usize, left: &mut usize, parts: &mut Vec<Tensor>) -> bool {
        let (key, is_stacked, from) = match self.lines[output].sent.front() {
            None => return false,
            Some(Sent { given: Given::Piece(_), .. }) => return self.send_emitted(output, left, parts),
            Some(Sent { given: Given::Graph(ResponseFrom::Listed(_)), .. }) => return self.lines[output].sent.pop_front().is_some(),
            Some(Sent { given: Given::Graph(ResponseFrom::All(key)), steps }) => (*key, true, *steps),
            Some(Sent { given: Given::Graph(ResponseFrom::Last(key)), steps }) => (*key, false, *steps),
        };
        let (until, all) = self.arrived(&key).unwrap_or((from, true));
        let mut end = from;
        if let Some(column) = self.columns.get(&key).filter(|_| until > from) {
            let name = &self.specs[output].name;
            let cost = column.row_bytes() as usize + if is_stacked { 1 } else { VALUE_WORK };
            end = until.min(from.saturating_add(u32::try_from(*left / cost).unwrap_or(u32::MAX).max(1)));
            if is_stacked {
                parts.push(column.stacked(from..end).into_tensor(name));
            } else {
                parts.extend((from..end).filter_map(|step| Some(column.row(step)?.into_tensor(name))));
            }
            *left = left.saturating_sub((end - from) as usize * cost);
        }
        let line = &mut self.lines[output];
        if end == until && all {
            line.sent.pop_front();
            if let Some(sending) = self.sending.as_mut() {
                sending.forget(&key, output);
            }
            return true;
        }
        if let Some(first) = line.sent.front_mut() {
            first.steps = end;
        }
        end < until
    }

    /// Sends an emitted tensor whose turn has come.
    fn send_emitted(&mut self, output: usize, left: &mut usize, parts: &mut Vec<Tensor>) -> bool {
        let Some(Sent { given: Given::Piece(piece), .. }) = self.lines[output].sent.pop_front() else { return false };
        let bytes = piece.bytes();
        if let Some(sending) = self.sending.as_mut() {
            sending.bytes -= bytes;
        }
        self.give_back(bytes);
        parts.push(piece.into_tensor(&self.specs[output].name));
        *left = left.saturating_sub(VALUE_WORK);
        true
    }
}
