//! What deciding costs: nanoseconds of the scheduler for each node, task and request, with a device that completes every task at once.
//!
//! `cargo bench -p cellwright-scheduler [-- NAME]`; only the time in `handle` counts.
#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, UnfoldedChain};
use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Commands, Config, CostTable, DomainId, Event, ModelId, ModelInfo, NumericClass, RequestId, Scheduler,
    Submission, TaskSeq, TenantId, Time, WorkerId,
};

#[path = "../tests/suite/dice.rs"]
mod dice;
#[path = "../tests/suite/graphs.rs"]
#[expect(dead_code, reason = "shared with the tests")]
mod graphs;

use dice::Dice;

/// Each workload is measured so often.
const RUNS: u64 = 80;

/// Requests of one kind: who sends them, and what they look like.
struct Workload {
    name: &'static str,
    models: Vec<ModelInfo>,
    /// Graphs of each model, drawn from at random.
    graphs: Vec<Vec<Arc<UnfoldedGrowth>>>,
    crowd: u32,
    tasks: u64,
}

fn info(model: u32, tenant: u32, limits: [u32; 4]) -> ModelInfo {
    let cell = |cell: u32| CellInfo {
        cell_type: CellTypeId(model * 4 + cell),
        slots: 2,
        priority: cell as i32,
        batch: BatchSizes { min: 1, quantum: 1, max: limits[cell as usize] },
        cost: CostTable::unknown(),
        fill_first: false,
        steps_together: false,
        spans: None,
    };
    let (model, tenant, class) = (ModelId(model), TenantId(tenant), NumericClass(0));
    ModelInfo { model, tenant, weight: 1, class, policy: None, cells: (0..4).map(cell).collect(), growth_slots: None }
}

/// Lengths of sentences: lognormal (mean 2.95, deviation 0.68 of the logarithm), 1 to 330.
fn sentence(dice: &mut Dice) -> u32 {
    let uniform = |dice: &mut Dice| (dice.next() >> 11) as f64 / (1_u64 << 53) as f64;
    let normal = (0..12).map(|_| uniform(dice)).sum::<f64>() - 6.0;
    (2.95 + 0.68 * normal).exp().round().clamp(1.0, 330.0) as u32
}

fn many(dice: &mut Dice, count: u32, draw: impl Fn(&mut Dice) -> Vec<UnfoldedChain>) -> Vec<Arc<UnfoldedGrowth>> {
    (0..count).map(|_| graphs::growth(0, draw(dice), None)).collect()
}

fn chain(dice: &mut Dice) -> Vec<UnfoldedChain> {
    vec![graphs::lstm(sentence(dice), &[])]
}

fn tree(dice: &mut Dice) -> Vec<UnfoldedChain> {
    let leaves = dice.between(2, 38);
    graphs::forest(dice, 0, leaves, 1)
}

fn pair(dice: &mut Dice) -> Vec<UnfoldedChain> {
    let depends = [Dependency::Previous { stage: 0 }, Dependency::End { chain: 0 }];
    let decoder = graphs::chain(sentence(dice), vec![graphs::whole(graphs::INNER, &depends)]);
    vec![graphs::lstm(sentence(dice), &[]), decoder]
}

fn workloads() -> Vec<Workload> {
    let mut dice = Dice::new(7);
    let chains = many(&mut dice, 2000, chain);
    let crowds = [("chains 1,000", 1000), ("chains 10,000", 10_000), ("chains 100,000", 100_000)];
    let mut all: Vec<Workload> = crowds
        .into_iter()
        .map(|(name, crowd)| Workload { name, models: vec![info(0, 0, [512; 4])], graphs: vec![chains.clone()], crowd, tasks: 40_000 })
        .collect();
    let trees = many(&mut dice, 500, tree);
    all.push(Workload { name: "trees", models: vec![info(0, 0, [64; 4])], graphs: vec![trees], crowd: 1000, tasks: 40_000 });
    let pairs = many(&mut dice, 2000, pair);
    let limits = [512, 64, 256, 64];
    all.push(Workload { name: "seq2seq", models: vec![info(0, 0, limits)], graphs: vec![pairs], crowd: 4000, tasks: 40_000 });
    let kinds = [many(&mut dice, 500, chain), many(&mut dice, 200, tree), many(&mut dice, 500, pair)];
    let models = (0..200).map(|model| info(model, model / 5, [512, 64, 256, 64])).collect();
    let graphs = (0..200).map(|model| kinds[model % 3].clone()).collect();
    all.push(Workload { name: "mix", models, graphs, crowd: 10_000, tasks: 40_000 });
    all.push(Workload {
        name: "one step",
        models: vec![info(0, 0, [512; 4])],
        graphs: vec![vec![graphs::growth(0, vec![graphs::lstm(1, &[])], None)]],
        crowd: 4000,
        tasks: 10_000,
    });
    all
}

#[derive(Clone, Copy, Default)]
struct Counts {
    spent: Duration,
    rows: u64,
    launched: u64,
    finished: u64,
}

struct Bench<'a> {
    workload: &'a Workload,
    scheduler: Scheduler,
    events: Vec<Event>,
    commands: Commands,
    free: Vec<RequestId>,
    tasks: VecDeque<TaskSeq>,
    dice: Dice,
    counts: Counts,
}

impl<'a> Bench<'a> {
    fn new(workload: &'a Workload) -> Self {
        let up = Event::WorkerUp { worker: WorkerId(0), domain: DomainId(0), class: NumericClass(0), arena_slots: 1 << 25 };
        let models = workload.models.iter().map(|info| Event::ModelUp(Arc::new(info.clone())));
        let mut bench = Self {
            workload,
            scheduler: Scheduler::new(Config::default()),
            events: models.chain([up]).collect(),
            commands: Commands::default(),
            free: (0..workload.crowd).map(RequestId).rev().collect(),
            tasks: VecDeque::new(),
            dice: Dice::new(11),
            counts: Counts::default(),
        };
        bench.round(Time(0));
        bench
    }

    #[expect(clippy::disallowed_methods, reason = "the clock measures the scheduler, it does not drive it")]
    fn round(&mut self, now: Time) {
        let start = Instant::now();
        self.scheduler.handle(now, &mut self.events, &mut self.commands);
        let counts = &mut self.counts;
        counts.spent += start.elapsed();
        self.tasks.extend(self.commands.launches.iter().map(|launch| launch.seq));
        counts.launched += self.commands.launches.iter().map(|launch| u64::from(launch.steps)).sum::<u64>();
        counts.rows += self.commands.launches.iter().map(|launch| launch.rows.len() as u64 * u64::from(launch.steps)).sum::<u64>();
        counts.finished += self.commands.finished.len() as u64;
        self.free.extend(&self.commands.finished);
    }

    /// Keeps the crowd in flight until so many tasks were launched.
    fn run(&mut self, tasks: u64) {
        self.counts = Counts::default();
        let mut now = 0;
        while self.counts.launched < tasks {
            while let Some(request) = self.free.pop() {
                let model = self.dice.below(self.workload.models.len() as u32);
                let growth = Arc::clone(self.dice.pick(&self.workload.graphs[model as usize]));
                self.events.push(Event::Submit(Submission { request, model: ModelId(model), rank: 0, deadline: None, growth }));
            }
            if let Some(up_to) = self.tasks.pop_front() {
                let (stopped, failed) = (Vec::new(), Vec::new());
                self.events.push(Event::Done { worker: WorkerId(0), up_to, busy_ns: 1000, stopped, failed });
            }
            now += 1;
            self.round(Time(now));
        }
    }
}

fn report(name: &str, counts: Counts) {
    let Counts { spent, rows, launched, finished } = counts;
    let each = |count: u64| spent.as_nanos() as f64 / count.max(1) as f64;
    println!(
        "{name:<16} {:>7.1} M nodes/s {:>7.1} ns a node {:>8.0} ns a task of {:>5.1} {:>7.0} ns a request ({finished})",
        1000.0 / each(rows),
        each(rows),
        each(launched),
        rows as f64 / launched.max(1) as f64,
        each(finished),
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for workload in workloads() {
        if !wanted.is_empty() && !wanted.iter().any(|name| workload.name.starts_with(name.as_str())) {
            continue;
        }
        let mut bench = Bench::new(&workload);
        bench.run(workload.tasks / 4);
        let runs = (0..RUNS).map(|_| {
            bench.run(workload.tasks / RUNS);
            bench.counts
        });
        // What else the machine does can only add to it.
        let each = |counts: &Counts| counts.spent.as_nanos() / u128::from(counts.rows.max(1) / 1000);
        if let Some(least) = runs.min_by_key(each) {
            report(workload.name, least);
        }
    }
}
