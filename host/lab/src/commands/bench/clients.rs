//! Who waits for the answers of a benchmark: notes when they come, and counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use cellwright_engine::{RequestFailure, RequestTimes, Sink, Value};
use cellwright_protocol::InferResponse;
use cellwright_serving::{Answer, CallTimes, InferError, Observer};

use super::figures::Times;

/// What all requests of a run share.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) in_flight: AtomicUsize,
    /// Who offers the load, and how many requests must be in flight for it to be woken; none: `usize::MAX`.
    offering: Thread,
    wake_at: AtomicUsize,
    /// Apart from what whoever offers the load changes with every request, which whoever answers would have to wait for each time.
    pub(crate) answers: Box<Answers>,
}

/// What came of requests.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) answered: AtomicU64,
    pub(crate) failed: AtomicU64,
    latencies: Mutex<Times>,
    first_failure: Mutex<Option<String>>,
}

impl Tally {
    /// For the calling thread, which is to offer the load.
    pub(crate) fn new() -> anyhow::Result<Arc<Self>> {
        let answers = Answers {
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            latencies: Mutex::new(Times::new()?),
            first_failure: Mutex::new(None),
        };
        Ok(Arc::new(Self {
            in_flight: AtomicUsize::new(0),
            offering: thread::current(),
            wake_at: AtomicUsize::new(usize::MAX),
            answers: Box::new(answers),
        }))
    }

    /// A request that is about to be submitted and was meant to arrive at `intended`; its latency counts if `measured`.
    pub(crate) fn expect(self: &Arc<Self>, intended: Instant, measured: bool) -> Waiting {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Waiting { tally: Arc::clone(self), intended, measured, ended: false }
    }

    /// Returns when fewer than so many requests are in flight. If it has to wait, it waits until a sixteenth of them has been answered: whoever wakes
    /// for each answer takes the processor from what is measured.
    pub(crate) fn wait_for_room(&self, in_flight_max: usize) {
        if self.in_flight.load(Ordering::SeqCst) < in_flight_max {
            return;
        }
        let enough = in_flight_max.saturating_sub((in_flight_max / 16).max(1));
        self.wake_at.store(enough, Ordering::SeqCst);
        while self.in_flight.load(Ordering::SeqCst) > enough {
            thread::park();
        }
        self.wake_at.store(usize::MAX, Ordering::SeqCst);
    }

    /// A request is answered, well or not.
    fn leave(&self) {
        // Numbers only fall while the thread that offers the load waits, so that one of them is the one it waits for. Whichever of this and its look
        // at the number comes second sees the other.
        let left = self.in_flight.fetch_sub(1, Ordering::SeqCst) - 1;
        if left == self.wake_at.load(Ordering::SeqCst) {
            self.offering.unpark();
        }
    }

    pub(crate) fn latencies(&self) -> Times {
        self.answers.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn first_failure(&self) -> Option<String> {
        self.answers.first_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One request's client.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) tally: Arc<Tally>,
    intended: Instant,
    measured: bool,
    ended: bool,
}

impl Waiting {
    fn settle(&mut self, result: Result<(), String>) {
        self.ended = true;
        let answers = &self.tally.answers;
        match result {
            Ok(()) => {
                if self.measured {
                    answers.latencies.lock().unwrap_or_else(PoisonError::into_inner).record(self.intended.elapsed());
                }
                answers.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(failure) => {
                answers.failed.fetch_add(1, Ordering::Relaxed);
                answers.first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            }
        }
        self.tally.leave();
    }
}

/// A request that was refused, or forgotten, has failed too.
impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended {
            self.settle(Err("the request was refused".to_owned()));
        }
    }
}

/// One request's client through the whole of serving. The answer is kept until its end, because dropping it would cancel the call.
pub(crate) struct Called {
    pub(crate) waiting: Waiting,
    pub(crate) _answer: Answer,
}

impl Observer for Called {
    fn ended(&mut self, result: &mut Result<InferResponse, InferError>, _: &CallTimes) {
        self.waiting.settle(result.as_ref().map(drop).map_err(ToString::to_string));
    }
}

/// Straight from the engine.
impl Sink for Waiting {
    fn value(&mut self, _value: Value<'_>) {}

    fn ended(&mut self, _chain: u32, _executed: u32) {}

    fn finished(mut self: Box<Self>, _times: RequestTimes) {
        self.settle(Ok(()));
    }

    fn failed(mut self: Box<Self>, failure: RequestFailure, _times: RequestTimes) {
        self.settle(Err(failure.to_string()));
    }
}
