//! Runs that are recorded and run again.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{
    Config, CostTable, DomainId, Knot, LaneId, ModelId, NumericClass, PolicyKind, RequestId, Submission, TaskSeq, WorkerId,
};

use super::*;
use crate::random::Random;
use crate::recording::Recorder;
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

/// A host in virtual time, as simple as one can be: a request every 100 µs, tasks of 50 µs and 1 µs for each row, a client that leaves now and then.
struct Host {
    scheduler: Scheduler,
    recorder: Recorder,
    events: Vec<Event>,
    commands: Commands,
    queues: Vec<VecDeque<Task>>,
    stops: Vec<Option<(u32, u32)>>,
    lanes: Vec<(usize, u32)>,
    in_flight: usize,
}

impl Host {
    fn call(&mut self, now: u64) {
        loop {
            self.recorder.told(Time(now), &self.events);
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
            let busy = (50_000 + 1_000 * rows.len() as u64) * u64::from(launch.steps);
            let queue = &mut self.queues[launch.worker.index()];
            let end = queue.back().map_or(now, |last| last.0.max(now)) + busy;
            let stopped = rows.iter().filter_map(|row| {
                let (request, chain) = self.lanes[row.lane.index()];
                let (_, step) = self.stops[request].filter(|(stops, _)| *stops == chain)?;
                (row.step..row.step + launch.steps).contains(&step).then_some((row.lane, step))
            });
            queue.push_back((end, launch.seq, busy, stopped.collect()));
        }
        self.in_flight -= self.commands.finished.len() + self.commands.failed.len();
    }
}

/// Records a run of so many requests on so many workers.
pub(crate) fn record(path: &Path, config: Config, requests: usize, workers: u32) {
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
        scheduler: Scheduler::new(config),
        recorder: Recorder::create(path, &config).unwrap(),
        events,
        commands: Commands::default(),
        queues: vec![VecDeque::new(); workers as usize],
        stops: Vec::new(),
        lanes: Vec::new(),
        in_flight: 0,
    };
    host.call(0);
    let mut now = 0;
    while host.stops.len() < requests || host.in_flight > 0 {
        let arrival = (host.stops.len() < requests).then_some(host.stops.len() as u64 * 100_000 + 1);
        let done = host.queues.iter().filter_map(|queue| queue.front().map(|task| task.0)).min();
        now = [arrival, done].into_iter().flatten().min().expect("requests in flight have tasks").max(now);
        if arrival.is_some_and(|at| at <= now) {
            let drawn = workload.draw(&mut random);
            let request = RequestId(host.stops.len() as u32);
            if request.0 % 13 == 12 {
                host.events.push(Event::Cancel(RequestId(request.0 - 2)));
            }
            host.stops.push(drawn.stop);
            host.in_flight += 1;
            host.events.push(Event::Submit(Submission { request, model: ModelId(0), rank: 0, deadline: None, growth: drawn.growth }));
        }
        for (worker, queue) in (0..).map(WorkerId).zip(&mut host.queues) {
            while let Some((_, up_to, busy_ns, stopped)) = queue.pop_front_if(|task| task.0 <= now) {
                host.events.push(Event::Done { worker, up_to, busy_ns, stopped, failed: Vec::new() });
            }
        }
        host.call(now);
    }
}

fn replayed(config: Config, requests: usize, workers: u32) -> Replayed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    record(&path, config, requests, workers);
    replay(&mut Recording::open(&path).unwrap(), &mut |_| ()).unwrap()
}

#[test]
fn the_same_decisions_come_of_it_under_every_policy() {
    for policy in [PolicyKind::Cellular, PolicyKind::Graph { bucket_width: 10, window_ns: 0 }, PolicyKind::Serial] {
        let replayed = replayed(Config { policy, ..Config::default() }, 100, 2);
        assert_eq!(replayed.different, None, "{policy:?}");
        let outcome = &replayed.outcome;
        assert_eq!((replayed.traffic.requests(), replayed.traffic.workers()), (100, 2));
        assert_eq!((outcome.answered + outcome.failed, outcome.unfinished), (100, 0));
        assert!(outcome.failed <= 7 && outcome.p99_ms >= outcome.p50_ms && outcome.p50_ms > 1.0, "{outcome:?}");
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

#[test]
fn the_same_in_virtual_time_is_close_to_what_was() {
    let replayed = replayed(Config::default(), 300, 2);
    let again = what_if(&replayed.traffic, Change::default(), &mut |_| ());
    let (was, is) = (&replayed.outcome, &again);
    assert_eq!((is.answered, is.failed, is.unfinished), (was.answered, was.failed, 0));
    for (was, is) in [(was.p50_ms, is.p50_ms), (was.p99_ms, is.p99_ms), (was.mean_batch, is.mean_batch)] {
        assert!((is / was - 1.0).abs() < 0.05, "{was} became {is}");
    }
    let once_more = what_if(&replayed.traffic, Change::default(), &mut |_| ());
    assert_eq!(again, once_more);
}

#[test]
fn limits_devices_and_policies_make_a_difference() {
    let replayed = replayed(Config::default(), 300, 2);
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
