//! Admission: which waiting request gets slots, in which domain, and when.
//!
//! A running request holds all the slots that it will ever need. So no request waits for slots
//! while it holds some, and there is no deadlock over slots. A request that may grow reserves its
//! largest extent at once, and its growths are placed inside. A growth that finds no room there
//! waits for chains of its own request, which never wait for the growth.
//!
//! Requests that do not fit now wait in their tenant's queue (see `admission_queues`).

use std::num::NonZeroU32;
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Delivery, Dependency, Grouping, UnfoldedChain};

use crate::command::{Failure, Placement};
use crate::core::Core;
use crate::core::arena::Claimant;
use crate::core::fleet::{Domain, Model};
use crate::core::lane::{Joining, Lane, NO_SLOT, Progress};
use crate::core::request::{Block, Chain, Phase, Request};
use crate::core::reservation::Reservation;
use crate::core::reserve;
use crate::core::stage_slots::{slots_needed, stage_slots};
use crate::event::Submission;
use crate::id::{DomainId, LaneId, ModelId, NumericClass, RequestId, Slot, Time};
use crate::policy::Takes;

/// Growths of one request that may wait for its place.
const PENDING_MAX: usize = 64;

/// What came of a search for slots.
enum SlotSearch {
    /// The request has them.
    Found,
    /// Other requests must leave first.
    Later,
    /// The request is given up.
    Never,
}

impl Core {
    /// A request arrives. Its policy may want to review it.
    pub(crate) fn submit(&mut self, submission: Submission, review: Option<Time>) {
        let Submission { request: id, model, rank, deadline, growth } = submission;
        let known = self.requests.len();
        if id.index() >= known {
            reserve::in_table(&mut self.requests, id.index() + 1 - known);
            self.requests.resize_with(id.index() + 1, Request::default);
        }
        assert!(self.requests[id.index()].phase == Phase::Vacant, "a request id is in use");
        let Some(known) = self.models.get(model.index()).and_then(Option::as_ref).filter(|model| !model.closed) else {
            self.out.failed.push((id, Failure::NoWorker));
            return;
        };
        let (class, may_grow, taken) = (known.info.class, known.info.growth_slots.is_some(), known.takes_requests());
        let (order, now) = (self.next_order, self.now);
        self.next_order += 1;
        let request = &mut self.requests[id.index()];
        request.phase = Phase::Waiting;
        (request.model, request.order, request.rank) = (model, order, rank);
        (request.may_grow, request.open) = (may_grow, growth.next.is_some());
        if deadline.is_some() || taken {
            let rare = request.rare_mut(&mut self.spares);
            (rare.submitted, rare.deadline) = (now, deadline);
        }
        self.requests_alive += 1;
        self.requests_waiting += 1;
        self.model_mut(model).requests += 1;
        if let Some(at) = review {
            self.review_at(id, at);
        }
        let here = &self.classes[class.index()];
        if here.workers == 0 {
            self.doom(id, Failure::NoWorker);
            return;
        }
        // No request waits, so this one need not queue.
        if here.queues.is_empty() {
            match self.find_place(id, &growth) {
                SlotSearch::Found => return self.begin(id, growth),
                SlotSearch::Never => return,
                SlotSearch::Later => {}
            }
        }
        self.rare_mut(id).pending.push_back(growth);
        let tenant = self.model(model).tenant;
        self.class_mut(class).queues.push(tenant, (rank, order), id);
        self.admit(class);
        if self.requests_waiting > self.config.waiting_max && self.request(id).phase == Phase::Waiting {
            self.doom(id, Failure::Overloaded);
        }
    }

    pub(crate) fn admit_all(&mut self) {
        for class in 0..self.classes.len() {
            self.admit(NumericClass(class as u32));
        }
    }

    /// Places the waiting requests of a class in order, until one does not fit. From then on
    /// tenants get no more than what is left of their parts.
    fn admit(&mut self, class: NumericClass) {
        if self.classes[class.index()].queues.is_empty() {
            return;
        }
        let mut one_waits = None;
        self.drop_stale_claims(class);
        while let Some((turn, order, id)) = self.classes[class.index()].queues.first_after(one_waits) {
            if self.place(id, one_waits.is_some()) {
                self.classes[class.index()].queues.remove(turn.1, order);
            } else {
                self.claim(id);
                one_waits = Some(turn);
            }
        }
    }

    /// Where tenants share memory, the others may get their parts of it meanwhile, for ever. So a
    /// request that finds enough slots, but none in a row, claims a block. A class has one claim.
    fn claim(&mut self, id: RequestId) {
        let Request { model, order, .. } = *self.request(id);
        let class = self.model(model).info.class;
        let known = &self.classes[class.index()];
        let homes =
            || self.domains.iter().enumerate().filter_map(|(at, home)| Some((at, home.as_ref()?))).filter(|(_, home)| home.class == class);
        if !known.shared || homes().any(|(_, home)| home.arena.claimant().is_some()) {
            return;
        }
        let Some(growth) = self.request(id).pending().0.map(Arc::clone) else { return };
        let Some((_, room)) = self.room_of(model, self.slots_to_reserve(id, &growth)) else { return };
        let available = known.queues.parts().available(self.model(model).tenant.number());
        let Some(slots) = room.checked_next_power_of_two().filter(|slots| u64::from(*slots) <= available) else { return };
        let home =
            homes().filter(|(_, home)| home.arena.largest() >= slots).max_by_key(|(_, home)| home.arena.free_slots()).map(|(at, _)| at);
        if let Some(home) = home.and_then(|home| self.domains[home].as_mut()) {
            home.arena.claim((id, order), slots);
        }
    }

    /// Requests that no longer wait claim nothing, nor do those whose tenants may no longer have as
    /// much, because others have come, nor those that need more now, because others have gone.
    fn drop_stale_claims(&mut self, class: NumericClass) {
        for at in 0..self.domains.len() {
            let home = self.domains[at].as_ref().filter(|home| home.class == class);
            let Some((id, order)) = home.and_then(|home| home.arena.claimant()) else { continue };
            let request = self.request(id);
            let may_have = || self.classes[class.index()].queues.parts().available(self.model(request.model).tenant.number());
            let slots = home.map_or(0, |home| home.arena.claimed_slots());
            let needs = || {
                let growth = request.pending().0?;
                Some(self.room_of(request.model, self.slots_to_reserve(id, growth))?.1)
            };
            let waits = request.order == order
                && request.phase == Phase::Waiting
                && u64::from(slots) <= may_have()
                && needs().is_some_and(|room| room <= slots);
            if !waits && let Some(home) = self.domains[at].as_mut() {
                home.arena.drop_claim();
            }
        }
    }

    /// Places a waiting request, or gives it up; where another waits for slots, only if it fits
    /// into what is left of its tenant's part. Whether it no longer waits.
    fn place(&mut self, id: RequestId, another_waits: bool) -> bool {
        let Some(growth) = self.request(id).pending().0.map(Arc::clone) else { return true };
        let known = self.model(self.request(id).model);
        let left = self.classes[known.info.class.index()].queues.parts().left_of_part(known.tenant.number());
        // A request that claims a block was first before: nobody else can have that block.
        let claimant = Some((id, self.request(id).order));
        let claims = || self.domains.iter().flatten().any(|home| home.arena.claimant() == claimant);
        if another_waits && !claims() && (left == 0 || slots_needed(&known.info, &growth) > left) {
            return false;
        }
        match self.find_place(id, &growth) {
            SlotSearch::Found => self.place_pending(id),
            SlotSearch::Never => {}
            SlotSearch::Later => return false,
        }
        true
    }

    /// Gives slots to a waiting request for its first growth, or gives the request up.
    fn find_place(&mut self, id: RequestId, growth: &UnfoldedGrowth) -> SlotSearch {
        let (model, order) = (self.request(id).model, self.request(id).order);
        let (class, tenant) = (self.model(model).info.class, self.model(model).tenant);
        let (needed, grows) = self.slots_to_reserve(id, growth);
        let may_have = self.classes[class.index()].queues.parts().available(tenant.number());
        let found = self.room_of(model, (needed, grows)).filter(|(_, room)| u64::from(*room) <= may_have).and_then(|(slots, room)| {
            let block = self.find_block(class, room).or_else(|| self.find_claimed(class, (id, order), room));
            Some((slots, room, block?))
        });
        let Some((slots, room, (domain, block))) = found else {
            let available = u64::from(self.largest_blocks(model).max().unwrap_or(0));
            if needed <= available {
                return SlotSearch::Later;
            }
            self.doom(id, Failure::TooLarge { needed, available });
            return SlotSearch::Never;
        };
        self.settle_in(id, domain, block);
        self.class_mut(class).queues.add_slots(tenant, block.map_or(0, |block| block.slots.get()));
        if grows {
            self.rare_mut(id).reservation = Some(Box::new(Reservation::new(slots, room)));
        }
        let request = self.request_mut(id);
        request.phase = Phase::Placed;
        self.requests_waiting -= 1;
        SlotSearch::Found
    }

    /// The slots that a request must be able to hold at once, and whether it may grow within them.
    fn slots_to_reserve(&self, id: RequestId, growth: &UnfoldedGrowth) -> (u64, bool) {
        let request = self.request(id);
        let info = &self.model(request.model).info;
        let (first, grows) = (slots_needed(info, growth), request.may_grow && growth.next.is_some());
        (if grows { first.max(u64::from(info.growth_slots.unwrap_or(0))) } else { first }, grows)
    }

    /// The same, and the size of its block.
    fn room_of(&self, model: ModelId, (needed, grows): (u64, bool)) -> Option<(u32, u32)> {
        let slots = u32::try_from(needed).ok()?;
        Some((slots, if grows { Reservation::room_for(slots, self.largest_blocks(model)) } else { slots }))
    }

    /// The first growth of a request that has just found its place.
    fn begin(&mut self, id: RequestId, growth: Arc<UnfoldedGrowth>) {
        if self.place_growth(id, growth) {
            self.finish_if_over(id);
        }
    }

    /// The largest block that a request of a model may have in each domain. Where tenants share
    /// memory, that is half of the largest there is: beside it there is room for others' parts.
    fn largest_blocks(&self, model: ModelId) -> impl Iterator<Item = u32> {
        let Model { info, tenant, .. } = self.model(model);
        let class = &self.classes[info.class.index()];
        let (most, shared) = (u32::try_from(class.queues.parts().most(tenant.number())).unwrap_or(u32::MAX), class.shared);
        let largest = move |domain: &Domain| (domain.arena.largest() >> u32::from(shared)).min(most);
        self.domains.iter().flatten().filter(|domain| domain.class == info.class).map(largest)
    }

    /// The block that a request claimed, once all of it is free.
    fn find_claimed(&mut self, class: NumericClass, claimant: Claimant, slots: u32) -> Option<(DomainId, Option<Block>)> {
        let homes = self.domains.iter_mut().enumerate().filter_map(|(at, home)| Some((at, home.as_mut()?)));
        let mut claimed = homes.filter(|(_, home)| home.class == class && home.arena.claimant() == Some(claimant));
        let (at, home) = claimed.next()?;
        let (start, slots) = (home.arena.take_claimed(claimant, slots)?, NonZeroU32::new(slots)?);
        Some((DomainId(at as u32), Some(Block { start, slots, life: home.life })))
    }

    /// A block in the domain of a class that has most free slots and room for it.
    fn find_block(&mut self, class: NumericClass, slots: u32) -> Option<(DomainId, Option<Block>)> {
        let mut candidates = [(0_u32, DomainId(0)); 8];
        let mut count = 0;
        for (index, domain) in self.domains.iter().enumerate() {
            let Some(domain) = domain.as_ref().filter(|domain| domain.class == class) else { continue };
            let at = candidates[..count].partition_point(|(free, _)| *free >= domain.arena.free_slots());
            if at < candidates.len() {
                count = (count + 1).min(candidates.len());
                candidates[at..count].rotate_right(1);
                candidates[at] = (domain.arena.free_slots(), DomainId(index as u32));
            }
        }
        candidates[..count].iter().find_map(|(_, domain)| Some((*domain, self.take_block(*domain, slots)?)))
    }

    /// A block in that domain: none if there is no room, an empty one if nothing is needed.
    #[inline]
    pub(crate) fn take_block(&mut self, domain: DomainId, slots: u32) -> Option<Option<Block>> {
        let home = self.domains.get_mut(domain.index())?.as_mut()?;
        let Some(slots) = NonZeroU32::new(slots) else { return Some(None) };
        let start = home.arena.allocate(slots.get())?;
        Some(Some(Block { start, slots, life: home.life }))
    }

    #[inline]
    pub(crate) fn settle_in(&mut self, id: RequestId, domain: DomainId, block: Option<Block>) {
        let tenant = self.model(self.request(id).model).info.tenant;
        let scrub = match (block, self.domains[domain.index()].as_mut()) {
            (Some(block), Some(home)) => home.arena.take_over(block.start, block.slots.get(), tenant),
            _ => false,
        };
        let request = self.request_mut(id);
        (request.domain, request.block, request.scrub) = (domain, block, scrub);
    }

    /// Queues a growth until it is placed. Returns the request's model, or nothing if the request
    /// may not grow.
    pub(crate) fn grow(&mut self, id: RequestId, growth: &Arc<UnfoldedGrowth>) -> Option<ModelId> {
        let request = self.alive(id).filter(|request| request.open)?;
        let model = request.model;
        if !request.may_grow {
            self.doom(id, Failure::MayNotGrow);
            return None;
        }
        if request.pending().1 >= PENDING_MAX {
            self.doom(id, Failure::Overloaded);
            return None;
        }
        self.request_mut(id).open = growth.next.is_some();
        self.rare_mut(id).pending.push_back(Arc::clone(growth));
        Some(model)
    }

    /// Places pending growths, unless the request waits, moves, or is with its policy.
    pub(crate) fn place_pending(&mut self, id: RequestId) {
        loop {
            let request = self.request_mut(id);
            if request.phase != Phase::Placed || request.moves() || request.is_with_policy() {
                return;
            }
            let Some(growth) = request.rare_if_any().and_then(|rare| rare.pending.pop_front()) else { break };
            if !self.place_growth(id, growth) {
                return;
            }
        }
        self.finish_if_over(id);
    }

    /// Places a growth; false if there is no room for it, and it waits or its request is given up.
    fn place_growth(&mut self, id: RequestId, graph: Arc<UnfoldedGrowth>) -> bool {
        let request = self.request(id);
        if !request.grows() && request.growth_numbers().is_empty() && is_single(&graph) {
            self.place_single(id, graph);
            return true;
        }
        if !self.allocate_stages(id, &graph) && !self.allocate_after_freeing(id, &graph) {
            self.put_off(id, graph);
            return false;
        }
        let Self { requests, spares, .. } = self;
        let request = &mut requests[id.index()];
        let (growth, first_chain) = (request.growth_numbers().end, request.chain_numbers().end);
        assert_eq!(graph.first_chain, first_chain, "chains are numbered over the whole request");
        request.push_growth(Arc::clone(&graph), spares);
        let (domain, scrub) = (request.domain, request.scrub);
        request.reserve_chains(graph.chains.len(), spares);
        let places = self.out.places.len();
        let mut first_stage = 0;
        for (local, chain) in graph.chains.iter().enumerate() {
            self.place_chain(id, growth, first_chain + local as u32, chain, first_stage);
            first_stage += chain.stages.len();
        }
        let places = places..self.out.places.len();
        self.out.placements.push(Placement { request: id, growth, domain, places, scrub });
        self.connect(id, &graph);
        // In reverse, because the readers of a chain come after it, and need not be checked.
        for chain in graph.cancel.iter().rev() {
            self.cancel_chain(id, *chain);
        }
        self.keep_for_later(id, &graph);
        if self.model(self.request(id).model).takes_requests() {
            self.offer(id, growth);
        } else {
            self.start_growth(id, &graph);
        }
        true
    }

    /// Places a request whose growth [`is_single`] and has a block of its own. Equal to
    /// `place_growth`, but in one step.
    fn place_single(&mut self, id: RequestId, graph: Arc<UnfoldedGrowth>) {
        let request = self.request(id);
        let (model, domain, scrub) = (request.model, request.domain, request.scrub);
        let first_stage = request.block.map_or(NO_SLOT, |block| Slot(block.start));
        let taken = self.model(model).takes_requests();
        let places = self.out.places.len();
        let lane = self.place_stage(id, (0, 0), &graph.chains[0], first_stage);
        let places = places..places + 1;
        self.out.placements.push(Placement { request: id, growth: 0, domain, places, scrub });
        let place = self.lane_mut(lane);
        place.plain = !place.waits();
        place.set_joins(!taken);
        let Self { requests, spares, .. } = self;
        let request = &mut requests[id.index()];
        request.live_chains = 1;
        request.push_chain(Chain::new(&graph.chains[0], 0, (lane, &[]), spares), spares);
        request.push_growth(graph, spares);
        if taken {
            self.offer(id, 0);
        } else {
            self.set_ready(lane, 0, None);
        }
    }

    /// Lanes for the stages of a chain. Their slots begin at `first_stage` in `placed_slots`.
    fn place_chain(&mut self, id: RequestId, growth: u32, number: u32, graph: &UnfoldedChain, first_stage: usize) {
        let mut lanes = (LaneId(u32::MAX), Vec::new());
        for index in 0..graph.stages.len() {
            let lane = self.place_stage(id, (number, index as u32), graph, self.placed_slots[first_stage + index]);
            if index == 0 { lanes.0 = lane } else { lanes.1.push(lane) }
        }
        let Self { requests, spares, .. } = self;
        let request = &mut requests[id.index()];
        request.live_chains += 1;
        request.push_chain(Chain::new(graph, growth, (lanes.0, &lanes.1), spares), spares);
        if let Some(continued) = graph.continues
            && let Some(links) = self.links_of(id, continued)
        {
            links.more().continued_by = Some(number);
        }
    }

    /// A lane for a stage, by its chain and number, at its slots.
    fn place_stage(&mut self, id: RequestId, (chain, index): (u32, u32), graph: &UnfoldedChain, slot: Slot) -> LaneId {
        let Request { model, rank, order, domain, .. } = *self.request(id);
        let stage = &graph.stages[index as usize];
        let known = self.model(model);
        let in_order = known.takes == Takes::RequestsInOrder;
        let type_position = known.type_of_cell[stage.cell as usize];
        let (cell_type, waits) = (known.types[type_position as usize].cell_type, known.sliced);
        let lane = self.take_lane();
        let (placed_in, progress) = (self.tick as u32, Progress::new(graph, index, in_order, &mut self.spares));
        let place = self.lane_mut(lane);
        (place.request, place.model, place.cell_type) = (id, model, cell_type);
        (place.type_position, place.stage) = (number(type_position), number(index));
        (place.domain, place.order, place.chain) = (domain, order, chain);
        place.rank = rank;
        (place.slot, place.limit, place.flying, place.plain) = (slot, graph.length.bound, 0, false);
        place.merges = !graph.may_stop() && !stage.delivery.contains(&Delivery::All);
        (place.joining, place.named) = (if waits { Joining::Waits } else { Joining::Never }, false);
        place.progress = progress;
        place.placed_in = placed_in;
        self.out.places.push((lane, slot));
        lane
    }

    /// Slots that a stage holds.
    pub(crate) fn slots_of(&self, lane: LaneId) -> u32 {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let Some((graph, _, stage)) = Self::stage_of(request, place).filter(|_| place.slot != NO_SLOT) else { return 0 };
        let bound = graph.chains[(place.chain - graph.first_chain) as usize].length.bound;
        stage_slots(&self.model(request.model).info, stage.cell, stage.retention.places(bound)).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn take_lane(&mut self) -> LaneId {
        self.free_lanes.pop().unwrap_or_else(|| self.another_lane())
    }

    #[cold]
    fn another_lane(&mut self) -> LaneId {
        reserve::in_table(&mut self.lanes, 1);
        self.lanes.push(Lane::vacant());
        LaneId(self.lanes.len() as u32 - 1)
    }
}

/// The number of a stage, or of a type among a model's.
fn number(number: u32) -> u16 {
    u16::try_from(number).expect("graphs of so many stages, and models of so many types, are not admitted")
}

/// Whether a growth is one chain of one stage that runs in order and that nothing else reads. Most
/// growths are.
fn is_single(graph: &UnfoldedGrowth) -> bool {
    let [chain] = &graph.chains[..] else { return false };
    let [stage] = &chain.stages[..] else { return false };
    let in_order = chain.length.bound <= 1 || (stage.grouping == Grouping::Whole && !stage.depends.is_empty());
    let by_itself = stage.depends.iter().all(|depends| matches!(depends, Dependency::Previous { .. }));
    let unread = stage.successors.targets.is_empty() && graph.next.is_none() && graph.cancel.is_empty();
    graph.first_chain == 0 && chain.length.like.is_none() && in_order && by_itself && unread
}
