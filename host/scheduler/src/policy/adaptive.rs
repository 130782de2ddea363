//! Adaptive batching, ours: cellular batching (`cellular`) that also knows deadlines and what tasks cost.
//!
//! It decides as cellular batching does, but for three things. A request that has not begun and can no longer be done by its deadline is given up at
//! once, so that what it would have taken goes to those that still can. How long a request takes beside others, which is more than its longest path, is
//! learnt from those that began in time and were late all the same. Where cellular batching always runs the deepest type first, nodes that are
//! further behind go first if the cost tables say that catching up pays: all who are concerned, taken together, are done sooner if the two go on as one
//! batch, and no deadline is missed by it. That is LazyBatching's preemption (HPCA'21, section IV-A), decided by what it saves. And among layers that take
//! turns step by step (stacked recurrent layers, a decoder with its projection) the fullest goes first, so that the few meet the many.
//!
//! Without deadlines and cost tables it is cellular batching, and so it is among other nodes of which a request has many (a recurrent layer alone,
//! trees): there nodes join at any step, and nothing is gained by waiting for one. Tenants' shares and ranks are everybody's, see `fairness` and `queues`.

use std::collections::BTreeSet;
use std::ops::Range;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::Dependency;

use crate::command::Failure;
use crate::fleet::{ModelType, entry};
use crate::id::{DomainId, ModelId, RequestId, Time, WorkerId};
use crate::request::Phase;
use crate::scheduler::Scheduler;

/// Deadlines, and what models' requests are made of.
#[derive(Debug, Default)]
pub(crate) struct AdaptivePolicy {
    /// When requests with a deadline have to be looked at: the last moment at which they may begin.
    latest: BTreeSet<(Time, RequestId)>,
    /// By model's id.
    models: Vec<Option<Box<Known>>>,
}

/// What is known of a model.
#[derive(Debug, Default)]
struct Known {
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

impl Known {
    /// A request that had so long was late though it had begun.
    fn was_late(&mut self, had_ns: u64) {
        let more = (self.margin_ns >> LATE_SHIFT).max(had_ns >> LEAST_SHIFT);
        // Of another that had more time a larger one may be known.
        self.margin_ns = self.margin_ns.max(self.margin_ns.saturating_add(more).min(had_ns >> MOST_SHIFT));
    }
}

impl AdaptivePolicy {
    /// A model is gone.
    pub(crate) fn forget_model(&mut self, id: ModelId) {
        if let Some(known) = self.models.get_mut(id.index()) {
            *known = None;
        }
    }

    fn known(&self, id: ModelId) -> Option<&Known> {
        self.models.get(id.index())?.as_deref()
    }

    fn known_mut(&mut self, id: ModelId) -> Option<&mut Known> {
        self.models.get_mut(id.index())?.as_deref_mut()
    }
}

/// Deadlines.
impl Scheduler {
    /// A request of an adaptive model came: notes which types recur in it, and until when it may begin.
    pub(crate) fn note_submission(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        let (model, deadline) = (self.request(id).model, self.request(id).deadline());
        let Some(Some(of)) = self.models.get(model.index()) else { return };
        let noted = entry(&mut self.adaptive.models, model.index()).get_or_insert_default();
        noted.types.resize(of.types.len(), KnownType::default());
        noted.requests = noted.requests.saturating_add(1);
        for chain in graph.chains.iter().filter(|chain| chain.length.bound > 0) {
            let bound = chain.length.bound;
            for stage in &chain.stages {
                let known = &mut noted.types[of.type_of_cell[stage.cell as usize] as usize];
                known.nodes = known.nodes.saturating_add(u64::from(bound));
                known.recurs |= bound > 1 || known.seen == noted.requests;
                known.seen = noted.requests;
                known.stacked |= chain.stages.len() > 1 && bound > 1;
            }
        }
        if let Some(deadline) = deadline {
            noted.deadlines.insert((deadline, id));
            let (latest, _) = self.latest_begin(id, deadline, Some(graph));
            self.rare_mut(id).latest = latest;
            self.adaptive.latest.insert((latest, id));
        }
    }

    /// A request goes on: what it goes on with may have been in it before.
    pub(crate) fn note_growth(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        let model = self.request(id).model;
        let Some(noted) = self.adaptive.known_mut(model) else { return };
        let Some(Some(of)) = self.models.get(model.index()) else { return };
        for (chain, stage) in graph.chains.iter().flat_map(|chain| chain.stages.iter().map(move |stage| (chain, stage))) {
            let known = &mut noted.types[of.type_of_cell[stage.cell as usize] as usize];
            known.recurs = true;
            known.stacked |= chain.stages.len() > 1;
        }
    }

    /// A request has ended, one way or another.
    pub(crate) fn forget_deadline(&mut self, id: RequestId) {
        let (model, rare) = (self.request(id).model, self.request(id).rare());
        let Some((deadline, latest)) = rare.and_then(|rare| Some((rare.deadline?, rare.latest))) else { return };
        self.adaptive.latest.remove(&(latest, id));
        if let Some(known) = self.adaptive.known_mut(model) {
            known.deadlines.remove(&(deadline, id));
        }
    }

    /// A request is done, or is to be given up, for whatever reason: who has waited for it in vain may have said so before it was looked at.
    #[inline]
    pub(crate) fn note_end(&mut self, id: RequestId, finished: bool) {
        if let Some(deadline) = self.request(id).deadline() {
            self.note_end_by(id, finished, deadline);
        }
    }

    fn note_end_by(&mut self, id: RequestId, finished: bool, deadline: Time) {
        let model = self.request(id).model;
        if self.adaptive.known(model).is_none() {
            return;
        }
        let late = if finished { deadline < self.now } else { deadline <= self.now && self.has_begun(id) };
        let had_ns = self.had_ns(id, deadline);
        let Some(known) = self.adaptive.known_mut(model) else { return };
        if late {
            known.was_late(had_ns);
        } else if finished {
            known.margin_ns -= known.margin_ns >> IN_TIME_SHIFT;
        }
    }

    /// How long a request had from when it came.
    fn had_ns(&self, id: RequestId, deadline: Time) -> u64 {
        deadline.0.saturating_sub(self.request(id).rare().map_or(self.now, |rare| rare.submitted).0)
    }

    /// Gives up requests that cannot be done in time, and asks to be woken for the next that may come to that.
    pub(crate) fn drop_late(&mut self) {
        while let Some((latest, id)) = self.adaptive.latest.first().copied().filter(|(latest, _)| *latest < self.now) {
            self.adaptive.latest.remove(&(latest, id));
            let Some(deadline) = self.request(id).deadline() else { continue };
            // Times may have changed since it came. Who has begun is let go on until its time is up.
            let (request, begun) = (self.request(id), self.has_begun(id));
            let growth = request.pending().0.or_else(|| request.growth(request.growth_numbers().start));
            let (latest, alone) =
                if begun { (deadline, deadline) } else { self.latest_begin(id, deadline, growth.map(|growth| &**growth)) };
            if latest < self.now {
                let (model, kept) = (request.model, alone >= self.now);
                if let Some(known) = self.adaptive.known_mut(model).filter(|_| !begun) {
                    if kept {
                        known.margin_ns -= known.margin_ns >> KEPT_SHIFT;
                    }
                    known.too_late += 1;
                    if known.too_late.is_multiple_of(TRIED_OF) && self.now <= deadline {
                        self.rare_mut(id).latest = deadline;
                        self.adaptive.latest.insert((deadline, id));
                        continue;
                    }
                }
                self.doom(id, Failure::Late);
                self.settle();
            } else {
                self.rare_mut(id).latest = latest;
                self.adaptive.latest.insert((latest, id));
            }
        }
        if let Some((latest, _)) = self.adaptive.latest.first() {
            self.wake_by(Time(latest.0.saturating_add(1)));
        }
    }

    fn has_begun(&self, id: RequestId) -> bool {
        let request = self.request(id);
        let untouched = |number: u32| {
            let of = request.chain(number).zip(request.graph_of(number));
            of.is_some_and(|(chain, graph)| chain.remaining == u64::from(graph.length.bound) * graph.stages.len() as u64)
        };
        let mut numbers = request.chain_numbers();
        request.phase != Phase::Waiting && (request.flying > 0 || numbers.start > 0 || !numbers.all(untouched))
    }

    /// When a request has to begin to be done in time, as tasks go now: paths are taken to be as short as they may be, and while others run, requests to take
    /// as much longer as they did lately, but no longer than half of the time that they have; and when without that.
    fn latest_begin(&self, id: RequestId, deadline: Time, growth: Option<&UnfoldedGrowth>) -> (Time, Time) {
        let request = self.request(id);
        let class = self.model(request.model).info.class;
        let path = growth.map_or(0, |graph| self.path_ns(request.model, graph));
        let workers = self.workers.iter().flatten().filter(|worker| worker.class == class);
        let ahead = workers.map(|worker| worker.tasks.iter().map(|task| task.charged_ns).sum::<u64>()).min().unwrap_or(0);
        let margin = self.adaptive.known(request.model).filter(|_| self.model(request.model).flying > 0).map_or(0, |known| known.margin_ns);
        let margin = margin.min(self.had_ns(id, deadline) >> MOST_SHIFT);
        let alone = deadline.0.saturating_sub(path.saturating_add(ahead));
        (Time(alone.saturating_sub(margin)), Time(alone))
    }

    /// The longest path of a growth, in device time. Chains that may stop may do so at once.
    fn path_ns(&self, model: ModelId, graph: &UnfoldedGrowth) -> u64 {
        let known = self.model(model);
        // While others run, tasks take what they lately did. That says little of a request that is alone, but that it takes no longer.
        let node_ns = |cell: u32| {
            let at = &known.types[known.type_of_cell[cell as usize] as usize];
            let lately = Some(self.types[at.cell_type.index()].estimate_ns).filter(|time| *time > 0);
            let alone = known.info.cells[cell as usize].cost.nanoseconds(1).filter(|_| known.flying == 0 || lately.is_none());
            lately.into_iter().chain(alone).min().unwrap_or(0)
        };
        let mut paths: Vec<u64> = Vec::with_capacity(graph.chains.len());
        for chain in &graph.chains {
            let step = chain.stages.iter().map(|stage| node_ns(stage.cell)).fold(0, u64::saturating_add);
            let steps =
                if chain.sequential && !chain.may_stop() { u64::from(chain.length.bound) } else { chain.length.bound.min(1).into() };
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
}

/// Catching up.
impl Scheduler {
    /// The type that runs instead of the one that cellular batching chose: one further behind whose nodes had better catch up first.
    pub(crate) fn behind(&self, model: ModelId, worker: WorkerId, chosen: usize) -> usize {
        let (Some(known), Some(state)) = (self.adaptive.known(model), self.worker(worker)) else { return chosen };
        let types = &self.model(model).types;
        let ready = |at: usize| self.offered(types, at, &types[at].tally, worker, state.domain);
        let mut runs = chosen;
        for at in (0..chosen).rev().filter(|at| ready(*at) > 0) {
            let room = types[runs].batch.max.saturating_sub(ready(runs));
            if room == 0 || !self.pays(known, types, (at, ready(at).min(room)), (runs, ready(runs))) {
                break;
            }
            runs = at;
        }
        self.fullest(known, types, (worker, state.domain), runs)
    }

    /// Of the stacked types, the one of which most rows are done in a time, if that is a tenth more than of the chosen one. Cellular batching runs those
    /// that are furthest on, however few, to their end while all others wait; here a few wait for the many that will come by the same layers in the
    /// next step. They wait for one round through all layers, in which whoever comes by has come, and not while a request is about to be late.
    fn fullest(&self, known: &Known, types: &[ModelType], (worker, domain): (WorkerId, DomainId), chosen: usize) -> usize {
        let rows = |at: usize| self.offered(types, at, &types[at].tally, worker, domain).min(types[at].batch.max);
        let stacked = |at: &usize| known.types.get(*at).is_some_and(|known| known.stacked);
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
            let oldest = self.oldest(types[at].cell_type, worker, domain, None);
            oldest.is_some_and(|oldest| oldest.time.0.saturating_add(round) >= self.now.0)
        };
        best.filter(|_| waits(chosen) && !self.is_late(known, types)).map_or(chosen, |(_, at)| at)
    }

    /// Whether a request has no longer than a request takes alone.
    fn is_late(&self, known: &Known, types: &[ModelType]) -> bool {
        let Some((deadline, _)) = known.deadlines.first() else { return false };
        let alone =
            types.iter().zip(&known.types).map(|(one, known)| u128::from(known.nodes) * u128::from(one.cost.nanoseconds(1).unwrap_or(0)));
        u128::from(self.now.0) + alone.sum::<u128>() / u128::from(known.requests.max(1)) > u128::from(deadline.0)
    }

    /// Whether so many nodes of a type that is `behind` had better catch up with those `ahead`: whether the times at which all are done, taken together,
    /// are less by a tenth. A closer call is not worth it: those ahead, who came first, would be later.
    fn pays(&self, known: &Known, types: &[ModelType], (behind, few_rows): (usize, u32), (ahead, many_rows): (usize, u32)) -> bool {
        let recurs = |at: usize| known.types.get(at).is_none_or(|known| known.recurs);
        if (behind..ahead).any(recurs) {
            return false;
        }
        // Nodes of types that recur meet others on their way anyway: half of what they would gain together counts.
        let weigh = |at: usize, time: u64| match known.types.get(at) {
            Some(one) if one.recurs => u128::from(time) * u128::from(one.nodes) / (2 * u128::from(known.requests.max(1))),
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
            let done = |gap_ns: u64, rows: u32| self.now.0.saturating_add(gap_ns).saturating_add(self.left_ns(*id, types, rows));
            done(gap_ns(), many_rows + few_rows) <= deadline.0 || done(0, many_rows) > deadline.0
        };
        10 * apart > 11 * (many + few) * done && known.deadlines.iter().take(DEADLINES_ASKED).all(in_time)
    }

    /// How long a request takes from here in batches of so many rows, all else apart.
    fn left_ns(&self, id: RequestId, types: &[ModelType], rows: u32) -> u64 {
        let request = self.request(id);
        let known = self.model(request.model);
        let of_chain = |number: u32| {
            let (chain, graph) = request.chain(number).filter(|chain| !chain.ended()).zip(request.graph_of(number))?;
            let of_stage = |cell: u32| types[known.type_of_cell[cell as usize] as usize].cost.nanoseconds(rows).unwrap_or(0);
            let step = graph.stages.iter().map(|stage| of_stage(stage.cell)).fold(0, u64::saturating_add);
            let landed: u64 = (0..chain.stages()).map(|stage| self.landed_in_group(chain.lane(stage))).sum();
            let steps = chain.remaining.saturating_sub(landed).div_ceil(graph.stages.len().max(1) as u64);
            Some(step.saturating_mul(if graph.sequential { steps } else { steps.min(1) }))
        };
        request.chain_numbers().filter_map(of_chain).fold(0, u64::saturating_add)
    }
}
