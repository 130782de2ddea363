//! How long requests will take, and who may join them (LazyBatching, HPCA'21, section IV-C).
//!
//! Equation 2: a request's slack is its objective, less the time it has waited, less the sum of the
//! times that all requests of the batch, newcomers included, take alone. A batch takes less than
//! that sum, so slack is never overestimated. The policy avoids violations first and seeks
//! throughput second. A request that cannot be in time even alone does not count.
//!
//! The equation applies to newcomers of a running batch. If it also held requests back from an idle
//! worker, batches would shrink as the queue grows. At 1,000 requests a second of 7.2 ms each, the
//! sum allows 5 in 40 ms. The paper is never late with 40 ms (figure 15).

use crate::id::{CellTypeId, Time, WorkerId};
use crate::policy::lazy::LazyBatching;
use crate::policy::{Member, View};

/// Chains of a growth whose lengths are remembered.
const CHAINS_MAX: usize = 16;

/// Lengths are told apart up to this one.
const LENGTH_MAX: usize = 4096;

/// The least number of lengths for a percentile.
const SEEN_MIN: u32 = 20;

/// The lengths of a model's chains that may stop, by the chain's number in its growth.
#[derive(Debug, Default)]
pub(crate) struct Profile(Vec<Lengths>);

/// How often each length was seen.
#[derive(Clone, Debug, Default)]
struct Lengths {
    seen: Vec<u32>,
    total: u32,
}

impl Lengths {
    fn learn(&mut self, length: u32) {
        let at = (length as usize).min(LENGTH_MAX);
        if at >= self.seen.len() {
            self.seen.resize(at + 1, 0);
        }
        if self.total == u32::MAX {
            return;
        }
        self.seen[at] += 1;
        self.total += 1;
    }

    /// The least length that `percent` percent do not exceed. None if too few lengths were seen.
    fn percentile(&self, percent: u8) -> Option<u32> {
        let wanted = (u64::from(self.total) * u64::from(percent)).div_ceil(100);
        let mut sum = 0;
        let reaches = |seen: &u32| {
            sum += u64::from(*seen);
            sum >= wanted
        };
        let at = self.seen.iter().position(reaches).filter(|_| self.total >= SEEN_MIN)?;
        Some(at as u32)
    }
}

/// The time of a node alone: NodeLatency of Algorithm 1. Without a cost table, the recent time of
/// the type's tasks.
pub(super) fn node_ns(view: View<'_>, cell_type: CellTypeId) -> u64 {
    let cell = view.model().info.cells.iter().find(|cell| cell.cell_type == cell_type);
    cell.and_then(|cell| cell.cost.nanoseconds(1)).unwrap_or(view.queue(cell_type).estimate_ns)
}

impl LazyBatching {
    /// When a request should be done: by its deadline, and by its model's objective.
    pub(super) fn due_at(&self, view: View<'_>, member: &Member) -> Time {
        let request = view.request(member.request);
        let objective = Time(request.submitted().0.saturating_add(self.parameters.objective_ns));
        request.deadline().map_or(objective, |deadline| deadline.min(objective))
    }

    /// How long a request takes alone from a chain of its growth on: Algorithm 1. A chain that may
    /// stop counts as the percentile of the lengths seen, or as its bound before enough were seen.
    pub(super) fn alone_ns(&self, view: View<'_>, member: &Member, from: u32) -> u64 {
        let Some(graph) = view.growth(member) else { return 0 };
        let (request, cells) = (view.request(member.request), &view.model().info.cells);
        let mut sum = 0_u64;
        for local in from..graph.chains.len() as u32 {
            let Some(chain) = request.chain(graph.first_chain + local).filter(|chain| !chain.cancelled) else { continue };
            let leader = chain.root().and_then(|root| root.checked_sub(graph.first_chain)).unwrap_or(local);
            let expected = if chain.stops && !chain.ended() { self.expected_length(leader) } else { None };
            let length = expected.map_or(chain.end, |expected| expected.min(chain.end));
            let stages = graph.chains[local as usize].stages.iter();
            let step: u64 = stages.map(|stage| node_ns(view, cells[stage.cell as usize].cell_type)).sum();
            sum = sum.saturating_add(step.saturating_mul(u64::from(length)));
        }
        sum
    }

    fn expected_length(&self, chain: u32) -> Option<u32> {
        self.profile.0.get(chain as usize)?.percentile(self.parameters.percentile)
    }

    /// Learns the lengths of a completed request's chains that may stop.
    pub(super) fn learn_lengths(&mut self, view: View<'_>, member: &Member) {
        let Some(graph) = view.growth(member) else { return };
        let request = view.request(member.request);
        for (local, _) in graph.chains.iter().enumerate().take(CHAINS_MAX).filter(|(_, chain)| chain.stop.is_some()) {
            let Some(length) = request.chain(graph.first_chain + local as u32).map(|chain| chain.end) else { continue };
            if local >= self.profile.0.len() {
                self.profile.0.resize_with(local + 1, Lengths::default);
            }
            self.profile.0[local].learn(length);
        }
    }

    /// How many waiting requests may join now, in their order, and whether slack refused the next.
    /// A new batch takes all that fit. A running batch is joined while the slack of all requests
    /// allows it.
    pub(super) fn admissible(&self, view: View<'_>, worker: WorkerId) -> (usize, bool) {
        let Some(domain) = view.worker(worker).map(|state| state.domain) else { return (0, false) };
        let waiting = || self.shelves.waiting(domain);
        let is_open = self.tables.get(&worker).is_none_or(|table| !table.closed);
        let riders = self.riders(worker);
        let Some(first) = waiting().next().filter(|_| is_open) else { return (0, false) };
        let room = (view.batch_limit(first) as usize).saturating_sub(riders.len());
        if riders.is_empty() {
            return (waiting().take(room).count(), false);
        }
        let now = view.now().0;
        let savable = |due: Time, alone: u64| if now.saturating_add(alone) <= due.0 { due } else { Time(u64::MAX) };
        let mut total: u64 = riders.iter().map(|rider| rider.left_ns).fold(0, u64::saturating_add);
        let mut tightest = riders.iter().map(|rider| savable(rider.due, rider.left_ns)).min().unwrap_or(Time(u64::MAX));
        for (count, member) in waiting().take(room).enumerate() {
            let alone = self.alone_ns(view, member, 0);
            total = total.saturating_add(alone);
            tightest = tightest.min(savable(self.due_at(view, member), alone));
            if now.saturating_add(total) > tightest.0 {
                return (count, true);
            }
        }
        (waiting().take(room).count(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_length_that_so_many_do_not_exceed() {
        let mut lengths = Lengths::default();
        (1..=19).for_each(|length| lengths.learn(length));
        assert_eq!(lengths.percentile(90), None, "too little was seen");
        lengths.learn(100_000);
        assert_eq!([50, 90, 95, 100].map(|percent| lengths.percentile(percent)), [Some(10), Some(18), Some(19), Some(LENGTH_MAX as u32)]);
    }
}
