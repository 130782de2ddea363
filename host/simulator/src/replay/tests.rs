//! Runs that are recorded and run again.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::Random;
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_recording::Recorder;
use cellwright_scheduler::{
    Config, CostTable, DomainId, Graph, Knot, LaneId, Lazy, LengthAware, Merge, ModelId, NumericClass, PolicyKind, RequestId, Stages,
    Submission, TaskSeq, WorkerId,
};

use super::*;
use crate::workload::{Decoding, Ids, Pairs, Workload};

fn workload() -> Workload {
    Workload::seq2seq(Pairs::EUROPARL, Decoding::Stops { extra: 30 })
}

/// A few graphs, as requests bring them.
pub(crate) fn growths() -> Vec<Arc<UnfoldedGrowth>> {
    let (mut workload, mut random) = (workload(), Random::new(3));
    (0..5).map(|_| workload.draw(&mut random).growth).collect()
}

/// When it ends, its number, how long it takes, and who stops in it.
type Task = (u64, TaskSeq, u64, Vec<(LaneId, u32)>);

/// What a host is asked, and how fast it is.
#[derive(Clone, Debug)]
struct Load {
    requests: usize,
    workers: u32,
    /// A request comes every so often, or
    every_ns: u64,
    /// as soon as one of so many clients has been answered.
    clients: Option<usize>,
    /// How many times as long tasks take; and when they take twice that.
    times: u64,
    slow: Range<u64>,
    /// What passes until the end of a task is heard of, and with it whatever has ended by then.
    late_ns: u64,
}

impl Load {
    const fn new(requests: usize, workers: u32) -> Self {
        Self { requests, workers, every_ns: 100_000, clients: None, times: 1, slow: 0..0, late_ns: 0 }
    }
}

/// A host in virtual time, as simple as one can be: tasks of 50 µs and 1 µs for each row, a client that leaves now and then, and every third request with a
/// deadline.
struct Host {
    load: Load,
    /// When the next requests come.
    arrivals: VecDeque<u64>,
    scheduler: Scheduler,
    recorder: Recorder,
    events: Vec<Event>,
    ended: Vec<Time>,
    commands: Commands,
    queues: Vec<VecDeque<Task>>,
    stops: Vec<Option<(u32, u32)>>,
    lanes: Vec<(usize, u32)>,
    in_flight: usize,
}

impl Host {
    fn call(&mut self, now: u64) {
        loop {
            self.recorder.told(Time(now), &self.events, &self.ended);
            self.ended.clear();
            self.scheduler.handle(Time(now), &mut self.events, &mut self.commands);
            self.recorder.decided(&self.commands);
            self.carry_out(now);
            if self.commands.wake_at.is_none_or(|at| at.0 > now) {
                return;
            }
            self.events.push(Event::Wake);
        }
    }

    fn carry_out(&mut self, now: u64) {
        for placement in &self.commands.placements {
            for (chain, (lane, _)) in (0..).zip(&self.commands.places[placement.places.clone()]) {
                if lane.index() >= self.lanes.len() {
                    self.lanes.resize(lane.index() + 1, (0, 0));
                }
                self.lanes[lane.index()] = (placement.request.index(), chain);
            }
        }
        for launch in &self.commands.launches {
            let rows = &self.commands.rows[launch.rows.clone()];
            let queue = &mut self.queues[launch.worker.index()];
            let start = queue.back().map_or(now, |last| last.0.max(now));
            let slower = self.load.times * if self.load.slow.contains(&start) { 2 } else { 1 };
            let busy = (50_000 + 1_000 * rows.len() as u64) * u64::from(launch.steps) * slower;
            let end = start + busy;
            let stopped = rows.iter().filter_map(|row| {
                let (request, chain) = self.lanes[row.lane.index()];
                let (_, step) = self.stops[request].filter(|(stops, _)| *stops == chain)?;
                (row.step..row.step + launch.steps).contains(&step).then_some((row.lane, step))
            });
            queue.push_back((end, launch.seq, busy, stopped.collect()));
        }
        let ended = self.commands.finished.len() + self.commands.failed.len();
        self.in_flight -= ended;
        if self.load.clients.is_some() {
            self.arrivals.extend(std::iter::repeat_n(now + 10_000, ended));
        }
    }
}

/// Records a run of so many requests on so many workers.
pub(crate) fn record(path: &Path, config: Config, requests: usize, workers: u32) {
    record_load(path, config, Load::new(requests, workers));
}

fn record_load(path: &Path, config: Config, load: Load) {
    let Load { requests, workers, every_ns, clients, late_ns, .. } = load;
    let (mut workload, mut random) = (workload(), Random::new(11));
    let mut info = workload.model(Ids::default(), &[64]);
    for cell in &mut info.cells {
        cell.cost = CostTable::measured([Knot { rows: 1, nanoseconds: 51_000 }, Knot { rows: 64, nanoseconds: 114_000 }]);
    }
    let mut events = vec![Event::ModelUp(Arc::new(info))];
    for worker in 0..workers {
        let (worker, domain) = (WorkerId(worker), DomainId(0));
        events.push(Event::WorkerUp { worker, domain, class: NumericClass(0), arena_slots: 1 << 20 });
    }
    let mut host = Host {
        arrivals: clients
            .map_or_else(|| (0..requests as u64).map(|number| number * every_ns + 1).collect(), |clients| vec![1; clients].into()),
        load,
        scheduler: Scheduler::new(config),
        recorder: Recorder::create(path, &config).unwrap(),
        events,
        ended: Vec::new(),
        commands: Commands::default(),
        queues: vec![VecDeque::new(); workers as usize],
        stops: Vec::new(),
        lanes: Vec::new(),
        in_flight: 0,
    };
    host.call(0);
    let mut now = 0;
    while host.stops.len() < requests || host.in_flight > 0 {
        let arrival = host.arrivals.front().copied().filter(|_| host.stops.len() < requests);
        let done = host.queues.iter().filter_map(|queue| queue.front().map(|task| task.0 + late_ns)).min();
        now = [arrival, done].into_iter().flatten().min().expect("requests in flight have tasks").max(now);
        if arrival.is_some_and(|at| at <= now) {
            host.arrivals.pop_front();
            let drawn = workload.draw(&mut random);
            let request = RequestId(host.stops.len() as u32);
            if request.0 % 13 == 12 {
                host.events.push(Event::Cancel(RequestId(request.0 - 2)));
            }
            host.stops.push(drawn.stop);
            host.in_flight += 1;
            let deadline = request.0.is_multiple_of(3).then_some(Time(now + 8_000_000));
            host.events.push(Event::Submit(Submission { request, model: ModelId(0), rank: 0, deadline, growth: drawn.growth }));
        }
        for (worker, queue) in (0..).map(WorkerId).zip(&mut host.queues) {
            while let Some((ended, up_to, busy_ns, stopped)) =
                queue.pop_front_if(|task| done.is_some_and(|done| done <= now) && task.0 <= now)
            {
                host.ended.push(Time(ended));
                host.events.push(Event::Done { worker, up_to, busy_ns, stopped, failed: Vec::new() });
            }
        }
        host.call(now);
    }
}

fn replayed(config: Config, load: Load) -> Replayed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    record_load(&path, config, load);
    replay(&mut Recording::open(&path).unwrap(), &mut |_| ()).unwrap()
}

/// All policies, one after the other: one that is new has to be among them.
fn after(policy: &PolicyKind) -> Option<PolicyKind> {
    match policy {
        PolicyKind::Cellular => Some(PolicyKind::Adaptive),
        PolicyKind::Adaptive => Some(PolicyKind::Lazy(Lazy { objective_ns: 20_000_000, percentile: 90 })),
        PolicyKind::Lazy(_) => Some(PolicyKind::Graph(Graph { bucket_width: 10, window_ns: 0 })),
        PolicyKind::Graph(Graph { window_ns: 0, .. }) => Some(PolicyKind::Graph(Graph { bucket_width: 10, window_ns: 300_000 })),
        PolicyKind::Graph(_) => Some(PolicyKind::Merge(Merge { requests: 16 })),
        PolicyKind::Merge(_) => Some(PolicyKind::Serial),
        PolicyKind::Serial => Some(PolicyKind::LengthAware(LengthAware { timeout_ns: 0, objective_ns: 0 })),
        PolicyKind::LengthAware(_) => Some(PolicyKind::Stages(Stages { count: 4, stretch_ns: None })),
        PolicyKind::Stages(_) => None,
    }
}

#[test]
fn the_same_decisions_come_of_it_under_every_policy() {
    for policy in std::iter::successors(Some(PolicyKind::Cellular), after) {
        let replayed = replayed(Config { policy, ..Config::default() }, Load::new(100, 2));
        assert_eq!(replayed.different, None, "{policy:?}");
        let outcome = &replayed.outcome;
        assert_eq!((replayed.traffic.requests(), replayed.traffic.workers()), (100, 2));
        assert_eq!((outcome.answered + outcome.failed, outcome.unfinished), (100, 0));
        // Deadlines are minded by the one policy alone: the others fail whose clients left.
        let failed = if policy == PolicyKind::Adaptive { 8..=40 } else { 0..=7 };
        assert!(failed.contains(&outcome.failed) && outcome.p99_ms >= outcome.p50_ms && outcome.p50_ms > 1.0, "{policy:?}: {outcome:?}");
    }
}

#[test]
fn other_decisions_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    record(&path, Config::default(), 60, 2);
    let mut recording = Recording::open(&path).unwrap();
    let mut player = Player::new(Scheduler::new(Config { max_tasks_to_submit: 1, ..recording.config() }));
    let mut same = true;
    while let Some(call) = recording.next_call().unwrap().filter(|_| same) {
        same = player.call(call);
    }
    assert!(!same);
}

/// Numbers of the same again in virtual time, each within so much of what was recorded.
fn is_close(replayed: &Replayed, within: f64) {
    let again = what_if(&replayed.traffic, Change::default(), &mut |_| ());
    let (was, is) = (&replayed.outcome, &again);
    assert_eq!((replayed.different, is.answered + is.failed, is.unfinished), (None, was.answered + was.failed, 0));
    let numbers = |outcome: &Outcome| {
        let Outcome { throughput, p50_ms, p90_ms, p99_ms, mean_batch, utilisation, answered, .. } = *outcome;
        [answered as f64, throughput, p50_ms, p90_ms, p99_ms, mean_batch, utilisation]
    };
    for (was, is) in numbers(was).into_iter().zip(numbers(is)) {
        assert!((is / was - 1.0).abs() < within, "{was} became {is} of {:?} and {again:?}", replayed.outcome);
    }
    assert_eq!(again, what_if(&replayed.traffic, Change::default(), &mut |_| ()));
}

#[test]
fn the_same_in_virtual_time_is_close_to_what_was() {
    let replayed = replayed(Config::default(), Load { late_ns: 20_000, ..Load::new(300, 2) });
    assert_eq!(replayed.traffic.clients(), None);
    is_close(&replayed, 0.05);
}

/// Where half of the requests wait for one another in one second, a host that is as fast as the mean all the time has nobody wait.
#[test]
fn a_host_that_was_slow_for_a_while_is_slow_then_again() {
    let load = Load { every_ns: 2_000_000, times: 20, slow: 1_000_000_000..2_000_000_000, ..Load::new(1300, 2) };
    is_close(&replayed(Config::default(), load), 0.1);
}

/// Nobody but one client is there: what its requests take is what its tasks take and until their ends are heard of.
#[test]
fn ends_are_heard_of_as_late_as_they_were() {
    is_close(&replayed(Config::default(), Load { clients: Some(1), late_ns: 500_000, ..Load::new(100, 1) }), 0.02);
}

#[test]
fn clients_who_asked_again_once_they_were_answered_do_so_again() {
    let load = Load { clients: Some(40), late_ns: 20_000, ..Load::new(600, 2) };
    let mut replayed = replayed(Config::default(), load);
    assert_eq!(replayed.traffic.clients(), Some(40));
    is_close(&replayed, 0.08);
    // A host that is slower has them ask less often, and no queue that grows.
    let slower = |traffic: &Traffic| what_if(traffic, Change { workers: Some(1), batch_max: Some(4), ..Change::default() }, &mut |_| ());
    let waited_for = slower(&replayed.traffic);
    replayed.traffic.set_clients(None);
    let not_waited_for = slower(&replayed.traffic);
    assert!(not_waited_for.p99_ms > 2.0 * waited_for.p99_ms, "{not_waited_for:?} {waited_for:?}");
}

#[test]
fn limits_devices_and_policies_make_a_difference() {
    let replayed = replayed(Config::default(), Load::new(300, 2));
    let p99 = |change: Change| {
        let outcome = what_if(&replayed.traffic, change, &mut |_| ());
        assert_eq!(outcome.answered + outcome.failed, 300);
        outcome.p99_ms
    };
    let as_it_was = p99(Change::default());
    assert!(p99(Change { batch_max: Some(1), ..Change::default() }) > 2.0 * as_it_was);
    assert!(p99(Change { workers: Some(1), ..Change::default() }) > 1.2 * as_it_was);
    assert!(p99(Change { workers: Some(4), ..Change::default() }) < as_it_was);
    assert!(p99(Change { policy: Some(PolicyKind::Serial), ..Change::default() }) > 2.0 * as_it_was);
}
