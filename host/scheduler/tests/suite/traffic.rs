//! Generated traffic of every kind: graphs, completions, stops, losses, models that come and go.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::generate::{self, Rng};
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::layout::NodeLayout;
use cellwright_cell_graph::unfolded::{Dependency, Source};
use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Config, CostTable, Event, Graph, Knot, Lazy, LengthAware, Merge, ModelId, ModelInfo, NumericClass,
    PolicyKind, Release, RequestId, SpanLimit, Stages, TenantId, Time, WorkerId,
};

use super::dice::Dice;
use super::graphs;
use super::world::World;

/// What a run may contain.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) faults: bool,
    pub(crate) losses: bool,
    pub(crate) domains: u32,
    /// The first worker is alone for a while.
    pub(crate) late: bool,
    pub(crate) growths: bool,
    pub(crate) requests: u32,
    /// Models may have policies of their own.
    pub(crate) mixed: bool,
    /// Graphs of the checker's own generator instead of those made by hand.
    pub(crate) checked: bool,
    /// Models go, and come back when their last request has left.
    pub(crate) reloads: bool,
}

/// Cellular batching half of the time.
fn policy(dice: &mut Dice) -> PolicyKind {
    match dice.below(14) {
        0..5 => PolicyKind::Cellular,
        5 => PolicyKind::Adaptive,
        6 => PolicyKind::Serial,
        7 => PolicyKind::Graph(Graph { bucket_width: dice.between(0, 5), window_ns: 0 }),
        8 => PolicyKind::Graph(Graph { bucket_width: dice.between(0, 5), window_ns: u64::from(dice.between(1, 5)) }),
        9 | 10 => PolicyKind::Lazy(Lazy { objective_ns: u64::from(dice.between(1, 2000)), percentile: dice.between(1, 100) as u8 }),
        11 => length_aware(dice),
        12 => stages(dice),
        _ => PolicyKind::Merge(Merge { requests: dice.between(1, 5) }),
    }
}

pub(crate) fn length_aware(dice: &mut Dice) -> PolicyKind {
    PolicyKind::LengthAware(LengthAware { timeout_ns: u64::from(dice.below(4)), objective_ns: u64::from(dice.below(200)) })
}

pub(crate) fn stages(dice: &mut Dice) -> PolicyKind {
    let stretch_ns = if dice.once_in(2) { Some(u64::from(dice.below(40))) } else { None };
    PolicyKind::Stages(Stages { count: dice.between(1, 5), stretch_ns })
}

pub(crate) fn config(dice: &mut Dice) -> Config {
    Config {
        policy: policy(dice),
        release: if dice.once_in(3) { Release::Subgraph } else { Release::Node },
        max_tasks_to_submit: dice.between(1, 5),
        low_water: dice.below(3),
        merge_steps: !dice.once_in(3),
        waiting_max: if dice.once_in(8) { 2 } else { 1000 },
        slice_ns: 0,
    }
}

pub(crate) fn models(dice: &mut Dice, cells: u32, mixed: bool) -> Vec<ModelInfo> {
    let count = dice.between(1, 3);
    let growing = dice.once_in(2);
    // By type: models share them.
    let filled_first = if dice.once_in(2) { dice.below(1 << 16) } else { 0 };
    let together = dice.below(1 << 16) | dice.below(1 << 16);
    let times = if dice.once_in(2) { u64::from(dice.between(1, u32::MAX)) } else { 0 };
    (0..count)
        .map(|model| {
            let tenant = if dice.once_in(2) { 0 } else { model };
            let infos = (0..cells).map(|cell| {
                let max = dice.between(1, 6);
                CellInfo {
                    cell_type: CellTypeId(tenant * cells + cell),
                    slots: 1 + cell % 3,
                    priority: dice.below(3) as i32,
                    batch: BatchSizes { min: dice.between(1, 2).min(max), quantum: dice.between(1, max), max },
                    cost: costs(times, tenant * cells + cell),
                    fill_first: filled_first >> ((tenant * cells + cell) % 16) & 1 == 1,
                    steps_together: together >> ((tenant * cells + cell) % 16) & 1 == 1,
                    spans: None,
                }
            });
            let cells = infos.collect();
            let growth_slots = growing.then(|| dice.between(20, 60));
            ModelInfo {
                model: ModelId(model),
                tenant: TenantId(tenant),
                weight: dice.between(1, 3),
                class: NumericClass(0),
                policy: if mixed && dice.once_in(2) { Some(policy(dice)) } else { None },
                cells,
                growth_slots,
            }
        })
        .collect()
}

/// What a type's tasks are said to take: nothing is known of any, or so many nanoseconds for one row, and more or not for six.
fn costs(times: u64, cell_type: u32) -> CostTable {
    if times == 0 {
        return CostTable::unknown();
    }
    let mut dice = Dice::new(times + u64::from(cell_type));
    let one = u64::from(dice.between(1, 40));
    let knots = [(1, one), (6, one + u64::from(dice.below(2) * dice.between(0, 200)))];
    CostTable::new(knots.map(|(rows, nanoseconds)| Knot { rows, nanoseconds })).expect("it ascends")
}

/// Steps in which chains will stop.
pub(crate) fn truth(dice: &mut Dice, growth: &UnfoldedGrowth) -> BTreeMap<u32, u32> {
    let stops = growth.chains.iter().enumerate().filter(|(_, chain)| chain.stop.is_some());
    let stops: Vec<_> = stops.map(|(local, chain)| (growth.first_chain + local as u32, chain.length.bound)).collect();
    let mut truth = BTreeMap::new();
    for (chain, bound) in stops {
        if !dice.once_in(4) {
            truth.insert(chain, dice.below(bound));
        }
    }
    truth
}

pub(crate) struct Run {
    dice: Dice,
    pub(crate) world: World,
    events: Vec<Event>,
    scope: Scope,
    arrivals: u32,
    /// Workers that are not up yet.
    late: Vec<(u32, u32, u32)>,
    /// Requests of this run have ranks below it.
    ranks: u32,
    /// The generator's, with the model its graphs are of.
    checked: Option<(Arc<Model>, Rng)>,
    /// The growths of the last request: others are like it, so that their graphs are batched.
    repeated: VecDeque<Arc<UnfoldedGrowth>>,
    /// Models that go or are gone.
    down: Vec<ModelId>,
    /// What sessions still have to say.
    sessions: BTreeMap<RequestId, VecDeque<Arc<UnfoldedGrowth>>>,
}

impl Run {
    pub(crate) fn new(seed: u64, scope: Scope, adjust: impl FnOnce(&mut Config, usize)) -> Self {
        let mut dice = Dice::new(seed);
        let mut config = config(&mut dice);
        let checked = scope.checked.then(|| (generate::model_with_spans(seed % 16), Rng::new(seed)));
        let cells = checked.as_ref().map_or(graphs::CELLS, |(model, _)| model.cells.len() as u32);
        let mut models = models(&mut dice, cells, scope.mixed);
        if let Some((real, _)) = &checked {
            // Where stages share slots, the growth says where.
            let of_all = models.iter_mut().flat_map(|model| model.cells.iter_mut().zip(&real.cells));
            of_all.for_each(|(info, cell)| {
                info.slots = NodeLayout::slots_of(cell);
                let is_ragged = cell.inputs.iter().any(|port| port.ragged);
                info.spans = is_ragged.then(|| SpanLimit { rows: 1 + seed as u32 % 3, batch: 1 + seed as u32 / 4 % 8 });
            });
        }
        adjust(&mut config, models.len());
        let domains = dice.between(1, scope.domains);
        let arena = *dice.pick(&[64, 100, 300, 2000]);
        let mut workers: Vec<_> = (0..dice.between(domains, 3)).map(|worker| (worker, worker % domains, arena)).collect();
        let late = if scope.late { workers.split_off(1) } else { Vec::new() };
        let world = World::new(config, models, &workers);
        let ranks = if dice.once_in(2) { 1 } else { 3 };
        let (events, repeated, down, sessions) = Default::default();
        Self { late, ranks, world, dice, events, arrivals: scope.requests, scope, checked, repeated, down, sessions }
    }

    fn arrive(&mut self) {
        let models = self.world.models.iter().map(|known| known.model);
        let up: Vec<ModelId> = models.filter(|model| !self.down.contains(model)).collect();
        if up.is_empty() {
            return;
        }
        self.arrivals -= 1;
        self.world.deadline = self.dice.once_in(4).then(|| Time(self.world.now.0 + u64::from(self.dice.below(200))));
        let model = *self.dice.pick(&up);
        if let Some((real, rng)) = &mut self.checked {
            let count = if self.scope.growths { self.dice.between(1, 4) } else { 1 };
            let mut growths = match self.dice.below(6) {
                3.. if !self.repeated.is_empty() => self.repeated.clone(),
                0 if self.scope.growths => session(real, count, rng),
                1 => {
                    let (growth, tensors) = generate::growth(real, rng);
                    VecDeque::from([generate::unfold(real, growth, &tensors)])
                }
                _ => wild(real, count, rng),
            };
            self.repeated.clone_from(&growths);
            let growth = growths.pop_front().expect("a first growth");
            let truth = truth(&mut self.dice, &growth);
            let rank = self.dice.below(self.ranks);
            let (id, event) = self.world.ranked(rank, model, &growth, truth);
            self.sessions.insert(id, growths);
            self.events.push(event);
            return;
        }
        let mut chains = graphs::family(&mut self.dice, 0, 9);
        if self.dice.once_in(3) {
            chains.extend(graphs::family(&mut self.dice, chains.len() as u32, 6));
        }
        let grows = self.scope.growths && self.dice.once_in(3);
        let kept: Vec<u32> = (0..chains.len() as u32).filter(|_| self.dice.once_in(2)).collect();
        let growth = graphs::growth(0, chains, if grows { graphs::watch(&kept) } else { None });
        let truth = truth(&mut self.dice, &growth);
        let rank = self.dice.below(self.ranks);
        let (_, event) = self.world.ranked(rank, model, &growth, truth);
        self.events.push(event);
    }

    /// An open request goes on, or is closed.
    fn grow(&mut self, id: RequestId) {
        if let Some(growths) = self.sessions.get_mut(&id) {
            let next = growths.pop_front();
            let more = next.as_ref().map(|growth| truth(&mut self.dice, growth));
            let request = self.world.requests.get_mut(&id).expect("it is open");
            request.truth.extend(more.unwrap_or_default());
            request.open = next.as_ref().is_some_and(|growth| growth.next.is_some());
            request.graph.growths.extend(next.clone());
            self.events.push(next.map_or(Event::Close(id), |growth| Event::Grow { request: id, growth }));
            return;
        }
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
        // A step of what has perhaps stopped before it. What is cancelled nobody reads (the graph's checks see to it).
        let cancelled = |chain: &u32| request.graph.growths.iter().any(|growth| growth.cancel.contains(chain));
        let counted = keep.last().copied().filter(|chain| !cancelled(chain) && self.dice.once_in(3));
        if let Some(kept) = counted {
            let at =
                Affine { first: self.dice.below(request.graph.chain(kept).length.bound).into(), stride: 0, from_end: self.dice.once_in(2) };
            chains.push(graphs::chain(1, vec![graphs::counting(kept, at)]));
        }
        let keeps: Vec<u32> = keep.into_iter().chain(first..first + chains.len() as u32).filter(|_| self.dice.once_in(2)).collect();
        let goes_on = self.dice.once_in(2);
        let mut growth = UnfoldedGrowth::clone(&graphs::growth(first, chains, if goes_on { graphs::watch(&keeps) } else { None }));
        // Nor what an earlier growth counts steps of.
        let inputs = || {
            request.graph.growths.iter().flat_map(|growth| &growth.chains).flat_map(|chain| &chain.stages).flat_map(|stage| &stage.inputs)
        };
        let is_counted = |number: u32| inputs().any(|input| matches!(&input.source, Source::Steps { chain, .. } if *chain == number));
        let live: Vec<u32> =
            (0..first).filter(|chain| !request.chain_over(*chain) && Some(*chain) != counted && !is_counted(*chain)).collect();
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
        if self.world.workers[&worker].tasks.front().is_some_and(|task| task.sliced) && !self.dice.once_in(3) {
            let busy = u64::from(self.dice.between(10, 1000));
            let event = self.world.pause(worker, busy);
            return self.events.extend(event);
        }
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
        } else if self.scope.losses && self.dice.once_in(12) && !self.world.workers.is_empty() {
            let ids: Vec<_> = self.world.workers.keys().copied().collect();
            let worker = *self.dice.pick(&ids);
            self.lose(worker);
        }
    }

    /// A model goes; or comes back, if none of its requests is there.
    fn reload(&mut self) {
        let known = Arc::clone(self.dice.pick(&self.world.models));
        match self.down.iter().position(|model| *model == known.model) {
            None => {
                self.down.push(known.model);
                self.events.push(Event::ModelDown(known.model));
            }
            Some(at) if !self.world.requests.values().any(|request| request.model == known.model) => {
                self.down.swap_remove(at);
                self.events.push(Event::ModelUp(known));
            }
            Some(_) => {}
        }
    }

    fn lose(&mut self, id: WorkerId) {
        let worker = self.world.workers.remove(&id).expect("a worker that is up");
        self.world.lost_worker = true;
        for (lane, _) in worker.tasks.iter().chain(&worker.paused).flat_map(|task| &task.rows) {
            self.world.lanes.get_mut(lane).expect("rows in flight hold their lanes").flying -= 1;
        }
        if !self.world.workers.values().any(|other| other.domain == worker.domain) {
            self.world.arenas.remove(&worker.domain);
            // Nobody's any more, also if the domain comes back.
            self.world.lanes.values_mut().filter(|lane| lane.domain == worker.domain).for_each(|lane| lane.slots = 0);
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
            // Not in the breath in which a domain is lost, of which placements would not say whether they are of before or after.
            6 if !self.late.is_empty()
                && self.dice.once_in(4)
                && !self.events.iter().any(|event| matches!(event, Event::WorkerDown(_))) =>
            {
                let worker = self.late.remove(0);
                self.events.push(self.world.worker_up(worker));
            }
            6 if self.dice.once_in(8) => {
                let tenant = self.dice.pick(&self.world.models).tenant;
                self.events.push(Event::TenantWeight { tenant, weight: self.dice.between(1, 3) });
            }
            7 if self.scope.reloads && self.dice.once_in(3) => self.reload(),
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

    pub(crate) fn run(mut self) -> World {
        let mut rounds = 0;
        while let Some(mut events) = self.round() {
            self.world.handle(&mut events);
            rounds += 1;
            assert!(rounds < 100_000, "it goes on and on:\n{}", self.world.left_over());
        }
        assert!(self.world.lanes.is_empty(), "lanes are left over");
        assert_eq!((self.world.scheduler.requests_in_flight(), self.world.scheduler.lanes_held()), (0, 0));
        assert_eq!(
            (self.world.scheduler.requests_queued(), self.world.scheduler.tenants_served_or_queued()),
            (0, 0),
            "somebody is left in line"
        );
        for (domain, arena) in &self.world.arenas {
            assert_eq!(self.world.scheduler.free_slots(*domain), Some(arena.len() as u32), "slots are left over");
        }
        self.world
    }
}

/// A session's growths, checked one after the other.
fn session(model: &Arc<Model>, chunks: u32, rng: &mut Rng) -> VecDeque<Arc<UnfoldedGrowth>> {
    let mut unfolding = Unfolding::new(Arc::clone(model), GraphLimits::default());
    let chunks = generate::session(model, chunks, rng).into_iter();
    chunks.map(|chunk| Arc::new(unfolding.grow(chunk.growth, chunk.first_tensor, &chunk.tensors).expect("a valid growth"))).collect()
}

/// As many growths of a request as are valid, with any cells, windows and spans.
fn wild(model: &Arc<Model>, count: u32, rng: &mut Rng) -> VecDeque<Arc<UnfoldedGrowth>> {
    loop {
        let mut unfolding = Unfolding::new(Arc::clone(model), GraphLimits::default());
        let (growths, tensors) = generate::wild_growths(model, count, rng);
        let valid: VecDeque<_> = growths.into_iter().map_while(|growth| unfolding.grow(growth, 0, &tensors).ok()).map(Arc::new).collect();
        if !valid.is_empty() {
            return valid;
        }
    }
}

pub(crate) fn scope(seed: u64) -> Scope {
    Scope {
        faults: seed.is_multiple_of(2),
        losses: true,
        domains: 2,
        late: seed % 5 == 1,
        growths: !seed.is_multiple_of(3),
        requests: 12,
        mixed: seed % 5 < 2,
        checked: seed % 4 == 3,
        reloads: seed % 7 < 3,
    }
}
