//! Batches of whole graphs: requests of one structure, padded to equal lengths, that run chain by
//! chain, step by step, every request in every task.
//!
//! What forms batches, and what becomes of them between two tasks, is for policies to say.

use std::collections::BTreeMap;
use std::fmt;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Source};

use crate::command::{Failure, Row};
use crate::id::{DomainId, RequestId, Time, WorkerId};
use crate::policy::{Chain, Ended, Key, Member, Pick, Policy, Takes, View};

/// Requests that wait for a batch: what tells policies apart that run one batch of whole graphs to
/// its end before the next.
pub(super) trait Queue: fmt::Debug + Send {
    /// Steps to a multiple of which requests are padded; 0: to the longest of their batch.
    fn width(&self) -> u32;

    /// A request waits.
    fn put(&mut self, view: View<'_>, member: Member);

    /// When requests could be in a batch that cannot now.
    fn wake_at(&self, view: View<'_>) -> Option<Time>;

    /// A request has ended.
    fn remove(&mut self, request: RequestId);

    /// The age of the oldest request that could be in a batch now.
    fn oldest(&self, view: View<'_>, domain: DomainId) -> Option<Key>;

    /// The requests of a batch that begins.
    fn take(&mut self, view: View<'_>, domain: DomainId) -> Vec<Member>;
}

/// A batch on each worker, and who waits for one.
#[derive(Debug)]
pub(super) struct WholeGraphs<Q> {
    queue: Q,
    batches: BTreeMap<WorkerId, Batch>,
}

/// Policies of which a worker runs one batch at a time, whatever model it is of.
const WHOLE: [&str; 3] = ["graph", "serial", "length-aware"];

impl<Q: Queue> WholeGraphs<Q> {
    pub(super) const fn new(queue: Q) -> Self {
        Self { queue, batches: BTreeMap::new() }
    }

    /// A worker's batch, unless all its requests were given up: nobody would ask for the rest of
    /// it.
    fn live_batch(&self, view: View<'_>, worker: WorkerId) -> Option<&Batch> {
        self.batches.get(&worker).filter(|batch| batch.members.iter().any(|member| view.is_taken(member, worker)))
    }

    fn start_batch(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let members = self.queue.take(view, view.worker(worker)?.domain);
        let requests = members.iter().map(|member| member.request).collect();
        self.batches.insert(worker, Batch::new(view, members, self.queue.width())?);
        Some(Pick::Take(requests))
    }

    /// Ends a batch that is complete; only now its requests are done.
    fn end_if_idle(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        if view.any_in_flight(&self.batches.get(&worker)?.members, worker) {
            return None;
        }
        release(view, &self.batches.remove(&worker)?.members, worker)
    }
}

impl<Q: Queue> Policy for WholeGraphs<Q> {
    fn takes(&self) -> Takes {
        Takes::RequestsInOrder
    }

    fn offered(&mut self, view: View<'_>, growth: Member) {
        self.queue.put(view, growth);
    }

    fn wake_at(&self, view: View<'_>) -> Option<Time> {
        self.queue.wake_at(view)
    }

    fn ended(&mut self, _: View<'_>, ended: &Ended) {
        self.queue.remove(ended.request);
    }

    /// Since when a worker could run something: of the batch that it has, or, if it has none, a new
    /// one.
    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key> {
        let state = view.worker(worker)?;
        match self.live_batch(view, worker) {
            None if view.other_takers(worker).any(|policy| WHOLE.contains(&policy)) => None,
            None => self.queue.oldest(view, state.domain),
            Some(batch) => {
                let asks = state.outstanding < view.config().max_tasks_to_submit;
                (asks && !batch.has_to_wait(view, worker)).then_some(Key::FIRST)
            }
        }
    }

    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        if self.live_batch(view, worker).is_none() {
            return self.start_batch(view, worker);
        }
        match self.batches.get_mut(&worker)?.run(view, worker) {
            Ok(pick) => Some(pick),
            Err(Next::Over) => self.end_if_idle(view, worker),
            Err(_) => None,
        }
    }

    fn done(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        match self.batches.get_mut(&worker)?.next(view, worker) {
            Next::GiveUp(failures) => Some(Pick::GiveUp(failures)),
            Next::Over => self.end_if_idle(view, worker),
            Next::Task | Next::Wait => None,
        }
    }
}

/// A batch and how far it was submitted.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) members: Vec<Member>,
    /// Steps of each chain, rounded up where that is allowed.
    pub(super) padded: Vec<u32>,
    /// Stages of each chain.
    stages: Vec<u32>,
    /// Whether a stop of its own may end each chain early.
    stops: Vec<bool>,
    pub(super) chain: u32,
    pub(super) step: u32,
    pub(super) stage: u32,
    /// Whether it was looked at which steps the current chain names; if it may stop by itself, the
    /// current step.
    checked: bool,
    /// Some rows of the current node were submitted. The others did not fit in the task.
    cut: bool,
}

/// What a batch does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A task, of the node that its cursor is at.
    Task,
    /// It depends on tasks in flight.
    Wait,
    /// Requests name steps that were never executed.
    GiveUp(Vec<(RequestId, Failure)>),
    Over,
}

impl Batch {
    /// A batch of these requests, of which nothing was submitted: padded to multiples of the width,
    /// or, without one, to the longest.
    pub(super) fn new(view: View<'_>, members: Vec<Member>, width: u32) -> Option<Self> {
        let graph = view.growth(members.first()?)?;
        let longest = |chain: usize| {
            let graphs = members.iter().filter_map(|member| view.growth(member));
            graphs.filter_map(|graph| graph.chains.get(chain)).map(|chain| chain.length.bound).max().unwrap_or(0)
        };
        let padded = match width {
            0 => (0..graph.chains.len()).map(longest).collect(),
            _ if !paddable(graph) => graph.chains.iter().map(|chain| chain.length.bound).collect(),
            _ => graph.chains.iter().map(|chain| rounded(chain.length.bound, width)).collect(),
        };
        let stages = graph.chains.iter().map(|chain| chain.stages.len() as u32).collect();
        let stops = graph.chains.iter().map(|chain| chain.stop.is_some()).collect();
        Some(Self { members, padded, stages, stops, chain: 0, step: 0, stage: 0, checked: false, cut: false })
    }

    /// A batch like it of other requests, of which nothing was submitted.
    pub(super) fn begin_again(&self, members: Vec<Member>) -> Self {
        Self { members, chain: 0, step: 0, stage: 0, checked: false, cut: false, ..self.clone() }
    }

    /// Takes in the requests of a batch that is as far.
    pub(super) fn join(&mut self, other: Self) {
        self.members.extend(other.members);
        self.checked &= other.checked;
        self.cut |= other.cut;
    }

    /// Leaves the second half of its requests where it is, and goes on with the first.
    pub(super) fn first_half(&mut self) -> Self {
        let second = self.members.split_off(self.members.len().div_ceil(2));
        let members = std::mem::replace(&mut self.members, second);
        Self { members, ..self.clone() }
    }

    /// Moves the cursor to the next task.
    pub(super) fn next(&mut self, view: View<'_>, worker: WorkerId) -> Next {
        loop {
            if self.chain as usize == self.padded.len() {
                return Next::Over;
            }
            if !self.checked {
                if self.has_to_wait(view, worker) {
                    return Next::Wait;
                }
                self.checked = true;
                let failures: Vec<_> =
                    self.beyond_end(view, worker).map(|(request, chain)| (request, Failure::BeyondEnd { chain })).collect();
                if !failures.is_empty() {
                    return Next::GiveUp(failures);
                }
            }
            let chain = self.chain as usize;
            if self.step < self.length(view, worker, self.chain) {
                if self.stage < self.stages[chain] {
                    return Next::Task;
                }
                (self.stage, self.step, self.checked) = (0, self.step + 1, !self.stops[chain]);
            } else {
                (self.chain, self.stage, self.step, self.checked) = (self.chain + 1, 0, 0, false);
            }
        }
    }

    /// The next task, or who is to be given up before it; if there is neither, why.
    pub(super) fn run(&mut self, view: View<'_>, worker: WorkerId) -> Result<Pick, Next> {
        loop {
            match self.next(view, worker) {
                Next::GiveUp(failures) => return Ok(Pick::GiveUp(failures)),
                Next::Task => {}
                nothing => return Err(nothing),
            }
            let mut rows = self.rows(view, worker);
            if self.cut {
                rows.retain(|row| !view.is_submitted(*row));
            }
            let cell_type = rows.first().map(|first| view.cell_type_of(first.lane));
            let fitting = cell_type.map_or(0, |cell_type| view.fitting(cell_type, &rows));
            self.cut = fitting < rows.len();
            self.stage += u32::from(!self.cut);
            rows.truncate(fitting);
            if let Some(cell_type) = cell_type {
                return Ok(Pick::Run(cell_type, rows));
            }
        }
    }

    /// Whether it has to wait before it does anything else.
    pub(super) fn has_to_wait(&self, view: View<'_>, worker: WorkerId) -> bool {
        let over = self.chain as usize == self.padded.len();
        (over || (!self.checked && self.waits_for_stops(view, worker))) && view.any_in_flight(&self.members, worker)
    }

    /// Whether how long the current chain is, or what it reads, depends on stops of earlier chains;
    /// or whether its current step is executed on one of its own.
    fn waits_for_stops(&self, view: View<'_>, worker: WorkerId) -> bool {
        let earlier = |chain| self.member_chains(view, worker, chain).any(|(_, chain)| chain.stops);
        match self.step {
            0 => (0..self.chain).any(earlier),
            _ => self.beyond_end(view, worker).next().is_some(),
        }
    }

    fn member_chains<'a>(&'a self, view: View<'a>, worker: WorkerId, chain: u32) -> impl Iterator<Item = (&'a Member, &'a Chain)> {
        self.members.iter().filter(move |member| view.is_taken(member, worker)).filter_map(move |member| {
            let first = view.growth(member)?.first_chain;
            Some((member, view.request(member.request).chain(first + chain)?))
        })
    }

    /// How many steps are executed of a chain, as far as is known.
    fn length(&self, view: View<'_>, worker: WorkerId, number: u32) -> u32 {
        let padded = self.padded[number as usize];
        let mut longest = 0;
        for (member, chain) in self.member_chains(view, worker, number) {
            let bound = view.growth(member).and_then(|graph| graph.chains.get(number as usize)).map(|graph| graph.length.bound);
            if !chain.stops || (chain.root().is_none() && Some(chain.end) == bound) {
                return padded;
            }
            longest = longest.max(chain.end);
        }
        longest
    }

    /// Requests that name steps that were never executed, and of which chain: in the current chain,
    /// or, if that may stop by itself, in its current step.
    fn beyond_end<'a>(&'a self, view: View<'a>, worker: WorkerId) -> impl Iterator<Item = (RequestId, u32)> + 'a {
        let present = self.member_chains(view, worker, self.chain).filter(|(_, chain)| !chain.cancelled);
        present.filter_map(move |(member, chain)| Some((member.request, view.names_beyond_end(chain, self.step)?)))
    }

    /// The node that the cursor is at, of every request.
    fn rows(&self, view: View<'_>, worker: WorkerId) -> Vec<Row> {
        let present = self.member_chains(view, worker, self.chain).filter(|(_, chain)| !chain.cancelled);
        present.map(|(_, chain)| Row { lane: chain.lane(self.stage), step: self.step }).collect()
    }
}

/// Whether shorter requests may be padded: no node is named by itself.
fn paddable(graph: &UnfoldedGrowth) -> bool {
    let mut depends = graph.chains.iter().flat_map(|chain| &chain.stages).flat_map(|stage| &stage.depends);
    !depends.any(|depends| matches!(depends, Dependency::Nodes { .. }))
}

/// The end of a length's bucket; without buckets all lengths are in one.
pub(super) const fn rounded(length: u32, width: u32) -> u32 {
    if width == 0 { 0 } else { length.div_ceil(width).saturating_mul(width) }
}

/// What requests of a bucket have in common: all but their lengths, of which `round` keeps what
/// tells buckets apart.
pub(super) fn structure(graph: &UnfoldedGrowth, round: impl Fn(u32) -> u32) -> Vec<u32> {
    let paddable = paddable(graph);
    let mut key = vec![u32::from(paddable), graph.chains.len() as u32];
    for chain in &graph.chains {
        let (stop_stage, stop_output) = chain.stop.map_or((0, 0), |(stage, output)| (stage + 1, output));
        let like = chain.length.like.map_or(0, |like| like.wrapping_sub(graph.first_chain).wrapping_add(1));
        let length = if paddable { round(chain.length.bound) } else { chain.length.bound };
        key.extend([length, like, stop_stage, stop_output, chain.stages.len() as u32]);
        for stage in &chain.stages {
            key.push(stage.cell);
            for input in &stage.inputs {
                if let Source::Nodes { stage, output, of } = &input.source {
                    key.extend([*stage, *output]);
                    key.extend(of.iter().flat_map(|node| [node.chain.wrapping_sub(graph.first_chain), node.step]));
                }
            }
        }
    }
    key
}

/// Releases those of a batch that have not been given up.
pub(super) fn release(view: View<'_>, members: &[Member], worker: WorkerId) -> Option<Pick> {
    let requests: Vec<_> = members.iter().filter(|member| view.is_taken(member, worker)).map(|member| member.request).collect();
    (!requests.is_empty()).then_some(Pick::Release(requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up_to_buckets() {
        assert_eq!([1, 10, 11, 20].map(|length| rounded(length, 10)), [10, 10, 20, 20]);
        assert_eq!(rounded(7, 1), 7);
        assert_eq!(rounded(7, 0), rounded(9, 0));
    }
}
