//! Who gets the next place where there is not memory for all: tenants in turn, whatever one of them sends.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Retention, UnfoldedStage};
use cellwright_scheduler::{Config, Event, ModelId, PolicyKind, Time, WorkerId};

use super::fairness::{POLICIES, model};
use super::graphs::{LSTM, chain, growth, lstm, stage};
use super::world::World;

/// Slots of the arena.
const ARENA: u32 = 64;
/// Of small requests, which take two.
const PLACES: usize = 32;
/// The rank of requests without a priority.
const LAST: u32 = u32::MAX;

/// One model for each tenant, under the same number.
struct Memory {
    world: World,
    events: Vec<Event>,
    /// Requests that finished, by tenant.
    finished: Vec<u32>,
    /// Whose requests were given places by the last `handle`, in order.
    given: Vec<usize>,
}

/// Takes two slots, however long it is.
fn small(steps: u32) -> Arc<UnfoldedGrowth> {
    growth(0, vec![lstm(steps, &[])], None)
}

/// Takes half of the arena, which is the most where tenants share it.
fn large() -> Arc<UnfoldedGrowth> {
    growth(0, vec![chain(ARENA / 2, vec![UnfoldedStage { retention: Retention::All, ..stage(LSTM, &[]) }])], None)
}

impl Memory {
    fn new(policy: PolicyKind, weights: &[u32]) -> Self {
        let config = Config { policy, low_water: 0, ..Config::default() };
        let models = weights.iter().enumerate().map(|(tenant, weight)| model(tenant as u32, tenant as u32, *weight));
        let world = World::new(config, models.collect(), &[(0, 0, ARENA)]);
        Self { world, events: Vec::new(), finished: vec![0; weights.len()], given: Vec::new() }
    }

    /// The tenant always has so many there.
    fn fill(&mut self, tenant: u32, count: usize, (rank, growth): (u32, &Arc<UnfoldedGrowth>)) {
        let there = self.world.requests.values().filter(|request| request.model == ModelId(tenant) && !request.ended).count();
        for _ in there..count {
            let (_, event) = self.world.ranked(rank, ModelId(tenant), growth, Default::default());
            self.events.push(event);
        }
    }

    /// The next task completes, and the scheduler acts.
    fn turn(&mut self) {
        self.events.extend(self.world.complete(WorkerId(0), 1, 1000, || false));
        let owners: Vec<_> = self.world.requests.iter().map(|(id, request)| (*id, request.model.index())).collect();
        let owner = |id| owners.iter().find(|(other, _)| *other == id).expect("a request").1;
        self.world.now = Time(self.world.now.0 + 1);
        self.world.handle(&mut self.events);
        self.given = self.world.commands.placements.iter().map(|placement| owner(placement.request)).collect();
        for id in &self.world.commands.finished {
            self.finished[owner(*id)] += 1;
        }
    }

    /// Requests that have a place.
    fn placed(&self, tenant: u32) -> usize {
        self.world.requests.values().filter(|request| request.model == ModelId(tenant) && request.placed > 0 && !request.ended).count()
    }
}

/// Its first request gets a place at once.
#[test]
fn a_flood_of_high_priority_keeps_no_other_tenant_out() {
    for policy in POLICIES {
        let mut memory = Memory::new(policy, &[1, 1]);
        let flood = |memory: &mut Memory| memory.fill(0, 200, (0, &small(6)));
        for _ in 0..20 {
            flood(&mut memory);
            memory.turn();
        }
        assert_eq!(memory.placed(0), PLACES * 3 / 4, "all but the other's part is taken");
        memory.fill(1, 1, (LAST, &small(6)));
        flood(&mut memory);
        memory.turn();
        assert!(memory.given.contains(&1), "{policy:?}");
    }
}

/// However long another holds what he has, and whatever he waits for beside it.
#[test]
fn whoever_holds_memory_for_ever_leaves_others_their_parts() {
    for policy in POLICIES {
        let mut memory = Memory::new(policy, &[1, 1, 1]);
        memory.fill(0, 100, (0, &small(1_000_000)));
        memory.fill(1, 1, (0, &large()));
        memory.turn();
        let held = memory.placed(0);
        assert_eq!(held, 22, "all but the parts of two, of ten slots each: {policy:?}");
        memory.fill(2, 100, (LAST, &small(2)));
        memory.turn();
        assert_eq!((memory.placed(0), memory.placed(2)), (held, 5), "{policy:?}");
    }
}

/// However long the requests of one of them hold what they have, and whatever they say of their rank.
#[test]
fn tenants_that_want_more_than_there_is_have_memory_by_weight() {
    for (policy, weights) in POLICIES.into_iter().flat_map(|policy| [(policy, [1, 1]), (policy, [1, 3])]) {
        let mut memory = Memory::new(policy, &weights);
        let part = PLACES * weights[1] as usize / (weights[0] + weights[1]) as usize;
        for turn in 0..2000 {
            memory.fill(0, 100, (0, &small(40)));
            memory.fill(1, 100, (LAST, &small(2)));
            memory.turn();
            let (long, short) = (memory.placed(0), memory.placed(1));
            assert!(turn < 1000 || short.abs_diff(part) <= 4 && long + short <= PLACES, "{policy:?} {weights:?}: {long} and {short}");
        }
    }
}

/// Neither waits for ever: not who needs half of the memory, whether or not more of the kind wait behind, nor who needs little of it.
#[test]
fn large_requests_and_small_ones_of_another_tenant_take_turns() {
    for (policy, backlog) in POLICIES.into_iter().flat_map(|policy| [(policy, 1), (policy, 3)]) {
        for ranks in [[0, LAST], [LAST, 0]] {
            let mut memory = Memory::new(policy, &[1, 1]);
            for _ in 0..2000 {
                memory.fill(0, backlog, (ranks[0], &large()));
                memory.fill(1, 100, (ranks[1], &small(2)));
                memory.turn();
            }
            assert!(memory.finished.iter().all(|count| *count > 20), "{policy:?}, {backlog}, {ranks:?}: {:?}", memory.finished);
        }
    }
}

/// Two tenants wait for a large block each. One claims it; then the other is the first, because what it held has ended.
#[test]
fn whoever_claims_a_block_gets_it_also_if_another_tenant_is_now_the_first() {
    let mut memory = Memory::new(PolicyKind::Cellular, &[1, 1, 1]);
    let until = |memory: &mut Memory, tenant: u32, placed: usize| {
        for _ in 0..10_000 {
            if memory.placed(tenant) == placed {
                return;
            }
            memory.turn();
        }
        panic!("tenant {tenant} has {} requests with a place, not {placed}", memory.placed(tenant));
    };
    // One of the first tenant holds the first half for ever, and the last one of the third tenant the second half for some time.
    for (tenant, count, steps) in [(0, 1, 1_000_000), (1, 2, 200), (2, 21, 2), (2, 22, 400)] {
        memory.fill(tenant, count, (LAST, &small(steps)));
    }
    memory.turn();
    until(&mut memory, 2, 1);
    assert_eq!([0, 1].map(|tenant| memory.placed(tenant)), [1, 2]);
    for (tenant, count) in [(0, 2), (1, 3)] {
        memory.fill(tenant, count, (LAST, &large()));
        memory.turn();
    }
    until(&mut memory, 1, 0);
    assert_eq!([0, 2].map(|tenant| memory.placed(tenant)), [1, 1], "both large ones wait, and the second half is held");
    until(&mut memory, 2, 0);
    until(&mut memory, 0, 2);
    until(&mut memory, 1, 1);
}
