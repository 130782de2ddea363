//! The engine's end of a request.

use std::sync::Arc;

use cellwright_engine::{RequestFailure, RequestTimes, Sink, Value};

use super::{Active, lock};
use crate::error::InferError;
use crate::outputs::Outputs;
use crate::reply::Client;

/// Brings values on the engine's thread.
pub(super) struct RequestSink {
    pub(super) active: Arc<Active>,
}

impl RequestSink {
    fn changed(&self, change: impl FnOnce(&mut Outputs)) {
        let mut front = lock(&self.active.front);
        change(&mut front.outputs);
        front.send_parts();
        self.active.go_on(front);
    }

    fn end(&self) -> Option<(Outputs, Box<dyn Client>)> {
        let ended = lock(&self.active.front).end();
        self.active.room.notify_all();
        ended
    }
}

impl Sink for RequestSink {
    fn value(&mut self, value: Value<'_>) {
        self.changed(|outputs| outputs.value(value));
    }

    fn ended(&mut self, chain: u32, executed: u32) {
        self.changed(|outputs| outputs.ended(chain, executed));
    }

    fn finished(self: Box<Self>, times: RequestTimes) {
        if let Some((outputs, mut client)) = self.end() {
            client.ran(&times);
            self.active.end(outputs, client);
        }
    }

    fn failed(self: Box<Self>, failure: RequestFailure, times: RequestTimes) {
        if failure == RequestFailure::WorkerLost && self.active.is_to_be_replayed(times) {
            return;
        }
        if let Some((outputs, mut client)) = self.end() {
            drop(outputs);
            client.ran(&times);
            client.end(Err(InferError::Engine(failure)));
        }
    }
}
