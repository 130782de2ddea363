//! A request whose device is lost begins again, once, on what is left of the devices.
//!
//! It is unfolded anew from what it brought along, so that nothing has to be kept for it but that, which is counted until its call ends in any case. Workers
//! of one host give the same bits and plugins know no clock and no chance, so that its answer is the one that it would have had. What was sent to its client
//! cannot be taken back, and what a session was told, and when, is not kept: those end with the device, as does what a second device is lost under, lest a
//! request that devices do not survive takes all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cellwright_engine::{RequestFailure, RequestTensors, RequestTimes, Urgency};
use cellwright_plugin_runtime::RequestView;

use super::growing::{Unfolded, unfold};
use super::{Active, lock};
use crate::error::InferError;
use crate::outputs::Outputs;
use crate::reply::Client;

/// What a request begins with, and can begin with again.
pub(super) struct Origin {
    /// Holds what it brought along, also where its plugin has said that it needs that no more.
    pub(super) view: Arc<RequestView>,
    pub(super) urgency: Urgency,
}

/// Who waits for a request whose device is lost until it begins again, and what the engine told of it. A client of whom nobody takes care any more
/// hears that the host has stopped.
pub(super) struct Lost(Option<(Box<dyn Client>, RequestTimes)>);

impl Lost {
    pub(super) fn end(mut self, error: InferError) {
        self.tell(error);
    }

    fn tell(&mut self, error: InferError) {
        if let Some((mut client, times)) = self.0.take() {
            client.ran(&times);
            client.end(Err(error));
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
        let Some(client) = front.client.take() else { return Err(RequestFailure::WorkerLost) };
        named.lost = Some(Lost(Some((client, times))));
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
        tracing::debug!(model = self.model.name(), "a request that lost its device does not begin again: {failed}");
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
        (plugin.watch, plugin.resumes) = (growth.next.clone(), 0);
        drop(plugin);
        let mut front = lock(&self.front);
        // Until here a cancellation ends it; from here on the engine is told of one, whatever it calls the request.
        let lost = lock(&self.named).lost.take();
        let Some((client, times)) = lost.and_then(|mut lost| lost.0.take()) else { return Ok(()) };
        front.outputs = outputs;
        (front.closed, front.told_over, front.replayed) = (growth.next.is_none(), false, Some(times));
        front.client = Some(client);
        tracing::debug!(model = self.model.name(), "a request that lost its device begins again");
        // The engine's thread waits for the front with whatever comes of it.
        let submitted = self.submit(&serving, origin.urgency, growth, tensors);
        if submitted.is_err() {
            let client = front.client.take();
            lock(&self.named).lost = client.map(|client| Lost(Some((client, times))));
        }
        Ok(submitted?)
    }
}
