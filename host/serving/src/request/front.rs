//! What the engine's thread and clients touch of a request: its lock is held for moments only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use cellwright_cell_graph::{Tensor, UnfoldedGrowth};
use cellwright_engine::RequestTimes;

use crate::join::Piece;
use crate::outputs::Outputs;
use crate::recipient::Recipient;

/// Growths that may wait for a place before the request takes more input. The scheduler allows twice
/// as many.
const GROWING_MAX: u32 = 32;

/// What the engine's thread and clients touch.
pub(super) struct Front {
    pub(super) outputs: Outputs,
    pub(super) recipient: Option<Recipient>,
    /// A call of the plugin, or sending what piled up, is queued or running.
    pub(super) calling: bool,
    /// The graph will not grow any more.
    pub(super) closed: bool,
    /// Growths that wait for their place.
    pub(super) growing: u32,
    /// Chunks of a session that the plugin has not been told of.
    pub(super) chunks: VecDeque<Vec<Arc<Tensor>>>,
    /// No more chunks will come.
    pub(super) input_over: bool,
    /// The plugin has been told so.
    pub(super) told_over: bool,
    /// The device that had it is lost, and it is to begin again; who waits for it stands aside until then ([`super::replay::Lost`]).
    pub(super) lost: bool,
    /// It was submitted again; what the engine told of it the first time.
    pub(super) replayed: Option<RequestTimes>,
    /// Something was sent that cannot be taken back.
    pub(super) sent: bool,
    /// Waits until the session takes more input.
    pub(super) feeder: Option<Waker>,
}

/// What a plugin is to be told.
pub(super) enum Occasion {
    Values(Vec<Piece>),
    Input(Vec<Arc<Tensor>>),
    EndOfInput,
}

impl Front {
    /// Of a request with that first growth. A session's input is not over.
    pub(super) fn new(outputs: Outputs, recipient: Recipient, growth: &UnfoldedGrowth, session: bool) -> Self {
        Self {
            outputs,
            recipient: Some(recipient),
            calling: false,
            closed: growth.next.is_none(),
            growing: 0,
            chunks: VecDeque::new(),
            input_over: !session,
            told_over: false,
            lost: false,
            replayed: None,
            sent: false,
            feeder: None,
        }
    }

    /// Whether there is something to tell the plugin.
    pub(super) fn has_occasion(&self) -> bool {
        if self.closed {
            return false;
        }
        let told = self.chunks.is_empty() && (!self.input_over || self.told_over);
        self.outputs.is_due() || self.takes_input() && !told
    }

    /// Whether the plugin may get more input. A session that is fed too fast waits here.
    fn takes_input(&self) -> bool {
        self.outputs.waits_for_input() && self.growing < GROWING_MAX
    }

    /// Whoever hears the end, and all that has arrived for it; nothing is held for anybody else any more.
    pub(super) fn end(&mut self) -> Option<(Outputs, Recipient)> {
        self.chunks.clear();
        self.wake_feeder();
        Some((self.outputs.take(), self.recipient.take()?))
    }

    /// Whether a session has ended or waits for input, with all that its answers and its plugin asked for.
    pub(super) fn is_idle(&self) -> bool {
        let has_more = self.calling || self.lost || !self.chunks.is_empty() || self.has_occasion() || self.outputs.has_parts();
        self.recipient.is_none() || !has_more && self.growing == 0 && self.outputs.waits_for_input() && self.outputs.is_complete()
    }

    pub(super) fn wake_feeder(&mut self) {
        if let Some(feeder) = self.feeder.take() {
            feeder.wake();
        }
    }

    /// What the plugin is to be told now, if anything.
    pub(super) fn occasion(&mut self) -> Option<Occasion> {
        if self.closed {
            return None;
        }
        if let Some(values) = self.outputs.watched() {
            return Some(Occasion::Values(values));
        }
        if !self.takes_input() {
            return None;
        }
        if let Some(chunk) = self.chunks.pop_front() {
            return Some(Occasion::Input(chunk));
        }
        let tell = self.input_over && !self.told_over;
        self.told_over |= tell;
        tell.then_some(Occasion::EndOfInput)
    }

    pub(super) fn send(&mut self, parts: &mut Vec<Tensor>) {
        if let Some(recipient) = self.recipient.as_ref() {
            self.sent |= !parts.is_empty();
            parts.drain(..).for_each(|part| recipient.part(part));
        }
        parts.clear();
    }

    /// Sends what has arrived, as far as that may be done at once; whether there is more.
    pub(super) fn send_parts(&mut self) -> bool {
        let mut parts = Vec::new();
        self.outputs.parts(&mut parts);
        self.send(&mut parts);
        self.outputs.has_parts()
    }
}
