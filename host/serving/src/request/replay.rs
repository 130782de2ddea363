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

use super::front::Front;
use super::growing::{Unfolded, unfold};
use super::{Active, lock};
use crate::error::InferError;

/// What a request begins with, and can begin with again.
pub(super) struct Origin {
    /// Holds what it brought along, also where its plugin has said that it needs that no more.
    pub(super) view: Arc<RequestView>,
    pub(super) urgency: Urgency,
}

impl Active {
    /// Lets a request that was lost begin again; false if it cannot. On the engine's thread.
    pub(super) fn is_to_be_replayed(self: &Arc<Self>, times: RequestTimes) -> bool {
        let mut front = lock(&self.front);
        if !self.may_begin_again(&front) {
            return false;
        }
        front.lost = Some(Box::new(times));
        // A call of the plugin that is under way ends first.
        self.go_on(front);
        true
    }

    fn may_begin_again(&self, front: &Front) -> bool {
        self.origin.is_some() && front.client.is_some() && !front.replayed && !front.sent
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
        let cancelled = matches!(failed, InferError::Engine(RequestFailure::Cancelled));
        self.fail(if cancelled { failed } else { InferError::Engine(RequestFailure::WorkerLost) });
    }

    fn begin_again(self: &Arc<Self>) -> Result<(), InferError> {
        const LOST: InferError = InferError::Engine(RequestFailure::WorkerLost);
        let (Some(origin), Some(serving)) = (&self.origin, self.serving.upgrade()) else { return Err(LOST) };
        if lock(&self.named).cancelled {
            return Err(InferError::Engine(RequestFailure::Cancelled));
        }
        let taking = {
            let mut front = lock(&self.front);
            // Of a call of the plugin that was under way something may have been sent.
            if !self.may_begin_again(&front) {
                return Err(LOST);
            }
            let outputs = front.outputs.take();
            drop(front);
            outputs.anew()
        };
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
        let times = {
            let mut front = lock(&self.front);
            front.outputs = outputs;
            (front.closed, front.told_over, front.replayed) = (growth.next.is_none(), false, true);
            if let Some(client) = front.client.as_mut() {
                client.replayed();
            }
            front.lost.take()
        };
        tracing::debug!(model = self.model.name(), "a request that lost its device begins again");
        let submitted = self.submit(&serving, origin.urgency, growth, tensors);
        if submitted.is_err() {
            lock(&self.front).lost = times;
        }
        Ok(submitted?)
    }
}
