//! Handing a request to a model and waiting for its answer, whole or part by part.
//!
//! Whoever waits here is a future that its connection drops when the client goes away; dropping it cancels the request.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use cellwright_cell_graph::Tensor;
use cellwright_protocol::InferResponse;
use cellwright_serving::reply::part_bytes;
use cellwright_serving::{AnswerShare, Call, Client, ErrorKind, InferError};
use tokio::sync::oneshot;

use crate::app::App;
use crate::budget::Share;
use crate::handover::keeping;
use crate::host::{Answering, Endpoint};
use crate::refusal::Refusal;
use crate::turns::Turn;

const UNANSWERED: &str = "a request was given up without an answer";

/// What an answer holds of the host's memory until it has been sent.
#[derive(Debug, Default)]
pub(crate) struct Held {
    _share: Option<AnswerShare>,
}

/// A body's bytes, and what goes with them.
struct Owned<T> {
    bytes: T,
    _held: Held,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Held {
    const fn of(share: AnswerShare) -> Self {
        Self { _share: Some(share) }
    }

    /// A body that holds it.
    pub(crate) fn body(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Body {
        Body::from(Bytes::from_owner(Owned { bytes, _held: self }))
    }
}

/// The whole answer of one request, which holds its share until it has ended, also if nobody waits any more.
pub(crate) async fn whole(app: &App, model: Arc<dyn Endpoint>, call: Call, share: Share) -> Result<(InferResponse, Held), Refusal> {
    let (sender, receiver) = oneshot::channel();
    let answering = begin(app, model, call, Box::new(Whole { sender, held: Held::default(), share })).await?;
    let result = receiver.await;
    answering.ended();
    let (result, held) = result.map_err(|_| Refusal::internal(UNANSWERED))?;
    Ok((result?, held))
}

/// Hands a request over, on another thread where that would hold this one up.
async fn begin(app: &App, model: Arc<dyn Endpoint>, call: Call, client: Box<dyn Client>) -> Result<Answering, Refusal> {
    if !model.is_slow_to_begin() {
        return Ok(keeping(|| model.infer(call, client))?);
    }
    let turn = turn(app, &*model, &call).await?;
    // If nobody waits any more when it has begun, what it gives is dropped, which cancels it.
    let span = tracing::Span::current();
    let begun = tokio::task::spawn_blocking(move || {
        let begun = span.in_scope(|| model.infer(call, client));
        drop(turn);
        begun
    });
    Ok(begun.await.map_err(Refusal::internal)??)
}

/// Waits until the tenant may have one more call begun; that is part of the time its client gave it, and of what is told of its version.
async fn turn(app: &App, model: &dyn Endpoint, call: &Call) -> Result<Turn, Refusal> {
    let mut waiting = Waiting { model, since: call.since, end: Some(ErrorKind::Cancelled) };
    let turn = app.slow_begins.take(model.tenant());
    let turn = match call.timeout {
        Some(timeout) => tokio::time::timeout(timeout.saturating_sub(call.since.elapsed()), turn).await,
        None => Ok(turn.await),
    };
    match turn {
        Ok(Some(turn)) => {
            waiting.end = None;
            Ok(turn)
        }
        Ok(None) => {
            waiting.end = Some(ErrorKind::Busy);
            Err(Refusal::new(ErrorKind::Busy, "too many calls of this tenant wait for plugins that take their time: try again later"))
        }
        Err(_) => {
            waiting.end = Some(ErrorKind::Deadline);
            Err(InferError::Late.into())
        }
    }
}

/// A call that waits for its turn. If it comes to no more than that, its version hears how it ended: unless something else is said, by its client leaving.
struct Waiting<'a> {
    model: &'a dyn Endpoint,
    since: Instant,
    end: Option<ErrorKind>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(kind) = self.end {
            self.model.ended_before(kind, self.since);
        }
    }
}

struct Whole {
    sender: oneshot::Sender<(Result<InferResponse, InferError>, Held)>,
    held: Held,
    /// What the request holds.
    share: Share,
}

impl Client for Whole {
    fn part(&mut self, _: Tensor) {}

    fn given_up(&self) -> Option<InferError> {
        self.sender.is_closed().then(InferError::left)
    }

    fn holds(&mut self, share: AnswerShare) {
        self.held = Held::of(share);
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        let Self { sender, held, share } = *self;
        // Who reads the answer finds it given back.
        drop(share);
        // Nobody listens to a request that was cancelled.
        let _ = sender.send((result, held));
    }
}

/// What comes next of a streamed answer.
pub(crate) enum Piece {
    /// A part of an output.
    Part(Tensor),
    /// The end, with the outputs that were not streamed.
    End(Result<InferResponse, Refusal>),
}

/// An answer that comes part by part. Dropping it before its end cancels the request.
pub(crate) struct Parts {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    bytes_max: u64,
}

#[derive(Default)]
struct State {
    parts: VecDeque<Tensor>,
    /// Bytes of the parts that wait.
    bytes: u64,
    end: Option<Result<InferResponse, Refusal>>,
    /// What it holds until it is dropped.
    held: Held,
    over: bool,
    /// It is over because more parts would have waited than may.
    overflowed: bool,
    waker: Option<Waker>,
    answering: Option<Answering>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, result: Result<InferResponse, Refusal>) {
        let mut state = self.lock();
        if state.over {
            return;
        }
        state.over = true;
        state.end = Some(result);
        let (waker, answering) = (state.waker.take(), state.answering.take());
        drop(state);
        if let Some(answering) = answering {
            answering.ended();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    const fn parts_wait(&self) -> InferError {
        InferError::PartsWait { limit: self.bytes_max }
    }

    fn part(&self, part: Tensor) {
        let mut state = self.lock();
        if state.over {
            return;
        }
        state.bytes = state.bytes.saturating_add(part_bytes(&part));
        let mut cancelled = None;
        // One part alone may be as large as it is: the room for the answer bounds it, or its plugin's memory if that emitted it.
        if state.bytes > self.bytes_max && !state.parts.is_empty() {
            (state.over, state.overflowed) = (true, true);
            state.end = Some(Err(self.parts_wait().into()));
            cancelled = state.answering.take();
        } else {
            state.parts.push_back(part);
        }
        let waker = state.waker.take();
        drop(state);
        drop(cancelled);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The writing end; if it is dropped without an end, the reader hears that too.
struct Writer {
    shared: Arc<Shared>,
    /// What the request holds, until its end.
    share: Option<Share>,
}

impl Writer {
    fn tell(&mut self, result: Result<InferResponse, Refusal>) {
        self.share = None;
        self.shared.end(result);
    }
}

impl Client for Writer {
    fn part(&mut self, part: Tensor) {
        self.shared.part(part);
    }

    fn given_up(&self) -> Option<InferError> {
        let state = self.shared.lock();
        state.over.then(|| if state.overflowed { self.shared.parts_wait() } else { InferError::left() })
    }

    fn holds(&mut self, share: AnswerShare) {
        self.shared.lock().held = Held::of(share);
    }

    fn end(mut self: Box<Self>, result: Result<InferResponse, InferError>) {
        self.tell(result.map_err(Refusal::from));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.tell(Err(Refusal::internal(UNANSWERED)));
    }
}

impl Parts {
    /// Begins a request, which holds its share until it has ended; no more of its answer waits to be read than `stream_bytes_max`.
    pub(crate) async fn begin(app: &App, model: Arc<dyn Endpoint>, call: Call, share: Share) -> Result<Self, Refusal> {
        let bytes_max = app.limits.stream_bytes_max as u64;
        // Dropped with what waits here if the client leaves meanwhile.
        let parts = Self { shared: Arc::new(Shared { state: Mutex::default(), bytes_max }) };
        let writer = Writer { shared: parts.shared.clone(), share: Some(share) };
        let answering = begin(app, model, call, Box::new(writer)).await?;
        let mut state = parts.shared.lock();
        if state.over {
            // It ended, or was given up, before this line.
            let finished = state.end.as_ref().is_none_or(Result::is_ok);
            drop(state);
            if finished { answering.ended() } else { drop(answering) }
        } else {
            state.answering = Some(answering);
            drop(state);
        }
        Ok(parts)
    }

    /// What comes next; none after the end.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        let mut state = self.shared.lock();
        if let Some(part) = state.parts.pop_front() {
            state.bytes = state.bytes.saturating_sub(part_bytes(&part));
            return Poll::Ready(Some(Piece::Part(part)));
        }
        if state.over {
            return Poll::Ready(state.end.take().map(Piece::End));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    pub(crate) async fn next(&self) -> Option<Piece> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        let answering = state.answering.take();
        drop(state);
        drop(answering);
    }
}

#[cfg(test)]
mod tests {
    use cellwright_registry::TenantName;

    use super::*;
    use crate::budget::Budget;

    #[test]
    fn an_answer_holds_its_share_until_it_has_been_sent() {
        let room = Arc::new("room");
        let (sender, receiver) = oneshot::channel();
        let share = Budget::new(0).share(&TenantName::default_tenant());
        let mut client = Box::new(Whole { sender, held: Held::default(), share });
        client.holds(AnswerShare::new(room.clone()));
        client.end(Ok(InferResponse::default()));
        let (_, held) = receiver.blocking_recv().unwrap();
        let body = held.body(vec![0; 9]);
        assert_eq!(Arc::strong_count(&room), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&room), 1);
    }

    #[test]
    fn what_waits_is_counted_with_all_it_takes() {
        let part = |length: usize| Tensor::from_f32("y", &[length], &vec![0.0; length]);
        let shared = Arc::new(Shared { state: Mutex::default(), bytes_max: 1000 });
        let writer = Writer { shared: shared.clone(), share: None };
        shared.part(part(5000));
        assert!(!shared.lock().over && writer.given_up().is_none(), "one part alone is refused");
        shared.part(part(0));
        assert_eq!(writer.given_up().map(|why| why.kind()), Some(ErrorKind::TooLarge));
        let refusal = shared.lock().end.take().unwrap().unwrap_err();
        assert_eq!(refusal.status(), 413);
        assert!(refusal.message("x1", None).contains("more than 1000 bytes"));
    }
}
