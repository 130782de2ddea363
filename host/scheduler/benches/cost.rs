//! What deciding costs: nanoseconds of the scheduler for each request of one step, and for each task of a steady crowd of long chains.
//!
//! `cargo bench -p cellwright-scheduler`
#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Delivery, Dependency, Grouping, Length, Retention, Successors, UnfoldedChain, UnfoldedStage};
use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Commands, Config, CostTable, DomainId, Event, ModelId, ModelInfo, NumericClass, RequestId, Scheduler,
    Submission, TaskSeq, TenantId, Time, WorkerId,
};

fn lstm(bound: u32) -> Arc<UnfoldedGrowth> {
    let stage = UnfoldedStage {
        cell: 0,
        inputs: Vec::new(),
        depends: vec![Dependency::Previous { stage: 0 }],
        named_producers: Vec::new(),
        successors: Successors::default(),
        retention: Retention::Double,
        grouping: Grouping::Whole,
        delivery: vec![Delivery::Last],
    };
    let chain = UnfoldedChain { stages: vec![stage], length: Length { bound, like: None }, sequential: true, stop: None };
    let chains = vec![chain];
    Arc::new(UnfoldedGrowth { first_chain: 0, chains, outputs: Vec::new(), cancel: Vec::new(), next: None, nodes: u64::from(bound) })
}

struct Bench {
    scheduler: Scheduler,
    events: Vec<Event>,
    commands: Commands,
    free: Vec<RequestId>,
    tasks: VecDeque<TaskSeq>,
    spent: Duration,
    rows: u64,
    launched: u64,
    finished: u64,
}

impl Bench {
    fn new(batch_max: u32, crowd: u32) -> Self {
        let batch = BatchSizes { min: 1, quantum: 1, max: batch_max };
        let cells = vec![CellInfo { cell_type: CellTypeId(0), slots: 2, priority: 0, batch, cost: CostTable::unknown() }];
        let (model, tenant, class) = (ModelId(0), TenantId(0), NumericClass(0));
        let info = ModelInfo { model, tenant, weight: 1, class, cells, growth_slots: None };
        let up = Event::WorkerUp { worker: WorkerId(0), domain: DomainId(0), class, arena_slots: 1 << 22 };
        let mut bench = Self {
            scheduler: Scheduler::new(Config::default()),
            events: vec![Event::ModelUp(Arc::new(info)), up],
            commands: Commands::default(),
            free: (0..crowd).map(RequestId).rev().collect(),
            tasks: VecDeque::new(),
            spent: Duration::ZERO,
            rows: 0,
            launched: 0,
            finished: 0,
        };
        bench.round(Time(0));
        bench
    }

    #[expect(clippy::disallowed_methods, reason = "the clock measures the scheduler, it does not drive it")]
    fn round(&mut self, now: Time) {
        let start = Instant::now();
        self.scheduler.handle(now, &mut self.events, &mut self.commands);
        self.spent += start.elapsed();
        self.tasks.extend(self.commands.launches.iter().map(|launch| launch.seq));
        self.launched += self.commands.launches.iter().map(|launch| u64::from(launch.steps)).sum::<u64>();
        self.rows += self.commands.launches.iter().map(|launch| launch.rows.len() as u64 * u64::from(launch.steps)).sum::<u64>();
        self.finished += self.commands.finished.len() as u64;
        self.free.extend(&self.commands.finished);
    }

    /// Keeps a crowd of requests in flight; lengths are taken in turn.
    fn run(&mut self, rounds: u64, graphs: &[Arc<UnfoldedGrowth>]) {
        let mut turn = 0;
        for round in 0..rounds {
            while let Some(request) = self.free.pop() {
                turn += 1;
                let growth = Arc::clone(&graphs[turn % graphs.len()]);
                self.events.push(Event::Submit(Submission { request, model: ModelId(0), rank: 0, deadline: None, growth }));
            }
            if let Some(up_to) = self.tasks.pop_front() {
                let (stopped, failed) = (Vec::new(), Vec::new());
                self.events.push(Event::Done { worker: WorkerId(0), up_to, busy_ns: 1000, stopped, failed });
            }
            self.round(Time(round));
        }
    }

    fn report(&self, what: &str) {
        let each = |count: u64| self.spent.as_nanos() as f64 / count.max(1) as f64;
        let (request, task, row) = (each(self.finished), each(self.launched), each(self.rows));
        println!("{what}: {request:.0} ns a request, {task:.0} ns a task, {row:.1} ns a row ({} requests)", self.finished);
    }
}

fn main() {
    for (batch, crowd) in [(64, 256), (64, 100_000), (512, 2048)] {
        let mut bench = Bench::new(batch, crowd);
        bench.run(40_000, &[lstm(1)]);
        bench.report(&format!("one step, batches of {batch}, {crowd} in flight"));
    }
    for crowd in [512, 10_000] {
        let graphs: Vec<_> = (1..60).map(lstm).collect();
        let mut bench = Bench::new(512, crowd);
        bench.run(20_000, &graphs);
        bench.report(&format!("1 to 59 steps, batches of 512, {crowd} in flight"));
    }
}
