//! Who waits for the answers of a benchmark: notes when they come, and counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestFailure, RequestTimes, Sink, Value};
use cellwright_protocol::InferResponse;
use cellwright_serving::{Client, InferError};

use super::figures::Times;

/// What all requests of a run share.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) in_flight: AtomicUsize,
    pub(crate) answered: AtomicU64,
    pub(crate) failed: AtomicU64,
    latencies: Mutex<Times>,
    first_failure: Mutex<Option<String>>,
}

impl Tally {
    pub(crate) fn new() -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            in_flight: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            latencies: Mutex::new(Times::new()?),
            first_failure: Mutex::new(None),
        }))
    }

    /// A request that is about to be submitted and was meant to arrive at `intended`; its latency counts if `measured`.
    pub(crate) fn expect(self: &Arc<Self>, intended: Instant, measured: bool) -> Waiting {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Waiting { tally: Arc::clone(self), intended, measured, ended: false }
    }

    pub(crate) fn latencies(&self) -> Times {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn first_failure(&self) -> Option<String> {
        self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One request's client.
#[derive(Debug)]
pub(crate) struct Waiting {
    tally: Arc<Tally>,
    intended: Instant,
    measured: bool,
    ended: bool,
}

impl Waiting {
    fn settle(&mut self, result: Result<(), String>) {
        self.ended = true;
        match result {
            Ok(()) => {
                if self.measured {
                    self.tally.latencies.lock().unwrap_or_else(PoisonError::into_inner).record(self.intended.elapsed());
                }
                self.tally.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(failure) => {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                self.tally.first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            }
        }
        self.tally.in_flight.fetch_sub(1, Ordering::Release);
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

/// Through the whole of serving.
impl Client for Waiting {
    fn part(&mut self, _part: Tensor) {}

    fn end(mut self: Box<Self>, result: Result<InferResponse, InferError>) {
        self.settle(result.map(drop).map_err(|error| error.to_string()));
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
