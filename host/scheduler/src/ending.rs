//! Who is done, who is given up, and what they give back. Each admitted request ends here, exactly once.

use cellwright_cell_graph::UnfoldedGrowth;

use crate::command::Failure;
use crate::id::{DomainId, LaneId, RequestId};
use crate::request::{Block, Phase};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// The request will be given up once what is being changed is whole again. The first reason counts.
    pub(crate) fn doom(&mut self, id: RequestId, failure: Failure) {
        self.doomed.push((id, failure));
    }

    /// Carries out what was put off: failures, ends, releases.
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

    fn fail_doomed(&mut self) {
        for index in 0..self.doomed.len() {
            let (id, failure) = self.doomed[index];
            self.fail(id, failure);
        }
        self.doomed.clear();
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        let Some(request) = self.alive(id) else { return };
        let waited = request.phase == Phase::Waiting;
        if waited {
            let (class, tenant, order) = (request.class, self.model(request.model).tenant, (request.rank, request.order));
            self.requests_waiting -= 1;
            self.class_mut(class).waiting.leave(tenant, order);
        }
        self.leave_bucket(id);
        for index in 0..self.request(id).chains.len() {
            let chain = &self.request(id).chains[index];
            if chain.ended {
                continue;
            }
            for stage in 0..chain.stages() {
                let lane = self.request(id).chains[index].lane(stage);
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
        let busy = request.live_chains > 0
            || !request.pending.is_empty()
            || request.batch.is_some()
            || request.bucket.is_some()
            || request.moving.is_some();
        if request.phase == Phase::Placed && !request.open && !busy {
            self.out.finished.push(id);
            self.leave(id);
        }
    }

    fn leave(&mut self, id: RequestId) {
        self.forget_deadline(id);
        self.requests_alive -= 1;
        self.request_mut(id).phase = Phase::Leaving;
        self.release_if_free(id);
    }

    /// Gives back what a request that has ended held, once no task and no copy in flight names it.
    pub(crate) fn release_if_free(&mut self, id: RequestId) {
        let request = self.request(id);
        if request.flying > 0 || request.moving.is_some() || request.phase != Phase::Leaving {
            return;
        }
        let (domain, block, late) = (request.domain, request.block, self.late_lanes.len());
        for index in 0..self.request(id).chains.len() {
            let chain = &self.request(id).chains[index];
            for stage in 0..if chain.gone { 0 } else { chain.stages() } {
                let lane = self.request(id).chains[index].lane(stage);
                self.release_lane(lane);
            }
        }
        if self.late_lanes.len() > late {
            self.late_blocks.push((domain, block));
        } else {
            self.free_block(domain, block);
        }
        let (model, class) = (self.request(id).model, self.request(id).class);
        if let Some(block) = block {
            let tenant = self.model(model).tenant;
            self.class_mut(class).waiting.free(tenant, block.slots);
        }
        let Self { requests, spares, .. } = self;
        let request = &mut requests[id.index()];
        request.chains.iter_mut().for_each(|chain| spares.take_links(chain));
        request.clear();
        self.request_left(model);
    }

    pub(crate) fn release_lane(&mut self, lane: LaneId) {
        let late = self.lane(lane).placed_in == self.tick as u32;
        let place = self.lane_mut(lane);
        place.limit = 0;
        let progress = std::mem::take(&mut place.progress);
        self.spares.take_progress(progress);
        if late {
            self.late_lanes.push(lane);
        } else {
            self.free_lanes.push(lane);
            self.out.released.push(lane);
        }
    }

    pub(crate) fn release_late_lanes(&mut self) {
        for lane in self.late_lanes.drain(..) {
            self.free_lanes.push(lane);
            self.out.released.push(lane);
        }
        while let Some((domain, block)) = self.late_blocks.pop() {
            self.free_block(domain, block);
        }
    }

    pub(crate) fn free_block(&mut self, domain: DomainId, block: Option<Block>) {
        let (Some(block), Some(Some(home))) = (block, self.domains.get_mut(domain.index())) else { return };
        if home.life == block.life {
            home.arena.free(block.start, block.slots);
            self.freed = true;
        }
    }
}

/// Growing requests: chains give back their slots one by one.
impl Scheduler {
    /// Notes which chains later growths may refer to; others may go.
    pub(crate) fn keep_for_later(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        if self.request(id).reservation.is_none() {
            return;
        }
        let kept = graph.next.as_ref().map_or(&[][..], |next| &next.keep);
        let first = self.request(id).chains_before;
        for number in first..first + self.request(id).chains.len() as u32 {
            if let Some(chain) = self.request_mut(id).chain_mut(number) {
                chain.kept = kept.binary_search(&number).is_ok();
            }
        }
        for number in first..first + self.request(id).chains.len() as u32 {
            self.free_chain_if_unread(id, number);
        }
        self.forget_gone_chains(id);
    }

    /// A chain ended: what it read may go, and so may it.
    pub(crate) fn stop_reading(&mut self, id: RequestId, number: u32) {
        if self.request(id).reservation.is_none() {
            return;
        }
        let reads = self
            .request_mut(id)
            .chain_mut(number)
            .and_then(|chain| chain.links.as_mut()?.reading.as_mut())
            .map(|reading| std::mem::take(&mut reading.reads))
            .unwrap_or_default();
        for read in reads {
            if let Some(reading) = self.request_mut(id).chain_mut(read).and_then(|chain| chain.links.as_mut()?.reading.as_mut()) {
                reading.readers -= 1;
            }
            self.free_chain_if_unread(id, read);
        }
        self.free_chain_if_unread(id, number);
    }

    pub(crate) fn free_chain_if_unread(&mut self, id: RequestId, number: u32) {
        let request = self.request(id);
        let Some(chain) = request.chain(number).filter(|_| request.reservation.is_some() && request.batch.is_none()) else { return };
        let lanes = || (0..chain.stages()).map(|stage| self.lane(chain.lane(stage)));
        let flying = lanes().any(|lane| lane.flying > 0 || lane.placed_in == self.tick as u32);
        if chain.gone || !chain.ended || chain.kept || chain.is_read() || flying {
            return;
        }
        let base = request.block.map_or(0, |block| block.start);
        let growth = chain.growth - request.growths_before;
        for stage in 0..chain.stages() {
            let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(stage)) else { return };
            let (slot, slots) = (self.lane(lane).slot, self.slots_of(lane));
            if let Some(reservation) = self.request_mut(id).reservation.as_mut().filter(|_| slots > 0) {
                reservation.free(slot.0 - base, slots);
            }
            self.release_lane(lane);
        }
        let request = self.request_mut(id);
        request.growths[growth as usize].chains_held -= 1;
        if let Some(chain) = request.chain_mut(number) {
            chain.gone = true;
        }
    }

    /// Forgets chains that are gone, so that a session may last for ever.
    fn forget_gone_chains(&mut self, id: RequestId) {
        let Self { requests, spares, .. } = self;
        let request = &mut requests[id.index()];
        while request.chains.front().is_some_and(|chain| chain.gone) {
            if let Some(mut gone) = request.chains.pop_front() {
                spares.take_links(&mut gone);
            }
            request.chains_before += 1;
        }
        while request.growths.len() > 1 && request.growths[0].chains_held == 0 {
            request.growths.pop_front();
            request.growths_before += 1;
        }
    }
}
