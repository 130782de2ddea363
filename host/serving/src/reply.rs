//! Where a request's answer goes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cellwright_cell_graph::Tensor;
use cellwright_protocol::InferResponse;

use crate::error::InferError;

/// How a client wants outputs that the model streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Put together, in the response.
    #[default]
    Whole,
    /// Part by part as they come; the response then holds the other outputs.
    Parts,
}

/// Receives one request's answer, on threads that wait for it: an implementation stores or signals and returns.
pub trait Client: Send {
    /// A piece of a streamed output (`Delivery::Parts` only).
    fn part(&mut self, part: Tensor);

    /// The end; nothing more comes.
    fn end(self: Box<Self>, result: Result<InferResponse, InferError>);
}

/// An answer to wait for.
#[derive(Debug)]
pub struct Reply {
    slot: Arc<Slot>,
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
}

/// The writing end of a [`Reply`].
struct Writer(Arc<Slot>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client for Writer {
    fn part(&mut self, part: Tensor) {
        self.0.lock().parts.push_back(part);
        self.0.changed.notify_all();
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        self.0.lock().result = Some(result);
        self.0.changed.notify_all();
    }
}

impl Reply {
    pub(crate) fn new() -> (Self, Box<dyn Client>) {
        let slot = Arc::new(Slot::default());
        (Self { slot: slot.clone() }, Box::new(Writer(slot)))
    }

    /// The next part, waiting for it; none once the answer is complete.
    #[must_use]
    pub fn next_part(&self) -> Option<Tensor> {
        let mut state = self.slot.lock();
        loop {
            if let Some(part) = state.parts.pop_front() {
                return Some(part);
            }
            if state.result.is_some() {
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
