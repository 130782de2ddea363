//! The state machine: events in, commands out.
//!
//! [`Scheduler::handle`] applies a batch of events one by one, places who waits, and lets the policy give work to every worker that asks. The
//! parts are in files of their own: `admission` (places), `seating` (within them), `readiness` (dependencies), `completion` (what tasks leave behind), `ending`
//! (who is done and who is given up), `moving`, `fairness`, and the policies. All of them change this one structure and none keeps state
//! besides it.

use cellwright_cell_graph::unfolded::{Delivery, Dependency, UnfoldedStage};

use crate::arena::Arena;
use crate::command::{Commands, Failure};
use crate::config::Config;
use crate::event::{Event, Submission};
use crate::fairness::Start;
use crate::fleet::{Class, Domain, Model, Worker, entry};
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, NumericClass, RequestId, Slot, Time, WorkerId};
use crate::lane::{Lane, Moments, Progress};
use crate::listing::Uncounted;
use crate::policy::adaptive::AdaptivePolicy;
use crate::policy::cellular::Batch;
use crate::policy::graph::GraphPolicy;
use crate::policy::lazy::LazyPolicy;
use crate::policy::merge::MergePolicy;
use crate::policy::shelf::Shelves;
use crate::queues::TypeQueue;
use crate::readiness::Told;
use crate::request::{Block, Phase, Rare, Request};
use crate::spares::Spares;
use crate::tenants::Tenant;

/// Decides which nodes run together, where and when.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) now: Time,
    /// Counts `handle`s.
    pub(crate) tick: u64,
    pub(crate) out: Commands,
    pub(crate) workers: Vec<Option<Worker>>,
    pub(crate) domains: Vec<Option<Domain>>,
    /// Lives that domains had.
    pub(crate) lives: u32,
    pub(crate) classes: Vec<Class>,
    pub(crate) tenants: Vec<Option<Tenant>>,
    /// Where tenants start that come back.
    pub(crate) tenants_start: Start,
    pub(crate) models: Vec<Option<Model>>,
    /// Those of them that are closed and whose last request has left.
    pub(crate) models_over: Vec<ModelId>,
    /// Those of them whose policies take requests into batches, not nodes.
    pub(crate) models_of_batches: u32,
    /// Changes of tallies that are put off.
    pub(crate) uncounted: Uncounted,
    /// There is but one worker.
    pub(crate) alone: bool,
    /// Models that may have become active or idle.
    pub(crate) touched: Vec<ModelId>,
    pub(crate) types: Vec<TypeQueue>,
    pub(crate) requests: Vec<Request>,
    pub(crate) requests_alive: u32,
    pub(crate) requests_waiting: u32,
    pub(crate) next_order: u64,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) moments: Moments,
    pub(crate) free_lanes: Vec<LaneId>,
    /// Lanes handed out and given back in one `handle`: released with the next, because placements are carried out after releases.
    pub(crate) late_lanes: Vec<LaneId>,
    /// The slots of such lanes' requests.
    pub(crate) late_blocks: Vec<(DomainId, Option<Block>)>,
    /// Requests to be given up as soon as nothing is being changed.
    pub(crate) doomed: Vec<(RequestId, Failure)>,
    /// Requests that may be over, or may be released, or have room now for a growth that was put off.
    pub(crate) over: Vec<RequestId>,
    /// Slots came free after this `handle`'s placements.
    pub(crate) freed: bool,
    /// Requests on their way, and whither.
    pub(crate) moving_to: Vec<(RequestId, DomainId)>,
    pub(crate) shelves: Shelves,
    pub(crate) graph: GraphPolicy,
    pub(crate) merge: MergePolicy,
    pub(crate) lazy: LazyPolicy,
    pub(crate) adaptive: AdaptivePolicy,
    pub(crate) batch: Batch,
    /// Room for what nodes hear of others.
    pub(crate) told: Told,
    /// Slots of the stages of the growth that is being placed.
    pub(crate) seats: Vec<Slot>,
    pub(crate) spares: Spares,
}

impl Scheduler {
    /// A scheduler that knows of no workers, models or requests.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = Config { max_tasks_to_submit: config.max_tasks_to_submit.max(1), ..config };
        Self {
            config,
            now: Time(0),
            tick: 0,
            out: Commands::default(),
            workers: Vec::new(),
            domains: Vec::new(),
            lives: 0,
            classes: Vec::new(),
            tenants: Vec::new(),
            tenants_start: Start::default(),
            models: Vec::new(),
            models_over: Vec::new(),
            models_of_batches: 0,
            uncounted: Uncounted::default(),
            alone: true,
            touched: Vec::new(),
            types: Vec::new(),
            requests: Vec::new(),
            requests_alive: 0,
            requests_waiting: 0,
            next_order: 0,
            lanes: Vec::new(),
            moments: Moments::default(),
            free_lanes: Vec::new(),
            late_lanes: Vec::new(),
            late_blocks: Vec::new(),
            doomed: Vec::new(),
            over: Vec::new(),
            freed: false,
            moving_to: Vec::new(),
            shelves: Shelves::default(),
            graph: GraphPolicy::default(),
            merge: MergePolicy::default(),
            lazy: LazyPolicy::default(),
            adaptive: AdaptivePolicy::default(),
            batch: Batch::default(),
            told: Told::default(),
            seats: Vec::new(),
            spares: Spares::default(),
        }
    }

    /// Takes every event from `events`, in order, and says in `commands` what follows from them, and nothing else.
    ///
    /// Time must not run backwards; if it does, it stands still.
    pub fn handle(&mut self, now: Time, events: &mut Vec<Event>, commands: &mut Commands) {
        self.out.clear();
        self.now = self.now.max(now);
        self.tick += 1;
        self.spares.pass(self.tick);
        self.release_late_lanes();
        read_ahead(events);
        for event in events.drain(..) {
            self.apply(event);
            self.settle();
            self.forget_models_over();
        }
        self.freed = false;
        self.admit_all();
        self.settle();
        self.drop_late();
        self.run();
        self.settle();
        self.settle_counts();
        self.forget_models_over();
        if !self.late_lanes.is_empty() || (self.freed && self.requests_waiting > 0) {
            self.out.wake_at = Some(self.now);
        }
        std::mem::swap(&mut self.out, commands);
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::WorkerUp { worker, domain, class, arena_slots } => self.worker_up(worker, domain, class, arena_slots),
            Event::WorkerDown(worker) => self.worker_down(worker),
            Event::ModelUp(info) => self.model_up(info),
            Event::ModelDown(model) => self.model_down(model),
            Event::TenantWeight { tenant, weight } => self.tenant_weight(tenant, weight),
            Event::Submit(submission) => self.submit(submission),
            Event::Grow { request, growth } => self.grow(request, growth),
            Event::Close(request) => self.close(request),
            Event::Cancel(request) => self.doom(request, Failure::Cancelled),
            Event::Done { worker, up_to, busy_ns, stopped, failed } => self.done(worker, up_to, busy_ns, &stopped, &failed),
            Event::Moved(request) => self.moved(request),
            Event::Wake => {}
        }
    }

    fn worker_up(&mut self, worker: WorkerId, domain: DomainId, class: NumericClass, arena_slots: u32) {
        if self.workers.get(worker.index()).is_some_and(Option::is_some) {
            return;
        }
        let known = entry(&mut self.domains, domain.index());
        let home = known.get_or_insert_with(|| {
            self.lives += 1;
            Domain { class, workers: 0, arena: Arena::new(arena_slots), life: self.lives }
        });
        home.workers += 1;
        let class = home.class;
        *entry(&mut self.workers, worker.index()) = Some(Worker::new(domain, class));
        self.class_mut(class).workers += 1;
        self.count_workers();
    }

    /// Whether there is one worker alone. Where there was, what only that one might run may be for others too.
    pub(crate) fn count_workers(&mut self) {
        let alone = self.workers.iter().flatten().count() <= 1;
        if std::mem::replace(&mut self.alone, alone) && !alone {
            self.dissolve_idle_groups();
            self.look_at_everything();
        }
    }

    pub(crate) fn class_mut(&mut self, class: NumericClass) -> &mut Class {
        if class.index() >= self.classes.len() {
            self.classes.resize_with(class.index() + 1, Class::default);
        }
        &mut self.classes[class.index()]
    }

    pub(crate) fn request(&self, request: RequestId) -> &Request {
        &self.requests[request.index()]
    }

    pub(crate) fn request_mut(&mut self, request: RequestId) -> &mut Request {
        &mut self.requests[request.index()]
    }

    /// What few requests have, of one that has it from now on if not before.
    pub(crate) fn rare_mut(&mut self, request: RequestId) -> &mut Rare {
        self.requests[request.index()].rare_mut(&mut self.spares)
    }

    /// The request, if it is in flight: neither ended nor unknown.
    pub(crate) fn alive(&self, request: RequestId) -> Option<&Request> {
        self.requests.get(request.index()).filter(|request| matches!(request.phase, Phase::Waiting | Phase::Placed))
    }

    pub(crate) fn lane(&self, lane: LaneId) -> &Lane {
        &self.lanes[lane.index()]
    }

    pub(crate) fn lane_mut(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[lane.index()]
    }

    pub(crate) fn worker(&self, worker: WorkerId) -> Option<&Worker> {
        self.workers.get(worker.index())?.as_ref()
    }

    pub(crate) fn model(&self, model: ModelId) -> &Model {
        self.models[model.index()].as_ref().expect("a request's model is known")
    }

    pub(crate) fn model_mut(&mut self, model: ModelId) -> &mut Model {
        self.models[model.index()].as_mut().expect("a request's model is known")
    }

    pub(crate) fn in_order(&self, model: ModelId) -> bool {
        self.model(model).policy.in_order()
    }

    /// Reads what is about to be changed of several lanes, one by one: where many are in flight none is in a cache, and so they are waited for
    /// together.
    pub(crate) fn read_ahead<Lanes: Iterator<Item = LaneId>>(&self, lanes: impl Fn() -> Lanes) {
        // Little of each, so that many are waited for at once: a number in every cache line; of lanes first, which say whose they are.
        let of_lane = |lane: LaneId| {
            let lane = self.lane(lane);
            let front = lane.queue_key().map_or(0, |key| key.time.0 as u32);
            lane.flying ^ lane.placed_in ^ front
        };
        let of_request = |lane: LaneId| {
            let request = self.request(self.lane(lane).request);
            request.flying ^ request.chain_here().map_or(0, |chain| chain.end)
        };
        std::hint::black_box(lanes().map(of_lane).fold(0, |all, one| all ^ one));
        std::hint::black_box(lanes().map(of_request).fold(0, |all, one| all ^ one));
    }

    /// Asks to be woken at that time, if not before.
    pub(crate) fn wake_by(&mut self, at: Time) {
        self.out.wake_at = Some(self.out.wake_at.map_or(at, |other| other.min(at)));
    }
}

/// Reads what placing them needs of the graphs that come with events, for the same reason: another thread made them.
fn read_ahead(events: &[Event]) {
    const CHAINS: usize = 4;
    const NUMBERS_PER_LINE: usize = 16;
    let read = |stage: &UnfoldedStage| {
        let waits = stage.depends.first().is_some_and(|depends| matches!(depends, Dependency::End { .. }));
        let delivered = stage.delivery.first().is_some_and(|delivery| *delivery == Delivery::All);
        let named = stage.named_producers.iter().step_by(NUMBERS_PER_LINE).fold(0, |sum: u32, count| sum.wrapping_add(*count));
        usize::from(waits) + usize::from(delivered) + named as usize
    };
    let graphs = events.iter().filter_map(|event| if let Event::Submit(Submission { growth, .. }) = event { Some(growth) } else { None });
    let stages = graphs.flat_map(|graph| graph.chains.iter().take(CHAINS)).filter_map(|chain| chain.stages.first());
    std::hint::black_box(stages.map(read).fold(0, usize::wrapping_add));
}

/// Views for metrics and tests.
impl Scheduler {
    /// Requests admitted that neither finished nor failed.
    #[must_use]
    pub const fn requests_in_flight(&self) -> u32 {
        self.requests_alive
    }

    /// Requests that have no place yet.
    #[must_use]
    pub const fn requests_waiting(&self) -> u32 {
        self.requests_waiting
    }

    /// Places in the lines of those requests, those included whose request has left.
    #[must_use]
    pub fn places_in_line(&self) -> usize {
        self.classes.iter().map(|class| class.waiting.len()).sum()
    }

    /// Tenants whose requests hold memory or wait for some, as the lines have them.
    #[must_use]
    pub fn tenants_in_line(&self) -> usize {
        self.classes.iter().map(|class| class.waiting.tenants()).sum()
    }

    /// Free slots of a domain's arena, which there is as long as it has a worker.
    #[must_use]
    pub fn free_slots(&self, domain: DomainId) -> Option<u32> {
        Some(self.domains.get(domain.index())?.as_ref()?.arena.free_slots())
    }

    /// Ready nodes of a type that a worker could run now.
    #[must_use]
    pub fn ready(&self, cell_type: CellTypeId, worker: WorkerId) -> u32 {
        let (Some(queue), Some(worker_state)) = (self.types.get(cell_type.index()), self.worker(worker)) else { return 0 };
        queue.tally.runnable(worker, worker_state.domain)
    }

    /// Tasks that a worker has in flight, each step of a longer launch counted.
    #[must_use]
    pub fn outstanding(&self, worker: WorkerId) -> u32 {
        self.worker(worker).map_or(0, |worker| worker.outstanding)
    }

    /// Models that are known: open ones, and closed ones with requests in flight.
    #[must_use]
    pub fn models_known(&self) -> usize {
        self.models.iter().flatten().count()
    }

    /// Tenants that have such models.
    #[must_use]
    pub fn tenants_known(&self) -> usize {
        self.tenants.iter().flatten().count()
    }

    /// Whether whatever made a model active, or idle, is known or will be looked at in the next turn: if not, its tenant saves idleness up.
    #[must_use]
    pub fn activity_is_noted(&self) -> bool {
        let models = self.models.iter().flatten();
        models.filter(|model| model.active != model.is_busy()).all(|model| self.touched.contains(&model.info.model))
    }

    /// Bytes that say how each node of the requests in flight stands, and in what order those that are ready go: as many as their graphs are large.
    #[must_use]
    pub fn bytes_of_nodes(&self) -> usize {
        let bytes = self.lanes.iter().map(|lane| match &lane.progress {
            Progress::Front(_) => 0,
            Progress::Each(nodes) => nodes.states.bytes(),
            Progress::Grouped(grouped) => grouped.bytes(),
        });
        bytes.sum()
    }

    /// Lanes that are handed out.
    #[must_use]
    pub fn lanes_held(&self) -> usize {
        self.lanes.len() - self.free_lanes.len() - self.late_lanes.len()
    }
}
