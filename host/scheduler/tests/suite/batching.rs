//! `length-aware` and `stages` beside literal transcriptions of their papers, over random worlds: the same tasks, always.
//!
//! The worlds have one model, requests of one structure whose lengths differ, workers of one memory, and no faults. The transcriptions expand a batch node
//! by node, keep every queue as a plain list, and look at all of it for every decision.

mod dvabatch;
mod turbo;

use cellwright_cell_graph::generate::{more_seeds, seeds, try_each};
use cellwright_cell_graph::unfolded::Dependency;
use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Config, CostTable, Event, Knot, LengthAware, ModelId, ModelInfo, NumericClass, PolicyKind, RequestId,
    Stages, TenantId, Time, WorkerId,
};

use super::dice::Dice;
use super::graphs::{chain, growth, stage};
use super::model::NodeId;
use super::world::World;

/// A task: its worker, and a node of each request.
type Task = (WorkerId, Vec<(RequestId, NodeId)>);

/// What all requests of a world are like, and what their cells cost.
struct Shape {
    /// The cells of each chain.
    chains: Vec<Vec<u32>>,
    costs: Vec<CostTable>,
    limit: u32,
}

impl Shape {
    fn draw(dice: &mut Dice) -> Self {
        let chains = (0..dice.between(1, 3)).map(|_| (0..dice.between(1, 2)).map(|_| dice.below(4)).collect()).collect();
        let limit = dice.between(1, 9);
        let costs = (0..4).map(|_| {
            let (fixed, full, row) = (u64::from(dice.below(30)), dice.between(1, 4), u64::from(dice.between(1, 9)));
            CostTable::new((1..=limit).map(|rows| Knot { rows, nanoseconds: fixed + row * u64::from(rows.max(full)) })).expect("a table")
        });
        let costs = costs.collect();
        Self { chains, costs, limit }
    }

    fn model(&self) -> ModelInfo {
        let cell = |(cell, cost): (u32, &CostTable)| CellInfo {
            cell_type: CellTypeId(cell),
            slots: 1,
            priority: 0,
            batch: BatchSizes { min: 1, quantum: 1, max: self.limit },
            cost: cost.clone(),
            fill_first: false,
            steps_together: false,
            spans: None,
        };
        let cells = (0..).zip(&self.costs).map(cell).collect();
        ModelInfo { model: ModelId(0), tenant: TenantId(0), weight: 1, class: NumericClass(0), policy: None, cells, growth_slots: None }
    }

    fn cost(&self, cell: u32, rows: usize) -> u64 {
        self.costs[cell as usize].nanoseconds(rows as u32).expect("a table")
    }

    /// Every node of requests of those lengths, in the order in which they run, and its cell.
    fn nodes(&self, lengths: &[u32]) -> Vec<(NodeId, u32)> {
        let mut nodes = Vec::new();
        for (chain, (cells, length)) in (0..).zip(self.chains.iter().zip(lengths)) {
            for step in 0..*length {
                nodes.extend((0..).zip(cells).map(|(stage, cell)| (NodeId { chain, stage, step }, *cell)));
            }
        }
        nodes
    }
}

/// A request that came.
#[derive(Clone, Debug)]
struct Query {
    id: RequestId,
    lengths: Vec<u32>,
    came: u64,
}

/// A policy, transcribed.
trait Transcribed {
    fn new(shape: Shape, config: Config) -> Self;
    /// These came.
    fn come(&mut self, queries: Vec<Query>);
    /// A worker's first tasks in flight are complete, so many.
    fn complete(&mut self, worker: WorkerId, tasks: usize);
    /// A worker that asks for work is given a task, if there is any.
    fn choose(&mut self, now: u64, worker: WorkerId) -> Option<Task>;
    /// Tasks that a worker has in flight, and with how many it asks for more.
    fn asks(&self, worker: WorkerId) -> bool;
}

fn compare<T: Transcribed>(seed: u64, policy: impl Fn(&mut Dice) -> PolicyKind) {
    let mut dice = Dice::new(seed);
    let shape = Shape::draw(&mut dice);
    let low_water = dice.below(3);
    let max_tasks_to_submit = dice.between(1, 3);
    let config = Config { policy: policy(&mut dice), low_water, max_tasks_to_submit, merge_steps: false, ..Config::default() };
    let workers: Vec<_> = (0..dice.between(1, 2)).map(|worker| (worker, 0, 100_000)).collect();
    let mut world = World::new(config, vec![shape.model()], &workers);
    let (chains, longest) = (shape.chains.clone(), dice.between(1, 12));
    let mut oracle = T::new(shape, config);
    let mut left = 30;
    while left > 0 || !world.requests.is_empty() {
        world.now = Time(world.now.0 + u64::from(dice.below(12)));
        let (mut events, mut come) = (Vec::new(), Vec::new());
        for _ in 0..dice.below(4).min(left) {
            left -= 1;
            let lengths: Vec<u32> = chains.iter().map(|_| dice.between(1, longest)).collect();
            let (id, event) = world.request(ModelId(0), &request(&chains, &lengths), Default::default());
            come.push(Query { id, lengths, came: world.now.0 });
            events.push(event);
        }
        oracle.come(come);
        let busy: Vec<_> = world.workers.iter().filter(|(_, worker)| !worker.tasks.is_empty()).map(|(id, _)| *id).collect();
        if !busy.is_empty() && !dice.once_in(4) {
            let worker = *dice.pick(&busy);
            let tasks = dice.between(1, world.workers[&worker].tasks.len() as u32) as usize;
            events.extend(world.complete(worker, tasks, 1, || false));
            oracle.complete(worker, tasks);
        }
        if !events.is_empty() || world.wake {
            step(&mut world, &mut oracle, &mut events);
        }
    }
}

/// Both act, and do the same.
fn step<T: Transcribed>(world: &mut World, oracle: &mut T, events: &mut Vec<Event>) {
    world.handle(events);
    let node = |row: &cellwright_scheduler::Row| {
        let lane = world.lanes[&row.lane];
        (lane.request, NodeId { chain: lane.chain, stage: lane.stage, step: row.step })
    };
    let launches = world.commands.launches.iter();
    let launched: Vec<Task> =
        launches.map(|launch| (launch.worker, world.commands.rows[launch.rows.clone()].iter().map(node).collect())).collect();
    let mut expected = Vec::new();
    for worker in world.workers.keys() {
        while let Some(task) = oracle.asks(*worker).then(|| oracle.choose(world.now.0, *worker)).flatten() {
            expected.push(task);
        }
    }
    assert_eq!(launched, expected, "at {:?}", world.now);
}

/// Chains one after the other, of steps in order.
fn request(chains: &[Vec<u32>], lengths: &[u32]) -> std::sync::Arc<cellwright_cell_graph::UnfoldedGrowth> {
    let chains = (0_u32..).zip(chains.iter().zip(lengths)).map(|(number, (cells, length))| {
        let stages = (0..).zip(cells).map(|(position, cell)| {
            let mut depends = vec![Dependency::Previous { stage: position }];
            depends.extend(position.checked_sub(1).map(|stage| Dependency::Sibling { stage }));
            depends.extend(number.checked_sub(1).map(|chain| Dependency::End { chain }));
            stage(*cell, &depends)
        });
        chain(*length, stages.collect())
    });
    growth(0, chains.collect(), None)
}

fn length_aware(dice: &mut Dice) -> PolicyKind {
    let timeout_ns = if dice.once_in(2) { u64::from(dice.below(60)) } else { 0 };
    PolicyKind::LengthAware(LengthAware { timeout_ns, objective_ns: u64::from(dice.below(2) * dice.below(2000)) })
}

fn stages(dice: &mut Dice) -> PolicyKind {
    let stretch_ns = if dice.once_in(2) { Some(u64::from(dice.below(200))) } else { None };
    PolicyKind::Stages(Stages { count: dice.between(1, 6), stretch_ns })
}

#[test]
fn batches_are_cut_as_algorithm_2_cuts_them() {
    try_each(seeds(1500), |seed| compare::<turbo::Oracle>(seed, length_aware));
}

#[test]
fn batches_change_as_their_table_says() {
    try_each(seeds(1500), |seed| compare::<dvabatch::Oracle>(seed, stages));
}

#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=1000000 cargo test --release -p cellwright-scheduler -- --ignored soak"]
fn soak() {
    try_each(more_seeds(100_000), |seed| {
        compare::<turbo::Oracle>(seed, length_aware);
        compare::<dvabatch::Oracle>(seed, stages);
    });
}
