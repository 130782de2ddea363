//! Generated traffic of every kind against the whole scheduler, a thousand seeds.

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::Dependency;
use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Config, Event, ModelId, ModelInfo, NumericClass, PolicyKind, Release, RequestId, TenantId, Time,
    WorkerId,
};

use super::dice::{Dice, for_seeds};
use super::graphs;
use super::world::World;

/// What a run may contain.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) faults: bool,
    pub(crate) losses: bool,
    pub(crate) domains: u32,
    pub(crate) growths: bool,
    pub(crate) requests: u32,
}

pub(crate) fn config(dice: &mut Dice) -> Config {
    Config {
        policy: if dice.once_in(3) { PolicyKind::Graph { bucket_width: dice.between(1, 5) } } else { PolicyKind::Cellular },
        release: if dice.once_in(3) { Release::Subgraph } else { Release::Node },
        max_tasks_to_submit: dice.between(1, 5),
        low_water: dice.below(3),
        merge_steps: !dice.once_in(3),
        waiting_max: if dice.once_in(8) { 2 } else { 1000 },
    }
}

pub(crate) fn models(dice: &mut Dice) -> Vec<ModelInfo> {
    let count = dice.between(1, 3);
    let growing = dice.once_in(2);
    (0..count)
        .map(|model| {
            let tenant = if dice.once_in(2) { 0 } else { model };
            let cells = (0..graphs::CELLS).map(|cell| {
                let max = dice.between(1, 6);
                CellInfo {
                    cell_type: CellTypeId(tenant * graphs::CELLS + cell),
                    slots: 1 + cell % 3,
                    priority: dice.below(3) as i32,
                    batch: BatchSizes { min: dice.between(1, 2).min(max), quantum: dice.between(1, max), max },
                }
            });
            let cells = cells.collect();
            let growth_slots = growing.then(|| dice.between(20, 60));
            ModelInfo {
                model: ModelId(model),
                tenant: TenantId(tenant),
                weight: dice.between(1, 3),
                class: NumericClass(0),
                cells,
                growth_slots,
            }
        })
        .collect()
}

/// Steps in which chains will stop.
pub(crate) fn truth(dice: &mut Dice, growth: &UnfoldedGrowth) -> BTreeMap<u32, u32> {
    let stops = growth.chains.iter().enumerate().filter(|(_, chain)| chain.stop.is_some());
    let stops: Vec<_> = stops.map(|(local, chain)| (growth.first_chain + local as u32, chain.length.bound)).collect();
    stops.into_iter().filter_map(|(chain, bound)| (!dice.once_in(4)).then(|| (chain, dice.below(bound)))).collect()
}

pub(crate) struct Run {
    dice: Dice,
    pub(crate) world: World,
    events: Vec<Event>,
    scope: Scope,
    arrivals: u32,
}

impl Run {
    pub(crate) fn new(seed: u64, scope: Scope, adjust: impl FnOnce(&mut Config, usize)) -> Self {
        let mut dice = Dice::new(seed);
        let mut config = config(&mut dice);
        let models = models(&mut dice);
        adjust(&mut config, models.len());
        let domains = dice.between(1, scope.domains);
        let arena = *dice.pick(&[64, 100, 300, 2000]);
        let workers: Vec<_> = (0..dice.between(domains, 3)).map(|worker| (worker, worker % domains, arena)).collect();
        Self { world: World::new(config, models, &workers), dice, events: Vec::new(), arrivals: scope.requests, scope }
    }

    fn arrive(&mut self) {
        self.arrivals -= 1;
        let model = ModelId(self.dice.below(self.world.models.len() as u32));
        let mut chains = graphs::family(&mut self.dice, 0, 9);
        if self.dice.once_in(3) {
            chains.extend(graphs::family(&mut self.dice, chains.len() as u32, 6));
        }
        let grows = self.scope.growths && self.dice.once_in(3);
        let kept: Vec<u32> = (0..chains.len() as u32).filter(|_| self.dice.once_in(2)).collect();
        let growth = graphs::growth(0, chains, if grows { graphs::watch(&kept) } else { None });
        let truth = truth(&mut self.dice, &growth);
        let (_, event) = self.world.request(model, &growth, truth);
        self.events.push(event);
    }

    /// An open request goes on, or is closed.
    fn grow(&mut self, id: RequestId) {
        let request = &self.world.requests[&id];
        if request.graph.growths.len() > 3 || self.dice.once_in(4) {
            self.events.push(Event::Close(id));
            self.world.requests.get_mut(&id).expect("it is open").open = false;
            return;
        }
        let first = request.graph.chains();
        let keep = request.graph.growths.last().and_then(|growth| growth.next.as_ref()).map(|next| next.keep.clone()).unwrap_or_default();
        let mut chains = graphs::family(&mut self.dice, first, 5);
        if let Some(kept) = keep.first() {
            chains[0].stages[0].depends.push(Dependency::End { chain: *kept });
        }
        let keeps: Vec<u32> = keep.into_iter().chain(first..first + chains.len() as u32).filter(|_| self.dice.once_in(2)).collect();
        let goes_on = self.dice.once_in(2);
        let mut growth = UnfoldedGrowth::clone(&graphs::growth(first, chains, if goes_on { graphs::watch(&keeps) } else { None }));
        let live: Vec<u32> = (0..first).filter(|chain| !request.chain_over(*chain)).collect();
        if !live.is_empty() && self.dice.once_in(2) {
            growth.cancel.push(*self.dice.pick(&live));
        }
        let growth = Arc::new(growth);
        let more = truth(&mut self.dice, &growth);
        let request = self.world.requests.get_mut(&id).expect("it is open");
        request.truth.extend(more);
        request.open = goes_on;
        request.graph.growths.push(Arc::clone(&growth));
        self.events.push(Event::Grow { request: id, growth });
    }

    fn complete(&mut self, worker: WorkerId) {
        let tasks = self.world.workers[&worker].tasks.len() as u32;
        let count = self.dice.between(1, tasks.max(1)) as usize;
        let busy = u64::from(self.dice.between(10, 1000));
        let (dice, faults) = (&mut self.dice, self.scope.faults);
        let event = self.world.complete(worker, count, busy, || faults && dice.once_in(300));
        self.events.extend(event);
    }

    fn fault(&mut self) {
        let alive: Vec<_> =
            self.world.requests.iter().filter(|(_, request)| !request.ended && !request.cancelled).map(|(id, _)| *id).collect();
        if !alive.is_empty() && self.dice.once_in(2) {
            let id = *self.dice.pick(&alive);
            self.world.requests.get_mut(&id).expect("picked from them").cancelled = true;
            self.events.push(Event::Cancel(id));
        } else if self.scope.losses && self.dice.once_in(12) && self.world.workers.len() > 1 {
            let ids: Vec<_> = self.world.workers.keys().copied().collect();
            let worker = *self.dice.pick(&ids);
            self.lose(worker);
        }
    }

    fn lose(&mut self, id: WorkerId) {
        let worker = self.world.workers.remove(&id).expect("a worker that is up");
        self.world.lost_worker = true;
        for (lane, _) in worker.tasks.iter().flat_map(|task| &task.rows) {
            self.world.lanes.get_mut(lane).expect("rows in flight hold their lanes").flying -= 1;
        }
        if !self.world.workers.values().any(|other| other.domain == worker.domain) {
            self.world.arenas.remove(&worker.domain);
        }
        self.events.push(Event::WorkerDown(id));
    }

    /// One event, if what the dice chose can happen.
    fn step(&mut self) {
        let busy: Vec<_> = self.world.workers.iter().filter(|(_, worker)| !worker.tasks.is_empty()).map(|(id, _)| *id).collect();
        let waits = |request: &&super::world::Request| !request.ended && request.open && request.placed == request.graph.growths.len();
        let open: Vec<_> =
            self.world.requests.iter().filter(|(_, request)| waits(request)).map(|(id, request)| (*id, request.over())).collect();
        match self.dice.below(10) {
            0..=2 if self.arrivals > 0 => self.arrive(),
            3 if self.scope.faults && self.dice.once_in(10) => self.fault(),
            4 if !self.world.moves.is_empty() => {
                let index = self.dice.below(self.world.moves.len() as u32) as usize;
                let id = self.world.moves.swap_remove(index);
                self.world.requests.get_mut(&id).expect("it moves").moving = false;
                self.events.push(Event::Moved(id));
            }
            5 if !open.is_empty() => {
                let (id, over) = *self.dice.pick(&open);
                if over || self.dice.once_in(4) {
                    self.grow(id);
                }
            }
            _ if !busy.is_empty() => {
                let worker = *self.dice.pick(&busy);
                self.complete(worker);
            }
            _ => {}
        }
    }

    /// The next events to handle; none when all is over.
    pub(crate) fn round(&mut self) -> Option<Vec<Event>> {
        for _ in 0..2000 {
            if self.arrivals == 0 && self.world.requests.is_empty() {
                return None;
            }
            for _ in 0..self.dice.between(1, 3) {
                self.step();
            }
            if !self.events.is_empty() || self.world.wake {
                self.world.now = Time(self.world.now.0 + u64::from(self.dice.below(3)));
                return Some(std::mem::take(&mut self.events));
            }
        }
        panic!("nothing happens any more:\n{}", self.world.left_over());
    }

    fn run(mut self) -> World {
        while let Some(mut events) = self.round() {
            self.world.handle(&mut events);
        }
        assert!(self.world.lanes.is_empty(), "lanes are left over");
        assert_eq!((self.world.scheduler.requests_in_flight(), self.world.scheduler.lanes_held()), (0, 0));
        for (domain, arena) in &self.world.arenas {
            assert_eq!(self.world.scheduler.free_slots(*domain), arena.len() as u32, "slots are left over");
        }
        self.world
    }
}

#[test]
fn every_request_ends_once_and_nothing_is_left_over() {
    for_seeds(1000, |seed| {
        let scope = Scope { faults: seed % 2 == 0, losses: true, domains: 2, growths: seed % 3 != 0, requests: 12 };
        let world = Run::new(seed, scope, |_, _| {}).run();
        let ended = world.finished as usize + world.failed.len();
        assert_eq!(ended, 12);
    });
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for_seeds(50, |seed| {
        let scope = Scope { faults: true, losses: true, domains: 2, growths: true, requests: 12 };
        assert_eq!(Run::new(seed, scope, |_, _| {}).run().trace, Run::new(seed, scope, |_, _| {}).run().trace);
    });
}
