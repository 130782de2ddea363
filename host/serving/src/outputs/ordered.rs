//! The values of one output, from growths and emitted tensors, in the order in which the plugin
//! gave them.
//!
//! Which of them is complete first depends on the other work of the host. The answer must not
//! depend on it, neither as a whole nor in parts.

use std::collections::VecDeque;

use cellwright_cell_graph::TensorSpec;
use cellwright_cell_graph::unfolded::ResponseFrom;

use super::Key;
use crate::join::{Piece, go_together};

/// What an output is given at once.
#[derive(Debug)]
pub(super) enum Given {
    /// By a growth, once it is computed.
    Graph(ResponseFrom),
    /// What is there.
    Piece(Piece),
}

/// What is sent by parts.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) given: Given,
    /// Steps that have been sent.
    pub(super) steps: u32,
}

/// One output of the model.
#[derive(Debug, Default)]
pub(super) struct OrderedOutput {
    /// What will be joined in the response, as far as all before it is there. Each goes together with the next.
    pub(super) settled: Vec<Piece>,
    /// What follows that in the response: the first of it is not known to be there.
    pub(super) pending: VecDeque<Given>,
    /// Bytes of the pieces in both.
    pub(super) bytes: u64,
    /// What goes to a client that takes parts: the first of it is being sent.
    pub(super) sent: VecDeque<Sent>,
    /// Something was emitted to such a client.
    pub(super) begun: bool,
}

/// What a growth's tensor is made of.
pub(super) fn keys(from: &ResponseFrom) -> &[Key] {
    match from {
        ResponseFrom::Last(key) | ResponseFrom::All(key) => std::slice::from_ref(key),
        ResponseFrom::Listed(keys) => keys,
    }
}

impl OrderedOutput {
    /// What is still made of values.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        let given = self.pending.iter().chain(self.sent.iter().map(|sent| &sent.given));
        given.flat_map(|given| match given {
            Given::Graph(from) => keys(from),
            Given::Piece(_) => &[],
        })
    }

    /// Adds what is there behind everything else that will be in the response. Gives the bytes of what it replaces.
    pub(super) fn add(&mut self, spec: &TensorSpec, piece: Piece) -> u64 {
        if self.pending.is_empty() {
            return self.settle(spec, piece);
        }
        self.bytes += piece.bytes();
        self.pending.push_back(Given::Piece(piece));
        0
    }

    /// Adds what is there to what is settled, or puts it in its place. Gives the bytes of what it replaces.
    pub(super) fn settle(&mut self, spec: &TensorSpec, piece: Piece) -> u64 {
        let goes = self.settled.last().is_none_or(|before| go_together(spec, before, &piece));
        let replaced = if goes { 0 } else { self.settled.drain(..).map(|before| before.bytes()).sum() };
        self.bytes = self.bytes - replaced + piece.bytes();
        self.settled.push(piece);
        replaced
    }
}
