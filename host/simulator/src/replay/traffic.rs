//! What was asked of a scheduler, without what it made of it.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{Config, CostTable, Event, ModelId, Submission, Time};

use super::books::Trigger;
use crate::costs::Samples;

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
    /// What a task costs, by cell type.
    pub(super) costs: Vec<CostTable>,
    /// What passes, beside the task, until its end is heard of.
    pub(super) handover_ns: u64,
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

    /// The recording is at its end: what tasks cost is known.
    pub(super) fn settle(&mut self, config: Config, samples: &Samples) {
        self.config = config;
        let cells =
            self.host.iter().filter_map(|(_, event)| if let Event::ModelUp(info) = event { Some(&info.cells) } else { None }).flatten();
        let mut costs: Vec<CostTable> = Vec::new();
        for cell in cells {
            let at = cell.cell_type.index();
            if at >= costs.len() {
                costs.resize(at + 1, CostTable::unknown());
            }
            costs[at] = samples.table(cell.cell_type, &cell.cost);
        }
        self.costs = costs;
        self.handover_ns = samples.handover_ns();
    }
}
