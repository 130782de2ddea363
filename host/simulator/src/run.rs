//! A run: the production scheduler, fed with arrivals and completions in virtual time.
//!
//! It owns the order of events and who was where when. It never looks into the scheduler, and decides nothing: whatever it is commanded to launch
//! takes as long as the device says, tasks of one device one after the other.

mod requests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use cellwright_cell_graph::Random;
use cellwright_scheduler::{Config, DomainId, Event, ModelId, NumericClass, RequestId, Submission, Takes, TaskSeq, Time, WorkerId};

use crate::arrivals::{Arrival, Arrivals, RATE_MAX};
use crate::device::Device;
use crate::driven::{Driven, World};
use crate::error::Error;
use crate::fleet::{Fleet, Flight, Machine};
use crate::hearing::Hearing;
use crate::outcome::{Outcome, Recorder, Shares};
use crate::timeline::Timeline;
use crate::workload::{Ids, Workload};

pub use crate::fleet::Gathering;
pub(crate) use requests::Requests;

/// Slots of each device's arena: no limit to a load that a device can take, but one to what a run takes of the machine's memory.
const ARENA_SLOTS: u32 = 1 << 23;
/// How often progress is told: once for so many instants.
const PROGRESS_EVERY: u64 = 1 << 14;

/// Tell apart what is drawn with one seed: how late ends are heard of, and how long devices take to wake up.
const HEARING: u64 = 0x68 << 56;
const WAKING: u64 = 0x77 << 56;

/// How long a client takes to ask again. Not nothing: where everything is refused at once, time has to pass too.
const AGAIN_NS: u64 = 1000;

/// What a run is.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scheduler's.
    pub config: Config,
    /// What batches cost.
    pub device: Device,
    /// How many of it.
    pub devices: u32,
    /// Limits by cell; the last for all further ones.
    pub batch_max: Vec<u32>,
    /// Tasks after the first of a decision have at least so many rows.
    pub batch_min: u32,
    /// What putting batches together costs.
    pub gathering: Gathering,
    /// When requests come.
    pub arrivals: Arrivals,
    /// For how long they come.
    pub seconds: f64,
    /// What part of that passes before anything is counted.
    pub warm_up: f64,
    /// Whether the run goes on until every request has ended.
    pub drain: bool,
    /// Within which time requests should be answered.
    pub objective_ns: Option<u64>,
    /// Seeds arrivals and shapes.
    pub seed: u64,
    /// Tasks that are kept for a picture of who ran when, at most.
    pub timeline_tasks: usize,
}

impl Setup {
    /// One device, a limit of 512, four seconds, nothing else special.
    #[must_use]
    pub fn new(device: Device, arrivals: Arrivals) -> Self {
        Self {
            config: Config::default(),
            device,
            devices: 1,
            batch_max: vec![512],
            batch_min: 1,
            gathering: Gathering::default(),
            arrivals,
            seconds: 4.0,
            warm_up: 0.2,
            drain: false,
            objective_ns: None,
            seed: 1,
            timeline_tasks: 0,
        }
    }

    /// BatchMaker's own settings (section 4.3 and algorithm 1): asked when idle, five tasks at a time, subgraphs released whole.
    #[must_use]
    pub fn as_published(self) -> Self {
        let config = Config { release: cellwright_scheduler::Release::Subgraph, max_tasks_to_submit: 5, low_water: 0, ..self.config };
        Self { config, ..self }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Ran {
    /// The numbers.
    pub outcome: Outcome,
    /// The first tasks, if any were asked for.
    pub timeline: Timeline,
    /// Milliseconds from arrival to the first cell, and which share of requests waited no longer.
    pub queueing_ms: Shares,
    /// Milliseconds from there to the answer, in the same way.
    pub computation_ms: Shares,
}

/// Runs a workload; `progress` is told how far virtual time has come, in nanoseconds.
///
/// # Errors
/// If the device has no costs for one of the workload's cells, or nothing can arrive at the rate that is asked for.
pub fn run(setup: &Setup, workload: &mut Workload, progress: &mut dyn FnMut(u64)) -> Result<Ran, Error> {
    if let Arrivals::Poisson(rate) = setup.arrivals
        && !(rate > 0.0 && rate <= RATE_MAX)
    {
        return Err(Error::Rate(rate.to_string()));
    }
    let mut simulation = Simulation::new(setup, workload)?;
    let mut turns = 0_u64;
    while let Some(now) = simulation.next_instant() {
        simulation.happen(now, workload);
        turns += 1;
        if turns.is_multiple_of(PROGRESS_EVERY) {
            progress(now);
        }
    }
    Ok(simulation.end())
}

/// What happens next, apart from arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Done(WorkerId, TaskSeq),
    /// A device may begin its next task, of which the scheduler hears nothing.
    Start(WorkerId),
    Moved(RequestId),
    Wake,
    /// A request, of those lengths; here, of a client who was answered and asks again.
    Came(Option<(u32, u32)>),
    /// A request reaches the scheduler, which was waited for already, and what has happened is heard of with it. They come in order of their number, even at
    /// one time: it is in front of when it came, and of its lengths.
    Reached(u64, u64, Option<(u32, u32)>),
}

/// What the devices of a run have in common.
fn machine(setup: &Setup, workload: &Workload, whole: bool) -> Result<Machine, Error> {
    Ok(Machine {
        costs: workload.cells().iter().map(|cell| setup.device.costs(&cell.name).cloned()).collect::<Result<_, _>>()?,
        recurrent: workload.cells().iter().map(|cell| cell.recurrent).collect(),
        gathering: setup.gathering,
        delays: setup.device.delays.clone(),
        whole,
    })
}

struct Simulation<'a> {
    setup: &'a Setup,
    driven: Driven,
    clock: crate::arrivals::Clock<'a>,
    /// Arrivals and shapes have random numbers of their own: another policy, rate or limit meets the same requests.
    random_arrivals: Random,
    random_shapes: Random,
    next_arrival: Option<Arrival>,
    /// Requests that are on their way, or were.
    came: u64,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    hearing: Hearing<Due>,
    fleet: Fleet,
    requests: Requests,
    recorder: Recorder,
    timeline: Timeline,
    last_arrival_ns: u64,
}

impl<'a> Simulation<'a> {
    fn new(setup: &'a Setup, workload: &Workload) -> Result<Self, Error> {
        let ids = Ids::default();
        let mut info = workload.model(ids, &setup.batch_max);
        let whole = setup.config.policy.keeps_batches();
        let mut fleet = Fleet::new(machine(setup, workload, whole)?, setup.seed ^ WAKING);
        for (cell, (cost, fill_first)) in info.cells.iter_mut().zip(fleet.tables()) {
            cell.batch.min = setup.batch_min.clamp(1, cell.batch.max);
            (cell.cost, cell.fill_first) = (cost, fill_first);
        }
        let mut driven = Driven::new(setup.config);
        driven.events.push(Event::ModelUp(Arc::new(info)));
        // Who is taken as a whole runs where it was taken to its end. Until then it has no state anywhere, and waits for whichever device is idle first
        // (BatchMaker, section 7.1).
        let anywhere = setup.device.shares_memory || setup.config.policy.takes() != Takes::Nodes;
        for worker in 0..setup.devices.max(1) {
            fleet.add();
            let (worker, domain) = (WorkerId(worker), DomainId(if anywhere { 0 } else { worker }));
            driven.events.push(Event::WorkerUp { worker, domain, class: NumericClass(0), arena_slots: ARENA_SLOTS });
        }
        let span_ns = (setup.seconds * 1e9) as u64;
        let mut simulation = Self {
            setup,
            driven,
            clock: setup.arrivals.begin(),
            random_arrivals: Random::new(setup.seed),
            random_shapes: Random::new(!setup.seed),
            next_arrival: None,
            came: 0,
            due: BinaryHeap::new(),
            hearing: Hearing::new(setup.device.delays.handover.clone(), setup.seed ^ HEARING),
            fleet,
            requests: Requests::default(),
            recorder: Recorder::new((setup.warm_up.clamp(0.0, 0.99) * span_ns as f64) as u64, span_ns, setup.objective_ns),
            timeline: Timeline::new(setup.timeline_tasks, workload),
            last_arrival_ns: span_ns,
        };
        simulation.advance_arrivals();
        simulation.act(0);
        Ok(simulation)
    }

    fn advance_arrivals(&mut self) {
        let last = self.last_arrival_ns;
        self.next_arrival = self.clock.next(&mut self.random_arrivals).filter(|arrival| arrival.at_ns < last);
    }

    /// The time of what happens next, or is heard of next; none at the end.
    fn next_instant(&self) -> Option<u64> {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let arrival = self.next_arrival.map(|arrival| arrival.at_ns);
        let next = [due, arrival, self.hearing.at_ns()].into_iter().flatten().min()?;
        (self.setup.drain || next < self.last_arrival_ns).then_some(next)
    }

    /// Everything that happens at that time, and, if the scheduler hears of it then, what it makes of it.
    fn happen(&mut self, now: u64, workload: &mut Workload) {
        while let Some(arrival) = self.next_arrival.filter(|arrival| arrival.at_ns <= now) {
            self.come(arrival.at_ns, arrival.lengths);
            self.advance_arrivals();
        }
        while let Some(Reverse((at, _))) = self.due.peek()
            && *at <= now
        {
            let Some(Reverse((at, happened))) = self.due.pop() else { break };
            match happened {
                Due::Start(worker) => {
                    self.go_on(worker, at);
                    continue;
                }
                Due::Came(lengths) => {
                    self.come(at, lengths);
                    continue;
                }
                Due::Done(worker, _) => self.go_on(worker, at),
                Due::Reached(..) => self.hearing.at_once(now),
                Due::Moved(_) | Due::Wake => {}
            }
            self.hearing.happened(at, happened);
        }
        if let Some(heard) = self.hearing.hears(now, || self.fleet.is_busy(now)) {
            self.hear(now, heard, workload);
        }
    }

    /// The scheduler hears of everything that has happened.
    fn hear(&mut self, now: u64, mut heard: Vec<(u64, Due)>, workload: &mut Workload) {
        for (at_ns, happened) in heard.drain(..) {
            match happened {
                Due::Done(worker, seq) => self.complete(now, worker, seq),
                Due::Moved(request) => self.driven.events.push(Event::Moved(request)),
                Due::Wake => self.driven.events.push(Event::Wake),
                Due::Came(lengths) => self.arrive(at_ns, lengths, workload),
                Due::Reached(_, came_ns, lengths) => self.arrive(came_ns, lengths, workload),
                Due::Start(_) => {}
            }
        }
        self.hearing.heard(heard);
        self.act(now);
    }

    /// A request comes at that time, and reaches the scheduler once its way to it and back has passed, if that is known.
    fn come(&mut self, at_ns: u64, lengths: Option<(u32, u32)>) {
        match self.setup.device.request_ns {
            None => self.hearing.happened(at_ns, Due::Came(lengths)),
            Some(request_ns) => {
                self.due.push(Reverse((at_ns.saturating_add(request_ns), Due::Reached(self.came, at_ns, lengths))));
                self.came += 1;
            }
        }
    }

    /// A request that came at that time is heard of.
    fn arrive(&mut self, came_ns: u64, lengths: Option<(u32, u32)>, workload: &mut Workload) {
        let drawn = match lengths {
            None => workload.draw(&mut self.random_shapes),
            Some((source, target)) => workload.of_lengths(source, target, &mut self.random_shapes),
        };
        let request = self.requests.arrive(came_ns, &drawn);
        self.recorder.arrived(came_ns);
        let deadline = self.setup.objective_ns.map(|objective| Time(came_ns.saturating_add(objective)));
        self.driven.events.push(Event::Submit(Submission { request, model: ModelId(0), rank: 0, deadline, growth: drawn.growth }));
    }

    /// A device that runs nothing begins its next task, as soon as it may.
    fn go_on(&mut self, worker: WorkerId, now: u64) {
        match self.fleet.next_start(worker, now) {
            Some(at) if at > now => self.due.push(Reverse((at, Due::Start(worker)))),
            Some(_) => self.start(worker, now),
            None => {}
        }
    }

    fn start(&mut self, worker: WorkerId, now: u64) {
        let Self { fleet, requests, recorder, timeline, due, .. } = self;
        fleet.start(worker, now, requests, |launch, rows, flight, requests| {
            recorder.task(now, launch);
            timeline.task(launch, rows, flight, requests);
            due.push(Reverse((flight.end_ns, Due::Done(worker, launch.seq))));
        });
    }

    fn complete(&mut self, now: u64, worker: WorkerId, seq: TaskSeq) {
        let Some(Flight { start_ns, end_ns, busy_ns, stopped, .. }) = self.fleet.complete(now, worker, seq) else { return };
        self.recorder.busy(start_ns, end_ns);
        self.driven.events.push(Event::Done { worker, up_to: seq, busy_ns, stopped, failed: Vec::new() });
    }

    fn end(mut self) -> Ran {
        for (start_ns, end_ns) in self.fleet.under_way() {
            self.recorder.busy(start_ns, end_ns.min(self.last_arrival_ns));
        }
        let left: Vec<u64> = self.requests.unfinished().collect();
        let (queueing_ms, computation_ms) = self.recorder.shares();
        let outcome = self.recorder.outcome(self.setup.devices.max(1), &left);
        Ran { outcome, timeline: self.timeline, queueing_ms, computation_ms }
    }
}

impl World for Simulation<'_> {
    fn driven(&mut self) -> &mut Driven {
        &mut self.driven
    }

    /// In the order that [`cellwright_scheduler::Commands`] asks for.
    fn carry_out(&mut self, now: u64) {
        let commands = &self.driven.commands;
        for lane in &commands.released {
            self.requests.release(*lane);
        }
        for placement in &commands.placements {
            self.requests.place(placement.request, &commands.places[placement.places.clone()]);
        }
        for moved in &commands.moves {
            self.due.push(Reverse((now.saturating_add(self.setup.device.move_ns), Due::Moved(moved.request))));
        }
        for launch in &commands.launches {
            self.fleet.launch(now, launch, &commands.rows[launch.rows.clone()]);
        }
        for request in &commands.finished {
            if let Some(life) = self.requests.end(*request) {
                self.recorder.finished(life.arrived_ns, life.started_ns.unwrap_or(now), now);
                self.timeline.left(life.number, life.arrived_ns, now);
            }
        }
        for (request, _) in &commands.failed {
            if let Some(life) = self.requests.end(*request) {
                self.recorder.failed(life.arrived_ns, now);
            }
        }
        if matches!(self.setup.arrivals, Arrivals::Clients(_)) && now < self.last_arrival_ns {
            let ended = commands.finished.len() + commands.failed.len();
            self.due.extend((0..ended).map(|_| Reverse((now.saturating_add(AGAIN_NS), Due::Came(None)))));
        }
        // Not before all have what they are to do: whether others have is what a device may have to know.
        for at in 0..self.driven.commands.launches.len() {
            let worker = self.driven.commands.launches[at].worker;
            self.go_on(worker, now);
        }
    }

    fn wake_at(&mut self, at: u64) {
        self.due.push(Reverse((at, Due::Wake)));
    }
}

#[cfg(test)]
mod tests;
