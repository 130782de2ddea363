//! How requests end, and what they give back. Each admitted request ends here, exactly once.

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Retention, UnfoldedChain};

use crate::command::Failure;
use crate::core::request::{Block, Chain, Phase};
use crate::core::reserve;
use crate::core::{Core, Ended, Note};
use crate::id::{DomainId, LaneId, RequestId};

impl Core {
    /// Fails a request at the next `settle_failures`, when no change is half done. The first reason
    /// counts.
    pub(crate) fn doom(&mut self, id: RequestId, failure: Failure) {
        self.doomed.push((id, failure));
    }

    /// Fails a request at once.
    pub(crate) fn give_up(&mut self, id: RequestId, failure: Failure) {
        self.doom(id, failure);
        self.settle();
    }

    /// What a policy is to know of a request that ends.
    fn ended(&self, id: RequestId, finished: bool) -> Ended {
        let request = self.request(id);
        let deadline = request.deadline();
        let begun = finished || (deadline.is_some() && request.has_begun());
        Ended { request: id, finished, begun, deadline, submitted: request.submitted() }
    }

    /// Carries out deferred failures, ends and releases.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.doomed.is_empty() || !self.over.is_empty() {
            self.settle_ends();
        }
    }

    fn settle_ends(&mut self) {
        self.settle_failures();
        let mut next = 0;
        while let Some(&id) = self.over.get(next) {
            next += 1;
            if self.request(id).phase == Phase::Leaving {
                self.release_if_free(id);
            } else if self.request(id).pending().1 > 0 {
                self.place_pending(id);
            } else {
                self.finish_if_over(id);
            }
            self.settle_failures();
        }
        self.over.clear();
    }

    #[inline]
    pub(crate) fn settle_failures(&mut self) {
        if !self.doomed.is_empty() {
            self.fail_doomed();
        }
    }

    #[cold]
    fn fail_doomed(&mut self) {
        for index in 0..self.doomed.len() {
            let (id, failure) = self.doomed[index];
            self.fail(id, failure);
        }
        self.doomed.clear();
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        if self.alive(id).is_none() {
            return;
        }
        let ended = self.ended(id, false);
        let request = self.request(id);
        if request.phase == Phase::Waiting {
            let (known, order) = (self.model(request.model), (request.rank, request.order));
            let (class, tenant) = (known.info.class, known.tenant);
            self.requests_waiting -= 1;
            self.class_mut(class).queues.remove(tenant, order);
        }
        if self.leave_policy(id) || ended.deadline.is_some() {
            self.notes.push((self.request(id).model, Note::Ended(ended)));
        }
        for number in self.request(id).chain_numbers() {
            let Some(chain) = self.request(id).chain(number).filter(|chain| !chain.ended()) else { continue };
            for stage in 0..chain.stages() {
                let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(stage)) else { break };
                self.abandon(lane);
            }
        }
        self.out.failed.push((id, failure));
        self.leave(id);
    }

    pub(crate) fn close(&mut self, id: RequestId) {
        if self.alive(id).is_some() {
            self.request_mut(id).open = false;
            self.over.push(id);
        }
    }

    /// A request ends when it will not grow any more and every chain has ended.
    pub(crate) fn finish_if_over(&mut self, id: RequestId) {
        let request = self.request(id);
        let busy = request.live_chains > 0 || request.pending().1 > 0 || request.is_with_policy() || request.moves();
        if request.phase == Phase::Placed && !request.open && !busy {
            self.out.finished.push(id);
            if self.request(id).deadline().is_some() {
                self.notes.push((self.request(id).model, Note::Ended(self.ended(id, true))));
            }
            self.leave(id);
        }
    }

    #[inline]
    fn leave(&mut self, id: RequestId) {
        self.forget_review(id);
        self.requests_alive -= 1;
        self.request_mut(id).phase = Phase::Leaving;
        self.release_if_free(id);
    }

    /// Gives back what a request that has ended held, once no task and no copy in flight names it.
    pub(crate) fn release_if_free(&mut self, id: RequestId) {
        let request = self.request(id);
        if request.flying > 0 || request.moves() || request.phase != Phase::Leaving {
            return;
        }
        let (domain, block, late) = (request.domain, request.block, self.late_lanes.len());
        for number in self.request(id).chain_numbers() {
            let Some(chain) = self.request(id).chain(number).filter(|chain| !chain.gone()) else { continue };
            for stage in 0..chain.stages() {
                let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(stage)) else { break };
                self.release_lane(lane);
            }
        }
        if self.late_lanes.len() > late {
            self.late_blocks.push((domain, block));
        } else {
            self.free_block(domain, block);
        }
        let model = self.request(id).model;
        if let Some(block) = block {
            let (class, tenant) = (self.model(model).info.class, self.model(model).tenant);
            self.class_mut(class).queues.remove_slots(tenant, block.slots.get());
        }
        let Self { requests, spares, .. } = self;
        requests[id.index()].clear(spares);
        self.request_left(model);
    }

    #[inline]
    pub(crate) fn release_lane(&mut self, lane: LaneId) {
        let late = self.lane(lane).placed_in == self.tick as u32;
        let place = self.lane_mut(lane);
        place.limit = 0;
        let progress = std::mem::take(&mut place.progress);
        self.spares.take_progress(progress, &mut self.moments);
        if late {
            self.late_lanes.push(lane);
        } else {
            reserve::in_table(&mut self.free_lanes, 1);
            self.free_lanes.push(lane);
            self.out.released.push(lane);
        }
    }

    pub(crate) fn release_late_lanes(&mut self) {
        reserve::in_table(&mut self.free_lanes, self.late_lanes.len());
        for lane in self.late_lanes.drain(..) {
            self.free_lanes.push(lane);
            self.out.released.push(lane);
        }
        while let Some((domain, block)) = self.late_blocks.pop() {
            self.free_block(domain, block);
        }
    }

    #[inline]
    pub(crate) fn free_block(&mut self, domain: DomainId, block: Option<Block>) {
        let (Some(block), Some(Some(home))) = (block, self.domains.get_mut(domain.index())) else { return };
        if home.life == block.life {
            home.arena.free(block.start, block.slots.get());
            self.freed = true;
        }
    }
}

/// Growing requests: chains give back their slots one by one.
impl Core {
    /// Notes which chains later growths may refer to; others may go.
    pub(crate) fn keep_for_later(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        if !self.request(id).grows() {
            return;
        }
        let kept = graph.next.as_ref().map_or(&[][..], |next| &next.keep);
        let numbers = self.request(id).chain_numbers();
        for number in numbers.clone() {
            if let Some(chain) = self.request_mut(id).chain_mut(number) {
                chain.kept = kept.binary_search(&number).is_ok();
            }
        }
        for number in numbers {
            self.free_chain_if_unread(id, number);
        }
        self.forget_gone_chains(id);
    }

    /// A chain ended: what it read may go, and so may it.
    pub(crate) fn stop_reading(&mut self, id: RequestId, number: u32) {
        if !self.request(id).grows() {
            return;
        }
        let reads = self
            .request_mut(id)
            .chain_mut(number)
            .and_then(Chain::more_mut)
            .map(|more| std::mem::take(&mut more.reads))
            .unwrap_or_default();
        for read in reads {
            if let Some(more) = self.request_mut(id).chain_mut(read).and_then(Chain::more_mut) {
                more.read_by -= 1;
            }
            self.free_chain_if_unread(id, read);
        }
        self.free_chain_if_unread(id, number);
    }

    pub(crate) fn free_chain_if_unread(&mut self, id: RequestId, number: u32) {
        let mut next = Some(number);
        while let Some(number) = next {
            self.free_unread(id, number);
            // The chain that continues it could not go before it.
            next = self.request(id).chain(number).filter(|chain| chain.gone()).and_then(Chain::continued_by);
        }
    }

    fn free_unread(&mut self, id: RequestId, number: u32) {
        let request = self.request(id);
        let Some(chain) = request.chain(number).filter(|_| request.grows() && request.taken().is_none()) else { return };
        // Chains of a series are freed in order. The last one gives back the slots.
        let continued = request.graph_of(number).and_then(|graph| request.chain(graph.continues?));
        if continued.is_some_and(|continued| !continued.gone()) {
            return;
        }
        let lanes = || (0..chain.stages()).map(|stage| self.lane(chain.lane(stage)));
        let flying = lanes().any(|lane| lane.flying > 0 || lane.placed_in == self.tick as u32);
        if chain.gone() || !chain.ended() || chain.kept || chain.is_read() || flying {
            return;
        }
        let base = request.block.map_or(0, |block| block.start);
        for stage in 0..chain.stages() {
            let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(stage)) else { return };
            let (slot, slots) = (self.lane(lane).slot, if self.goes_on(id, number, stage) { 0 } else { self.slots_of(lane) });
            let rare = self.request_mut(id).rare_if_any();
            if let Some(reservation) = rare.and_then(|rare| rare.reservation.as_mut()).filter(|_| slots > 0) {
                reservation.free(slot.0 - base, slots);
            }
            self.release_lane(lane);
        }
        if let Some(chain) = self.request_mut(id).chain_mut(number) {
            chain.go();
        }
        self.check_put_off(id);
    }

    /// Whether a chain that continues this one has the slots of a stage.
    fn goes_on(&self, id: RequestId, number: u32, stage: u32) -> bool {
        let request = self.request(id);
        let (chain, graph) = (request.chain(number), request.graph_of(number));
        let is_ring = |graph: &UnfoldedChain| matches!(graph.stages[stage as usize].retention, Retention::Ring { .. });
        chain.is_some_and(|chain| chain.continued_by().is_some()) && graph.is_some_and(is_ring)
    }

    /// Retries a pending growth: there may be room now, or no chain left to wait for.
    pub(crate) fn check_put_off(&mut self, id: RequestId) {
        if self.request(id).pending().1 > 0 {
            self.over.push(id);
        }
    }

    /// Forgets released chains, so that a session may last forever.
    fn forget_gone_chains(&mut self, id: RequestId) {
        let Self { requests, spares, .. } = self;
        let request = &mut requests[id.index()];
        while let Some(mut gone) = request.pop_gone_chain(spares) {
            spares.take_links(&mut gone);
        }
        request.forget_gone_growths();
    }
}
