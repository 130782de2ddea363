//! Everything that the scheduler knows, and the only code that changes it.
//!
//! [`Core`] owns queues, lanes, requests, arenas and shares. Its fields are private to its modules.
//! Policies read it through a [`View`] and answer with a [`Pick`](crate::policy::Pick).
//! [`Core::commit`] checks the pick and carries it out.
//!
//! Modules:
//!
//! - `admission` gives requests their memory, `stage_slots` gives stages their slots.
//! - `readiness` follows dependencies, `listing` keeps queues and counts in step.
//! - `offers` hands requests to policies, `commit` checks what policies pick.
//! - `batches` and `tasks` form tasks, `group` keeps chains that continue together.
//! - `completion` handles completed tasks, `ending` ends requests.
//! - `moving` moves requests between domains, `fairness` shares device time.

mod admission;
mod admission_queues;
mod arena;
mod batches;
mod commit;
mod completion;
mod ending;
mod fairness;
mod figures;
mod fleet;
mod group;
mod lane;
mod listing;
mod moving;
mod offers;
mod queues;
mod readiness;
mod request;
mod reservation;
mod reserve;
pub(crate) mod slices;
mod spares;
mod stage_slots;
mod tasks;
mod tenants;
mod view;

use std::collections::BTreeSet;

use cellwright_cell_graph::unfolded::{Delivery, Dependency, UnfoldedStage};

use crate::command::{Commands, Failure};
use crate::config::Config;
use crate::core::arena::Arena;
use crate::core::fairness::Start;
use crate::core::fleet::{Class, Domain, Model, entry};
use crate::core::lane::{Lane, Moments};
use crate::core::listing::Uncounted;
use crate::core::queues::TypeQueue;
use crate::core::readiness::Notified;
use crate::core::request::{Block, Phase, Rare};
use crate::core::spares::Spares;
use crate::core::tenants::Tenant;
use crate::event::{Event, Submission};
use crate::id::{DomainId, LaneId, ModelId, NumericClass, RequestId, Slot, Time, WorkerId};
use crate::policy::Takes;
use batches::Batch;
pub(crate) use fleet::{ModelType, Worker};
pub(crate) use offers::Member;
pub(crate) use queues::{Key, Tally};
pub(crate) use request::Chain;
use request::Request;
pub(crate) use view::View;

/// What the policy of a model is to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// A growth may be taken.
    Offered(Member),
    /// A request has ended.
    Ended(Ended),
    /// The model is gone.
    ModelGone,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) request: RequestId,
    /// It is done, and was not given up.
    pub(crate) finished: bool,
    /// A node of it was given to a worker; not known without a deadline.
    pub(crate) begun: bool,
    pub(crate) deadline: Option<Time>,
    pub(crate) submitted: Time,
}

/// The scheduler without its policies.
#[derive(Debug)]
pub(crate) struct Core {
    config: Config,
    now: Time,
    /// Counts `handle`s.
    tick: u64,
    out: Commands,
    workers: Vec<Option<Worker>>,
    domains: Vec<Option<Domain>>,
    /// How many domains ever came up: the next domain's `life`.
    lives: u32,
    classes: Vec<Class>,
    tenants: Vec<Option<Tenant>>,
    /// The share of a tenant that becomes active again.
    tenants_start: Start,
    models: Vec<Option<Model>>,
    /// Closed models whose last request has left.
    models_over: Vec<ModelId>,
    /// How many models have policies that take requests, not nodes.
    models_of_batches: u32,
    /// Changes of tallies that are not applied yet.
    uncounted: Uncounted,
    /// At most one worker is up.
    sole_worker: bool,
    /// Models that may have become active or idle.
    touched: Vec<ModelId>,
    types: Vec<TypeQueue>,
    requests: Vec<Request>,
    requests_alive: u32,
    requests_waiting: u32,
    next_order: u64,
    lanes: Vec<Lane>,
    moments: Moments,
    free_lanes: Vec<LaneId>,
    /// Lanes that were handed out and released in the same turn. They are released in the next
    /// turn, because a caller carries out releases before placements.
    late_lanes: Vec<LaneId>,
    /// The slots of the requests of `late_lanes`.
    late_blocks: Vec<(DomainId, Option<Block>)>,
    /// Requests that fail at the next `settle_failures`.
    doomed: Vec<(RequestId, Failure)>,
    /// Requests to check: they may have ended, may be released, or may place a pending growth.
    over: Vec<RequestId>,
    /// Slots came free after this `handle`'s placements.
    freed: bool,
    /// Requests that move, and their new domains.
    moving_to: Vec<(RequestId, DomainId)>,
    /// When policies are to review requests.
    reviews: BTreeSet<(Time, RequestId)>,
    /// What policies are to be told.
    notes: Vec<(ModelId, Note)>,
    batch: Batch,
    /// Scratch memory for notifications between nodes.
    notified: Notified,
    /// Slots of the stages of the growth that is being placed.
    placed_slots: Vec<Slot>,
    spares: Spares,
}

impl Core {
    /// A scheduler that knows of no workers, models or requests.
    pub(crate) fn new(config: Config) -> Self {
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
            sole_worker: true,
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
            reviews: BTreeSet::new(),
            notes: Vec::new(),
            batch: Batch::default(),
            notified: Notified::default(),
            placed_slots: Vec::new(),
            spares: Spares::default(),
        }
    }

    /// A turn begins.
    pub(crate) fn begin_turn(&mut self, now: Time, events: &[Event]) {
        self.out.clear();
        self.now = self.now.max(now);
        self.tick += 1;
        self.spares.pass(self.tick);
        self.release_late_lanes();
        read_ahead(events);
    }

    /// Applies an event in which no policy has a say.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::WorkerUp { worker, domain, class, arena_slots } => self.worker_up(worker, domain, class, arena_slots),
            Event::WorkerDown(worker) => self.worker_down(worker),
            Event::ModelDown(model) => self.model_down(model),
            Event::TenantWeight { tenant, weight } => self.tenant_weight(tenant, weight),
            Event::Close(request) => self.close(request),
            Event::Cancel(request) => self.doom(request, Failure::Cancelled),
            Event::Moved(request) => self.moved(request),
            Event::Paused { worker, seq, busy_ns } => self.pause(worker, seq, busy_ns),
            Event::ModelUp(_) | Event::Submit(_) | Event::Grow { .. } | Event::Done { .. } | Event::Wake => {}
        }
    }

    /// Carries out deferred failures, ends and releases, and forgets models that are over.
    pub(crate) fn settle_all(&mut self) {
        self.settle();
        self.forget_models_over();
    }

    /// All events were applied: places requests that wait.
    pub(crate) fn admit_waiting(&mut self) {
        self.freed = false;
        self.admit_all();
        self.settle();
    }

    /// Ends a turn and hands its commands to the caller. `wake_at` is when a policy wants the next
    /// turn.
    pub(crate) fn end_turn(&mut self, wake_at: Option<Time>, commands: &mut Commands) {
        self.settle_counts();
        let review_at = self.reviews.first().map(|(at, _)| *at);
        self.out.wake_at = wake_at.into_iter().chain(review_at).min();
        if !self.late_lanes.is_empty() || (self.freed && self.requests_waiting > 0) {
            self.out.wake_at = Some(self.now);
        }
        std::mem::swap(&mut self.out, commands);
    }

    /// Hands over what policies are to be told.
    pub(crate) fn take_notes(&mut self, into: &mut Vec<(ModelId, Note)>) {
        std::mem::swap(&mut self.notes, into);
    }

    /// Whether any model's policy takes requests, not nodes.
    pub(crate) const fn takes_requests(&self) -> bool {
        self.models_of_batches > 0
    }

    pub(crate) const fn has_notes(&self) -> bool {
        !self.notes.is_empty()
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
        let (class, is_first) = (home.class, home.workers == 1);
        if is_first {
            let parts = self.class_mut(class).queues.parts_mut();
            parts.set_max(parts.max() + u64::from(arena_slots));
        }
        *entry(&mut self.workers, worker.index()) = Some(Worker::new(domain, class));
        self.class_mut(class).workers += 1;
        self.note_sole_worker();
    }

    /// Updates `sole_worker`. With a second worker, nodes that were bound to the first one may run
    /// on either.
    pub(crate) fn note_sole_worker(&mut self) {
        let alone = self.workers.iter().flatten().count() <= 1;
        if std::mem::replace(&mut self.sole_worker, alone) && !alone {
            self.dissolve_idle_groups();
            self.check_all_requests();
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

    /// The rarely used part of a request, created if needed.
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

    /// The ids of all workers, also of those that are down.
    pub(crate) fn worker_ids(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.workers.len() as u32).map(WorkerId)
    }

    /// Whether a worker has few enough tasks in flight for any model's policy.
    pub(crate) fn asks(&self, worker: WorkerId) -> bool {
        let of_nodes = self.config.low_water.saturating_add(1);
        let most = if self.takes_requests() { of_nodes.max(self.config.max_tasks_to_submit) } else { of_nodes };
        self.worker(worker).is_some_and(|state| state.outstanding < most && self.has_time(state))
    }

    /// Whether a worker's tasks in flight are short enough for another one. Where tenants share
    /// workers, they wait for no more than a slice and a quarter.
    pub(crate) fn has_time(&self, worker: &Worker) -> bool {
        let slice_ns = self.config.slice_ns;
        // Nobody knows yet what the first tasks of a type take.
        let is_unknown = |task: &fleet::Task| task.charged_ns == 0 || task.sliced;
        let time = |task: &fleet::Task| if is_unknown(task) { slice_ns } else { task.charged_ns };
        let is_shared = slice_ns > 0 && self.classes[worker.class.index()].shared;
        !is_shared || worker.tasks.iter().map(time).sum::<u64>() <= slice_ns / 4
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
        self.model(model).takes == Takes::RequestsInOrder
    }

    /// Prefetches lanes that are about to change one by one. With many requests in flight no lane
    /// is in a cache, and the loads overlap.
    pub(crate) fn read_ahead<Lanes: Iterator<Item = LaneId>>(&self, lanes: impl Fn() -> Lanes) {
        // One number of each cache line is enough. Lanes come first: they name the requests.
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
}

/// Prefetches the graphs of submissions, which another thread wrote.
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
