//! Tasks of cells with long rows run in slices: other tenants run in between, and weights hold between slices.

use std::collections::BTreeMap;

use cellwright_scheduler::{Config, CostTable, Event, Knot, LaneId, ModelId, Time, WorkerId};

use super::fairness::model;
use super::graphs::{growth, lstm};
use super::world::World;

const SLICE_NS: u64 = 4_000_000;
/// Slices of a row of the long cell, and what a task of another takes.
const SLICES: u32 = 25;
const SHORT_NS: u64 = 700_000;
const WORKER: WorkerId = WorkerId(0);

/// One worker; the first tenant's rows are long.
struct Beside {
    world: World,
    events: Vec<Event>,
    /// Slices that each row had.
    had: BTreeMap<(LaneId, u32), u32>,
    /// Device time of each tenant.
    used: [u64; 2],
}

impl Beside {
    fn new(weight: u32) -> Self {
        let mut models = vec![model(0, 0, 1), model(1, 1, weight)];
        let row = Knot { rows: 1, nanoseconds: u64::from(SLICES) * SLICE_NS };
        models[0].cells.iter_mut().for_each(|cell| cell.cost = CostTable::new([row]).expect("one knot"));
        let world = World::new(Config { slice_ns: SLICE_NS, ..Config::default() }, models, &[(0, 0, 100_000)]);
        Self { world, events: Vec::new(), had: BTreeMap::new(), used: [0; 2] }
    }

    /// Requests of a tenant that are there.
    fn there(&self, tenant: u32) -> usize {
        self.world.requests.values().filter(|request| request.model.0 == tenant && !request.ended).count()
    }

    /// A tenant has so many requests there from now on.
    fn fill(&mut self, tenant: u32, most: usize, steps: u32) {
        for _ in self.there(tenant)..most {
            let (_, event) = self.world.request(ModelId(tenant), &growth(0, vec![lstm(steps, &[])], None), BTreeMap::new());
            self.events.push(event);
        }
    }

    fn act(&mut self) {
        self.world.handle(&mut self.events);
    }

    /// The worker's next task, or slice of it; whose it was.
    fn turn(&mut self) -> u32 {
        let worker = &self.world.workers[&WORKER];
        let waits = || format!("{} paused, {:?}", worker.paused.len(), self.world.trace.iter().rev().take(3).collect::<Vec<_>>());
        let task = worker.tasks.front().unwrap_or_else(|| panic!("the worker is idle: {}", waits()));
        let tenant = self.world.requests[&self.world.lanes[&task.rows[0].0].request].model.0;
        let had = self.had.entry(task.rows[0]).or_default();
        *had += 1;
        let (pauses, busy) = (task.sliced && *had < SLICES, if task.sliced { SLICE_NS } else { SHORT_NS * u64::from(task.steps) });
        self.world.now = Time(self.world.now.0 + busy);
        self.used[tenant as usize] += busy;
        let event = if pauses { self.world.pause(WORKER, busy) } else { self.world.complete(WORKER, 1, busy, || false) };
        self.events.extend(event);
        tenant
    }
}

#[test]
fn weights_hold_between_slices() {
    for weight in [1, 3, 100] {
        let mut beside = Beside::new(weight);
        for _ in 0..20_000 {
            beside.fill(0, 2, 6);
            beside.fill(1, 8, 6);
            beside.act();
            beside.turn();
        }
        let part = beside.used[1] as f64 / beside.used.iter().sum::<u64>() as f64;
        let due = f64::from(weight) / f64::from(weight + 1);
        assert!((part - due).abs() < 0.02, "weight {weight}: {part} instead of {due}");
    }
}

#[test]
fn who_comes_waits_for_one_slice_at_most() {
    let mut beside = Beside::new(1);
    for round in 0..200 {
        // Long rows alone, for a while that differs, and then beside another's.
        for at in 0..=round % 40 {
            beside.act();
            beside.fill(0, 3, 6);
            beside.act();
            if at < round % 40 {
                assert_eq!(beside.turn(), 0);
            }
        }
        // A slice runs by now.
        beside.fill(1, 1, 1);
        beside.act();
        let first = beside.turn();
        beside.act();
        assert_eq!([first, beside.turn()], [0, 1], "round {round}");
    }
}

/// A row of the first tenant takes a third of a slice.
#[test]
fn where_tenants_share_a_worker_it_has_no_more_to_do_than_a_slice() {
    let mut models = vec![model(0, 0, 1), model(1, 1, 1)];
    let knots = [1, 4].map(|rows| Knot { rows, nanoseconds: u64::from(rows) * SLICE_NS / 3 });
    models[0].cells.iter_mut().for_each(|cell| cell.cost = CostTable::new(knots).expect("two knots"));
    let world = World::new(Config { slice_ns: SLICE_NS, ..Config::default() }, models, &[(0, 0, 100_000)]);
    let mut beside = Beside { world, events: Vec::new(), had: BTreeMap::new(), used: [0; 2] };
    let in_flight = |beside: &mut Beside| {
        beside.fill(0, 8, 6);
        beside.act();
        let worker = &beside.world.workers[&WORKER];
        let rows: Vec<_> = worker.tasks.iter().map(|task| (task.rows.len(), task.steps)).collect();
        beside.turn();
        rows
    };
    assert_eq!(in_flight(&mut beside), [(3, 1)]);
    beside.events.push(Event::ModelDown(ModelId(1)));
    beside.act();
    let alone = in_flight(&mut beside);
    assert!(alone.iter().all(|(rows, _)| *rows == 4) && alone.iter().map(|(_, steps)| steps).sum::<u32>() > 1, "{alone:?}");
}

#[test]
fn a_worker_that_is_lost_takes_paused_tasks_along() {
    let mut beside = Beside::new(1);
    beside.fill(0, 3, 2);
    beside.act();
    beside.turn();
    beside.act();
    let worker = beside.world.workers.remove(&WORKER).expect("it is up");
    for (lane, _) in worker.tasks.iter().chain(&worker.paused).flat_map(|task| &task.rows) {
        beside.world.lanes.get_mut(lane).expect("it is held").flying -= 1;
    }
    beside.world.arenas.clear();
    beside.world.lanes.values_mut().for_each(|lane| lane.slots = 0);
    beside.world.lost_worker = true;
    beside.events.push(Event::WorkerDown(WORKER));
    beside.act();
    beside.act();
    assert_eq!((beside.world.failed.len(), beside.world.lanes.len(), beside.world.scheduler.lanes_held()), (3, 0, 0));
}
