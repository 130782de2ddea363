//! The same requests, met in virtual time by another scheduler.
//!
//! Requests and clients who leave come when the scheduler heard of them; those of a closed loop's clients as long after as many have ended as they did. What
//! a request does next comes as long after so many of its nodes are complete as it did. Chains stop in the step in which they stopped. What tasks cost and
//! what passes beside them is what [`Meter`](crate::Meter) makes of the recording, in the same second, on devices that are those of
//! [`crate::run()`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use cellwright_scheduler::{BatchSizes, Config, Event, ModelInfo, PolicyKind, RequestId, Row, Submission, TaskSeq, Time, WorkerId};

use super::books::Books;
use super::pace::Part;
use super::traffic::{Asked, Further, Traffic};
use crate::device::Handover;
use crate::driven::{Driven, World};
use crate::fleet::{Fleet, Flight, Machine, Work};
use crate::hearing::Hearing;
use crate::outcome::{Outcome, Recorder};

/// Draw how late ends are heard of, and how long workers take to wake up: the same what-if gives the same numbers.
const HEARING_SEED: u64 = 1;
const WAKING_SEED: u64 = 2;

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
    while let Some(now) = world.next_instant() {
        world.happen(now);
        progress(world.arrived);
    }
    world.end()
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Something of the host, by number.
    Host(usize),
    Done(WorkerId, TaskSeq),
    /// A device may begin its next task, of which the scheduler hears nothing.
    Start(WorkerId),
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
    hearing: Hearing<Due>,
    fleet: Fleet,
    part: Option<&'a Part>,
    /// By number: its id while it is in flight, and how much of what it does next was told.
    ids: Vec<Option<RequestId>>,
    further: Vec<(usize, bool)>,
    free_ids: Vec<RequestId>,
    next_id: u32,
    workers: u32,
    arrived: usize,
    ended: usize,
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
            hearing: Hearing::new(Handover::default(), HEARING_SEED),
            fleet: Fleet::new(Machine { costs: traffic.costs.clone(), ..Machine::default() }, WAKING_SEED),
            part: None,
            ids: vec![None; traffic.requests.len()],
            further: vec![(0, false); traffic.requests.len()],
            free_ids: Vec::new(),
            next_id: 0,
            workers: 0,
            arrived: 0,
            ended: 0,
            recorder: Recorder::new(traffic.first_ns(), 0, None),
        }
    }

    fn next_instant(&self) -> Option<u64> {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        [due, self.hearing.at_ns()].into_iter().flatten().min()
    }

    /// Everything that happens at that time, and, if the scheduler hears of it then, what it makes of it.
    fn happen(&mut self, now: u64) {
        self.keep_pace(now);
        while let Some(Reverse((at, _))) = self.due.peek()
            && *at <= now
        {
            let Some(Reverse((at, happened))) = self.due.pop() else { break };
            match happened {
                Due::Start(worker) => {
                    self.go_on(worker, at);
                    continue;
                }
                Due::Done(worker, _) => self.go_on(worker, at),
                Due::Wake => {}
                // When that was heard of is what was recorded: the wait is over.
                Due::Host(_) | Due::Moved(_) | Due::Arrive(_) | Due::Further(_) | Due::Cancel(_) => self.hearing.at_once(now),
            }
            self.hearing.happened(at, happened);
        }
        if let Some(mut heard) = self.hearing.hears(now, || self.fleet.is_busy(now)) {
            for (_, happened) in heard.drain(..) {
                self.hear(now, happened);
            }
            self.hearing.heard(heard);
            self.act(now);
        }
    }

    /// The host is as fast as it was then.
    fn keep_pace(&mut self, now: u64) {
        let Some(part) = self.traffic.pace.part(now).filter(|part| self.part.is_none_or(|before| !std::ptr::eq(before, *part))) else {
            return;
        };
        self.part = Some(part);
        self.fleet.set_delays(&part.delays);
        self.hearing.set_handover(&part.delays.handover);
    }

    fn hear(&mut self, now: u64, happened: Due) {
        match happened {
            Due::Host(number) => self.host(&self.traffic.host[number].1),
            Due::Done(worker, seq) => self.complete(now, worker, seq),
            Due::Start(_) => {}
            Due::Moved(request) => self.driven.events.push(Event::Moved(request)),
            Due::Arrive(number) => self.arrive(now, number),
            Due::Further(number) => self.step(number),
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
                    self.fleet.add();
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
        self.arrived += 1;
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
        // Whoever waits for others to end comes then.
        let next =
            self.traffic.requests.get(number + 1).filter(|_| self.traffic.clients().is_none_or(|clients| number + 1 < clients as usize));
        if let Some(next) = next {
            self.due.push(Reverse((next.arrived_ns.max(now), Due::Arrive(number + 1))));
        }
    }

    /// A request has ended: its client may ask again.
    fn ask_again(&mut self, now: u64) {
        let Some(clients) = self.traffic.clients() else { return };
        let number = self.ended + clients as usize;
        self.ended += 1;
        if number < self.traffic.requests.len() {
            let lag_ns = self.traffic.lag_ns(number, clients).unwrap_or(0);
            self.due.push(Reverse((now.saturating_add(lag_ns), Due::Arrive(number))));
        }
    }

    /// A device that runs nothing begins its next task, as soon as it may.
    fn go_on(&mut self, worker: WorkerId, now: u64) {
        match self.fleet.next_start(worker, now) {
            Some(at) if at > now => self.due.push(Reverse((at, Due::Start(worker)))),
            Some(_) => {
                let Self { fleet, books, traffic, recorder, due, part, .. } = self;
                let mut tasks =
                    Tasks { chains: Chains { books, requests: &traffic.requests }, longer: part.map_or(1.0, |part| part.longer) };
                fleet.start(worker, now, &mut tasks, |launch, _, flight, _| {
                    recorder.task(now, launch);
                    due.push(Reverse((flight.end_ns, Due::Done(worker, launch.seq))));
                });
            }
            None => {}
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

    fn step(&mut self, number: usize) {
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

    fn complete(&mut self, now: u64, worker: WorkerId, seq: TaskSeq) {
        let Some(Flight { start_ns, end_ns, busy_ns, stopped, .. }) = self.fleet.complete(now, worker, seq) else { return };
        self.recorder.busy(start_ns, end_ns);
        let Some(flight) = self.books.next_flight(worker, seq) else { return };
        let rows = flight.rows.clone();
        for (lane, step) in &stopped {
            self.books.stop(*lane, *step);
        }
        let chains = Chains { books: &self.books, requests: &self.traffic.requests };
        let failed = rows.iter().filter(|row| chains.fails(**row)).map(|row| row.lane).collect();
        self.books.complete(worker, seq, now);
        self.driven.events.push(Event::Done { worker, up_to: seq, busy_ns, stopped, failed });
        let mut requests: Vec<RequestId> = self.books.requests_of(&rows).collect();
        requests.sort_unstable();
        requests.dedup();
        for request in requests {
            self.look_further(now, request);
        }
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

/// Whose rows are, and what their chains did.
struct Chains<'a> {
    books: &'a Books,
    requests: &'a [Asked],
}

impl Chains<'_> {
    fn fails(&self, row: Row) -> bool {
        self.books.chain_of(row.lane).is_some_and(|(number, chain)| self.requests[number].fails == Some(chain))
    }
}

/// Chains on a host that is as fast as it was.
struct Tasks<'a> {
    chains: Chains<'a>,
    longer: f64,
}

impl Work for Tasks<'_> {
    fn begins(&mut self, row: Row, steps: u32, _: u64) -> Option<u32> {
        let (number, chain) = self.chains.books.chain_of(row.lane)?;
        let (_, step) = self.chains.requests[number].stops.iter().find(|(stops, _)| *stops == chain)?;
        (row.step..row.step.saturating_add(steps)).contains(step).then_some(*step)
    }

    fn takes_ns(&mut self, costs_ns: u64, _: u64) -> u64 {
        (costs_ns as f64 * self.longer) as u64
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
            self.fleet.launch(now, launch, &self.driven.commands.rows[launch.rows.clone()]);
        }
        for index in 0..self.driven.commands.finished.len() {
            let id = self.driven.commands.finished[index];
            self.leave(id);
            if let Some(life) = self.books.end(id) {
                self.recorder.finished(life.arrived_ns, life.started_ns.unwrap_or(now), now);
                self.ask_again(now);
            }
        }
        for index in 0..self.driven.commands.failed.len() {
            let id = self.driven.commands.failed[index].0;
            self.leave(id);
            if let Some(life) = self.books.end(id) {
                self.recorder.failed(life.arrived_ns, now);
                self.ask_again(now);
            }
        }
        // Not before all have what they are to do: whether others have is what a device may have to know.
        for index in 0..self.driven.commands.launches.len() {
            let worker = self.driven.commands.launches[index].worker;
            self.go_on(worker, now);
        }
    }

    fn wake_at(&mut self, at: u64) {
        self.due.push(Reverse((at, Due::Wake)));
    }
}
