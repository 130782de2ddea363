//! Requests that wait to be taken into a batch, and what being in one means: shared by the policies that batch requests, not nodes.
//!
//! A growth of a request is taken as a whole, and runs on the worker that took it until nothing of it is left. Until then its request neither
//! ends nor grows on. Each model has a shelf in each domain; on it requests that may be taken together share a bucket, and buckets take turns.

use std::collections::{BTreeMap, VecDeque};

use cellwright_cell_graph::UnfoldedGrowth;

use crate::config::PolicyKind;
use crate::id::{DomainId, ModelId, RequestId, Time, WorkerId};
use crate::policy::graph::structure;
use crate::queues::Key;
use crate::request::{Phase, Request};
use crate::scheduler::Scheduler;

/// Who took a request into a batch.
pub(crate) type BatchId = WorkerId;

/// A growth of a request, waiting or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) request: RequestId,
    rank: u32,
    order: u64,
    pub(crate) growth: u32,
    /// When it came into its bucket.
    since: Time,
}

type Bucket = VecDeque<Member>;

/// A model's buckets in a domain, none of them empty.
#[derive(Debug, Default)]
struct Shelf {
    buckets: BTreeMap<Vec<u32>, Bucket>,
    /// The bucket whose turn was last.
    last: Vec<u32>,
    /// Requests of a lower order were there when that turn began.
    turn_began: u64,
}

/// Who waits.
#[derive(Debug, Default)]
pub(crate) struct Shelves(BTreeMap<(ModelId, DomainId), Shelf>);

impl Shelves {
    /// A model is gone.
    pub(crate) fn forget_model(&mut self, id: ModelId) {
        self.0.retain(|(model, _), _| *model != id);
    }
}

/// Coming and going.
impl Scheduler {
    /// A growth waits for its bucket's turn.
    pub(crate) fn join_bucket(&mut self, id: RequestId, growth: u32) {
        let request = self.request(id);
        let Request { model, domain, rank, order, .. } = *request;
        let Some(key) = self.bucket_of(request, growth) else { return };
        let member = Member { request: id, rank, order, growth, since: self.now };
        let bucket = self.shelves.0.entry((model, domain)).or_default().buckets.entry(key).or_default();
        let at = bucket.partition_point(|other| other.rank <= rank);
        bucket.insert(at, member);
        self.rare_mut(id).bucket = Some(growth);
        self.model_mut(model).ready += 1;
        self.touched.push(model);
    }

    fn bucket_of(&self, request: &Request, growth: u32) -> Option<Vec<u32>> {
        let graph = request.growth(growth)?;
        match self.model(request.model).policy {
            PolicyKind::Graph { bucket_width, .. } => Some(structure(graph, bucket_width)),
            // One bucket, so that it is first come, first served.
            PolicyKind::Serial | PolicyKind::Merge { .. } | PolicyKind::Lazy { .. } => Some(Vec::new()),
            PolicyKind::Cellular | PolicyKind::Adaptive => None,
        }
    }

    /// A request that is given up neither waits nor runs any longer.
    pub(crate) fn leave_bucket(&mut self, id: RequestId) {
        let request = self.request_mut(id);
        let Some(rare) = request.rare_if_any() else { return };
        let waited = rare.bucket.take();
        let ran = if waited.is_none() { rare.batch.take() } else { None };
        if waited.is_none() && ran.is_none() {
            return;
        }
        let (model, domain) = (request.model, request.domain);
        if let Some(worker) = ran {
            self.riders_left(worker, model);
        }
        self.model_mut(model).ready -= 1;
        self.touched.push(model);
        let Some(key) = waited.and_then(|growth| self.bucket_of(self.request(id), growth)) else { return };
        let Some(shelf) = self.shelves.0.get_mut(&(model, domain)) else { return };
        let Some(bucket) = shelf.buckets.get_mut(&key) else { return };
        bucket.retain(|member| member.request != id);
        if bucket.is_empty() {
            shelf.buckets.remove(&key);
        }
    }

    /// Takes up to `most` requests of the bucket whose turn it is into a worker's batch.
    pub(crate) fn take_from_shelf(&mut self, worker: WorkerId, model: ModelId, most: impl FnOnce(&Self, &Member) -> usize) -> Vec<Member> {
        let Some(domain) = self.worker(worker).map(|state| state.domain) else { return Vec::new() };
        let Some(key) = self.next_bucket(model, domain) else { return Vec::new() };
        let first = self.shelves.0.get(&(model, domain)).and_then(|shelf| shelf.buckets.get(&key)).and_then(|bucket| bucket.front());
        let Some(most) = first.map(|first| most(self, first)) else { return Vec::new() };
        let Some(shelf) = self.shelves.0.get_mut(&(model, domain)) else { return Vec::new() };
        let Some(bucket) = shelf.buckets.get_mut(&key) else { return Vec::new() };
        let members: Vec<Member> = bucket.drain(..bucket.len().min(most)).collect();
        if bucket.is_empty() {
            shelf.buckets.remove(&key);
        }
        shelf.last = key;
        for member in &members {
            let rare = self.rare_mut(member.request);
            (rare.batch, rare.bucket) = (Some(worker), None);
        }
        members
    }

    /// Who waits in a model's only bucket, in order.
    pub(crate) fn pending(&self, model: ModelId, domain: DomainId) -> impl Iterator<Item = &Member> {
        self.shelves.0.get(&(model, domain)).into_iter().flat_map(|shelf| shelf.buckets.values()).flatten()
    }

    /// Whether a member of a worker's batch has not been given up.
    pub(crate) fn in_batch(&self, member: &Member, worker: WorkerId) -> bool {
        let request = self.request(member.request);
        request.phase == Phase::Placed && request.order == member.order && request.batch() == Some(worker)
    }

    /// Whether tasks in flight name a member of a batch.
    pub(crate) fn any_flying(&self, members: &[Member], worker: WorkerId) -> bool {
        members.iter().any(|member| self.in_batch(member, worker) && self.request(member.request).flying > 0)
    }

    /// Nothing is left of what a batch took of a request: it ends, or grows on.
    pub(crate) fn leave_batch(&mut self, member: &Member, worker: WorkerId) {
        if !self.in_batch(member, worker) {
            return;
        }
        self.rare_mut(member.request).batch = None;
        let (model, numbers) = (self.request(member.request).model, self.request(member.request).chain_numbers());
        self.model_mut(model).ready -= 1;
        self.touched.push(model);
        for number in numbers {
            self.free_chain_if_unread(member.request, number);
        }
        self.place_pending(member.request);
    }

    pub(crate) fn graph_of(&self, member: &Member) -> Option<&UnfoldedGrowth> {
        self.request(member.request).growth(member.growth).map(|graph| &**graph)
    }

    /// The smallest limit of the types that a growth names.
    pub(crate) fn batch_limit(&self, member: &Member) -> u32 {
        let model = self.model(self.request(member.request).model);
        let cells =
            self.graph_of(member).into_iter().flat_map(|graph| &graph.chains).flat_map(|chain| &chain.stages).map(|stage| stage.cell);
        let limits = cells.map(|cell| model.types[model.type_of_cell[cell as usize] as usize].batch.max);
        limits.min().unwrap_or(1)
    }
}

/// Whose turn it is.
impl Scheduler {
    /// Requests of a batch, at most.
    pub(crate) fn members_max(&self, member: &Member) -> usize {
        match self.model(self.request(member.request).model).policy {
            PolicyKind::Cellular | PolicyKind::Adaptive | PolicyKind::Serial => 1,
            PolicyKind::Graph { .. } | PolicyKind::Lazy { .. } => self.batch_limit(member) as usize,
            PolicyKind::Merge { requests } => requests.max(1) as usize,
        }
    }

    /// The age of the oldest request that a batch could take now.
    pub(crate) fn oldest_due(&self, model: ModelId, domain: DomainId) -> Option<Key> {
        let first = self.due(model, domain).filter_map(|(_, bucket)| bucket.front());
        first.map(|member| Key { rank: member.rank, time: member.since, order: member.order, chain: 0, stage: 0, step: 0 }).min()
    }

    /// Buckets whose batch need not wait for more.
    fn due(&self, model: ModelId, domain: DomainId) -> impl Iterator<Item = (&Vec<u32>, &Bucket)> {
        let buckets = self.shelves.0.get(&(model, domain)).into_iter().flat_map(|shelf| &shelf.buckets);
        buckets.filter(move |(_, bucket)| match self.window_closes(model, bucket) {
            None => true,
            Some(closes) => closes <= self.now || bucket.front().is_some_and(|first| bucket.len() >= self.members_max(first)),
        })
    }

    /// When a batch waits for others no longer; none if it does not wait at all.
    fn window_closes(&self, model: ModelId, bucket: &Bucket) -> Option<Time> {
        let PolicyKind::Graph { window_ns: window @ 1.., .. } = self.model(model).policy else { return None };
        let first = bucket.iter().map(|member| member.since).min()?;
        Some(Time(first.0.saturating_add(window)))
    }

    /// The bucket whose turn it is: the last one, as long as those who were there when its turn began fill a batch; then the next that is due.
    /// One batch a turn would let whoever is in a popular bucket wait for a round of all the others for every batch before its own, which is
    /// not what BatchMaker's figures 7 and 8 show.
    fn next_bucket(&mut self, model: ModelId, domain: DomainId) -> Option<Vec<u32>> {
        let shelf = self.shelves.0.get(&(model, domain))?;
        let stays = shelf.buckets.get(&shelf.last).and_then(|bucket| bucket.get(self.members_max(bucket.front()?).checked_sub(1)?));
        if stays.is_some_and(|last| last.order < shelf.turn_began) {
            return Some(shelf.last.clone());
        }
        let after = self.due(model, domain).find(|(key, _)| **key > shelf.last);
        let key = after.or_else(|| self.due(model, domain).next()).map(|(key, _)| key.clone())?;
        let now = self.next_order;
        self.shelves.0.get_mut(&(model, domain))?.turn_began = now;
        Some(key)
    }

    /// A worker has nothing to do though requests wait: it looks again when the first window closes.
    pub(crate) fn wake_for_windows(&mut self, worker: WorkerId) {
        let Some(domain) = self.worker(worker).map(|state| state.domain).filter(|_| !self.shelves.0.is_empty()) else { return };
        let shelves = self.shelves.0.iter().filter(|((_, home), _)| *home == domain);
        let buckets = shelves.flat_map(|((model, _), shelf)| shelf.buckets.values().map(move |bucket| (*model, bucket)));
        let closes = buckets.filter_map(|(model, bucket)| self.window_closes(model, bucket)).filter(|closes| *closes > self.now).min();
        if let Some(at) = closes {
            self.wake_by(at);
        }
    }
}
