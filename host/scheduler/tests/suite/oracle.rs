//! Algorithm 1 of BatchMaker with its gaps filled, transcribed by the letter over requests expanded node by node. It keeps no queues and no
//! counters: every question is answered by looking at all nodes. What it decides is what the scheduler must decide.
//!
//! It is told where requests were placed, who was given up for want of a place, who changed domain, and who finished; everything else it works out from
//! the same events. Of those who changed domain it sees whether they were the ones to do so.

mod readiness;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::Grouping;
use cellwright_scheduler::{
    BatchSizes, CellTypeId, Commands, Config, DomainId, Event, Failure, LaneId, ModelId, ModelInfo, Placement, Release, RequestId, Slot,
    TaskSeq, TenantId, Time, WorkerId,
};

use super::model::{Graph, NodeId};

use readiness::{drop_beyond, ended, rows_seen, whereabouts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    Waiting,
    Queued(WorkerId),
    Done,
    Dropped,
}

#[derive(Clone, Debug)]
struct Node {
    state: NodeState,
    /// Where it is in flight, needed or not.
    flying: Option<WorkerId>,
    /// When it became ready, on whatever worker.
    ready: Option<u64>,
}

struct Request {
    /// Its rank, and its place in order of arrival.
    order: (u32, u64),
    model: ModelId,
    domain: DomainId,
    /// On its way there, with nothing ready meanwhile.
    moving: bool,
    graph: Graph,
    nodes: BTreeMap<NodeId, Node>,
    /// When a subgraph entered its type's queue.
    entered: BTreeMap<(u32, u32, u32), u64>,
    /// Steps that a chain executes, once it has stopped.
    ends: BTreeMap<u32, u32>,
    cancelled: BTreeSet<u32>,
}

/// Which of the ready nodes of a type that a worker may run are its to run: all, those that no other may, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    Own,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    No,
    Any,
    Only(WorkerId),
    Beyond(u32),
}

struct Worker {
    domain: DomainId,
    tasks: Vec<Task>,
    /// When a type was chosen for it.
    chosen: Vec<u64>,
}

#[derive(Clone)]
struct Task {
    seq: u64,
    cell_type: CellTypeId,
    rows: Vec<(RequestId, NodeId)>,
    /// Whose rows they are.
    models: Vec<ModelId>,
    charged: u64,
}

/// Who shares with whom: what each was charged, and had for certain; who is active, and where those start that come back.
struct Peers<K> {
    accounts: BTreeMap<K, (i128, i128)>,
    active: BTreeSet<K>,
    floor: i128,
    most: i128,
}

impl<K> Default for Peers<K> {
    fn default() -> Self {
        Self { accounts: BTreeMap::new(), active: BTreeSet::new(), floor: 0, most: 0 }
    }
}

impl<K: Ord + Copy> Peers<K> {
    fn charged(&self, who: K) -> i128 {
        self.accounts.get(&who).map_or(0, |account| account.0)
    }

    fn complete(&self, who: K) -> i128 {
        self.accounts.get(&who).map_or(0, |account| account.1)
    }

    fn pay(&mut self, who: K, charged: i128, complete: i128) {
        let account = self.accounts.entry(who).or_default();
        *account = (account.0 + charged, account.1 + complete);
    }

    fn turn(&mut self, busy: BTreeSet<K>) {
        let (gone, come) = (&self.active - &busy, &busy - &self.active);
        let least = (&self.active & &busy).into_iter().map(|who| self.complete(who)).min();
        for who in &gone {
            self.most = self.most.max(self.complete(*who));
        }
        if least.is_none() && !gone.is_empty() {
            self.floor = self.floor.max(self.most);
        }
        if !come.is_empty() {
            self.floor = self.floor.max(least.unwrap_or(self.floor));
        }
        for who in come {
            // A microsecond less.
            let start = self.complete(who).max(self.floor - 65_536_000);
            self.accounts.insert(who, (start, start));
        }
        self.active = busy;
    }
}

/// A task as the scheduler's launches say it, one step each.
pub(crate) type Launched = (WorkerId, CellTypeId, ModelId, Vec<(RequestId, NodeId)>);

/// A node's place among others: by rank, then when, then whose, then which.
type Key = (u32, u64, u64, u32, u32, u32);

/// A ready node: type, model, place in the queue, age, whose and which, and whether no other worker may run it.
type Runnable = (CellTypeId, ModelId, (Key, u64, u32), Key, RequestId, NodeId, bool);

pub(crate) struct Oracle {
    config: Config,
    models: BTreeMap<ModelId, Arc<ModelInfo>>,
    weights: BTreeMap<TenantId, u32>,
    tenants: Peers<TenantId>,
    /// Each tenant's.
    models_of: BTreeMap<TenantId, Peers<ModelId>>,
    estimates: BTreeMap<CellTypeId, u64>,
    workers: BTreeMap<WorkerId, Worker>,
    requests: BTreeMap<RequestId, Request>,
    submitted: BTreeMap<RequestId, ((u32, u64), ModelId, Graph)>,
    orders: u64,
    pub(crate) lanes: BTreeMap<LaneId, (RequestId, u32, u32)>,
    pub(crate) launched: Vec<Launched>,
    pub(crate) failed: Vec<(RequestId, Failure)>,
}

impl Oracle {
    pub(crate) fn new(config: Config, models: &[Arc<ModelInfo>], workers: &[(u32, u32, u32)]) -> Self {
        let workers = workers
            .iter()
            .map(|(worker, domain, _)| (WorkerId(*worker), Worker { domain: DomainId(*domain), tasks: Vec::new(), chosen: Vec::new() }));
        Self {
            config,
            models: models.iter().map(|model| (model.model, Arc::clone(model))).collect(),
            weights: models.iter().map(|model| (model.tenant, model.weight)).collect(),
            tenants: Peers::default(),
            models_of: models.iter().map(|model| (model.tenant, Peers::default())).collect(),
            estimates: BTreeMap::new(),
            workers: workers.collect(),
            requests: BTreeMap::new(),
            submitted: BTreeMap::new(),
            orders: 0,
            lanes: BTreeMap::new(),
            launched: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// The same events as the scheduler had; `commands` only says who was placed where, or nowhere.
    pub(crate) fn handle(&mut self, now: Time, events: &[Event], commands: &Commands) {
        (self.launched, self.failed) = (Vec::new(), Vec::new());
        for event in events {
            self.apply(event);
        }
        let is_of_move =
            |placement: &&Placement| commands.moves.iter().any(|moved| (moved.request, moved.to) == (placement.request, placement.domain));
        for placement in commands.placements.iter().filter(|placement| !is_of_move(placement)) {
            self.place(placement, &commands.places[placement.places.clone()]);
        }
        for (id, failure) in &commands.failed {
            if !matches!(failure, Failure::BeyondEnd { .. } | Failure::Cancelled | Failure::Row) {
                self.fail(*id, *failure);
            }
        }
        // Who finished is not given up for what came in the same breath.
        self.failed.retain(|(id, _)| !commands.finished.contains(id));
        self.requests.retain(|id, _| !commands.finished.contains(id));
        self.release_nodes(now);
        self.note_active();
        let ids: Vec<_> = self.workers.keys().copied().collect();
        for worker in ids {
            while self.workers[&worker].tasks.len() <= self.config.low_water as usize {
                if !self.schedule(worker, now) {
                    break;
                }
            }
        }
        for moved in &commands.moves {
            self.leave_for(moved.request, moved.from, moved.to);
        }
        for placement in commands.placements.iter().filter(is_of_move) {
            self.name(placement, &commands.places[placement.places.clone()]);
        }
    }

    /// A request changes domain, for a worker there that has nothing to run: the first to come of those with something ready and nothing in flight, where
    /// every worker has what it wants.
    fn leave_for(&mut self, id: RequestId, from: DomainId, to: DomainId) {
        let idle =
            |(worker, state): (&WorkerId, &Worker)| state.domain == to && state.tasks.is_empty() && self.runnable(*worker).is_empty();
        assert!(self.workers.iter().any(idle), "nobody waits for {id:?} in {to:?}");
        let busy = |domain: DomainId| {
            self.workers.values().filter(|worker| worker.domain == domain).all(|worker| worker.tasks.len() > self.config.low_water as usize)
        };
        let may = |request: &&Request| {
            let nodes = || request.nodes.values();
            let is_ready = nodes().any(|node| node.state == NodeState::Waiting && node.ready.is_some());
            request.domain != to && !request.moving && is_ready && nodes().all(|node| node.flying.is_none()) && busy(request.domain)
        };
        let first = self.requests.values().filter(may).map(|request| request.order.1).min();
        let request = self.requests.get_mut(&id).expect("one in flight");
        assert_eq!((request.domain, Some(request.order.1)), (from, first), "another was to go to {to:?}");
        (request.domain, request.moving) = (to, true);
        request.nodes.values_mut().filter(|node| node.state == NodeState::Waiting).for_each(|node| node.ready = None);
        let graph = &request.graph;
        // Of nodes that are subgraphs by themselves, among others of their stage, no place is kept.
        let by_itself = |chain, stage| graph.chain(chain).length.bound > 1 && graph.stage(chain, stage).grouping == Grouping::Each;
        request.entered.retain(|(chain, stage, _), _| !by_itself(*chain, *stage));
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Submit(submission) => {
                let graph = Graph { growths: vec![Arc::clone(&submission.growth)] };
                self.requests.remove(&submission.request);
                self.submitted.insert(submission.request, ((submission.rank, self.orders), submission.model, graph));
                self.orders += 1;
            }
            Event::Grow { request, growth } => {
                let placed = self.requests.get_mut(request).map(|known| &mut known.graph);
                if let Some(graph) = placed.or_else(|| self.submitted.get_mut(request).map(|known| &mut known.2)) {
                    graph.growths.push(Arc::clone(growth));
                }
            }
            Event::WorkerUp { worker, domain, .. } => {
                drop(self.workers.insert(*worker, Worker { domain: *domain, tasks: Vec::new(), chosen: Vec::new() }))
            }
            Event::TenantWeight { tenant, weight } => drop(self.weights.insert(*tenant, *weight)),
            Event::Moved(request) => self.requests.get_mut(request).into_iter().for_each(|request| request.moving = false),
            Event::Cancel(request) => self.fail(*request, Failure::Cancelled),
            Event::Done { worker, up_to, busy_ns, stopped, failed } => self.done(*worker, *up_to, *busy_ns, stopped, failed),
            _ => {}
        }
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        if self.requests.remove(&id).is_some() || self.submitted.remove(&id).is_some() {
            self.failed.push((id, failure));
        }
    }

    fn place(&mut self, placement: &Placement, places: &[(LaneId, Slot)]) {
        if let Some((order, model, graph)) = self.submitted.remove(&placement.request) {
            let (nodes, entered, ends, cancelled) = Default::default();
            let domain = placement.domain;
            let request = Request { order, model, domain, moving: false, graph, nodes, entered, ends, cancelled };
            self.requests.insert(placement.request, request);
        }
        let Some(request) = self.requests.get_mut(&placement.request) else { return };
        let growth = Arc::clone(&request.graph.growths[placement.growth as usize]);
        name(&mut self.lanes, placement, &growth, places);
        for local in 0..growth.chains.len() {
            let number = growth.first_chain + local as u32;
            for node in request.graph.nodes(number) {
                request.nodes.insert(node, Node { state: NodeState::Waiting, flying: None, ready: None });
            }
            if let Some(end) = request.graph.root(number).and_then(|root| request.ends.get(&root)).copied() {
                drop_beyond(request, number, end);
            }
        }
        for chain in growth.cancel.iter().filter(|chain| !ended(request, **chain)).copied().collect::<Vec<_>>().iter() {
            request.cancelled.insert(*chain);
            let stages = request.graph.chain(*chain).stages.len() as u32;
            for (_, node) in request.nodes.iter_mut().filter(|(id, _)| id.chain == *chain) {
                if node.state == NodeState::Waiting {
                    node.state = NodeState::Dropped;
                }
            }
            // Who follows a cancelled chain executes the steps of it that were submitted whole.
            let whole = |step: &u32| {
                (0..stages).all(|stage| {
                    request.nodes.get(&NodeId { chain: *chain, stage, step: *step }).is_some_and(|node| node.state != NodeState::Dropped)
                })
            };
            let executed = (0..).take_while(whole).count() as u32;
            let followers: Vec<u32> =
                (0..request.graph.chains()).filter(|other| other != chain && request.graph.root(*other) == Some(*chain)).collect();
            for follower in followers {
                drop_beyond(request, follower, executed);
            }
        }
    }

    /// The lanes that a request has where it goes.
    fn name(&mut self, placement: &Placement, places: &[(LaneId, Slot)]) {
        let Some(request) = self.requests.get(&placement.request) else { return };
        name(&mut self.lanes, placement, &request.graph.growths[placement.growth as usize], places);
    }

    fn done(&mut self, id: WorkerId, up_to: TaskSeq, busy_ns: u64, stopped: &[(LaneId, u32)], failed: &[LaneId]) {
        for lane in failed {
            self.fail(self.lanes[lane].0, Failure::Row);
        }
        for (lane, step) in stopped {
            let (id, chain, _) = self.lanes[lane];
            let Some(request) = self.requests.get_mut(&id) else { continue };
            request.ends.insert(chain, step + 1);
            let followers: Vec<u32> = (0..request.graph.chains()).filter(|other| request.graph.root(*other) == Some(chain)).collect();
            for follower in followers {
                drop_beyond(request, follower, step + 1);
            }
        }
        let tasks = std::mem::take(&mut self.workers.get_mut(&id).expect("a worker").tasks);
        let (done, left): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| task.seq <= up_to.0);
        self.workers.get_mut(&id).expect("a worker").tasks = left;
        let charged: u128 = done.iter().map(|task| u128::from(task.charged)).sum();
        for task in &done {
            // By their estimates; evenly, if nothing is known yet.
            let (share, of) = if charged == 0 { (1, done.len() as u128) } else { (u128::from(task.charged), charged) };
            let measured = u128::from(busy_ns) * share / of;
            self.charge(task, measured as i128 - i128::from(task.charged), measured as i128);
            let estimate = self.estimates.entry(task.cell_type).or_default();
            let before = i128::from(*estimate);
            *estimate = if before == 0 { measured as u64 } else { (before + (measured as i128 - before) / 8) as u64 };
            for (request, node) in &task.rows {
                if let Some(node) = self.requests.get_mut(request).and_then(|request| request.nodes.get_mut(node)) {
                    node.flying = None;
                    if node.state == NodeState::Queued(id) {
                        node.state = NodeState::Done;
                    }
                }
            }
        }
    }

    /// Each run of rows of one model pays its share.
    fn charge(&mut self, task: &Task, nanoseconds: i128, complete: i128) {
        for run in task.models.chunk_by(|one, other| one == other) {
            let share = |of: i128| of * run.len() as i128 * 65536 / task.models.len() as i128;
            let tenant = self.models[&run[0]].tenant;
            let weight = i128::from(self.weights[&tenant]);
            self.models_of.get_mut(&tenant).expect("a tenant").pay(run[0], share(nanoseconds), share(complete));
            self.tenants.pay(tenant, share(nanoseconds) / weight, share(complete) / weight);
        }
    }

    /// Every node whose inputs are there becomes ready.
    fn release_nodes(&mut self, now: Time) {
        let mut doomed = Vec::new();
        for (id, request) in self.requests.iter_mut().filter(|(_, request)| !request.moving) {
            let waiting: Vec<NodeId> = request
                .nodes
                .iter()
                .filter(|(_, node)| node.state == NodeState::Waiting && node.ready.is_none())
                .map(|(id, _)| *id)
                .collect();
            for node in waiting {
                match whereabouts(request, node, self.config.release) {
                    Where::No => {}
                    Where::Beyond(chain) => doomed.push((*id, Failure::BeyondEnd { chain })),
                    Where::Any | Where::Only(_) => {
                        request.nodes.get_mut(&node).expect("from them").ready = Some(now.0);
                        request.entered.entry(request.graph.subgraph(node)).or_insert(now.0);
                    }
                }
            }
        }
        for (id, failure) in doomed {
            self.fail(id, failure);
        }
    }

    fn note_active(&mut self) {
        let ready = self
            .requests
            .values()
            .filter(|request| request.nodes.values().any(|node| node.state == NodeState::Waiting && node.ready.is_some()));
        let flying = self.workers.values().flat_map(|worker| &worker.tasks).flat_map(|task| &task.models);
        let busy: BTreeSet<ModelId> = ready.map(|request| request.model).chain(flying.copied()).collect();
        self.tenants.turn(busy.iter().map(|model| self.models[model].tenant).collect());
        for (tenant, peers) in &mut self.models_of {
            peers.turn(busy.iter().filter(|model| self.models[model].tenant == *tenant).copied().collect());
        }
    }

    /// Ready nodes that a worker may run now, with the place of each in its queue and its age.
    fn runnable(&self, worker: WorkerId) -> Vec<Runnable> {
        let mut found = Vec::new();
        for (id, request) in self.requests.iter().filter(|(_, request)| request.domain == self.workers[&worker].domain) {
            for (node, state) in request.nodes.iter().filter(|(_, node)| node.state == NodeState::Waiting) {
                let Some(ready) = state.ready else { continue };
                let group = request.graph.subgraph(*node);
                let of_group = request.nodes.iter().filter(|(other, _)| request.graph.subgraph(**other) == group);
                let pins: Vec<WorkerId> = of_group.filter_map(|(_, node)| node.flying).collect();
                if pins.iter().any(|pin| *pin != worker) {
                    continue;
                }
                let own = match whereabouts(request, *node, self.config.release) {
                    Where::Any => !pins.is_empty(),
                    Where::Only(only) if only == worker => true,
                    _ => continue,
                };
                let cell = request.graph.stage(node.chain, node.stage).cell;
                let cell_type = self.models[&request.model].cells[cell as usize].cell_type;
                let (rank, order) = request.order;
                let place = ((rank, request.entered[&group], order, group.0, group.1, group.2), ready, node.step);
                found.push((cell_type, request.model, place, (rank, ready, order, node.chain, node.stage, node.step), *id, *node, own));
            }
        }
        found
    }

    /// Which ready nodes of a type are a worker's to run: of a type whose batches are filled first, where another worker has batches of such types of the same
    /// model and nothing else, a full batch, or half of one of those that nobody else may run. If none of those others takes them soon, any: because
    /// each has chosen something twice since the oldest is ready, and has nothing of the type, or has full batches of it; for the latter alone, half a batch
    /// at least. Else none. Of several such workers the first goes on. `ready` has each with whether nobody else may run it, its type, its rank and since when it is.
    fn part_of(&self, worker: WorkerId, model: ModelId, of: CellTypeId, ready: &[(bool, CellTypeId, (u32, u64))]) -> Part {
        let filled = |of: CellTypeId| self.models[&model].cells.iter().find(|cell| cell.cell_type == of).filter(|cell| cell.fill_first);
        let Some(cell) = filled(of) else { return Part::All };
        let BatchSizes { max, quantum, .. } = cell.batch;
        let full = if max > quantum { max / quantum * quantum } else { max } as usize;
        let fills = |worker: &Worker| !worker.tasks.is_empty() && worker.tasks.iter().all(|task| filled(task.cell_type).is_some());
        let own = &self.workers[&worker];
        let counts = |other: WorkerId| other < worker || (other != worker && !fills(own));
        let others: Vec<&Worker> = self.workers.iter().filter(|(id, _)| counts(**id)).map(|(_, state)| state).collect();
        let others: Vec<&Worker> = others.into_iter().filter(|state| state.domain == own.domain && fills(state)).collect();
        let of_type: Vec<_> = ready.iter().filter(|node| node.1 == of).collect();
        let oldest = of_type.iter().map(|node| node.2).min().map(|(_, since)| since);
        let has_any = |worker: &Worker| worker.tasks.iter().any(|task| task.cell_type == of);
        let is_full = |worker: &Worker| worker.tasks.iter().any(|task| task.cell_type == of && task.rows.len() >= full);
        let passed = |worker: &Worker| {
            let later = |since: u64| worker.chosen.iter().filter(|chosen| **chosen > since).count();
            !has_any(worker) && oldest.is_some_and(|oldest| later(oldest) >= 2)
        };
        let rows = |own_only: bool| of_type.iter().filter(|node| node.0 || !own_only).count();
        if others.is_empty() || rows(false) >= full {
            return Part::All;
        }
        match others.iter().all(|other| is_full(other) || passed(other)) {
            true if others.iter().any(|other| passed(other)) || 2 * rows(false) >= full => Part::All,
            false if 2 * rows(true) >= full => Part::Own,
            _ => Part::None,
        }
    }

    /// Algorithm 1, `Schedule`.
    fn schedule(&mut self, worker: WorkerId, now: Time) -> bool {
        let all = self.runnable(worker);
        let ready: Vec<_> = all.iter().map(|node| (node.6, node.0, (node.3.0, node.3.1))).collect();
        let (mut nodes, mut parts) = (all.clone(), BTreeMap::new());
        nodes.retain(|node| {
            let part = *parts.entry((node.1, node.0)).or_insert_with(|| self.part_of(worker, node.1, node.0, &ready));
            part == Part::All || (part == Part::Own && node.6)
        });
        let models: BTreeSet<ModelId> = nodes.iter().map(|node| node.1).collect();
        let oldest = |model: ModelId| all.iter().filter(|node| node.1 == model).map(|node| node.3).min();
        let tenant_of = |model: ModelId| self.models[&model].tenant;
        let tenants: BTreeSet<TenantId> = models.iter().map(|model| tenant_of(*model)).collect();
        let oldest_of = |tenant: TenantId| {
            let with_work = all.iter().filter(|node| tenant_of(node.1) == tenant && models.contains(&node.1));
            with_work.map(|node| node.3).min()
        };
        let tenant = tenants.into_iter().min_by_key(|tenant| (self.tenants.charged(*tenant), oldest_of(*tenant), *tenant));
        let peers = models.iter().copied().filter(|model| Some(tenant_of(*model)) == tenant);
        let owed = |model: ModelId| self.models_of[&tenant_of(model)].charged(model);
        let Some(model) = peers.min_by_key(|model| (owed(*model), oldest(*model), *model)) else { return false };
        let cells = &self.models[&model].cells;
        let types: BTreeSet<CellTypeId> = nodes.iter().filter(|node| node.1 == model).map(|node| node.0).collect();
        let batch = |of: CellTypeId| cells.iter().find(|cell| cell.cell_type == of).expect("the model's type").batch;
        let priority = |of: CellTypeId| cells.iter().filter(|cell| cell.cell_type == of).map(|cell| cell.priority).max();
        let own_only = |of: CellTypeId| parts.get(&(model, of)) == Some(&Part::Own);
        let ready = |of: CellTypeId| all.iter().filter(|node| node.0 == of && (node.6 || !own_only(of))).count();
        let running = |of: CellTypeId| self.workers.values().flat_map(|worker| &worker.tasks).filter(|task| task.cell_type == of).count();
        let mut chosen: Vec<CellTypeId> = types.iter().copied().filter(|of| ready(*of) >= batch(*of).max as usize).collect();
        if chosen.is_empty() {
            chosen = types.iter().copied().filter(|of| running(*of) == 0).collect();
        }
        if chosen.is_empty() {
            chosen = types.into_iter().collect();
        }
        let age = |of: CellTypeId| all.iter().filter(|node| node.0 == of).map(|node| node.3).min();
        let Some(cell_type) = chosen.into_iter().min_by_key(|of| (std::cmp::Reverse(priority(*of)), age(*of), *of)) else { return false };
        let (sizes, own_only) = (batch(cell_type), own_only(cell_type));
        let mut tasks = 0;
        while tasks < self.config.max_tasks_to_submit {
            let batch = self.form_batched_task(cell_type, (worker, own_only), sizes.max as usize, sizes.quantum as usize);
            if batch.is_empty() || (tasks > 0 && batch.len() < sizes.min as usize) {
                break;
            }
            self.submit(batch, cell_type, model, worker);
            self.release_nodes(now);
            tasks += 1;
        }
        if tasks > 0 {
            self.workers.get_mut(&worker).expect("it is up").chosen.push(now.0);
        }
        true
    }

    fn form_batched_task(
        &self,
        cell_type: CellTypeId,
        (worker, own_only): (WorkerId, bool),
        max: usize,
        quantum: usize,
    ) -> Vec<(RequestId, NodeId)> {
        let mut nodes = self.runnable(worker);
        nodes.retain(|node| node.0 == cell_type && (node.6 || !own_only));
        nodes.sort_by_key(|node| node.2);
        nodes.truncate(max);
        if nodes.len() > quantum {
            nodes.truncate(nodes.len() / quantum * quantum);
        }
        let spans =
            self.models.values().flat_map(|model| &model.cells).find(|cell| cell.cell_type == cell_type).and_then(|cell| cell.spans);
        if let Some(spans) = spans {
            let most = u64::from(spans.rows) * u64::from(spans.batch);
            while nodes.len() > 1 && nodes.iter().map(|node| rows_seen(&self.requests[&node.4], node.5)).sum::<u64>() > most {
                nodes.pop();
            }
        }
        nodes.into_iter().map(|node| (node.4, node.5)).collect()
    }

    fn submit(&mut self, rows: Vec<(RequestId, NodeId)>, cell_type: CellTypeId, model: ModelId, worker: WorkerId) {
        for (request, node) in &rows {
            let node = self.requests.get_mut(request).and_then(|request| request.nodes.get_mut(node)).expect("a ready node");
            (node.state, node.flying) = (NodeState::Queued(worker), Some(worker));
        }
        let charged = self.estimates.get(&cell_type).copied().unwrap_or(0);
        let models = rows.iter().map(|(request, _)| self.requests[request].model).collect();
        let task = Task { seq: 0, cell_type, rows: rows.clone(), models, charged };
        self.charge(&task, i128::from(charged), 0);
        self.workers.get_mut(&worker).expect("a worker").tasks.push(task);
        self.launched.push((worker, cell_type, model, rows));
    }

    /// Gives the tasks of the last `handle` the numbers that the scheduler's launches have.
    pub(crate) fn number(&mut self, seqs: &[(WorkerId, TaskSeq)]) {
        for (worker, seq) in seqs {
            let task = self.workers.get_mut(worker).and_then(|worker| worker.tasks.iter_mut().find(|task| task.seq == 0));
            task.expect("a task for every launch").seq = seq.0;
        }
    }
}

/// Whose lanes those of a placement are.
fn name(lanes: &mut BTreeMap<LaneId, (RequestId, u32, u32)>, placement: &Placement, growth: &UnfoldedGrowth, places: &[(LaneId, Slot)]) {
    let stages = growth
        .chains
        .iter()
        .zip(growth.first_chain..)
        .flat_map(|(chain, number)| (0..).zip(&chain.stages).map(move |(stage, _)| (number, stage)));
    for ((number, stage), (lane, _)) in stages.zip(places) {
        lanes.insert(*lane, (placement.request, number, stage));
    }
}

mod tests;
