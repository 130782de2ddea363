//! Requests that are offered to policies and taken by them.
//!
//! A policy that takes requests is offered each growth once it is placed. The policy takes the
//! growth as a whole for one worker. The growth runs there until nothing of it is left. Until then
//! its request does not end, grow or move.

use crate::core::queues::Key;
use crate::core::request::{Phase, Request};
use crate::core::{Core, Note};
use crate::id::{ModelId, RequestId, Time, WorkerId};
use crate::policy::Takes;

/// A growth of a request that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) request: RequestId,
    pub(crate) rank: u32,
    /// Position in the order of all submissions. It differs for a later request with the same id.
    pub(crate) order: u64,
    pub(crate) growth: u32,
    /// When it was offered.
    pub(crate) since: Time,
}

impl Member {
    /// Its age, to compare with others'.
    pub(crate) const fn key(&self) -> Key {
        Key { rank: self.rank, time: self.since, order: self.order, chain: 0, stage: 0, step: 0 }
    }
}

impl Core {
    /// Offers a growth to its policy.
    pub(super) fn offer(&mut self, id: RequestId, growth: u32) {
        let Request { model, rank, order, .. } = *self.request(id);
        self.rare_mut(id).offered = Some(growth);
        self.model_mut(model).ready += 1;
        self.touched.push(model);
        self.notes.push((model, Note::Offered(Member { request: id, rank, order, growth, since: self.now })));
    }

    /// Withdraws a failed request from its policy. Whether it was offered or taken.
    pub(super) fn leave_policy(&mut self, id: RequestId) -> bool {
        let request = self.request_mut(id);
        let Some(rare) = request.rare_if_any() else { return false };
        let (offered, taken) = (rare.offered.take(), rare.taken.take());
        if offered.is_none() && taken.is_none() {
            return false;
        }
        let model = request.model;
        self.model_mut(model).ready -= 1;
        self.touched.push(model);
        if let Some(worker) = taken {
            self.count_taken(worker, model, false);
        }
        true
    }

    /// Takes a request for a worker.
    pub(super) fn take(&mut self, id: RequestId, worker: WorkerId) {
        let rare = self.rare_mut(id);
        rare.taken = Some(worker);
        let growth = rare.offered.take();
        let model = self.request(id).model;
        self.count_taken(worker, model, true);
        if self.model(model).takes == Takes::Requests
            && let Some(graph) = growth.and_then(|growth| self.request(id).growth(growth)).cloned()
        {
            self.start_growth(id, &graph);
        }
    }

    /// Releases a taken growth of which nothing is left. Its request ends or grows.
    pub(super) fn release(&mut self, id: RequestId) {
        let Some(worker) = self.rare_mut(id).taken.take() else { return };
        let (model, numbers) = (self.request(id).model, self.request(id).chain_numbers());
        self.count_taken(worker, model, false);
        self.model_mut(model).ready -= 1;
        self.touched.push(model);
        for number in numbers {
            self.free_chain_if_unread(id, number);
        }
        self.place_pending(id);
    }

    /// Counts how many requests of which model are taken for a worker.
    fn count_taken(&mut self, worker: WorkerId, model: ModelId, one_more: bool) {
        let Some(taken) = self.workers.get_mut(worker.index()).and_then(Option::as_mut).map(|state| &mut state.taken) else { return };
        match taken.binary_search_by_key(&model, |(model, _)| *model) {
            Ok(at) if one_more => taken[at].1 += 1,
            Ok(at) if taken[at].1 > 1 => taken[at].1 -= 1,
            Ok(at) => drop(taken.remove(at)),
            Err(at) if one_more => taken.insert(at, (model, 1)),
            Err(_) => {}
        }
    }

    /// The next model, after one, of which requests are taken for a worker.
    pub(crate) fn next_taker(&self, worker: WorkerId, after: Option<ModelId>) -> Option<ModelId> {
        let mut models = self.worker(worker)?.taken.iter().map(|(model, _)| *model);
        models.find(|model| after.is_none_or(|after| *model > after))
    }

    /// Whether a growth is taken for a worker, and its request has not ended.
    pub(super) fn is_taken_for(&self, id: RequestId, worker: WorkerId) -> bool {
        self.requests.get(id.index()).is_some_and(|request| request.phase == Phase::Placed && request.taken() == Some(worker))
    }
}

/// Reviews.
impl Core {
    /// Schedules a review of a request, if it has not ended.
    pub(crate) fn review_at(&mut self, id: RequestId, at: Time) {
        if self.alive(id).is_some() {
            self.forget_review(id);
            self.rare_mut(id).review = at;
            self.reviews.insert((at, id));
        }
    }

    pub(super) fn forget_review(&mut self, id: RequestId) {
        let Some(rare) = self.requests[id.index()].rare_if_any() else { return };
        let at = std::mem::take(&mut rare.review);
        if at > Time(0) {
            self.reviews.remove(&(at, id));
        }
    }

    /// The next request that is to be reviewed now, and its model.
    pub(crate) fn next_review(&mut self) -> Option<(ModelId, RequestId)> {
        let id = self.reviews.first().filter(|(at, _)| *at <= self.now)?.1;
        self.forget_review(id);
        Some((self.request(id).model, id))
    }
}
