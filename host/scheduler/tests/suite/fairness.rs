//! Tenants share device time by weight, and a tenant's models evenly, however much one of them sends.

use std::sync::Arc;

use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Config, CostTable, Event, Graph, Lazy, LengthAware, Merge, ModelId, ModelInfo, NumericClass,
    PolicyKind, RequestId, Stages, TenantId, Time, WorkerId,
};

use super::graphs::{growth, lstm};
use super::world::World;

pub(crate) const POLICIES: [PolicyKind; 7] = [
    PolicyKind::Cellular,
    PolicyKind::Adaptive,
    PolicyKind::Graph(Graph { bucket_width: 10, window_ns: 0 }),
    PolicyKind::Merge(Merge { requests: 4 }),
    PolicyKind::Lazy(Lazy { objective_ns: 1_000_000, percentile: 90 }),
    PolicyKind::LengthAware(LengthAware { timeout_ns: 0, objective_ns: 0 }),
    PolicyKind::Stages(Stages { count: 4, stretch_ns: Some(10_000) }),
];

pub(crate) fn model(model: u32, tenant: u32, weight: u32) -> ModelInfo {
    let batch = BatchSizes { min: 1, quantum: 1, max: 4 };
    let cell = |cell: u32| CellInfo {
        cell_type: CellTypeId(model * 4 + cell),
        slots: 1,
        priority: 0,
        batch,
        cost: CostTable::unknown(),
        fill_first: false,
        steps_together: false,
        spans: None,
    };
    let cells = (0..4).map(cell).collect();
    ModelInfo { model: ModelId(model), tenant: TenantId(tenant), weight, class: NumericClass(0), policy: None, cells, growth_slots: None }
}

/// A tenant and what it sends.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) weight: u32,
    pub(crate) models: u32,
    /// Requests that each of its models always has there.
    pub(crate) backlog: u32,
    /// What a task of it takes.
    pub(crate) task_ns: u64,
}

pub(crate) const LOAD: Load = Load { weight: 1, models: 1, backlog: 50, task_ns: 1000 };

/// A world that is driven by what tenants send.
pub(crate) struct Crowd {
    pub(crate) world: World,
    loads: Vec<Load>,
    /// Each model's tenant.
    tenants: Vec<usize>,
    events: Vec<Event>,
    /// Device time that each model had.
    used: Vec<u64>,
    /// The same, as the scheduler accounts for it.
    accounted: Vec<u64>,
    tasks: u64,
}

impl Crowd {
    pub(crate) fn new(config: Config, loads: &[Load]) -> Self {
        let tenants: Vec<usize> = loads.iter().enumerate().flat_map(|(tenant, load)| vec![tenant; load.models as usize]).collect();
        let models = tenants.iter().enumerate().map(|(index, tenant)| model(index as u32, *tenant as u32, loads[*tenant].weight));
        let world = World::new(config, models.collect(), &[(0, 0, 100_000)]);
        let none = vec![0; tenants.len()];
        Self { world, loads: loads.to_vec(), events: Vec::new(), used: none.clone(), accounted: none, tenants, tasks: 0 }
    }

    fn there(&self, model: usize) -> u32 {
        self.world.requests.values().filter(|request| request.model.index() == model && !request.ended).count() as u32
    }

    pub(crate) fn send(&mut self, model: usize, steps: u32) -> RequestId {
        let (id, event) = self.world.request(ModelId(model as u32), &growth(0, vec![lstm(steps, &[])], None), Default::default());
        self.events.push(event);
        id
    }

    /// A model comes, in place of the one that had its id.
    fn load(&mut self, info: ModelInfo) {
        let (index, info) = (info.model.index(), Arc::new(info));
        self.events.push(Event::ModelUp(Arc::clone(&info)));
        self.world.models.resize(self.world.models.len().max(index + 1), Arc::clone(&info));
        self.world.models[index] = info;
        for table in [&mut self.used, &mut self.accounted] {
            table.resize(table.len().max(index + 1), 0);
        }
    }

    /// Every model gets what its tenant always has there.
    pub(crate) fn fill(&mut self) {
        for model in 0..self.tenants.len() {
            for _ in self.there(model)..self.loads[self.tenants[model]].backlog {
                self.send(model, 6);
            }
        }
    }

    /// What the task that runs now is of, and how long it takes.
    pub(crate) fn running(&self) -> Option<(usize, u32, u64)> {
        let task = self.world.workers[&WorkerId(0)].tasks.front()?;
        let model = self.world.requests[&self.world.lanes[&task.rows[0].0].request].model.index();
        let load = self.tenants.get(model).map_or(LOAD, |tenant| self.loads[*tenant]);
        Some((model, task.steps, load.task_ns * u64::from(task.steps)))
    }

    /// The task that runs completes; whose it was.
    pub(crate) fn complete(&mut self) -> Option<usize> {
        let (model, steps, busy) = self.running()?;
        self.used[model] += busy;
        self.tasks += u64::from(steps);
        self.events.extend(self.world.complete(WorkerId(0), 1, busy, || false));
        Some(model)
    }

    /// The scheduler acts.
    pub(crate) fn act(&mut self, now: Time) {
        self.world.now = now;
        self.world.handle(&mut self.events);
        for (model, nanoseconds) in &self.world.commands.used {
            self.accounted[model.index()] += nanoseconds;
        }
    }

    /// The next task completes, and the scheduler acts; whose it was.
    fn turn(&mut self) -> Option<usize> {
        let owner = self.complete();
        self.act(Time(self.world.now.0 + 1));
        owner
    }

    fn run(&mut self, turns: u32) {
        for _ in 0..turns {
            self.fill();
            self.turn();
        }
    }

    /// Each tenant's part of all device time since `before`.
    fn parts(&self, before: &[u64]) -> Vec<f64> {
        let mut parts = vec![0.0; self.loads.len()];
        for (model, tenant) in self.tenants.iter().enumerate() {
            parts[*tenant] += (self.used[model] - before[model]) as f64;
        }
        let all: f64 = parts.iter().sum();
        parts.iter().map(|part| part / all).collect()
    }
}

fn config(policy: PolicyKind) -> Config {
    Config { policy, low_water: 0, max_tasks_to_submit: 2, ..Config::default() }
}

fn parts(policy: PolicyKind, loads: &[Load]) -> Vec<f64> {
    let mut crowd = Crowd::new(config(policy), loads);
    crowd.run(3000);
    assert_eq!(crowd.used, crowd.accounted, "the scheduler knows who had what");
    crowd.parts(&vec![0; crowd.used.len()])
}

#[test]
fn a_flood_does_not_take_another_tenants_share() {
    for (policy, models) in POLICIES.into_iter().flat_map(|policy| [(policy, 1), (policy, 10)]) {
        let parts = parts(policy, &[Load { models, backlog: 200 / models, ..LOAD }, Load { backlog: 8, ..LOAD }]);
        assert!((0.48..0.52).contains(&parts[1]), "{policy:?}, {models} models: {parts:?}");
    }
}

#[test]
fn parts_follow_weights_not_tasks_nor_models() {
    for (policy, models) in POLICIES.into_iter().flat_map(|policy| [(policy, 1), (policy, 5)]) {
        let parts = parts(policy, &[Load { models, task_ns: 5000, ..LOAD }, Load { weight: 3, ..LOAD }]);
        assert!((0.73..0.77).contains(&parts[1]), "{policy:?}, {models} models: {parts:?}");
    }
}

#[test]
fn a_tenants_models_have_equal_parts_of_its_own() {
    let mut crowd = Crowd::new(config(PolicyKind::Cellular), &[Load { models: 3, ..LOAD }, LOAD]);
    crowd.loads[0].backlog = 20;
    crowd.run(3000);
    let all: u64 = crowd.used.iter().sum();
    let parts: Vec<f64> = crowd.used.iter().map(|used| *used as f64 / all as f64).collect();
    assert!(parts[..3].iter().all(|part| (0.155..0.178).contains(part)) && (0.48..0.52).contains(&parts[3]), "{parts:?}");
}

#[test]
fn a_weight_may_change_while_all_is_running() {
    for policy in POLICIES {
        let mut crowd = Crowd::new(config(policy), &[Load { models: 2, ..LOAD }, LOAD]);
        crowd.run(1000);
        crowd.events.push(Event::TenantWeight { tenant: TenantId(1), weight: 4 });
        let before = crowd.used.clone();
        crowd.run(2000);
        let parts = crowd.parts(&before);
        assert!((0.78..0.82).contains(&parts[1]), "{policy:?}: {parts:?}");
    }
}

/// Who comes rarely waits for the tasks that were handed over before, and for nothing else of a flood.
#[test]
fn a_rare_request_waits_for_tasks_in_flight_alone() {
    for models in [1, 10] {
        let scheduler = Config::default();
        let mut crowd = Crowd::new(scheduler, &[Load { models, backlog: 400 / models, ..LOAD }, Load { backlog: 0, ..LOAD }]);
        let rare = models as usize;
        crowd.run(50);
        for round in 0..200 {
            for _ in 0..round % 7 {
                crowd.fill();
                crowd.turn();
            }
            let (id, before) = (crowd.send(rare, 1), crowd.tasks);
            while crowd.world.requests.get(&id).is_some_and(|request| !request.ended) {
                crowd.fill();
                crowd.turn();
            }
            // A launch of several steps counts as so many tasks.
            let waited = crowd.tasks - before;
            let in_flight = u64::from(scheduler.low_water + scheduler.max_tasks_to_submit);
            assert!(waited <= in_flight + 1, "{models} models, round {round}: {waited} tasks");
        }
    }
}

/// Whoever had much while nobody else came is not held back for it when all come, even if all were idle in between.
#[test]
fn idleness_of_all_is_not_saved_up() {
    let mut crowd = Crowd::new(config(PolicyKind::Cellular), &[Load { backlog: 0, ..LOAD }; 2]);
    for round in 0..200 {
        crowd.send(usize::from(round == 0), 6);
        while !crowd.world.requests.is_empty() {
            crowd.turn();
        }
    }
    let before = crowd.used.clone();
    crowd.loads.iter_mut().for_each(|load| load.backlog = 20);
    crowd.run(60);
    let parts = crowd.parts(&before);
    assert!((0.4..0.6).contains(&parts[0]), "{parts:?}");
}

/// Tables hold what there is, not what there was, and any number will do for a tenant.
#[test]
fn models_and_tenants_that_go_are_forgotten() {
    for policy in POLICIES {
        let mut crowd = Crowd::new(config(policy), &[Load { backlog: 3, ..LOAD }]);
        for round in 0..300_u32 {
            let (id, tenant) = (ModelId(1 + round % 2), TenantId(u32::MAX - round / 2));
            crowd.load(ModelInfo { tenant, ..model(id.0, 0, 1) });
            let last = crowd.send(id.index(), 6);
            crowd.turn();
            crowd.events.push(Event::ModelDown(id));
            crowd.turn();
            assert!(crowd.world.scheduler.tenants_known() <= 3);
            while crowd.world.requests.get(&last).is_some_and(|request| !request.ended || request.lanes > 0) {
                crowd.run(1);
            }
            assert_eq!((crowd.world.scheduler.models_known(), crowd.world.scheduler.tenants_known()), (1, 1), "{policy:?}");
        }
    }
}

/// A model that was idle does not save its share up.
#[test]
fn idleness_is_not_saved_up() {
    let config = Config { low_water: 0, max_tasks_to_submit: 1, ..Config::default() };
    let mut world = World::new(config, vec![model(0, 0, 1), model(1, 1, 1)], &[(0, 0, 100_000)]);
    let mut turns = Vec::new();
    for round in 0..240 {
        let mut events = Vec::new();
        for index in 0..2 {
            let there = world.requests.values().filter(|request| request.model == ModelId(index)).count();
            if there < 8 && (index == 0 || round >= 200) {
                let (_, event) = world.request(ModelId(index), &growth(0, vec![lstm(3, &[])], None), Default::default());
                events.push(event);
            }
        }
        events.extend(world.complete(WorkerId(0), 1, 1000, || false));
        world.now = Time(round + 1);
        world.handle(&mut events);
        turns.extend(world.commands.launches.iter().map(|launch| launch.model.0));
    }
    let late = &turns[turns.len() - 30..];
    let second = late.iter().filter(|model| **model == 1).count();
    assert!((13..=17).contains(&second), "{late:?}");
}
