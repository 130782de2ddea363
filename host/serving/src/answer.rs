//! A call's answer, on its way from the threads that run its requests to its reader: one bounded
//! buffer.
//!
//! Threads of the engine and of plugins write. They store an item, wake the reader and return. The
//! reader polls, or waits on its own thread. Parts that nobody reads stay within a bound; beyond
//! it the call is cancelled. A reader that leaves cancels its call.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestFailure, RequestTimes};
use cellwright_protocol::InferResponse;

use crate::abandoned::Abandoned;
use crate::answer_room::AnswerShare;
use crate::error::{InferError, Lateness};
use crate::request::Active;

/// How a client wants outputs that the model streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Put together, in the response.
    #[default]
    Whole,
    /// Part by part as they come; the response then holds the other outputs. A call whose rows are
    /// requests is answered whole all the same.
    Parts,
}

/// What an answer consists of.
#[derive(Debug)]
pub enum Item {
    /// A piece of a streamed output ([`Delivery::Parts`] only).
    Part(Tensor),
    /// The end: the outputs that were not streamed, and the memory that they hold.
    End(Result<InferResponse, InferError>, Option<AnswerShare>),
}

/// An answer to read. Dropping it before its end cancels the call.
#[derive(Debug)]
pub struct Answer(Arc<Shared>);

/// The way to a call for those who may cancel it and must not keep its answer.
#[derive(Clone, Debug)]
pub struct CallCanceller(Weak<Shared>);

/// How often a thread that waits looks whether it still should.
const ABANDONED_POLL: Duration = Duration::from_millis(50);

/// What a part takes beside its contents, name and shape.
const PART_BYTES: u64 = 256;

#[derive(Debug)]
pub(crate) struct Shared {
    buffer: Mutex<Buffer>,
    /// Bytes of parts that may wait for the reader.
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Buffer {
    parts: VecDeque<Tensor>,
    /// Bytes of them.
    bytes: u64,
    /// The reader wants nothing but the end.
    end_only: bool,
    end: Option<Result<InferResponse, InferError>>,
    /// What the answer holds until its end is taken.
    share: Option<AnswerShare>,
    phase: Phase,
    /// The requests that run for the call. One that begins after a cancellation is cancelled.
    running: Vec<Weak<Active>>,
    cancelled: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// More parts would wait than may.
    Overflowed,
    /// The reader is gone.
    Left,
    Ended,
}

/// Bytes of memory that a part takes while it waits.
fn part_bytes(part: &Tensor) -> u64 {
    PART_BYTES + (part.data.len() + part.name.len() + size_of_val(part.shape.as_slice())) as u64
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request runs for the call.
    pub(crate) fn add_request(&self, active: &Arc<Active>) {
        let mut buffer = self.lock();
        if buffer.cancelled {
            drop(buffer);
            return active.cancel();
        }
        buffer.running.push(Arc::downgrade(active));
    }

    /// Cancels the requests of the call, now and when they begin. Never waits.
    pub(crate) fn cancel(&self) {
        let mut buffer = self.lock();
        buffer.cancelled = true;
        let running = std::mem::take(&mut buffer.running);
        drop(buffer);
        running.iter().filter_map(Weak::upgrade).for_each(|active| active.cancel());
    }

    fn part(&self, part: Tensor) {
        let mut buffer = self.lock();
        if buffer.phase != Phase::Open || buffer.end_only {
            return;
        }
        let bytes = buffer.bytes.saturating_add(part_bytes(&part));
        // One part alone may have any size: the room for the answer or its plugin bounds it.
        let fits = bytes <= self.bytes_max || buffer.parts.is_empty();
        if fits {
            buffer.bytes = bytes;
            buffer.parts.push_back(part);
        } else {
            // The reader gets the parts that wait, then this error. Nothing more is computed.
            buffer.phase = Phase::Overflowed;
            buffer.end = Some(Err(InferError::PartsWait { limit: self.bytes_max }));
        }
        let waker = buffer.waker.take();
        drop(buffer);
        if !fits {
            self.cancel();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn end(&self, result: Result<InferResponse, InferError>) {
        let mut buffer = self.lock();
        if buffer.phase == Phase::Open {
            buffer.end = Some(result);
            buffer.phase = Phase::Ended;
        }
        let waker = buffer.waker.take();
        drop(buffer);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Why nobody waits for the answer any more, if that is so.
    fn given_up(&self) -> Option<InferError> {
        let buffer = self.lock();
        match buffer.phase {
            Phase::Overflowed => Some(InferError::PartsWait { limit: self.bytes_max }),
            Phase::Left => Some(InferError::left()),
            Phase::Open | Phase::Ended => buffer.cancelled.then(InferError::left),
        }
    }
}

impl CallCanceller {
    /// Cancels the call: its answer ends, unless it has ended. Never waits.
    pub fn cancel(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.cancel();
        }
    }
}

impl Answer {
    /// An answer and the end that writes it. `bytes_max`: bytes of parts that may wait to be read.
    #[must_use]
    pub fn new(bytes_max: u64, patience: Patience) -> (Self, Box<AnswerWriter>) {
        let shared = Arc::new(Shared { buffer: Mutex::default(), bytes_max });
        let writer = AnswerWriter { shared: shared.clone(), patience, times: CallTimes::default(), observer: None, ended: false };
        (Self(shared), Box::new(writer))
    }

    /// The means to cancel it.
    #[must_use]
    pub fn canceller(&self) -> CallCanceller {
        CallCanceller(Arc::downgrade(&self.0))
    }

    /// The next item; none after the end.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut buffer = self.0.lock();
        if let Some(part) = buffer.parts.pop_front() {
            buffer.bytes = buffer.bytes.saturating_sub(part_bytes(&part));
            return Poll::Ready(Some(Item::Part(part)));
        }
        if let Some(end) = buffer.end.take() {
            return Poll::Ready(Some(Item::End(end, buffer.share.take())));
        }
        if buffer.phase != Phase::Open {
            return Poll::Ready(None);
        }
        match &mut buffer.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// The next item; none after the end.
    pub async fn next(&self) -> Option<Item> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The end, without the parts before it, and what it holds of the host's memory.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn end(&self) -> (Result<InferResponse, InferError>, Option<AnswerShare>) {
        self.want_end_only();
        match self.next().await {
            Some(Item::End(result, share)) => (result, share),
            Some(Item::Part(_)) | None => (Err(InferError::Engine(RequestFailure::Stopped)), None),
        }
    }

    /// Waits on this thread for the next part; none once the answer is complete.
    #[must_use]
    pub fn next_part(&self) -> Option<Tensor> {
        let part = poll_fn(|context| match self.poll_next(context) {
            Poll::Ready(Some(Item::End(end, share))) => {
                let mut buffer = self.0.lock();
                (buffer.end, buffer.share) = (Some(end), share);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Item::Part(part))) => Poll::Ready(Some(part)),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        wait_for(part, |_| true).flatten()
    }

    /// Waits on this thread for the response. Parts not taken are lost.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(&self) -> Result<InferResponse, InferError> {
        wait_for(self.end(), |_| true).map_or(Err(InferError::left()), |(result, _)| result)
    }

    /// The same, until then, and no longer than somebody wants it.
    ///
    /// # Errors
    /// Why there is none. The call goes on until the answer is dropped.
    pub fn wait_until(&self, until: Instant, abandoned: &Abandoned) -> Result<InferResponse, InferError> {
        let mut late = false;
        let goes_on = |now: Instant| {
            late = now >= until;
            !late && !abandoned.is_so()
        };
        match wait_for(self.end(), goes_on) {
            Some((result, _)) => result,
            None if late => Err(InferError::Late(Lateness::default())),
            None => Err(InferError::left()),
        }
    }

    fn want_end_only(&self) {
        let mut buffer = self.0.lock();
        buffer.end_only = true;
        buffer.parts.clear();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut buffer = self.0.lock();
        if buffer.phase == Phase::Open {
            buffer.phase = Phase::Left;
            drop(buffer);
            self.0.cancel();
        } else {
            let unread = (buffer.end.take(), buffer.share.take());
            drop(buffer);
            drop(unread);
        }
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread for a future; none if it should wait no longer.
fn wait_for<T>(future: impl Future<Output = T>, mut goes_on: impl FnMut(Instant) -> bool) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        if !goes_on(Instant::now()) {
            return None;
        }
        thread::park_timeout(ABANDONED_POLL);
    }
}

/// How long a client waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// When the call came.
    pub since: Instant,
    /// Until when its client waits.
    pub until: Option<Instant>,
}

impl Patience {
    /// Of a client that waits from now on, however long it takes.
    #[must_use]
    pub fn endless() -> Self {
        Self { since: Instant::now(), until: None }
    }

    /// How long the client waits in all.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(self.since))
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// How the requests of a call fared in the engine. Where rows are requests, they are several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallTimes {
    /// Requests that ended in the engine. One that restarted counts once, with the times of both
    /// runs.
    pub requests: u64,
    /// Requests that restarted because their worker was lost and another had run some of them.
    pub replays: u64,
    /// Requests of which a task ran.
    pub started: u64,
    /// Time that requests waited for their first task.
    pub waited: Duration,
    /// Time from their first task to their end.
    pub ran: Duration,
    /// When the first of them was submitted.
    pub submitted: Option<Instant>,
    /// When the first task of any of them began.
    pub first_task: Option<Instant>,
    /// When the last of them ended.
    pub finished: Option<Instant>,
    /// Tasks that they had rows in.
    pub joins: u64,
    /// Rows of these tasks, whosever they were.
    pub joined_rows: u64,
    /// Rows of the largest of these tasks.
    pub batch_max: u32,
}

impl CallTimes {
    fn add(&mut self, times: &RequestTimes) {
        self.requests += 1;
        self.waited += times.waited();
        if times.first_task.is_some() {
            self.started += 1;
            self.ran += times.ran();
        }
        self.submitted = self.submitted.into_iter().chain([times.submitted]).min();
        self.first_task = self.first_task.into_iter().chain(times.first_task).min();
        self.finished = self.finished.max(Some(times.finished));
        self.joins += u64::from(times.joins);
        self.joined_rows += times.joined_rows;
        self.batch_max = self.batch_max.max(times.batch_max);
    }

    /// Rows of the tasks that its cells ran in, on average.
    #[must_use]
    pub fn batch_mean(&self) -> Option<f64> {
        (self.joins > 0).then(|| self.joined_rows as f64 / self.joins as f64)
    }
}

/// Learns how a call ended, on the thread that ends it. It is dropped when the reader can read the
/// end.
pub trait Observer: Send {
    /// The call ends with this result, which its reader has not seen.
    fn ended(&mut self, result: &mut Result<InferResponse, InferError>, times: &CallTimes);
}

/// The end of an [`Answer`] that is written. An answer whose writer is dropped ends with an error.
pub struct AnswerWriter {
    shared: Arc<Shared>,
    patience: Patience,
    times: CallTimes,
    observer: Option<Box<dyn Observer>>,
    ended: bool,
}

impl AnswerWriter {
    /// `observer` learns how the call ends.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// How long the client waits.
    #[must_use]
    pub const fn patience(&self) -> &Patience {
        &self.patience
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// A piece of a streamed output.
    pub(crate) fn part(&self, part: Tensor) {
        self.shared.part(part);
    }

    /// A request of the call has ended in the engine.
    pub(crate) fn request_ran(&mut self, times: &RequestTimes) {
        self.times.add(times);
    }

    /// A request of the call that is about to end restarted, and its second worker ran some of it.
    pub(crate) const fn request_replayed(&mut self) {
        self.times.replays += 1;
    }

    /// The answer holds this of the host's memory until its end is read.
    pub(crate) fn hold(&self, share: AnswerShare) {
        self.shared.lock().share = Some(share);
    }

    /// Cancels the requests that run for the call.
    pub(crate) fn cancel_requests(&self) {
        self.shared.cancel();
    }

    /// Why nobody waits for the answer any more, if that is so: a call that begins does not go on
    /// then.
    #[must_use]
    pub fn given_up(&self) -> Option<InferError> {
        if self.patience.is_over() { Some(self.late()) } else { self.shared.given_up() }
    }

    /// Ends the answer. Nothing more comes.
    pub fn end(mut self, result: Result<InferResponse, InferError>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<InferResponse, InferError>) {
        self.ended = true;
        let mut result = self.explained(result);
        let mut observer = self.observer.take();
        if let Some(observer) = observer.as_mut() {
            observer.ended(&mut result, &self.times);
        }
        self.shared.end(result);
    }

    /// The result as the client reads it: a call that was cancelled says why it was.
    fn explained(&self, result: Result<InferResponse, InferError>) -> Result<InferResponse, InferError> {
        let was_cancelled = matches!(result, Err(InferError::Engine(RequestFailure::Cancelled)));
        if was_cancelled {
            match self.shared.lock().phase {
                Phase::Overflowed => return Err(InferError::PartsWait { limit: self.shared.bytes_max }),
                Phase::Left => return result,
                Phase::Open | Phase::Ended => {}
            }
        }
        // An answer that came a moment before the clock looked is late all the same.
        if self.patience.is_over() && (result.is_ok() || was_cancelled || matches!(result, Err(InferError::Late(_)))) {
            return Err(self.late());
        }
        if let Err(InferError::Engine(RequestFailure::Late { alone })) = result {
            let (timeout, waited) = (self.patience.timeout(), self.patience.since.elapsed());
            return Err(if alone <= timeout && timeout <= waited { self.late() } else { InferError::given_up(timeout, waited, alone) });
        }
        result
    }

    /// Its time is up: how it was spent.
    fn late(&self) -> InferError {
        let (since, now) = (self.patience.since, Instant::now());
        let waited = self.times.first_task.unwrap_or(now).saturating_duration_since(since);
        let ran = self.times.first_task.map(|begun| now.saturating_duration_since(begun));
        InferError::Late(Lateness { timeout: self.patience.timeout(), waited, ran })
    }
}

impl Drop for AnswerWriter {
    fn drop(&mut self) {
        if !self.ended {
            let left = self.shared.given_up();
            self.finish(Err(left.unwrap_or(InferError::Engine(RequestFailure::Stopped))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: usize) -> Tensor {
        Tensor { name: "y".to_owned(), datatype: cellwright_cell_graph::Datatype::Uint8, shape: vec![bytes], data: vec![0; bytes] }
    }

    fn answer() -> (Answer, Box<AnswerWriter>) {
        Answer::new(1000, Patience::endless())
    }

    #[test]
    fn parts_that_are_read_may_be_any_number() {
        let (answer, writer) = answer();
        for _ in 0..100 {
            writer.part(part(700));
            assert_eq!(answer.next_part(), Some(part(700)));
        }
        writer.part(part(5000));
        assert_eq!(answer.next_part(), Some(part(5000)));
    }

    #[test]
    fn parts_that_are_not_read_end_the_answer() {
        let (answer, writer) = answer();
        writer.part(part(5000));
        assert!(writer.given_up().is_none(), "one part alone is refused");
        writer.part(part(0));
        assert!(matches!(writer.given_up(), Some(InferError::PartsWait { limit: 1000 })));
        assert_eq!([answer.next_part(), answer.next_part()], [Some(part(5000)), None], "what waited is read, and nothing more");
        assert!(matches!(answer.wait(), Err(InferError::PartsWait { limit: 1000 })));
    }

    #[test]
    fn a_thread_waits_no_longer_than_it_should() {
        let (abandoned, now) = (Abandoned::default(), Instant::now());
        let (late, _writer) = answer();
        assert!(matches!(late.wait_until(now, &abandoned), Err(InferError::Late(_))));
        let (unwanted, _writer) = answer();
        let leaving = abandoned.on_drop();
        let leaver = std::thread::spawn(move || drop(leaving));
        let cancelled = unwanted.wait_until(now + Duration::from_secs(600), &abandoned);
        assert!(matches!(cancelled, Err(InferError::Engine(RequestFailure::Cancelled))));
        leaver.join().unwrap();
        let (there, writer) = answer();
        writer.end(Ok(InferResponse::default()));
        assert!(there.wait_until(now, &abandoned).is_ok(), "an answer that is there is taken");
    }

    #[test]
    fn a_reader_of_the_end_alone_keeps_no_parts() {
        let (answer, writer) = answer();
        let shared = writer.shared();
        let waiting = std::thread::spawn(move || answer.wait());
        while !shared.lock().end_only {
            std::thread::yield_now();
        }
        (0..100).for_each(|_| writer.part(part(200)));
        writer.end(Ok(InferResponse::default()));
        assert!(waiting.join().unwrap().is_ok());
    }

    #[test]
    fn an_answer_holds_its_share_until_it_is_dropped() {
        let room = Arc::new("room");
        let (answer, writer) = answer();
        writer.hold(AnswerShare::new(room.clone()));
        writer.end(Ok(InferResponse::default()));
        assert_eq!(Arc::strong_count(&room), 2);
        let item = wait_for(answer.next(), |_| true).flatten();
        drop(answer);
        assert_eq!(Arc::strong_count(&room), 2, "the end keeps it");
        drop(item);
        assert_eq!(Arc::strong_count(&room), 1);
    }

    #[test]
    fn an_answer_without_a_writer_ends() {
        let (answer, writer) = answer();
        drop(writer);
        assert!(matches!(answer.wait(), Err(InferError::Engine(RequestFailure::Stopped))));
    }
}
