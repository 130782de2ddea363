//! The engine's end of a request.

use std::sync::Arc;

use cellwright_engine::{RequestFailure, RequestTimes, Sink, Value};

use super::{Active, lock};
use crate::error::InferError;
use crate::outputs::Outputs;
use crate::recipient::Recipient;

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

    /// Its client has heard how it fared, and hears of its end next.
    fn end(&self, times: RequestTimes) -> Option<(Outputs, Recipient)> {
        let (ended, first) = {
            let mut front = lock(&self.active.front);
            (front.end(), front.replayed)
        };
        let (outputs, mut recipient) = ended?;
        if first.is_some() && times.first_task.is_some() {
            recipient.replayed();
        }
        recipient.ran(&first.map_or(times, |first| times.after(&first)));
        Some((outputs, recipient))
    }
}

impl Sink for RequestSink {
    fn value(&mut self, value: Value<'_>) {
        self.changed(|outputs| outputs.value(value));
    }

    fn ended(&mut self, chain: u32, executed: u32) {
        self.changed(|outputs| outputs.ended(chain, executed));
    }

    fn placed(&mut self) {
        let mut front = lock(&self.active.front);
        front.growing = front.growing.saturating_sub(1);
        self.active.go_on(front);
    }

    fn finished(self: Box<Self>, times: RequestTimes) {
        if let Some((outputs, recipient)) = self.end(times) {
            self.active.end(outputs, recipient);
        }
    }

    fn failed(self: Box<Self>, failure: RequestFailure, times: RequestTimes) {
        let failure = match failure {
            RequestFailure::WorkerLost => match self.active.stand_aside(times) {
                Ok(()) => return,
                Err(failure) => failure,
            },
            failure => failure,
        };
        if let Some((outputs, recipient)) = self.end(times) {
            drop(outputs);
            recipient.end(Err(InferError::Engine(failure)));
        }
    }
}
