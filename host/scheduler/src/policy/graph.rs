//! Whole-graph batching, with padding and buckets: what everyone else does, and the paper's baseline (BatchMaker, EuroSys'18, section 7.1); with a
//! batching window, LazyBatching's (HPCA'21, section III-A); one request at a time, its other one (section VI).
//!
//! Requests whose graphs have the same structure, their lengths rounded up to a bucket, wait together; an idle worker takes the next bucket
//! in turn whose batch is full or whose window has closed (by default there is none), and runs the batch to its end: chain by chain, step by
//! step, every request in every task.
//! Who is shorter is padded, and nobody leaves before the batch is complete. Graphs that name nodes one by one cannot be padded: they batch only with
//! equals. A growth is batched like a graph of its own.

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Source};

use crate::command::{Failure, Row};
use crate::config::PolicyKind;
use crate::id::{ModelId, RequestId, WorkerId};
use crate::lane::Status;
use crate::policy::shelf::Member;
use crate::queues::Key;
use crate::request::Chain;
use crate::scheduler::Scheduler;

/// A batch and how far it was submitted.
#[derive(Debug)]
struct Batch {
    model: ModelId,
    members: Vec<Member>,
    /// Steps of each chain, rounded up where that is allowed.
    padded: Vec<u32>,
    /// Stages of each chain.
    stages: Vec<u32>,
    /// Whether a stop of its own may end each chain early.
    stops: Vec<bool>,
    chain: u32,
    step: u32,
    stage: u32,
    /// Whether it was looked at which steps the current chain names; if it may stop by itself, the current step.
    checked: bool,
}

/// What runs: a batch on each worker.
#[derive(Debug, Default)]
pub(crate) struct GraphPolicy(Vec<Option<Batch>>);

/// What a batch does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Chain, stage, step.
    Task(u32, u32, u32),
    /// It depends on tasks in flight.
    Wait,
    Over,
}

/// Choosing.
impl Scheduler {
    /// Since when a worker could run something of the model: of the batch that it has, or, if it has none, a new one.
    pub(crate) fn oldest_whole(&self, worker: WorkerId, model: ModelId) -> Option<Key> {
        let state = self.worker(worker)?;
        match self.live_batch(worker) {
            None => self.oldest_due(model, state.domain),
            Some(batch) => {
                let asks = batch.model == model && state.outstanding < self.config.max_tasks_to_submit;
                (asks && self.peek(worker, batch) != Next::Wait).then_some(Key::FIRST)
            }
        }
    }

    /// Submits the next task of a worker's batch, after it has taken one if it had none; whether there was anything to do.
    pub(crate) fn run_graph(&mut self, worker: WorkerId, model: ModelId) -> bool {
        if self.live_batch(worker).is_none() {
            let members = self.take_from_shelf(worker, model, Self::members_max);
            self.start_batch(worker, model, members);
        }
        match self.next_of_batch(worker) {
            Next::Wait => false,
            Next::Over => self.end_batch_if_idle(worker),
            Next::Task(chain, stage, step) => {
                self.submit_rows(worker, chain, stage, step);
                true
            }
        }
    }

    fn start_batch(&mut self, worker: WorkerId, model: ModelId, members: Vec<Member>) {
        let Some(graph) = members.first().and_then(|first| self.graph_of(first)) else { return };
        let width = match self.model(model).policy {
            PolicyKind::Graph { bucket_width, .. } if paddable(graph) => bucket_width,
            _ => 1,
        };
        let longest = |chain: usize| {
            let graphs = members.iter().filter_map(|member| self.graph_of(member));
            graphs.filter_map(|graph| graph.chains.get(chain)).map(|chain| chain.length.bound).max().unwrap_or(0)
        };
        let padded = match width {
            0 => (0..graph.chains.len()).map(longest).collect(),
            _ => graph.chains.iter().map(|chain| rounded(chain.length.bound, width)).collect(),
        };
        let stages = graph.chains.iter().map(|chain| chain.stages.len() as u32).collect();
        let stops = graph.chains.iter().map(|chain| chain.stop.is_some()).collect();
        if worker.index() >= self.graph.0.len() {
            self.graph.0.resize_with(worker.index() + 1, || None);
        }
        self.graph.0[worker.index()] = Some(Batch { model, members, padded, stages, stops, chain: 0, step: 0, stage: 0, checked: false });
    }

    fn batch(&self, worker: WorkerId) -> Option<&Batch> {
        self.graph.0.get(worker.index())?.as_ref()
    }

    /// The same, unless all its requests were given up: nobody would ask for the rest of it.
    fn live_batch(&self, worker: WorkerId) -> Option<&Batch> {
        self.batch(worker).filter(|batch| batch.members.iter().any(|member| self.in_batch(member, worker)))
    }

    fn batch_mut(&mut self, worker: WorkerId) -> Option<&mut Batch> {
        self.graph.0.get_mut(worker.index())?.as_mut()
    }
}

/// Running.
impl Scheduler {
    /// Whether a batch has to wait before it does anything else.
    fn peek(&self, worker: WorkerId, batch: &Batch) -> Next {
        let over = batch.chain as usize == batch.padded.len();
        let waits = over || (!batch.checked && self.waits_for_stops(worker, batch));
        if waits && self.any_flying(&batch.members, worker) { Next::Wait } else { Next::Task(batch.chain, batch.stage, batch.step) }
    }

    /// Moves a batch's cursor to its next task.
    fn next_of_batch(&mut self, worker: WorkerId) -> Next {
        while let Some(batch) = self.batch(worker) {
            let (chain, stage, step) = (batch.chain, batch.stage, batch.step);
            if chain as usize == batch.padded.len() {
                return Next::Over;
            }
            if !batch.checked {
                if self.peek(worker, batch) == Next::Wait {
                    return Next::Wait;
                }
                self.give_up_beyond(worker);
                continue;
            }
            let length = self.batch_length(worker, batch, chain);
            let Some(batch) = self.batch_mut(worker) else { break };
            if step < length {
                if stage < batch.stages[chain as usize] {
                    return Next::Task(chain, stage, step);
                }
                (batch.stage, batch.step, batch.checked) = (0, step + 1, !batch.stops[chain as usize]);
            } else {
                (batch.chain, batch.stage, batch.step, batch.checked) = (chain + 1, 0, 0, false);
            }
        }
        Next::Over
    }

    /// Whether how long the current chain is, or what it reads, depends on stops of earlier chains; or whether its current step is executed on one of its own.
    fn waits_for_stops(&self, worker: WorkerId, batch: &Batch) -> bool {
        let earlier = |chain| self.member_chains(worker, batch, chain).any(|(_, chain)| chain.stops);
        match batch.step {
            0 => (0..batch.chain).any(earlier),
            _ => self.beyond_end(worker, batch).next().is_some(),
        }
    }

    fn member_chains<'a>(&'a self, worker: WorkerId, batch: &'a Batch, chain: u32) -> impl Iterator<Item = (&'a Member, &'a Chain)> {
        batch.members.iter().filter(move |member| self.in_batch(member, worker)).filter_map(move |member| {
            let first = self.graph_of(member)?.first_chain;
            Some((member, self.request(member.request).chain(first + chain)?))
        })
    }

    /// How many steps a batch executes of a chain, as far as is known.
    fn batch_length(&self, worker: WorkerId, batch: &Batch, number: u32) -> u32 {
        let padded = batch.padded[number as usize];
        let mut longest = 0;
        for (member, chain) in self.member_chains(worker, batch, number) {
            let bound = self.graph_of(member).and_then(|graph| graph.chains.get(number as usize)).map(|graph| graph.length.bound);
            if !chain.stops || (chain.root().is_none() && Some(chain.end) == bound) {
                return padded;
            }
            longest = longest.max(chain.end);
        }
        longest
    }

    /// Who names steps that were never executed, and of which chain: in the current chain, or, if that may stop by itself, in its current step.
    fn beyond_end<'a>(&'a self, worker: WorkerId, batch: &'a Batch) -> impl Iterator<Item = (RequestId, u32)> + 'a {
        let present = self.member_chains(worker, batch, batch.chain).filter(|(_, chain)| !chain.cancelled);
        present.filter_map(|(member, chain)| Some((member.request, self.names_beyond_end(chain, batch.step)?)))
    }

    /// Whoever names steps that were never executed is given up.
    fn give_up_beyond(&mut self, worker: WorkerId) {
        let Some(batch) = self.batch(worker) else { return };
        let beyond: Vec<_> = self.beyond_end(worker, batch).collect();
        for (id, chain) in beyond {
            self.doom(id, Failure::BeyondEnd { chain });
        }
        self.settle_failures();
        if let Some(batch) = self.batch_mut(worker) {
            batch.checked = true;
        }
    }

    /// The chain of which a chain names a step that was never executed: from the given step on, or, if a stop of its own may come before it is to be
    /// executed, in that step.
    pub(crate) fn names_beyond_end(&self, own: &Chain, step: u32) -> Option<u32> {
        let steps = if own.stops_itself() { step..own.end.min(step + 1) } else { step..own.end };
        let lanes = (0..own.stages()).map(|stage| own.lane(stage));
        let mut named = lanes.flat_map(|lane| steps.clone().flat_map(move |step| self.named_steps(lane, step)));
        named.find(|(_, status)| *status == Status::Never).map(|(chain, _)| chain)
    }

    /// A task: the same node of every request of the batch.
    fn submit_rows(&mut self, worker: WorkerId, chain: u32, stage: u32, step: u32) {
        let Some(batch) = self.batch(worker) else { return };
        let model = batch.model;
        let present = self.member_chains(worker, batch, chain).filter(|(_, chain)| !chain.cancelled);
        let rows: Vec<Row> = present.map(|(_, chain)| Row { lane: chain.lane(stage), step }).collect();
        if let Some(batch) = self.batch_mut(worker) {
            batch.stage = stage + 1;
        }
        let Some(first) = rows.first() else { return };
        let cell_type = self.lane(first.lane).cell_type;
        self.hand_over(worker, model, cell_type, &rows);
    }

    /// A task of a batch is complete; perhaps the batch is.
    pub(crate) fn batch_task_done(&mut self, worker: WorkerId) {
        if self.batch(worker).is_none() {
            return;
        }
        self.settle_failures();
        if self.next_of_batch(worker) == Next::Over {
            self.end_batch_if_idle(worker);
        }
    }

    /// Ends a batch that is complete; only now its requests are done.
    fn end_batch_if_idle(&mut self, worker: WorkerId) -> bool {
        let idle = self.batch(worker).is_some_and(|batch| !self.any_flying(&batch.members, worker));
        let Some(batch) = self.graph.0.get_mut(worker.index()).and_then(|batch| batch.take_if(|_| idle)) else { return false };
        for member in batch.members {
            self.leave_batch(&member, worker);
        }
        true
    }

    /// A worker is lost, and its batch with it.
    pub(crate) fn graph_worker_lost(&mut self, worker: WorkerId) -> Vec<Member> {
        self.graph.0.get_mut(worker.index()).and_then(Option::take).map(|batch| batch.members).unwrap_or_default()
    }
}

/// Whether shorter requests may be padded: no node is named by itself.
fn paddable(graph: &UnfoldedGrowth) -> bool {
    let mut depends = graph.chains.iter().flat_map(|chain| &chain.stages).flat_map(|stage| &stage.depends);
    !depends.any(|depends| matches!(depends, Dependency::Nodes { .. }))
}

/// The end of a length's bucket; without buckets all lengths are in one.
const fn rounded(length: u32, width: u32) -> u32 {
    if width == 0 { 0 } else { length.div_ceil(width).saturating_mul(width) }
}

/// What requests of a bucket have in common.
pub(crate) fn structure(graph: &UnfoldedGrowth, width: u32) -> Vec<u32> {
    let paddable = paddable(graph);
    let width = if paddable { width } else { 1 };
    let mut key = vec![u32::from(paddable), graph.chains.len() as u32];
    for chain in &graph.chains {
        let (stop_stage, stop_output) = chain.stop.map_or((0, 0), |(stage, output)| (stage + 1, output));
        let like = chain.length.like.map_or(0, |like| like.wrapping_sub(graph.first_chain).wrapping_add(1));
        key.extend([rounded(chain.length.bound, width), like, stop_stage, stop_output, chain.stages.len() as u32]);
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
