//! Who is where: whose lane each is, what is in flight, and how many nodes of each request are complete.

use std::collections::VecDeque;
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{Commands, LaneId, Placement, RequestId, Row, Slot, TaskSeq, WorkerId};

/// A moment in a request's life, in terms that mean the same under another policy: so long after so many of its nodes were complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) nodes: u64,
    pub(super) delay_ns: u64,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Life {
    /// Its number in the traffic.
    pub(super) number: usize,
    pub(super) arrived_ns: u64,
    pub(super) started_ns: Option<u64>,
    /// Its nodes that are complete, and when the last of them was.
    pub(super) nodes: u64,
    completed_ns: u64,
    growths: Vec<Arc<UnfoldedGrowth>>,
    /// Chains that stopped, and how many steps they had.
    stops: Vec<(u32, u32)>,
    lanes: u32,
    alive: bool,
}

/// A stage of a chain.
#[derive(Clone, Copy, Debug)]
struct Lane {
    request: RequestId,
    chain: u32,
    /// Steps from here on are padding.
    bound: u32,
}

/// A task that was launched.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) seq: TaskSeq,
    pub(super) steps: u32,
    pub(super) rows: Vec<Row>,
}

/// The books of a run.
#[derive(Debug, Default)]
pub(super) struct Books {
    requests: Vec<Option<Life>>,
    /// Requests that nothing names any more, since the last time somebody asked.
    pub(super) gone: Vec<RequestId>,
    lanes: Vec<Option<Lane>>,
    flying: Vec<VecDeque<Flight>>,
}

fn entry<T: Default>(of: &mut Vec<T>, index: usize) -> &mut T {
    if index >= of.len() {
        of.resize_with(index + 1, T::default);
    }
    &mut of[index]
}

impl Books {
    pub(super) fn arrive(&mut self, id: RequestId, number: usize, now: u64, growth: Arc<UnfoldedGrowth>) {
        let life = Life {
            number,
            arrived_ns: now,
            started_ns: None,
            nodes: 0,
            completed_ns: now,
            growths: vec![growth],
            stops: Vec::new(),
            lanes: 0,
            alive: true,
        };
        *entry(&mut self.requests, id.index()) = Some(life);
    }

    pub(super) fn life(&self, id: RequestId) -> Option<&Life> {
        self.requests.get(id.index())?.as_ref()
    }

    fn life_mut(&mut self, id: RequestId) -> Option<&mut Life> {
        self.requests.get_mut(id.index())?.as_mut()
    }

    pub(super) fn grow(&mut self, id: RequestId, growth: Arc<UnfoldedGrowth>) {
        if let Some(life) = self.life_mut(id) {
            life.growths.push(growth);
        }
    }

    /// The number of a request in flight, and which moment in its life this is.
    pub(super) fn trigger(&self, id: RequestId, now: u64) -> Option<(usize, Trigger)> {
        let life = self.life(id).filter(|life| life.alive)?;
        Some((life.number, Trigger { nodes: life.nodes, delay_ns: now.saturating_sub(life.completed_ns) }))
    }

    /// The request's number and the chain of a lane.
    pub(super) fn chain_of(&self, lane: LaneId) -> Option<(usize, u32)> {
        let lane = self.lanes.get(lane.index())?.as_ref()?;
        Some((self.life(lane.request)?.number, lane.chain))
    }

    /// A lane's chain stops in that step; whose it is.
    pub(super) fn stop(&mut self, lane: LaneId, step: u32) -> Option<(usize, u32)> {
        let Lane { request, chain, .. } = (*self.lanes.get(lane.index())?)?;
        let life = self.life_mut(request)?;
        life.stops.push((chain, step.saturating_add(1)));
        Some((life.number, chain))
    }

    /// Notes what was commanded: lanes, tasks. Ends are left to [`Self::end`].
    pub(super) fn follow(&mut self, commands: &Commands, now: u64) {
        for lane in &commands.released {
            self.release(*lane);
        }
        for placement in &commands.placements {
            self.place(placement, &commands.places[placement.places.clone()]);
        }
        for launch in &commands.launches {
            let rows = commands.rows[launch.rows.clone()].to_vec();
            for row in &rows {
                let request = self.lanes.get(row.lane.index()).copied().flatten().map(|lane| lane.request);
                if let Some(life) = request.and_then(|request| self.life_mut(request)) {
                    life.started_ns.get_or_insert(now);
                }
            }
            entry(&mut self.flying, launch.worker.index()).push_back(Flight { seq: launch.seq, steps: launch.steps, rows });
        }
    }

    fn place(&mut self, placement: &Placement, places: &[(LaneId, Slot)]) {
        let Some(life) = self.life_mut(placement.request) else { return };
        let Some(growth) = life.growths.get(placement.growth as usize).cloned() else { return };
        let stages =
            (growth.first_chain..).zip(&growth.chains).flat_map(|(number, chain)| chain.stages.iter().map(move |_| (number, chain)));
        for ((chain, unfolded), (lane, _)) in stages.zip(places) {
            if lane.0 == u32::MAX {
                continue;
            }
            let new = Lane { request: placement.request, chain, bound: unfolded.length.bound };
            let before = entry(&mut self.lanes, lane.index()).replace(new);
            if before.is_none_or(|before| before.request != placement.request)
                && let Some(life) = self.life_mut(placement.request)
            {
                life.lanes += 1;
            }
        }
    }

    fn release(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id.index()).and_then(Option::take) else { return };
        if let Some(life) = self.life_mut(lane.request) {
            life.lanes -= 1;
        }
        self.forget_if_over(lane.request);
    }

    fn forget_if_over(&mut self, id: RequestId) {
        if self.life(id).is_some_and(|life| !life.alive && life.lanes == 0) {
            self.requests[id.index()] = None;
            self.gone.push(id);
        }
    }

    /// Tasks up to that one are complete.
    pub(super) fn complete(&mut self, worker: WorkerId, up_to: TaskSeq, now: u64) {
        let flying = entry(&mut self.flying, worker.index());
        let count = flying.iter().take_while(|flight| flight.seq <= up_to).count();
        let flights: Vec<Flight> = flying.drain(..count).collect();
        for flight in &flights {
            for row in &flight.rows {
                let Some(lane) = self.lanes.get(row.lane.index()).copied().flatten() else { continue };
                let Some(life) = self.life_mut(lane.request) else { continue };
                let stopped = life.stops.iter().find(|(chain, _)| *chain == lane.chain).map_or(lane.bound, |(_, steps)| *steps);
                let end = row.step.saturating_add(flight.steps).min(stopped).min(lane.bound);
                if end > row.step {
                    life.nodes += u64::from(end - row.step);
                    life.completed_ns = now;
                }
            }
        }
    }

    /// That task is paused: it is launched again, with the same rows.
    pub(super) fn pause(&mut self, worker: WorkerId, seq: TaskSeq) {
        entry(&mut self.flying, worker.index()).retain(|flight| flight.seq != seq);
    }

    /// The next task of a worker to be complete.
    pub(super) fn next_flight(&self, worker: WorkerId, seq: TaskSeq) -> Option<&Flight> {
        self.flying.get(worker.index())?.iter().find(|flight| flight.seq == seq)
    }

    /// Whose rows those are, each request once for each of its rows.
    pub(super) fn requests_of<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = RequestId> + 'a {
        rows.iter().filter_map(|row| self.lanes.get(row.lane.index()).copied().flatten()).map(|lane| lane.request)
    }

    /// A request has ended; its life, if it was in flight.
    pub(super) fn end(&mut self, id: RequestId) -> Option<EndOfLife> {
        let life = self.life_mut(id).filter(|life| life.alive)?;
        life.alive = false;
        life.growths = Vec::new();
        let end = EndOfLife { arrived_ns: life.arrived_ns, started_ns: life.started_ns };
        self.forget_if_over(id);
        Some(end)
    }

    /// When those arrived that have not ended.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().flatten().filter(|life| life.alive).map(|life| life.arrived_ns)
    }
}

/// When a request that has ended came, and when something of it was launched first.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndOfLife {
    pub(super) arrived_ns: u64,
    pub(super) started_ns: Option<u64>,
}
