//! A world for the scheduler to act on: it carries out every command, remembers everything, and objects to whatever must not happen.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Retention, SPAN_ROWS_MAX};
use cellwright_scheduler::{
    Commands, Config, DomainId, Event, Failure, LaneId, ModelId, ModelInfo, PolicyKind, Release, RequestId, Scheduler, Slice, Slot,
    Submission, Takes, TaskSeq, Time, WorkerId,
};

use super::model::{Graph, Need, NodeId};

/// What became of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    Queued(WorkerId, (u64, u32)),
    Done,
}

/// What the world knows of a request.
pub(crate) struct Request {
    pub(crate) rank: u32,
    pub(crate) model: ModelId,
    pub(crate) graph: Graph,
    pub(crate) nodes: BTreeMap<NodeId, NodeState>,
    /// The step in which a chain stops, as only the device knows.
    pub(crate) truth: BTreeMap<u32, u32>,
    /// Ends of chains that were reported.
    pub(crate) known_end: BTreeMap<u32, u32>,
    pub(crate) cancelled_chains: Vec<u32>,
    pub(crate) placed: usize,
    /// The worker of each growth, by its first chain, where a policy takes requests.
    pub(crate) taken: BTreeMap<u32, WorkerId>,
    pub(crate) open: bool,
    pub(crate) lanes: u32,
    pub(crate) ended: bool,
    pub(crate) moving: bool,
    pub(crate) cancelled: bool,
    pub(crate) row_failed: bool,
}

impl Request {
    /// Steps that a chain executes, once everything is known.
    pub(crate) fn executed(&self, chain: u32) -> u32 {
        let bound = self.graph.chain(chain).length.bound;
        let stop = self.graph.root(chain).and_then(|root| self.truth.get(&root));
        stop.map_or(bound, |step| bound.min(step + 1))
    }

    pub(crate) fn known(&self, chain: u32) -> u32 {
        let bound = self.graph.chain(chain).length.bound;
        self.graph.root(chain).and_then(|root| self.known_end.get(&root)).map_or(bound, |end| bound.min(*end))
    }

    pub(crate) fn done(&self, node: NodeId) -> bool {
        self.nodes.get(&node) == Some(&NodeState::Done)
    }

    /// Whether every step that a chain executes is complete.
    pub(crate) fn chain_over(&self, chain: u32) -> bool {
        let executed = self.executed(chain);
        self.given_up(chain) || self.graph.nodes(chain).all(|node| node.step >= executed || self.done(node))
    }

    /// Whether it was cancelled, or the chain that it follows was.
    pub(crate) fn given_up(&self, chain: u32) -> bool {
        let cancelled = |chain| self.cancelled_chains.contains(&chain);
        cancelled(chain) || self.graph.root(chain).is_some_and(cancelled)
    }

    /// Whether a step that is executed names one of that chain that never is.
    fn names_beyond(&self, chain: u32) -> bool {
        let nodes = (0..self.graph.chains()).flat_map(|own| self.graph.nodes(own)).filter(|node| node.step < self.executed(node.chain));
        nodes.flat_map(|node| self.graph.needs(node)).any(|need| match need {
            Need::Node { node, .. } => node.chain == chain && (node.step >= self.executed(chain) || self.given_up(chain)),
            // One that follows a cancelled chain has the steps that were submitted whole.
            Need::Counted { chain: counts, counted } => counts == chain && (counted > self.executed(chain) || self.given_up(chain)),
            Need::End(_) | Need::Followed(_) => false,
        })
    }

    /// Steps of a chain that others may see, as far as is known.
    fn steps(&self, chain: u32) -> u32 {
        let is_whole = |step: &u32| self.graph.nodes(chain).all(|node| node.step != *step || self.nodes.contains_key(&node));
        let known = self.known(chain);
        if self.given_up(chain) { (0..known).take_while(is_whole).count() as u32 } else { known }
    }

    pub(crate) fn over(&self) -> bool {
        (0..self.graph.chains()).all(|chain| self.chain_over(chain))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneInfo {
    pub(crate) request: RequestId,
    pub(crate) chain: u32,
    pub(crate) stage: u32,
    pub(crate) domain: DomainId,
    pub(crate) slot: Slot,
    pub(crate) slots: u32,
    pub(crate) flying: u32,
    /// Another lane of the request has some of its slots, too.
    pub(crate) shares: bool,
}

pub(crate) struct Task {
    pub(crate) seq: TaskSeq,
    pub(crate) steps: u32,
    pub(crate) rows: Vec<(LaneId, u32)>,
    /// It may be paused.
    pub(crate) sliced: bool,
}

pub(crate) struct Worker {
    pub(crate) domain: DomainId,
    pub(crate) tasks: VecDeque<Task>,
    /// Tasks that were paused.
    pub(crate) paused: Vec<Task>,
}

/// Everything outside the scheduler.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) scheduler: Scheduler,
    pub(crate) commands: Commands,
    pub(crate) now: Time,
    pub(crate) models: Vec<Arc<ModelInfo>>,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) arenas: BTreeMap<DomainId, Vec<Option<LaneId>>>,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) lanes: BTreeMap<LaneId, LaneInfo>,
    pub(crate) moves: Vec<RequestId>,
    /// Every command, as text.
    pub(crate) trace: Vec<String>,
    pub(crate) finished: u32,
    pub(crate) failed: Vec<(RequestId, Failure)>,
    pub(crate) moved: u32,
    pub(crate) copied: u32,
    /// Launches of several steps, rows of padding, placements to be zeroed first.
    pub(crate) merged: u32,
    pub(crate) padded: u32,
    /// Rows whose chain ended before their launch.
    pub(crate) ragged: u32,
    pub(crate) scrubbed: u32,
    /// Rows of spans.
    pub(crate) seen: u32,
    pub(crate) pauses: u32,
    pub(crate) lost_worker: bool,
    pub(crate) wake: bool,
    /// Of the next request.
    pub(crate) deadline: Option<Time>,
}

impl World {
    pub(crate) fn new(config: Config, models: Vec<ModelInfo>, workers: &[(u32, u32, u32)]) -> Self {
        let mut world = Self {
            config,
            scheduler: Scheduler::new(config),
            commands: Commands::default(),
            now: Time(0),
            models: models.into_iter().map(Arc::new).collect(),
            workers: BTreeMap::new(),
            arenas: BTreeMap::new(),
            requests: BTreeMap::new(),
            lanes: BTreeMap::new(),
            moves: Vec::new(),
            trace: Vec::new(),
            finished: 0,
            failed: Vec::new(),
            moved: 0,
            copied: 0,
            merged: 0,
            padded: 0,
            ragged: 0,
            scrubbed: 0,
            seen: 0,
            pauses: 0,
            lost_worker: false,
            wake: false,
            deadline: None,
        };
        let mut events: Vec<Event> = world.models.iter().map(|model| Event::ModelUp(Arc::clone(model))).collect();
        for worker in workers {
            events.push(world.worker_up(*worker));
        }
        world.handle(&mut events);
        world
    }

    /// A worker, its domain and that one's slots, of which the scheduler is to be told.
    pub(crate) fn worker_up(&mut self, (worker, domain, arena_slots): (u32, u32, u32)) -> Event {
        let (worker, domain, class) = (WorkerId(worker), DomainId(domain), self.models[0].class);
        self.workers.insert(worker, Worker { domain, tasks: VecDeque::new(), paused: Vec::new() });
        self.arenas.entry(domain).or_insert_with(|| vec![None; arena_slots as usize]);
        Event::WorkerUp { worker, domain, class, arena_slots }
    }

    /// A request that the scheduler has not heard of; the event is the caller's to send.
    pub(crate) fn request(&mut self, model: ModelId, growth: &Arc<UnfoldedGrowth>, truth: BTreeMap<u32, u32>) -> (RequestId, Event) {
        self.ranked(0, model, growth, truth)
    }

    /// The same, of that rank.
    pub(crate) fn ranked(
        &mut self,
        rank: u32,
        model: ModelId,
        growth: &Arc<UnfoldedGrowth>,
        truth: BTreeMap<u32, u32>,
    ) -> (RequestId, Event) {
        let id = (0..).map(RequestId).find(|id| !self.requests.contains_key(id)).expect("a free id");
        let request = Request {
            rank,
            model,
            graph: Graph { growths: vec![Arc::clone(growth)] },
            nodes: BTreeMap::new(),
            truth,
            known_end: BTreeMap::new(),
            cancelled_chains: Vec::new(),
            placed: 0,
            taken: BTreeMap::new(),
            open: growth.next.is_some(),
            lanes: 0,
            ended: false,
            moving: false,
            cancelled: false,
            row_failed: false,
        };
        self.requests.insert(id, request);
        (id, Event::Submit(Submission { request: id, model, rank, deadline: self.deadline.take(), growth: Arc::clone(growth) }))
    }

    /// Requests that have not ended, and what of them is not complete.
    pub(crate) fn left_over(&self) -> String {
        let lines = self.requests.iter().map(|(id, request)| {
            let all = (0..request.graph.chains()).flat_map(|chain| request.graph.nodes(chain));
            let missing: Vec<_> = all.filter(|node| node.step < request.executed(node.chain) && !request.done(*node)).take(5).collect();
            let Request { open, placed, ended, lanes, moving, truth, known_end, cancelled_chains, .. } = request;
            format!(
                "{id:?} open {open} placed {placed} of {} ended {ended} lanes {lanes} moving {moving} missing {missing:?} truth {truth:?} known {known_end:?} cancelled {cancelled_chains:?}\n{:#?}",
                request.graph.growths.len(),
                request.graph.growths
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// A worker pauses its next task, if it may be.
    pub(crate) fn pause(&mut self, worker: WorkerId, busy_ns: u64) -> Option<Event> {
        let state = self.workers.get_mut(&worker)?;
        let task = state.tasks.pop_front_if(|task| task.sliced)?;
        let seq = task.seq;
        state.paused.push(task);
        self.pauses += 1;
        Some(Event::Paused { worker, seq, busy_ns })
    }

    /// A paused task goes on.
    fn resume(&mut self, launch: &cellwright_scheduler::Launch, paused: TaskSeq, rows: &[cellwright_scheduler::Row]) {
        let state = self.workers.get_mut(&launch.worker).expect("a worker that is up");
        let at = state.paused.iter().position(|task| task.seq == paused).expect("who goes on was paused");
        let task = Task { seq: launch.seq, ..state.paused.remove(at) };
        assert!(task.rows.iter().copied().eq(rows.iter().map(|row| (row.lane, row.step))), "a task goes on with its own rows");
        assert!(state.tasks.iter().all(|task| !task.sliced), "a slice behind a slice");
        state.tasks.push_back(task);
    }

    /// A worker completes its next `count` tasks. `fail` says which lanes fail.
    pub(crate) fn complete(&mut self, worker: WorkerId, count: usize, busy_ns: u64, mut fail: impl FnMut() -> bool) -> Option<Event> {
        let (mut stopped, mut failed) = (Vec::new(), Vec::new());
        let mut up_to = None;
        for _ in 0..count {
            let Some(task) = self.workers.get_mut(&worker)?.tasks.pop_front() else { break };
            up_to = Some(task.seq);
            for (lane, first) in &task.rows {
                let info = self.lanes.get_mut(lane).expect("rows in flight hold their lanes");
                info.flying -= 1;
                let (id, chain, stage) = (info.request, info.chain, info.stage);
                let request = self.requests.get_mut(&id).expect("rows in flight hold their request");
                if fail() && !request.ended {
                    failed.push(*lane);
                    request.row_failed = true;
                }
                for step in *first..first + task.steps {
                    if step >= request.executed(chain) {
                        request.nodes.remove(&NodeId { chain, stage, step });
                        continue;
                    }
                    request.nodes.insert(NodeId { chain, stage, step }, NodeState::Done);
                    let stops = request.graph.chain(chain).stop.is_some_and(|(stop, _)| stop == stage);
                    if stops && request.truth.get(&chain) == Some(&step) {
                        request.known_end.insert(chain, step + 1);
                        stopped.push((*lane, step));
                    }
                }
            }
        }
        Some(Event::Done { worker, up_to: up_to?, busy_ns, stopped, failed })
    }

    /// Lets the scheduler act, and carries out what it says.
    pub(crate) fn handle(&mut self, events: &mut Vec<Event>) {
        if self.wake {
            events.push(Event::Wake);
        }
        self.scheduler.handle(self.now, events, &mut self.commands);
        let commands = std::mem::take(&mut self.commands);
        self.wake = commands.wake_at.is_some();
        self.trace.push(format!("{} {commands:?}", self.now.0));
        for lane in &commands.released {
            self.release(*lane);
        }
        for placement in &commands.placements {
            self.place(placement, &commands.places[placement.places.clone()]);
        }
        for moved in &commands.moves {
            let request = self.requests.get_mut(&moved.request).expect("a request that moves is in flight");
            assert!(!request.moving && moved.from != moved.to);
            assert!(!request.nodes.values().any(|state| matches!(state, NodeState::Queued(..))), "a request moved with tasks in flight");
            request.moving = true;
            let nodes = request.nodes.clone();
            let of = |domain| self.lanes.values().filter(move |info| info.request == moved.request && info.domain == domain);
            for old in of(moved.from).filter(|info| info.slots > 0) {
                let new = of(moved.to).find(|info| (info.chain, info.stage) == (old.chain, old.stage)).expect("a new place for the old");
                let computed = |lane: &LaneInfo| nodes.keys().any(|node| (node.chain, node.stage) == (lane.chain, lane.stage));
                let goes_on = |lane: &LaneInfo| request.graph.stage(lane.chain, lane.stage).retention.before() > 0;
                // A stage that begins at the same slot and is no shorter may have them.
                let covers = |lane: &LaneInfo| lane.slot == old.slot && lane.slots >= old.slots;
                let has_values = of(moved.from).any(|lane| covers(lane) && (computed(lane) || goes_on(lane)));
                let copies = commands.copies[moved.copies.clone()].iter().filter(|(from, to, slots)| {
                    (*from, *to) == (old.slot, new.slot) && (*slots == old.slots || old.shares && *slots > old.slots)
                });
                let copied = copies.count();
                assert_eq!(usize::from(has_values), copied, "values are copied once, and nothing else");
                self.copied += copied as u32;
            }
            self.moves.push(moved.request);
            self.moved += 1;
        }
        for launch in &commands.launches {
            self.launch(launch, &commands.rows[launch.rows.clone()]);
        }
        for id in &commands.finished {
            let request = self.requests.get_mut(id).expect("who finishes was in flight");
            assert!(!request.ended, "a request ended twice");
            assert!(!request.open && request.over() && request.placed == request.graph.growths.len(), "a request finished early");
            request.ended = true;
            self.finished += 1;
        }
        for (id, failure) in &commands.failed {
            let request = self.requests.get_mut(id).expect("who fails was in flight");
            assert!(!request.ended, "a request ended twice");
            request.ended = true;
            match failure {
                Failure::Cancelled => assert!(request.cancelled),
                Failure::Late { .. } => {
                    let policy = self.models[request.model.index()].policy.unwrap_or(self.config.policy);
                    assert_eq!(policy, PolicyKind::Adaptive, "nobody else minds deadlines");
                }
                Failure::Row => assert!(request.row_failed),
                Failure::BeyondEnd { chain } => assert!(request.names_beyond(*chain), "{id:?} names nothing beyond the end of {chain}"),
                Failure::WorkerLost | Failure::NoWorker => assert!(self.lost_worker),
                _ => {}
            }
            self.failed.push((*id, *failure));
        }
        self.requests.retain(|_, request| !(request.ended && request.lanes == 0));
        self.commands = commands;
        assert!(self.scheduler.activity_is_noted(), "a model came or went, and nobody has noted it");
        self.check_somebody_goes_on();
    }

    /// Where nothing is under way and nobody is to be woken, whoever has a place has nothing to do: no event would come for it.
    fn check_somebody_goes_on(&self) {
        if self.wake || !self.moves.is_empty() || self.workers.values().any(|worker| !worker.tasks.is_empty()) {
            return;
        }
        let waits = |request: &Request| request.ended || request.placed < request.graph.growths.len() || request.over();
        let forgotten: Vec<_> = self.requests.iter().filter(|(_, request)| !waits(request)).map(|(id, _)| *id).collect();
        assert!(forgotten.is_empty(), "nobody goes on with {forgotten:?}:\n{}", self.left_over());
    }

    fn release(&mut self, lane: LaneId) {
        let info = self.lanes.remove(&lane).expect("a lane is released once");
        assert_eq!(info.flying, 0, "a lane was released while a task names it");
        if let Some(arena) = self.arenas.get_mut(&info.domain).filter(|_| info.slots > 0) {
            for slot in &mut arena[info.slot.index()..][..info.slots as usize] {
                // What continues it has them.
                if *slot == Some(lane) {
                    *slot = None;
                } else {
                    assert!(info.shares, "its slots were another lane's");
                }
            }
        }
        self.requests.get_mut(&info.request).expect("a lane's request").lanes -= 1;
    }

    fn place(&mut self, placement: &cellwright_scheduler::Placement, places: &[(LaneId, Slot)]) {
        let request = self.requests.get_mut(&placement.request).expect("who is placed is in flight");
        self.scrubbed += u32::from(placement.scrub);
        let model = &self.models[request.model.index()];
        let growth = Arc::clone(&request.graph.growths[placement.growth as usize]);
        if request.placed == placement.growth as usize {
            request.placed += 1;
            request.cancelled_chains.extend(&growth.cancel);
        }
        let own: Vec<LaneId> = places.iter().map(|(lane, _)| *lane).collect();
        let mut places = places.iter();
        for (local, chain) in growth.chains.iter().enumerate() {
            for (stage, graph) in chain.stages.iter().enumerate() {
                let (lane, slot) = *places.next().expect("a place for every stage");
                if lane == LaneId(u32::MAX) {
                    continue;
                }
                let slots = graph.retention.places(chain.length.bound) * model.cells[graph.cell as usize].slots;
                assert_eq!(slots == 0, slot == Slot(u32::MAX));
                let arena = self.arenas.get_mut(&placement.domain).filter(|_| slots > 0);
                let info = LaneInfo {
                    request: placement.request,
                    chain: growth.first_chain + local as u32,
                    stage: stage as u32,
                    domain: placement.domain,
                    slot,
                    // A domain may be lost in the same breath.
                    slots: if arena.is_some() { slots } else { 0 },
                    flying: 0,
                    shares: growth.shared.is_some(),
                };
                let goes_on = chain.continues.filter(|_| matches!(graph.retention, Retention::Ring { .. }));
                let is_before = |info: &LaneInfo| {
                    info.request == placement.request
                        && (Some(info.chain), info.stage, info.domain) == (goes_on, stage as u32, placement.domain)
                };
                let before = self.lanes.iter_mut().find(|(_, info)| is_before(info)).map(|(lane, info)| {
                    assert_eq!(info.slot, slot, "a stage goes on elsewhere");
                    info.shares = true;
                    *lane
                });
                if let Some(arena) = arena {
                    for slot in &mut arena[slot.index()..][..slots as usize] {
                        let is_shared = growth.shared.is_some() && slot.is_none_or(|lane| own.contains(&lane));
                        assert!(slot.is_none() || before.is_some() && *slot == before || is_shared, "a slot lives in two lanes");
                        *slot = Some(lane);
                    }
                }
                assert!(self.lanes.insert(lane, info).is_none(), "a lane was handed out twice");
                request.lanes += 1;
            }
        }
        assert!(places.next().is_none());
    }

    fn launch(&mut self, launch: &cellwright_scheduler::Launch, rows: &[cellwright_scheduler::Row]) {
        assert!(!rows.is_empty() && launch.steps > 0);
        if let Slice::Next(paused) = launch.slice {
            return self.resume(launch, paused, rows);
        }
        self.merged += u32::from(launch.steps > 1);
        let ragged = self.ragged;
        let chosen = Arc::clone(&self.models[launch.model.index()]);
        let takes_requests = self.takes(launch.model) != Takes::Nodes;
        let cells = chosen.cells.iter().filter(|cell| cell.cell_type == launch.cell_type);
        assert!(cells.clone().map(|cell| cell.batch.max).max().is_some_and(|max| rows.len() <= max as usize), "a batch above its limit");
        let limit = cells.filter_map(|cell| cell.spans).map(|spans| u64::from(spans.rows) * u64::from(spans.batch)).max();
        for index in 0..launch.steps {
            let (mut nodes, mut seen) = (0, 0);
            for row in rows {
                let info = *self.lanes.get(&row.lane).expect("a row's lane is held");
                let request = &self.requests[&info.request];
                assert!(!request.ended && !request.moving, "a row of a request that ended or moves");
                assert_eq!(self.workers[&launch.worker].domain, info.domain, "a row in another domain");
                assert!(launch.sole.is_none_or(|sole| sole == request.model), "a row of a model that the launch is not of");
                let node = NodeId { chain: info.chain, stage: info.stage, step: row.step + index };
                let cell = request.graph.stage(info.chain, info.stage).cell;
                assert_eq!(self.models[request.model.index()].cells[cell as usize].cell_type, launch.cell_type, "two types in a task");
                if self.in_order(request) && node.step >= request.known(info.chain) {
                    continue;
                }
                if index > 0 && node.step >= request.graph.chain(info.chain).length.bound {
                    let goes_on = rows.iter().any(|row| row.step + index < self.bound(row.lane));
                    assert!(goes_on && self.may_be_ragged(launch), "a chain ended before its launch");
                    self.ragged += 1;
                    continue;
                }
                self.check_needs(request, node, launch, index);
                self.check_place(request, &info, launch);
                nodes += 1;
                let sees = request.graph.rows_seen(node, &|chain, _| request.steps(chain));
                assert!(sees <= SPAN_ROWS_MAX.into(), "{node:?} sees rows that there are not");
                seen += sees;
            }
            assert!(nodes == 1 || limit.is_none_or(|limit| seen <= limit), "{nodes} nodes of a task see {seen} rows");
            self.seen += seen as u32;
            for row in rows {
                let info = self.lanes[&row.lane];
                let request = self.requests.get_mut(&info.request).expect("checked above");
                let node = NodeId { chain: info.chain, stage: info.stage, step: row.step + index };
                if takes_requests && request.model == launch.model {
                    let growth = request.graph.growth_of(node.chain).first_chain;
                    let worker = *request.taken.entry(growth).or_insert(launch.worker);
                    assert_eq!(worker, launch.worker, "a growth that was taken for another worker");
                }
                let padding = node.step >= request.graph.chain(info.chain).length.bound || node.step >= request.known(info.chain);
                self.padded += u32::from(padding);
                let before =
                    (!padding).then(|| request.nodes.insert(node, NodeState::Queued(launch.worker, (launch.seq.0, index)))).flatten();
                assert!(before.is_none(), "a node was submitted twice");
            }
        }
        assert_eq!(launch.ended, self.ragged - ragged, "rows that ended on the way");
        for row in rows {
            self.lanes.get_mut(&row.lane).expect("checked above").flying += 1;
        }
        let worker = self.workers.get_mut(&launch.worker).expect("a worker that is up");
        assert!(worker.tasks.back().is_none_or(|last| last.seq.0 + 1 == launch.seq.0), "a gap between tasks");
        let rows = rows.iter().map(|row| (row.lane, row.step)).collect();
        let sliced = launch.slice == Slice::First;
        let is_free = worker.paused.len() < 2 && worker.tasks.iter().all(|task| !task.sliced);
        assert!(is_free || !sliced, "more tasks in slices than a worker may have");
        worker.tasks.push_back(Task { seq: launch.seq, steps: launch.steps, rows, sliced });
    }

    /// Up to which step a lane goes, whatever it computes.
    pub(crate) fn bound(&self, lane: LaneId) -> u32 {
        let info = &self.lanes[&lane];
        self.requests[&info.request].graph.chain(info.chain).length.bound
    }

    /// Whether rows of a launch may be padding because their chains have ended.
    fn may_be_ragged(&self, launch: &cellwright_scheduler::Launch) -> bool {
        let mut cells = self.models[launch.model.index()].cells.iter().filter(|cell| cell.cell_type == launch.cell_type);
        self.config.merge_steps && cells.any(|cell| cell.steps_together)
    }

    /// Whether its policy executes a request's stages in the order in which they stand, without looking at what they wait for.
    fn in_order(&self, request: &Request) -> bool {
        self.takes(request.model) == Takes::RequestsInOrder
    }

    /// What a model's policy takes. In place of one that keeps an order, a model that runs in slices has cellular batching.
    fn takes(&self, model: ModelId) -> Takes {
        let model = &self.models[model.index()];
        let is_long = |ns: u64| self.config.slice_ns > 0 && ns > self.config.slice_ns;
        let sliced = model.cells.iter().any(|cell| cell.cost.nanoseconds(1).is_some_and(is_long));
        match model.policy.unwrap_or(self.config.policy).takes() {
            Takes::RequestsInOrder if sliced => Takes::Nodes,
            takes => takes,
        }
    }

    /// Every predecessor is complete or earlier in the same worker's order; a pinned subgraph stays on its worker.
    fn check_needs(&self, request: &Request, node: NodeId, launch: &cellwright_scheduler::Launch, step: u32) {
        let (worker, at) = (launch.worker, (launch.seq.0, step));
        assert!(node.step < request.known(node.chain), "a step beyond its chain's end was launched");
        assert!(!request.cancelled_chains.contains(&node.chain), "a node of a cancelled chain was launched");
        let in_order = self.in_order(request);
        let strict = self.config.release == Release::Subgraph && !in_order;
        let ahead = |state: Option<&NodeState>| match state {
            Some(NodeState::Done) => true,
            // Who is ahead may be paused.
            Some(NodeState::Queued(..)) if launch.slice != Slice::Whole => false,
            Some(NodeState::Queued(other, before)) => *other == worker && *before < at,
            None => false,
        };
        let subgraph = request.graph.subgraph(node);
        for (other, state) in &request.nodes {
            if let NodeState::Queued(on, _) = state
                && request.graph.subgraph(*other) == subgraph
            {
                assert_eq!(*on, worker, "a pinned subgraph on two workers");
            }
        }
        for need in request.graph.needs(node) {
            let met = match need {
                Need::Node { node: other, inside, known } if (strict && !inside) || known => request.done(other),
                Need::Node { node: other, .. } => ahead(request.nodes.get(&other)),
                Need::Followed(other) => request.done(other),
                Need::Counted { chain, counted } => request.given_up(chain) || counted <= request.executed(chain),
                Need::End(chain) => {
                    let complete = strict || request.graph.root(chain).is_some() && !in_order;
                    let executed = request.executed(chain);
                    let met = |other: NodeId| if complete { request.done(other) } else { ahead(request.nodes.get(&other)) };
                    request.given_up(chain) || request.graph.nodes(chain).all(|other| other.step >= executed || met(other))
                }
            };
            assert!(met, "{node:?} was launched on {worker:?} before {need:?}");
        }
        for other in request.graph.seen(node, |chain| request.steps(chain)) {
            assert!(ahead(request.nodes.get(&other)), "{node:?} was launched on {worker:?} before {other:?}, which it sees");
        }
    }
}
