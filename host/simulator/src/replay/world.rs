//! The same requests, met in virtual time by another scheduler.
//!
//! Arrivals and clients who leave come when they came; what a request does next comes as long after so many of its nodes are complete as it did.
//! Chains stop in the step in which they stopped. A task takes as long as tasks of its size took, and its end is heard of as much later as it
//! was where a worker had one task alone; what the engine's thread itself takes is left out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use cellwright_scheduler::{BatchSizes, Config, Event, LaneId, ModelInfo, PolicyKind, RequestId, Row, Submission, TaskSeq, Time, WorkerId};

use super::books::Books;
use super::traffic::{Further, Traffic};
use crate::driven::{Driven, World};
use crate::outcome::{Outcome, Recorder};

/// A task of which nothing is known.
const UNKNOWN_NS: u64 = 1000;

/// What is to be different.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// The policy, whatever models ask for; none: as it was.
    pub policy: Option<PolicyKind>,
    /// Every cell's batch limit.
    pub batch_max: Option<u32>,
    /// Workers, all like the first.
    pub workers: Option<u32>,
}

/// What would have come of it; `progress` is told how many requests have arrived.
#[must_use]
pub fn what_if(traffic: &Traffic, change: Change, progress: &mut dyn FnMut(usize)) -> Outcome {
    let mut world = Replay::new(traffic, change);
    while let Some(Reverse((now, _))) = world.due.peek().copied() {
        while let Some(Reverse((at, due))) = world.due.peek().copied()
            && at <= now
        {
            world.due.pop();
            world.happens(now, due);
        }
        world.act(now);
        progress(world.arrived);
    }
    world.end()
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Something of the host, by number.
    Host(usize),
    Done(WorkerId, TaskSeq, u64),
    Moved(RequestId),
    /// A request, by number.
    Arrive(usize),
    /// What it does next.
    Further(usize),
    Cancel(usize),
    Wake,
}

struct Replay<'a> {
    traffic: &'a Traffic,
    change: Change,
    driven: Driven,
    books: Books,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    /// By number: its id while it is in flight, and how much of what it does next was told.
    ids: Vec<Option<RequestId>>,
    further: Vec<(usize, bool)>,
    free_ids: Vec<RequestId>,
    next_id: u32,
    free_at: Vec<u64>,
    workers: u32,
    arrived: usize,
    recorder: Recorder,
}

impl<'a> Replay<'a> {
    fn new(traffic: &'a Traffic, change: Change) -> Self {
        let mut due = BinaryHeap::new();
        due.extend(traffic.host.iter().enumerate().map(|(number, (at, _))| Reverse((*at, Due::Host(number)))));
        due.extend(traffic.requests.first().map(|first| Reverse((first.arrived_ns, Due::Arrive(0)))));
        Self {
            traffic,
            change,
            driven: Driven::new(Config { policy: change.policy.unwrap_or(traffic.config.policy), ..traffic.config }),
            books: Books::default(),
            due,
            ids: vec![None; traffic.requests.len()],
            further: vec![(0, false); traffic.requests.len()],
            free_ids: Vec::new(),
            next_id: 0,
            free_at: Vec::new(),
            workers: 0,
            arrived: 0,
            recorder: Recorder::new(traffic.first_ns(), 0, None),
        }
    }

    fn happens(&mut self, now: u64, due: Due) {
        match due {
            Due::Host(number) => self.host(&self.traffic.host[number].1),
            Due::Done(worker, seq, busy_ns) => self.complete(now, worker, seq, busy_ns),
            Due::Moved(request) => self.driven.events.push(Event::Moved(request)),
            Due::Arrive(number) => self.arrive(now, number),
            Due::Further(number) => self.go_on(number),
            Due::Cancel(number) => self.driven.events.extend(self.ids[number].map(Event::Cancel)),
            Due::Wake => self.driven.events.push(Event::Wake),
        }
    }

    fn host(&mut self, event: &Event) {
        match event {
            Event::WorkerUp { domain, class, arena_slots, .. } => {
                let wanted = self.change.workers.map_or(1, |workers| if self.workers == 0 { workers.max(1) } else { 0 });
                for _ in 0..wanted {
                    let worker = WorkerId(self.workers);
                    self.workers += 1;
                    self.free_at.push(0);
                    self.driven.events.push(Event::WorkerUp { worker, domain: *domain, class: *class, arena_slots: *arena_slots });
                }
            }
            Event::ModelUp(info) => {
                let mut info = ModelInfo::clone(info);
                if self.change.policy.is_some() {
                    info.policy = None;
                }
                for cell in &mut info.cells {
                    let max = self.change.batch_max.unwrap_or(cell.batch.max).max(1);
                    cell.batch = BatchSizes { min: cell.batch.min.min(max), quantum: cell.batch.quantum.min(max), max };
                }
                self.driven.events.push(Event::ModelUp(Arc::new(info)));
            }
            other => self.driven.events.push(other.clone()),
        }
    }

    fn arrive(&mut self, now: u64, number: usize) {
        let asked = &self.traffic.requests[number];
        self.free_ids.append(&mut self.books.gone);
        let request = self.free_ids.pop().unwrap_or_else(|| {
            self.next_id += 1;
            RequestId(self.next_id - 1)
        });
        self.arrived = number + 1;
        self.ids[number] = Some(request);
        self.books.arrive(request, number, now, asked.growth.clone());
        self.recorder.arrived(now);
        let deadline = asked.deadline_ns.map(|deadline| Time(now.saturating_add(deadline)));
        let growth = asked.growth.clone();
        self.driven.events.push(Event::Submit(Submission { request, model: asked.model, rank: asked.rank, deadline, growth }));
        if let Some(after) = asked.cancelled_ns {
            self.due.push(Reverse((now.saturating_add(after), Due::Cancel(number))));
        }
        self.look_further(now, request);
        if let Some(next) = self.traffic.requests.get(number + 1) {
            self.due.push(Reverse((next.arrived_ns.max(now), Due::Arrive(number + 1))));
        }
    }

    /// Arranges for what a request does next, if enough of its nodes are complete.
    fn look_further(&mut self, now: u64, id: RequestId) {
        let Some((number, nodes)) = self.books.life(id).map(|life| (life.number, life.nodes)) else { return };
        let (told, arranged) = &mut self.further[number];
        let Some((trigger, _)) = self.traffic.requests[number].further.get(*told).filter(|_| !*arranged) else { return };
        if nodes >= trigger.nodes {
            *arranged = true;
            self.due.push(Reverse((now.saturating_add(trigger.delay_ns), Due::Further(number))));
        }
    }

    fn go_on(&mut self, number: usize) {
        let Some(request) = self.ids[number] else { return };
        let (told, arranged) = &mut self.further[number];
        let Some((_, further)) = self.traffic.requests[number].further.get(*told) else { return };
        (*told, *arranged) = (*told + 1, false);
        match further {
            Further::Grow(growth) => {
                self.books.grow(request, growth.clone());
                self.driven.events.push(Event::Grow { request, growth: growth.clone() });
            }
            Further::Close => self.driven.events.push(Event::Close(request)),
        }
    }

    fn complete(&mut self, now: u64, worker: WorkerId, seq: TaskSeq, busy_ns: u64) {
        let end = now.saturating_sub(self.traffic.handover_ns);
        self.recorder.busy(end.saturating_sub(busy_ns), end);
        let Some(flight) = self.books.next_flight(worker, seq) else { return };
        let (rows, steps) = (flight.rows.clone(), flight.steps);
        let stopped: Vec<(LaneId, u32)> = rows.iter().filter_map(|row| Some((row.lane, self.stop_of(*row, steps)?))).collect();
        for (lane, step) in &stopped {
            self.books.stop(*lane, *step);
        }
        let failed = rows.iter().filter(|row| self.fails(**row)).map(|row| row.lane).collect();
        self.books.complete(worker, seq, now);
        self.driven.events.push(Event::Done { worker, up_to: seq, busy_ns, stopped, failed });
        let mut requests: Vec<RequestId> = self.books.requests_of(&rows).collect();
        requests.sort_unstable();
        requests.dedup();
        for request in requests {
            self.look_further(now, request);
        }
    }

    /// The step in which a row's chain stops, if it is among those of its task.
    fn stop_of(&self, row: Row, steps: u32) -> Option<u32> {
        let (number, chain) = self.books.chain_of(row.lane)?;
        let (_, step) = self.traffic.requests[number].stops.iter().find(|(stops, _)| *stops == chain)?;
        (row.step..row.step.saturating_add(steps)).contains(step).then_some(*step)
    }

    fn fails(&self, row: Row) -> bool {
        self.books.chain_of(row.lane).is_some_and(|(number, chain)| self.traffic.requests[number].fails == Some(chain))
    }

    fn leave(&mut self, id: RequestId) {
        if let Some(life) = self.books.life(id) {
            self.ids[life.number] = None;
        }
    }

    fn end(self) -> Outcome {
        let left: Vec<u64> = self.books.unfinished().collect();
        self.recorder.outcome(self.workers.max(1), &left)
    }
}

impl World for Replay<'_> {
    fn driven(&mut self) -> &mut Driven {
        &mut self.driven
    }

    fn carry_out(&mut self, now: u64) {
        self.books.follow(&self.driven.commands, now);
        for moved in &self.driven.commands.moves {
            self.due.push(Reverse((now, Due::Moved(moved.request))));
        }
        for launch in &self.driven.commands.launches {
            let rows = launch.rows.len() as u32;
            let cost = self.traffic.costs.get(launch.cell_type.index()).and_then(|costs| costs.nanoseconds(rows)).unwrap_or(UNKNOWN_NS);
            let busy_ns = cost.saturating_mul(u64::from(launch.steps));
            let free_at = &mut self.free_at[launch.worker.index()];
            let start = now.max(*free_at);
            *free_at = start + busy_ns;
            self.recorder.task(start, launch.steps, launch.rows.len());
            let heard = start + busy_ns + self.traffic.handover_ns;
            self.due.push(Reverse((heard, Due::Done(launch.worker, launch.seq, busy_ns))));
        }
        for index in 0..self.driven.commands.finished.len() {
            let id = self.driven.commands.finished[index];
            self.leave(id);
            if let Some(life) = self.books.end(id) {
                self.recorder.finished(life.arrived_ns, life.started_ns.unwrap_or(now), now);
            }
        }
        for index in 0..self.driven.commands.failed.len() {
            let id = self.driven.commands.failed[index].0;
            self.leave(id);
            if let Some(life) = self.books.end(id) {
                self.recorder.failed(life.arrived_ns, now);
            }
        }
    }

    fn wake_at(&mut self, at: u64) {
        self.due.push(Reverse((at, Due::Wake)));
    }
}
