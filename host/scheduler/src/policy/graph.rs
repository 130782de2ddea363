//! Whole-graph batching, with padding and buckets: what everyone else does, and the paper's baseline (BatchMaker, EuroSys'18, section 7.1).
//!
//! Requests whose graphs have the same structure, their lengths rounded up to a bucket, wait together; an idle worker takes the next bucket
//! in turn whose batch is full or whose window has closed (by default there is none), and runs the batch to its end: chain by chain, step by step, every request in every task.
//! Who is shorter is padded, and nobody leaves before the batch is complete. Graphs that name nodes one by one cannot be padded: they batch only with
//! equals. A growth is batched like a graph of its own.

use std::collections::{BTreeMap, VecDeque};

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Source};

use crate::command::{Failure, Row};
use crate::config::PolicyKind;
use crate::id::{DomainId, LaneId, ModelId, RequestId, Time, WorkerId};
use crate::lane::Status;
use crate::request::{Phase, Request};
use crate::scheduler::Scheduler;

/// A running batch, named by its worker: each runs one at a time.
pub(crate) type BatchId = WorkerId;

/// A growth of a request, waiting or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    request: RequestId,
    rank: u32,
    order: u64,
    growth: u32,
    /// When it came into its bucket.
    since: Time,
}

/// A model's buckets in a domain.
#[derive(Debug, Default)]
struct Shelf {
    buckets: BTreeMap<Vec<u32>, VecDeque<Member>>,
    /// The structure whose turn was last.
    last: Vec<u32>,
    /// Requests of a lower order were there when that turn began.
    turn_began: u64,
}

/// A batch and how far it was submitted.
#[derive(Debug)]
struct Batch {
    model: ModelId,
    members: Vec<Member>,
    /// Steps of each chain, rounded up where that is allowed.
    padded: Vec<u32>,
    /// Stages of each chain.
    stages: Vec<u32>,
    chain: u32,
    step: u32,
    stage: u32,
    /// Whether the current chain's inputs were looked at.
    checked: bool,
}

/// What waits and what runs.
#[derive(Debug, Default)]
pub(crate) struct GraphPolicy {
    shelves: BTreeMap<(ModelId, DomainId), Shelf>,
    batches: Vec<Option<Batch>>,
}

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
    /// A growth waits for its bucket's turn.
    pub(crate) fn join_bucket(&mut self, id: RequestId, growth: u32) {
        let request = self.request(id);
        let (model, domain, rank, order, since) = (request.model, request.domain, request.rank, request.order, self.now);
        let Some(key) = self.bucket_of(request, growth) else { return };
        let shelf = self.graph.shelves.entry((model, domain)).or_default();
        let bucket = shelf.buckets.entry(key).or_default();
        let at = bucket.partition_point(|other| other.rank <= rank);
        bucket.insert(at, Member { request: id, rank, order, growth, since });
        self.request_mut(id).bucket = Some(growth);
        self.model_mut(model).ready += 1;
        self.touched.push(model);
    }

    fn bucket_of(&self, request: &Request, growth: u32) -> Option<Vec<u32>> {
        let graph = &request.growth(growth)?.graph;
        match self.config.policy {
            PolicyKind::Graph { bucket_width, .. } => Some(structure(graph, bucket_width)),
            // One bucket, so that it is first come, first served.
            PolicyKind::Serial => Some(Vec::new()),
            PolicyKind::Cellular => None,
        }
    }

    /// A request that is given up waits no longer.
    pub(crate) fn leave_bucket(&mut self, id: RequestId) {
        let Some(growth) = self.request_mut(id).bucket.take() else { return };
        let request = self.request(id);
        let (model, domain) = (request.model, request.domain);
        let Some(key) = self.bucket_of(request, growth) else { return };
        let Some(shelf) = self.graph.shelves.get_mut(&(model, domain)) else { return };
        let Some(bucket) = shelf.buckets.get_mut(&key) else { return };
        bucket.retain(|member| member.request != id);
        if bucket.is_empty() {
            shelf.buckets.remove(&key);
        }
        self.model_mut(model).ready -= 1;
        self.touched.push(model);
    }

    /// Every idle worker gets a batch, and every worker its batch's next tasks; workers in order of their ids.
    pub(crate) fn run_graph(&mut self) {
        self.note_activity();
        for index in 0..self.workers.len() {
            let worker = WorkerId(index as u32);
            while let Some(outstanding) = self.worker(worker).map(|state| state.outstanding) {
                if self.batch(worker).is_none() && (outstanding > 0 || !self.take_batch(worker)) {
                    break;
                }
                if outstanding >= self.config.max_tasks_to_submit || !self.submit_next(worker) {
                    break;
                }
            }
        }
    }

    /// The model that is owed most device time, then its next bucket in turn.
    fn take_batch(&mut self, worker: WorkerId) -> bool {
        let Some(domain) = self.worker(worker).map(|state| state.domain) else { return false };
        let shelves = self.graph.shelves.iter().filter(|((_, home), _)| *home == domain);
        let oldest =
            |shelf: &Shelf| self.due(shelf).filter_map(|(_, bucket)| bucket.front()).map(|member| (member.rank, member.order)).min();
        let owed = shelves.filter_map(|((model, _), shelf)| Some((self.tenant_of(*model), *model, oldest(shelf)?)));
        let owed: Vec<_> = owed.collect();
        let tenant = owed.iter().min_by_key(|(tenant, _, oldest)| (tenant.share.charged, *oldest, tenant.id)).map(|(tenant, ..)| tenant.id);
        let owed = owed.iter().filter(|(other, ..)| Some(other.id) == tenant);
        let model = owed.min_by_key(|(_, model, oldest)| (self.model(*model).share.charged, *oldest, *model)).map(|(_, model, _)| *model);
        let Some(model) = model else {
            self.wake_for_windows(domain);
            return false;
        };
        let Some(key) = self.next_bucket(model, domain) else { return false };
        let Some(shelf) = self.graph.shelves.get_mut(&(model, domain)) else { return false };
        let Some(mut bucket) = shelf.buckets.remove(&key) else { return false };
        shelf.last.clone_from(&key);
        let most = bucket.front().map_or(1, |first| self.batch_limit(first));
        let members: Vec<Member> = bucket.drain(..bucket.len().min(most)).collect();
        if let Some(shelf) = self.graph.shelves.get_mut(&(model, domain)).filter(|_| !bucket.is_empty()) {
            shelf.buckets.insert(key, bucket);
        }
        self.start_batch(worker, model, members);
        true
    }

    /// Buckets whose batch need not wait for more.
    fn due<'a>(&'a self, shelf: &'a Shelf) -> impl Iterator<Item = (&'a Vec<u32>, &'a VecDeque<Member>)> {
        shelf.buckets.iter().filter(|(_, bucket)| {
            let full = bucket.front().is_some_and(|first| bucket.len() >= self.batch_limit(first));
            full || self.window_closes(bucket).is_some_and(|closes| closes <= self.now)
        })
    }

    fn window_closes(&self, bucket: &VecDeque<Member>) -> Option<Time> {
        let PolicyKind::Graph { window_ns: window @ 1.., .. } = self.config.policy else { return Some(Time(0)) };
        let first = bucket.iter().map(|member| member.since).min()?;
        Some(Time(first.0.saturating_add(window)))
    }

    /// The bucket whose turn it is: the last one, as long as those who were there when its turn began fill a batch; then the next that is due.
    /// One batch a turn would let whoever is in a popular bucket wait for a round of all the others for every batch before its own, which is
    /// not what BatchMaker's figures 7 and 8 show.
    fn next_bucket(&mut self, model: ModelId, domain: DomainId) -> Option<Vec<u32>> {
        let shelf = self.graph.shelves.get(&(model, domain))?;
        let stays = shelf.buckets.get(&shelf.last).and_then(|bucket| bucket.get(self.batch_limit(bucket.front()?).checked_sub(1)?));
        if stays.is_some_and(|last| last.order < shelf.turn_began) {
            return Some(shelf.last.clone());
        }
        let after = self.due(shelf).find(|(key, _)| **key > shelf.last);
        let key = after.or_else(|| self.due(shelf).next()).map(|(key, _)| key.clone())?;
        let now = self.next_order;
        self.graph.shelves.get_mut(&(model, domain))?.turn_began = now;
        Some(key)
    }

    /// A worker is idle though requests wait: it looks again when the first window closes.
    fn wake_for_windows(&mut self, domain: DomainId) {
        let shelves = self.graph.shelves.iter().filter(|((_, home), _)| *home == domain);
        let closes = shelves.flat_map(|(_, shelf)| shelf.buckets.values()).filter_map(|bucket| self.window_closes(bucket)).min();
        if let Some(at) = closes {
            self.wake_by(at);
        }
    }

    fn graph_of(&self, member: &Member) -> Option<&UnfoldedGrowth> {
        self.request(member.request).growth(member.growth).map(|growth| &*growth.graph)
    }

    /// The smallest limit of the types involved.
    fn batch_limit(&self, member: &Member) -> usize {
        if self.config.policy == PolicyKind::Serial {
            return 1;
        }
        let model = self.model(self.request(member.request).model);
        let cells =
            self.graph_of(member).into_iter().flat_map(|graph| &graph.chains).flat_map(|chain| &chain.stages).map(|stage| stage.cell);
        let limits = cells.map(|cell| model.types[model.type_of_cell[cell as usize] as usize].batch.max);
        limits.min().map_or(1, |limit| limit as usize)
    }

    fn start_batch(&mut self, worker: WorkerId, model: ModelId, members: Vec<Member>) {
        let Some(graph) = members.first().and_then(|first| self.graph_of(first)) else { return };
        let width = match self.config.policy {
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
        for member in &members {
            let request = self.request_mut(member.request);
            (request.batch, request.bucket) = (Some(worker), None);
        }
        self.model_mut(model).ready -= members.len() as u32;
        self.touched.push(model);
        if worker.index() >= self.graph.batches.len() {
            self.graph.batches.resize_with(worker.index() + 1, || None);
        }
        self.graph.batches[worker.index()] = Some(Batch { model, members, padded, stages, chain: 0, step: 0, stage: 0, checked: false });
    }

    fn batch(&self, worker: WorkerId) -> Option<&Batch> {
        self.graph.batches.get(worker.index())?.as_ref()
    }

    fn batch_mut(&mut self, worker: WorkerId) -> Option<&mut Batch> {
        self.graph.batches.get_mut(worker.index())?.as_mut()
    }
}

impl GraphPolicy {
    /// A model is gone.
    pub(crate) fn forget_model(&mut self, id: ModelId) {
        self.shelves.retain(|(model, _), _| *model != id);
    }
}

/// Running.
impl Scheduler {
    /// Submits a batch's next task; whether there may be more to do for this worker now.
    fn submit_next(&mut self, worker: WorkerId) -> bool {
        match self.next_of_batch(worker) {
            Next::Wait => false,
            Next::Over => self.end_batch_if_idle(worker),
            Next::Task(chain, stage, step) => {
                self.submit_rows(worker, chain, stage, step);
                true
            }
        }
    }

    /// Moves a batch's cursor to its next task.
    fn next_of_batch(&mut self, worker: WorkerId) -> Next {
        while let Some(batch) = self.batch(worker) {
            let (chain, stage, step) = (batch.chain, batch.stage, batch.step);
            if chain as usize == batch.padded.len() {
                return Next::Over;
            }
            let idle = self.worker(worker).is_none_or(|state| state.outstanding == 0);
            if !batch.checked {
                if self.waits_for_stops(batch, chain) && !idle {
                    return Next::Wait;
                }
                self.check_chain(worker, chain);
                continue;
            }
            let length = self.batch_length(batch, chain);
            let Some(batch) = self.batch_mut(worker) else { break };
            if step < length {
                if stage < batch.stages[chain as usize] {
                    return Next::Task(chain, stage, step);
                }
                (batch.stage, batch.step) = (0, step + 1);
            } else {
                (batch.chain, batch.stage, batch.step, batch.checked) = (chain + 1, 0, 0, false);
            }
        }
        Next::Over
    }

    /// Whether how long a chain is, or what it reads, depends on stops of earlier chains.
    fn waits_for_stops(&self, batch: &Batch, chain: u32) -> bool {
        let stopped = |chain: u32| self.member_chains(batch, chain).any(|(_, chain)| chain.stops);
        (0..chain).any(stopped)
    }

    fn member_chains<'a>(&'a self, batch: &'a Batch, chain: u32) -> impl Iterator<Item = (&'a Member, &'a crate::request::Chain)> {
        batch.members.iter().filter(|member| self.in_batch(member)).filter_map(move |member| {
            let first = self.graph_of(member)?.first_chain;
            Some((member, self.request(member.request).chain(first + chain)?))
        })
    }

    fn in_batch(&self, member: &Member) -> bool {
        let request = self.request(member.request);
        request.phase == Phase::Placed && request.order == member.order
    }

    /// How many steps a batch executes of a chain, as far as is known.
    fn batch_length(&self, batch: &Batch, chain: u32) -> u32 {
        let padded = batch.padded[chain as usize];
        let mut longest = 0;
        for (_, chain) in self.member_chains(batch, chain) {
            if !chain.stops || (chain.root.is_none() && chain.end == chain.bound) {
                return padded;
            }
            longest = longest.max(chain.end);
        }
        longest
    }

    /// A chain begins: whoever names steps in it that were never executed is given up.
    fn check_chain(&mut self, worker: WorkerId, chain: u32) {
        let Some(batch) = self.batch(worker) else { return };
        let beyond: Vec<_> = self
            .member_chains(batch, chain)
            .filter(|(_, chain)| !chain.cancelled)
            .filter_map(|(member, chain)| {
                let mut lanes = (0..chain.stages()).map(|stage| chain.lane(stage));
                Some((member.request, lanes.find_map(|lane| self.names_beyond_end(lane, chain.end))?))
            })
            .collect();
        for (id, chain) in beyond {
            self.doom(id, Failure::BeyondEnd { chain });
        }
        self.settle_failures();
        if let Some(batch) = self.batch_mut(worker) {
            batch.checked = true;
        }
    }

    fn names_beyond_end(&self, lane: LaneId, steps: u32) -> Option<u32> {
        (0..steps).find_map(|step| self.named_steps(lane, step).find(|(_, status)| *status == Status::Never).map(|(chain, _)| chain))
    }

    /// A task: the same node of every request of the batch.
    fn submit_rows(&mut self, worker: WorkerId, chain: u32, stage: u32, step: u32) {
        let Some(batch) = self.batch(worker) else { return };
        let model = batch.model;
        let present = self.member_chains(batch, chain).filter(|(_, chain)| !chain.cancelled);
        let rows: Vec<Row> = present.map(|(_, chain)| Row { lane: chain.lane(stage), step }).collect();
        if let Some(batch) = self.batch_mut(worker) {
            batch.stage = stage + 1;
        }
        let Some(first) = rows.first() else { return };
        let cell_type = self.lane(first.lane).cell_type;
        let merge = self.config.merge_steps && self.continues_last(worker, cell_type, rows.iter().copied());
        self.launch(worker, cell_type, model, rows.iter().copied(), merge);
        for row in rows {
            self.queue_node(row.lane, row.step, worker);
        }
    }

    /// A task of a batch is complete; perhaps the batch is.
    pub(crate) fn batch_task_done(&mut self, worker: WorkerId) {
        self.settle_failures();
        if self.next_of_batch(worker) == Next::Over {
            self.end_batch_if_idle(worker);
        }
    }

    /// Ends a batch that is complete; only now its requests are done.
    fn end_batch_if_idle(&mut self, worker: WorkerId) -> bool {
        let idle = self.worker(worker).is_some_and(|state| state.outstanding == 0);
        let Some(batch) = self.graph.batches.get_mut(worker.index()).and_then(|batch| batch.take_if(|_| idle)) else { return false };
        for member in batch.members {
            if !self.in_batch(&member) {
                continue;
            }
            let request = self.request_mut(member.request);
            request.batch = None;
            let first = request.chains_before;
            for number in first..first + self.request(member.request).chains.len() as u32 {
                self.free_chain_if_unread(member.request, number);
            }
            self.place_pending(member.request);
        }
        true
    }

    /// A worker is lost, and what its batch was about with it.
    pub(crate) fn batch_worker_lost(&mut self, worker: WorkerId) {
        let Some(batch) = self.graph.batches.get_mut(worker.index()).and_then(Option::take) else { return };
        for member in batch.members {
            if self.in_batch(&member) {
                self.doom(member.request, Failure::WorkerLost);
            }
        }
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
fn structure(graph: &UnfoldedGrowth, width: u32) -> Vec<u32> {
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
