//! Replay: a request whose device is lost begins again, once, on the devices that are left.
//!
//! The scheduler and the engine know nothing of it: to them the request has failed, and a new one
//! is submitted. The request is unfolded anew from the tensors that it brought along, which count
//! until its call ends in any case. The answer is the one that it would have had, because all
//! workers of a host give the same bits and plugins know neither clock nor randomness. Both runs of
//! the plugin count against one time limit, and figures are told once, of both runs together.
//!
//! Three kinds of requests are not replayed: those that have sent parts to their client, sessions,
//! and requests that have lost a device before. So a request that no device survives takes two at
//! most.
//!
//! Between the two runs the engine has no name for the request. Its client stands where a deadline
//! or a cancellation finds it and ends it at once. A plugin call that is still under way goes
//! nowhere.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cellwright_engine::{RequestFailure, RequestTensors, RequestTimes, Urgency};
use cellwright_plugin_runtime::RequestView;

use super::growing::{Unfolded, unfold};
use super::{Active, lock};
use crate::error::InferError;
use crate::outputs::Outputs;
use crate::recipient::Recipient;

/// What a request begins with, and can begin with again.
pub(super) struct Origin {
    /// Holds what it brought along, also where its plugin has said that it needs that no more.
    pub(super) view: Arc<RequestView>,
    pub(super) urgency: Urgency,
}

/// Who waits for a request whose device is lost until it begins again, and what the engine told of it. A client of whom nobody takes care any more
/// hears that the host has stopped.
pub(super) struct Lost(Option<(Recipient, RequestTimes)>);

impl Lost {
    pub(super) fn end(mut self, error: InferError) {
        self.tell(error);
    }

    fn tell(&mut self, error: InferError) {
        if let Some((mut recipient, times)) = self.0.take() {
            recipient.ran(&times);
            recipient.end(Err(error));
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.tell(InferError::Engine(RequestFailure::Stopped));
    }
}

impl Active {
    /// A request that was lost is to begin again: until then whoever waits for it stands aside, where a cancellation finds them. On the engine's thread.
    ///
    /// # Errors
    /// Why it ends instead.
    pub(super) fn stand_aside(self: &Arc<Self>, times: RequestTimes) -> Result<(), RequestFailure> {
        let mut front = lock(&self.front);
        let mut named = lock(&self.named);
        if named.cancelled {
            return Err(RequestFailure::Cancelled);
        }
        if self.origin.is_none() || front.replayed.is_some() || front.sent {
            return Err(RequestFailure::WorkerLost);
        }
        let Some(recipient) = front.recipient.take() else { return Err(RequestFailure::WorkerLost) };
        named.lost = Some(Lost(Some((recipient, times))));
        drop(named);
        front.lost = true;
        // A call of the plugin that is under way ends first; what it sends goes nowhere.
        self.go_on(front);
        Ok(())
    }

    /// All that has arrived for a request that was lost: what comes to begin it again finds nothing to do.
    pub(super) fn let_go(&self) -> Outputs {
        let mut front = lock(&self.front);
        front.lost = false;
        front.outputs.take()
    }

    /// On a plugin thread, and no other has the request: begins again, or ends as lost.
    pub(super) fn replay(self: Arc<Self>) {
        let failed = match catch_unwind(AssertUnwindSafe(|| self.begin_again())) {
            Ok(Ok(())) => {
                let mut front = lock(&self.front);
                front.calling = false;
                return self.go_on(front);
            }
            Ok(Err(error)) => error,
            Err(_) => InferError::Broken { plugin: self.model.plugin_name().to_owned() },
        };
        tracing::debug!(model = self.model.name(), "a request whose worker was lost cannot restart: {failed}");
        // Whatever stood in its way, all that is new to its client is the loss.
        let cancelled = lock(&self.named).cancelled;
        self.fail(InferError::Engine(if cancelled { RequestFailure::Cancelled } else { RequestFailure::WorkerLost }));
    }

    fn begin_again(self: &Arc<Self>) -> Result<(), InferError> {
        const LOST: InferError = InferError::Engine(RequestFailure::WorkerLost);
        let outputs = self.let_go();
        if lock(&self.named).lost.is_none() {
            // It has ended meanwhile.
            return Ok(());
        }
        let (Some(origin), Some(serving)) = (&self.origin, self.serving.upgrade()) else { return Err(LOST) };
        let taking = outputs.anew();
        let tensors = origin.view.tensors.iter().map(|tensor| tensor.contents.clone()).collect();
        let tensors = RequestTensors { first: 0, tensors };
        let mut plugin = lock(&self.plugin);
        let time = plugin.time.clone();
        // What the plugin takes for the same request twice is bounded together.
        let spending = time.spend(&self.model);
        let Unfolded { unfolding, growth, outputs } = unfold(&self.model, &origin.view, &tensors, taking)?;
        drop(spending);
        time.check(&self.model)?;
        (plugin.unfolding, plugin.tensors, plugin.view) = (unfolding, tensors.clone(), origin.view.clone());
        plugin.resumes = 0;
        plugin.follow(&growth);
        drop(plugin);
        let mut front = lock(&self.front);
        // Until here a cancellation ends it; from here on the engine is told of one, whatever it calls the request.
        let lost = lock(&self.named).lost.take();
        let Some((recipient, times)) = lost.and_then(|mut lost| lost.0.take()) else { return Ok(()) };
        front.outputs = outputs;
        (front.closed, front.growing, front.told_over, front.replayed) = (growth.next.is_none(), 0, false, Some(times));
        front.recipient = Some(recipient);
        tracing::debug!(model = self.model.name(), "a request whose worker was lost restarts");
        // The engine's thread waits for the front with whatever comes of it.
        let submitted = self.submit(&serving, origin.urgency, growth, tensors);
        if submitted.is_err() {
            let recipient = front.recipient.take();
            lock(&self.named).lost = recipient.map(|recipient| Lost(Some((recipient, times))));
        }
        Ok(submitted?)
    }
}
