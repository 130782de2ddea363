//! Requests in flight, and whose each lane is.

use cellwright_scheduler::{LaneId, RequestId, Row, Slot};

use crate::fleet::Work;
use crate::workload::Drawn;

/// No step.
const NEVER: u32 = u32::MAX;

/// A request's times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    /// Its number, in order of arrival.
    pub(crate) number: u64,
    pub(crate) arrived_ns: u64,
    /// When the first task with a row of it began.
    pub(crate) started_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    life: Life,
    /// The stage that stops, counted over all chains, and in which step.
    stop: Option<(u32, u32)>,
    lanes: u32,
    alive: bool,
}

/// A lane: whose it is, and when its chain stops.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    request: RequestId,
    stop: u32,
}

/// All requests in flight. Ids are used again once nothing names them.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    requests: Vec<Request>,
    free: Vec<RequestId>,
    lanes: Vec<Lane>,
    arrived: u64,
}

impl Requests {
    pub(crate) fn arrive(&mut self, now: u64, drawn: &Drawn) -> RequestId {
        let stop = drawn.stop.map(|(chain, step)| {
            let chains = &drawn.growth.chains;
            let before: usize = chains.iter().take(chain as usize).map(|chain| chain.stages.len()).sum();
            let stage = chains.get(chain as usize).and_then(|chain| chain.stop).map_or(0, |(stage, _)| stage);
            (before as u32 + stage, step)
        });
        let life = Life { number: self.arrived, arrived_ns: now, started_ns: None };
        self.arrived += 1;
        let request = Request { life, stop, lanes: 0, alive: true };
        if let Some(id) = self.free.pop() {
            self.requests[id.index()] = request;
            return id;
        }
        self.requests.push(request);
        RequestId(self.requests.len() as u32 - 1)
    }

    /// Lanes of a request's graph, one for each stage, chain by chain.
    pub(crate) fn place(&mut self, id: RequestId, places: &[(LaneId, Slot)]) {
        let request = &mut self.requests[id.index()];
        for (stage, (lane, _)) in (0..).zip(places) {
            if lane.0 == u32::MAX {
                continue;
            }
            request.lanes += 1;
            if lane.index() >= self.lanes.len() {
                self.lanes.resize(lane.index() + 1, Lane::default());
            }
            let stop = request.stop.filter(|(stops, _)| *stops == stage).map_or(NEVER, |(_, step)| step);
            self.lanes[lane.index()] = Lane { request: id, stop };
        }
    }

    pub(crate) fn release(&mut self, lane: LaneId) {
        let Some(id) = self.lanes.get(lane.index()).map(|lane| lane.request) else { return };
        let request = &mut self.requests[id.index()];
        request.lanes -= 1;
        if request.lanes == 0 && !request.alive {
            self.free.push(id);
        }
    }

    /// The number of the request whose lane it is.
    pub(crate) fn number(&self, lane: LaneId) -> u64 {
        self.requests[self.lanes[lane.index()].request.index()].life.number
    }

    pub(crate) fn end(&mut self, id: RequestId) -> Option<Life> {
        let request = self.requests.get_mut(id.index()).filter(|request| request.alive)?;
        request.alive = false;
        let life = request.life;
        if request.lanes == 0 {
            self.free.push(id);
        }
        Some(life)
    }

    /// When those arrived that have not ended.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().filter(|request| request.alive).map(|request| request.life.arrived_ns)
    }
}

impl Work for Requests {
    fn begins(&mut self, row: Row, steps: u32, start_ns: u64) -> Option<u32> {
        let lane = self.lanes[row.lane.index()];
        if row.step == 0 {
            self.requests[lane.request.index()].life.started_ns.get_or_insert(start_ns);
        }
        (lane.stop != NEVER && (row.step..row.step + steps).contains(&lane.stop)).then_some(lane.stop)
    }
}
