//! Where a request's answer goes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestFailure, RequestTimes};
use cellwright_protocol::InferResponse;

use crate::error::InferError;
use crate::request::Running;

/// How a client wants outputs that the model streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Put together, in the response.
    #[default]
    Whole,
    /// Part by part as they come; the response then holds the other outputs. A call whose rows are requests is answered whole all the same.
    Parts,
}

/// Receives one request's answer, on threads that wait for it: an implementation stores or signals and returns.
///
/// It may cancel requests, this one too, and drop whatever it holds.
pub trait Client: Send {
    /// A piece of a streamed output (`Delivery::Parts` only).
    fn part(&mut self, part: Tensor);

    /// A request of the call has ended in the engine, which took its times. Where rows are requests it comes for each row.
    fn ran(&mut self, _times: &RequestTimes) {}

    /// The end; nothing more comes.
    fn end(self: Box<Self>, result: Result<InferResponse, InferError>);
}

/// An answer to wait for. Dropping it before its end cancels the request.
#[derive(Debug)]
pub struct Reply {
    slot: Arc<Slot>,
    running: Running,
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bounded by what the request's graph can stream.
    parts: VecDeque<Tensor>,
    result: Option<Result<InferResponse, InferError>>,
    over: bool,
}

/// The writing end of a [`Reply`].
pub(crate) struct Writer(Arc<Slot>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, result: Result<InferResponse, InferError>) {
        let mut state = self.lock();
        if !state.over {
            state.over = true;
            state.result = Some(result);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Client for Writer {
    fn part(&mut self, part: Tensor) {
        self.0.lock().parts.push_back(part);
        self.0.changed.notify_all();
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        self.0.end(result);
    }
}

/// Whoever waits hears of it even if the host gives a request up without a word.
impl Drop for Writer {
    fn drop(&mut self) {
        self.0.end(Err(InferError::Engine(RequestFailure::Stopped)));
    }
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// The reading end, for what runs to fill it.
    pub(crate) fn reply(&self) -> PendingReply {
        PendingReply(self.0.clone())
    }
}

/// A [`Reply`] whose request has not begun.
pub(crate) struct PendingReply(Arc<Slot>);

impl PendingReply {
    pub(crate) fn of(self, running: Running) -> Reply {
        Reply { slot: self.0, running }
    }
}

impl Reply {
    /// The next part, waiting for it; none once the answer is complete.
    #[must_use]
    pub fn next_part(&self) -> Option<Tensor> {
        let mut state = self.slot.lock();
        loop {
            if let Some(part) = state.parts.pop_front() {
                return Some(part);
            }
            if state.over {
                return None;
            }
            state = self.slot.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The response, waiting for it. Parts not taken are lost.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(self) -> Result<InferResponse, InferError> {
        let mut state = self.slot.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state = self.slot.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.slot.lock().over {
            self.running.cancel();
        }
    }
}
