//! What was asked of a scheduler, without what it made of it.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{Config, Event, ModelId, Submission, Time};

use super::books::Trigger;
use super::pace::Pace;
use crate::device::{CellCosts, Curve};
use crate::meter::Meter;

/// A task of which nothing is known.
const UNKNOWN_NS: u64 = 1000;
/// A closed loop's clients asked so often, on average, at least: of fewer it cannot be told.
const ROUNDS_LEAST: usize = 4;
/// In a closed loop requests follow ends within such a part of what a request takes.
const LAG_MOST: f64 = 0.1;

/// A request, as it came and went on.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) arrived_ns: u64,
    pub(super) model: ModelId,
    pub(super) rank: u32,
    /// Nanoseconds after its arrival.
    pub(super) deadline_ns: Option<u64>,
    pub(super) growth: Arc<UnfoldedGrowth>,
    /// How it went on, and when.
    pub(super) further: Vec<(Trigger, Further)>,
    /// Nanoseconds after its arrival at which its client left.
    pub(super) cancelled_ns: Option<u64>,
    /// Chains that stopped, and in which step.
    pub(super) stops: Vec<(u32, u32)>,
    /// A chain in which a kernel refused a row.
    pub(super) fails: Option<u32>,
}

/// How a request goes on.
#[derive(Clone, Debug)]
pub(super) enum Further {
    Grow(Arc<UnfoldedGrowth>),
    Close,
}

/// Everything that was asked, in order.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pub(super) config: Config,
    pub(super) requests: Vec<Asked>,
    /// Workers and models: what a host is made of, and when.
    pub(super) host: Vec<(u64, Event)>,
    /// When requests ended, in order.
    ended_ns: Vec<u64>,
    in_flight_max: usize,
    /// Requests that come once others have ended: see [`Self::clients`].
    clients: Option<u32>,
    /// What a task costs, by cell type.
    pub(super) costs: Vec<CellCosts>,
    /// How fast the host was.
    pub(super) pace: Pace,
}

impl Traffic {
    /// Requests that came.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Workers that there were.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.host.iter().filter(|(_, event)| matches!(event, Event::WorkerUp { .. })).count()
    }

    /// The configuration under which it was met.
    #[must_use]
    pub const fn config(&self) -> Config {
        self.config
    }

    /// When the first request came.
    pub(super) fn first_ns(&self) -> u64 {
        self.requests.first().map_or(0, |asked| asked.arrived_ns)
    }

    pub(super) fn arrive(&mut self, now: Time, submission: &Submission) -> usize {
        self.requests.push(Asked {
            arrived_ns: now.0,
            model: submission.model,
            rank: submission.rank,
            deadline_ns: submission.deadline.map(|deadline| deadline.0.saturating_sub(now.0)),
            growth: submission.growth.clone(),
            further: Vec::new(),
            cancelled_ns: None,
            stops: Vec::new(),
            fails: None,
        });
        self.in_flight_max = self.in_flight_max.max(self.requests.len() - self.ended_ns.len());
        self.requests.len() - 1
    }

    pub(super) fn grow(&mut self, number: usize, growth: Arc<UnfoldedGrowth>, at: Trigger) {
        self.requests[number].further.push((at, Further::Grow(growth)));
    }

    pub(super) fn close(&mut self, number: usize, at: Trigger) {
        self.requests[number].further.push((at, Further::Close));
    }

    pub(super) fn cancel(&mut self, number: usize, now: Time) {
        let asked = &mut self.requests[number];
        asked.cancelled_ns.get_or_insert(now.0.saturating_sub(asked.arrived_ns));
    }

    pub(super) fn stop(&mut self, number: usize, chain: u32, step: u32) {
        self.requests[number].stops.push((chain, step));
    }

    pub(super) fn fail(&mut self, number: usize, chain: u32) {
        self.requests[number].fails.get_or_insert(chain);
    }

    pub(super) fn host(&mut self, now: Time, event: &Event) {
        self.host.push((now.0, event.clone()));
    }

    /// A request has ended; whoever waited for that may ask.
    pub(super) fn end(&mut self, now: Time) {
        self.ended_ns.push(now.0);
    }

    /// How many clients asked again once they were answered, if that is how requests came, or is said to be; each then comes as long after the end before
    /// which it did not come as it did. Otherwise they come when they came, whatever the server does.
    #[must_use]
    pub const fn clients(&self) -> Option<u32> {
        self.clients
    }

    /// Says that there were so many clients who asked again once they were answered; none: that requests came whether or not others were answered.
    pub const fn set_clients(&mut self, clients: Option<u32>) {
        self.clients = clients;
    }

    /// Nanoseconds for which a request came after as many had ended as were answered when one of so many clients could ask it.
    pub(super) fn lag_ns(&self, number: usize, clients: u32) -> Option<u64> {
        let ended_ns = *self.ended_ns.get(number.checked_sub(clients as usize)?)?;
        Some(self.requests[number].arrived_ns.saturating_sub(ended_ns))
    }

    /// As many clients as there were requests in flight at most, if requests then came right after ends: half of them within a tenth of what half of the
    /// requests took. Where requests come whether or not others end, fewer than at most are in flight most of the time.
    fn closed_loop(&self, p50_ms: f64) -> Option<u32> {
        let clients = u32::try_from(self.in_flight_max).ok()?;
        let mut lags: Vec<u64> = (0..self.requests.len()).filter_map(|number| self.lag_ns(number, clients)).collect();
        let (_, median, _) = (lags.len() >= ROUNDS_LEAST * self.in_flight_max.max(1)).then(|| {
            let half = lags.len() / 2;
            lags.select_nth_unstable(half)
        })?;
        (*median as f64 <= p50_ms * 1e6 * LAG_MOST).then_some(clients)
    }

    /// The recording is at its end: what tasks cost is known, and half of the requests took no longer than `p50_ms`.
    pub(super) fn settle(&mut self, config: Config, meter: &mut Meter, p50_ms: f64) {
        self.config = config;
        let cells =
            self.host.iter().filter_map(|(_, event)| if let Event::ModelUp(info) = event { Some(&info.cells) } else { None }).flatten();
        let unknown = || CellCosts { compute: Curve::constant(UNKNOWN_NS), ..CellCosts::default() };
        let mut costs: Vec<CellCosts> = Vec::new();
        for cell in cells {
            let at = cell.cell_type.index();
            if at >= costs.len() {
                costs.resize_with(at + 1, unknown);
            }
            costs[at] = meter.costs(cell.cell_type, &cell.cost);
        }
        self.costs = costs;
        self.pace.settle(meter, &self.costs);
        self.clients = self.closed_loop(p50_ms);
    }
}
