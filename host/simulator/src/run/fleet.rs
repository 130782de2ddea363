//! Devices that run tasks one after the other, each for as long as its costs say.

use std::collections::VecDeque;

use cellwright_scheduler::{CostTable, LaneId, Launch, Row, TaskSeq, WorkerId};

use crate::device::CellCosts;
use crate::error::Error;
use crate::workload::Workload;

use super::requests::Requests;
use super::{Gathering, Setup};

/// A task on a device.
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
    free_at_ns: u64,
    flying: VecDeque<Flight>,
    /// By cell type, whose values its last task left in which place, and for which step.
    last: Vec<Vec<(LaneId, u32)>>,
}

/// All devices of a run.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// By cell type.
    costs: Vec<CellCosts>,
    /// By cell type, whether rows go on from where they are.
    recurrent: Vec<bool>,
    gathering: Gathering,
    /// What passes between two tasks.
    between_ns: u64,
    /// Whether batches are whole graphs, which nobody has to put together anew.
    whole: bool,
    devices: Vec<Device>,
    /// When the scheduler's thread has done what it was asked.
    scheduled_ns: u64,
}

impl Fleet {
    pub(super) fn new(setup: &Setup, workload: &Workload, whole: bool) -> Result<Self, Error> {
        let costs = workload.cells().iter().map(|cell| setup.device.costs(&cell.name).cloned()).collect::<Result<Vec<_>, _>>()?;
        let device = Device { last: vec![Vec::new(); costs.len()], ..Device::default() };
        let recurrent = workload.cells().iter().map(|cell| cell.recurrent).collect();
        Ok(Self {
            costs,
            recurrent,
            gathering: setup.gathering,
            between_ns: setup.device.between_ns,
            whole,
            devices: vec![device; setup.devices.max(1) as usize],
            scheduled_ns: 0,
        })
    }

    /// What the scheduler is told of costs, by cell.
    pub(super) fn tables(&self) -> impl Iterator<Item = CostTable> {
        self.costs.iter().map(|costs| if self.whole { costs.compute.table() } else { costs.compute.plus(&costs.overhead).table() })
    }

    /// Takes a task into its device's queue.
    pub(super) fn launch(&mut self, now: u64, launch: &Launch, rows: &[Row], requests: &mut Requests) -> Flight {
        let batch = rows.len() as u32;
        let steps = u64::from(launch.steps);
        let overhead_ns = self.overhead(launch, rows);
        if let Gathering::Moved { scheduling_ns_per_row } = self.gathering {
            let scheduling = scheduling_ns_per_row * rows.len() as f64 * f64::from(launch.steps);
            self.scheduled_ns = self.scheduled_ns.max(now) + scheduling.round() as u64;
        }
        let busy_ns = self.costs[launch.cell_type.index()].compute.at(batch) * steps + overhead_ns;
        let device = &mut self.devices[launch.worker.index()];
        let start_ns = now.max(device.free_at_ns).max(self.scheduled_ns);
        let end_ns = start_ns + busy_ns;
        device.free_at_ns = end_ns + self.between_ns;
        let stops = rows.iter().filter_map(|row| Some((row.lane, requests.row(row.lane, row.step, launch.steps, start_ns)?)));
        let flight = Flight { seq: launch.seq, start_ns, end_ns, busy_ns, stopped: stops.collect() };
        device.flying.push_back(flight.clone());
        flight
    }

    /// What a launch costs besides its cells.
    fn overhead(&mut self, launch: &Launch, rows: &[Row]) -> u64 {
        if self.whole {
            return 0;
        }
        let costs = &self.costs[launch.cell_type.index()];
        match self.gathering {
            Gathering::Curve => costs.overhead.at(rows.len() as u32) * u64::from(launch.steps),
            Gathering::Moved { .. } => {
                let last = &mut self.devices[launch.worker.index()].last[launch.cell_type.index()];
                let stays = self.recurrent[launch.cell_type.index()];
                let stayed = last.iter().zip(rows).filter(|(last, row)| stays && **last == (row.lane, row.step)).count();
                last.clear();
                last.extend(rows.iter().map(|row| (row.lane, row.step + launch.steps)));
                ((rows.len() - stayed) as f64 * costs.gather_ns_per_row).round() as u64
            }
        }
    }

    /// Whether every device is at work.
    pub(super) fn is_busy(&self, now: u64) -> bool {
        self.devices.iter().all(|device| device.flying.back().is_some_and(|last| last.end_ns > now))
    }

    /// The task of that number is done; it is its device's first.
    pub(super) fn complete(&mut self, worker: WorkerId, seq: TaskSeq) -> Option<Flight> {
        let flying = &mut self.devices.get_mut(worker.index())?.flying;
        let flight = flying.pop_front()?;
        assert!(flight.seq == seq, "tasks of a device end in their order");
        Some(flight)
    }
}
