//! Where a request's answer goes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestFailure, RequestTimes};
use cellwright_protocol::InferResponse;

use crate::abandoned::Abandoned;
use crate::answer_room::AnswerShare;
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

    /// A request of the call has ended in the engine, which took its times. Where rows are requests it comes for each row. It comes once for each, also for
    /// one that began again, whose times are those of both runs ([`RequestTimes::after`]).
    fn ran(&mut self, _times: &RequestTimes) {}

    /// A request of the call that is about to end began again, because the device that had it was lost, and another was given some of it.
    fn replayed(&mut self) {}

    /// Why it does not wait for the answer any more, if it does not. That does not cancel its call: a call that begins looks whether it should go on
    /// to, and one that was cancelled why it was.
    fn given_up(&self) -> Option<InferError> {
        None
    }

    /// What the answer that is about to come holds of the host's memory: to be kept as long as the answer is.
    fn holds(&mut self, _share: AnswerShare) {}

    /// The end; nothing more comes.
    fn end(self: Box<Self>, result: Result<InferResponse, InferError>);
}

/// An answer to wait for. Dropping it before its end cancels the request.
///
/// Parts wait here until they are read. When more bytes wait than the model's limit allows, the request is cancelled and its end is an error.
#[derive(Debug)]
pub struct Reply {
    slot: Arc<Slot>,
    running: Running,
}

/// How often whoever waits looks whether it still should.
const ABANDONED_POLL: Duration = Duration::from_millis(50);

/// What a part takes beside its contents, name and shape.
const PART_BYTES: u64 = 256;

#[derive(Debug)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes of parts that may wait.
    waiting_bytes_max: u64,
}

#[derive(Debug, Default)]
struct State {
    parts: VecDeque<Tensor>,
    /// Bytes of them.
    waiting_bytes: u64,
    /// What fills this, once that is known.
    running: Option<Running>,
    /// Nobody will read parts any more.
    parts_unwanted: bool,
    result: Option<Result<InferResponse, InferError>>,
    /// What it holds until it is taken.
    share: Option<AnswerShare>,
    over: bool,
}

impl State {
    /// The end, if it has come: it is whoever's that takes it, and so is its memory.
    fn take(&mut self) -> Option<Result<InferResponse, InferError>> {
        let result = self.result.take()?;
        self.share = None;
        Some(result)
    }
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

/// Bytes of memory that a part takes while it waits.
#[must_use]
pub fn part_bytes(part: &Tensor) -> u64 {
    PART_BYTES + (part.data.len() + part.name.len() + size_of_val(part.shape.as_slice())) as u64
}

impl Client for Writer {
    fn part(&mut self, part: Tensor) {
        let mut state = self.0.lock();
        if state.over || state.parts_unwanted {
            return;
        }
        let waiting = state.waiting_bytes.saturating_add(part_bytes(&part));
        // One part alone may be as large as it is: the room for the answer bounds it, or its plugin's memory if that emitted it.
        if waiting <= self.0.waiting_bytes_max || state.parts.is_empty() {
            state.waiting_bytes = waiting;
            state.parts.push_back(part);
            drop(state);
            return self.0.changed.notify_all();
        }
        // Whoever reads so slowly hears only that; nothing more is computed for it.
        state.parts.clear();
        state.waiting_bytes = 0;
        let running = state.running.take();
        drop(state);
        self.0.end(Err(InferError::PartsWait { limit: self.0.waiting_bytes_max }));
        if let Some(running) = running {
            running.cancel();
        }
    }

    fn holds(&mut self, share: AnswerShare) {
        self.0.lock().share = Some(share);
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
    /// `waiting_bytes_max`: bytes of parts that may wait to be read.
    pub(crate) fn new(waiting_bytes_max: u64) -> Self {
        Self(Arc::new(Slot { state: Mutex::default(), changed: Condvar::new(), waiting_bytes_max }))
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
        let mut state = self.0.lock();
        let over = state.over;
        if !over {
            state.running = Some(running.clone());
        }
        drop(state);
        if over {
            // It ended before anybody could hear of it, and perhaps by what it sent.
            running.cancel();
        }
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
                state.waiting_bytes = state.waiting_bytes.saturating_sub(part_bytes(&part));
                return Some(part);
            }
            if state.over {
                return None;
            }
            state = self.slot.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The response, waiting for it until then, and no longer than somebody wants it. Parts not taken are lost.
    ///
    /// # Errors
    /// Why there is none; the request is cancelled if it goes on.
    pub fn wait_until(self, until: Instant, abandoned: &Abandoned) -> Result<InferResponse, InferError> {
        let mut state = self.slot.lock();
        state.parts_unwanted = true;
        state.parts.clear();
        loop {
            if let Some(result) = state.take() {
                return result;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(InferError::Late);
            }
            if abandoned.is_so() {
                return Err(InferError::Engine(RequestFailure::Cancelled));
            }
            let waited = self.slot.changed.wait_timeout(state, left.min(ABANDONED_POLL));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The response, waiting for it. Parts not taken are lost.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(self) -> Result<InferResponse, InferError> {
        let mut state = self.slot.lock();
        state.parts_unwanted = true;
        state.parts.clear();
        loop {
            if let Some(result) = state.take() {
                return result;
            }
            state = self.slot.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let mut state = self.slot.lock();
        if state.over {
            drop(state.take());
        } else {
            drop(state);
            self.running.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: usize) -> Tensor {
        Tensor { name: "y".to_owned(), datatype: cellwright_cell_graph::Datatype::Uint8, shape: vec![bytes], data: vec![0; bytes] }
    }

    #[test]
    fn parts_that_are_read_may_be_any_number() {
        let mut writer = Writer::new(1000);
        let reply = writer.reply().of(Running::default());
        for _ in 0..100 {
            writer.part(part(700));
            assert_eq!(reply.next_part(), Some(part(700)));
        }
        writer.part(part(5000));
        assert_eq!(reply.next_part(), Some(part(5000)));
    }

    #[test]
    fn parts_that_are_not_read_end_the_answer() {
        let mut writer = Writer::new(1000);
        let reply = writer.reply().of(Running::default());
        (0..4).for_each(|_| writer.part(part(200)));
        assert_eq!(writer.0.lock().parts.len(), 0);
        assert_eq!(reply.next_part(), None);
        assert!(matches!(reply.wait(), Err(InferError::PartsWait { limit: 1000 })));
    }

    #[test]
    fn who_waits_does_so_no_longer_than_it_should() {
        let waiting = || {
            let writer = Writer::new(1000);
            (writer.reply().of(Running::default()), writer)
        };
        let (abandoned, now) = (Abandoned::default(), Instant::now());
        let (reply, _writer) = waiting();
        assert!(matches!(reply.wait_until(now, &abandoned), Err(InferError::Late)));
        let (reply, _writer) = waiting();
        let leaving = abandoned.on_drop();
        let leaver = std::thread::spawn(move || drop(leaving));
        let cancelled = reply.wait_until(now + Duration::from_secs(600), &abandoned);
        assert!(matches!(cancelled, Err(InferError::Engine(RequestFailure::Cancelled))));
        leaver.join().unwrap();
        let (reply, writer) = waiting();
        Box::new(writer).end(Ok(InferResponse::default()));
        assert!(reply.wait_until(now, &abandoned).is_ok(), "an answer that is there is taken");
    }

    #[test]
    fn who_waits_for_the_end_wants_no_parts() {
        let mut writer = Box::new(Writer::new(1000));
        let reply = writer.reply().of(Running::default());
        let waiting = std::thread::spawn(|| reply.wait());
        while !writer.0.lock().parts_unwanted {
            std::thread::yield_now();
        }
        (0..100).for_each(|_| writer.part(part(200)));
        writer.end(Ok(InferResponse::default()));
        assert!(waiting.join().unwrap().is_ok());
    }
}
