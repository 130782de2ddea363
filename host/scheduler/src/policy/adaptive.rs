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

/// How much of the margin is added when a request was late though it had begun, and taken off when one is done in time: where more begin than can be done,
/// one in thirty-three is late.
const LATE_SHIFT: u32 = 3;
const IN_TIME_SHIFT: u32 = 8;
/// The same when one is given up that the margin alone kept from beginning, so that a margin that lets nobody begin does not last.
const KEPT_SHIFT: u32 = 9;
/// The least that is added, as a part of the time that the request had; and the most that a margin may be of it.
const LEAST_SHIFT: u32 = 8;
const MOST_SHIFT: u32 = 1;

/// Of those that are held to be too late before they begin, every so many-th is let begin all the same: where the times that are known are wrong, and
/// all would be given up, it shows how long requests take.
const TRIED_OF: u64 = 64;

/// Requests with the nearest deadlines that are asked whether they may wait.
const DEADLINES_ASKED: usize = 8;

impl Policy for Adaptive {
    /// Notes which types recur in a request, and until when it may begin.
    fn submitted(&mut self, view: View<'_>, submission: &Submission) -> Option<Time> {
        let graph = &submission.growth;
        self.types.resize(view.types().len(), KnownType::default());
        self.requests = self.requests.saturating_add(1);
        for chain in graph.chains.iter().filter(|chain| chain.length.bound > 0) {
            let bound = chain.length.bound;
            for stage in &chain.stages {
                let known = &mut self.types[view.model().type_of_cell[stage.cell as usize] as usize];
                known.nodes = known.nodes.saturating_add(u64::from(bound));
                known.recurs |= bound > 1 || known.seen == self.requests;
                known.seen = self.requests;
                known.stacked |= chain.stages.len() > 1 && bound > 1;
            }
        }
        let deadline = submission.deadline?;
        self.deadlines.insert((deadline, submission.request));
        let had_ns = deadline.0.saturating_sub(view.now().0);
        let (latest, _) = self.latest_begin(view, (deadline, had_ns), path_ns(view, graph));
        Some(after(latest))
    }

    /// What a request goes on with may have been in it before.
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

    /// Learns the margin. A request that was given up for another reason may have been late before it was reviewed.
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

    /// Gives up a request that cannot be done in time. Times may have changed since it came. One that has begun goes on until its time is up.
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

/// The moment after which it is too late.
const fn after(latest: Time) -> Time {
    Time(latest.0.saturating_add(1))
}

/// Deadlines.
impl Adaptive {
    /// A request that had so long was late though it had begun.
    fn was_late(&mut self, had_ns: u64) {
        let more = (self.margin_ns >> LATE_SHIFT).max(had_ns >> LEAST_SHIFT);
        // Of another that had more time a larger one may be known.
        self.margin_ns = self.margin_ns.max(self.margin_ns.saturating_add(more).min(had_ns >> MOST_SHIFT));
    }

    /// When a request whose longest path takes so long has to begin to be done in time, as tasks go now: paths are taken to be as short as they may be, and
    /// while others run, requests to take as much longer as they did lately, but no longer than half of the time that they have; and when without that.
    fn latest_begin(&self, view: View<'_>, (deadline, had_ns): (Time, u64), path_ns: u64) -> (Time, Time) {
        let workers = view.workers().filter(|(_, worker)| worker.class == view.model().info.class);
        let ahead = workers.map(|(_, worker)| worker.tasks.iter().map(|task| task.charged_ns).sum::<u64>()).min().unwrap_or(0);
        let margin = if view.model().flying > 0 { self.margin_ns } else { 0 };
        let margin = margin.min(had_ns >> MOST_SHIFT);
        let alone = deadline.0.saturating_sub(path_ns.saturating_add(ahead));
        (Time(alone.saturating_sub(margin)), Time(alone))
    }
}

/// The longest path of a growth, in device time. Chains that may stop may do so at once.
fn path_ns(view: View<'_>, graph: &UnfoldedGrowth) -> u64 {
    let known = view.model();
    // While others run, tasks take what they lately did. That says little of a request that is alone, but that it takes no longer.
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
                // Its last step may be the only one that waits for the last of the other.
                Dependency::Step { chain, .. } => beside = beside.max(of(chain)),
                _ => {}
            }
        }
        paths.push(before.saturating_add(step.saturating_mul(steps)).max(beside));
    }
    paths.into_iter().max().unwrap_or(0)
}

/// Catching up.
impl Adaptive {
    /// The type that runs instead of the one that cellular batching chose: one further behind whose nodes had better catch up first.
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

    /// Of the stacked types, the one of which most rows are done in a time, if that is a tenth more than of the chosen one. Cellular batching runs those
    /// that are furthest on, however few, to their end while all others wait; here a few wait for the many that will come by the same layers in the
    /// next step. They wait for one round through all layers, in which whoever comes by has come, and not while a request is about to be late.
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

    /// Whether a request has no longer than a request takes alone.
    fn is_late(&self, view: View<'_>) -> bool {
        let Some((deadline, _)) = self.deadlines.first() else { return false };
        let types = view.types().iter().zip(&self.types);
        let alone = types.map(|(one, known)| u128::from(known.nodes) * u128::from(one.cost.nanoseconds(1).unwrap_or(0)));
        u128::from(view.now().0) + alone.sum::<u128>() / u128::from(self.requests.max(1)) > u128::from(deadline.0)
    }

    /// Whether so many nodes of a type that is `behind` had better catch up with those `ahead`: whether the times at which all are done, taken together,
    /// are less by a tenth. A closer call is not worth it: those ahead, who came first, would be later.
    fn pays(&self, view: View<'_>, (behind, few_rows): (usize, u32), (ahead, many_rows): (usize, u32)) -> bool {
        let types = view.types();
        let recurs = |at: usize| self.types.get(at).is_none_or(|known| known.recurs);
        if (behind..ahead).any(recurs) {
            return false;
        }
        // Nodes of types that recur meet others on their way anyway: half of what they would gain together counts.
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
        // Whatever is gained, who has a deadline waits for those behind, and then goes all of its way among more. Who is late either way has no say.
        let gap_ns = || (behind..ahead).filter_map(|at| types[at].cost.nanoseconds(few_rows)).fold(0, u64::saturating_add);
        let in_time = |(deadline, id): &(Time, RequestId)| {
            let done = |gap_ns: u64, rows: u32| view.now().0.saturating_add(gap_ns).saturating_add(left_ns(view, *id, rows));
            done(gap_ns(), many_rows + few_rows) <= deadline.0 || done(0, many_rows) > deadline.0
        };
        10 * apart > 11 * (many + few) * done && self.deadlines.iter().take(DEADLINES_ASKED).all(in_time)
    }
}

/// How long a request takes from here in batches of so many rows, all else apart.
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
