//! Adaptive batching, ours and the default: cellular batching that also knows deadlines and task
//! costs.
//!
//! It decides as `cellular` does, with three exceptions:
//!
//! - A request that has not begun and can no longer meet its deadline is given up at once. Its
//!   device time goes to requests that still can. One in 64 of them begins all the same, to show
//!   whether the known times are right. How long a request takes beside others exceeds its longest
//!   path: the policy learns the difference from requests that began in time and were late all the
//!   same.
//! - Cellular batching always runs the deepest type first. Here nodes that are further behind go
//!   first if the cost tables say that catching up pays. It pays if all requests concerned, taken
//!   together, end sooner as one batch, and if no deadline is missed by it. This is LazyBatching's
//!   preemption (HPCA'21, section IV-A), decided by the time that it saves.
//! - Some layers take turns step by step: stacked recurrent layers, a decoder with its projection.
//!   Among these the fullest type goes first, so that few nodes meet many.
//!
//! Without deadlines and cost tables the policy is cellular batching. So it is for a recurrent
//! layer alone and for trees, whose requests have many nodes of one type: nodes join there at any
//! step. Shares and ranks are those of every policy, see `fairness` and `queues`.

use std::collections::BTreeSet;
use std::ops::Range;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::Dependency;

use crate::command::Failure;
use crate::event::Submission;
use crate::id::{RequestId, Time, WorkerId};
use crate::policy::cellular::{self, choose_type, offered};
use crate::policy::{Ended, Key, Pick, Policy, View};

/// What is known of the model.
#[derive(Debug, Default)]
pub(super) struct Adaptive {
    /// Deadlines of its requests in flight.
    deadlines: BTreeSet<(Time, RequestId)>,
    types: Vec<KnownType>,
    /// How many requests came.
    requests: u64,
    /// Nanoseconds that requests take beyond their longest path while others run.
    margin_ns: u64,
    /// How many were held to be too late before they began.
    too_late: u64,
}

/// What is known of one of a model's types.
#[derive(Clone, Debug, Default)]
struct KnownType {
    /// How many nodes of it requests had.
    nodes: u64,
    /// The last request that had any, by how many came.
    seen: u64,
    /// Whether a request ever had several.
    recurs: bool,
    /// Whether it ever was one of several layers that take turns step by step.
    stacked: bool,
}

/// The part of the margin that is added when a request was late though it had begun, and the part
/// that is removed when a request is in time. Under overload one request in 33 is late.
const LATE_SHIFT: u32 = 3;
const IN_TIME_SHIFT: u32 = 8;
/// The part that is removed when only the margin kept a request from beginning. So a margin that
/// lets no request begin does not last.
const KEPT_SHIFT: u32 = 9;
/// The least that is added and the largest margin, as parts of the time that the request had.
const LEAST_SHIFT: u32 = 8;
const MOST_SHIFT: u32 = 1;

/// One in so many requests that seem too late begins all the same. If the known times are wrong and
/// all requests would be given up, these show how long requests take.
const TRIED_OF: u64 = 64;

/// The requests with the nearest deadlines that are checked before others may catch up.
const DEADLINES_ASKED: usize = 8;

impl Policy for Adaptive {
    /// Records which types recur in a request. Returns when the request can no longer begin in
    /// time.
    fn submitted(&mut self, view: View<'_>, submission: &Submission) -> Option<Time> {
        let (graph, model) = (&submission.growth, view.model());
        if self.types.len() < model.types.len() {
            self.types.resize(model.types.len(), KnownType::default());
        }
        self.requests = self.requests.saturating_add(1);
        for chain in graph.chains.iter().filter(|chain| chain.length.bound > 0) {
            let (bound, repeats) = (chain.length.bound, chain.length.bound > 1);
            for stage in &chain.stages {
                let known = &mut self.types[model.type_of_cell[stage.cell as usize] as usize];
                known.nodes = known.nodes.saturating_add(u64::from(bound));
                known.recurs |= repeats || known.seen == self.requests;
                known.seen = self.requests;
                known.stacked |= repeats && chain.stages.len() > 1;
            }
        }
        let deadline = submission.deadline?;
        self.deadlines.insert((deadline, submission.request));
        let had_ns = deadline.0.saturating_sub(view.now().0);
        let (latest, _) = self.latest_begin(view, (deadline, had_ns), path_ns(view, graph));
        Some(after(latest))
    }

    /// A growth may repeat types of earlier growths.
    fn grown(&mut self, view: View<'_>, growth: &UnfoldedGrowth) {
        for (chain, stage) in growth.chains.iter().flat_map(|chain| chain.stages.iter().map(move |stage| (chain, stage))) {
            let known = &mut self.types[view.model().type_of_cell[stage.cell as usize] as usize];
            known.recurs = true;
            known.stacked |= chain.stages.len() > 1;
        }
    }

    fn has_work(&self, view: View<'_>, worker: WorkerId) -> bool {
        cellular::has_work(view, worker)
    }

    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key> {
        cellular::oldest(view, worker)
    }

    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let chosen = choose_type(view, worker)?;
        Some(cellular::pick(view, self.behind(view, worker, chosen), worker))
    }

    /// Learns the margin. A request that was given up for another reason may have been late before
    /// its review.
    fn ended(&mut self, view: View<'_>, ended: &Ended) {
        let Some(deadline) = ended.deadline else { return };
        self.deadlines.remove(&(deadline, ended.request));
        let late = if ended.finished { deadline < view.now() } else { deadline <= view.now() && ended.begun };
        if late {
            self.was_late(deadline.0.saturating_sub(ended.submitted.0));
        } else if ended.finished {
            self.margin_ns -= self.margin_ns >> IN_TIME_SHIFT;
        }
    }

    /// Gives up a request that cannot be done in time. Task times may have changed since it came. A
    /// request that has begun continues until its deadline.
    fn review(&mut self, view: View<'_>, id: RequestId) -> Result<Option<Time>, Failure> {
        let request = view.request(id);
        let Some(deadline) = request.deadline() else { return Ok(None) };
        let begun = request.has_begun();
        let growth = request.pending().0.or_else(|| request.growth(request.growth_numbers().start));
        let alone_ns = growth.map_or(0, |growth| path_ns(view, growth));
        let had_ns = deadline.0.saturating_sub(request.submitted().0);
        let (latest, alone) = if begun { (deadline, deadline) } else { self.latest_begin(view, (deadline, had_ns), alone_ns) };
        if latest >= view.now() {
            return Ok(Some(after(latest)));
        }
        if !begun {
            if alone >= view.now() {
                self.margin_ns -= self.margin_ns >> KEPT_SHIFT;
            }
            self.too_late += 1;
            if self.too_late.is_multiple_of(TRIED_OF) && view.now() <= deadline {
                return Ok(Some(after(deadline)));
            }
        }
        Err(Failure::Late { alone_ns })
    }
}

/// The first moment that is too late.
const fn after(latest: Time) -> Time {
    Time(latest.0.saturating_add(1))
}

/// Deadlines.
impl Adaptive {
    /// A request was late though it had begun. `had_ns` is the time from its arrival to its
    /// deadline.
    fn was_late(&mut self, had_ns: u64) {
        let more = (self.margin_ns >> LATE_SHIFT).max(had_ns >> LEAST_SHIFT);
        // The margin may already be larger, because of a request with more time.
        self.margin_ns = self.margin_ns.max(self.margin_ns.saturating_add(more).min(had_ns >> MOST_SHIFT));
    }

    /// The latest times at which a request may begin, with the margin and without it. The path
    /// counts as its shortest possible length. While other requests run, the margin is added, but
    /// at most half of the time that the request had.
    fn latest_begin(&self, view: View<'_>, (deadline, had_ns): (Time, u64), path_ns: u64) -> (Time, Time) {
        let workers = view.workers().filter(|(_, worker)| worker.class == view.model().info.class);
        let ahead = workers.map(|(_, worker)| worker.tasks.iter().map(|task| task.charged_ns).sum::<u64>()).min().unwrap_or(0);
        let margin = if view.model().flying > 0 { self.margin_ns } else { 0 };
        let margin = margin.min(had_ns >> MOST_SHIFT);
        let alone = deadline.0.saturating_sub(path_ns.saturating_add(ahead));
        (Time(alone.saturating_sub(margin)), Time(alone))
    }
}

/// The longest path of a growth, in device time. Chains that may stop count as if they stopped at
/// once.
fn path_ns(view: View<'_>, graph: &UnfoldedGrowth) -> u64 {
    let known = view.model();
    // While other requests run, tasks take their recent time. A request alone takes at most that.
    let node_ns = |cell: u32| {
        let at = &known.types[known.type_of_cell[cell as usize] as usize];
        let lately = Some(view.queue(at.cell_type).estimate_ns).filter(|time| *time > 0);
        let alone = known.info.cells[cell as usize].cost.nanoseconds(1).filter(|_| known.flying == 0 || lately.is_none());
        lately.into_iter().chain(alone).min().unwrap_or(0)
    };
    let mut paths: Vec<u64> = Vec::with_capacity(graph.chains.len());
    for chain in &graph.chains {
        let step = chain.stages.iter().map(|stage| node_ns(stage.cell)).fold(0, u64::saturating_add);
        let steps = if chain.sequential && !chain.may_stop() { u64::from(chain.length.bound) } else { chain.length.bound.min(1).into() };
        let of = |chain: &u32| chain.checked_sub(graph.first_chain).and_then(|local| paths.get(local as usize)).copied().unwrap_or(0);
        let depends = chain.stages.iter().flat_map(|stage| &stage.depends);
        let (mut before, mut beside) = (0, 0);
        for depends in depends {
            match depends {
                Dependency::End { chain } => before = before.max(of(chain)),
                // Only its last step may wait for the other chain's last.
                Dependency::Step { chain, .. } | Dependency::Through { chain, .. } => beside = beside.max(of(chain)),
                _ => {}
            }
        }
        paths.push(before.saturating_add(step.saturating_mul(steps)).max(beside));
    }
    paths.into_iter().max().unwrap_or(0)
}

/// Catching up.
impl Adaptive {
    /// The type to run instead of the one that cellular batching chose: a type further behind whose
    /// nodes should catch up first.
    fn behind(&self, view: View<'_>, worker: WorkerId, chosen: usize) -> usize {
        let types = view.types();
        let ready = |at: usize| offered(view, at, &types[at].tally, worker);
        let mut runs = chosen;
        for at in (0..chosen).rev().filter(|at| ready(*at) > 0) {
            let room = types[runs].batch.max.saturating_sub(ready(runs));
            if room == 0 || !self.pays(view, (at, ready(at).min(room)), (runs, ready(runs))) {
                break;
            }
            runs = at;
        }
        self.fullest(view, worker, runs)
    }

    /// Of the stacked types, the one with the most rows per time, if it beats the chosen type by a
    /// tenth.
    ///
    /// Cellular batching runs the nodes that are furthest ahead to their end, however few, while
    /// all others wait. Here a few nodes wait for the many that reach the same layers in their next
    /// step. They wait for one round through all layers, and not while a request is about to be
    /// late.
    fn fullest(&self, view: View<'_>, worker: WorkerId, chosen: usize) -> usize {
        let types = view.types();
        let rows = |at: usize| offered(view, at, &types[at].tally, worker).min(types[at].batch.max);
        let stacked = |at: &usize| self.types.get(*at).is_some_and(|known| known.stacked);
        if !stacked(&chosen) {
            return chosen;
        }
        let time = |at: usize| types[at].cost.nanoseconds(rows(at).max(1)).map(|time| time.max(1));
        let rate =
            |at: usize| time(at).filter(|_| rows(at) > 0 && stacked(&at)).map(|time| (u128::from(rows(at)) << 64) / u128::from(time));
        let Some(own) = rate(chosen) else { return chosen };
        let best = (0..types.len()).filter_map(|at| Some((rate(at)?, at))).max().filter(|(rate, _)| *rate > own + own / 10);
        let round: u64 = (0..types.len()).filter(stacked).filter_map(time).fold(0, u64::saturating_add);
        let waits = |at: usize| {
            let oldest = view.oldest_node(types[at].cell_type, worker, false);
            oldest.is_some_and(|oldest| oldest.time.0.saturating_add(round) >= view.now().0)
        };
        best.filter(|_| waits(chosen) && !self.is_late(view)).map_or(chosen, |(_, at)| at)
    }

    /// Whether the nearest deadline is closer than a request takes alone.
    fn is_late(&self, view: View<'_>) -> bool {
        let Some((deadline, _)) = self.deadlines.first() else { return false };
        let types = view.types().iter().zip(&self.types);
        let alone = types.map(|(one, known)| u128::from(known.nodes) * u128::from(one.cost.nanoseconds(1).unwrap_or(0)));
        u128::from(view.now().0) + alone.sum::<u128>() / u128::from(self.requests.max(1)) > u128::from(deadline.0)
    }

    /// Whether nodes of the type `behind` should catch up with those of the type `ahead`: the sum
    /// of all completion times must fall by a tenth. A smaller gain is not worth it, because the
    /// nodes ahead, which came first, would be later.
    fn pays(&self, view: View<'_>, (behind, few_rows): (usize, u32), (ahead, many_rows): (usize, u32)) -> bool {
        let types = view.types();
        let recurs = |at: usize| self.types.get(at).is_none_or(|known| known.recurs);
        if (behind..ahead).any(recurs) {
            return false;
        }
        // Nodes of types that recur meet others anyway, so half of their gain counts.
        let weigh = |at: usize, time: u64| match self.types.get(at) {
            Some(one) if one.recurs => u128::from(time) * u128::from(one.nodes) / (2 * u128::from(self.requests.max(1))),
            _ => u128::from(time),
        };
        let cost = |range: Range<usize>, rows: u32| {
            let mut sum = 0_u128;
            for at in range {
                sum += weigh(at, types[at].cost.nanoseconds(rows)?);
            }
            Some(sum)
        };
        let rest = ahead..types.len();
        let times =
            (cost(behind..ahead, few_rows), cost(rest.clone(), many_rows), cost(rest.clone(), few_rows), cost(rest, many_rows + few_rows));
        let (Some(gap), Some(first), Some(second), Some(together)) = times else { return false };
        let (few, many) = (u128::from(few_rows), u128::from(many_rows));
        let apart = many * first + few * (first + gap + second);
        let done = gap + together;
        // A request with a deadline waits for the nodes behind, and then runs in larger batches. It
        // must still be in time, unless it is late either way.
        let gap_ns = || (behind..ahead).filter_map(|at| types[at].cost.nanoseconds(few_rows)).fold(0, u64::saturating_add);
        let in_time = |(deadline, id): &(Time, RequestId)| {
            let done = |gap_ns: u64, rows: u32| view.now().0.saturating_add(gap_ns).saturating_add(left_ns(view, *id, rows));
            done(gap_ns(), many_rows + few_rows) <= deadline.0 || done(0, many_rows) > deadline.0
        };
        10 * apart > 11 * (many + few) * done && self.deadlines.iter().take(DEADLINES_ASKED).all(in_time)
    }
}

/// How long the rest of a request takes in batches of `rows` rows, without waiting.
fn left_ns(view: View<'_>, id: RequestId, rows: u32) -> u64 {
    let (request, known, types) = (view.request(id), view.model(), view.types());
    let of_chain = |number: u32| {
        let (chain, graph) = request.chain(number).filter(|chain| !chain.ended()).zip(request.graph_of(number))?;
        let of_stage = |cell: u32| types[known.type_of_cell[cell as usize] as usize].cost.nanoseconds(rows).unwrap_or(0);
        let step = graph.stages.iter().map(|stage| of_stage(stage.cell)).fold(0, u64::saturating_add);
        let landed: u64 = (0..chain.stages()).map(|stage| view.landed_in_group(chain.lane(stage))).sum();
        let steps = chain.remaining.saturating_sub(landed).div_ceil(graph.stages.len().max(1) as u64);
        Some(step.saturating_mul(if graph.sequential { steps } else { steps.min(1) }))
    };
    request.chain_numbers().filter_map(of_chain).fold(0, u64::saturating_add)
}
