//! Devices that run tasks one after the other, each for as long as its costs say.

use std::collections::VecDeque;

use cellwright_cell_graph::Random;
use cellwright_scheduler::{CostTable, LaneId, Launch, Row, TaskSeq, WorkerId};

use crate::device::{CellCosts, Delays, QUIET_NS};

/// How putting a batch together is costed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Gathering {
    /// By the device's curve of overhead: for every task, whatever is in it.
    #[default]
    Curve,
    /// By the rows whose values are not where the task before left them, at the device's time for each; and scheduling by a thread of its own, for which a
    /// task waits, but no device that still has another to run.
    Moved {
        /// What scheduling takes for each row, in nanoseconds.
        scheduling_ns_per_row: f64,
    },
}

/// What devices have in common.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// By cell type.
    pub(crate) costs: Vec<CellCosts>,
    /// By cell type, whether rows go on from where they are; asked only where rows that moved are counted.
    pub(crate) recurrent: Vec<bool>,
    pub(crate) gathering: Gathering,
    pub(crate) delays: Delays,
    /// Whether batches are whole graphs, which nobody has to put together anew, nor to schedule node by node.
    pub(crate) whole: bool,
}

/// What devices are to do: whose the rows of a task are is known there.
pub(crate) trait Work {
    /// A row begins, with so many steps; the step in which its chain stops, if that is among them.
    fn begins(&mut self, row: Row, steps: u32, start_ns: u64) -> Option<u32>;

    /// How long a task takes that begins at that time and costs so much.
    fn takes_ns(&mut self, costs_ns: u64, _start_ns: u64) -> u64 {
        costs_ns
    }
}

/// A task that a device is to run once it has run those before.
#[derive(Clone, Debug)]
struct Queued {
    launch: Launch,
    rows: Vec<Row>,
    overhead_ns: u64,
    /// Not before it is scheduled, and its device has woken up.
    ready_ns: u64,
    /// Nor sooner than so long after that and the task before it.
    between_ns: u64,
}

/// A task on a device: how long it takes is known once it begins.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    seq: TaskSeq,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) stopped: Vec<(LaneId, u32)>,
}

#[derive(Clone, Debug, Default)]
struct Device {
    queue: VecDeque<Queued>,
    /// When the last task that has begun ends, or has ended.
    ended_ns: Option<u64>,
    /// When an end was heard of last.
    heard_ns: Option<u64>,
    /// Tasks that have begun, and of whose end nobody has heard.
    flying: VecDeque<Flight>,
    /// By cell type, whose values its last task left in which place, and for which step.
    last: Vec<Vec<(LaneId, u32)>>,
}

impl Device {
    /// Whether it has had nothing to do since before now, and so has to wake up: what is launched when its last end is heard of goes on from there.
    fn sleeps(&self, now: u64) -> bool {
        self.queue.is_empty() && self.flying.is_empty() && self.heard_ns.is_none_or(|heard_ns| heard_ns < now)
    }
}

/// All devices of a run.
#[derive(Debug)]
pub(crate) struct Fleet {
    machine: Machine,
    devices: Vec<Device>,
    /// Lists of rows to be used again.
    spares: Vec<Vec<Row>>,
    /// When the scheduler's thread has done what it was asked.
    scheduled_ns: u64,
    random: Random,
}

impl Fleet {
    /// No device yet; the seed is for how long they take to wake up.
    pub(crate) const fn new(machine: Machine, seed: u64) -> Self {
        Self { machine, devices: Vec::new(), spares: Vec::new(), scheduled_ns: 0, random: Random::new(seed) }
    }

    /// One more, which has nothing to do.
    pub(crate) fn add(&mut self) {
        self.devices.push(Device { last: vec![Vec::new(); self.machine.costs.len()], ..Device::default() });
    }

    /// What the scheduler is told of costs, by cell, and whether batches are filled first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (CostTable, bool)> {
        let table =
            |costs: &CellCosts| if self.machine.whole { costs.compute.table() } else { costs.compute.plus(&costs.overhead).table() };
        self.machine.costs.iter().map(move |costs| (table(costs), costs.fill_first))
    }

    /// From now on so much passes beside tasks.
    pub(crate) fn set_delays(&mut self, delays: &Delays) {
        self.machine.delays.clone_from(delays);
    }

    /// Takes a task into its device's queue.
    pub(crate) fn launch(&mut self, now: u64, launch: &Launch, rows: &[Row]) {
        let overhead_ns = self.overhead(launch, rows);
        if let Gathering::Moved { scheduling_ns_per_row } = self.machine.gathering
            && !self.machine.whole
        {
            let scheduling = scheduling_ns_per_row * launch.nodes() as f64;
            self.scheduled_ns = self.scheduled_ns.max(now).saturating_add(scheduling.round() as u64);
        }
        let mut kept = self.spares.pop().unwrap_or_default();
        kept.extend_from_slice(rows);
        let device = &mut self.devices[launch.worker.index()];
        let Delays { wake, between_ns, .. } = &self.machine.delays;
        let scheduled_ns = now.max(self.scheduled_ns);
        let (ready_ns, between_ns) =
            if device.sleeps(now) { (scheduled_ns.saturating_add(wake.draw(&mut self.random)), 0) } else { (scheduled_ns, *between_ns) };
        device.queue.push_back(Queued { launch: launch.clone(), rows: kept, overhead_ns, ready_ns, between_ns });
    }

    /// When a device may begin its next task, if it has one and none is running by now.
    pub(crate) fn next_start(&self, worker: WorkerId, now: u64) -> Option<u64> {
        let device = &self.devices[worker.index()];
        let first = device.queue.front()?;
        match device.ended_ns {
            Some(ended_ns) if ended_ns > now => None,
            ended_ns => Some(first.ready_ns.max(ended_ns.unwrap_or(0)).saturating_add(first.between_ns)),
        }
    }

    /// When each task begins and ends that has begun, and of whose end nobody has heard.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (u64, u64)> {
        self.devices.iter().flat_map(|device| &device.flying).map(|flight| (flight.start_ns, flight.end_ns))
    }

    /// A device begins its next task, which `seen` is shown.
    pub(crate) fn start<W: Work>(&mut self, worker: WorkerId, now: u64, work: &mut W, seen: impl FnOnce(&Launch, &[Row], &Flight, &W)) {
        let quiet = self.is_quiet(worker, now);
        let device = &mut self.devices[worker.index()];
        let Some(Queued { launch, mut rows, overhead_ns, .. }) = device.queue.pop_front() else { return };
        let costs = &self.machine.costs[launch.cell_type.index()];
        let costs_ns =
            costs.compute_ns(launch.step_rows() as u32, quiet).saturating_mul(u64::from(launch.steps)).saturating_add(overhead_ns);
        let busy_ns = work.takes_ns(costs_ns, now);
        // A device's table may say more than there is time.
        let end_ns = now.saturating_add(busy_ns);
        device.ended_ns = Some(end_ns);
        let stops = rows.iter().filter_map(|row| Some((row.lane, work.begins(*row, launch.steps, now)?)));
        let flight = Flight { seq: launch.seq, start_ns: now, end_ns, busy_ns, stopped: stops.collect() };
        seen(&launch, &rows, &flight, work);
        device.flying.push_back(flight);
        rows.clear();
        self.spares.push(rows);
    }

    /// What a launch costs besides its cells.
    fn overhead(&mut self, launch: &Launch, rows: &[Row]) -> u64 {
        if self.machine.whole {
            return 0;
        }
        let costs = &self.machine.costs[launch.cell_type.index()];
        match self.machine.gathering {
            Gathering::Curve => costs.overhead.at(launch.step_rows() as u32).saturating_mul(u64::from(launch.steps)),
            Gathering::Moved { .. } => {
                let last = &mut self.devices[launch.worker.index()].last[launch.cell_type.index()];
                let stays = self.machine.recurrent[launch.cell_type.index()];
                let stayed = last.iter().zip(rows).filter(|(last, row)| stays && **last == (row.lane, row.step)).count();
                last.clear();
                last.extend(rows.iter().map(|row| (row.lane, row.step + launch.steps)));
                ((rows.len() - stayed) as f64 * costs.gather_ns_per_row).round() as u64
            }
        }
    }

    /// Whether there are other devices and none has had anything to do for a while.
    fn is_quiet(&self, worker: WorkerId, now: u64) -> bool {
        let idle =
            |other: &Device| other.queue.is_empty() && other.ended_ns.is_none_or(|ended_ns| ended_ns.saturating_add(QUIET_NS) <= now);
        self.devices.len() > 1 && self.devices.iter().enumerate().all(|(index, other)| index == worker.index() || idle(other))
    }

    /// Whether every device is at work.
    pub(crate) fn is_busy(&self, now: u64) -> bool {
        self.devices.iter().all(|device| !device.queue.is_empty() || device.ended_ns.is_some_and(|ended_ns| ended_ns > now))
    }

    /// It is heard of that the task of that number is done; it is its device's first.
    pub(crate) fn complete(&mut self, now: u64, worker: WorkerId, seq: TaskSeq) -> Option<Flight> {
        let device = self.devices.get_mut(worker.index())?;
        device.heard_ns = Some(now);
        let flight = device.flying.pop_front()?;
        assert!(flight.seq == seq, "tasks of a device end in their order");
        Some(flight)
    }
}
